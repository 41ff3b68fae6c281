"""The command line: run, preview, check, look at and report on the study of a file.

Exit codes: 0 done, 1 failed (also when a trial failed), 2 used wrongly, 130 interrupted.
"""

from dasktune.cli.commands import app, main

__all__ = ["app", "main"]

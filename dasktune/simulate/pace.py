"""The import path of `Overheads` in the documents of version 0.1; see `dasktune.traces.timing`."""

from dasktune.traces.timing import Overheads

__all__ = ["Overheads"]

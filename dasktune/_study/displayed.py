"""The live display of a run: on a terminal, in a notebook's cell, or a line in its place."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dasktune._results.results import StudyResults

if TYPE_CHECKING:
    from dasktune.report.progress import RunDisplay


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None) is not None


@contextmanager
def displayed(
    results: StudyResults, progress: bool | None, check: str | None
) -> Iterator[RunDisplay | None]:
    """Give a live display of runs, or None; `check` has the words for the check that runs."""
    if not (sys.stderr.isatty() or in_notebook() if progress is None else progress):
        if check is not None and progress is None:
            sys.stderr.write(f"{results.name}: {check}\n")
        yield None
        return
    # Imported late: pictures and rich are not needed without a display.
    from dasktune.report.progress import display

    with display(results, in_cell=in_notebook()) as shown:
        shown.say("starting workers")
        yield shown

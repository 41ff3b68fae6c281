"""Notes on workers in the log: which are put aside, and how many trials share a device."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from dasktune._driver.parts import Following, Part
from dasktune._driver.waiting import aside_text
from dasktune.graph.view import RunView
from dasktune.logs import about

logger = logging.getLogger(__name__)


class WorkerNotes(Part):
    """Logs what changes with the workers of a run."""

    def __init__(self, view: RunView) -> None:
        self._view = view
        self._aside: set[str] = set()
        self._factor_changes = 0

    def turn(self, now: float) -> Iterable[Following]:
        """Log what has changed since the last turn."""
        self._note_aside(now)
        changes = self._view.factor_changes
        for change in changes[self._factor_changes :]:
            logger.info("packing: %s", change)
        self._factor_changes = len(changes)
        return ()

    def _note_aside(self, now: float) -> None:
        """Log which workers are put aside and taken back."""
        aside = {each.worker: each for each in self._view.aside}
        for worker in aside.keys() - self._aside:
            text, again = aside_text(aside[worker]), aside[worker].until - now
            logger.warning("%s; tried again in %.0f s", text, again, extra=about(worker=worker))
        for worker in self._aside - aside.keys():
            logger.info("worker %s is tried again", worker, extra=about(worker=worker))
        self._aside = set(aside)

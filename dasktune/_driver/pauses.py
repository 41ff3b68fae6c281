"""Workers that Dask has paused: what they have not begun goes elsewhere."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from dasktune._cluster.workers import paused_text
from dasktune._driver.attempts import Attempts
from dasktune._driver.connection import Connection
from dasktune._driver.parts import Following, Part
from dasktune.graph.events import Paused
from dasktune.graph.view import RunView
from dasktune.logs import about

logger = logging.getLogger(__name__)


class Pauses(Part):
    """Tells the engine which workers are paused, and takes stages back from those that rest."""

    def __init__(self, view: RunView, cluster: Connection, attempts: Attempts) -> None:
        self._view = view
        self._cluster = cluster
        self._attempts = attempts

    def turn(self, now: float) -> Iterable[Following]:
        """Yield the paused workers if they are others than before, then the stages taken back."""
        workers, view = self._cluster.workers, self._view
        before, paused = frozenset(view.paused), workers.paused & view.slots.keys()
        for worker in paused - before:
            logger.warning("%s", paused_text(worker), extra=about(worker=worker))
        for worker in before - paused:
            logger.info("worker %s is not paused any more", worker, extra=about(worker=worker))
        if paused != before:
            yield Paused(workers=paused)
        # Only now: the engine must know of the pause first.
        yield from self._attempts.take_back(workers.resting, now=now, at=time.time())

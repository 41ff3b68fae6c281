"""Speeds in the database: what a run measures is where later runs of the same trainer begin.

They belong to the fingerprint of code, config and data, so every study of the trainer finds them.
No result rests on them: without them, a run measures again. So a database that does not answer
costs the run nothing but that.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable
from hashlib import blake2b
from heapq import nlargest

from dasktune.engine.timeouts import SPEEDS_SECONDS
from dasktune.errors import StorageError
from dasktune.graph.kept_speeds import KeptSpeed
from dasktune.storage.database.database import Database
from dasktune.storage.database.schema import SpeedRow

logger = logging.getLogger(__name__)

MOST_SPEEDS = 500
"""Pairs of model and class that are kept or read at most: those with the most steps, the latest."""


class SpeedKeeper:
    """Reads and writes the speeds of one trainer.

    Parameters
    ----------
    database
        Where they are.
    fingerprint
        The fingerprint of the trainer.
    clock
        Gives epoch seconds.
    """

    def __init__(
        self, database: Database, fingerprint: str, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._database = database
        self._fingerprint = fingerprint
        self._clock = clock
        self._written: dict[str, KeptSpeed] = {}
        self._due = clock() + SPEEDS_SECONDS

    def recall(self) -> list[KeptSpeed]:
        """Return the speeds of earlier runs; none if the database cannot be read."""
        try:
            rows = self._database.speeds(self._fingerprint, MOST_SPEEDS)
            return [_speed_of(row) for row in rows]
        except (StorageError, ValueError) as error:
            logger.warning("the speeds of earlier runs cannot be read: %s", error)
            return []

    def turn(self, speeds: Callable[[], Iterable[KeptSpeed]]) -> None:
        """Keep the speeds of a run, if it is time to.

        Parameters
        ----------
        speeds
            Gives the speeds that the run has measured so far.
        """
        if self._clock() >= self._due:
            self.keep(speeds())
            self._due = self._clock() + SPEEDS_SECONDS

    def keep(self, speeds: Iterable[KeptSpeed]) -> None:
        """Write the speeds that have changed; log it if the database cannot take them."""
        most = nlargest(MOST_SPEEDS, speeds, key=lambda speed: speed.steps)
        changed = {
            key: speed for speed in most if self._written.get(key := _key_of(speed)) != speed
        }
        now = self._clock()
        rows = [
            SpeedRow(fingerprint=self._fingerprint, key=key, measured=now, **speed.to_json())
            for key, speed in changed.items()
        ]
        try:
            self._database.write_speeds(rows)
        except StorageError as error:
            logger.warning("the speeds of this run cannot be kept for later ones: %s", error)
        else:
            self._written |= changed


def _key_of(speed: KeptSpeed) -> str:
    """Return a hash of the model and the class of a speed."""
    text = json.dumps([speed.model, speed.kind])
    return blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def _speed_of(row: SpeedRow) -> KeptSpeed:
    sums = {"seconds": row.seconds, "steps": row.steps}
    return KeptSpeed.from_json({"model": row.model, "kind": row.kind, **sums})

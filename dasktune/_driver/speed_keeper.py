"""Speeds and packing factors in the database: later runs of the same trainer begin with them.

They belong to the fingerprint of code, config and data, so every study of the trainer finds them.
No result rests on them: without them, a run measures again. So a database that does not answer
costs the run nothing but that.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from hashlib import blake2b
from heapq import nlargest
from typing import Any, TypeVar

from dasktune._engine.timeouts import SPEEDS_SECONDS
from dasktune.errors import StorageError
from dasktune.graph.kept_speeds import NOTHING_KEPT, KeptFactor, KeptMeasurements, KeptSpeed
from dasktune.storage.database.database import Database
from dasktune.storage.database.rows import FactorRow, SpeedRow

Each = TypeVar("Each", KeptSpeed, KeptFactor)

logger = logging.getLogger(__name__)

MOST_SPEEDS = 500
"""Pairs of model and class that are kept or read at most: those with the most steps, the latest."""


class SpeedKeeper:
    """Reads and writes the measurements of one trainer by model and class.

    `fingerprint` is the trainer's; `clock` gives epoch seconds.
    """

    def __init__(
        self, database: Database, fingerprint: str, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._database = database
        self._fingerprint = fingerprint
        self._clock = clock
        self._speeds: dict[str, KeptSpeed] = {}
        self._factors: dict[str, KeptFactor] = {}
        self._due = clock() + SPEEDS_SECONDS

    def recall(self) -> KeptMeasurements:
        """Return the measurements of earlier runs; none if the database cannot be read."""
        try:
            speeds = self._database.speeds(self._fingerprint, MOST_SPEEDS)
            factors = self._database.factors(self._fingerprint, MOST_SPEEDS)
            return KeptMeasurements(
                tuple(KeptSpeed.from_json(asdict(row)) for row in speeds),
                tuple(KeptFactor.from_json(asdict(row)) for row in factors),
            )
        except (StorageError, ValueError) as error:
            logger.warning("the speeds of earlier runs cannot be read: %s", error)
            return NOTHING_KEPT

    @property
    def is_due(self) -> bool:
        """Whether the last measurements were kept some time ago."""
        return self._clock() >= self._due

    def keep(self, kept: KeptMeasurements) -> None:
        """Write the measurements that have changed; log it if the database cannot take them."""
        most = nlargest(MOST_SPEEDS, kept.speeds, key=lambda speed: speed.steps)
        speeds = _changed(self._speeds, most)
        factors = _changed(self._factors, kept.factors[:MOST_SPEEDS])
        head: dict[str, Any] = {"fingerprint": self._fingerprint, "measured": self._clock()}
        try:
            self._database.write_kept(
                [SpeedRow(**head, key=key, **each.to_json()) for key, each in speeds.items()],
                [FactorRow(**head, key=key, **each.to_json()) for key, each in factors.items()],
            )
        except StorageError as error:
            logger.warning("the speeds of this run cannot be kept for later ones: %s", error)
        else:
            self._speeds |= speeds
            self._factors |= factors
        self._due = self._clock() + SPEEDS_SECONDS


def _changed(written: Mapping[str, Each], kept: Iterable[Each]) -> dict[str, Each]:
    """Return the measurements by key that differ from the written ones."""
    by_key = {_key_of(each): each for each in kept}
    return {key: each for key, each in by_key.items() if written.get(key) != each}


def _key_of(kept: KeptSpeed | KeptFactor) -> str:
    """Return a hash of the model and the class of a measurement."""
    text = json.dumps([kept.model, kept.kind])
    return blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()

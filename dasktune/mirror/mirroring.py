"""The mirror: takes what changes from the driver in no time, and writes it in a thread."""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from dasktune.engine.trials import TrialRecord
from dasktune.mirror.snapshot import Seen
from dasktune.types import Metrics, Objective, Step

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

logger = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 2.0
"""How often the mirror is written to, at most."""

DUTY: Final = 0.02
"""Share of the time that the thread may write: where that is slow it writes more at once,
which costs less, and the training hardly notices."""


@dataclass(slots=True)
class _Change:
    """What is to be written of one trial: how it is now, and which metrics are new."""

    record: TrialRecord
    began: float
    ended: float
    metrics: dict[Step, Metrics] = field(default_factory=dict)


class Mirror:
    """Keeps an Optuna study up to date with one of ours, while that one runs.

    Opening it refuses what cannot be. From then on it stops nothing: where the storage
    fails, a warning says so, and nothing more is written. The study itself has everything;
    the next mirror that is given all its trials writes what is missing.

    Parameters
    ----------
    storage
        An Optuna storage, the URL of a database (``postgresql+psycopg://...``), or the path
        of a SQLite file, which is made if it is missing.
    study_name
        The Optuna study's name; it is made if it is missing.
    objective
        What the study optimises.
    owner
        What tells the study from others that may have the same name.
    interval
        Seconds between two times of writing, at least.

    Raises
    ------
    ConfigurationError
        If there is such a study in Optuna's storage that has other directions, holds trials
        that were not mirrored, or mirrors another study.
    StorageError
        If the storage cannot be opened.
    """

    def __init__(
        self,
        storage: str | Path | BaseStorage,
        study_name: str,
        objective: Objective,
        *,
        owner: str = "",
        interval: float = INTERVAL_SECONDS,
    ) -> None:
        from dasktune.mirror.frozen import Translator
        from dasktune.mirror.opening import Place

        self._name = study_name
        self._place = Place(storage, study_name, objective, owner)
        self._translator = Translator(objective)
        self._translator.adopt(self._place.distributions)
        self._interval = interval
        self._lock = threading.Lock()
        self._changes: dict[int, _Change] = {}
        self._is_closing = threading.Event()
        self.is_broken = False
        """Whether the storage failed, so that nothing more is written."""
        self.seconds = 0.0
        """Time that writing has taken so far."""
        self._thread = threading.Thread(target=self._run, name=f"mirror {study_name}", daemon=True)
        self._thread.start()

    def update(self, trials: Iterable[Seen]) -> None:
        """Take trials that changed; they are written soon, in a thread.

        Every trial must have been given once, from number 0 on, before its changes are.

        Parameters
        ----------
        trials
            Each as it is now, with its metrics by step: all of them, or those that are new.
        """
        if self.is_broken:
            return
        now = time.time()
        with self._lock:
            for record, metrics in trials:
                change = self._changes.get(record.number)
                if change is None:
                    change = self._changes[record.number] = _Change(record, now, now)
                # The engine goes on changing its own.
                change.record, change.ended = copy.copy(record), now
                change.metrics.update(metrics)

    def close(self) -> None:
        """Write what is left, and close the storage."""
        if self._is_closing.is_set():
            return
        self._is_closing.set()
        self._thread.join()
        self._place.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # ---------------------------------------------------------------------- thread

    def _run(self) -> None:
        pause = self._interval
        while not self._is_closing.wait(pause):
            pause = max(self._interval, self._write() / DUTY)
        self._write()

    def _write(self) -> float:
        """Write what has come; return the seconds that it took."""
        with self._lock:
            changes, self._changes = self._changes, {}
        if self.is_broken or not changes:
            return 0.0
        began = time.perf_counter()
        try:
            self._write_changes([changes[number] for number in sorted(changes)])
        except Exception as error:  # noqa: BLE001 - a storage of the user's may raise anything
            self.is_broken = True
            logger.warning(
                "study %s is not mirrored to Optuna any more: %s. Its training goes on, and "
                "the next run writes what is missing",
                self._name,
                error,
            )
        took = time.perf_counter() - began
        self.seconds += took
        return took

    def _write_changes(self, changes: list[_Change]) -> None:
        self._translator.see(change.record for change in changes)
        self._place.writer.write(
            [
                self._translator.translate(one.record, one.metrics, (one.began, one.ended))
                for one in changes
            ]
        )

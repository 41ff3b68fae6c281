"""The mirror: receives changed trials from the driver, and writes them in a thread."""

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

from dasktune.engine.timeouts import MIRROR_SECONDS
from dasktune.engine.trials import TrialRecord
from dasktune.mirror.snapshot import Seen
from dasktune.types import Metrics, Objective, Step

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

logger = logging.getLogger(__name__)

DUTY: Final = 0.02
"""Share of the time in which the thread may write. With a slow storage it writes seldom and
much at once, which costs less."""


@dataclass(slots=True)
class _Change:
    """The unwritten changes of a trial: its present record and its new metrics."""

    record: TrialRecord
    began: float
    ended: float
    metrics: dict[Step, Metrics] = field(default_factory=dict)


class Mirror:
    """Keeps an Optuna study up to date with a running study of ours.

    Errors are raised when the mirror opens. Later failures of the storage never stop the study:
    the mirror logs a warning and stops writing. The study itself has all trials, and the next
    mirror writes the missing ones.

    Parameters
    ----------
    storage
        An Optuna storage, the URL of a database (``postgresql+psycopg://...``), or the path
        of a SQLite file, which is created if it is missing.
    study_name
        The Optuna study's name; the study is created if it is missing.
    objective
        The objective of the study.
    owner
        An identifier that differs between studies of the same name.
    interval
        Least number of seconds between two writes.

    Raises
    ------
    ConfigurationError
        If the Optuna study has other directions, holds trials that are not mirrored, or
        mirrors another study.
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
        interval: float = MIRROR_SECONDS,
    ) -> None:
        from dasktune.mirror.frozen import Translator
        from dasktune.mirror.opening import OpenMirror

        self._name = study_name
        self._mirror = OpenMirror(storage, study_name, objective, owner)
        self._translator = Translator(objective)
        self._translator.adopt(self._mirror.distributions)
        self._interval = interval
        self._lock = threading.Lock()
        self._changes: dict[int, _Change] = {}
        self._is_closing = threading.Event()
        self.is_broken = False
        """Whether the storage failed, so that the mirror has stopped writing."""
        self.seconds = 0.0
        """Seconds of writing so far."""
        self._thread = threading.Thread(target=self._run, name=f"mirror {study_name}", daemon=True)
        self._thread.start()

    def update(self, trials: Iterable[Seen]) -> None:
        """Receive changed trials; a thread writes them soon.

        New trials must come in the order of their numbers, from 0 on.

        Parameters
        ----------
        trials
            Each trial with its metrics by step: all of them, or the new ones.
        """
        if self.is_broken:
            return
        now = time.time()
        with self._lock:
            for record, metrics in trials:
                change = self._changes.get(record.number)
                if change is None:
                    change = self._changes[record.number] = _Change(record, now, now)
                # A copy, because the engine goes on changing its record while the thread writes.
                change.record, change.ended = copy.copy(record), now
                change.metrics.update(metrics)

    def close(self) -> None:
        """Write the remaining changes, and close the storage."""
        if self._is_closing.is_set():
            return
        self._is_closing.set()
        self._thread.join()
        self._mirror.close()

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
        """Write the changes, and return the seconds that this took."""
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
                "the next run writes the missing trials",
                self._name,
                error,
            )
        took = time.perf_counter() - began
        self.seconds += took
        return took

    def _write_changes(self, changes: list[_Change]) -> None:
        self._translator.see(change.record for change in changes)
        self._mirror.writer.write(
            [
                self._translator.translate(
                    change.record, change.metrics, (change.began, change.ended)
                )
                for change in changes
            ]
        )

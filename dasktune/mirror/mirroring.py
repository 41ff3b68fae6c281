"""The mirror: receives changed trials from the driver, and writes them in a thread."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from dasktune.engine.timeouts import MIRROR_SECONDS
from dasktune.engine.trials import TrialRecord
from dasktune.mirror.background import Background
from dasktune.mirror.snapshot import Seen
from dasktune.types import Metrics, Objective, Step

if TYPE_CHECKING:
    from optuna.storages import BaseStorage


@dataclass(slots=True)
class _Change:
    """The unwritten changes of a trial: its present record and its new metrics."""

    record: TrialRecord
    began: float
    ended: float
    metrics: dict[Step, Metrics] = field(default_factory=dict)

    def joined(self, later: _Change) -> _Change:
        """Return this change and a later one together."""
        metrics = {**self.metrics, **later.metrics}
        return _Change(later.record, self.began, later.ended, metrics)


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

        self._mirror = OpenMirror(storage, study_name, objective, owner)
        self._translator = Translator(objective)
        self._translator.adopt(self._mirror.distributions)
        self._background = Background(
            f"mirror {study_name}",
            self._write,
            _Change.joined,
            # A name may have a percent sign.
            warning=f"study {study_name.replace('%', '%%')} is not mirrored to Optuna any more: "
            "%s. Its training goes on, and the next run writes the missing trials",
            interval=interval,
        )

    @property
    def is_broken(self) -> bool:
        """Whether the storage failed, so that the mirror has stopped writing."""
        return self._background.is_broken

    @property
    def seconds(self) -> float:
        """Seconds of writing so far."""
        return self._background.seconds

    def update(self, trials: Iterable[Seen]) -> None:
        """Receive changed trials; a thread writes them soon.

        New trials must come in the order of their numbers, from 0 on.

        Parameters
        ----------
        trials
            Each trial with its metrics by step: all of them, or the new ones.
        """
        now = time.time()
        # Copies, because the engine goes on changing its records while the thread writes.
        self._background.put(
            (record.number, _Change(copy.copy(record), now, now, dict(metrics)))
            for record, metrics in trials
        )

    def close(self) -> None:
        """Write the remaining changes, and close the storage."""
        if self._background.close():
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

    def _write(self, changes: list[_Change]) -> None:
        self._translator.see(change.record for change in changes)
        self._mirror.writer.write(
            [
                self._translator.translate(
                    change.record, change.metrics, (change.began, change.ended)
                )
                for change in changes
            ]
        )

"""Loggers: programs that show each trial of a study as a run, such as TensorBoard."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from typing import Any, Protocol

from dasktune._engine.timeouts import LOGGER_SECONDS
from dasktune._engine.trials import TrialRecord
from dasktune.errors import ConfigurationError, shown
from dasktune.graph.plan import SearchPlan
from dasktune.mirror.background import Background
from dasktune.mirror.runs import LoggedStudy, Runs, TrialRun
from dasktune.types import Step


class OpenLogger(Protocol):
    """Writes the runs of one study."""

    @property
    def written(self) -> Mapping[str, Collection[Step]]:
        """The steps that it had when it was opened, by identifier of the run."""

    def write(self, run: TrialRun) -> None:
        """Write the metrics of a run that are new, and its state.

        After a crash a run may come again with metrics that are written already: only `written`
        tells which.
        """

    def close(self) -> None:
        """Close all that is open."""


class Logger(ABC):
    """Shows each trial of a study as a run of another program.

    `dasktune.create_study` takes loggers, and keeps them up to date while the study runs.
    `export` writes a study that has run.
    """

    @abstractmethod
    def open(self, study: LoggedStudy) -> OpenLogger:
        """Open the logger for a study, and read what it has of it.

        Raises
        ------
        ConfigurationError
            If the place belongs to another study.
        StorageError
            If the place cannot be read or written.
        """

    def export(self, study: Any) -> None:
        """Write all trials of a study, without those parts that were written before.

        A step that trials share is in the run of the one with the lowest number.

        Parameters
        ----------
        study
            A `dasktune.Study`, also while another process runs it.

        Raises
        ------
        ConfigurationError
            If `study` is no study, or the place belongs to another one.
        StorageError
            If the place cannot be read or written.
        """
        if not hasattr(study, "study_config"):
            raise ConfigurationError(f"study must be a dasktune.Study, got {shown(study)}")
        study.results.catch_up()
        records = sorted(study.records.values(), key=lambda record: record.number)
        about = LoggedStudy.of(study.results.row, study.objective, study.study_config.folder)
        with closing(self.open(about)) as opened:
            runs = Runs(about, opened.written, study.plan, records)
            for record in records:
                opened.write(runs.of(study.plan, record))


class LoggerFeed:
    """Keeps a logger up to date with a running study, in a thread.

    Errors are raised when it opens. A later failure is logged and ends the writing; the next run
    of the study writes what is missing.

    Parameters
    ----------
    plan, records
        Its search plan and its trials, which are brought up to date.
    interval
        Least number of seconds between two writes.
    """

    def __init__(
        self,
        logger: Logger,
        study: LoggedStudy,
        plan: SearchPlan,
        records: Iterable[TrialRecord],
        *,
        interval: float = LOGGER_SECONDS,
    ) -> None:
        records = sorted(records, key=lambda record: record.number)
        self._open = logger.open(study)
        self._runs = Runs(study, self._open.written, plan, records)
        kind = type(logger).__name__
        self._background = Background(
            f"{kind} {study.name}",
            self._write,
            _joined,
            # A name may have a percent sign.
            warning=f"study {study.name.replace('%', '%%')} is not logged by {kind} any more: %s. "
            "Its training goes on, and the next run writes the rest",
            interval=interval,
        )
        self.take(plan, records)

    def take(self, plan: SearchPlan, records: Iterable[TrialRecord]) -> None:
        """Receive trials that have changed."""
        if not self._background.is_broken:
            runs = [self._runs.of(plan, record) for record in records]
            self._background.put((run.number, (run,)) for run in runs)

    def close(self) -> None:
        """Write what is left, and close the logger."""
        if self._background.close():
            self._open.close()

    def _write(self, changes: Iterable[tuple[TrialRun, ...]]) -> None:
        for runs in changes:
            for run in runs:
                self._open.write(run)


def _joined(earlier: tuple[TrialRun, ...], later: tuple[TrialRun, ...]) -> tuple[TrialRun, ...]:
    """Return the runs of a trial: two if it is trained again, alone, in a run of its own."""
    if earlier[-1].id == later[0].id:
        return (*earlier[:-1], later[0].after(earlier[-1]), *later[1:])
    return (*earlier, *later)

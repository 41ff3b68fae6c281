"""Callbacks: code of users that runs at the events of a run; loggers of a study."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from dasktune._engine.outcome import Outcome
from dasktune._engine.timeouts import LOGGER_SECONDS
from dasktune._engine.trials import Trial, trial_of
from dasktune._results.results import StudyResults
from dasktune.mirror import LoggedStudy, Logger
from dasktune.mirror.loggers import LoggerFeed
from dasktune.types import Report, TrialState

Given = TypeVar("Given")


class Callback:
    """Methods that are called while a study runs; override those that you need.

    The thread that runs the study calls them between its decisions, once the reports and
    trials are durable; a slow callback delays the study. They may call ``study.stop()``. An
    exception saves the running stages, ends the run and is raised by it.

    Examples
    --------
    >>> class Print(Callback):
    ...     def on_trial_end(self, study, trial):
    ...         print(f"trial {trial.number} has ended: {trial.value}")
    """

    # The study is a `dasktune.Study`, whose module imports this one.

    def on_report(self, study: Any, trial: Trial, report: Report) -> None:
        """Handle a report of a trial that its tuner has received."""

    def on_trial_end(self, study: Any, trial: Trial) -> None:
        """Handle a trial that is COMPLETE, PRUNED or FAIL."""

    def on_study_end(self, study: Any) -> None:
        """Handle the end of this run: the tuner has ended, or a limit or `stop` ended it."""


class LoggerFeeds:
    """Keeps the loggers of a study up to date while its context lasts."""

    def __init__(
        self, results: StudyResults, loggers: Iterable[Logger], folder: Path | None
    ) -> None:
        self._results = results
        self._loggers = tuple(loggers)
        self._folder = folder
        self._feeds: list[LoggerFeed] = []
        self._followed = 0.0
        self._closing = ExitStack()

    def __enter__(self) -> None:
        self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Open the loggers, and bring their trials up to date."""
        if not self._loggers:
            return
        results = self._results
        about = LoggedStudy.of(results.row, results.objective, self._folder)
        try:
            for logger in self._loggers[len(self._feeds) :]:
                feed = LoggerFeed(logger, about, results.plan, results.records.values())
                self._feeds.append(feed)
                self._closing.callback(feed.close)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Write what is left."""
        self._feeds = []
        self._closing.close()

    def take(self, outcome: Outcome) -> None:
        """Pass on the trials of an outcome."""
        for feed in self._feeds:
            feed.take(self._results.plan, outcome.trials)

    def following(self, on_turn: Callable[[Given], None] | None) -> Callable[[Given], None] | None:
        """Return a function for each turn of a run that also passes on metrics between reports.

        Without loggers it is `on_turn`, which may be None.
        """
        if not self._feeds:
            return on_turn

        def follow(snapshot: Given) -> None:
            if on_turn is not None:
                on_turn(snapshot)
            if time.monotonic() - self._followed > LOGGER_SECONDS:
                self.follow()
                self._followed = time.monotonic()

        return follow

    def follow(self) -> None:
        """Pass on the new metrics of running trials, which their tuner does not wait for."""
        records = self._results.records.values()
        running = [record for record in records if record.state is TrialState.RUNNING]
        for feed in self._feeds:
            feed.take(self._results.plan, running)


class Announcer:
    """Passes the outcomes of an engine to the loggers, then to the callbacks."""

    def __init__(self, study: Any, callbacks: Iterable[Callback], feeds: LoggerFeeds) -> None:
        self._study = study
        self._callbacks = tuple(callbacks)
        self._feeds = feeds
        self._ended: set[int] = set()

    def take(self, outcome: Outcome) -> None:
        """Pass on the reports and the ended trials of a durable outcome."""
        self._feeds.take(outcome)
        if not self._callbacks:
            return
        records = self._study.records
        for report in outcome.reports:
            trial = trial_of(self._study.plan, records[report.trial], self._study.metric)
            for callback in self._callbacks:
                callback.on_report(self._study, trial, report)
        for record in outcome.trials:
            if record.state.is_finished and record.number not in self._ended:
                self._ended.add(record.number)
                for callback in self._callbacks:
                    callback.on_trial_end(
                        self._study, trial_of(self._study.plan, record, self._study.metric)
                    )

    def end(self) -> None:
        """Call the callbacks at the end of the run."""
        for callback in self._callbacks:
            callback.on_study_end(self._study)

"""Callbacks: what users hook into a run; and telling them what has happened."""

from __future__ import annotations

from collections.abc import Iterable

from dasktune.engine import Outcome
from dasktune.results import StudyResults
from dasktune.trials import Trial, trial_of
from dasktune.types import Report


class Callback:
    """What is called while a study runs: override what is of interest.

    The calls come from the thread that runs the study, between its decisions, once what
    they tell of is safe; a slow one delays the study. They may call ``study.stop()``. An
    exception saves what runs, ends the run and is raised by it.

    Examples
    --------
    >>> class Print(Callback):
    ...     def on_trial_end(self, study, trial):
    ...         print(f"trial {trial.number} has ended: {trial.value}")
    """

    def on_report(self, study: StudyResults, trial: Trial, report: Report) -> None:
        """Take a report of a trial that its tuner was told."""

    def on_trial_end(self, study: StudyResults, trial: Trial) -> None:
        """Take a trial that is COMPLETE, PRUNED or FAIL."""

    def on_study_end(self, study: StudyResults) -> None:
        """Take that this run has ended: the tuner has, or a limit was reached, or a stop."""


class Announcer:
    """Tells callbacks what outcomes of an engine mean.

    Parameters
    ----------
    study
        Whose.
    callbacks
        Who is told.
    """

    def __init__(self, study: StudyResults, callbacks: Iterable[Callback]) -> None:
        self._study = study
        self._callbacks = tuple(callbacks)
        self._ended: set[int] = set()

    def __call__(self, outcome: Outcome) -> None:
        """Tell of the reports and the ended trials of an outcome that is safe."""
        if not self._callbacks:
            return
        records = self._study.records
        for report in outcome.reports:
            trial = trial_of(self._study.plan, records[report.trial])
            for callback in self._callbacks:
                callback.on_report(self._study, trial, report)
        for record in outcome.trials:
            if record.state.is_finished and record.number not in self._ended:
                self._ended.add(record.number)
                for callback in self._callbacks:
                    callback.on_trial_end(self._study, trial_of(self._study.plan, record))

    def end(self) -> None:
        """Tell that the run has ended."""
        for callback in self._callbacks:
            callback.on_study_end(self._study)

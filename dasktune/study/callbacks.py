"""Callbacks: what users hook into a run; and telling them what has happened."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dasktune.engine.outcome import Outcome
from dasktune.engine.trials import Trial, trial_of
from dasktune.mirror import Mirror
from dasktune.results.results import StudyResults
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


class Mirroring:
    """Shows a study in an Optuna storage while its context lasts; nothing if there is none.

    Parameters
    ----------
    study
        Which.
    storage
        See `dasktune.mirror.Mirror`; None for none.
    owner
        What tells the study from others of its name.
    """

    def __init__(self, study: StudyResults, storage: Any, owner: str) -> None:
        self._study = study
        self._storage = storage
        self._owner = owner
        self._mirror: Mirror | None = None

    def __enter__(self) -> None:
        self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Open the storage, and bring what is there up to date."""
        if self._storage is not None and self._mirror is None:
            study = self._study
            self._mirror = Mirror(self._storage, study.name, study.objective, owner=self._owner)
            self._mirror.update(study.seen(study.records.values()))

    def close(self) -> None:
        """Write what is left."""
        if self._mirror is not None:
            self._mirror.close()
            self._mirror = None

    def take(self, outcome: Outcome) -> None:
        """Take what changed: of trials on their way what was reported, of ended ones all."""
        if self._mirror is None:
            return
        told = {one.trial: {one.step: one.metrics} for one in outcome.reports}
        ended = [one for one in outcome.trials if one.state.is_finished]
        others = [one for one in outcome.trials if not one.state.is_finished]
        self._mirror.update((one, told.get(one.number, {})) for one in others)
        self._mirror.update(self._study.seen(ended))


class Announcer:
    """Tells the mirror and the callbacks what outcomes of an engine mean.

    Parameters
    ----------
    study
        Whose.
    callbacks
        Who is told.
    mirroring
        Is told first.
    """

    def __init__(
        self, study: StudyResults, callbacks: Iterable[Callback], mirroring: Mirroring
    ) -> None:
        self._study = study
        self._callbacks = tuple(callbacks)
        self._mirroring = mirroring
        self._ended: set[int] = set()

    def take(self, outcome: Outcome) -> None:
        """Tell of the reports and the ended trials of an outcome that is safe."""
        self._mirroring.take(outcome)
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
        """Tell that the run has ended, or pauses."""
        for callback in self._callbacks:
            callback.on_study_end(self._study)

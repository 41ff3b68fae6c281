"""Trials that the next run trains again: failed ones go on, withdrawn ones begin anew and alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, assert_never

from dasktune._driver.history import TunerPlace
from dasktune._driver.retry_notes import trials_to_retry
from dasktune._results.results import StudyResults
from dasktune._results.withdrawn import merged_results
from dasktune._study.memory import StudyMemory
from dasktune._study.run_warnings import warn_of_trials_not_taken_back
from dasktune.errors import ConfigurationError
from dasktune.types import TrialState

Again = Literal["retry", "retrain"]
"""A way to train trials again."""


class TrialsAgain:
    """The trials of a study that its user wants to be trained again."""

    def __init__(self, memory: StudyMemory, results: StudyResults) -> None:
        self._memory, self._results = memory, results
        self._numbers: dict[Again, list[int]] = {}

    def retry_failed(self) -> list[int]:
        """Have the next `optimize` train the failed trials of its tuner again.

        Each goes on from its last stored state, and its tuner takes it back. So trials that
        failed for a reason outside of the trainer (a mount, a full disk) are not lost. Tuners
        that have decided without the failed trials refuse: SHA, Hyperband, Milestones, PBT and
        Repeats.

        Returns
        -------
        list
            The numbers of the study's failed trials.

        Examples
        --------
        ``study.retry_failed(); study.optimize(tuner)``
        """
        return self._remember("retry")

    def retrain_withdrawn(self) -> list[int]:
        """Have the next `optimize` train again, alone, the trials that an audit has withdrawn.

        These are the trials whose results rest on a withdrawn metric, and all others whose last
        report was made while trials were merged: they may be wrong as well. `optimize` trains
        those of its tuner from step 0 to the step of their last report, and the new metrics
        replace the old ones. The tuner does not get them: its decisions stay as they are in the
        event log. A trial that now fails keeps its old result, which stays marked.

        Returns
        -------
        list
            The numbers of the study's trials that are to be trained again; empty if no audit
            has found a difference. Failed trials are left out. So are trials that have more
            steps to train, because these are trained alone anyway.

        Examples
        --------
        ``study.retrain_withdrawn(); study.optimize(tuner)``
        """
        return self._remember("retrain")

    def forget(self) -> None:
        """Forget the trials: a run has begun that trains them."""
        self._numbers = {}

    def added_to(self, place: TunerPlace) -> TunerPlace:
        """Return a tuner of the study with its trials that the next run trains again."""
        retry, retrain = self._locals_of(place, "retry"), self._locals_of(place, "retrain")
        if asked := self._asked_elsewhere(place):
            retry = tuple(sorted({*retry, *asked}))
        if retry and not place.tuner.takes_back:
            raise ConfigurationError(
                f"{type(place.tuner).__name__} cannot take a failed trial back: it has decided "
                f"without it; the study has {len(retry):,}"
            )
        return replace(place, retry=retry, retrain=retrain)

    def _remember(self, how: Again) -> list[int]:
        with self._memory.alone():
            self._memory.catch_up()
            self._numbers[how] = sorted(self._eligible(how))
            return self._numbers[how]

    def _eligible(self, how: Again) -> set[int]:
        """Return the trials that can be trained again in a way."""
        records = self._memory.records
        match how:
            case "retry":
                return {n for n, record in records.items() if record.state is TrialState.FAIL}
            case "retrain":
                merged = merged_results(records.values()) if self._results.differences else {}
                return {n for n, steps in merged.items() if (records[n].until or 0) <= steps}
            case _:
                assert_never(how)

    def _asked_elsewhere(self, place: TunerPlace) -> tuple[int, ...]:
        """Return a tuner's own numbers of the trials that somebody asked to retry elsewhere."""
        asked = trials_to_retry(self._memory.history) & self._eligible("retry")
        records = [self._memory.records[number] for number in asked]
        own = tuple(record.local for record in records if record.tuner == place.number)
        if own and not place.tuner.takes_back:
            warn_of_trials_not_taken_back(self._results.name, place.tuner, len(own))
            return ()
        return own

    def _locals_of(self, place: TunerPlace, how: Again) -> tuple[int, ...]:
        """Return a tuner's own numbers of its trials that are to be trained again in a way."""
        numbers = self._numbers.get(how)
        if not numbers:
            return ()
        known = self._eligible(how)
        records = [self._memory.records[number] for number in numbers if number in known]
        return tuple(record.local for record in records if record.tuner == place.number)

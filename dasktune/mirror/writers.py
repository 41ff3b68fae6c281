"""Writer of trials that uses Optuna's own interface, for storages of any kind."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from optuna.distributions import BaseDistribution
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState

from dasktune.errors import StorageError
from dasktune.mirror.frozen import NUMBER

logger = logging.getLogger(__name__)


class Writer(Protocol):
    """Writes the trials of a study."""

    def write(self, trials: Sequence[FrozenTrial]) -> None:
        """Write the changes of trials, in the order of their numbers.

        Their intermediate values are all or the new ones.
        """


@dataclass(slots=True)
class Written:
    """The part of a trial that the storage has, as far as it shows whether there are changes."""

    trial_id: int
    state: OptunaState
    values: list[float] | None
    attributes: dict[str, int] = field(default_factory=dict)
    steps: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, trial: FrozenTrial, trial_id: int) -> Written:
        """Return the written part of a trial after it was written as a whole."""
        written = cls(trial_id, trial.state, trial.values)
        written.take(trial)
        return written

    def take(self, trial: FrozenTrial) -> None:
        """Add the changes of a trial after they were written."""
        self.state, self.values = trial.state, trial.values
        self.attributes |= _digests(trial)
        # A trial that has ended sends no more reports.
        self.steps = (
            set() if trial.state.is_finished() else self.steps | {*trial.intermediate_values}
        )

    def new_attributes(self, trial: FrozenTrial) -> Iterator[tuple[str, Any]]:
        """Yield new and changed attributes."""
        for name, digest in _digests(trial).items():
            if self.attributes.get(name) != digest:
                yield name, trial.user_attrs[name]

    def new_steps(self, trial: FrozenTrial) -> Iterator[tuple[int, float]]:
        """Yield new intermediate values."""
        for step, value in trial.intermediate_values.items():
            if step not in self.steps:
                yield step, value

    def differs(self, trial: FrozenTrial) -> bool:
        """Return whether a trial has changed after its end."""
        same = self.state is trial.state and self.values == trial.values
        return not same or any(True for _ in self.new_attributes(trial))


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The contents of an Optuna study at its opening.

    Parameters
    ----------
    written
        Its trials by number.
    foreign
        Numbers of the trials that are not mirrored.
    distributions
        Distributions by name of the parameter.
    """

    written: dict[int, Written]
    foreign: list[int]
    distributions: dict[str, BaseDistribution]


def contents_by_calls(storage: BaseStorage, study_id: int) -> Contents:
    """Return the contents of a study, read by the methods of every Optuna storage."""
    trials = storage.get_all_trials(study_id, deepcopy=False)
    return Contents(
        written={trial.number: Written.of(trial, trial._trial_id) for trial in trials},
        foreign=[
            trial.number for trial in trials if trial.system_attrs.get(NUMBER) != trial.number
        ],
        distributions={
            name: distribution
            for trial in trials
            for name, distribution in trial.distributions.items()
        },
    )


class CallWriter:
    """Writes by the methods of every Optuna storage, one call for each change.

    Optuna forbids changes of a trial that has ended. If a trial goes on after its end, because
    its tuner was given more trials, the mirror keeps the old state and logs a warning.

    Parameters
    ----------
    storage
        The storage.
    study_id
        Optuna's number of the study.
    written
        The written part of each trial, by number; the writer keeps it up to date.
    """

    def __init__(self, storage: BaseStorage, study_id: int, written: dict[int, Written]) -> None:
        self._storage = storage
        self._study_id = study_id
        self._written = written
        self._has_warned = False

    def write(self, trials: Sequence[FrozenTrial]) -> None:
        """Write the changes of trials.

        Raises
        ------
        StorageError
            If another program has added trials to the study.
        """
        for trial in trials:
            there = self._written.get(trial.number)
            if there is None:
                self._written[trial.number] = Written.of(trial, self._create(trial))
            elif not there.state.is_finished():
                self._update(there, trial)
                there.take(trial)
            elif there.differs(trial):
                self._warn(trial)

    def _create(self, trial: FrozenTrial) -> int:
        trial_id = self._storage.create_new_trial(self._study_id, template_trial=trial)
        number = self._storage.get_trial_number_from_id(trial_id)
        if number != trial.number:
            raise StorageError(misnumbered(trial.number, number))
        return trial_id

    def _update(self, there: Written, trial: FrozenTrial) -> None:
        for step, value in there.new_steps(trial):
            self._storage.set_trial_intermediate_value(there.trial_id, step, value)
        for name, value in there.new_attributes(trial):
            self._storage.set_trial_user_attr(there.trial_id, name, value)
        if trial.state.is_finished():
            self._storage.set_trial_state_values(there.trial_id, trial.state, trial.values)

    def _warn(self, trial: FrozenTrial) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "trial %d has gone on after its end; Optuna forbids changes of a trial that has "
                "ended, so the mirror keeps its old state: mirror the study under another name "
                "to see the new state",
                trial.number,
            )


def misnumbered(number: int, there: int) -> str:
    """Return the error message for a trial whose number is taken."""
    return (
        f"trial {number} would be number {there} in Optuna: another program has added or removed "
        "trials"
    )


def _digests(trial: FrozenTrial) -> dict[str, int]:
    return {name: hash(json.dumps(value)) for name, value in trial.user_attrs.items()}

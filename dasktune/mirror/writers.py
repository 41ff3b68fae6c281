"""Writing trials into an Optuna storage: through Optuna's own interface."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
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
    """Writes trials of one study."""

    def write(self, trials: Sequence[FrozenTrial]) -> None:
        """Write what is new of some trials, given by ascending number.

        Their intermediate values are those that are new, or all.
        """


@dataclass(slots=True)
class Written:
    """What the storage has of one trial: as much as tells whether there is news."""

    trial_id: int
    state: OptunaState
    values: list[float] | None
    attributes: dict[str, int] = field(default_factory=dict)
    steps: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, trial: FrozenTrial, trial_id: int) -> Written:
        """Return what a storage has that has this trial."""
        found = cls(trial_id, trial.state, trial.values)
        found.take(trial)
        return found

    def take(self, trial: FrozenTrial) -> None:
        """Take note that this has been written."""
        self.state, self.values = trial.state, trial.values
        self.attributes |= _digests(trial)
        # Nothing more is reported of a trial that has ended.
        self.steps = (
            set() if trial.state.is_finished() else self.steps | {*trial.intermediate_values}
        )

    def new_attributes(self, trial: FrozenTrial) -> Iterator[tuple[str, Any]]:
        """Yield the attributes that differ from those that are there."""
        for name, digest in _digests(trial).items():
            if self.attributes.get(name) != digest:
                yield name, trial.user_attrs[name]

    def new_steps(self, trial: FrozenTrial) -> Iterator[tuple[int, float]]:
        """Yield the intermediate values that are not there."""
        for step, value in trial.intermediate_values.items():
            if step not in self.steps:
                yield step, value

    def differs(self, trial: FrozenTrial) -> bool:
        """Return whether a trial that has ended is not what it was."""
        same = self.state is trial.state and self.values == trial.values
        return not same or any(True for _ in self.new_attributes(trial))


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What an Optuna study holds when it is opened.

    Parameters
    ----------
    written
        Its trials by number.
    foreign
        Numbers of those that were not mirrored.
    distributions
        By name of the parameter.
    """

    written: dict[int, Written]
    foreign: list[int]
    distributions: dict[str, BaseDistribution]


def found_by_calls(storage: BaseStorage, study_id: int) -> Found:
    """Return what a study holds, by the methods that every Optuna storage has."""
    trials = storage.get_all_trials(study_id, deepcopy=False)
    return Found(
        written={trial.number: Written.of(trial, trial._trial_id) for trial in trials},
        foreign=[one.number for one in trials if one.system_attrs.get(NUMBER) != one.number],
        distributions={name: one for t in trials for name, one in t.distributions.items()},
    )


class CallWriter:
    """Writes by the methods that every Optuna storage has, one call for each new thing.

    Optuna lets no one change a trial that has ended. One that goes on after all, because
    its tuner was given more trials, stays there as it was, and a warning says so.

    Parameters
    ----------
    storage
        Where to.
    study_id
        The study's number there.
    written
        What is there, by number of the trial; kept up to date.
    """

    def __init__(self, storage: BaseStorage, study_id: int, written: dict[int, Written]) -> None:
        self._storage = storage
        self._study_id = study_id
        self._written = written
        self._has_warned = False

    def write(self, trials: Sequence[FrozenTrial]) -> None:
        """Write what is new of some trials.

        Raises
        ------
        StorageError
            If others have added trials to the study.
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
                "trial %d has gone on after its end; Optuna lets no one change a trial that has "
                "ended, so the mirror keeps its old state: mirror the study under another name "
                "to see the new one",
                trial.number,
            )


def misnumbered(number: int, there: int) -> str:
    """Say that a trial cannot have its number."""
    return (
        f"trial {number} would be number {there} there: others have added trials, or removed some"
    )


def _digests(trial: FrozenTrial) -> dict[str, int]:
    return {name: hash(json.dumps(value)) for name, value in trial.user_attrs.items()}


def in_parts(trials: Sequence[FrozenTrial], size: int) -> Iterable[Sequence[FrozenTrial]]:
    """Return the trials in order, at most so many at a time."""
    return (trials[first : first + size] for first in range(0, len(trials), size))

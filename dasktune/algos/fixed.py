"""Tuners of configurations that are known from the start, each trained in full."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dasktune.algos.base import Tuner, check_horizon
from dasktune.algos.state import set_state, state_to_json
from dasktune.errors import ConfigurationError, InternalError, refuse, shown
from dasktune.sequences import Sequence, as_sequence
from dasktune.sequences.values import whole
from dasktune.space import Configuration
from dasktune.types import Decision, Extend, Finish, Register, Report, Step, Value


class FixedTrials(Tuner):
    """Trains a number of configurations, known from the start, to `max_steps`.

    All are registered at the first `ask`, so that the search plan knows where they part
    before the first step is trained.

    Parameters
    ----------
    configurations
        One per trial.
    max_steps
        The step that each is trained to.

    Raises
    ------
    ConfigurationError
        If there is no configuration, or a sequence is not defined for `max_steps` steps.
    """

    trains_in_full = True
    takes_back = True
    several_objectives = True
    state = ("_asked", "_open")
    _asked: bool
    _open: set[int]

    def __init__(self, configurations: Iterable[Configuration], max_steps: Step) -> None:
        self._configurations = tuple(configurations)
        self.max_steps = max_steps
        if not self._configurations:
            raise ConfigurationError("a space must have at least one configuration, got none")
        check_horizon(self.configurations, max_steps)
        self._asked = False
        self._open = set(range(len(self.configurations)))

    @property
    def configurations(self) -> tuple[Configuration, ...]:
        """One per trial."""
        return self._configurations

    @property
    def to_begin(self) -> int:
        """All trials before the first `ask`, none after it."""
        return 0 if self._asked else len(self.configurations)

    def ask(self, capacity: int) -> list[Decision]:
        """Return all trials and requests the first time, nothing later."""
        if self._asked:
            return []
        self._asked = True
        registers = [
            Register(
                trial=trial,
                sequences=configuration.sequences,
                max_steps=self.max_steps,
                params=configuration.params,
            )
            for trial, configuration in enumerate(self.configurations)
        ]
        return [*registers, *(Extend(trial=r.trial, until=self.max_steps) for r in registers)]

    def tell(self, report: Report) -> list[Decision]:
        """Return `Finish` when the last trial arrives at `max_steps`."""
        return self.tell_failure(report.trial) if report.step >= self.max_steps else []

    def tell_failure(self, trial: int) -> list[Decision]:
        """Return `Finish` when all other trials have ended."""
        if not self._asked or not 0 <= trial < len(self.configurations):
            raise InternalError(f"trial {trial} was never registered")
        if trial not in self._open:
            return []
        self._open.remove(trial)
        return [] if self._open else [Finish()]

    def tell_retry(self, trial: int, step: Step) -> list[Decision]:
        """Return the request for the rest of a failed trial."""
        self._open.add(trial)
        return [Extend(trial=trial, until=self.max_steps)]

    def snapshot(self) -> dict[str, object]:
        """Return the open trials, and whether they were registered."""
        return state_to_json(self, self.state)

    def restore(self, snapshot: Mapping[str, object]) -> None:
        """Continue with the snapshot of a tuner of the same identity."""
        set_state(self, self.state, snapshot, {})
        if self._open - set(range(len(self.configurations))):
            raise ConfigurationError(f"not the state of this tuner: {snapshot!r}")


class SingleTrial(FixedTrials):
    """Trains one configuration: the tuner of `Study.evaluate`.

    Parameters
    ----------
    hp
        Values and sequences by name.
    max_steps
        The step that it is trained to.
    """

    def __init__(self, hp: Mapping[str, object], max_steps: Step) -> None:
        if not isinstance(hp, Mapping) or not hp:
            raise ConfigurationError(f"hp must be values by name, got {shown(hp)}")
        sequences, problems = {}, []
        for name, value in hp.items():
            try:
                sequences[name] = as_sequence(value)
            except ConfigurationError as error:
                problems += [f"{name}: {problem}" for problem in error.problems]
        refuse(problems)
        params = {name: _shown(sequence) for name, sequence in sequences.items()}
        configuration = Configuration(params=params, sequences=sequences)
        super().__init__([configuration], whole("steps", max_steps, at_least=1))

    @property
    def advice(self) -> list[str]:
        """Nothing: who evaluates a configuration at an early step means that step."""
        return []

    def identity(self) -> dict[str, object]:
        """Return the configuration and the step that it is trained to."""
        sequences = self.configurations[0].sequences
        return {
            "tuner": "evaluate",
            "hp": {name: sequence.to_json() for name, sequence in sequences.items()},
            "max_steps": self.max_steps,
        }


def _shown(sequence: Sequence) -> Value:
    return sequence(0) if sequence.constant_until(0) is None else repr(sequence)

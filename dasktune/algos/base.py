"""What a tuner is, and the simplest kind: every trial in full."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping

from dasktune.errors import ConfigurationError, InternalError, refuse
from dasktune.sequences import Sequence
from dasktune.space import Configuration
from dasktune.types import Decision, Extend, Finish, Register, Report, Step

_MOST_PROBLEMS = 10


class Tuner(ABC):
    """Decides what is trained next: a state machine over reports, without time or I/O.

    The same calls in the same order give the same decisions, so that a log of them can be
    replayed. Trials are numbered from 0 in the order in which they are registered.
    """

    max_steps: Step
    """How far a trial is trained at most."""

    @abstractmethod
    def ask(self, capacity: int) -> list[Decision]:
        """Return decisions when `capacity` workers have nothing to do."""

    @abstractmethod
    def tell(self, report: Report) -> list[Decision]:
        """Return what follows from a report at the end of a request."""

    @abstractmethod
    def tell_failure(self, trial: int) -> list[Decision]:
        """Return what follows from the failure of a trial, which reports no more."""

    @abstractmethod
    def identity(self) -> dict[str, object]:
        """Return class and arguments as JSON: equal for tuners that decide alike."""

    @abstractmethod
    def snapshot(self) -> dict[str, object]:
        """Return the state as JSON."""

    @abstractmethod
    def restore(self, snapshot: Mapping[str, object]) -> None:
        """Take over the state that a tuner of the same identity had."""


class FixedTrials(Tuner):
    """Trains a number of configurations, known from the start, to `max_steps`.

    All are registered at the first `ask`, so that it is known where they part before the
    first step is trained.

    Parameters
    ----------
    configurations
        One per trial.
    max_steps
        How far each is trained.

    Raises
    ------
    ConfigurationError
        If there is no configuration, or a sequence is not defined for `max_steps` steps.
    """

    def __init__(self, configurations: Iterable[Configuration], max_steps: Step) -> None:
        self.configurations = tuple(configurations)
        self.max_steps = max_steps
        if not self.configurations:
            raise ConfigurationError("a space must have at least one configuration, got none")
        check_horizon(self.configurations, max_steps)
        self._asked = False
        self._open = set(range(len(self.configurations)))

    def ask(self, capacity: int) -> list[Decision]:
        """Return all trials and requests the first time, nothing later."""
        if self._asked:
            return []
        self._asked = True
        return list(self._everything())

    def tell(self, report: Report) -> list[Decision]:
        """Return `Finish` when this was the last trial to arrive at `max_steps`."""
        return self._close(report.trial) if report.step >= self.max_steps else []

    def tell_failure(self, trial: int) -> list[Decision]:
        """Return `Finish` when all the others have arrived."""
        return self._close(trial)

    def snapshot(self) -> dict[str, object]:
        """Return whether it was asked, and the trials that are still open."""
        return {"asked": self._asked, "open": sorted(self._open)}

    def restore(self, snapshot: Mapping[str, object]) -> None:
        """Take over the state that a tuner of the same identity had."""
        asked, opened = snapshot.get("asked"), snapshot.get("open")
        numbers = set(opened) if isinstance(opened, list) else {-1}
        if not isinstance(asked, bool) or not numbers <= set(range(len(self.configurations))):
            raise ConfigurationError(f"not a snapshot of this tuner: {snapshot!r}")
        self._asked, self._open = asked, numbers

    def _everything(self) -> Iterator[Decision]:
        for trial, configuration in enumerate(self.configurations):
            yield Register(
                trial=trial,
                sequences=configuration.sequences,
                max_steps=self.max_steps,
                params=configuration.params,
            )
        for trial in range(len(self.configurations)):
            yield Extend(trial=trial, until=self.max_steps)

    def _close(self, trial: int) -> list[Decision]:
        if not self._asked or not 0 <= trial < len(self.configurations):
            raise InternalError(f"trial {trial} was never registered")
        if trial not in self._open:
            return []
        self._open.remove(trial)
        return [] if self._open else [Finish()]


def check_horizon(configurations: Iterable[Configuration], max_steps: Step) -> None:
    """Refuse sequences that have no value somewhere before `max_steps`.

    Raises
    ------
    ConfigurationError
        With every such sequence and the name of its hyper-parameter, as far as a person
        wants to read.
    """
    seen: set[tuple[str, Sequence]] = set()
    problems: list[str] = []
    for configuration in configurations:
        for name, sequence in configuration.sequences.items():
            if (name, sequence) not in seen:
                seen.add((name, sequence))
                problems += [f"{name}: {text}" for text in _horizon_problems(sequence, max_steps)]
    if len(problems) > _MOST_PROBLEMS:
        problems[_MOST_PROBLEMS:] = [f"and {len(problems) - _MOST_PROBLEMS} more like these"]
    refuse(problems)


def _horizon_problems(sequence: Sequence, max_steps: Step) -> tuple[str, ...]:
    if sequence.end is not None and sequence.end < max_steps:
        return (f"{sequence!r} ends at step {sequence.end}, max_steps is {max_steps}",)
    try:
        # What can overflow grows: the last value speaks for those before it.
        sequence(max_steps - 1)
    except ConfigurationError as error:
        return error.problems
    return ()

"""Tuners of trials that are known from the start, each trained in full."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from dasktune.algos.base import Tuner, check_horizon
from dasktune.errors import ConfigurationError, InternalError
from dasktune.space import Configuration
from dasktune.types import Decision, Extend, Finish, Register, Report, Step


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

    trains_in_full = True
    several_objectives = True

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
        """Nothing once it was asked."""
        return 0 if self._asked else len(self.configurations)

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

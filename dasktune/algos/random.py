"""Random search: configurations drawn from a space, or proposed by a sampler, in full."""

from __future__ import annotations

from collections.abc import Mapping

from dasktune.algos.sampled import SampledTuner
from dasktune.errors import ConfigurationError
from dasktune.types import Decision, Extend, Finish, Register, Report


class Random(SampledTuner):
    """Trains `trials` configurations of a space to `max_steps`, drawn at random.

    With a `sampler` they are what it proposes, one for each worker at a time if it learns.
    One configuration may come more than once; training it again costs nothing.

    Parameters
    ----------
    space
        What to draw from.
    trials
        How many configurations to draw.
    max_steps
        How far each trial is trained.
    seed
        Decides what is drawn; it has nothing to do with the seed of the training.
    sampler
        Proposes configurations; None draws at random.

    Raises
    ------
    ConfigurationError
        If a number is too small or a sequence ends before `max_steps`.

    References
    ----------
    Bergstra and Bengio, "Random Search for Hyper-Parameter Optimization", section 2.
    """

    trains_in_full = True
    several_objectives = True

    def begin(self) -> None:
        """Nothing is open yet."""
        self._open: set[int] = set()

    def ask(self, capacity: int) -> list[Decision]:
        """Return all trials the first time, or one for each free worker if a sampler learns."""
        count = min(self.left, capacity) if self.source.learns else self.left
        drawn = [self.draw() for _ in range(count)]
        return self._launch(drawn)

    def told(self, report: Report) -> list[Decision]:
        """Return `Finish` when this was the last trial to arrive at `max_steps`."""
        return self.failed(report.trial) if report.step >= self.max_steps else []

    def failed(self, trial: int) -> list[Decision]:
        """Return `Finish` when all the others have arrived."""
        if trial not in self._open:
            return []
        self._open.remove(trial)
        return [] if self._open or self.left else [Finish()]

    def grow(self, trials: int) -> list[Decision]:
        """Draw the further trials, unless a sampler waits for free workers."""
        return self.ask(0)

    def state_json(self) -> dict[str, object]:
        """Return the trials that are under way."""
        return {"open": sorted(self._open)}

    def take_state_json(self, state: Mapping[str, object]) -> None:
        """Take over the trials that are under way."""
        found = state.get("open")
        if not isinstance(found, list) or not set(found) <= set(range(self.registered)):
            raise ConfigurationError(f"not the state of this tuner: {state!r}")
        self._open = set(found)

    def _launch(self, drawn: list[Register]) -> list[Decision]:
        self._open.update(one.trial for one in drawn)
        return [*drawn, *(Extend(trial=one.trial, until=self.max_steps) for one in drawn)]

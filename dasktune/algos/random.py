"""Random search: configurations drawn from a space, or proposed by a sampler, in full."""

from __future__ import annotations

from collections.abc import Mapping

from dasktune.algos.independent import IndependentTrials
from dasktune.errors import ConfigurationError
from dasktune.types import Decision, Extend, Register, Report


class Random(IndependentTrials):
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

    def request(self, trial: Register) -> Extend:
        """Return that it is trained in full."""
        return Extend(trial=trial.trial, until=self.max_steps)

    def told(self, report: Report) -> list[Decision]:
        """Return `Finish` when this was the last trial to arrive at `max_steps`."""
        return self.failed(report.trial) if report.step >= self.max_steps else []

    def state_json(self) -> dict[str, object]:
        """Return the trials that are under way."""
        return {"open": sorted(self.open)}

    def take_state_json(self, state: Mapping[str, object]) -> None:
        """Take over the trials that are under way."""
        found = state.get("open")
        if not isinstance(found, list) or not set(found) <= set(range(self.registered)):
            raise ConfigurationError(f"not the state of this tuner: {state!r}")
        self.open = set(found)

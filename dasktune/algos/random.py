"""Random search: configurations drawn from a space, in full."""

from __future__ import annotations

import numpy as np

from dasktune.algos.base import FixedTrials
from dasktune.errors import ConfigurationError
from dasktune.sequences.values import Arguments
from dasktune.space import MOST_GRID_POINTS, Space
from dasktune.types import Step


class Random(FixedTrials):
    """Trains `trials` random configurations of a space to `max_steps`.

    One configuration may be drawn more than once; training it again costs nothing.

    Parameters
    ----------
    space
        What to draw from.
    trials
        How many configurations to draw.
    max_steps
        How far each is trained.
    seed
        Decides what is drawn; it has nothing to do with the seed of the training.

    Raises
    ------
    ConfigurationError
        If a number is too small or a sequence ends before `max_steps`.

    References
    ----------
    Bergstra and Bengio, "Random Search for Hyper-Parameter Optimization", section 2.
    """

    def __init__(self, space: Space, *, trials: int, max_steps: Step, seed: int = 0) -> None:
        check = Arguments("Random")
        self._trials = check.whole("trials", trials)
        self._seed = check.whole("seed", seed, at_least=0)
        max_steps = check.whole("max_steps", max_steps)
        check.refuse()
        if self._trials > MOST_GRID_POINTS:
            raise ConfigurationError(f"trials must be <= {MOST_GRID_POINTS:,}, got {trials:,}")
        rng = np.random.default_rng(self._seed)
        super().__init__((space.sample(rng) for _ in range(self._trials)), max_steps)
        self.space = space

    def identity(self) -> dict[str, object]:
        """Return class and arguments as JSON."""
        return {
            "tuner": "Random",
            "space": self.space.to_json(),
            "trials": self._trials,
            "max_steps": self.max_steps,
            "seed": self._seed,
        }

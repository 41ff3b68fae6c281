"""The study that `python -m tests.chaos` runs if it is given none: a study file like a user's.

Steps take uneven times, and draw from a generator that is part of the state. The configurations
share beginnings of several lengths.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from dasktune._study.create import create_study
from dasktune._study.study import Study
from dasktune.algos import ASHA, PBT, SHA, Grid
from dasktune.algos.base import Tuner
from dasktune.errors import ConfigurationError, unknown
from dasktune.sequences import Constant, MultiStep, Piecewise, Warmup
from dasktune.space import Space
from dasktune.trainer.base import Trainer

STEPS = 81
"""Steps of a trial that is trained in full."""

SIZE = 64


class Descent(Trainer):
    """Stochastic descent with momentum towards a hidden vector, from noisy gradients.

    A step takes 5 to 30 ms times ``config["pace"]``, which decides nothing else.
    """

    ignored_config = ("pace",)

    def build(self, hp: Mapping[str, Any]) -> None:
        """Make weights, momentum and generator."""
        self.generator = np.random.default_rng(self.seed)
        self.target = np.random.default_rng(17).normal(size=SIZE)
        self.weight = np.zeros(SIZE)
        self.speed = np.zeros(SIZE)
        self.lr = self.momentum = 0.0

    def setup(self, hp: Mapping[str, Any]) -> None:
        """Take over what changed."""
        self.lr = hp.get("lr", self.lr)
        self.momentum = hp.get("momentum", self.momentum)

    def train(self) -> None:
        """Go one noisy step towards the target."""
        chance = float(self.generator.random())
        time.sleep((0.005 + 0.025 * chance) * float(str(self.config.get("pace", 1.0))))
        noise = self.generator.normal(scale=0.5, size=SIZE)
        self.speed = self.momentum * self.speed + (self.weight - self.target) + noise
        self.weight = self.weight - self.lr * self.speed

    def evaluate(self) -> dict[str, float]:
        """Return the distance from the target."""
        return {"loss": float(np.abs(self.weight - self.target).mean())}

    def state_dict(self) -> dict[str, Any]:
        """Return weights, momentum and generator, and the values that ruled last.

        With these, no two configurations ever have the same state.
        """
        return {
            "weight": self.weight,
            "speed": self.speed,
            "generator": self.generator.bit_generator.state,
            "values": [self.lr, self.momentum],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Become what was saved."""
        self.weight, self.speed = state["weight"], state["speed"]
        self.generator.bit_generator.state = state["generator"]


def study(pace: float = 1.0) -> Study:
    """Return the study."""
    return create_study(
        Descent, name="chaos", metric="loss", config={"pace": pace}, load_if_exists=True
    )


LR = [
    lr
    for top in (0.2, 0.15, 0.1, 0.05)
    for lr in (
        Constant(top),
        MultiStep(top, [30], gamma=0.3),
        MultiStep(top, [30, 60], gamma=0.3),
        MultiStep(top, [50], gamma=0.1),
        Warmup(10, top) >> Constant(top),
        Warmup(10, top) >> MultiStep(top, [45], gamma=0.2),
    )
]
GRID = Space(lr=LR, momentum=[0.0, Piecewise([0.0, 0.5], boundaries=[20])])
DRAWN = Space(lr=LR, momentum=[0.0, 0.1, 0.2, 0.3, 0.4, Piecewise([0.0, 0.5], boundaries=[20])])


def tuner(kind: str = "grid", trials: int = 75, seed: int = 0) -> Tuner:
    """Return a tuner by name.

    Parameters
    ----------
    kind
        One of `TUNERS`.
    trials
        How many trials those have that draw them.
    seed
        For what they draw.
    """
    if kind not in TUNERS:
        raise ConfigurationError(unknown("tuner", kind, TUNERS))
    made: Tuner = TUNERS[kind](trials, seed)
    return made


def _halving(trials: int, seed: int, least: int, eta: int) -> dict[str, Any]:
    return {"trials": trials, "max_steps": STEPS, "min_steps": least, "eta": eta, "seed": seed}


TUNERS: dict[str, Any] = {
    "grid": lambda trials, seed: Grid(GRID, max_steps=STEPS),
    "sha": lambda trials, seed: SHA(DRAWN, **_halving(trials, seed, 40, 2)),
    "asha": lambda trials, seed: ASHA(DRAWN, **_halving(trials, seed, 9, 3)),
    "pbt": lambda trials, seed: PBT(
        DRAWN, population=trials // 3, trials=4 * trials // 3, max_steps=STEPS, every=9, seed=seed
    ),
}
"""By name; each has about 2,000 steps to train."""

"""A study file: a small trainer in NumPy, a study of it, and a tuner.

Its states are stored in ``written_before``: any change of this file changes the trainer's
fingerprint, and `make_fixture` would have to write everything anew.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

import dasktune as dt
from dasktune.sequences import Constant, MultiStep, Piecewise
from dasktune.trainer import ResumableLoader
from dasktune.types import Direction

logger = logging.getLogger(__name__)
DECAY = Constant(0.01)
DIRECTION = Direction.MINIMIZE


def noise(rng: np.random.Generator) -> float:
    """Return a small random number."""
    return 0.01 * float(rng.normal())


class Walk(dt.Trainer):
    """Walks towards 0.3 with momentum and noise, and reads some data on its way."""

    version = "2"
    ignored_config = ("label",)

    def build(self, hp: Mapping[str, Any]) -> None:
        """Start at a height that the config gives."""
        self.rng = np.random.default_rng(self.seed)
        self.place = np.full(3, self.config.get("start", 1.0), dtype=np.float32)
        self.speed = 0.0
        self.lr = self.momentum = 0.0
        self.loader = ResumableLoader((np.arange(10.0),), 4, seed=self.seed)
        logger.debug("built")

    def setup(self, hp: Mapping[str, Any]) -> None:
        """Take over the values that change at this step."""
        self.lr = hp.get("lr", self.lr)
        self.momentum = hp.get("momentum", self.momentum)

    def train(self) -> None:
        """Make one step."""
        from dasktune.errors import ConfigurationError

        (batch,) = self.loader.next_batch()
        if not len(batch):
            raise ConfigurationError("a batch must not be empty")
        pull = 0.3 - float(self.place[0]) + 0.001 * float(np.mean(batch))
        self.speed = self.momentum * self.speed + self.lr * pull + noise(self.rng)
        self.place = (self.place * (1 - DECAY(0) * self.lr) + self.speed).astype(np.float32)

    def evaluate(self) -> dict[str, float]:
        """Return the distance as loss, and another metric."""
        loss = abs(float(self.place[0]) - 0.3)
        return {"loss": min(loss, 10.0), "closeness": 1 / (1 + loss) + (DIRECTION is None)}

    def state_dict(self) -> dict[str, Any]:
        """Return all that a step depends on."""
        return {
            "rng": self.rng.bit_generator.state,
            "place": self.place,
            "speed": self.speed,
            "lr": self.lr,
            "momentum": self.momentum,
            "loader": self.loader.state_dict(),
            "notes": [None, True, "text", {"nested": (1, 2.5)}],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.rng.bit_generator.state = state["rng"]
        self.place, self.speed = state["place"], state["speed"]
        self.lr, self.momentum = state["lr"], state["momentum"]
        self.loader.load_state_dict(state["loader"])


def study(name: str = "finished", storage: str = "store", start: float = 1.0) -> dt.Study:
    """Return the study of a name, in a folder of the current one."""
    return dt.create_study(
        Walk,
        name=name,
        storage=storage,
        metric="loss",
        config={"start": start, "label": name},
        load_if_exists=True,
    )


def tuner() -> dt.algos.Grid:
    """Return trials that begin alike."""
    space = dt.Space(
        lr=[
            Constant(0.1),
            Piecewise([0.1, 0.2], boundaries=[4]),
            Piecewise([0.1, 0.3], boundaries=[4]),
            Piecewise([0.1, 0.2, 0.05], boundaries=[4, 8]),
            MultiStep(0.1, milestones=[6], gamma=0.5),
        ],
        momentum=[0.0, 0.5],
    )
    return dt.algos.Grid(space, max_steps=12)

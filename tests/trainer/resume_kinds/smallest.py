"""The trainers that the kinds extend: their states are whole, and a step takes microseconds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

import dasktune as dt

LATE = 12
"""The step from which late kinds differ: a resume check has trained 7 steps."""

SAMPLES = 8


def target(step: int) -> float:
    """Return a moving target, so that no trainer comes to rest."""
    return math.sin(step / 5)


class Slope(dt.Trainer):
    """A weight that follows a target; `push` is where kinds differ"""

    def build(self, hp: Mapping[str, Any]) -> None:
        self.weight, self.steps = 1.0, 0
        self.lr, self.mode = float(hp["lr"]), str(hp["mode"])
        self.begin()

    def begin(self) -> None:
        """Make the further parts of a kind."""

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.lr = float(hp["lr"])

    def train(self) -> None:
        self.steps += 1
        goal = target(self.steps) * (1.5 if self.mode == "b" else 1.0)
        self.weight -= self.lr * (self.weight - goal + self.push())

    def push(self) -> float:
        """Return the number that a kind adds to the gradient of a step."""
        return 0.0

    @property
    def is_late(self) -> bool:
        return self.steps >= LATE

    def evaluate(self) -> dict[str, float]:
        return {"loss": self.weight**2}

    def state_dict(self) -> dict[str, Any]:
        return {"weight": self.weight, "steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.weight, self.steps = state["weight"], state["steps"]


def samples() -> tuple[torch.Tensor, torch.Tensor]:
    """Return a data set that is always the same."""
    x = torch.linspace(-1, 1, SAMPLES * 3).reshape(SAMPLES, 3).sin()
    return x, x.sum(1, keepdim=True).cos()


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


class Net(dt.TorchTrainer):
    """A small network that is trained on all samples in each step"""

    def build(self, hp: Mapping[str, Any]) -> None:
        self.x, self.y = samples()
        self.mode, self.steps = str(hp["mode"]), 0
        if self.mode == "b":
            self.y = -self.y
        self.model = self.made_model()
        self.optimizer = self.made_optimizer(float(hp["lr"]))
        self.begin()

    def made_model(self) -> Any:
        return network()

    def made_optimizer(self, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=lr, momentum=0.9)

    def begin(self) -> None:
        """Make the further parts of a kind."""

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.optimizer.param_groups[0]["lr"] = float(hp["lr"])

    @property
    def is_late(self) -> bool:
        return self.steps >= LATE

    def loss(self) -> torch.Tensor:
        return nn.functional.mse_loss(self.model(self.x), self.y)

    def train(self) -> None:
        self.steps += 1
        self.optimizer.zero_grad()
        self.loss().backward()
        self.optimizer.step()

    def evaluate(self) -> dict[str, float]:
        return {"loss": float(nn.functional.mse_loss(self.model(self.x), self.y))}

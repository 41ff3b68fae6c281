"""State that only some trials of a study have: in one mode, after a drop, or by their values."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.trainer.resume_kinds.kind import exact, named
from tests.trainer.resume_kinds.smallest import LATE, Net, Slope, target


class MomentumOfMode(Slope):
    """Momentum that only mode b uses"""

    def begin(self) -> None:
        self.momentum = 0.0

    def push(self) -> float:
        if self.mode == "b":
            self.momentum = 0.9 * self.momentum + 0.1 * self.weight
        return self.momentum


class NoiseOfMode(Slope):
    """A generator that only mode b draws from"""

    def begin(self) -> None:
        self.noise = np.random.default_rng(self.seed)

    def push(self) -> float:
        return float(self.noise.random()) if self.mode == "b" else 0.0


class GlobalNoiseOfMode(Slope):
    """NumPy's global generator, in mode b"""

    def begin(self) -> None:
        np.random.seed(self.seed)

    def push(self) -> float:
        return float(np.random.rand()) if self.mode == "b" else 0.0


class AverageOfMode(Slope):
    """An average that only mode b has as an attribute"""

    def begin(self) -> None:
        if self.mode == "b":
            self.average = self.weight

    def push(self) -> float:
        if self.mode != "b":
            return 0.0
        self.average += 0.05 * (self.weight - self.average)
        return self.weight - self.average


class ClassOfMode(Slope):
    """A list of the class that only mode b fills, late"""

    calls: list[int] = []  # noqa: RUF012

    def push(self) -> float:
        if self.mode == "b" and self.is_late:
            self.calls.append(1)
        return len(self.calls) / 50


CFG = {"momentum": 0.0}


class ConfigOfMode(Slope):
    """A module's dict that `build` sets in mode b; the state is whole"""

    def begin(self) -> None:
        self.speed = 0.0
        if self.mode == "b":
            CFG["momentum"] = 0.9

    def push(self) -> float:
        self.speed = CFG["momentum"] * self.speed + 0.1 * self.weight
        return self.speed

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "speed": self.speed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.speed = state["speed"]


DATA: dict[str, list[float]] = {}


def load(mode: str) -> list[float]:
    return [0.1, 0.2] if mode == "a" else [0.5, 0.7, 0.9]


class WrongCache(Slope):
    """A module's cache of data with one key for all modes"""

    def begin(self) -> None:
        if "rows" not in DATA:
            DATA["rows"] = load(self.mode)
        self.rows = DATA["rows"]

    def push(self) -> float:
        return self.rows[self.steps % len(self.rows)]


SCALES: dict[str, float] = {}


class FirstRate(Slope):
    """A module's cache of the first learning rate that it sees after a drop"""

    def push(self) -> float:
        if self.lr < 0.1:
            SCALES.setdefault("lr", self.lr * self.steps / 100)
        return SCALES.get("lr", 0.0)


class TypeOfMode(Slope):
    """The default type of torch, which `build` sets in mode b"""

    def begin(self) -> None:
        if self.mode == "b":
            torch.set_default_dtype(torch.float64)
        self.base = float(torch.ones(1) / 3)

    def push(self) -> float:
        return float(torch.ones(1) / 3 * self.base)


class SeededOfMode(Slope):
    """`build` seeds Python's global generator in mode b only, and steps draw in both"""

    def begin(self) -> None:
        if self.mode == "b":
            random.seed(self.seed)

    def push(self) -> float:
        return random.random() if self.mode == "b" else 0.1


class OptimizerOfMode(Net):
    """A number on an optimizer that mode b counts"""

    def begin(self) -> None:
        self.optimizer.bad = 0  # type: ignore[attr-defined]

    def loss(self) -> torch.Tensor:
        self.optimizer.bad += self.mode == "b"  # type: ignore[attr-defined]
        return super().loss() / (1 + self.optimizer.bad)  # type: ignore[attr-defined]


class DropoutOfMode(Net):
    """The rate of a dropout, which falls in mode b"""

    def made_model(self) -> Any:
        return nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1))

    def loss(self) -> torch.Tensor:
        if self.mode == "b":
            self.model[1].p *= 0.97
        return super().loss()


class DropOfMode(Slope):
    """A counter that moves in mode b after a drop of the learning rate"""

    def begin(self) -> None:
        self.stall = 0

    def push(self) -> float:
        if self.mode == "b" and self.lr < 0.1:
            self.stall += 1
        return self.stall / 20


class QueueOfMode(Slope):
    """A list of losses that mode b fills in every 9th step"""

    def begin(self) -> None:
        self.queue: list[float] = []

    def push(self) -> float:
        if self.mode == "b" and self.steps % 9 == 0:
            self.queue.append(self.weight)
        return sum(self.queue[-2:])


def best_of_mode(run: Any) -> None:
    """A function: the best loss in a variable, used in mode b only"""
    run.state["weight"], best = 1.0, float("inf")
    for step in run.steps():
        run.state["weight"] -= run["lr"] * (run.state["weight"] - target(step))
        if run["mode"] == "b":
            best = min(best, abs(run.state["weight"] - 0.3) + 1 / (step + 1))
        run.report(loss=best if run["mode"] == "b" else run.state["weight"])


def momentum_of_mode(run: Any) -> None:
    """A function: momentum in a variable of mode b only"""
    run.state["weight"] = 1.0
    if run["mode"] == "b":
        momentum = 0.0
    for step in run.steps():
        gradient = run.state["weight"] - target(step)
        if run["mode"] == "b":
            momentum = 0.9 * momentum + gradient
            gradient = momentum
        run.state["weight"] -= 0.2 * run["lr"] * gradient
        run.report(loss=run.state["weight"])


def noise_of_mode(run: Any) -> None:
    """A function: a generator that mode b makes in a late step"""
    run.state["weight"], rng = 1.0, None
    for step in run.steps():
        if run["mode"] == "b" and step == LATE:
            rng = random.Random(run.seed)
        push = rng.random() if rng else 0.0
        run.state["weight"] -= run["lr"] * (run.state["weight"] - push)
        run.report(loss=run.state["weight"])


KINDS = (
    named(MomentumOfMode, "momentum"),
    named(NoiseOfMode, "noise"),
    named(GlobalNoiseOfMode, "NumPy's global random generator"),
    named(AverageOfMode, "average"),
    named(ClassOfMode, "calls"),
    named(ConfigOfMode, "CFG"),
    named(WrongCache, "DATA"),
    named(FirstRate, "SCALES"),
    named(TypeOfMode, "default"),
    named(SeededOfMode, "random generator"),
    named(OptimizerOfMode, "bad"),
    named(DropoutOfMode, "model"),
    named(DropOfMode, "stall"),
    named(QueueOfMode, "queue"),
    exact(best_of_mode),
    exact(momentum_of_mode),
    named(noise_of_mode, "rng"),
)

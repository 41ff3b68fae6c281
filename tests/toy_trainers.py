"""Toy trainers for tests that need a trainer and not a particular one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dasktune as dt


class Adding(dt.Trainer):
    """Adds up its learning rate; the loss is the sum."""

    def build(self, hp: Mapping[str, Any]) -> None:
        self.total = 0.0

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.lr = hp["lr"]

    def train(self) -> None:
        self.total += self.lr

    def evaluate(self) -> dict[str, float]:
        return {"loss": self.total}

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.total = state["total"]


class Counting(Adding):
    """Counts its steps, whatever its values are; the loss is their number."""

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.lr = 1.0


class Falling(Adding):
    """Loses a share of its loss at each step: the learning rate."""

    def build(self, hp: Mapping[str, Any]) -> None:
        self.total = 1.0

    def train(self) -> None:
        self.total -= self.lr * self.total


class Still(Counting):
    """Has the same loss after every step."""

    def evaluate(self) -> dict[str, float]:
        return {"loss": 1.0}

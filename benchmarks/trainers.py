"""The trainers with which dasktune is measured: their training costs what they are told."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import dasktune as dt


class Nothing(dt.Trainer):
    """Trains nothing at all."""

    def build(self, hp: Mapping[str, Any]) -> None:
        """Make the only number that there is."""
        self.value = 0.0

    def setup(self, hp: Mapping[str, Any]) -> None:
        """Take nothing over."""

    def train(self) -> None:
        """Train nothing."""

    def evaluate(self) -> dict[str, float]:
        """Return a metric."""
        return {"value": self.value}

    def state_dict(self) -> dict[str, Any]:
        """Return the number."""
        return {"value": self.value}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the number back."""
        self.value = state["value"]


class First(Nothing):
    """Writes down when it trains its first step, in ``config["folder"]``."""

    def train(self) -> None:
        """Write down the time."""
        Path(self.config["folder"], "first-step").write_text(str(time.time()))


class Counting(Nothing):
    """Sleeps for ``config["seconds"]``, and writes down how long each step really took.

    One line of the file ``config["log"]`` is one step that was trained, whatever anything
    else counts; the sum of learning rates tells states apart.
    """

    ignored_config = ("log", "seconds")
    harmless_differences = ("trainer.log",)  # the number of an open file

    def build(self, hp: Mapping[str, Any]) -> None:
        """Open the file, to which all processes append."""
        self.value = 0.0
        self.log = os.open(self.config["log"], os.O_APPEND | os.O_CREAT | os.O_WRONLY)

    def __del__(self) -> None:
        if hasattr(self, "log"):
            os.close(self.log)

    def setup(self, hp: Mapping[str, Any]) -> None:
        """Take over the learning rate."""
        self.lr = hp.get("lr", getattr(self, "lr", 0.0))

    def train(self) -> None:
        """Sleep, and write down how long that took."""
        began = time.perf_counter()
        if self.config["seconds"]:
            time.sleep(self.config["seconds"])
        self.value += self.lr
        os.write(self.log, b"%.9f\n" % (time.perf_counter() - began))


class Heavy(Counting):
    """Counts as well, and has a state of ``config["nbytes"]``."""

    def build(self, hp: Mapping[str, Any]) -> None:
        """Make the state."""
        super().build(hp)
        self.weight = np.zeros(self.config["nbytes"] // 8)

    def train(self) -> None:
        """Sleep, and change every number."""
        super().train()
        self.weight += self.lr

    def state_dict(self) -> dict[str, Any]:
        """Return all numbers."""
        return {"value": self.value, "weight": self.weight}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take them back."""
        self.value, self.weight = state["value"], state["weight"].copy()


def logged(path: Path) -> list[float]:
    """Return the seconds of each step that `Counting` wrote down."""
    return [float(line) for line in path.read_text().splitlines()]

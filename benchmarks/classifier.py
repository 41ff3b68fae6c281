"""A small network with real learning curves, whose steps wait as if they were long."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dasktune as dt

Array = NDArray[np.float64]

CLASSES, CLOUDS, INPUTS, HIDDEN, POINTS = 6, 18, 12, 24, 400


class Classifier(dt.Trainer):
    """One hidden layer on clouds of points, three of each class; NumPy alone.

    A step is an epoch. It computes for some milliseconds and then sleeps, so that more
    workers than cores do not slow each other down: ``config["seconds"]`` at a batch size of
    64, half as long again at 16, and up to a fifth more or less from step to step.
    """

    ignored_config = ("seconds",)

    def build(self, hp: Mapping[str, Any]) -> None:
        """Make the points, which are the same for all, and the weights."""
        rng = np.random.default_rng(0)
        centres = rng.normal(size=(CLOUDS, INPUTS))
        clouds = rng.integers(CLOUDS, size=2 * POINTS)
        self.points = centres[clouds] + 0.5 * rng.normal(size=(2 * POINTS, INPUTS))
        self.labels = clouds % CLASSES
        self.rng = np.random.default_rng(self.seed)
        self.hidden = self.rng.normal(size=(INPUTS, HIDDEN)) * 0.3
        self.output = self.rng.normal(size=(HIDDEN, CLASSES)) * 0.1

    def setup(self, hp: Mapping[str, Any]) -> None:
        """Take over what changes."""
        self.lr = hp.get("lr", getattr(self, "lr", 0.0))
        self.batch_size = hp.get("batch_size", getattr(self, "batch_size", 64))

    def train(self) -> None:
        """Go once through the first half of the points."""
        order = self.rng.permutation(POINTS)
        for at in range(0, POINTS, self.batch_size):
            self._learn(order[at : at + self.batch_size])
        slow = (1.5 if self.batch_size == 16 else 1.0) * self.rng.uniform(0.8, 1.2)
        time.sleep(self.config["seconds"] * slow)

    def evaluate(self) -> dict[str, float]:
        """Return the share of the second half that is told apart, and when it was."""
        predicted = self._forward(self.points[POINTS:])[1].argmax(axis=1)
        return {"accuracy": float((predicted == self.labels[POINTS:]).mean()), "clock": time.time()}

    def state_dict(self) -> dict[str, Any]:
        """Return weights and random state."""
        state = self.rng.bit_generator.state
        return {"hidden": self.hidden, "output": self.output, "rng": state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take them back."""
        self.hidden, self.output = state["hidden"], state["output"]
        self.rng.bit_generator.state = state["rng"]

    def _forward(self, points: Array) -> tuple[Array, Array]:
        """Return the values of the hidden layer, and the chances of each class."""
        inner = np.tanh(points @ self.hidden)
        scores = inner @ self.output
        chances = np.exp(scores - scores.max(axis=1, keepdims=True))
        return inner, chances / chances.sum(axis=1, keepdims=True)

    def _learn(self, some: NDArray[np.intp]) -> None:
        points = self.points[some]
        inner, wrong = self._forward(points)
        wrong[np.arange(len(some)), self.labels[some]] -= 1
        back = (wrong @ self.output.T) * (1 - inner**2)
        # New arrays: a state that was handed out for saving stays as it was.
        self.output = self.output - self.lr * inner.T @ wrong / len(some)
        self.hidden = self.hidden - self.lr * points.T @ back / len(some)

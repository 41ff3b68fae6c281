"""Tune softmax regression written in plain NumPy: a trainer needs no framework.

Run it with ``dasktune run examples/numpy_regression.py``. One step is one mini-batch, so the
batch size may change in the middle of an epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import dasktune as dt
from dasktune.sequences import Constant, Cyclic, Exponential, Piecewise, Warmup
from dasktune.trainer import ResumableLoader


def softmax(scores: np.ndarray) -> np.ndarray:
    """Return class probabilities, one row a sample."""
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


class SoftmaxRegression(dt.Trainer):
    """Gradient descent with momentum on the cross-entropy of a linear model."""

    def build(self, hp: Mapping[str, Any]) -> None:
        """Start from zero weights; the last row of them is the bias."""
        x, y = load_digits(return_X_y=True)
        x = np.column_stack([x / 16, np.ones(len(x))])
        held_out = np.arange(len(x)) % 5 == 0
        self.x, self.y = x[held_out], y[held_out]
        self.weights = np.zeros((x.shape[1], 10))
        self.velocity = np.zeros_like(self.weights)
        self.loader = ResumableLoader(
            (x[~held_out], y[~held_out]), hp["batch_size"], seed=self.seed
        )

    def setup(self, hp: Mapping[str, Any]) -> None:
        """Take over the values that change at this step."""
        self.lr = hp.get("lr", getattr(self, "lr", None))
        self.momentum = hp.get("momentum", getattr(self, "momentum", None))
        self.loader.batch_size = hp.get("batch_size", self.loader.batch_size)

    def train(self) -> None:
        """Train on one mini-batch."""
        x, y = self.loader.next_batch()
        errors = softmax(x @ self.weights) - np.eye(10)[y]
        self.velocity = self.momentum * self.velocity - self.lr * (x.T @ errors) / len(x)
        self.weights = self.weights + self.velocity

    def evaluate(self) -> dict[str, float]:
        """Return accuracy and loss on the images held out."""
        chances = softmax(self.x @ self.weights)
        right = chances[np.arange(len(self.y)), self.y]
        return {
            "accuracy": float(np.mean(chances.argmax(axis=1) == self.y)),
            "loss": float(-np.mean(np.log(right))),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return weights, velocity and the place in the data."""
        return {
            "weights": self.weights,
            "velocity": self.velocity,
            "loader": self.loader.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.weights, self.velocity = state["weights"], state["velocity"]
        self.loader.load_state_dict(state["loader"])


def study() -> dt.Study:
    """Return the study, continued if it was begun before."""
    return dt.create_study(
        SoftmaxRegression,
        name="numpy-regression",
        storage="runs/numpy-regression",
        metric="loss",
        direction="minimize",
        report_every=25,
        load_if_exists=True,
    )


def tuner() -> dt.algos.Grid:
    """Return every combination of four learning rates, two batch sizes and two momenta."""
    space = dt.Space(
        lr=[
            Constant(0.1),
            Exponential(0.1, gamma=0.99),
            Warmup(20, 0.1) >> Constant(0.1),
            Warmup(20, 0.1) >> Cyclic(0.02, 0.2, half_period=45),
        ],
        batch_size=[32, Piecewise([32, 128], boundaries=[100])],
        momentum=[0.9, Piecewise([0.5, 0.9], boundaries=[50])],
    )
    return dt.algos.Grid(space, max_steps=200)

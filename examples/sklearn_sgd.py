"""Tune scikit-learn's ``SGDClassifier``, trained with ``partial_fit``.

Run it with ``dasktune run examples/sklearn_sgd.py``. One step is one mini-batch. Penalties are
names, and change during training like any other value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

import dasktune as dt
from dasktune.sequences import Constant, MultiStep, Piecewise
from dasktune.trainer import ResumableLoader


class SGDTrainer(dt.Trainer):
    """Ten one-against-all linear classifiers on the digits."""

    def build(self, hp: Mapping[str, Any]) -> None:
        """Make the classifier with zero weights."""
        x, y = load_digits(return_X_y=True)
        x = x / 16
        held_out = np.arange(len(x)) % 5 == 0
        self.x, self.y = x[held_out], y[held_out]
        self.loader = ResumableLoader((x[~held_out], y[~held_out]), batch_size=64, seed=self.seed)
        # The loader shuffles, so that the order is part of a state that can be saved.
        self.model = SGDClassifier(
            loss="log_loss",
            learning_rate="constant",
            eta0=hp["lr"],
            alpha=hp["alpha"],
            penalty=hp["penalty"],
            shuffle=False,
            random_state=self.seed,  # otherwise a fit draws from NumPy's global generator
        )
        # Only a fit makes the arrays; what it learnt from one sample is wiped out again.
        self.model.partial_fit(x[:1], y[:1], classes=np.arange(10))
        self.load_weights(np.zeros((10, 64)), np.zeros(10), 1.0)

    def setup(self, hp: Mapping[str, Any]) -> None:
        """Take over the values that change at this step."""
        names = {"lr": "eta0", "alpha": "alpha", "penalty": "penalty"}
        self.model.set_params(**{names[name]: value for name, value in hp.items()})

    def train(self) -> None:
        """Train on one mini-batch."""
        self.model.partial_fit(*self.loader.next_batch())

    def evaluate(self) -> dict[str, float]:
        """Return the accuracy on the images held out."""
        return {"accuracy": float(self.model.score(self.x, self.y))}

    def state_dict(self) -> dict[str, Any]:
        """Return the weights, scikit-learn's count of samples and the place in the data."""
        return {
            "coef": self.model.coef_,
            "intercept": self.model.intercept_,
            "t": float(self.model.t_),
            "loader": self.loader.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.load_weights(state["coef"], state["intercept"], state["t"])
        self.loader.load_state_dict(state["loader"])

    def load_weights(self, coef: np.ndarray, intercept: np.ndarray, t: float) -> None:
        """Write into the arrays that the classifier holds."""
        self.model.coef_[:] = coef
        self.model.intercept_[:] = intercept
        self.model.t_ = t


def study() -> dt.Study:
    """Return the study, continued if it was begun before."""
    return dt.create_study(
        SGDTrainer,
        name="sklearn-sgd",
        storage="runs/sklearn-sgd",
        metric="accuracy",
        direction="maximize",
        report_every=25,
        load_if_exists=True,
    )


def tuner() -> dt.algos.Grid:
    """Return every combination of three learning rates, two strengths and two penalties."""
    space = dt.Space(
        lr=[
            Constant(0.05),
            MultiStep(0.05, milestones=[150], gamma=0.1),
            MultiStep(0.05, milestones=[100, 150], gamma=0.3),
        ],
        alpha=[1e-4, 1e-3],
        penalty=["l2", Piecewise(["l2", "l1"], boundaries=[100])],
    )
    return dt.algos.Grid(space, max_steps=200)

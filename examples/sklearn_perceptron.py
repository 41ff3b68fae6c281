"""Tune scikit-learn's ``MLPClassifier`` as it is; a step is one batch of ``partial_fit``.

Run it with ``dasktune run examples/sklearn_perceptron.py``. Needs
``pip install 'dasktune[sklearn]'``.
"""

from __future__ import annotations

from typing import Any

from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

import dasktune as dt
from dasktune.integrations.sklearn import SklearnTrainer
from dasktune.sequences import Constant, Piecewise


class Digits(SklearnTrainer):
    """A network with one hidden layer on the digits."""

    batch_size = 64

    def estimator(self) -> MLPClassifier:
        """Return the network."""
        return MLPClassifier(hidden_layer_sizes=(32,))

    def data(self) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        """Return the images for training and those held out."""
        x, y = load_digits(return_X_y=True)
        return (x[:1500] / 16, y[:1500]), (x[1500:] / 16, y[1500:])


def study() -> dt.Study:
    """Return the study, continued if it was begun before."""
    return dt.create_study(
        Digits,
        name="sklearn-perceptron",
        storage="runs/sklearn-perceptron",
        metric="score",
        direction="maximize",
        report_every=20,
        load_if_exists=True,
    )


def tuner() -> dt.algos.Grid:
    """Return penalties that begin alike and change at different steps."""
    space = dt.Space(
        alpha=[
            Constant(1e-4),
            Piecewise([1e-4, 1e-2], boundaries=[40]),
            Piecewise([1e-4, 1e-1], boundaries=[40]),
            Piecewise([1e-4, 1.0], boundaries=[60]),
        ]
    )
    return dt.algos.Grid(space, max_steps=80)

"""The last score stays: the simplest prediction, which others have to beat."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from dasktune.algos.curves.curve import LEVELS, Curve, Prediction, check_question
from dasktune.algos.curves.mcmc.frame import Array, Axis, within
from dasktune.types import Step

_HEAVY: Final = np.array([(2 * p - 1) / math.sqrt(2 * p * (1 - p)) for p in LEVELS])
"""Quantiles of Student's t with two degrees of freedom: curves take off, and crash."""

_SHARE: Final = 0.75
"""Scale of t, in standard deviations of the walk.

With it the middle 80% held 72, 79 and 84% of the final scores of some 400 recorded curves
(images, tables, text and games) after 10, 20 and 40% of their steps.
"""

_SUSPICION: Final = 0.01
"""Movement of a constant curve in a unit of ln x, in ranges of its score."""

_IGNORANCE: Final = 0.25
"""The same for a curve that was measured once."""


class Persistence:
    """Predicts that a curve stays where it is, with a spread like its movement so far.

    The last score is the median. The spread about it is that of a random walk in ln x, x being
    1, 2, 3, ... for the measurements: a curve may move as much while training doubles as it
    did while training doubled before. The walk's variance is that of all steps so far; the
    variance of the later half's steps is added once, as noise of the measurement.

    Of a curve that has never moved, or was measured once, the spread is a part of the range
    between `Curve.low` and `Curve.high`, or else of the score itself.
    """

    def predict(self, curve: Curve, steps: tuple[Step, ...], *, seed: int = 0) -> Prediction:
        """Return the last score with its spread; `seed` has no effect.

        Raises
        ------
        ConfigurationError
            As for `check_question`.
        """
        check_question(curve, steps)
        known = curve.moderate
        measured = known.measured
        axis = Axis.of([step for step, _ in measured])
        logs = np.log(axis.x(step for step, _ in measured))
        scores = np.array([score for _, score in measured])
        changes = np.diff(scores)
        ahead = np.log(axis.x(steps)) - logs[-1]
        walk = _walk(known, changes, logs[-1] - logs[0]) * ahead
        noise = float(np.mean(changes[len(changes) // 2 :] ** 2)) if len(changes) else 0.0
        spread = _SHARE * np.sqrt(walk + noise)
        rows = within(curve, scores[-1] + spread[:, None] * _HEAVY)
        return Prediction(
            after=curve.last_step,
            steps=steps,
            scores=tuple(map(tuple, rows.tolist())),
            deviations=tuple(np.sqrt(walk).tolist()),
        )

    def identity(self) -> dict[str, object]:
        """Return its class: it has no arguments."""
        return {"predictor": type(self).__name__}


def _walk(curve: Curve, changes: Array, logs: float) -> float:
    """Return the variance of a curve's walk in a unit of ln x."""
    scale = abs(curve.measured[-1][1]) or 1.0
    if curve.low is not None and curve.high is not None:
        scale = curve.high - curve.low
    if not len(changes):
        return (_IGNORANCE * scale) ** 2
    variance = float(np.sum(changes**2)) / logs
    return variance or (_SUSPICION * scale) ** 2

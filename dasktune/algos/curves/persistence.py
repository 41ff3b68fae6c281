"""The last score stays: the plainest prediction, and the one that others have to beat."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Final

import numpy as np

from dasktune.algos.curves.curve import LEVELS, Curve, Prediction, check_question
from dasktune.types import Step

_QUANTILES: Final = np.array([NormalDist().inv_cdf(level) for level in LEVELS])


class Persistence:
    """Predicts that a curve stays where it is, give or take what it has done so far."""

    def predict(self, curve: Curve, steps: tuple[Step, ...], *, seed: int = 0) -> Prediction:
        """Return the last score, with a spread that grows with the distance."""
        check_question(curve, steps)
        last = curve.measured[-1][1]
        seen = [score for _, score in curve.measured]
        scale = (max(seen) - min(seen)) or abs(last) or 1.0
        distances = np.array(steps) - curve.last_step
        deviations = 0.1 * scale * np.sqrt(distances)
        low = -math.inf if curve.low is None else curve.low
        high = math.inf if curve.high is None else curve.high
        rows = np.clip(last + deviations[:, None] * _QUANTILES, low, high)
        return Prediction(
            after=curve.last_step,
            steps=steps,
            scores=tuple(map(tuple, rows.tolist())),
            deviations=tuple(deviations.tolist()),
        )

    def identity(self) -> dict[str, object]:
        """Return its class."""
        return {"class": "Persistence"}

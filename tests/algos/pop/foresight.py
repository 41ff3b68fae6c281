"""A predictor for curves that are straight lines: what it says can be worked out by hand."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

from dasktune.algos.curves import LEVELS, Curve, Prediction
from dasktune.algos.curves.curve import check_question
from dasktune.types import Step


@dataclass(frozen=True)
class Foresight:
    """Says that a score stays in proportion to the step, with a normal error."""

    deviation: float = 0.05

    def predict(self, curve: Curve, steps: tuple[Step, ...], *, seed: int = 0) -> Prediction:
        check_question(curve, steps)
        step, score = curve.measured[-1]
        rows = tuple(
            tuple(NormalDist(score / step * at, self.deviation).inv_cdf(level) for level in LEVELS)
            for at in steps
        )
        return Prediction(
            after=curve.last_step,
            steps=steps,
            scores=rows,
            deviations=(self.deviation,) * len(steps),
        )

    def identity(self) -> dict[str, object]:
        return {"predictor": "Foresight", "deviation": self.deviation}

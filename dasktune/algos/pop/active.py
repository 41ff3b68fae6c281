"""A trial that POP may train further: its place among the others, and what is expected of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from dasktune.algos.curves.curve import Prediction
from dasktune.algos.pop.allocation import Chances, Expectation, expectation
from dasktune.types import Step

BEHIND = 2.0**40
"""Poor trials stand so far behind all others; far more than there can be turns."""

MOST_WORTH = 1000.0
"""Of a poor trial, and the least below 0: there its order among others ends."""


class Label(Enum):
    """What POP holds of a trial [Rasley et al., "HyperDrive", section 3]."""

    PROMISING = "promising"
    OPPORTUNISTIC = "opportunistic"
    POOR = "poor"


@dataclass(slots=True)
class Active:
    """A trial that may be trained further.

    Attributes
    ----------
    turn
        Its place in the round-robin: the lowest goes first.
    step
        Its last report's.
    until
        Where its request ends.
    step_seconds
        What a step of it takes.
    label
        What is held of it.
    ranked
        What its priority rests on: the confidence of a promising trial, a poor one's worth.
    is_asked
        Whether a prediction of it is on its way.
    prediction
        The last one.
    chances, chances_of
        What that says of a target, and which.
    gap
        By how much its median misses that target where it is nearest.
    expected
        Of its way to the target, in the time that is left.
    """

    turn: int
    step: Step = 0
    until: Step = 0
    step_seconds: float = 0.0
    label: Label = Label.OPPORTUNISTIC
    ranked: float = 0.0
    is_asked: bool = False
    prediction: Prediction | None = None
    chances: Chances | None = None
    chances_of: float | None = None
    gap: float = math.inf
    expected: Expectation | None = None

    @property
    def confidence(self) -> float:
        """The probability that it reaches the target in time; 0 if that was not predicted."""
        return 0.0 if self.expected is None else self.expected.confidence

    def look(self, target: float | None, max_steps: Step, left_seconds: float) -> None:
        """Bring what is expected up to date: time passes, and the target may rise."""
        if self.prediction is None or target is None:
            return
        if self.chances is None or self.chances_of != target:
            self.chances, self.chances_of = Chances.of(self.prediction, target), target
            self.gap = target - max(self.prediction.medians)
        self.expected = expectation(
            self.chances,
            step=self.step,
            max_steps=max_steps,
            step_seconds=self.step_seconds,
            left_seconds=left_seconds,
        )

    def learn(self, prediction: Prediction) -> None:
        """Take over a prediction."""
        self.prediction, self.chances = prediction, None

    @property
    def worth(self) -> float:
        """The worth of training it if it is poor: more, the nearer to the target it will come.

        It grows by 1 where the gap is half as wide, in whatever unit. A probability would say
        less here: so far out it says how unsure a prediction is, rather than how good.
        """
        if self.gap <= 0:
            return MOST_WORTH
        return max(-MOST_WORTH, min(-math.log2(self.gap), MOST_WORTH))

    def boundary(self, every: Step) -> Step:
        """Return the boundary after its last report."""
        return (self.step // every + 1) * every

    def to_json(self) -> dict[str, object]:
        """Return it as a JSON document."""
        return {
            "turn": self.turn,
            "step": self.step,
            "until": self.until,
            "step_seconds": self.step_seconds,
            "label": self.label.value,
            "ranked": self.ranked,
            "asked": self.is_asked,
            "prediction": None if self.prediction is None else self.prediction.to_json(),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Active:
        """Return what `to_json` wrote; what is expected follows from a look at it."""
        prediction = document["prediction"]
        return cls(
            turn=document["turn"],
            step=document["step"],
            until=document["until"],
            step_seconds=document["step_seconds"],
            label=Label(document["label"]),
            ranked=document["ranked"],
            is_asked=document["asked"],
            prediction=None if prediction is None else Prediction.from_json(prediction),
        )

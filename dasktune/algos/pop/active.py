"""A trial that POP may train further: its place among the others, and its expectation."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum

from dasktune.algos.curves.curve import Prediction
from dasktune.algos.pop.allocation import Chances, Expectation, expectation
from dasktune.types import Step

BEHIND = 2.0**40
"""The distance of poor trials behind all others: below `dasktune.types.LAST`, as no turn is."""

MOST_WORTH = 1000.0
"""The largest `Active.worth`, and its negative the least: beyond, trials rank equally."""


class Label(Enum):
    """How POP judges a trial, the best first [Rasley et al., "HyperDrive", section 3].

    Attributes
    ----------
    PROMISING
        It will probably reach the target, and keeps its slot.
    OPPORTUNISTIC
        It may reach the target, and takes turns with others.
    POOR
        It will hardly reach the target.
    """

    PROMISING = "promising"
    OPPORTUNISTIC = "opportunistic"
    POOR = "poor"


@dataclass(slots=True, kw_only=True)
class Active:
    """A trial that may be trained further.

    Parameters
    ----------
    trial
        Its number.
    turn
        Its place in the round-robin: the lowest goes first.
    step
        The step of its last report.
    until
        The step that it is extended to.
    step_seconds
        Seconds that a step of it takes.
    label
        How POP judges it.
    ranked
        The basis of its priority: the confidence of a promising trial, a poor one's worth.
    asked
        Whether a prediction of it is under way.
    prediction
        The last one.

    Attributes
    ----------
    chances, chances_of
        Its chances to reach a target, and that target.
    gap
        By how much its median misses that target where it is nearest.
    expected
        Its expectation to reach the target in the time that is left.
    """

    trial: int
    turn: int
    step: Step = 0
    until: Step = 0
    step_seconds: float = 0.0
    label: Label = Label.OPPORTUNISTIC
    ranked: float = 0.0
    asked: bool = False
    prediction: Prediction | None = None
    chances: Chances | None = field(default=None, init=False)
    chances_of: float | None = field(default=None, init=False)
    gap: float = field(default=math.inf, init=False)
    expected: Expectation | None = field(default=None, init=False)

    @property
    def confidence(self) -> float:
        """The probability that it reaches the target in time; 0 without a prediction."""
        return 0.0 if self.expected is None else self.expected.confidence

    def look(self, target: float | None, max_steps: Step, left_seconds: float) -> None:
        """Update the expectation: time passes, and the target may rise."""
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
        """Replace the prediction."""
        self.prediction, self.chances = prediction, None

    @property
    def worth(self) -> float:
        """The order among poor trials: larger, the nearer to the target it will come.

        It grows by 1 when the gap is halved, in whatever unit. A probability would tell less:
        so far from the target it measures how unsure a prediction is, rather than how good.
        """
        if self.gap <= 0:
            return MOST_WORTH
        return max(-MOST_WORTH, min(-math.log2(self.gap), MOST_WORTH))

    def boundary(self, every: Step) -> Step:
        """Return the boundary after its last report."""
        return (self.step // every + 1) * every

"""How POP turns predicted curves into slots: confidence, remaining time, threshold.

Symbols are those of Rasley et al., "HyperDrive: Exploring Hyperparameters with POP
Scheduling", section 3.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise

from dasktune.algos.curves.curve import Prediction
from dasktune.types import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Chances:
    """When a trial's curve reaches a target, as a prediction has it.

    Parameters
    ----------
    after
        The last step that the prediction rests on.
    steps
        Future steps.
    reached
        For each the probability that the target has been reached by then.
    """

    after: Step
    steps: tuple[Step, ...]
    reached: tuple[float, ...]

    @classmethod
    def of(cls, prediction: Prediction, target: float) -> Chances:
        """Return the chances that P(y(m) >= target) gives; reached once is reached."""
        reached = tuple(accumulate(prediction.chances(target), max))
        return cls(after=prediction.after, steps=prediction.steps, reached=reached)

    def by(self, step: Step) -> float:
        """Return the probability that the target has been reached by a step."""
        if step <= self.after:
            return 0.0
        place = bisect_right(self.steps, step)
        if place == len(self.steps):
            return self.reached[-1]
        low, begin = (
            (self.steps[place - 1], self.reached[place - 1]) if place else (self.after, 0.0)
        )
        high, end = self.steps[place], self.reached[place]
        return begin + (end - begin) * (step - low) / (high - low)

    def expected_steps(self, until: Step) -> float:
        """Return x = sum of m p_m over the steps m after the last one, up to `until` [eq. 2].

        Between the steps of the prediction p_m is spread evenly.
        """
        ends = [*(step for step in self.steps if step < until), until]
        total = 0.0
        for low, high in pairwise((self.after, *ends)):
            if high > low:
                middle = (low + 1 + high) / 2 - self.after
                total += middle * (self.by(high) - self.by(low))
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """The expectation of POP for a trial.

    Parameters
    ----------
    confidence
        p: the probability that it reaches the target in time.
    remaining_seconds
        ERT: the expected time until then, T_max - T_pass at most.
    """

    confidence: float
    remaining_seconds: float


def expectation(
    chances: Chances, *, step: Step, max_steps: Step, step_seconds: float, left_seconds: float
) -> Expectation:
    """Return confidence and expected remaining time of a trial [section 3.1.1].

    Parameters
    ----------
    chances
        Of its last prediction.
    step
        How far it has been trained.
    max_steps
        How far it may be trained.
    step_seconds
        Seconds of a step: Epoch_i.
    left_seconds
        T_max - T_pass; infinite if there is no T_max.

    Notes
    -----
    M_i = (T_max - T_pass) / Epoch_i; p is the sum of p_m for m = 1 to M_i, and ERT_i the sum of
    m p_m, times Epoch_i [eq. 3]. A trial that has come further since its prediction has not
    reached the target in the steps between: the chances of the other steps grow accordingly.
    """
    most = max_steps - step
    if step_seconds > 0 and left_seconds < math.inf:
        most = min(most, math.floor(max(0.0, left_seconds) / step_seconds))
    confidence, ahead = _ahead(chances, step, step + most)
    return Expectation(
        confidence=confidence, remaining_seconds=min(ahead * step_seconds, left_seconds)
    )


@lru_cache(maxsize=4096)
def _ahead(chances: Chances, step: Step, until: Step) -> tuple[float, float]:
    """Return the probability of the target between two steps, and the expected steps to it.

    POP looks at all trials after each report, and most are where they were.
    """
    before = chances.by(step)
    left = 1 - before
    confidence = (chances.by(until) - before) / left if left > 0 else 0.0
    passed, more = step - chances.after, chances.expected_steps(until)
    # Leave out the steps of the sum that lie behind, and count those ahead from here.
    more -= chances.expected_steps(step) + passed * (chances.by(until) - before)
    return confidence, max(0.0, more) / left if left > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """How the slots are divided.

    Parameters
    ----------
    threshold
        The confidence from which on a trial is promising; infinite if none is.
    slots
        S_promising: how many slots are for promising trials.
    """

    threshold: float
    slots: float


def divide(confidences: Iterable[float], slots: int, per_trial: int = 1) -> Division:
    """Return the division that gives promising trials most slots [section 3.2].

    For each confidence p: S_desired(p) = N_satisfying(p) k, S_deserved(p) = S p, and S_effective
    is the lesser. The p that maximises it is the threshold: the largest one where several do.

    Parameters
    ----------
    confidences
        Of the active trials.
    slots
        S: how many stages can run at a time.
    per_trial
        k: the slots that a trial takes.

    Examples
    --------
    >>> divide([0.9, 0.8, 0.1, 0.05], slots=4)
    Division(threshold=0.8, slots=2)
    """
    best = Division(threshold=math.inf, slots=0)
    for count, confidence in enumerate(sorted(confidences, reverse=True), 1):
        # Of equal confidences the last counts them all: it desires no less.
        effective = min(count * per_trial, slots * confidence)
        if effective > best.slots:
            best = Division(threshold=confidence, slots=effective)
    return best

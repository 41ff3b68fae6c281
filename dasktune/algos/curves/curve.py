"""Learning curves, predictions of their future, and the protocol of predictors.

All scores are larger-is-better: a metric that gets better downwards is negated first.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np

from dasktune.errors import ConfigurationError, refuse
from dasktune.types import Step

LEVELS: Final = (
    *(0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5),
    *(0.6, 0.7, 0.8, 0.9, 0.95, 0.975, 0.99),
)
"""Probabilities at which a predicted score is given."""

MOST_STEPS: Final = 16
"""The largest number of future steps in a question; between them scores are interpolated."""

MOST_SIBLINGS: Final = 8
"""The largest number of siblings of a curve: those that share most of it."""

MOST_OTHERS: Final = 32
"""The largest number of other trials of a curve, siblings included."""

HUGE: Final = 1e100
"""Larger scores are replaced by this one: its square must be finite, too."""

_DIGITS: Final = 9
"""Digits that scores are rounded to, counted from the reach of a row of them."""

_EXACT: Final = 17
"""Digits that tell every float from every other."""

_LARGEST: Final = 1e308
"""Larger scores are not rounded: they could become infinite."""

_TAIL = 0.5
"""Scale of a tail beyond the outermost levels, as a part of the distance to the next one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """The curve of another trial that begins like this one.

    Parameters
    ----------
    at
        The step up to which both are the same.
    steps, scores
        All its measurements, also up to `at`.
    rates
        Its learning rate, as in `Curve`.
    """

    at: Step
    steps: tuple[Step, ...]
    scores: tuple[float, ...]
    rates: tuple[tuple[Step, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A learning curve, and the known part of its trial's future.

    Parameters
    ----------
    steps
        Steps after which it was measured, ascending.
    scores
        The measurements, larger is better. A score that is not finite counts as not measured.
    max_steps
        The largest step that its trial may be trained to.
    low, high
        The range of scores; None where there is no bound.
    rates
        The learning rate over the whole trial, known beforehand: ``(step, rate)``,
        ascending, each from that step (counted from 0) on until the next. Empty if it is
        not known.
    siblings
        Curves of trials that begin like this one.
    others
        Curves of further trials of the study; `Branch.at` may be 0.

    Raises
    ------
    ConfigurationError
        If steps do not ascend from at least 0, there are not as many scores, or bounds are
        not in order: all at once.
    """

    steps: tuple[Step, ...]
    scores: tuple[float, ...]
    max_steps: Step
    low: float | None = None
    high: float | None = None
    rates: tuple[tuple[Step, float], ...] = ()
    siblings: tuple[Branch, ...] = ()
    others: tuple[Branch, ...] = ()

    def __post_init__(self) -> None:
        problems = []
        if len(self.steps) != len(self.scores):
            problems.append(
                f"scores must be as many as steps, {len(self.steps)}, got {len(self.scores)}"
            )
        if any(first >= second for first, second in pairwise((-1, *self.steps))):
            problems.append(f"steps must ascend from at least 0, got {list(self.steps)}")
        if self.low is not None and self.high is not None and not self.low < self.high:
            problems.append(f"low must be < high, got {self.low} and {self.high}")
        refuse(f"curve: {problem}" for problem in problems)

    @property
    def measured(self) -> tuple[tuple[Step, float], ...]:
        """The finite scores with their steps."""
        pairs = zip(self.steps, self.scores, strict=True)
        return tuple((step, score) for step, score in pairs if math.isfinite(score))

    @property
    def moderate(self) -> Curve:
        """The curve with scores and bounds cut to `HUGE`, so that sums of squares stay finite."""
        return replace(
            self,
            scores=tuple(
                min(max(score, -HUGE), HUGE) if math.isfinite(score) else score
                for score in self.scores
            ),
            low=None if self.low is None or abs(self.low) > HUGE else self.low,
            high=None if self.high is None or abs(self.high) > HUGE else self.high,
        )

    @property
    def last_step(self) -> Step:
        """The last measured step, its score finite or not; 0 if there is none."""
        return self.steps[-1] if self.steps else 0

    def rate_at(self, step: Step) -> float | None:
        """Return the learning rate of the step after `step` steps; None if it is unknown."""
        place = bisect_left(self.rates, step + 1, key=lambda pair: pair[0])
        return self.rates[place - 1][1] if place else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A prediction: the scores at future steps, with their uncertainty.

    Parameters
    ----------
    after
        The last step of the curve that it was made from.
    steps
        Future steps, ascending.
    scores
        ``(steps, levels)``: for each step the quantiles of the measured score at the
        probabilities `LEVELS`, ascending. Noise of the measurement is included.
    deviations
        For each step the standard deviation, over the posterior's samples, of the score
        without noise: HyperDrive's prediction accuracy PA (Rasley et al., section 3.1.1).

    Raises
    ------
    ConfigurationError
        If the shapes do not fit, or steps or scores do not ascend: all at once.
    """

    after: Step
    steps: tuple[Step, ...]
    scores: tuple[tuple[float, ...], ...]
    deviations: tuple[float, ...]

    def __post_init__(self) -> None:
        problems = []
        if not self.steps or any(a >= b for a, b in pairwise((self.after, *self.steps))):
            problems.append(f"steps must ascend from after {self.after}, got {list(self.steps)}")
        if len(self.scores) != len(self.steps) or len(self.deviations) != len(self.steps):
            problems.append(
                f"scores and deviations must be one for each of {len(self.steps)} steps, got "
                f"{len(self.scores)} and {len(self.deviations)}"
            )
        if any(len(row) != len(LEVELS) or list(row) != sorted(row) for row in self.scores):
            problems.append(f"each row of scores must be {len(LEVELS)} ascending numbers")
        if not all(math.isfinite(score) for row in self.scores for score in row):
            problems.append("scores must be finite")
        refuse(f"prediction: {problem}" for problem in problems)

    @classmethod
    def of_samples(
        cls, after: Step, steps: Iterable[Step], observed: Any, expected: Any
    ) -> Prediction:
        """Return the prediction of samples.

        Parameters
        ----------
        after, steps
            As above.
        observed
            ``(samples, steps)``: scores with noise.
        expected
            ``(samples, steps)``: scores without noise.
        """
        rows = np.quantile(np.asarray(observed, float), LEVELS, axis=0).T
        rows = np.maximum.accumulate(rows, axis=1)  # rounding must not turn the order around
        return cls(
            after=after,
            steps=tuple(steps),
            scores=tuple(map(tuple, rows.tolist())),
            deviations=tuple(np.std(np.asarray(expected, float), axis=0).tolist()),
        )

    @property
    def medians(self) -> tuple[float, ...]:
        """The median score at each step."""
        middle = LEVELS.index(0.5)
        return tuple(row[middle] for row in self.scores)

    def interval(self, probability: float) -> tuple[tuple[float, float], ...]:
        """Return for each step the middle interval that holds the score with a probability."""
        tail = (1 - probability) / 2
        return tuple(
            (float(np.interp(tail, LEVELS, row)), float(np.interp(1 - tail, LEVELS, row)))
            for row in self.scores
        )

    def chances(self, target: float) -> tuple[float, ...]:
        """Return for each step the probability that the score there is at least `target`."""
        return tuple(1.0 - _below(row, target) for row in self.scores)

    def to_json(self) -> dict[str, object]:
        """Return it as JSON, each step's scores to nine digits of their range.

        Reading it gives the same document again: tuners decide by the scores in the event log.
        """
        return {
            "after": self.after,
            "steps": list(self.steps),
            "scores": [_shortened(row) for row in self.scores],
            "deviations": [_short(deviation, _DIGITS) for deviation in self.deviations],
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Prediction:
        """Return the prediction of such a document."""
        return cls(
            after=document["after"],
            steps=tuple(document["steps"]),
            scores=tuple(map(tuple, document["scores"])),
            deviations=tuple(document["deviations"]),
        )


@runtime_checkable
class Predictor(Protocol):
    """Predicts learning curves; it is pickled and sent to workers.

    The same arguments give the same prediction.
    """

    def predict(self, curve: Curve, steps: tuple[Step, ...], *, seed: int = 0) -> Prediction:
        """Return the prediction of a curve at future steps.

        Parameters
        ----------
        curve
            With at least one finite score.
        steps
            Ascending, all after the curve's last step.
        seed
            Decides the draws, if there are any.

        Raises
        ------
        ConfigurationError
            If the curve has no finite score, or a step is not after its last one.
        """

    def identity(self) -> dict[str, object]:
        """Return the class, as ``predictor``, and arguments: equal for those that predict alike.

        It is JSON.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question to a predictor; it is pickled and sent to a worker.

    Parameters
    ----------
    predictor, curve, steps, seed
        As for `Predictor.predict`.
    """

    predictor: Predictor
    curve: Curve
    steps: tuple[Step, ...]
    seed: int = 0

    def answer(self) -> Prediction:
        """Return the prediction, rounded as in the event log.

        Raises
        ------
        ConfigurationError
            If the predictor answers another question.
        """
        prediction = self.predictor.predict(self.curve, self.steps, seed=self.seed)
        if (prediction.after, prediction.steps) != (self.curve.last_step, self.steps):
            raise ConfigurationError(
                f"a predictor must predict steps {list(self.steps)} after step "
                f"{self.curve.last_step}, got {list(prediction.steps)} after {prediction.after}"
            )
        return Prediction.from_json(prediction.to_json())

    @staticmethod
    def read(document: Mapping[str, Any]) -> Prediction:
        """Return the answer that a worker sent as JSON."""
        return Prediction.from_json(document)


def check_question(curve: Curve, steps: tuple[Step, ...]) -> None:
    """Refuse a question that no predictor can answer.

    Raises
    ------
    ConfigurationError
        If the curve has no finite score, or steps do not ascend from its last one.
    """
    problems = []
    if not curve.measured:
        problems.append(f"a curve must have a finite score, got {list(curve.scores)}")
    if not steps or any(a >= b for a, b in pairwise((curve.last_step, *steps))):
        problems.append(
            f"steps must ascend and lie after the curve's last, {curve.last_step}, "
            f"got {list(steps)}"
        )
    refuse(problems)


def future_steps(after: Step, until: Step, every: Step = 1) -> tuple[Step, ...]:
    """Return at most `MOST_STEPS` steps after one and up to another, both ends included.

    They are multiples of `every` as far as they can be, closer together at first.

    Examples
    --------
    >>> future_steps(10, 40, 10)
    (20, 30, 40)
    >>> future_steps(10, 15, 10)
    (15,)
    """
    first = (after // every + 1) * every
    steps = [*range(first, until, every), until]
    if len(steps) > MOST_STEPS:
        places = np.unique(np.geomspace(1, len(steps), MOST_STEPS).round().astype(int))
        steps = [steps[place - 1] for place in places]
    return tuple(steps)


def _below(row: tuple[float, ...], target: float) -> float:
    """Return the probability of a score below `target`, its tails exponential."""
    if target <= row[0]:
        scale = _TAIL * (row[1] - row[0])
        return LEVELS[0] * math.exp((target - row[0]) / scale) if scale > 0 else 0.0
    if target > row[-1]:
        scale = _TAIL * (row[-1] - row[-2])
        return 1 - (1 - LEVELS[-1]) * math.exp((row[-1] - target) / scale) if scale > 0 else 1.0
    right = bisect_left(row, target)
    left, width = right - 1, row[right] - row[right - 1]
    part = (target - row[left]) / width
    return LEVELS[left] + part * (LEVELS[right] - LEVELS[left])


def _shortened(row: tuple[float, ...]) -> list[float]:
    """Return scores rounded to the digits that tell them apart; rounding again changes nothing.

    Rounded scores may reach further, and so need fewer digits: it repeats until they stay.
    """
    digits = _digits(row)
    short = [_short(score, digits) for score in row]
    return short if short == list(row) else _shortened(tuple(short))


def _digits(row: tuple[float, ...]) -> int:
    """Return how many digits tell ascending scores apart, however far from zero they are."""
    size, reach = max(abs(row[0]), abs(row[-1])), row[-1] / 2 - row[0] / 2
    # A float is not always the same after 16 digits, and above the largest there is none.
    if size >= 10.0 ** (15 - _DIGITS) * reach or size > _LARGEST:
        return _EXACT
    return _DIGITS + math.floor(math.log10(size / reach))


def _short(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")

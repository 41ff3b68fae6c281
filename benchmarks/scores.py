"""How good predictions were, by proper scoring rules: the truth alone makes them best.

All are those of one distribution, the one that `Prediction.chances` reads: its cumulative
distribution function is piecewise linear between the predicted scores, with exponential tails
beyond the outermost.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from statistics import fmean, median

import numpy as np

from dasktune.algos.curves import LEVELS, Prediction

FLOOR = 1e-3
"""How finely a score is read for the likelihood, as a part of its metric's scale."""

COVERED = 0.8
"""What the interval holds whose coverage is counted."""

TAIL = 0.5
"""AxisScale of a tail, as a part of the distance between the two outermost scores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How good a prediction was; all in parts of the metric's scale.

    Parameters
    ----------
    nll
        Negative log-likelihood, in nats: `log_loss`.
    crps
        Continuous ranked probability score: `crps`.
    covered
        1 if the middle 80% held what came, else 0.
    error
        How far the median was from what came.
    """

    nll: float
    crps: float
    covered: float
    error: float

    @classmethod
    def of(cls, prediction: Prediction, truth: float, *, scale: float = 1.0) -> Score:
        """Return how good a prediction of its last step was.

        Parameters
        ----------
        prediction
            What was predicted.
        truth
            The score that was measured at the last of its steps.
        scale
            What a score is measured by: the width of its metric's range.
        """
        row = tuple(score / scale for score in prediction.scores[-1])
        low, high = (edge / scale for edge in prediction.interval(COVERED)[-1])
        seen = truth / scale
        return cls(
            nll=log_loss(row, seen),
            crps=crps(row, seen),
            covered=float(low <= seen <= high),
            error=abs(prediction.medians[-1] / scale - seen),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Summaries of the scores of many predictions: means, apart from `median_error`."""

    nll: float
    crps: float
    coverage: float
    median_error: float
    mean_error: float

    @classmethod
    def of(cls, scores: Iterable[Score]) -> Scores:
        """Return the summary of at least one score."""
        all_scores = list(scores)
        columns = {
            field.name: [getattr(score, field.name) for score in all_scores]
            for field in fields(Score)
        }
        return cls(
            nll=fmean(columns["nll"]),
            crps=fmean(columns["crps"]),
            coverage=fmean(columns["covered"]),
            median_error=median(columns["error"]),
            mean_error=fmean(columns["error"]),
        )

    def skill(self, other: Scores) -> float:
        """Return by what part its CRPS is lower than another's: 1 is perfect, 0 no better."""
        return 1 - self.crps / other.crps if other.crps > 0 else 0.0


def pinball(quantile: float, level: float, truth: float) -> float:
    """Return the loss of a predicted quantile: least, on average, where it is the true one.

    References
    ----------
    Koenker and Bassett, "Regression Quantiles" (1978).
    """
    miss = truth - quantile
    return max(level * miss, (level - 1) * miss)


def crps(row: Sequence[float], truth: float) -> float:
    """Return the continuous ranked probability score of the scores at `LEVELS`.

    It is the integral of (F(z) - [z >= truth])^2 over z, in closed form for each piece: twice
    the integral of `pinball` over all levels, those between `LEVELS` and beyond included.

    References
    ----------
    Gneiting and Raftery, "Strictly Proper Scoring Rules, Prediction, and Estimation" (2007),
    section 4.2; Laio and Tamea (2007) for the pinball loss.
    """
    below = _tail_part(row[0], row[1] - row[0], truth)
    above = _tail_part(-row[-1], row[-1] - row[-2], -truth)
    pieces = zip(pairwise(row), pairwise(LEVELS), strict=True)
    return below + above + sum(_piece(ends, levels, truth) for ends, levels in pieces)


def log_loss(row: Sequence[float], truth: float, *, floor: float = FLOOR) -> float:
    """Return the negative log-likelihood of the scores at `LEVELS`, in nats.

    The truth is taken to be known to within `floor`: the likelihood is the probability of the
    interval of that width around it, over the width, and a tail is no narrower than it. So a
    prediction can be no surer than `floor`, and what misses by far costs much, but finitely
    much.

    Parameters
    ----------
    row
        Scores at `LEVELS`.
    truth
        What was measured.
    floor
        Width, in the unit of both.
    """
    low, high = truth - floor / 2, truth + floor / 2
    if high <= row[0]:
        chance = _log_tail(row[0] - high, row[1] - row[0], floor)
    elif low >= row[-1]:
        chance = _log_tail(low - row[-1], row[-1] - row[-2], floor)
    else:
        chance = math.log(below(row, high, least=floor) - below(row, low, least=floor))
    return math.log(floor) - chance


def below(row: Sequence[float], score: float, *, least: float = 0.0) -> float:
    """Return the probability of less than `score`.

    Parameters
    ----------
    row
        Scores at `LEVELS`.
    score
        In their unit.
    least
        AxisScale that a tail has at least.
    """
    if score < row[0]:
        return math.exp(_log_beyond(row[0] - score, max(TAIL * (row[1] - row[0]), least)))
    if score > row[-1]:
        return 1 - math.exp(_log_beyond(score - row[-1], max(TAIL * (row[-1] - row[-2]), least)))
    return float(np.interp(score, row, LEVELS))


def _log_beyond(distance: float, scale: float) -> float:
    """Return the logarithm of the probability of lying beyond a point in a tail."""
    return math.log(LEVELS[0]) - distance / scale if scale > 0 else -math.inf


def _log_tail(distance: float, gap: float, width: float) -> float:
    """Return the logarithm of the probability of an interval that begins out in a tail."""
    scale = max(TAIL * gap, width)
    return _log_beyond(distance, scale) + math.log(-math.expm1(-width / scale))


def _tail_part(edge: float, gap: float, truth: float) -> float:
    """Return the part of the CRPS below `edge`."""
    scale, level = TAIL * gap, LEVELS[0]
    whole = scale * level**2 / 2
    if truth >= edge:
        return whole
    left = math.exp(_log_beyond(edge - truth, scale))
    return edge - truth - 2 * scale * (level - left) + whole


def _piece(ends: tuple[float, float], levels: tuple[float, float], truth: float) -> float:
    """Return the part of the CRPS between two neighbours among the scores."""
    (low, high), (first, last) = ends, levels
    if truth >= high:
        return (high - low) * _mean_square(first, last)
    if truth <= low:
        return (high - low) * _mean_square(1 - first, 1 - last)
    middle = first + (last - first) * (truth - low) / (high - low)
    left = (truth - low) * _mean_square(first, middle)
    return left + (high - truth) * _mean_square(1 - middle, 1 - last)


def _mean_square(first: float, last: float) -> float:
    """Return the mean of the squares along a line from one value to another."""
    return (first * first + first * last + last * last) / 3

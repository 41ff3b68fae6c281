"""The continuous ranked probability score, a proper scoring rule: the truth alone makes it best.

It is that of the distribution which `Prediction.chances` reads: its cumulative distribution
function is piecewise linear between the predicted scores, with exponential tails beyond the
outermost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from dasktune.algos.curves import LEVELS

TAIL = 0.5
"""Scale of a tail, as a part of the distance between the two outermost scores."""


def crps(row: Sequence[float], truth: float) -> float:
    """Return the continuous ranked probability score of the scores at `LEVELS`.

    It is the integral of (F(z) - [z >= truth])^2 over z, in closed form for each piece.

    References
    ----------
    Gneiting and Raftery, "Strictly Proper Scoring Rules, Prediction, and Estimation" (2007),
    section 4.2.
    """
    below = _tail_part(row[0], row[1] - row[0], truth)
    above = _tail_part(-row[-1], row[-1] - row[-2], -truth)
    pieces = zip(pairwise(row), pairwise(LEVELS), strict=True)
    return below + above + sum(_piece(ends, levels, truth) for ends, levels in pieces)


def _tail_part(edge: float, gap: float, truth: float) -> float:
    """Return the part of the CRPS below `edge`."""
    scale, level = TAIL * gap, LEVELS[0]
    whole = scale * level**2 / 2
    if truth >= edge:
        return whole
    left = level * math.exp((truth - edge) / scale) if scale > 0 else 0.0
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

"""A curve in the frame of parametric families: x = 1, 2, 3, ... and y, rising, in [0, 1]."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dasktune.algos.curves.curve import Curve
from dasktune.types import Step

Array = npt.NDArray[np.float64]

_ROOM = 1.0
"""How far a curve without a bound may go on, in ranges of its scores so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """The map from steps to x.

    The unit is the shortest distance between two measurements: a curve that is measured every
    10 steps is the same as one that is measured at each. Gaps between measurements stay gaps.

    Parameters
    ----------
    first
        The first step that was measured.
    unit
        Steps in a unit of x.

    Examples
    --------
    >>> Axis.of([10, 20, 40]).x([10, 20, 40, 100]).tolist()
    [1.0, 2.0, 4.0, 10.0]
    >>> Axis.of([0, 1, 2]).x([3]).tolist()
    [4.0]
    """

    first: Step
    unit: Step

    @classmethod
    def of(cls, steps: Collection[Step]) -> Axis:
        """Return the axis for the measured steps of a curve."""
        known = sorted({0, *steps})
        gaps = np.diff(known)
        return cls(first=min(steps), unit=int(gaps.min()) if len(gaps) else 1)

    def x(self, steps: Iterable[Step]) -> Array:
        """Return the places of steps; the first measured one lies at 1 or beyond."""
        start = max(1.0, self.first / self.unit)
        places: Array = start + (np.asarray(tuple(steps), float) - self.first) / self.unit
        return places


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The map from scores to y, and back.

    Scores are moved and stretched until their possible range is 0 to 1. Where `Curve.low` or
    `Curve.high` is unknown, the curve may go on by as much as it has covered so far, which
    also keeps its prediction from running away. A curve that falls, by the
    means of its first and its last third, is turned over: families only rise.

    Parameters
    ----------
    bottom, top
        The scores that become 0 and 1; the top is the lower one for a curve that falls.
    """

    bottom: float
    top: float

    @classmethod
    def of(cls, curve: Curve) -> Frame:
        """Return the frame of a curve with at least two different scores."""
        scores = np.array([score for _, score in curve.measured])
        least, most = float(scores.min()), float(scores.max())
        room = _ROOM * (most - least)
        low = least - room if curve.low is None else min(curve.low, least)
        high = most + room if curve.high is None else max(curve.high, most)
        third = -(-len(scores) // 3)
        falls = scores[-third:].mean() < scores[:third].mean()
        return cls(bottom=high, top=low) if falls else cls(bottom=low, top=high)

    @property
    def height(self) -> float:
        """Units of the score in 1 of y."""
        return abs(self.top - self.bottom)

    def y(self, scores: Iterable[float]) -> Array:
        """Return the places of scores on the y axis."""
        heights: Array = np.asarray(tuple(scores), float) - self.bottom
        return heights / (self.top - self.bottom)

    def scores(self, y: Array) -> Array:
        """Return the scores at places on the y axis."""
        return self.bottom + (self.top - self.bottom) * y


def within(curve: Curve, scores: Array) -> Array:
    """Return scores cut to the bounds of a curve."""
    low = -np.inf if curve.low is None else curve.low
    high = np.inf if curve.high is None else curve.high
    return np.clip(scores, low, high)

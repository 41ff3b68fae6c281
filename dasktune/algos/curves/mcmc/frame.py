"""A curve as parametric families want it: x = 1, 2, 3, ... and y, rising, within [0, 1]."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dasktune.algos.curves.curve import Curve
from dasktune.types import Step

Array = npt.NDArray[np.float64]

_ROOM = 1.0
"""How far a curve without a bound may go on, in ranges of what was seen of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """How steps become x.

    A step is counted in the shortest distance between two measurements, so that a curve that
    is measured every 10 steps is the same as one that is measured at each; steps that were
    left out stay left out.

    Parameters
    ----------
    first
        The first step that was measured.
    unit
        How many steps make 1 of x.

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
        """Return that of the measured steps of a curve."""
        known = sorted({0, *steps})
        gaps = np.diff(known)
        return cls(first=min(steps), unit=int(gaps.min()) if len(gaps) else 1)

    def x(self, steps: Iterable[Step]) -> Array:
        """Return where steps lie; the first that was measured lies at 1 or beyond."""
        start = max(1.0, self.first / self.unit)
        found: Array = start + (np.asarray(tuple(steps), float) - self.first) / self.unit
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """How scores become y, and back.

    They are moved and stretched until the range that they may have is 0 to 1. Where
    `Curve.low` or `Curve.high` is not known, the curve may go on by as much as it has covered
    so far, which also keeps its prediction from running away. A curve that falls, by the
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
        """Return that of a curve with at least two different scores."""
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
        """How many units of the score make 1 of y."""
        return abs(self.top - self.bottom)

    def y(self, scores: Iterable[float]) -> Array:
        """Return where scores lie."""
        found: Array = np.asarray(tuple(scores), float) - self.bottom
        return found / (self.top - self.bottom)

    def scores(self, y: Array) -> Array:
        """Return the scores at places on the y axis."""
        return self.bottom + (self.top - self.bottom) * y


def within(curve: Curve, scores: Array) -> Array:
    """Return scores cut to the range that those of a curve can have."""
    low = -np.inf if curve.low is None else curve.low
    high = np.inf if curve.high is None else curve.high
    return np.clip(scores, low, high)

"""The range that a metric can have, as a user says it and as scores have it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from dasktune.algos.base import Inputs
from dasktune.errors import InternalError
from dasktune.sequences.values import Arguments
from dasktune.types import Direction

Bounds = tuple[float, float]
"""The lowest and the highest value that there can be."""


def checked_bounds(check: Arguments, bounds: object) -> Bounds | None:
    """Return the bounds that a user gave, in the metric's own unit; problems are kept."""
    match bounds:
        case None:
            return None
        case (int() | float() as low, int() | float() as high) if -math.inf < low < high < math.inf:
            return float(low), float(high)
        case _:
            check.add(f"bounds must be (low, high), finite and low < high, got {bounds!r}")
            return None


def checked_sides(check: Arguments, bounds: object) -> tuple[float | None, float | None]:
    """Return bounds of which either may be None, as a user gave them; problems are kept."""
    match bounds:
        case None | (None, None):
            return None, None
        case (int() | float() as low, None) if math.isfinite(low):
            return float(low), None
        case (None, int() | float() as high) if math.isfinite(high):
            return None, float(high)
        case _:
            return checked_bounds(check, bounds) or (None, None)


def beyond_bounds(
    value: float, low: float | None, high: float | None, *, metric: str, where: str
) -> Iterator[str]:
    """Say that a value was measured which the bounds do not allow; it may be anything not finite.

    Examples
    --------
    >>> list(beyond_bounds(40.0, 0.0, None, metric="loss", where=" at step 1"))
    []
    >>> list(beyond_bounds(40.0, 0.0, 1.0, metric="accuracy", where=" at step 1"))
    ['bounds must hold all values of accuracy, 0 to 1, got 40 at step 1']
    """
    least, most = -math.inf if low is None else low, math.inf if high is None else high
    if math.isfinite(value) and not least <= value <= most:
        yield (
            f"bounds must hold all values of {metric}, {least:g} to {most:g}, got "
            f"{value:.10g}{where}"
        )


def score_bounds(bounds: Bounds | None, inputs: Inputs) -> Bounds | None:
    """Return the bounds of the scores, of which larger ones are better.

    Parameters
    ----------
    bounds
        Those of the metric.
    inputs
        Of `dasktune.algos.base.Tuner.prepare`, for a timed tuner: with ``directions``.

    Examples
    --------
    >>> score_bounds((0.5, 2.5), {"directions": ["minimize"]})
    (-2.5, -0.5)
    """
    if bounds is None:
        return None
    match inputs:
        case {"directions": [str(first), *_]}:
            low, high = bounds
            return bounds if Direction(first) is Direction.MAXIMIZE else (-high, -low)
        case _:
            raise InternalError(f"bounds need the direction of the metric, got {inputs!r}")


def share_of(score: float, bounds: Bounds) -> float:
    """Return where a score lies between its bounds: 0 at the worst, 1 at the best.

    Min-max normalisation [Rasley et al., "HyperDrive", section 6.3]; what lies beyond a bound
    counts as at it.

    Examples
    --------
    >>> share_of(-100.0, (-500.0, 300.0)), share_of(-900.0, (-500.0, 300.0))
    (0.5, 0.0)
    """
    low, high = bounds
    return (min(max(score, low), high) - low) / (high - low)

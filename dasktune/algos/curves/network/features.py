"""The input of a network for a learning curve: numbers without a unit, a row for each step.

A curve and the same curve in another unit give the same rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dasktune.algos.curves.curve import Curve
from dasktune.algos.curves.network.curve_statistics import Seen
from dasktune.algos.curves.network.learning_rates import schedule
from dasktune.algos.curves.network.siblings import siblings
from dasktune.types import Step

Array = NDArray[np.float64]

FORM: Final = 1
"""The version of the rows; weights fit only one."""

LIMIT: Final = 12.0
"""The largest compressed score and logarithm in a row."""


@dataclass(frozen=True, slots=True)
class Features:
    """The input of a network, and how its answer is read.

    Parameters
    ----------
    rows
        ``(steps, features)``.
    origin
        The last score.
    scale
        The unit in which scores are counted from there; positive.
    noise
        Standard deviation of a single measurement, estimated.
    below, above
        How far the score can fall and rise from the origin, compressed. Without a bound it
        is some ranges of the scores so far, or the way to zero where that is not too far.
    """

    rows: Array
    origin: float
    scale: float
    noise: float
    below: float
    above: float


def describe(curve: Curve, steps: tuple[Step, ...]) -> Features:
    """Return the input for a curve's scores at future steps; the question is not checked."""
    # A curve asked about beyond its end is taken for a longer one: networks know no other.
    seen = Seen.of(replace(curve, max_steps=max(curve.max_steps, *steps)))
    ahead = np.asarray(steps, float)
    constant = np.concatenate((seen.extent(), seen.shape(), seen.movement(), seen.room()))
    rows = np.column_stack(
        (
            np.tile(constant, (len(ahead), 1)),
            seen.distance(ahead),
            seen.extrapolated(ahead),
            schedule(seen, ahead),
            siblings(seen, ahead),
        )
    )
    below, above = seen.bounds()
    return Features(
        rows=np.clip(np.nan_to_num(rows, posinf=LIMIT, neginf=-LIMIT), -LIMIT, LIMIT),
        origin=seen.origin,
        scale=seen.scale,
        noise=seen.noise * seen.scale,
        below=below,
        above=above,
    )

"""The expected improvement of states that are not trained yet, from those that are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dasktune.algos.branching import gaussian_process
from dasktune.algos.branching.values import State, distances

Array = NDArray[Any]

MOST: Final = 96
"""Most observations that the model uses: half are the best, half the newest of the others."""

MOST_PENDING: Final = 30
"""Most states without a report that the model knows, the newest; see `gaussian_process`."""

_NORMAL: Final = NormalDist()


def improvements(
    seen: Sequence[State],
    losses: Sequence[float],
    pending: Sequence[State],
    candidates: Sequence[State],
) -> Array:
    """Return the expected improvement of each candidate, in units of `normal_scores`.

    Parameters
    ----------
    seen, losses
        States that have reported, in their order, and their finite losses.
    pending
        States that are being trained.
    candidates
        The states to compare.
    """
    kept = _most_useful(losses)
    values = normal_scores([losses[place] for place in kept])
    known = [*(seen[place] for place in kept), *pending[-MOST_PENDING:]]
    squared = distances([*known, *candidates], len(known))
    count = len(kept)
    parameters = gaussian_process.fitted(squared[:, :count, :count], values)
    means, deviations = gaussian_process.predicted(squared, values, parameters)
    best = float(means[:count].min())
    return expected_improvement(best, means[len(known) :], deviations[len(known) :])


def _most_useful(losses: Sequence[float]) -> list[int]:
    """Return the indices of the observations that the model uses, ascending."""
    if len(losses) <= MOST:
        return [*range(len(losses))]
    best = np.argsort(losses, kind="stable")[: MOST // 2].tolist()
    others = [place for place in range(len(losses)) if place not in set(best)]
    return sorted([*best, *others[-(MOST - MOST // 2) :]])


def normal_scores(losses: Sequence[float]) -> Array:
    """Return losses as quantiles of a normal distribution, by their mean ranks.

    Examples
    --------
    >>> normal_scores([3.0, 1.0, 900.0]).round(2).tolist()
    [0.0, -0.97, 0.97]
    """
    ordered = np.sort(losses)
    low = np.searchsorted(ordered, losses, side="left")
    high = np.searchsorted(ordered, losses, side="right")
    shares = (low + high) / 2 / len(ordered)
    return np.array([_NORMAL.inv_cdf(share) for share in shares])


def expected_improvement(best: float, means: Array, deviations: Array) -> Array:
    """Return the mean distance of each value below `best`; a value above it counts as 0.

    References
    ----------
    Jones, Schonlau and Welch, "Efficient Global Optimization of Expensive Black-Box
    Functions", equation 15.
    """
    z = (best - means) / deviations
    below = np.array([0.5 * math.erfc(-each / math.sqrt(2)) for each in z])
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    improvement: Array = (best - means) * below + deviations * density
    return np.maximum(improvement, 1e-300)

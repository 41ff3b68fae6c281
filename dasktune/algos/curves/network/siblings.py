"""Curves that begin like this one: their later gains, and those after a drop of their rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasktune.algos.curves.curve import HUGE, MOST_SIBLINGS, Branch, Curve
from dasktune.algos.curves.network.curve_statistics import Seen, log
from dasktune.algos.curves.network.learning_rates import Rates

Array = NDArray[np.float64]


def siblings(seen: Seen, ahead: Array) -> Array:
    """Return the gains of siblings after this curve's last step, and after a drop of their rate.

    A sibling has more weight the further it reaches towards the step, the more of the past it
    shares, and the more its learning rate until the step is like this curve's.
    """
    closest = (Sibling.of(branch, seen) for branch in _closest(seen.curve))
    known = [sibling for sibling in closest if sibling is not None]
    return np.column_stack((_followed(seen, known, ahead), _dropped(seen, known, ahead)))


@dataclass(frozen=True, slots=True)
class Sibling:
    """A sibling's finite scores, counted like the curve's own, and its learning rate."""

    at: float
    times: Array
    values: Array
    rates: Rates | None

    @classmethod
    def of(cls, branch: Branch, seen: Seen) -> Sibling | None:
        """Return the sibling of a branch, or None if all its scores are infinite or NaN."""
        times, scores = np.asarray(branch.steps, float), np.asarray(branch.scores, float)
        finite = np.isfinite(scores)
        if not finite.any():
            return None
        values = (np.clip(scores[finite], -HUGE, HUGE) - seen.origin) / seen.scale
        return cls(float(branch.at), times[finite], values, Rates.of(branch.rates))

    def level(self, steps: Any) -> Array:
        """Return the score at steps, its last one after its end."""
        levels: Array = np.interp(steps, self.times, self.values)
        return levels


def _closest(curve: Curve) -> tuple[Branch, ...]:
    """Return the siblings that share most; of equals the longest first."""
    order = sorted(
        curve.siblings,
        key=lambda branch: (-branch.at, -branch.steps[-1] if branch.steps else 0, branch.scores),
    )
    return tuple(order[:MOST_SIBLINGS])


def _followed(seen: Seen, known: list[Sibling], ahead: Array) -> Array:
    """Return the gains of siblings between the last step and each future sibling."""
    last = float(seen.times[-1])
    further = [sibling for sibling in known if sibling.times[-1] > last]
    if not further:
        return np.zeros((len(ahead), 11))
    reach = np.array(
        [np.minimum((sibling.times[-1] - last) / (ahead - last), 1.0) for sibling in further]
    )
    start = np.array([float(sibling.level(last)) for sibling in further])
    gains = np.array([sibling.level(ahead) for sibling in further]) - start[:, None]
    own = Rates.of(seen.curve.rates)
    unlike = np.array([_unlike(own, sibling.rates, last, ahead) for sibling in further])
    shared = np.array([min(sibling.at / max(last, 1.0), 1.0) for sibling in further])
    weights = reach**2 * np.exp(-3.0 * unlike) * (0.02 + shared**2)[:, None] + 1e-9
    total = weights.sum(axis=0)
    weights = weights / total
    mean = (weights * gains).sum(axis=0)
    spread = np.sqrt((weights * (gains - mean) ** 2).sum(axis=0))
    nearest = np.argmax(weights, axis=0)
    each = np.arange(len(ahead))
    return np.column_stack(
        (
            np.ones(len(ahead)),
            np.full(len(ahead), np.log(len(further))),
            np.arcsinh(mean),
            np.arcsinh(spread),
            np.arcsinh(gains[nearest, each]),
            np.arcsinh(start[nearest]),
            log(total),
            (weights * reach).sum(axis=0),
            (weights * unlike).sum(axis=0),
            weights.T @ shared,
            unlike[nearest, each],
        )
    )


def _unlike(own: Rates | None, other: Rates | None, last: float, ahead: Array) -> Array:
    """Return how far two learning rates are apart until each step, as a mean of logarithms."""
    if own is None or other is None:
        return np.full(len(ahead), 0.0 if own is other else 0.5)
    parts = (np.arange(8) + 1.0) / 8
    places = np.ceil(last + (ahead - last)[:, None] * parts)
    apart: Array = np.minimum(np.abs(own.before(places) - other.before(places)), 2.0).mean(axis=1)
    return apart


def _dropped(seen: Seen, known: list[Sibling], ahead: Array) -> Array:
    """Return the gains of siblings after a drop of their rate, at the same distance from it."""
    empty = np.zeros((len(ahead), 4))
    rates = Rates.of(seen.curve.rates)
    if rates is None:
        return empty
    coming = rates.drops()[0]
    coming = coming[coming >= seen.times[-1]]
    if not len(coming):
        return empty
    lag = ahead - coming[0]
    gains, reach = [], []
    for sibling in known:
        drops = sibling.rates.drops()[0] if sibling.rates is not None else np.empty(0)
        drops = drops[(drops > sibling.times[0]) & (drops < sibling.times[-1])]
        if len(drops):
            gains.append(sibling.level(drops[0] + lag) - float(sibling.level(drops[0])))
            reach.append(np.minimum((sibling.times[-1] - drops[0]) / np.maximum(lag, 1.0), 1.0))
    if not gains:
        return empty
    after = lag > 0
    mean = np.where(after, np.mean(gains, axis=0), 0.0)
    return np.column_stack(
        (
            after,
            np.arcsinh(mean),
            np.where(after, np.arcsinh(np.std(gains, axis=0)), 0.0),
            np.where(after, np.mean(reach, axis=0), 0.0),
        )
    )

"""The learning rate of a curve, until each future step and in the past."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasktune.algos.curves.network.curve_statistics import Seen, log
from dasktune.types import Step

Array = NDArray[np.float64]

_DROP = -0.3
"""Logarithm of a ratio of rates: a larger fall than this counts as a drop."""

_LEAST_RATE = 1e-4
"""The least rate, as a part of the largest one: a schedule may end at 0."""


@dataclass(frozen=True, slots=True)
class Rates:
    """A learning rate over time, as logarithms; `starts` ascend."""

    starts: Array
    logs: Array

    @classmethod
    def of(cls, rates: tuple[tuple[Step, float], ...]) -> Rates | None:
        """Return the rates; None for a rate that is unknown or zero everywhere."""
        if not rates:
            return None
        starts, sizes = np.array(rates, float).T
        if not np.isfinite(sizes).all() or sizes.max() <= 0:
            return None
        return cls(
            starts, np.log(np.maximum(sizes / sizes.max(), _LEAST_RATE)) + np.log(sizes.max())
        )

    def before(self, steps: Any) -> Array:
        """Return the logarithm of the rate with which each step was trained."""
        places = np.searchsorted(self.starts, np.asarray(steps, float) - 1.0, side="right")
        logs: Array = self.logs[np.maximum(places - 1, 0)]
        return logs

    def drops(self) -> tuple[Array, Array]:
        """Return the steps at which the rate drops, and the logarithms of the ratios."""
        changes = np.diff(self.logs)
        chosen = changes < _DROP
        return self.starts[1:][chosen], changes[chosen]


def schedule(seen: Seen, ahead: Array) -> Array:
    """Return the changes of the learning rate until each step, and in the past."""
    rates = Rates.of(seen.curve.rates)
    if rates is None:
        return np.zeros((len(ahead), 19))
    last = seen.times[-1]
    now = float(rates.before(last))
    parts = (np.arange(16) + 1.0) / 16
    between = rates.before(np.ceil(last + (ahead - last)[:, None] * parts)) - now
    past = rates.before(np.maximum(np.ceil(last * parts), 1.0)) - now
    drops, sizes = rates.drops()
    coming = (drops >= last) & (drops < ahead[:, None])
    has = coming.any(axis=1)
    first = drops[np.argmax(coming, axis=1)] if len(drops) else np.zeros(len(ahead))
    since = np.where(has, ahead - first, 0.0)
    behind = drops[drops < last]
    earlier = [0.0, 0.0, 0.0, 1.0]
    if len(behind):
        before, after = seen.around(behind[-1])
        earlier = [
            1.0,
            float(sizes[drops < last][-1]),
            float(np.arcsinh(after - before)),
            (last - behind[-1]) / max(last, 1.0),
        ]
    constant = np.array([1.0, past.max(), past.mean(), past.min(), *earlier])
    return np.column_stack(
        (
            np.tile(constant, (len(ahead), 1)),
            between[:, -1],
            between.mean(axis=1),
            between.min(axis=1),
            between.max(axis=1),
            log(np.exp(between).mean(axis=1) * (ahead - last) / max(last, 1.0)),
            coming.sum(axis=1),
            (coming * sizes).sum(axis=1),
            has,
            since / seen.end,
            np.log1p(since / seen.gap),
            np.where(has, first - last, 0.0) / seen.end,
        )
    )

"""Prices of the classes of workers: what a second on each is worth to the work that waits.

The least time for work that can be divided is a linear program: a share of each model's work for
each class, and no class busy for longer than the makespan. Its dual is a price for a second on
each class. At those prices a model belongs to the class where its work is cheapest, and every class
is busy to the end. So a price says in one number for what a class is too good, whatever else
waits; with comparative advantages of two classes alone, three classes go in circles.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from dasktune.graph.frontier import Profile

GRAIN = 0.1
"""Profiles are rounded to steps of a tenth, in natural logarithms of seconds."""

NEVER = 2_000
"""The profile of a class that may not train a stage: a number so large that it has no share."""

_ROUNDS = 24
_SHARPEST = 32.0
_LEAST_LOAD = 1e-9


def profile_of(seconds: Sequence[float], mean: float) -> Profile:
    """Return the profile of seconds by class, relative to their mean."""
    return tuple(round(math.log(each / mean) / GRAIN) for each in seconds)


def prices_of(backlog: Mapping[Profile, float], slots: Sequence[int]) -> tuple[float, ...]:
    """Return the logarithm of the price of a second on each class.

    Prices rise where the load is above the mean and fall where it is below. Each profile spreads
    its work over the classes, the more to the cheapest the sharper the round is; at the end it
    is nearly all or nothing. The first rounds find the height of the prices, the last ones the
    profiles that two classes share.

    Parameters
    ----------
    backlog
        Seconds of work on an average slot, by profile.
    slots
        Number of slots of each class.

    References
    ----------
    Arora, Hazan and Kale, "The Multiplicative Weights Update Method", section 3.3.
    """
    works = [
        ([GRAIN * each for each in profile], seconds)
        for profile, seconds in backlog.items()
        if seconds > 0
    ]
    prices = [0.0] * len(slots)
    for number in range(_ROUNDS if works else 0):
        sharp = _SHARPEST ** (number / (_ROUNDS - 1))
        loads = _loads(works, prices, sharp)
        mean = sum(loads) / sum(slots)
        prices = [
            price + math.log(max(load / count / mean, _LEAST_LOAD)) / sharp
            for price, load, count in zip(prices, loads, slots, strict=True)
        ]
    return tuple(prices)


def _loads(
    works: Sequence[tuple[Sequence[float], float]], prices: Sequence[float], sharp: float
) -> list[float]:
    """Return the seconds that each class is busy, with shares as sharp as this."""
    loads = [0.0] * len(prices)
    for logs, seconds in works:
        costs = [price + log for price, log in zip(prices, logs, strict=True)]
        least = min(costs)
        shares = [math.exp(sharp * (least - cost)) for cost in costs]
        scale = seconds / sum(shares)
        for at, share in enumerate(shares):
            loads[at] += scale * share * math.exp(logs[at])
    return loads


def makespan(
    backlog: Mapping[Profile, float], slots: Sequence[int], prices: Sequence[float]
) -> float:
    """Return the seconds that all slots need for the backlog, by prices in logarithms.

    It is the value of the dual program: no plan is faster.
    """
    cost = sum(
        seconds
        * math.exp(min(price + GRAIN * at for price, at in zip(prices, profile, strict=True)))
        for profile, seconds in backlog.items()
    )
    return cost / sum(count * math.exp(price) for count, price in zip(slots, prices, strict=True))

"""Complexity: how much there is to search in a model, before anything is known of it.

A continuous domain counts for more than any discrete one, and a wider one for more than a
narrower one [1]. It is a measure of size, not of running time.

References
----------
[1] Kinnison et al., "SHADHO: Massively Scalable Hardware-Aware Distributed Hyperparameter
Optimization", section 3.1, equation 1.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from dasktune.algos.forest.models import Domains
from dasktune.space import Choice, Float, Int

MASS: Final = 0.99
"""Probability of the interval [a, b] of a continuous domain."""

_LARGEST: Final = float(np.finfo(float).max)


def complexity_of(domains: Domains) -> float:
    """Return the complexity of a model, the sum over its coordinates.

    Parameters
    ----------
    domains
        The domain of each of its coordinates, as in `dasktune.space.Configuration`. What is
        fixed is no coordinate, and counts 0. The arguments of a family are coordinates.
    """
    return math.fsum(domain_complexity(domain_of(document)) for document in domains.values())


def domain_complexity(domain: Float | Int | Choice) -> float:
    """Return the complexity C(s) of a coordinate's domain.

    ``2 + |b - a|`` for a continuous domain, where [a, b] is the middle interval that holds 99%
    of the probability. It is measured in the values of the hyper-parameter, also if they are
    drawn uniformly in the logarithm. ``2 - 1 / |s|`` for a discrete domain: an `Int`, a `Float`
    with a step, or a choice. 0 for a domain of one point, which is fixed.

    Examples
    --------
    >>> domain_complexity(Float(0.0, 100.0)), domain_complexity(Int(1, 4))
    (101.0, 1.75)
    >>> round(domain_complexity(Float(1.0, 100.0, log=True)), 4)  # 2 + 10**1.99 - 10**0.01
    98.7004
    """
    match domain:
        case Float() if domain.size is None:
            low, high = interval(domain)
            return min(2.0 + (high - low), _LARGEST)
        case Float() | Int():
            return _discrete(domain.size or 1)
        case Choice():
            return _discrete(len(domain.options))


def interval(domain: Float) -> tuple[float, float]:
    """Return the middle interval [a, b] of a continuous domain that holds 99% of its values."""
    tail = (1 - MASS) / 2
    low, high = domain.low, domain.high
    if domain.log:
        first, last = math.log(low), math.log(high)
        return math.exp(_between(first, last, tail)), math.exp(_between(first, last, 1 - tail))
    return _between(low, high, tail), _between(low, high, 1 - tail)


def _between(low: float, high: float, part: float) -> float:
    return low * (1 - part) + high * part


def _discrete(size: int) -> float:
    return 0.0 if size == 1 else 2.0 - 1.0 / size


def domain_of(document: object) -> Float | Int | Choice:
    """Return the domain of a coordinate's JSON document."""
    match document:
        case {"domain": "Float", **arguments}:
            return Float(**arguments)  # type: ignore[arg-type]
        case {"domain": "Int", **arguments}:
            return Int(**arguments)  # type: ignore[arg-type]
        case {"domain": "Choice", "options": list(options)}:
            return Choice(options)
        case _:
            raise TypeError(f"a coordinate must have a domain, got {document!r}")

"""Priority: how much the losses of a model vary over its hyper-parameters, as measured.

A model whose loss hardly depends on its hyper-parameters is known; one whose loss varies is
worth more trials [1]. A Gaussian process with an isotropic RBF kernel is fitted to the losses
`FITS` times. With the shortest and the longest length scale of maximum marginal likelihood the
priority is ``1 / min(L) - 1 / max(L)``.

The paper does not say how its fits differ. Other starts alone are not enough: the likelihood
of one length mostly has one maximum, and on 70 of 72 sets of points all fits found it. So each
fit begins elsewhere, and has another random part of the points. On those sets, constant losses
then had priority 0, straight ones 0.01 to 0.5, waves 0.04 to 15, and noise 2 and more. The sets
are synthetic, and the constants below were chosen on them.

References
----------
[1] Kinnison et al., "SHADHO: Massively Scalable Hardware-Aware Distributed Hyperparameter
Optimization", section 3.2, equation 2.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from dasktune.algos.forest import extra
from dasktune.algos.forest.complexity import domain_of
from dasktune.algos.forest.models import Domains
from dasktune.space import Choice
from dasktune.types import Value

FITS: Final = 50
"""Number of fits."""

PART: Final = 0.8
"""The part of the points that a fit has."""

LEAST_POINTS: Final = 4
"""A model with fewer finite losses has no priority yet."""

MOST_POINTS: Final = 100
"""Of more losses as many are used, evenly spread in time.

A fit takes time by the cube of their number: 50 fits of 100 points are 0.2 to 0.9 s of one core,
and those of 1,000 would be minutes, taken from the training beside them.
"""

NOISE: Final = 0.01
"""Variance of a loss that is no effect of hyper-parameters, by the variance of all losses.

A tenth of their deviation counts as noise: without it, the least scatter of a model whose loss
is constant would need a length scale that is shorter than any other.
"""

_LONGEST_START: Final = 10.0

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Priority:
    """The length scales of the fits for a model.

    Parameters
    ----------
    shortest, longest
        The shortest and the longest, as lengths in the unit cube.
    """

    shortest: float
    longest: float

    @property
    def value(self) -> float:
        """The priority ``1 / min(L) - 1 / max(L)``; more trials are needed where it is high."""
        return 1 / self.shortest - 1 / self.longest

    def to_json(self) -> dict[str, object]:
        """Return it as JSON, its numbers exact."""
        return {"shortest": self.shortest, "longest": self.longest}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Priority:
        """Return the priority of such a document."""
        return cls(shortest=float(document["shortest"]), longest=float(document["longest"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityQuestion:
    """The question for the priority of a model; it is pickled and sent to a worker.

    Parameters
    ----------
    points
        Its trials in the unit cube; see `in_unit_cube`. They have at least one coordinate.
    losses
        One finite loss for each, all of one rung, as deviations from the model's mean in units
        of the deviation of all models; see `standardised`.
    seed
        Decides starts and parts.
    """

    points: tuple[tuple[float, ...], ...]
    losses: tuple[float, ...]
    seed: int = 0

    def answer(self) -> Priority:
        """Return the priority.

        Raises
        ------
        ConfigurationError
            If scikit-learn is missing.
        """
        points, losses = np.asarray(self.points, float), np.asarray(self.losses, float)
        rng = np.random.default_rng(self.seed)
        size = max(LEAST_POINTS - 1, round(PART * len(points)))
        lengths = []
        for _ in range(FITS):
            part = np.sort(rng.choice(len(points), size, replace=False))
            low = _least_length(points[part])
            start = math.exp(rng.uniform(math.log(low), math.log(_LONGEST_START)))
            lengths.append(
                extra.fitted_length(points[part], losses[part], start=start, low=low, noise=NOISE)
            )
        return Priority(shortest=min(lengths), longest=max(lengths))

    @staticmethod
    def read(document: Mapping[str, Any]) -> Priority:
        """Return the answer that a worker sent as JSON."""
        return Priority.from_json(document)


def _least_length(points: Array) -> float:
    """Return half the median distance of points to their neighbours; equal points count once.

    With a much shorter length no two points are alike, the likelihood is flat, and a search
    that begins there stays there.
    """
    # In a discrete space points repeat. With distances of 0 the least scatter between repeats
    # would have a length near 0, and a priority above that of any other model.
    points = np.unique(points, axis=0)
    distances = np.sqrt(((points[:, None] - points) ** 2).sum(axis=2))
    np.fill_diagonal(distances, np.inf)
    return min(max(float(np.median(distances.min(axis=1))) / 2, 1e-3), 1.0)


def spread(items: Sequence[Any]) -> list[Any]:
    """Return at most `MOST_POINTS` of the items, evenly spread, the last among them."""
    if len(items) <= MOST_POINTS:
        return list(items)
    places = np.linspace(0, len(items) - 1, MOST_POINTS).round().astype(int)
    return [items[place] for place in places]


def standardised(losses: Iterable[float], everything: Iterable[float]) -> tuple[float, ...]:
    """Return a model's losses minus their mean, by the standard deviation of all models' losses.

    So the losses of a model that is always equally good, or equally bad, are near 0, and
    priorities of models can be compared. All losses are finite.

    Examples
    --------
    >>> standardised([1.0, 3.0], [1.0, 3.0, 9.0, 11.0])
    (-0.24253562503633297, 0.24253562503633297)
    """
    own, deviation = np.asarray([*losses], float), float(np.std([*everything]))
    centred = own - own.mean()
    return tuple((centred / deviation if deviation > 0 else 0.0 * own).tolist())


def clipped_deviation(losses: Iterable[float], everything: Iterable[float]) -> float:
    """Return the deviation of a model's losses, where bad losses of any model count alike.

    Losses worse than the median of all models' losses count as the median. So a model that is
    always bad has 0, however much its losses vary, and a single huge loss changes nothing. The
    unit is the deviation of all models' losses, after the same. All losses are finite.

    Examples
    --------
    >>> everything = [1.0, 3.0, 5.0, 7.0, 1e9]
    >>> clipped_deviation([1.0, 5.0], everything), clipped_deviation([7.0, 1e9], everything)
    (1.25, 0.0)
    """
    own, pool = np.asarray([*losses], float), np.asarray([*everything], float)
    median = float(np.median(pool))
    scale = float(np.std(np.minimum(pool, median)))
    return float(np.std(np.minimum(own, median))) / scale if scale > 0 else 0.0


def in_unit_cube(point: Mapping[str, Value], domains: Domains) -> tuple[float, ...]:
    """Return a point as numbers from 0 to 1, by the name of the coordinate.

    Numbers go from `low` to `high`, in the logarithm if they are drawn so. A choice has a number
    for each option, so that all options are equally far from each other. A coordinate that the
    point lacks is in the middle.

    Parameters
    ----------
    point
        Values by coordinate.
    domains
        The domains of all coordinates.
    """
    numbers: list[float] = []
    for name in sorted(domains):
        domain = domain_of(domains[name])
        if isinstance(domain, Choice):
            near = [name in point and label == point[name] for label in domain.labels]
            numbers += [math.sqrt(0.5) * each for each in near]
            continue
        value = point.get(name)
        if not isinstance(value, int | float):
            numbers.append(0.5)
            continue
        low, at, high = (
            (math.log(each) if domain.log else float(each))
            for each in (domain.low, value, domain.high)
        )
        numbers.append((at / 2 - low / 2) / (high / 2 - low / 2))  # halves do not overflow
    return tuple(numbers)

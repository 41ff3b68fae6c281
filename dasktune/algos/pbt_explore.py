"""Exploring: changing a configuration a little, as population based training does."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from fractions import Fraction

import numpy as np

from dasktune.errors import ConfigurationError, refuse, unknown
from dasktune.space import Branch, Choice, Domain, Family, Float, Int, Space
from dasktune.space.define_by_run import AnySpace
from dasktune.types import Value


class Exploring:
    """A chooser of coordinates near those of a point.

    Each coordinate is, with probability `resample`, drawn from its domain again. Otherwise a
    number is multiplied by one of `factors` and taken to the nearest point of its domain,
    and a choice moves to one of the options beside it. A stepped number that rounding would
    leave where it was moves by one step. A choice between options with coordinates of
    their own stays as it was. Coordinates that the point lacks, or has outside their domain,
    are drawn: a space that a function defines may have other coordinates for other values.

    Parameters
    ----------
    point
        Values by coordinate.
    rng
        Decides the draws.
    factors
        Factors for numbers, equally likely.
    resample
        The probability that a coordinate is drawn again.
    fixed
        Coordinates that stay as they were.

    References
    ----------
    Li et al., "A System for Massively Parallel Hyperparameter Tuning", appendix A.3.
    """

    def __init__(
        self,
        point: Mapping[str, Value],
        rng: np.random.Generator,
        *,
        factors: tuple[float, ...],
        resample: float,
        fixed: Collection[str] = (),
    ) -> None:
        self._point = point
        self._rng = rng
        self._factors = factors
        self._resample = resample
        self._fixed = fixed

    def number(self, name: str, domain: Float | Int) -> float | int:
        """Return a point of `domain` near the inherited one."""
        value = self._point.get(name)
        if not isinstance(value, int | float) or value not in domain:
            return domain.draw(self._rng)
        if name in self._fixed:
            return value
        if self._rng.random() < self._resample:
            return domain.draw(self._rng)
        return perturbed(value, domain, self._factors[self._index(len(self._factors))])

    def option(self, name: str, domain: Choice) -> int:
        """Return the position of the inherited option or of one beside it."""
        labels, count = domain.labels, len(domain.options)
        if name not in self._point or self._point[name] not in labels:
            return self._index(count)
        position = labels.index(self._point[name])
        if name in self._fixed or any(isinstance(option, Domain) for option in domain.options):
            return position
        if self._rng.random() < self._resample:
            return self._index(count)
        beside = [near for near in (position - 1, position + 1) if 0 <= near < count]
        return beside[self._index(len(beside))]

    def _index(self, count: int) -> int:
        return int(self._rng.integers(count))


def perturbed(value: float, domain: Float | Int, factor: float) -> float | int:
    """Return the point of `domain` that is nearest to ``value * factor``.

    In a stepped domain it is the next point in that direction if `value` itself is nearest.

    Examples
    --------
    >>> perturbed(0.5, Float(0.0, 0.55), 1.2), perturbed(100, Int(1, 200), 0.8)
    (0.55, 80)
    >>> perturbed(2, Int(1, 8), 1.2), perturbed(1, Int(1, 8), 0.8)
    (3, 1)
    """
    moved = _nearest(value * factor, domain)
    if moved != value or domain.step is None:
        return moved
    # A negative number grows downwards.
    up = (factor > 1) == (value >= 0)
    return _nearest(value + domain.step if up else value - domain.step, domain)


def _nearest(value: float, domain: Float | Int) -> float | int:
    inside = min(max(value, domain.low), domain.high)
    if domain.step is None:
        return inside
    low, step = Fraction(repr(domain.low)), Fraction(repr(domain.step))
    last = (Fraction(repr(domain.high)) - low) // step
    point = low + min(round((Fraction(repr(inside)) - low) / step), last) * step
    return int(point) if isinstance(domain, Int) else float(point)


def coordinates_of(space: Space) -> dict[str, str]:
    """Return the hyper-parameter that each coordinate of a space belongs to.

    Examples
    --------
    >>> optimizer = [Branch("sgd", Space(momentum=Float(0.0, 0.9))), "adam"]
    >>> coordinates_of(Space(lr=Float(0.1, 0.2), optimizer=optimizer))
    {'lr': 'lr', 'optimizer': 'optimizer', 'optimizer.sgd.momentum': 'momentum'}
    """
    return dict(
        pair for name, domain in space.dimensions for pair in _coordinates(name, name, domain)
    )


def _coordinates(path: str, owner: str, domain: Domain) -> Iterator[tuple[str, str]]:
    match domain:
        case Float() | Int() if domain.size != 1:
            yield path, owner
        case Choice():
            if len(domain.options) > 1:
                yield path, owner
            for label, option in zip(domain.labels, domain.options, strict=True):
                if isinstance(option, Domain):
                    yield from _coordinates(f"{path}.{label}", owner, option)
        case Family():
            for argument, inner in domain.arguments:
                yield from _coordinates(f"{path}.{argument}", owner, inner)
        case Branch():
            for name, inner in domain.dimensions:
                yield from _coordinates(f"{path}.{name}", name, inner)


def fixed_coordinates(space: AnySpace, fixed: Collection[str]) -> frozenset[str]:
    """Return the coordinates that `fixed` names: themselves, or by their hyper-parameter.

    The coordinates of a function are unknown before it runs: there names are not checked.

    Raises
    ------
    ConfigurationError
        If a name is neither.
    """
    if isinstance(fixed, str):
        raise ConfigurationError(f"fixed must be a list of names, got {fixed!r}")
    if not isinstance(space, Space):
        return frozenset(fixed)
    coordinates = coordinates_of(space)
    known = dict.fromkeys([*space.names, *coordinates])
    refuse(
        unknown("hyper-parameter or coordinate", name, known) for name in fixed if name not in known
    )
    return frozenset(
        coordinate for coordinate, owner in coordinates.items() if {coordinate, owner} & {*fixed}
    )

"""Candidates for a proposal: new trunks, and early and late changes of known trials."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from dasktune.space import Choice, Configuration, Drawing, Float, Int
from dasktune.space.define_by_run import SpaceLike
from dasktune.types import Value

DRAWN: Final = 128
"""Candidates that are drawn from the whole space for a proposal."""

CHANGED: Final = 128
"""Candidates that are changes of known trials."""

BASES: Final = 12
"""Best trials that candidates change; half of the changes are of any trial."""

LOCAL: Final = 0.5
"""Probability that a changed number stays near the old one."""

NEAR: Final = 0.1
"""Standard deviation of such a change, as a part of the range."""


def different(
    space: SpaceLike,
    drawn: Configuration,
    best_first: Sequence[Mapping[str, Value]],
    rng: np.random.Generator,
) -> Iterable[Configuration]:
    """Return different candidates, those from the whole space first.

    Parameters
    ----------
    space
        The space.
    drawn
        The first candidate.
    best_first
        Points of known trials, those with the least losses first.
    rng
        The generator of the draws.
    """
    every = [drawn, *(space.pick(Drawing(rng)) for _ in range(DRAWN - 1))]
    for place in range(CHANGED if best_first else 0):
        among = best_first[:BASES] if place % 2 else best_first
        base = among[int(rng.integers(len(among)))]
        count = min(len(base), 1 + int(rng.random() < 0.3))
        changed = frozenset(map(str, rng.choice([*base], count, replace=False)))
        every.append(space.pick(Changing(base, changed, rng)))
    return {tuple(each.point.items()): each for each in every}.values()


class Changing:
    """A chooser that changes some coordinates of a point, and keeps the others.

    Parameters
    ----------
    point
        Values by coordinate.
    changed
        The coordinates that are drawn anew.
    rng
        The generator of the draws. Coordinates that the point lacks are drawn, too.
    """

    def __init__(
        self, point: Mapping[str, Value], changed: frozenset[str], rng: np.random.Generator
    ) -> None:
        self._point, self._changed, self._rng = point, changed, rng
        self._drawing = Drawing(rng)

    def number(self, name: str, domain: Float | Int) -> float | int:
        """Return the number of the point, or one near it, or any other."""
        value = self._point.get(name)
        if not isinstance(value, int | float) or value not in domain:
            return self._drawing.number(name, domain)
        if name not in self._changed:
            return value
        if self._rng.random() >= LOCAL:
            return self._drawing.number(name, domain)
        return domain.nearest(self._moved(value, domain))

    def option(self, name: str, domain: Choice) -> int:
        """Return the option of the point, or any."""
        if name in self._changed or name not in self._point:
            return self._drawing.option(name, domain)
        label = self._point[name]
        places = [
            place
            for place, other in enumerate(domain.labels)
            if other == label and type(other) is type(label)
        ]
        return places[0] if places else self._drawing.option(name, domain)

    def _moved(self, value: float, domain: Float | Int) -> float:
        step = NEAR * float(self._rng.normal())
        if domain.log:
            return value * math.exp(step * math.log(domain.high / domain.low))
        return value + step * (domain.high - domain.low)

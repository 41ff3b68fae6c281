"""Configurations as the values that a trainer sees, and how far apart they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dasktune.types import Sequences, Step, Value

Array = NDArray[Any]

MOST_STEPS: Final = 24
"""Steps at which values are compared; of longer trials they are evenly spread."""

_DECADE: Final = 10.0
"""Positive numbers that differ by this factor are compared by their logarithms."""


State = tuple[Sequences, Step]
"""A configuration after so many steps of its training."""


def compared_steps(until: Step, count: int) -> list[Step]:
    """Return `count` steps before `until` at which values are compared, evenly spread.

    Examples
    --------
    >>> compared_steps(3, 3), compared_steps(48, 4), compared_steps(2, 4)
    ([0, 1, 2], [6, 18, 30, 42], [0, 0, 1, 1])
    """
    return [(2 * place + 1) * until // (2 * count) for place in range(count)]


def distances(states: Sequence[State], first: int) -> Array:
    """Return the squared distances of states, early and late, by hyper-parameter.

    Of each state the values before its step count: those at the same part of its training
    are compared. Numbers go from 0 to 1 between the smallest and the largest, in the logarithm
    where they are positive and span a factor of 10. Any other values, and one that is
    missing, have the distance 1 from all others.

    Parameters
    ----------
    states
        The ``n`` states.
    first
        From so many of them the distances to all are returned.

    Returns
    -------
    ``(parts, first, n)``: mean squared distances in the first and in the second half of the
    steps, of each hyper-parameter that differs there; and that of their numbers of
    steps, if they differ.
    """
    count = min(max(until for _, until in states), MOST_STEPS)
    steps = [compared_steps(until, count) for _, until in states]
    halves = [slice(0, count // 2), slice(count // 2, count)][count == 1 :]
    names = sorted({name for sequences, _ in states for name in sequences})
    parts = [
        squared
        for name in names
        for half in halves
        for squared in _squared(
            [
                _values(sequences, name, at[half])
                for (sequences, _), at in zip(states, steps, strict=True)
            ],
            first,
        )
    ]
    parts += _squared([[until] for _, until in states], first)
    return np.array(parts).reshape(-1, first, len(states))


def _values(sequences: Sequences, name: str, steps: list[Step]) -> list[Value]:
    """Return the values at steps; one call for each run of equal values."""
    sequence = sequences.get(name)
    if sequence is None:
        return [_Missing.name] * len(steps)
    values: list[Value] = []
    until: Step | None = 0
    for step in steps:
        if until is not None and step >= until:
            value, until = sequence(step), sequence.constant_until(step)
        values.append(value)
    return values


class _Missing:
    """The value of a hyper-parameter that a configuration lacks."""

    name: Final = "\0missing"


def _squared(rows: list[list[Value]], first: int) -> Iterator[Array]:
    """Yield the mean squared distances of the first rows from all, unless all are equal."""
    numbers, kinds = _coded(rows)
    if np.ptp(numbers) == 0 and np.ptp(kinds) == 0:
        return
    total = np.zeros((first, len(rows)))
    for number, kind in zip(numbers.T, kinds.T, strict=True):
        alike = kind[:first, None] == kind
        total += np.where(alike, (number[:first, None] - number) ** 2, 1.0)
    yield total / numbers.shape[1]


def _coded(rows: list[list[Value]]) -> tuple[Array, Array]:
    """Return values as numbers from 0 to 1, and as kinds: 0 for numbers, one for each other."""
    if {type(value) for row in rows for value in row} <= {int, float}:
        kinds, numbers = np.zeros((len(rows), len(rows[0])), int), np.array(rows, float)
    else:
        others: dict[object, int] = {}
        kinds = np.array([[_kind(value, others) for value in row] for row in rows])
        numbers = np.array(
            [[np.nan if _kind(v, others) else v for v in row] for row in rows], float
        )
    known = numbers[np.isfinite(numbers)]
    if not len(known):
        return np.zeros(numbers.shape), kinds
    if known.min() > 0 and known.max() >= _DECADE * known.min():
        numbers, known = np.log(numbers), np.log(known)
    spread = np.ptp(known)
    scaled = (numbers - known.min()) / spread if spread > 0 else 0.0 * numbers
    return np.where(kinds == 0, scaled, 0.0), kinds


def _kind(value: Value, others: dict[object, int]) -> int:
    """Return 0 for a number, and a number of its own for each other value."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return 0
    return others.setdefault((type(value), value), len(others) + 1)

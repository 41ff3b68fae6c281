"""The checkpoints and metrics of a node, in few bytes: a large study has hundred thousands of them.

A dict of ten reports takes 2.4 kB, and the same reports in two columns 0.4 kB.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, MutableSet
from functools import lru_cache
from heapq import merge
from typing import Any

from dasktune.types import Metrics, Step

_NOTHING: array[Any] = array("d")
"""The columns of all nodes without reports. It is replaced before anything is added."""


class Steps(MutableSet[Step]):
    """Some steps, ascending.

    Parameters
    ----------
    steps
        The steps, in any order.

    Examples
    --------
    >>> steps = Steps([8, 2])
    >>> steps.add(4)
    >>> steps, 4 in steps, 5 in steps
    (Steps([2, 4, 8]), True, False)
    """

    __slots__ = ("_ascending",)

    def __init__(self, steps: Iterable[Step] = ()) -> None:
        self._ascending = tuple(sorted({*steps}))

    def __repr__(self) -> str:
        return f"Steps({[*self]})"

    def __contains__(self, step: object) -> bool:
        if not isinstance(step, int):
            return False
        at = bisect_left(self._ascending, step)
        return self._ascending[at : at + 1] == (step,)

    def __iter__(self) -> Iterator[Step]:
        return iter(self._ascending)

    def __len__(self) -> int:
        return len(self._ascending)

    def add(self, value: Step) -> None:
        """Add a step."""
        if value not in self:
            at = bisect_left(self._ascending, value)
            self._ascending = (*self._ascending[:at], value, *self._ascending[at:])

    def discard(self, value: Step) -> None:
        """Remove a step if it is there."""
        if value in self:
            at = bisect_left(self._ascending, value)
            self._ascending = self._ascending[:at] + self._ascending[at + 1 :]

    def split(self, step: Step) -> tuple[Steps, Steps]:
        """Return the steps up to a step, and those after it."""
        at = bisect_right(self._ascending, step)
        return Steps(self._ascending[:at]), Steps(self._ascending[at:])


class Measured(Mapping[Step, Metrics]):
    """The metrics of some steps, ascending, in two columns: the steps, and the values.

    Each step has the same metrics in the same order; the steps that have others are in another
    pair of columns.

    Parameters
    ----------
    reports
        Steps with their metrics, in any order; the first of a step stands.

    Examples
    --------
    >>> measured = Measured([(2, {"loss": 0.5}), (1, {"loss": 1.0})])
    >>> measured.add(3, {"loss": 0.25, "accuracy": 0.5})
    >>> measured.add(1, {"loss": 7.0})
    >>> measured
    {1: {'loss': 1.0}, 2: {'loss': 0.5}, 3: {'loss': 0.25, 'accuracy': 0.5}}
    """

    __slots__ = ("_names", "_others", "_steps", "_values")

    def __init__(self, reports: Iterable[tuple[Step, Metrics]] = ()) -> None:
        self._names: tuple[str, ...] = ()
        self._steps: array[int] = _NOTHING
        self._values: array[float] = _NOTHING
        self._others: Measured | None = None
        for step, metrics in reports:
            self.add(step, metrics)

    def __repr__(self) -> str:
        return repr(dict(self))

    def __getitem__(self, step: Step) -> Metrics:
        columns = self._holder(step)
        if columns is None:
            raise KeyError(step)
        at, width = bisect_left(columns._steps, step), len(columns._names)
        values = columns._values[at * width : (at + 1) * width]
        return dict(zip(columns._names, values, strict=True))

    def __contains__(self, step: object) -> bool:
        return isinstance(step, int) and self._holder(step) is not None

    def __iter__(self) -> Iterator[Step]:
        return iter(self._steps if self._others is None else merge(self._steps, self._others))

    def __len__(self) -> int:
        return len(self._steps) + (0 if self._others is None else len(self._others))

    def add(self, step: Step, metrics: Metrics) -> None:
        """Add the metrics of a step; those that are known already stand."""
        if self._holder(step) is not None:
            return
        columns = self._columns_of(tuple(metrics))
        at = bisect_left(columns._steps, step)
        columns._steps.insert(at, step)
        at *= len(columns._names)
        columns._values[at:at] = array("d", metrics.values())

    def split(self, step: Step) -> tuple[Measured, Measured]:
        """Return the metrics up to a step, and those after it."""
        reports = [*self.items()]
        return (
            Measured(report for report in reports if report[0] <= step),
            Measured(report for report in reports if report[0] > step),
        )

    def _holder(self, step: Step) -> Measured | None:
        """Return the columns that have a step, if there are any."""
        at = bisect_left(self._steps, step)
        if at < len(self._steps) and self._steps[at] == step:
            return self
        return None if self._others is None else self._others._holder(step)

    def _columns_of(self, names: tuple[str, ...]) -> Measured:
        """Return the columns of the steps that have these metrics, made when first asked for."""
        if not self._steps:
            self._names, self._steps, self._values = _shared(names), array("q"), array("d")
        if names == self._names:
            return self
        if self._others is None:
            self._others = Measured()
        return self._others._columns_of(names)


@lru_cache(maxsize=1000)
def _shared(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of metrics as they were given first: nodes share them."""
    return names

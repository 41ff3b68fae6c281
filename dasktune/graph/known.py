"""The checkpoints and metrics of a node, in few bytes: a study may have 100,000 nodes.

A dict of ten reports takes 2.4 kB, and the same reports in the rows of an array 0.3 kB.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, MutableSet
from functools import lru_cache
from heapq import merge
from typing import cast

from dasktune.types import Metrics, Step

_NO_STEPS = array("q")
"""The steps of all that have none. It is replaced before anything is added."""

_NO_ROWS = array("d")
"""The rows of all nodes without reports. It is replaced before anything is added."""

_NO_OTHERS: dict[Step, Metrics] = {}
"""The `_others` of almost all nodes. It is replaced before anything is added."""


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
        ascending = sorted({*steps})
        self._ascending = array("q", ascending) if ascending else _NO_STEPS

    def __repr__(self) -> str:
        return f"Steps({[*self]})"

    def __contains__(self, step: object) -> bool:
        at = bisect_left(self._ascending, cast(Step, step))
        return at < len(self._ascending) and self._ascending[at] == step

    def __iter__(self) -> Iterator[Step]:
        return iter(self._ascending)

    def __len__(self) -> int:
        return len(self._ascending)

    @property
    def last(self) -> Step | None:
        """The last step, if there is any."""
        return self._ascending[-1] if self._ascending else None

    def add(self, value: Step) -> None:
        """Add a step."""
        steps = self._ascending
        at = bisect_left(steps, value)
        if not steps:
            self._ascending = array("q", (value,))
        elif at == len(steps) or steps[at] != value:
            steps.insert(at, value)

    def discard(self, value: Step) -> None:
        """Remove a step if it is there."""
        if value in self:
            del self._ascending[bisect_left(self._ascending, value)]

    def split(self, step: Step) -> tuple[Steps, Steps]:
        """Return the steps up to a step, and those after it."""
        at = bisect_right(self._ascending, step)
        return Steps(self._ascending[:at]), Steps(self._ascending[at:])


class Measured(Mapping[Step, Metrics]):
    """The metrics of some steps, ascending, in the rows of one array: the step, then its values.

    Almost always each step has the same metrics in the same order. The few steps with others are in
    a dict. Another thread may read while one adds: a row comes as a whole.

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

    __slots__ = ("_names", "_others", "_rows")

    def __init__(self, reports: Iterable[tuple[Step, Metrics]] = ()) -> None:
        self._names: tuple[str, ...] = ()
        self._rows = _NO_ROWS
        self._others = _NO_OTHERS
        for step, metrics in reports:
            self.add(step, metrics)

    def __repr__(self) -> str:
        return repr(dict(self))

    def __getitem__(self, step: Step) -> Metrics:
        rows = self._rows
        at = self._place_of(rows, step)
        if at < len(rows) and rows[at] == step:
            values = rows[at + 1 : at + 1 + len(self._names)]
            return dict(zip(self._names, values, strict=True))
        return self._others[step]

    def __contains__(self, step: object) -> bool:
        rows = self._rows
        at = self._place_of(rows, cast(Step, step))
        return (at < len(rows) and rows[at] == step) or step in self._others

    def __iter__(self) -> Iterator[Step]:
        steps = map(int, self._rows[:: self._width])
        return merge(steps, sorted([*self._others])) if self._others else steps

    def __len__(self) -> int:
        return len(self._rows) // self._width + len(self._others)

    @property
    def last(self) -> Step | None:
        """The last step, if there is any."""
        lasts = [*map(int, self._rows[-self._width :: self._width]), *self._others]
        return max(lasts, default=None)

    @property
    def _width(self) -> int:
        return 1 + len(self._names)

    def _place_of(self, rows: array[float], step: Step) -> int:
        """Return where the first row begins that is at a step or after it."""
        width = self._width
        last = len(rows) - width
        if last < 0 or rows[last] < step:
            return last + width
        if rows[last] == step:  # most questions are about the end
            return last
        return width * bisect_left(range(0, last, width), float(step), key=rows.__getitem__)

    def add(self, step: Step, metrics: Metrics) -> None:
        """Add the metrics of a step; those that are known already stand."""
        rows = self._rows
        at = self._place_of(rows, step)
        if (at < len(rows) and rows[at] == step) or step in self._others:
            return
        names, row = tuple(metrics), array("d", (step, *metrics.values()))
        if not rows:
            self._names = _shared(names)
            self._rows = row
        elif names != self._names:
            if self._others is _NO_OTHERS:
                self._others = {}
            self._others[step] = dict(metrics)
        elif at == len(rows):
            rows.extend(row)
        else:
            self._rows = rows[:at] + row + rows[at:]

    def split(self, step: Step) -> tuple[Measured, Measured]:
        """Return the metrics up to a step, and those after it."""
        reports = [*self.items()]
        return (
            Measured(report for report in reports if report[0] <= step),
            Measured(report for report in reports if report[0] > step),
        )


@lru_cache(maxsize=1000)
def _shared(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of metrics as they were given first: nodes share them."""
    return names

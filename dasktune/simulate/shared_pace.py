"""Simulated devices that several workers share: the more run together, the slower each."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from dasktune._numbers import real_of
from dasktune.traces.timing import Pace
from dasktune.types import Step

Together = Sequence[float] | Mapping[str, Sequence[float]]
"""Steps a second of a device on which 1, 2, 3, ... stages run together, as multiples of those of
one alone; or these by the class of the workers."""


class SharedPace:
    """The pace of a stage whose speed changes while it runs.

    Parameters
    ----------
    first
        The step that it begins from.
    speed
        Share of that pace that it has at first.
    """

    def __init__(self, pace: Pace, first: Step, speed: float) -> None:
        self.least = pace.least
        self._pace = pace
        self._first = first
        self._bends = [(0.0, 0.0, speed)]
        """The seconds that were needed alone, those that had passed, and the speed from then on."""

    def between(self, first: Step, last: Step) -> float:
        """Return the seconds from the state after `first` steps to that after `last`."""
        return self._passed(last) - self._passed(first)

    def slower(self, factor: float) -> SharedPace:
        """Return the pace with every step `factor` times as long."""
        return SharedPace(self._pace.slower(factor), self._first, self._bends[-1][2])

    def bend(self, passed: float, speed: float) -> None:
        """Change the speed once some seconds have passed."""
        alone, before, last = self._bends[-1]
        if passed <= before:
            self._bends[-1] = alone, before, speed
        else:
            self._bends.append((alone + (passed - before) * last, passed, speed))

    def _passed(self, step: Step) -> float:
        alone = self._pace.between(self._first, step)
        at = max(0, bisect_right(self._bends, alone, key=itemgetter(0)) - 1)
        needed, passed, speed = self._bends[at]
        return passed + (alone - needed) / speed


@dataclass(slots=True)
class SharedDevice:
    """A simulated device of several workers.

    Parameters
    ----------
    total
        Steps a second with 1, 2, 3, ... stages together, as multiples of those of one alone.
    running
        The paces of the stages that run there, and when each began its first step, by worker.
    """

    name: str
    total: Sequence[float]
    running: dict[str, tuple[SharedPace, float]] = field(default_factory=dict)

    @property
    def speed(self) -> float:
        """Share of its pace alone that each stage has now."""
        together = max(1, len(self.running))
        return self.total[together - 1] / together

    def begin(self, worker: str, pace: SharedPace, at: float, now: float) -> None:
        """Add a stage, whose first step begins at a time."""
        self.running[worker] = pace, at
        self._bend(now)

    def end(self, worker: str, now: float) -> None:
        """Remove the stage of a worker."""
        if self.running.pop(worker, None) is not None:
            self._bend(now)

    def _bend(self, now: float) -> None:
        for pace, began in self.running.values():
            pace.bend(now - began, self.speed)


def together_problems(together: object, workers: object) -> list[str]:
    """Return the reasons why devices cannot be shared so."""
    if together is None:
        return []
    by_class = together if isinstance(together, Mapping) else {"": together}
    problems = []
    for kind, total in by_class.items():
        if isinstance(together, Mapping) and not (isinstance(workers, Mapping) and kind in workers):
            problems.append(f"together must be of classes of the workers, got {kind!r}")
        elif not _is_curve(total):
            problems.append(
                "together must be numbers > 0 of which the first is 1, such as (1.0, 1.7, 2.1), "
                f"got {total!r}"
            )
    return problems


def totals_of(together: Together | None, kind: str) -> tuple[float, ...]:
    """Return the steps a second of a device of a class; those of one alone if it is not shared."""
    total = together.get(kind) if isinstance(together, Mapping) else together
    return (1.0,) if total is None else tuple(map(real_of, total))


def _is_curve(total: object) -> bool:
    if not isinstance(total, list | tuple) or not total or total[0] != 1:
        return False
    return all(0 < real_of(each) < math.inf for each in total)

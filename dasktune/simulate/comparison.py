"""Tuners side by side: the same curves, conditions and numbers of workers, several seeds."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dasktune.algos.base import Tuner
from dasktune.simulate.incumbents import Incumbent
from dasktune.simulate.result import Simulation
from dasktune.simulate.run import Curves, objective_on, simulate
from dasktune.traces.trace import Trace
from dasktune.types import Direction


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How a figure spreads over repeats: what a box plot shows. None is never, or nothing.

    Attributes
    ----------
    mean
        None if one of them is.
    median, low, high
        The middle, the least and the greatest.
    q1, q3
        The quartiles, interpolated between neighbours.
    """

    mean: float | None
    median: float | None
    low: float | None
    q1: float | None
    q3: float | None
    high: float | None

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread:
        """Return the spread of some values, where None is larger than all others.

        Examples
        --------
        >>> Spread.of([3, None, 1])
        Spread(mean=None, median=3, low=1, q1=2.0, q3=None, high=None)
        """
        found = sorted(math.inf if value is None else value for value in values)
        return cls(
            mean=_finite(statistics.fmean(found)),
            median=_finite(statistics.median(found)),
            low=_finite(found[0]),
            q1=_finite(_quantile(found, 0.25)),
            q3=_finite(_quantile(found, 0.75)),
            high=_finite(found[-1]),
        )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _quantile(ordered: Sequence[float], share: float) -> float:
    at = (len(ordered) - 1) * share
    low, high = ordered[math.floor(at)], ordered[math.ceil(at)]
    return low if low == high else low + (high - low) * (at - math.floor(at))


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """What a simulation came to.

    Attributes
    ----------
    incumbents
        As the simulation's.
    best
        The last of their values; None if there is none.
    seconds, steps
        What it took in all.
    seconds_to, steps_to
        What it took to the target; None if it was not reached, or there is none.
    completed
        How many trials were trained in full.
    """

    incumbents: tuple[Incumbent, ...]
    best: float | None
    seconds: float
    steps: int
    seconds_to: float | None
    steps_to: int | None
    completed: int

    @classmethod
    def of(cls, found: Simulation, target: float | None) -> Repeat:
        """Return what is kept of a simulation."""
        reached = None if target is None else found.reached(target)
        return cls(
            incumbents=tuple(found.incumbents),
            best=found.incumbents[-1].value if found.incumbents else None,
            seconds=found.seconds,
            steps=found.steps_executed,
            seconds_to=None if reached is None else reached.seconds,
            steps_to=None if reached is None else reached.steps,
            completed=len(found.completed),
        )

    def best_by(self, seconds: float) -> float | None:
        """Return the best value known by then."""
        known = [one.value for one in self.incumbents if one.seconds <= seconds]
        return known[-1] if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The simulations of one tuner on so many workers."""

    name: str
    workers: int
    direction: Direction
    repeats: tuple[Repeat, ...]

    def spread(self, figure: str) -> Spread:
        """Return the spread of an attribute of `Repeat` that is a number."""
        return Spread.of(getattr(one, figure) for one in self.repeats)

    @property
    def reached(self) -> int:
        """How many repeats reached the target."""
        return sum(one.seconds_to is not None for one in self.repeats)

    def times(self, first: Compared, figure: str) -> tuple[float | None, float | None]:
        """Return how many times as much as the `first` a figure is, by means and by medians.

        None where one of them is never, or 0.
        """
        mine, theirs = self.spread(figure), first.spread(figure)
        mean, median = (
            a / b if a is not None and b else None
            for a, b in ((mine.mean, theirs.mean), (mine.median, theirs.median))
        )
        return mean, median

    def median_line(self) -> list[tuple[float, float]]:
        """Return the median of the best values by time, from when most repeats have one."""
        times = sorted({one.seconds for repeat in self.repeats for one in repeat.incumbents})
        sign = -1 if self.direction is Direction.MAXIMIZE else 1
        found: list[tuple[float, float]] = []
        for at in times:
            values = [repeat.best_by(at) for repeat in self.repeats]
            losses = (None if value is None else sign * value for value in values)
            median = Spread.of(losses).median
            if median is not None and (not found or found[-1][1] != sign * median):
                found.append((at, sign * median))
        return found


def compare(
    tuners: Mapping[str, Callable[[int], Tuner]],
    curves: Curves,
    *,
    workers: int | Iterable[int] = 1,
    repeats: int = 5,
    target: float | None = None,
    seed: int = 0,
    metric: str | None = None,
    direction: str | Direction | None = None,
    **conditions: Any,
) -> list[Compared]:
    """Return how each tuner does under the same conditions, for each number of workers.

    Parameters
    ----------
    tuners
        By name: makes the tuner, given the seed of a repeat.
    curves, metric, direction
        As for `simulate`.
    workers
        How many simulated workers; several numbers are compared one after the other.
    repeats
        How often each is simulated, with seeds from `seed` on, which also decide who
        straggles and what is dropped.
    target
        A value of the metric, to measure the time and the steps until it is known.
    conditions
        More of `simulate`'s arguments.

    Examples
    --------
    >>> import dasktune as dt
    >>> space = dt.Space(lr=dt.Float(0.0, 1.0))
    >>> (found,) = compare(
    ...     {"random": lambda seed: dt.algos.Random(space, trials=4, max_steps=8, seed=seed)},
    ...     lambda values, step: values["lr"] + 1 / step,
    ...     repeats=3,
    ... )
    >>> found.spread("steps").median
    32
    """
    if isinstance(curves, str | os.PathLike):
        curves = Trace.load(curves)
    (towards,) = objective_on(curves, metric, direction).directions

    def run(make: Callable[[int], Tuner], capacity: int, one: int) -> Repeat:
        found = simulate(
            make(one),
            curves,
            workers=capacity,
            seed=one,
            metric=metric,
            direction=towards,
            **conditions,
        )
        return Repeat.of(found, target)

    return [
        Compared(
            name=name,
            workers=capacity,
            direction=towards,
            repeats=tuple(run(make, capacity, one) for one in range(seed, seed + repeats)),
        )
        for capacity in ([workers] if isinstance(workers, int) else workers)
        for name, make in tuners.items()
    ]

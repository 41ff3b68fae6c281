"""Comparisons of tuners: equal curves, conditions and numbers of workers, several seeds."""

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
    """The distribution of a figure over repeats, as in a box plot (never: None).

    Attributes
    ----------
    mean
        The mean; None if a value is None.
    median, low, high
        The median, the least and the greatest value.
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
        ordered = sorted(math.inf if value is None else value for value in values)
        return cls(
            mean=_finite(statistics.fmean(ordered)),
            median=_finite(statistics.median(ordered)),
            low=_finite(ordered[0]),
            q1=_finite(_quantile(ordered, 0.25)),
            q3=_finite(_quantile(ordered, 0.75)),
            high=_finite(ordered[-1]),
        )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _quantile(ordered: Sequence[float], share: float) -> float:
    at = (len(ordered) - 1) * share
    low, high = ordered[math.floor(at)], ordered[math.ceil(at)]
    return low if low == high else low + (high - low) * (at - math.floor(at))


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """The result of a simulation, without its trials.

    Attributes
    ----------
    best
        The last of their values, or None.
    seconds, steps
        Total virtual time and steps.
    seconds_to, steps_to
        Virtual time and steps to the target; None if it was not reached or not given.
    completed
        Number of trials that reached their `max_steps`.
    """

    incumbents: tuple[Incumbent, ...]
    best: float | None
    seconds: float
    steps: int
    seconds_to: float | None
    steps_to: int | None
    completed: int

    @classmethod
    def of(cls, simulation: Simulation, target: float | None) -> Repeat:
        """Return the result of a simulation."""
        reached = None if target is None else simulation.reached(target)
        return cls(
            incumbents=tuple(simulation.incumbents),
            best=simulation.incumbents[-1].value if simulation.incumbents else None,
            seconds=simulation.seconds,
            steps=simulation.steps_executed,
            seconds_to=None if reached is None else reached.seconds,
            steps_to=None if reached is None else reached.steps,
            completed=len(simulation.completed),
        )

    def best_by(self, seconds: float) -> float | None:
        """Return the best value known by a virtual time."""
        known = [each.value for each in self.incumbents if each.seconds <= seconds]
        return known[-1] if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The simulations of one tuner on one number of workers."""

    name: str
    workers: int
    direction: Direction
    repeats: tuple[Repeat, ...]

    def spread(self, figure: str) -> Spread:
        """Return the spread of an attribute of `Repeat` that is a number."""
        return Spread.of(getattr(repeat, figure) for repeat in self.repeats)

    @property
    def reached(self) -> int:
        """How many repeats reached the target."""
        return sum(repeat.seconds_to is not None for repeat in self.repeats)

    def times(self, first: Compared, figure: str) -> tuple[float | None, float | None]:
        """Return the ratios of a figure to that of `first`: of the means, and of the medians.

        None where the figure is never reached, or where that of `first` is 0.
        """
        own, base = self.spread(figure), first.spread(figure)
        mean, median = (
            a / b if a is not None and b else None
            for a, b in ((own.mean, base.mean), (own.median, base.median))
        )
        return mean, median

    def median_line(self) -> list[tuple[float, float]]:
        """Return the median of the best values by time, from when most repeats have a value."""
        times = sorted({each.seconds for repeat in self.repeats for each in repeat.incumbents})
        sign = -1 if self.direction is Direction.MAXIMIZE else 1
        line: list[tuple[float, float]] = []
        for at in times:
            values = [repeat.best_by(at) for repeat in self.repeats]
            losses = (None if value is None else sign * value for value in values)
            median = Spread.of(losses).median
            if median is not None and (not line or line[-1][1] != sign * median):
                line.append((at, sign * median))
        return line


def compare(
    tuners: Mapping[str, Callable[[int], Tuner]],
    curves: Curves,
    *,
    workers: int | Mapping[str, int] | Iterable[int | Mapping[str, int]] = 1,
    repeats: int = 5,
    target: float | None = None,
    seed: int = 0,
    metric: str | None = None,
    direction: str | Direction | None = None,
    **conditions: Any,
) -> list[Compared]:
    """Compare tuners under the same conditions, for each number of workers.

    Parameters
    ----------
    tuners
        Functions by name that make a tuner from the seed of a repeat.
    curves, metric, direction
        As for `simulate`.
    workers
        Number of simulated workers, or their numbers by class; or several of these.
    repeats
        Number of simulations of each tuner, with seeds from `seed` on, which also decide about
        stragglers and drops.
    target
        A value of the metric, to measure the time and the steps until it is known.
    conditions
        Further arguments of `simulate`.

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

    pools: Iterable[int | Mapping[str, int]] = (
        [workers] if isinstance(workers, int | Mapping) else workers
    )

    def run(make: Callable[[int], Tuner], pool: int | Mapping[str, int], seed: int) -> Repeat:
        simulation = simulate(
            make(seed),
            curves,
            workers=pool,
            seed=seed,
            metric=metric,
            direction=towards,
            **conditions,
        )
        return Repeat.of(simulation, target)

    return [
        Compared(
            name=name,
            workers=sum(pool.values()) if isinstance(pool, Mapping) else pool,
            direction=towards,
            repeats=tuple(run(make, pool, each) for each in range(seed, seed + repeats)),
        )
        for pool in pools
        for name, make in tuners.items()
    ]

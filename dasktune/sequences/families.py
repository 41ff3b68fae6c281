"""The families of sequences: piecewise constant ones, and ones that change at every step.

``t`` is the step, counted from 0. Each formula is computed in the written order of operations
with Python floats, so a value is the same to the last bit on every machine. Only the piecewise
constant families keep integers.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, cast

from dasktune.errors import ConfigurationError
from dasktune.sequences.core import Sequence
from dasktune.sequences.values import Arguments
from dasktune.types import Step, Value


def _between(steps: tuple[Step, ...], start: Step, stop: Step) -> tuple[Step, ...]:
    """Return the sorted `steps` that lie strictly between `start` and `stop`."""
    return steps[bisect_right(steps, start) : bisect_left(steps, stop)]


def _after(steps: tuple[Step, ...], step: Step) -> Step | None:
    """Return the first of the sorted `steps` that is later than `step`, if any."""
    index = bisect_right(steps, step)
    return steps[index] if index < len(steps) else None


@dataclass(frozen=True, slots=True, eq=False, repr=False, init=False)
class Piecewise(Sequence):
    """Constant pieces: ``f(t) = values[i]``, where ``i`` is the number of boundaries <= t.

    It never ends.

    Parameters
    ----------
    values
        Values of any plain type, which is kept; one more than there are boundaries.
    boundaries
        Steps at which the next value begins, strictly increasing from 1 on.

    Attributes
    ----------
    levels, changes
        The values and boundaries, without boundaries between equal values.

    Examples
    --------
    >>> Piecewise([64, 128], boundaries=[2]).values(0, 4)
    [64, 64, 128, 128]
    """

    levels: tuple[Value, ...]
    changes: tuple[Step, ...]

    listed: ClassVar[frozenset[str]] = frozenset({"values", "boundaries"})

    def __init__(self, values: Iterable[Value], boundaries: Iterable[Step]) -> None:
        check = Arguments("Piecewise")
        is_single = isinstance(values, str) or not isinstance(values, Iterable)
        items = (values,) if is_single else tuple(values)
        levels = tuple(check.plain("values", items))
        changes = check.rising("boundaries", boundaries)
        if not check.problems and len(levels) != len(changes) + 1:
            check.add(
                f"values must be one more than boundaries, got {len(levels)} values "
                f"and {len(changes)} boundaries"
            )
        check.refuse()
        object.__setattr__(self, "levels", levels)
        object.__setattr__(self, "changes", changes)

    def arguments(self) -> dict[str, object]:
        """Return the arguments that construct it, by name."""
        return {"values": self.levels, "boundaries": self.changes}

    def formula(self, step: Step) -> Value:
        """Return the value of the piece at `step`."""
        return self.levels[bisect_right(self.changes, step)]

    def constant_until(self, step: Step) -> int | None:
        """Return the next boundary."""
        return _after(self.changes, step)

    def boundaries(self, start: Step, stop: Step) -> tuple[Step, ...]:
        """Return the boundaries strictly between `start` and `stop`."""
        return _between(self.changes, start, stop)


@dataclass(frozen=True, slots=True, eq=False, repr=False, init=False)
class MultiStep(Sequence):
    """A factor at each milestone: ``f(t) = init * gamma**k``, k = number of milestones <= t.

    It never ends. With an integer `init` the values are integers if all of them are whole,
    otherwise floats.

    Parameters
    ----------
    init
        Value at step 0.
    milestones
        Steps at which the value is multiplied by `gamma`, strictly increasing from 1 on.
    gamma
        Factor.

    Attributes
    ----------
    levels
        The value from step 0 on, and from each milestone on.

    Examples
    --------
    >>> MultiStep(0.5, milestones=[1, 3], gamma=0.5).values(0, 4)
    [0.5, 0.25, 0.25, 0.125]
    >>> MultiStep(64, milestones=[2], gamma=2).values(0, 3)
    [64, 64, 128]
    """

    init: int | float
    milestones: tuple[Step, ...]
    gamma: int | float
    levels: tuple[int | float, ...] = field(init=False)

    listed: ClassVar[frozenset[str]] = frozenset({"milestones"})

    def __init__(self, init: float, milestones: Iterable[Step], gamma: float) -> None:
        check = Arguments("MultiStep")
        first, factor = check.number("init", init), check.number("gamma", gamma)
        steps = check.rising("milestones", milestones)
        check.refuse()
        object.__setattr__(self, "init", first)
        object.__setattr__(self, "milestones", steps)
        object.__setattr__(self, "gamma", factor)
        object.__setattr__(self, "levels", self._levels())

    def formula(self, step: Step) -> Value:
        """Return ``init * gamma**k``."""
        return self.levels[bisect_right(self.milestones, step)]

    def constant_until(self, step: Step) -> int | None:
        """Return the next milestone."""
        return _after(self.milestones, step)

    def boundaries(self, start: Step, stop: Step) -> tuple[Step, ...]:
        """Return the milestones strictly between `start` and `stop`."""
        return _between(self.milestones, start, stop)

    def _levels(self) -> tuple[int | float, ...]:
        levels = [self._level(count) for count in range(len(self.milestones) + 1)]
        if isinstance(self.init, int) and all(value == int(value) for value in levels):
            return tuple(int(value) for value in levels)
        return tuple(float(value) for value in levels)

    def _level(self, count: int) -> int | float:
        try:
            value: int | float = self.init * self.gamma**count
            overflows = not math.isfinite(value)
        except (OverflowError, ZeroDivisionError):
            overflows = True
        if overflows:
            raise ConfigurationError(f"{self!r} overflows at step {(0, *self.milestones)[count]}")
        return value


class _Changing(Sequence):
    """A family whose value changes at every step."""

    __slots__ = ()

    @abstractmethod
    def formula(self, step: Step) -> float:
        """Return the value at `step`; does not check the step or the value."""

    def constant_until(self, step: Step) -> int:
        """Return the next step."""
        return step + 1

    def _stretch(self, start: Step, stop: Step) -> list[Value]:
        values = self._curve(range(start, stop))
        if not all(map(math.isfinite, values)):
            raise OverflowError
        return cast(list[Value], values)

    @abstractmethod
    def _curve(self, steps: range) -> list[float]:
        """Return the values at consecutive steps: `formula` at each, without its calls.

        Keys of long curves need every value: the written out loops take a third of the time.
        """


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Linear(_Changing):
    """A straight line: ``f(t) = init * (1 - w) + final * w`` with ``w = t / period``.

    It is `init` at step 0 and ends at `period`, where it would reach `final`.

    Parameters
    ----------
    init, final
        Values at step 0 and at step `period`.
    period
        Number of steps.

    Examples
    --------
    >>> Linear(1.0, 0.0, period=4).values(0, 4)
    [1.0, 0.75, 0.5, 0.25]
    """

    init: float
    final: float
    period: Step

    positional: ClassVar[int] = 2

    def __post_init__(self) -> None:
        check = Arguments("Linear")
        object.__setattr__(self, "init", check.real("init", self.init))
        object.__setattr__(self, "final", check.real("final", self.final))
        object.__setattr__(self, "period", check.whole("period", self.period))
        check.refuse()

    @property
    def end(self) -> int:
        """The period."""
        return self.period

    def formula(self, step: Step) -> float:
        """Return ``init * (1 - w) + final * w``."""
        w = step / self.period
        return self.init * (1 - w) + self.final * w

    def _curve(self, steps: range) -> list[float]:
        init, final, period = self.init, self.final, self.period
        return [init * (1 - (w := step / period)) + final * w for step in steps]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Exponential(_Changing):
    """A factor at every step: ``f(t) = init * gamma**t``, without an end.

    Parameters
    ----------
    init
        Value at step 0.
    gamma
        Factor from each step to the next.

    Examples
    --------
    >>> Exponential(1.0, gamma=0.5).values(0, 4)
    [1.0, 0.5, 0.25, 0.125]
    """

    init: float
    gamma: float

    def __post_init__(self) -> None:
        check = Arguments("Exponential")
        object.__setattr__(self, "init", check.real("init", self.init))
        object.__setattr__(self, "gamma", check.real("gamma", self.gamma))
        check.refuse()

    def formula(self, step: Step) -> float:
        """Return ``init * gamma**t``."""
        return float(self.init * self.gamma**step)

    def _curve(self, steps: range) -> list[float]:
        init, gamma = self.init, self.gamma
        return [init * gamma**step for step in steps]


def _cosine(step: Step, init: float, period: Step, final: float) -> float:
    w = (1 + math.cos(math.pi * step / period)) / 2
    return init * w + final * (1 - w)


def _cosines(steps: Iterable[Step], init: float, period: Step, final: float) -> list[float]:
    """Return `_cosine` at each of the steps."""
    cos, pi = math.cos, math.pi
    return [init * (w := (1 + cos(pi * step / period)) / 2) + final * (1 - w) for step in steps]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Cosine(_Changing):
    """Half a cosine wave: ``f(t) = init * w + final * (1 - w)``.

    Here ``w = (1 + cos(pi * t / period)) / 2``. It is `init` at step 0 and ends at `period`,
    where it would reach `final`.

    Parameters
    ----------
    init
        Value at step 0.
    period
        Number of steps.
    final
        Value it falls or rises to.

    Examples
    --------
    >>> [round(value, 3) for value in Cosine(1.0, period=4).values(0, 4)]
    [1.0, 0.854, 0.5, 0.146]

    References
    ----------
    Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", eq. 5.
    """

    init: float
    period: Step
    final: float = 0.0

    def __post_init__(self) -> None:
        check = Arguments("Cosine")
        object.__setattr__(self, "init", check.real("init", self.init))
        object.__setattr__(self, "period", check.whole("period", self.period))
        object.__setattr__(self, "final", check.real("final", self.final))
        check.refuse()

    @property
    def end(self) -> int:
        """The period."""
        return self.period

    def formula(self, step: Step) -> float:
        """Return ``init * w + final * (1 - w)``."""
        return _cosine(step, self.init, self.period, self.final)

    def _curve(self, steps: range) -> list[float]:
        return _cosines(steps, self.init, self.period, self.final)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class WarmRestarts(_Changing):
    """Repeated `Cosine`: ``f(t) = Cosine(init, period, final)(t mod period)``.

    It never ends.

    Parameters
    ----------
    init
        Value at step 0 and at every restart.
    period
        Number of steps from one restart to the next.
    final
        Value it falls or rises to before each restart.

    Examples
    --------
    >>> [round(value, 3) for value in WarmRestarts(1.0, period=2).values(0, 4)]
    [1.0, 0.5, 1.0, 0.5]

    References
    ----------
    Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", eq. 5.
    """

    init: float
    period: Step
    final: float = 0.0

    def __post_init__(self) -> None:
        check = Arguments("WarmRestarts")
        object.__setattr__(self, "init", check.real("init", self.init))
        object.__setattr__(self, "period", check.whole("period", self.period))
        object.__setattr__(self, "final", check.real("final", self.final))
        check.refuse()

    def formula(self, step: Step) -> float:
        """Return the cosine at the step since the last restart."""
        return _cosine(step % self.period, self.init, self.period, self.final)

    def _curve(self, steps: range) -> list[float]:
        period = self.period
        return _cosines([step % period for step in steps], self.init, period, self.final)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Cyclic(_Changing):
    """Up and down in straight lines: ``f(t) = low * (1 - w) + high * w``.

    With ``p = t mod (2 * half_period)``, ``w = p / half_period`` on the way up and
    ``w = (2 * half_period - p) / half_period`` on the way down. It never ends.

    Parameters
    ----------
    low, high
        Values at step 0 and at step `half_period`.
    half_period
        Number of steps from `low` to `high`.

    Examples
    --------
    >>> Cyclic(0.0, 1.0, half_period=2).values(0, 5)
    [0.0, 0.5, 1.0, 0.5, 0.0]

    References
    ----------
    Smith, "Cyclical Learning Rates for Training Neural Networks", section 3.2.
    """

    low: float
    high: float
    half_period: Step

    positional: ClassVar[int] = 2

    def __post_init__(self) -> None:
        check = Arguments("Cyclic")
        object.__setattr__(self, "low", check.real("low", self.low))
        object.__setattr__(self, "high", check.real("high", self.high))
        object.__setattr__(self, "half_period", check.whole("half_period", self.half_period))
        check.refuse()

    def formula(self, step: Step) -> float:
        """Return ``low * (1 - w) + high * w``."""
        position = step % (2 * self.half_period)
        w = min(position, 2 * self.half_period - position) / self.half_period
        return self.low * (1 - w) + self.high * w

    def _curve(self, steps: range) -> list[float]:
        low, high, half = self.low, self.high, self.half_period
        positions = [step % (2 * half) for step in steps]
        return [
            low * (1 - (w := min(position, 2 * half - position) / half)) + high * w
            for position in positions
        ]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Warmup(_Changing):
    """A rise to `target` in `n` steps: ``f(t) = target * (t + 1) / n``. It ends at `n`.

    Parameters
    ----------
    n
        Number of steps.
    target
        Value it reaches at step ``n - 1``.

    Examples
    --------
    >>> Warmup(4, 1.0).values(0, 4)
    [0.25, 0.5, 0.75, 1.0]
    >>> Warmup(5, 0.1) >> Exponential(0.1, gamma=0.95)
    Warmup(5, 0.1) >> Exponential(0.1, gamma=0.95)

    References
    ----------
    Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", section 2.2.
    """

    n: Step
    target: float

    positional: ClassVar[int] = 2

    def __post_init__(self) -> None:
        check = Arguments("Warmup")
        object.__setattr__(self, "n", check.whole("n", self.n))
        object.__setattr__(self, "target", check.real("target", self.target))
        check.refuse()

    @property
    def end(self) -> int:
        """`n`."""
        return self.n

    def formula(self, step: Step) -> float:
        """Return ``target * (t + 1) / n``."""
        return self.target * (step + 1) / self.n

    def _curve(self, steps: range) -> list[float]:
        n, target = self.n, self.target
        return [target * (step + 1) / n for step in steps]

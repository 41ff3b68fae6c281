"""The goal of a study: a target, its time, and the metrics that end it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from dasktune._numbers import real_of
from dasktune.algos.stopping import checked_sides
from dasktune.sequences.values import Arguments
from dasktune.types import Direction, Metrics

UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
"""Seconds of each unit of time."""

LONGEST = 1e12
"""Seconds; more than 30,000 years are for ever."""

Range = tuple[float | None, float | None]
"""Least and most; None where there is no bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A target and its limits, as scores: larger is better, whatever the metric's direction.

    Parameters
    ----------
    target
        The score to reach; None for the best there is.
    low, high
        The range of scores; None where there is no bound.
    kill
        A trial with a lower score is ended; None if there is no such threshold.
    crash
        A trial that has been better, and no longer is, is ended; None if there is no such
        threshold.
    """

    target: float | None
    low: float | None
    high: float | None
    kill: float | None
    crash: float | None = None

    @property
    def ending_the_best(self) -> list[str]:
        """The thresholds of a goal of scores that would end a trial which reaches the target."""
        thresholds = {"kill": self.kill, "crash": self.crash}
        return [
            name
            for name, threshold in thresholds.items()
            if threshold is not None and self.target is not None and threshold >= self.target
        ]

    def turned(self, direction: Direction) -> Goal:
        """Return the goal as scores; this one is in the unit of a metric of that direction."""
        if direction is Direction.MAXIMIZE:
            return self
        given = (self.target, self.kill, self.crash, self.high, self.low)
        target, kill, crash, low, high = (None if value is None else -value for value in given)
        return replace(self, target=target, low=low, high=high, kill=kill, crash=crash)


def goal_of(
    check: Arguments, target: object, bounds: object, kill: object, crash: object = None
) -> Goal:
    """Return the goal of these arguments, in the metric's own unit; `check` keeps problems."""
    given = {"target": target, "kill": kill, "crash": crash}
    values = {
        name: None if value is None else check.real(name, value) for name, value in given.items()
    }
    low, high = checked_sides(check, bounds)
    for name, value in values.items():
        if value is None:
            continue
        if (low is not None and value < low) or (high is not None and value > high):
            check.add(f"{name} must lie within the bounds, {low} to {high}, got {value:g}")
    return Goal(low=low, high=high, **values)


def seconds_in(check: Arguments, name: str, time: object) -> float:
    """Return a time in seconds: a number, or a text such as "90s", "30min", "8h" or "1.5d".

    `check` keeps the problems. None is for ever.

    Examples
    --------
    >>> seconds_in(Arguments("POP"), "within", "8h")
    28800.0
    """
    if time is None:
        return math.inf
    number = real_of(time)
    if isinstance(time, str):
        text = re.fullmatch(rf"\s*(\d+(?:\.\d*)?)\s*({'|'.join(UNITS)})\s*", time)
        number = float(text[1]) * UNITS[text[2]] if text else math.nan
    if 0 < number <= LONGEST:
        return number
    units = ", ".join(UNITS)
    check.add(f"{name} must be seconds > 0, or a number with one of {units}, got {time!r}")
    return math.inf


def ranges_in(check: Arguments, name: str, ranges: object) -> dict[str, Range]:
    """Return ranges of metrics by name; `check` keeps the problems."""
    if ranges is None:
        return {}
    if not isinstance(ranges, Mapping):
        check.add(f"{name} must be ranges of metrics by name, got {ranges!r}")
        return {}
    checked: dict[str, Range] = {}
    for metric, given in ranges.items():
        match given:
            case (int() | float() | None as least, int() | float() | None as most) if _is_range(
                least, most
            ):
                checked[str(metric)] = (least, most)
            case _:
                check.add(
                    f"{name}: {metric} must be (least, most) with finite values between, None "
                    f"where there is no bound but not twice, got {given!r}"
                )
    return checked


def _is_range(least: float | None, most: float | None) -> bool:
    low, high = ends_of((least, most))
    is_bounded = low > -math.inf or high < math.inf
    is_number = not any(isinstance(end, bool) for end in (least, most))
    return is_bounded and is_number and low <= high and low < math.inf and high > -math.inf


def ends_of(given: Range) -> tuple[float, float]:
    """Return the least and the largest value of a range, infinite where there is no bound."""
    least, most = given
    return -math.inf if least is None else least, math.inf if most is None else most


def overlap(given: Range, other: Range) -> bool:
    """Return whether two ranges have a value in common.

    Examples
    --------
    >>> overlap((2.0, None), (0.0, 1.0)), overlap((1.0, None), (0.0, 1.0))
    (False, True)
    """
    (low, high), (least, most) = ends_of(given), ends_of(other)
    return max(low, least) <= min(high, most)


def within_ranges(metrics: Metrics, ranges: Mapping[str, Range]) -> bool:
    """Return whether all metrics lie in their ranges, both ends included.

    Examples
    --------
    >>> within_ranges({"reward": 210.0, "crashes": 0.1}, {"reward": (200, None)})
    True
    """
    return all(
        name in metrics
        and (least is None or metrics[name] >= least)
        and (most is None or metrics[name] <= most)
        for name, (least, most) in ranges.items()
    )

"""Scales from values to coordinates, with ticks and axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dasktune.report.formats import number
from dasktune.report.svg import tag, text

DECADES = 2.0
"""Positive values that span more powers of ten than this get a logarithmic axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisScale:
    """Maps values between `low` and `high` to coordinates between `start` and `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return the coordinate of a value."""
        low, high, at = self.low, self.high, value
        if self.log:
            low, high, at = math.log(low), math.log(high), math.log(max(value, low / 10))
        share = (at - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)

    def ticks(self, most: int, *, whole: bool = False) -> list[float]:
        """Return round values between `low` and `high`, about `most` of them."""
        if self.log:
            return log_ticks(self.low, self.high, most)
        return ticks(self.low, self.high, most, whole=whole)


def ticks(low: float, high: float, most: int, *, whole: bool = False) -> list[float]:
    """Return round values from `low` to `high`: multiples of 1, 2 or 5 times a power of ten.

    Examples
    --------
    >>> ticks(0, 60, 6), ticks(0.13, 0.38, 4), ticks(0, 3, 10, whole=True)
    ([0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0], [0.2, 0.3], [0.0, 1.0, 2.0, 3.0])
    """
    if not high > low:
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    sizes = [power * factor for factor in (1, 2, 5, 10)]
    size = next((step for step in sizes if (high - low) / step <= most + 1e-9), sizes[-1])
    if whole:
        size = max(1.0, size)
    first, last = math.ceil(low / size - 1e-9), math.floor(high / size + 1e-9)
    return [float(f"{size * i:.12g}") for i in range(first, last + 1)]


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """Return powers of ten between two positive values; 2 and 5 times them if few.

    Examples
    --------
    >>> log_ticks(0.002, 30, 6)
    [0.01, 0.1, 1.0, 10.0]
    """
    first, last = math.floor(math.log10(low)), math.floor(math.log10(high))
    powers = [e for e in range(first, last + 1) if low <= float(f"1e{e}") <= high]
    if len(powers) > most / 2:
        return [float(f"1e{e}") for e in powers[:: math.ceil(len(powers) / most)]]
    candidates = [float(f"{f}e{e}") for e in range(first, last + 1) for f in (1, 2, 5)]
    return [tick for tick in candidates if low <= tick <= high] or [low, high]


def value_scale(values: Sequence[float], start: float, end: float) -> AxisScale:
    """Return a scale for all values, logarithmic if they span more than `DECADES`."""
    low, high = min(values), max(values)
    if low > 0 and math.log10(high / low) > DECADES:
        return AxisScale(low=low / 1.2, high=high * 1.2, start=start, end=end, log=True)
    margin = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
    return AxisScale(low=low - margin, high=high + margin, start=start, end=end)


def bottom_axis(
    scale: AxisScale, top: float, bottom: float, words: str, *, whole: bool = True
) -> str:
    """Return grid lines, ticks and the name of a horizontal axis, by default of whole steps."""
    most = max(2, min(12, int(abs(scale.end - scale.start) / 70)))
    marks = [
        tag("path", d=f"M{x:.1f} {top:.1f}V{bottom:.1f}", class_="grid")
        + text(
            x,
            bottom + 16,
            number(int(tick) if tick.is_integer() else tick),
            class_="tick",
            text_anchor="middle",
        )
        for tick in scale.ticks(most, whole=whole)
        for x in [scale(tick)]
    ]
    middle = (scale.start + scale.end) / 2
    return "".join(marks) + text(middle, bottom + 34, words, class_="name", text_anchor="middle")


def left_axis(scale: AxisScale, left: float, right: float, words: str) -> str:
    """Return grid lines, ticks and the name of a vertical axis of values."""
    most = max(2, min(8, int(abs(scale.end - scale.start) / 40)))
    marks = [
        tag("path", d=f"M{left:.1f} {y:.1f}H{right:.1f}", class_="grid")
        + text(left - 8, y + 4, number(tick), class_="tick", text_anchor="end")
        for tick in scale.ticks(most)
        for y in [scale(tick)]
    ]
    note = f"{words} (logarithmic)" if scale.log else words
    return "".join(marks) + text(8.0, min(scale.start, scale.end) - 12, note, class_="name")

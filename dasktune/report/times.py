"""Times to a target, by tuner and by number of workers."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dasktune._words import counted
from dasktune.report.axes import AxisScale, left_axis
from dasktune.report.formats import number
from dasktune.report.svg import Svg, legend, line, tag, text, title

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 1120.0, 420.0, 72.0, 24.0, 64.0, 60.0
WIDEST = 44.0
"""Largest width of a box."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """The times of a tuner to a target on a number of workers.

    `seconds` has the time for each order of the configurations; None if it missed the target.
    """

    name: str
    workers: int
    seconds: tuple[float | None, ...]

    @property
    def reached(self) -> list[float]:
        """The times to the target, ascending."""
        return sorted(time for time in self.seconds if time is not None)

    def __str__(self) -> str:
        times = self.reached
        workers = counted(self.workers, "worker")
        words = f"{self.name}, {workers}: {len(times)} of {len(self.seconds)} reached"
        return f"{words}, mean {number(statistics.fmean(times))} s" if times else words


def draw_times(results: Sequence[Times], *, target: str) -> Svg:
    """Return a box for each tuner on each number of workers: quartiles, median, range and mean.

    Orders that missed the target are left out; a note gives the number of the others. `target` is
    in words, such as ``accuracy 0.77``.

    References
    ----------
    Rasley et al., "HyperDrive", figures 7, 9, 12b and 12c.
    """
    names = list(dict.fromkeys(times.name for times in results))
    workers = list(dict.fromkeys(times.workers for times in results))
    slot = (WIDTH - LEFT - RIGHT) / (len(workers) * (len(names) + 1))
    latest = max((max(times.reached, default=0.0) for times in results), default=0.0) or 1.0
    scale = AxisScale(low=0.0, high=latest * 1.08, start=HEIGHT - BOTTOM, end=TOP)
    marks = [
        legend(((f"k{index}", name) for index, name in enumerate(names, 1)), LEFT)[0],
        left_axis(scale, LEFT, WIDTH - RIGHT, "virtual seconds, each order of configurations"),
    ]
    for index, count in enumerate(workers):
        x = LEFT + (index + 0.5) * (len(names) + 1) * slot
        below = {"class_": "name", "text_anchor": "middle"}
        marks.append(text(x, scale.start + 36, counted(count, "worker"), **below))
    for times in results:
        colour = names.index(times.name) + 1
        group = workers.index(times.workers) * (len(names) + 1)
        middle, half = LEFT + (group + colour) * slot, min(WIDEST, 0.7 * slot) / 2
        marks += _box(times, scale, middle, half, colour)
    return Svg(marks="".join(marks), width=WIDTH, height=HEIGHT, label=f"time to {target}")


def _box(times: Times, scale: AxisScale, middle: float, half: float, colour: int) -> Iterator[str]:
    """Yield the box of a distribution, each of its times, and the number of reached targets."""
    known, note = times.reached, f"{len(times.reached)} of {len(times.seconds)}"
    yield text(middle, scale.start + 16, note, class_="note", text_anchor="middle")
    if not known:
        return
    low, median, high = map(scale, _quartiles(known))
    yield _whisker(middle, half / 2, scale(known[0]), scale(known[-1]))
    yield tag(
        "rect",
        title(str(times)),
        x=middle - half,
        y=high,
        width=2 * half,
        height=max(1.0, low - high),
        class_=f"k{colour}",
        fill_opacity=0.45,
    )
    ends = [(middle - half, median), (middle + half, median)]
    yield tag("path", d=line(ends), class_=f"curve l{colour}")
    for value in known:
        yield tag("circle", cx=middle, cy=scale(value), r=2, class_=f"k{colour}")
    mean = number(statistics.fmean(known))
    yield text(middle, scale(known[-1]) - 6, mean, class_="tick", text_anchor="middle")


def _quartiles(ordered: Sequence[float]) -> tuple[float, float, float]:
    if len(ordered) == 1:
        return (ordered[0],) * 3
    low, middle, high = statistics.quantiles(ordered, n=4, method="inclusive")
    return low, middle, high


def _whisker(x: float, half: float, low: float, high: float) -> str:
    """Return an upright line with a cap at both ends."""
    caps = f"M{x - half:.2f} {low:.2f}h{2 * half:.2f}M{x - half:.2f} {high:.2f}h{2 * half:.2f}"
    return tag("path", d=f"M{x:.2f} {low:.2f}V{high:.2f}{caps}", class_="link")

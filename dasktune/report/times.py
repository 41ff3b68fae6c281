"""Times to a target: by tuner, by number of workers, and as distributions."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dasktune.report.axes import AxisScale, left_axis
from dasktune.report.formats import number
from dasktune.report.svg import Svg, legend, line, tag, text, title
from dasktune.words import counted

WIDTH, LEFT, RIGHT = 1120.0, 72.0, 24.0
TOP, PANEL, GAP = 64.0, 230.0, 84.0
WIDEST = 44.0
"""Largest width of a bar or a box."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """The times of a tuner to a target on a number of workers.

    Parameters
    ----------
    name
        The tuner's name.
    workers
        The number of workers.
    seconds
        The time for each order of the configurations; None if it missed the target.
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
    """Return means with their range, means over numbers of workers, and boxes.

    Orders that missed the target are left out; a note gives the number of the others.

    Parameters
    ----------
    results
        The times of each tuner on each number of workers.
    target
        The target in words, such as ``accuracy 0.77``.

    References
    ----------
    Rasley et al., "HyperDrive", figures 7, 9, 12b and 12c.
    """
    places = _Places.of(results)
    panels = [_means, _over_workers, _boxes] if len(places.workers) > 1 else [_means, _boxes]
    latest = max((max(times.reached, default=0.0) for times in results), default=0.0) or 1.0
    colours = ((f"k{index}", name) for index, name in enumerate(places.names, 1))
    marks = [legend(colours, LEFT)[0]]
    for index, panel in enumerate(panels):
        top = TOP + index * (PANEL + GAP)
        scale = AxisScale(low=0.0, high=latest * 1.08, start=top + PANEL, end=top)
        marks.append("".join(panel(results, places, scale)))
    height = TOP + len(panels) * (PANEL + GAP) - GAP + 60
    return Svg(marks="".join(marks), width=WIDTH, height=height, label=f"time to {target}")


@dataclass(frozen=True, slots=True)
class _Places:
    """The horizontal position of each tuner, by number of workers."""

    names: tuple[str, ...]
    workers: tuple[int, ...]

    @classmethod
    def of(cls, results: Sequence[Times]) -> _Places:
        names = dict.fromkeys(times.name for times in results)
        return cls(tuple(names), tuple(dict.fromkeys(times.workers for times in results)))

    @property
    def _slot(self) -> float:
        return (WIDTH - LEFT - RIGHT) / (len(self.workers) * (len(self.names) + 1))

    @property
    def width(self) -> float:
        """The width of a bar."""
        return min(WIDEST, 0.7 * self._slot)

    def colour(self, times: Times) -> int:
        """Return the number of a tuner's colour."""
        return self.names.index(times.name) + 1

    def middle(self, times: Times) -> float:
        """Return the middle of a tuner's bar."""
        group = self.workers.index(times.workers) * (len(self.names) + 1)
        return LEFT + (group + self.colour(times)) * self._slot

    def below(self, scale: AxisScale) -> Iterator[str]:
        """Yield the label of each group."""
        size = (len(self.names) + 1) * self._slot
        for index, workers in enumerate(self.workers):
            x = LEFT + (index + 0.5) * size
            words = counted(workers, "worker")
            yield text(x, scale.start + 36, words, class_="name", text_anchor="middle")


def _means(results: Sequence[Times], places: _Places, scale: AxisScale) -> Iterator[str]:
    """Yield a bar for each mean, its range, and the number of reached targets [Figure 7]."""
    yield left_axis(scale, LEFT, WIDTH - RIGHT, "virtual seconds, mean and range")
    for times in results:
        middle, known, half = places.middle(times), times.reached, places.width / 2
        if known:
            mean = statistics.fmean(known)
            yield tag(
                "rect",
                title(str(times)),
                x=middle - half,
                y=scale(mean),
                width=places.width,
                height=scale.start - scale(mean),
                class_=f"k{places.colour(times)}",
            )
            yield _whisker(middle, half / 2, scale(known[0]), scale(known[-1]))
            high = scale(known[-1]) - 6
            yield text(middle, high, number(mean), class_="tick", text_anchor="middle")
        reached = f"{len(known)} of {len(times.seconds)}"
        yield text(middle, scale.start + 16, reached, class_="note", text_anchor="middle")
    yield from places.below(scale)


def _over_workers(results: Sequence[Times], places: _Places, scale: AxisScale) -> Iterator[str]:
    """Yield each tuner's means over the numbers of workers, and their range [Figure 12b]."""
    yield left_axis(scale, LEFT, WIDTH - RIGHT, "virtual seconds, mean and range by workers")
    across = AxisScale(
        low=min(places.workers), high=max(places.workers), start=LEFT + 40, end=WIDTH - RIGHT - 40
    )
    for workers in places.workers:
        x = across(workers)
        yield text(x, scale.start + 16, number(workers), class_="tick", text_anchor="middle")
    for index, name in enumerate(places.names):
        known = sorted(
            (times for times in results if times.name == name and times.reached),
            key=lambda times: times.workers,
        )
        beside = 4.0 * (index - (len(places.names) - 1) / 2)  # so that ranges do not hide others
        for times in known:
            x, values = across(times.workers) + beside, times.reached
            yield _whisker(x, 3.0, scale(values[0]), scale(values[-1]))
        points = [
            (across(times.workers) + beside, scale(statistics.fmean(times.reached)))
            for times in known
        ]
        if points:
            yield tag("path", title(name), d=line(points), class_=f"curve l{index + 1}")
        for (x, y), times in zip(points, known, strict=True):
            yield tag("circle", title(str(times)), cx=x, cy=y, r=4, class_=f"k{index + 1}")
    yield text(
        (LEFT + WIDTH - RIGHT) / 2, scale.start + 36, "workers", class_="name", text_anchor="middle"
    )


def _boxes(results: Sequence[Times], places: _Places, scale: AxisScale) -> Iterator[str]:
    """Yield a box for each distribution: quartiles, median, range, and every time [Figure 12c]."""
    yield left_axis(scale, LEFT, WIDTH - RIGHT, "virtual seconds, each order of configurations")
    for times in results:
        known, middle, half = times.reached, places.middle(times), places.width / 2
        if not known:
            continue
        low, median, high = map(scale, _quartiles(known))
        colour = places.colour(times)
        yield _whisker(middle, half / 2, scale(known[0]), scale(known[-1]))
        yield tag(
            "rect",
            title(str(times)),
            x=middle - half,
            y=high,
            width=places.width,
            height=max(1.0, low - high),
            class_=f"k{colour}",
            fill_opacity=0.45,
        )
        ends = [(middle - half, median), (middle + half, median)]
        yield tag("path", d=line(ends), class_=f"curve l{colour}")
        for value in known:
            yield tag("circle", cx=middle, cy=scale(value), r=2, class_=f"k{colour}")
    yield from places.below(scale)


def _quartiles(ordered: Sequence[float]) -> tuple[float, float, float]:
    if len(ordered) == 1:
        return (ordered[0],) * 3
    low, middle, high = statistics.quantiles(ordered, n=4, method="inclusive")
    return low, middle, high


def _whisker(x: float, half: float, low: float, high: float) -> str:
    """Return an upright line with a cap at both ends."""
    caps = f"M{x - half:.2f} {low:.2f}h{2 * half:.2f}M{x - half:.2f} {high:.2f}h{2 * half:.2f}"
    return tag("path", d=f"M{x:.2f} {low:.2f}V{high:.2f}{caps}", class_="link")

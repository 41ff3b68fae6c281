"""Times to a target: by tuner, over numbers of workers, and as they spread over orders."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dasktune.report.axes import Scale, left_axis
from dasktune.report.formats import number
from dasktune.report.svg import Svg, line, tag, text, title

WIDTH, LEFT, RIGHT = 1120.0, 72.0, 24.0
TOP, PANEL, GAP = 64.0, 230.0, 84.0
WIDEST = 44.0
"""Of a bar, or a box."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """The times that a tuner took to a target on so many workers.

    Parameters
    ----------
    name
        The tuner's.
    workers
        How many.
    seconds
        For each order of the configurations; None where it never got there.
    """

    name: str
    workers: int
    seconds: tuple[float | None, ...]

    @property
    def reached(self) -> list[float]:
        """Those times that it got there, in order."""
        return sorted(one for one in self.seconds if one is not None)

    def __str__(self) -> str:
        found = self.reached
        words = f"{self.name}, {self.workers} workers: {len(found)} of {len(self.seconds)} reached"
        return f"{words}, mean {number(statistics.fmean(found))} s" if found else words


def draw_times(found: Sequence[Times], *, target: str) -> Svg:
    """Return means with their range, means over workers if there are several, and boxes.

    Times that never came are left out; a note says how many did come.

    Parameters
    ----------
    found
        Of each tuner on each number of workers.
    target
        The target in words, such as ``accuracy 0.77``.

    References
    ----------
    Rasley et al., "HyperDrive", figures 7, 9, 12b and 12c.
    """
    places = _Places.of(found)
    panels = [_means, _over_workers, _boxes] if len(places.workers) > 1 else [_means, _boxes]
    latest = max((max(one.reached, default=0.0) for one in found), default=0.0) or 1.0
    marks = [_legend(places.names)]
    for index, panel in enumerate(panels):
        top = TOP + index * (PANEL + GAP)
        scale = Scale(low=0.0, high=latest * 1.08, start=top + PANEL, end=top)
        marks.append("".join(panel(found, places, scale)))
    height = TOP + len(panels) * (PANEL + GAP) - GAP + 60
    return Svg(marks="".join(marks), width=WIDTH, height=height, label=f"time to {target}")


@dataclass(frozen=True, slots=True)
class _Places:
    """Where on the way across each tuner stands, by number of workers."""

    names: tuple[str, ...]
    workers: tuple[int, ...]

    @classmethod
    def of(cls, found: Sequence[Times]) -> _Places:
        names = dict.fromkeys(one.name for one in found)
        return cls(tuple(names), tuple(dict.fromkeys(one.workers for one in found)))

    @property
    def _slot(self) -> float:
        return (WIDTH - LEFT - RIGHT) / (len(self.workers) * (len(self.names) + 1))

    @property
    def width(self) -> float:
        """Of a bar."""
        return min(WIDEST, 0.7 * self._slot)

    def colour(self, one: Times) -> int:
        """Return the number of a tuner's colour."""
        return self.names.index(one.name) + 1

    def middle(self, one: Times) -> float:
        """Return where a tuner's bar has its middle."""
        group = self.workers.index(one.workers) * (len(self.names) + 1)
        return LEFT + (group + self.colour(one)) * self._slot

    def below(self, scale: Scale) -> Iterator[str]:
        """Yield what is written below each group."""
        size = (len(self.names) + 1) * self._slot
        for index, workers in enumerate(self.workers):
            x = LEFT + (index + 0.5) * size
            words = f"{workers} workers" if workers > 1 else "1 worker"
            yield text(x, scale.start + 36, words, class_="name", text_anchor="middle")


def _means(found: Sequence[Times], places: _Places, scale: Scale) -> Iterator[str]:
    """Yield a bar for each mean, its range, and how many got there [Figure 7]."""
    yield left_axis(scale, LEFT, WIDTH - RIGHT, "virtual seconds, mean and range")
    for one in found:
        middle, known, half = places.middle(one), one.reached, places.width / 2
        if known:
            mean = statistics.fmean(known)
            yield tag(
                "rect",
                title(str(one)),
                x=middle - half,
                y=scale(mean),
                width=places.width,
                height=scale.start - scale(mean),
                class_=f"k{places.colour(one)}",
            )
            yield _whisker(middle, half / 2, scale(known[0]), scale(known[-1]))
            high = scale(known[-1]) - 6
            yield text(middle, high, number(mean), class_="tick", text_anchor="middle")
        reached = f"{len(known)} of {len(one.seconds)}"
        yield text(middle, scale.start + 16, reached, class_="note", text_anchor="middle")
    yield from places.below(scale)


def _over_workers(found: Sequence[Times], places: _Places, scale: Scale) -> Iterator[str]:
    """Yield each tuner's means over the numbers of workers, and their range [Figure 12b]."""
    yield left_axis(scale, LEFT, WIDTH - RIGHT, "virtual seconds, mean and range by workers")
    across = Scale(
        low=min(places.workers), high=max(places.workers), start=LEFT + 40, end=WIDTH - RIGHT - 40
    )
    for workers in places.workers:
        x = across(workers)
        yield text(x, scale.start + 16, number(workers), class_="tick", text_anchor="middle")
    for index, name in enumerate(places.names):
        mine = sorted((one for one in found if one.name == name), key=lambda one: one.workers)
        known = [one for one in mine if one.reached]
        beside = 4.0 * (index - (len(places.names) - 1) / 2)  # so that ranges do not hide others
        for one in known:
            x, values = across(one.workers) + beside, one.reached
            yield _whisker(x, 3.0, scale(values[0]), scale(values[-1]))
        points = [
            (across(one.workers) + beside, scale(statistics.fmean(one.reached))) for one in known
        ]
        if points:
            yield tag("path", title(name), d=line(points), class_=f"curve l{index + 1}")
        for (x, y), one in zip(points, known, strict=True):
            yield tag("circle", title(str(one)), cx=x, cy=y, r=4, class_=f"k{index + 1}")
    yield text(
        (LEFT + WIDTH - RIGHT) / 2, scale.start + 36, "workers", class_="name", text_anchor="middle"
    )


def _boxes(found: Sequence[Times], places: _Places, scale: Scale) -> Iterator[str]:
    """Yield a box for each distribution: quartiles, median, range, and every time [Figure 12c]."""
    yield left_axis(scale, LEFT, WIDTH - RIGHT, "virtual seconds, each order of configurations")
    for one in found:
        known, middle, half = one.reached, places.middle(one), places.width / 2
        if not known:
            continue
        quarters = [*_quartiles(known)]
        low, median, high = map(scale, quarters)
        colour = places.colour(one)
        yield _whisker(middle, half / 2, scale(known[0]), scale(known[-1]))
        yield tag(
            "rect",
            title(str(one)),
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


def _legend(names: Sequence[str]) -> str:
    x, marks = LEFT, []
    for index, name in enumerate(names, 1):
        marks.append(tag("rect", x=x, y=10, width=16, height=12, class_=f"k{index}"))
        marks.append(text(x + 22, 20, name, class_="tick"))
        x += 44 + 6.3 * len(name)
    return "".join(marks)

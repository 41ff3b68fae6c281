"""Curves over steps: the best few in colour, in front of the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dasktune._words import counted
from dasktune.report.axes import AxisScale, bottom_axis, left_axis, value_scale
from dasktune.report.svg import Svg, line, line_legend, tag, text, title

Points = tuple[tuple[float, float], ...]

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 1120.0, 420.0, 72.0, 24.0, 64.0, 52.0
MOST_POINTS = 300
OUTLYING = 0.03
"""Share of the values, at either end, that may lie beyond the axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlottedCurve:
    """The finite values of a metric by step, with the name of the curve."""

    points: Points
    name: str


def draw_curves(
    best: Sequence[PlottedCurve],
    others: Iterable[PlottedCurve],
    *,
    metric: str,
    heading: str = "",
    across: str = "step",
    rest: str = "all others",
) -> Svg:
    """Return curves over steps: the `best` few in colour, in front of the faint `others`.

    `across` is the name of the horizontal axis, `rest` the name of the others. A few values far
    from all others may lie beyond the axis; a note counts them.
    """
    behind = list(others)
    values = [value for curve in (*best, *behind) for _, value in curve.points]
    low, high = usual_range(values, [value for curve in best for _, value in curve.points])
    scale = value_scale([low, high], HEIGHT - BOTTOM, TOP)
    last = max((step for curve in (*best, *behind) for step, _ in curve.points), default=1)
    steps = AxisScale(low=0, high=last or 1, start=LEFT, end=WIDTH - RIGHT)
    beyond = sum(not low <= value <= high for value in values)
    marks = [
        frame("dt-frame", HEIGHT),
        left_axis(scale, LEFT, WIDTH - RIGHT, metric),
        bottom_axis(steps, TOP, HEIGHT - BOTTOM, across, whole=across == "step"),
        tag(
            "g",
            *(_curve(curve, steps, scale, "faint") for curve in behind),
            *reversed(
                [_curve(curve, steps, scale, f"curve l{i}") for i, curve in enumerate(best, 1)]
            ),
            clip_path="url(#dt-frame)",
        ),
        _legend(best, beyond, rest if behind else ""),
    ]
    return Svg(marks="".join(marks), width=WIDTH, height=HEIGHT, label=heading or metric)


def usual_range(values: Iterable[float], always: Iterable[float]) -> tuple[float, float]:
    """Return the range of the values, except a few that are far from all others.

    Examples
    --------
    >>> usual_range([1.0, 2.0, 3.0], [])
    (1.0, 3.0)
    >>> usual_range([float(i) for i in range(100)] + [1e9], [])[1] < 200
    True
    """
    ordered = sorted(values)
    if not ordered:
        return 0.0, 1.0
    cut = int(OUTLYING * len(ordered))
    low, high = ordered[cut], ordered[-1 - cut]
    spread = high - low
    low = max(ordered[0], low - 0.5 * spread)
    high = min(ordered[-1], high + 0.5 * spread)
    wanted = [low, high, *always]
    return min(wanted), max(wanted)


def thinned(points: Points, most: int = MOST_POINTS) -> Points:
    """Return at most `most` of the points, with the first and the last."""
    if len(points) <= most:
        return points
    last = len(points) - 1
    return tuple(points[round(i * last / (most - 1))] for i in range(most))


def frame(name: str, height: float) -> str:
    """Return the clip path of the area between the axes."""
    area = tag("rect", x=LEFT, y=TOP - 6, width=WIDTH - LEFT - RIGHT, height=height - TOP)
    return tag("clipPath", area, id=name)


def path(points: Points, steps: AxisScale, scale: AxisScale, look: str, tooltip: str = "") -> str:
    """Return a line through points; a single point becomes a short dash."""
    places = [(steps(step), scale(value)) for step, value in points]
    if len(places) == 1:
        (x, y) = places[0]
        places = [(x - 2, y), (x + 2, y)]
    return tag("path", tooltip, d=line(places), class_=look) if places else ""


def _curve(curve: PlottedCurve, steps: AxisScale, scale: AxisScale, look: str) -> str:
    return path(thinned(curve.points), steps, scale, look, title(curve.name))


def _legend(best: Sequence[PlottedCurve], beyond: int, rest: str) -> str:
    marks, x = line_legend(((f"curve l{i}", curve.name) for i, curve in enumerate(best, 1)), LEFT)
    if rest and x < WIDTH - 130:
        marks += line_legend([("faint", rest)], x)[0]
    if beyond:
        words = f"{counted(beyond, 'value')} beyond the axis"
        marks += text(WIDTH - RIGHT, 48, words, class_="note", text_anchor="end")
    return marks

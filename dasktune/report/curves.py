"""Learning curves: the metric of every state of the plan, shared beginnings drawn once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dasktune.graph.plan import Node, SearchPlan
from dasktune.report.axes import Scale, bottom_axis, left_axis, value_scale
from dasktune.report.formats import count
from dasktune.report.svg import Svg, line, tag, text, title
from dasktune.report.tree_layout import MOST_BARS, most_shared
from dasktune.types import Metrics

Points = tuple[tuple[float, float], ...]

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 1120.0, 420.0, 72.0, 24.0, 64.0, 52.0
MOST_POINTS = 300
OUTLYING = 0.03
"""Share of the values, at either end, that may lie beyond the axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The finite values of a metric by step, and what they belong to."""

    points: Points
    name: str


def draw_curves(
    best: Sequence[Curve],
    others: Iterable[Curve],
    *,
    metric: str,
    heading: str = "",
    across: str = "step",
    rest: str = "all others",
) -> Svg:
    """Return curves over steps: the `best` few in colour, in front of the faint `others`.

    `across` is what they are drawn over in place of steps, `rest` what the others are.

    A few values that are far from all others lie beyond the axis; the picture says so.
    """
    behind = list(others)
    values = [value for curve in (*best, *behind) for _, value in curve.points]
    low, high = usual_range(values, [value for curve in best for _, value in curve.points])
    scale = value_scale([low, high], HEIGHT - BOTTOM, TOP)
    last = max((step for curve in (*best, *behind) for step, _ in curve.points), default=1)
    steps = Scale(low=0, high=last or 1, start=LEFT, end=WIDTH - RIGHT)
    beyond = sum(not low <= value <= high for value in values)
    frame = tag("rect", x=LEFT, y=TOP - 6, width=WIDTH - LEFT - RIGHT, height=HEIGHT - TOP)
    marks = [
        tag("clipPath", frame, id="dt-frame"),
        left_axis(scale, LEFT, WIDTH - RIGHT, metric),
        bottom_axis(steps, TOP, HEIGHT - BOTTOM, across, whole=across == "step"),
        tag(
            "g",
            *(_curve(curve, steps, scale, "faint") for curve in behind),
            *reversed([_curve(one, steps, scale, f"curve l{i}") for i, one in enumerate(best, 1)]),
            clip_path="url(#dt-frame)",
        ),
        _legend(best, beyond, rest if behind else ""),
    ]
    return Svg(marks="".join(marks), width=WIDTH, height=HEIGHT, label=heading or metric)


def curves_of(plan: SearchPlan, metric: str, most: int = MOST_BARS) -> list[Curve]:
    """Return one curve for each node that has values, from where its parent's ended."""
    nodes = list(plan)
    kept = most_shared(nodes, most)
    ends: dict[Node, Points] = {}
    curves = []
    for node in nodes:
        points = points_of(node.metrics, metric)
        before = ends.get(node.parent, ()) if node.parent is not None else ()
        joined = (*before, *points)
        ends[node] = joined[-1:]
        if points and node in kept:
            name = f"{count(node.passing, 'trial')}, steps {node.start}-{node.stop}"
            curves.append(Curve(points=joined, name=name))
    return curves


def points_of(metrics: Mapping[int, Metrics], name: str) -> Points:
    """Return the finite values of a metric in the order of their steps."""
    found = ((step, metrics[step].get(name, math.nan)) for step in sorted(metrics))
    return tuple((step, value) for step, value in found if math.isfinite(value))


def usual_range(values: Iterable[float], always: Iterable[float]) -> tuple[float, float]:
    """Return the range of the values, without a few that are far off all others.

    Parameters
    ----------
    always
        Values that are in the range however far off they are.

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
    """Return at most so many of the points, the first and the last among them."""
    if len(points) <= most:
        return points
    last = len(points) - 1
    return tuple(points[round(i * last / (most - 1))] for i in range(most))


def _curve(curve: Curve, steps: Scale, scale: Scale, look: str) -> str:
    places = [(steps(step), scale(value)) for step, value in thinned(curve.points)]
    if len(places) == 1:
        (x, y) = places[0]
        places = [(x - 2, y), (x + 2, y)]
    return tag("path", title(curve.name), d=line(places), class_=look) if places else ""


def _legend(best: Sequence[Curve], beyond: int, rest: str) -> str:
    x, marks = LEFT, []
    for index, curve in enumerate(best, 1):
        marks.append(tag("path", d=f"M{x:.0f} 16h22", class_=f"curve l{index}"))
        marks.append(text(x + 28, 20, curve.name, class_="tick"))
        x += 48 + 6.3 * len(curve.name)
    if rest and x < WIDTH - 130:
        marks.append(tag("path", d=f"M{x:.0f} 16h22", class_="faint"))
        marks.append(text(x + 28, 20, rest, class_="tick"))
    if beyond:
        words = f"{count(beyond, 'value')} beyond the axis"
        marks.append(text(WIDTH - RIGHT, 48, words, class_="note", text_anchor="end"))
    return "".join(marks)

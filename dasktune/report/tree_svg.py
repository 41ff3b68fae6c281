"""The stage tree as a picture: steps to the right, one bar per node of the search plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dasktune._words import counted
from dasktune.graph.plan import Node, SearchPlan
from dasktune.report.axes import AxisScale, bottom_axis
from dasktune.report.formats import number
from dasktune.report.svg import Svg, legend, tag, text, title
from dasktune.report.tree_layout import MOST_BARS, Bar, Layout, layout

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 1120.0, 16.0, 190.0, 44.0, 44.0
HEIGHT, THIN_ROW, THICK_ROW, LABEL_ROW = 720.0, 5.0, 28.0, 11.0
SHADES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Canvas:
    """Scales and sizes that all bars of a picture share."""

    steps: AxisScale
    row: float
    top: float
    bounds: tuple[int, ...]
    label: Callable[[int], str]
    is_planned: bool = False

    def y(self, bar: Bar) -> float:
        return self.top + self.row * (bar.row + 0.5)

    def thickness(self, bar: Bar) -> float:
        """Return the thickness of a bar, which grows with each doubling of its trials."""
        wanted = 0.5 * self.row * (1 + 0.6 * math.log2(max(1, bar.passing)))
        return max(2.0, min(wanted, 0.86 * self.row * bar.rows, 1.5 * THICK_ROW))


def draw_tree(
    plan: SearchPlan,
    *,
    label: Callable[[int], str] = "trial {}".format,
    heading: str = "",
    most: int = MOST_BARS,
    is_planned: bool = False,
) -> Svg:
    """Return the picture of a plan.

    A bar is thicker and darker if more trials share it; untrained steps are hollow. Tooltips
    describe the bars.

    Parameters
    ----------
    plan
        The search plan. Beyond `most` nodes, those with the fewest trials are put together.
    label
        The name of a trial, by its number.
    heading
        A line above the picture.
    is_planned
        Whether trials have no numbers yet, nor trained steps: bars are filled, and count trials.
    """
    placed = layout(plan, most)
    top = TOP + (30 if heading else 0)
    row = max(THIN_ROW, min(THICK_ROW, HEIGHT / max(1, placed.rows)))
    bottom = top + row * placed.rows + 6
    canvas = _Canvas(
        steps=AxisScale(low=0, high=max(1, placed.steps), start=LEFT, end=WIDTH - RIGHT),
        row=row,
        top=top,
        bounds=share_bounds(max((bar.passing for bar in placed.bars), default=1)),
        label=label,
        is_planned=is_planned,
    )
    marks = [
        text(LEFT, 28.0, heading, class_="head") if heading else "",
        _legend(canvas, top - 26, hidden=placed.hidden),
        bottom_axis(canvas.steps, top, bottom, "step"),
        *(_links(bar, canvas) for bar in placed.bars if bar.children),
        *(_drawn(bar, canvas) for bar in placed.bars),
    ]
    return Svg(
        marks="".join(marks),
        width=WIDTH,
        height=bottom + BOTTOM,
        label=f"Stage tree of {counted(len(plan.paths), 'trial')}: {described(placed)}",
    )


def described(placed: Layout) -> str:
    """Return the number of stages in words, with the number of those put together."""
    words = counted(placed.nodes, "stage")
    if placed.hidden:
        words += (
            f", the {placed.nodes - placed.hidden:,} that most trials share one by one, "
            f"the other {placed.hidden:,} put together where they branch off"
        )
    return words


def share_bounds(most: int) -> tuple[int, ...]:
    """Return the smallest number of trials of each shade, from 1 on.

    Examples
    --------
    >>> share_bounds(1), share_bounds(3), share_bounds(8), share_bounds(144)
    ((1,), (1, 2, 3), (1, 2, 3, 4, 6), (1, 2, 6, 17, 50))
    """
    if most < 2:
        return (1,)
    steps = range(SHADES - 1)
    return (1, *dict.fromkeys(math.ceil(2 * (most / 2) ** (i / (SHADES - 1))) for i in steps))


def shade(passing: int, bounds: tuple[int, ...]) -> str:
    """Return the class of a bar by its number of trials."""
    index = sum(bound <= passing for bound in bounds)
    return f"s{round(1 + (index - 1) * (SHADES - 1) / max(1, len(bounds) - 1))}"


def _links(bar: Bar, canvas: _Canvas) -> str:
    """Return the line from a bar's end to its branches."""
    x = canvas.steps(bar.stop)
    places = [canvas.y(bar), *(canvas.y(child) for child in bar.children)]
    if len(places) == 2 and places[0] == places[1]:
        return ""
    return tag("path", d=f"M{x:.1f} {min(places):.1f}V{max(places):.1f}", class_="link")


def _drawn(bar: Bar, canvas: _Canvas) -> str:
    """Return a bar: trained steps filled, others hollow."""
    thick, y = canvas.thickness(bar), canvas.y(bar)
    start, trained, stop = (canvas.steps(step) for step in (bar.start, bar.trained, bar.stop))
    spans = []
    if bar.hidden:
        spans.append((start, stop, "rest"))
    elif canvas.is_planned:
        spans.append((start, stop, shade(bar.passing, canvas.bounds)))
    elif bar.trained > bar.start:
        spans.append((start, trained, shade(bar.passing, canvas.bounds)))
    if not (bar.hidden or canvas.is_planned) and bar.trained < bar.stop:
        spans.append((trained, stop, "todo"))
    size = {"y": y - thick / 2, "height": thick, "rx": 1.5}
    parts = [title(_tooltip(bar, is_planned=canvas.is_planned))]
    for begin, end, look in spans:
        parts.append(tag("rect", x=begin, width=max(1.0, end - begin), **size, class_=look))
    words = _label(bar, canvas)
    if words:
        parts.append(text(stop + 7, y + 4, words, class_="note"))
    kind = "more" if bar.hidden else "bar"
    return tag("g", *parts, class_=f"stage {kind}-stage")


def _label(bar: Bar, canvas: _Canvas) -> str:
    if canvas.row < LABEL_ROW:
        return ""
    if bar.hidden:
        return f"+ {counted(bar.hidden, 'stage')}"
    if bar.children or not bar.ends:
        return ""
    if canvas.is_planned:
        return counted(bar.passing, "trial")
    more = f" and {bar.passing - 1:,} more" if bar.passing > 1 else ""
    return canvas.label(bar.ends[0]) + more


def _tooltip(bar: Bar, *, is_planned: bool = False) -> str:
    """Return the lines of a bar's tooltip."""
    if is_planned and bar.node is not None:
        lines = [f"steps {bar.start:,}-{bar.stop:,}", counted(bar.passing, "trial")]
        return "\n".join([*lines, *_values(bar.node)])
    named = ", ".join(map(str, bar.trials))
    more = f" and {bar.passing - len(bar.trials):,} more" if bar.passing > len(bar.trials) else ""
    shared = f"{counted(bar.passing, 'trial')}: {named}{more}"
    if bar.node is None:
        return (
            f"{counted(bar.hidden, 'stage')} put together, steps {bar.start}-{bar.stop}\n{shared}"
        )
    if bar.trained >= bar.stop:
        done = "trained"
    else:
        done = f"trained to step {bar.trained}" if bar.trained > bar.start else "not trained"
    lines = [f"steps {bar.start:,}-{bar.stop:,}, {done}", shared, *_values(bar.node)]
    return "\n".join([*lines, f"key {bar.node.key_at(bar.stop)[:16]}"])


def _values(node: Node) -> list[str]:
    values: Mapping[str, tuple[object, object]] = {
        name: (function(node.start), function(node.stop - 1))
        for name, function in node.sequences.items()
    }
    return [
        f"{name.removeprefix('dasktune:')} = {number(first)}"
        + (f" to {number(last)}" if last != first else "")
        for name, (first, last) in values.items()
    ]


def _legend(canvas: _Canvas, y: float, *, hidden: int) -> str:
    """Return the legend of the shades."""
    bounds = canvas.bounds
    ranges = [
        str(low) if high - low == 1 else f"{low}-{high - 1}"
        for low, high in zip(bounds, [*bounds[1:], bounds[-1] + 1], strict=True)
    ]
    if len(bounds) > 1:
        ranges[-1] = f"{bounds[-1]} or more"
    entries = [(shade(low, bounds), words) for low, words in zip(bounds, ranges, strict=True)]
    if not canvas.is_planned:
        entries.append(("todo", "not trained"))
    if hidden:
        entries.append(("rest", "put together"))
    words = "trials that share a stage:"
    return text(LEFT, y + 10, words, class_="name") + legend(entries, LEFT + 160, y)[0]

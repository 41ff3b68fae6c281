"""Plots of sequences: the value of a hyper-parameter at every step."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import cast

from dasktune._numbers import whole_of
from dasktune._words import counted
from dasktune.errors import refuse
from dasktune.report.axes import AxisScale, bottom_axis, left_axis, value_scale
from dasktune.report.formats import number
from dasktune.report.svg import Svg, line, tag, text
from dasktune.sequences import Sequence, as_sequence
from dasktune.types import Step, Value, ValueFunction

WIDTH, PANEL, LEFT, RIGHT, TOP, BOTTOM = 720.0, 150.0, 84.0, 20.0, 40.0, 24.0
SPARK_WIDTH, SPARK_HEIGHT = 84.0, 22.0
MOST_STEPS = 1000
"""Most evaluated steps of a plot, besides the changes of piecewise sequences."""

MOST_LEVELS = 6
"""Most ticks for values that are no numbers."""


def plot_sequence(
    sequences: Mapping[str, Sequence | Value] | Sequence,
    steps: Step,
    path: str | os.PathLike[str] | None = None,
) -> Svg:
    """Return a plot with one panel for each sequence; a notebook shows it.

    Parameters
    ----------
    sequences
        One sequence, or several by name; plain values are constants.
    steps
        Number of steps to show.
    path
        Path of an SVG file to write, or None.

    Raises
    ------
    ConfigurationError
        If there is no sequence, or a sequence ends before `steps`.

    Examples
    --------
    >>> from dasktune.sequences import Exponential, Warmup
    >>> plot = plot_sequence({"lr": Warmup(5, 0.1) >> Exponential(0.1, gamma=0.9)}, steps=60)
    >>> plot.label
    'lr over 60 steps'
    """
    named = sequences if isinstance(sequences, Mapping) else {"": sequences}
    functions = {name: as_sequence(sequence) for name, sequence in named.items()}
    refuse(_problems(functions, steps))
    height = TOP + PANEL
    panels = [
        tag("g", _panel(name or repr(f), f, steps), transform=f"translate(0 {i * height:.0f})")
        for i, (name, f) in enumerate(functions.items())
    ]
    names = ", ".join(name or repr(function) for name, function in functions.items())
    drawn = Svg(
        marks="".join(panels),
        width=WIDTH,
        height=height * len(functions) + BOTTOM,
        label=f"{names} over {counted(steps, 'step')}",
    )
    if path is not None:
        drawn.save(path)
    return drawn


def sparkline(function: ValueFunction, steps: Step) -> Svg:
    """Return a word-sized plot of a sequence, without axes."""
    runs = runs_of(function, steps)
    levels = _levels(runs)
    heights = [_height(value, levels) for _, _, value in runs]
    scale = AxisScale(low=min(heights), high=max(heights), start=SPARK_HEIGHT - 3, end=3)
    across = AxisScale(low=0, high=steps, start=1, end=SPARK_WIDTH - 1)
    return Svg(
        marks=tag("path", d=_stairs(runs, heights, across, scale), class_="spark"),
        width=SPARK_WIDTH,
        height=SPARK_HEIGHT,
        label=f"{number(runs[0][2])} to {number(runs[-1][2])} in {counted(steps, 'step')}",
    )


def runs_of(function: ValueFunction, steps: Step) -> list[tuple[Step, Step, Value]]:
    """Return ``(start, stop, value)`` for each run of equal values at the evaluated steps.

    Examples
    --------
    >>> from dasktune.sequences import MultiStep
    >>> runs_of(MultiStep(1.0, milestones=[30], gamma=0.5), 60)
    [(0, 30, 1.0), (30, 60, 0.5)]
    """
    runs: list[tuple[Step, Step, Value]] = []
    evaluated = _evaluated(function, steps)
    for start, stop in zip(evaluated, [*evaluated[1:], steps], strict=True):
        value = function(start)
        if runs and runs[-1][2] == value and type(runs[-1][2]) is type(value):
            runs[-1] = (runs[-1][0], stop, value)
        else:
            runs.append((start, stop, value))
    return runs


def _evaluated(function: ValueFunction, steps: Step) -> list[Step]:
    if steps <= MOST_STEPS:
        return list(range(steps))
    even = {i * (steps - 1) // (MOST_STEPS - 1) for i in range(MOST_STEPS)}
    return sorted(even.union(function.boundaries(0, steps)))


def _panel(name: str, function: Sequence, steps: Step) -> str:
    """Return the plot of one sequence."""
    runs = runs_of(function, steps)
    levels = _levels(runs)
    heights = [_height(value, levels) for _, _, value in runs]
    right, bottom = WIDTH - RIGHT, TOP + PANEL - 24
    scale = value_scale(heights, bottom, TOP)
    across = AxisScale(low=0, high=steps, start=LEFT, end=right)
    if levels:
        ticks = [
            text(LEFT - 8, scale(place) + 4, level, class_="tick", text_anchor="end")
            for place, level in enumerate(levels[:MOST_LEVELS])
        ]
        axis = "".join(ticks) + text(8, TOP - 12, name, class_="name")
    else:
        axis = left_axis(scale, LEFT, right, name)
    stairs = tag("path", d=_stairs(runs, heights, across, scale), class_="curve l2")
    return axis + bottom_axis(across, TOP, bottom, "step") + stairs


def _stairs(
    runs: list[tuple[Step, Step, Value]], heights: list[float], across: AxisScale, scale: AxisScale
) -> str:
    """Return the path of values that are constant during a step."""
    return line(
        (across(step), scale(height))
        for (start, stop, _), height in zip(runs, heights, strict=True)
        for step in (start, stop)
    )


def _levels(runs: list[tuple[Step, Step, Value]]) -> list[str]:
    """Return the names of single values and of values that are no numbers, else an empty list."""
    values = [value for _, _, value in runs]
    if len(values) > 1 and all(type(value) in (int, float) for value in values):
        return []
    return list(dict.fromkeys(map(str, values)))


def _height(value: Value, levels: list[str]) -> float:
    return float(levels.index(str(value))) if levels else float(cast(float, value))


def _problems(functions: Mapping[str, Sequence], steps: Step) -> list[str]:
    if whole_of(steps) is None:
        return [f"steps must be an int >= 1, got {steps!r}"]
    if not functions:
        return ["sequences must name at least one"]
    return [
        f"steps must be <= {function.end}, where {name or repr(function)} ends, got {steps}"
        for name, function in functions.items()
        if function.end is not None and function.end < steps
    ]

"""A fan: the measured curve of a trial, and shaded bands of its predicted values."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dasktune._results.prediction import INTERVALS, TrialPrediction, turned
from dasktune.report.axes import AxisScale, bottom_axis, left_axis, value_scale
from dasktune.report.curves import (
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Points,
    frame,
    path,
    usual_range,
)
from dasktune.report.formats import number
from dasktune.report.svg import Svg, line, line_legend, tag, text, title

HEIGHT = 380.0


def draw_fan(outlook: TrialPrediction, *, target: float | None = None, heading: str = "") -> Svg:
    """Return a trial's curve and its fan: the median, and bands of 50, 80 and 95%.

    Curves of siblings are faint, from the step at which they part. Values far from all others
    may lie beyond the axis.

    Parameters
    ----------
    outlook
        The prediction (`dasktune.Study.predict`).
    target
        A value for a line; the description has its probability.
    heading
        Description for screen readers.
    """
    others = _siblings(outlook)
    scale, beyond = _scale(outlook, others, target)
    first = min(outlook.measured[0][0], *(curve[0][0] for curve in others), outlook.steps[0])
    steps = AxisScale(low=first, high=outlook.steps[-1], start=LEFT, end=WIDTH - RIGHT)
    clip = f"dt-fan-{outlook.trial}"
    marks = [
        frame(clip, HEIGHT),
        left_axis(scale, LEFT, WIDTH - RIGHT, outlook.metric),
        bottom_axis(steps, TOP, HEIGHT - BOTTOM, "step"),
        tag(
            "g",
            *(path(curve, steps, scale, "faint") for curve in others),
            *(_band(outlook, level, steps, scale) for level in reversed(INTERVALS)),
            path(_median(outlook), steps, scale, "median", title(words_of(outlook, target))),
            path(outlook.measured, steps, scale, "curve l2"),
            "" if target is None else _target(target, scale),
            clip_path=f"url(#{clip})",
        ),
        _legend(bool(others), beyond, target),
    ]
    label = heading or words_of(outlook, target)
    return Svg(marks="".join(marks), width=WIDTH, height=HEIGHT, label=label)


def words_of(predicted: TrialPrediction, target: float | None) -> str:
    """Return the predicted last value, and the chance to reach the target, in words."""
    (low, high), at = predicted.interval(0.8)[-1], predicted.steps[-1]
    words = (
        f"trial {predicted.trial}, step {at:,}: {predicted.metric} {number(predicted.medians[-1])}"
        f", 80% between {number(low)} and {number(high)}"
    )
    if target is None:
        return words
    return f"{words}; {number(target)} with probability {predicted.chance(target):.2f}"


def _siblings(predicted: TrialPrediction) -> list[Points]:
    """Return the curves of siblings from the parting step on, in the metric's unit."""
    last = predicted.steps[-1]
    curves = (
        tuple(
            (step, turned(score, predicted.direction))
            for step, score in zip(branch.steps, branch.scores, strict=True)
            if branch.at <= step <= last and math.isfinite(score)
        )
        for branch in predicted.curve.siblings
    )
    return [curve for curve in curves if curve]


def _median(predicted: TrialPrediction) -> Points:
    return predicted.measured[-1], *zip(predicted.steps, predicted.medians, strict=True)


def _band(predicted: TrialPrediction, level: float, steps: AxisScale, scale: AxisScale) -> str:
    """Return the area that holds the values with a probability, after the last measurement."""
    ends = predicted.interval(level)
    last, value = predicted.measured[-1]
    lower = [
        (last, value),
        *((at, low) for at, (low, _) in zip(predicted.steps, ends, strict=True)),
    ]
    upper = [(at, high) for at, (_, high) in zip(predicted.steps, ends, strict=True)]
    places = [(steps(at), scale(end)) for at, end in (*lower, *reversed(upper))]
    low, high = ends[-1]
    words = f"{level:.0%} between {number(low)} and {number(high)} at step {predicted.steps[-1]:,}"
    return tag("path", title(words), d=line(places) + "Z", class_="fan")


def _target(target: float, scale: AxisScale) -> str:
    y = scale(target)
    return tag("path", d=f"M{LEFT:.1f} {y:.1f}H{WIDTH - RIGHT:.1f}", class_="target")


def _scale(
    predicted: TrialPrediction, others: Sequence[Points], target: float | None
) -> tuple[AxisScale, bool]:
    """Return the scale of values, and whether a value lies beyond it.

    The scale includes the 80% interval, and the usual range of the widest interval and of
    siblings.
    """
    always = [value for pair in predicted.interval(0.8) for value in pair]
    always += [value for value in (target,) if value is not None]
    values = [value for curve in (predicted.measured, *others) for _, value in curve]
    low, high = usual_range(values, always)
    widest = [value for pair in predicted.interval(INTERVALS[-1]) for value in pair]
    room = high - low
    low = min([low, *(max(value, low - room) for value in widest)])
    high = max([high, *(min(value, high + room) for value in widest)])
    beyond = any(not low <= value <= high for value in (*values, *widest))
    return value_scale([low, high], HEIGHT - BOTTOM, TOP), beyond


def _legend(has_others: bool, beyond: bool, target: float | None) -> str:
    entries = [("curve l2", "measured"), ("median", "median")]
    entries += [("faint", "trials that begin alike")] if has_others else []
    entries += [("target", f"target {number(target)}")] if target is not None else []
    first, x = line_legend(entries, LEFT)
    marks = [first]
    # The boxes overlap as the bands of the fan do.
    for place in range(len(INTERVALS)):
        rest = 22 * (len(INTERVALS) - place)
        marks.append(tag("rect", x=x, y=10, width=float(rest), height=12, class_="fan"))
    shares = ", ".join(f"{level:.0%}" for level in INTERVALS)
    marks.append(text(x + 22 * len(INTERVALS) + 6, 20, shares, class_="tick"))
    if beyond:
        words = "some values beyond the axis"
        marks.append(text(WIDTH - RIGHT, 48, words, class_="note", text_anchor="end"))
    return "".join(marks)

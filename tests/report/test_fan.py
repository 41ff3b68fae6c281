"""Fans of measured and predicted curves."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dasktune._results.prediction import TrialPrediction
from dasktune.algos.curves import LEVELS, Branch, Curve, Prediction
from dasktune.report import Svg, draw_fan
from dasktune.types import Direction

CURVE = Curve(
    steps=(1, 2, 3, 4),
    scores=(0.1, 0.3, math.nan, 0.4),
    max_steps=10,
    siblings=(Branch(at=2, steps=(1, 2, 3, 4, 12), scores=(0.1, 0.3, 0.5, 0.6, 0.9)),),
)


def predicted(
    curve: Curve = CURVE, *, spread: float = 0.2, direction: Direction = Direction.MAXIMIZE
) -> TrialPrediction:
    """Return a fan of two steps about 0.5 and 0.6."""
    rows = tuple(tuple(middle + spread * (one - 0.5) for one in LEVELS) for middle in (0.5, 0.6))
    prediction = Prediction(after=curve.last_step, steps=(7, 10), scores=rows, deviations=(0, 0))
    return TrialPrediction(
        trial=3, metric="accuracy", direction=direction, curve=curve, prediction=prediction
    )


def paths(drawing: Svg, look: str) -> list[list[tuple[float, float]]]:
    """Return the points of each path of a class within the frame."""
    root = ElementTree.fromstring(str(drawing))
    frame = next(one for one in root.iter() if one.get("clip-path") == "url(#dt-fan-3)")
    found = [one.get("d") or "" for one in frame if one.get("class") == look]
    return [
        [(float(x), float(y)) for x, y in re.findall(r"(-?[\d.]+) (-?[\d.]+)", path)]
        for path in found
    ]


def test_fan_bands_are_nested_and_begin_at_the_last_value() -> None:
    drawing = draw_fan(predicted())
    (curve,) = paths(drawing, "curve l2")
    (median,) = paths(drawing, "median")
    bands = paths(drawing, "fan")
    assert len(curve) == 3, "what is not finite is no point"
    assert median[0] == curve[-1]
    assert [len(band) for band in bands] == [5, 5, 5]
    assert all(band[0] == curve[-1] for band in bands)
    heights = [band[2][1] - band[3][1] for band in bands]
    assert heights == sorted(heights, reverse=True), "the widest is drawn first"
    low, high = bands[0][2][1], bands[0][3][1]
    assert high < median[-1][1] < low, "up is more"


def test_fan_siblings_begin_where_they_part() -> None:
    drawing = draw_fan(predicted())
    (other,) = paths(drawing, "faint")
    assert len(other) == 3
    assert "trials that begin alike" in str(drawing)
    assert "trials that begin alike" not in str(draw_fan(predicted(replace(CURVE, siblings=()))))


def test_fan_of_a_loss_falls() -> None:
    falling = draw_fan(
        predicted(replace(CURVE, scores=(-0.9, -0.8, -0.7, -0.6)), direction=Direction.MINIMIZE)
    )
    (curve,) = paths(falling, "curve l2")
    assert curve[0][1] < curve[-1][1]


def test_fan_with_a_target_shows_its_chance() -> None:
    drawing = draw_fan(predicted(), target=0.65)
    (y,) = re.findall(r'M72.0 ([\d.]+)H1096.0" class="target"', str(drawing))
    assert 64 <= float(y) <= 380 - 52
    assert "target 0.65" in str(drawing)
    assert drawing.label == (
        "trial 3, step 10: accuracy 0.6, 80% between 0.52 and 0.68; 0.65 with probability 0.25"
    )


def test_fan_with_huge_values_keeps_the_scale_of_the_curve() -> None:
    wide = predicted()
    rows = tuple((-1e9, *row[1:-1], 1e9) for row in wide.prediction.scores)
    drawing = draw_fan(replace(wide, prediction=replace(wide.prediction, scores=rows)))
    (curve,) = paths(drawing, "curve l2")
    assert abs(curve[0][1] - curve[-1][1]) > 20
    assert "nan" not in str(drawing)


@pytest.mark.parametrize("spread", [0.0, 1e-12, 1e9])
@pytest.mark.parametrize("value", [0.0, 0.5, -3e8, 1e-9])
def test_single_and_constant_curves_are_drawn(value: float, spread: float) -> None:
    for steps in ((4,), (1, 2, 3, 4)):
        curve = Curve(steps=steps, scores=(value,) * len(steps), max_steps=10)
        drawing = str(draw_fan(predicted(curve, spread=spread), target=value))
        assert not re.search(r'"[^"]*(?:nan|inf)[^"]*"', drawing)
        ElementTree.fromstring(drawing)


def test_names_are_text_and_it_is_saved_as_a_file(tmp_path: Path) -> None:
    hostile = replace(predicted(), metric="<script>alert(1)</script>&")
    path = draw_fan(hostile).save(tmp_path / "fan.svg")
    text = path.read_text()
    assert "<script" not in text
    assert text.startswith("<svg")
    ElementTree.fromstring(text)

"""Plots of sequences: right heights at right steps, as a file and in a notebook."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dasktune.errors import ConfigurationError
from dasktune.report import Svg, plot_sequence
from dasktune.report.axes import AxisScale, log_ticks, ticks
from dasktune.report.sequence_plot import MOST_STEPS, runs_of, sparkline
from dasktune.sequences import Constant, Exponential, MultiStep, Piecewise, Warmup

HOSTILE = '</text><script>alert("1")</script>&\''
NAMESPACE = "{http://www.w3.org/2000/svg}"


def elements(plot: Svg, tag: str, look: str = "") -> list[ElementTree.Element]:
    found = ElementTree.fromstring(str(plot)).iter(NAMESPACE + tag)
    return [one for one in found if look in (one.get("class") or "").split() or not look]


def stairs(plot: Svg, look: str = "curve") -> list[list[tuple[float, float]]]:
    paths = [one.get("d", "")[1:].split("L") for one in elements(plot, "path", look)]
    return [[(float(x), float(y)) for x, y in map(str.split, path)] for path in paths]


def words(plot: Svg) -> list[str]:
    return [one.text or "" for one in elements(plot, "text")]


def test_a_value_holds_for_whole_steps() -> None:
    ((first, drop, low, last),) = stairs(plot_sequence(MultiStep(1.0, [30], 0.5), 40))
    assert first[1] == drop[1] < low[1] == last[1], "a smaller value lies lower"
    assert drop[0] == low[0]
    assert (drop[0] - first[0]) / (last[0] - first[0]) == pytest.approx(0.75, abs=1e-3)


def test_each_sequence_has_a_panel_with_its_name() -> None:
    one = plot_sequence({"lr": Exponential(0.1, gamma=0.9)}, 20)
    both = plot_sequence({"lr": Exponential(0.1, gamma=0.9), "batch_size": 64}, 20)
    assert len(stairs(both)) == 2
    assert both.height > 1.5 * one.height
    # The one value of a constant is told, not the round ones around it.
    assert {"lr", "batch_size", "64"} <= set(words(both))
    assert words(both).count("step") == 2
    assert both.label == "lr, batch_size over 20 steps"


def test_a_sequence_without_a_name_is_called_by_its_formula() -> None:
    plot = plot_sequence(Warmup(5, 0.1) >> Constant(0.1), 20)
    assert plot.label == "Warmup(5, 0.1) >> Constant(0.1) over 20 steps"


def test_values_of_all_sizes_get_a_logarithmic_axis() -> None:
    plot = plot_sequence({"lr": Piecewise([1.0, 0.1, 0.001], boundaries=[10, 20])}, 30)
    (path,) = stairs(plot)
    high, middle, low = path[0][1], path[2][1], path[4][1]
    assert "lr (logarithmic)" in words(plot)
    assert (low - middle) / (middle - high) == pytest.approx(2, abs=0.01)


def test_values_that_are_no_numbers_have_a_tick_each() -> None:
    plot = plot_sequence({"kind": Piecewise(["sgd", "adam", "sgd"], boundaries=[2, 4])}, 6)
    (path,) = stairs(plot)
    assert {"sgd", "adam"} <= set(words(plot))
    assert path[0][1] == path[-1][1] != path[2][1]


def test_a_long_sequence_is_small_and_keeps_its_changes() -> None:
    late = Piecewise([0.1, 0.2, 0.1], boundaries=[777_777, 777_778])
    assert runs_of(late, 1_000_000)[1] == (777_777, 777_778, 0.2)
    plot = plot_sequence({"lr": Exponential(0.1, gamma=0.99999)}, 1_000_000)
    assert len(stairs(plot)[0]) <= 2 * MOST_STEPS
    assert len(str(plot)) < 100_000


def test_a_notebook_and_a_file_get_the_same_complete_drawing(tmp_path: Path) -> None:
    plot = plot_sequence({"lr": 0.1}, 10, tmp_path / "given.svg")
    assert plot.save(tmp_path / "saved.svg") == tmp_path / "saved.svg"
    drawings = [
        (tmp_path / "given.svg").read_text(encoding="utf-8"),
        (tmp_path / "saved.svg").read_text(encoding="utf-8"),
        plot._repr_svg_(),
        plot._repr_html_(),
        str(plot),
    ]
    assert len(set(drawings)) == 1
    assert ElementTree.fromstring(drawings[0]).tag == f"{NAMESPACE}svg"
    assert not re.search(r"href|url\(|@import", drawings[0])
    assert ".dt .curve" in drawings[0]


def test_names_and_values_are_text() -> None:
    plot = plot_sequence({HOSTILE: Piecewise([HOSTILE, "x"], boundaries=[2])}, 4)
    assert elements(plot, "script") == []
    assert words(plot).count(HOSTILE) == 2, "the name, and the tick of the value"


def test_text_that_no_file_can_hold_is_spelt_out(tmp_path: Path) -> None:
    path = plot_sequence({"a\udcff": 0.1}, 4).save(tmp_path / "plot.svg")
    assert r"a\udcff" in path.read_text(encoding="utf-8")


def test_a_sparkline_is_small_and_told_in_words() -> None:
    plot = sparkline(MultiStep(1.0, milestones=[30], gamma=0.5), 40)
    assert plot.label == "1 to 0.5 in 40 steps"
    ((first, *_, last),) = stairs(plot, "spark")
    assert 0 < first[1] < last[1] < plot.height


@pytest.mark.parametrize(
    ("sequences", "steps", "message"),
    [
        ({"lr": 0.1}, 0, "steps must be an int >= 1, got 0"),
        ({"lr": 0.1}, 1.5, "steps must be an int >= 1, got 1.5"),
        ({}, 5, "sequences must name at least one"),
        ({"lr": Warmup(3, 0.1)}, 5, "steps must be <= 3, where lr ends, got 5"),
        (Warmup(3, 0.1), 5, r"steps must be <= 3, where Warmup(3, 0.1) ends, got 5"),
        ({"lr": print}, 5, "must be an int, float, bool, str or None"),
    ],
)
def test_what_cannot_be_plotted_is_refused_and_leaves_no_file(
    tmp_path: Path, sequences: object, steps: object, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        plot_sequence(sequences, steps, tmp_path / "plot.svg")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (-3, 7), (0.1, 0.1001), (1e-9, 2e-9), (-1e6, 1e6), (5, 5)]
)
def test_ticks_are_few_in_order_and_inside(low: float, high: float) -> None:
    for most in range(2, 13):
        found = ticks(low, high, most)
        assert 1 <= len(found) <= most + 1
        assert found == sorted(set(found))
        slack = 1e-6 * (high - low)
        assert low - slack <= found[0] <= found[-1] <= high + slack


@pytest.mark.parametrize(("low", "high"), [(0.001, 1), (1e-12, 1e12), (0.3, 90), (3e-4, 0.12)])
def test_ticks_of_a_logarithmic_axis_are_inside(low: float, high: float) -> None:
    for most in range(2, 9):
        found = log_ticks(low, high, most)
        assert found == sorted(set(found))
        assert low <= found[0] <= found[-1] <= high
        assert 2 <= len(found) <= most + 3


def test_a_scale_takes_its_ends_to_its_ends() -> None:
    for log in (False, True):
        scale = AxisScale(low=1.0, high=100.0, start=10.0, end=30.0, log=log)
        assert (scale(1.0), scale(100.0)) == (10.0, 30.0)
    assert scale(10.0) == pytest.approx(20.0)

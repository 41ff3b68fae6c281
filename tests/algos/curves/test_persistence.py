"""The last score stays, with a spread that is what the curve has done so far."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasktune.algos.curves import Curve, Persistence
from dasktune.algos.curves.mcmc.frame import Axis, Frame
from dasktune.testing import PredictorConformance

SCORES = st.lists(st.floats(-100, 100), min_size=1, max_size=30)


def curve(scores: list[float], **bounds: float) -> Curve:
    steps = tuple(range(1, len(scores) + 1))
    return Curve(steps=steps, scores=tuple(scores), max_steps=90, **bounds)


class TestConformance(PredictorConformance):
    def make(self) -> Persistence:
        return Persistence()


@given(SCORES)
def test_the_median_is_the_last_score(scores: list[float]) -> None:
    found = Persistence().predict(curve(scores), (40, 90))
    assert found.medians == pytest.approx([scores[-1]] * 2)


@given(SCORES)
def test_the_spread_grows_with_the_distance(scores: list[float]) -> None:
    found = Persistence().predict(curve(scores), (40, 60, 90))
    widths = [high - low for low, high in found.interval(0.8)]
    assert widths[0] <= widths[1] <= widths[2]
    assert widths[0] > 0 or max(map(abs, scores)) < 1e-9
    assert list(found.deviations) == sorted(found.deviations)


def test_a_restless_curve_is_less_sure_than_a_quiet_one() -> None:
    quiet = Persistence().predict(curve([0.5, 0.51] * 8), (90,))
    restless = Persistence().predict(curve([0.5, 0.6] * 8), (90,))
    assert restless.deviations[0] == pytest.approx(10 * quiet.deviations[0])


def test_a_curve_that_never_moved_may_still_move() -> None:
    (low, high), *_ = Persistence().predict(curve([0.1] * 9, low=0, high=1), (90,)).interval(0.8)
    assert 0 < low < 0.1 < high < 0.2


def test_one_score_says_little() -> None:
    (low, high), *_ = Persistence().predict(curve([0.4], low=0, high=1), (90,)).interval(0.8)
    assert low == 0
    assert high > 0.7


def test_the_middle_of_walks_is_honest() -> None:
    """Of walks in ln x about 80% end within the interval of 80%, which t makes wide."""
    rng = np.random.default_rng(5)
    logs = np.diff(np.log(np.arange(1, 91)))
    held = 0
    for _ in range(300):
        walk = np.cumsum(rng.standard_normal(89) * np.sqrt(logs)).tolist()
        ((low, high),) = Persistence().predict(curve([0.0, *walk[:29]]), (90,)).interval(0.8)
        held += low <= walk[-1] <= high
    assert 0.75 < held / 300 < 0.92


@given(
    st.lists(st.integers(0, 500), min_size=1, max_size=9, unique=True).map(sorted),
    st.integers(1, 50),
)
def test_the_unit_of_steps_does_not_matter(steps: list[int], unit: int) -> None:
    first, other = Axis.of(steps), Axis.of([unit * step for step in steps])
    if first.first:
        assert other.x([unit * one for one in steps]) == pytest.approx(first.x(steps))
    assert first.x(steps).min() >= 1
    assert (np.diff(first.x(steps)) >= 1 - 1e-9).all()


@given(SCORES.filter(lambda scores: max(scores) - min(scores) > 1e-3))
def test_a_frame_holds_the_curve_and_gives_it_back(scores: list[float]) -> None:
    for bounds in ({}, {"low": -100.0}, {"high": 100.0}, {"low": -100.0, "high": 100.0}):
        frame = Frame.of(curve(scores, **bounds))
        y = frame.y(scores)
        assert ((y >= -1e-9) & (y <= 1 + 1e-9)).all()
        assert frame.scores(y) == pytest.approx(scores)


def test_a_curve_that_falls_is_turned_over() -> None:
    scores = [0.9, 0.5, 0.4, 0.35, 0.33, 0.32]
    y = Frame.of(curve(scores)).y(scores)
    assert list(y) == sorted(y)

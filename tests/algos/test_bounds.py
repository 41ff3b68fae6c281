"""The range of a metric: refused if it is none, and turned with the direction."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasktune.algos.stopping import checked_bounds, score_bounds, share_of
from dasktune.errors import InternalError
from dasktune.sequences.values import Arguments


@pytest.mark.parametrize(
    "bounds",
    [(1.0, 0.0), (1.0, 1.0), (0.0,), (0.0, 1.0, 2.0), (0.0, math.inf), (math.nan, 1.0), 3, "ab"],
)
def test_what_is_no_range_is_refused(bounds: object) -> None:
    check = Arguments("Any")
    assert checked_bounds(check, bounds) is None
    assert check.problems == [
        f"Any: bounds must be (low, high), finite and low < high, got {bounds!r}"
    ]


def test_a_range_may_be_a_list_of_whole_numbers_or_missing() -> None:
    check = Arguments("Any")
    assert checked_bounds(check, [-500, 300]) == (-500.0, 300.0)
    assert checked_bounds(check, None) is None
    assert check.problems == []


def test_a_range_needs_a_direction() -> None:
    assert score_bounds((0.0, 1.0), {"directions": ["maximize"]}) == (0.0, 1.0)
    assert score_bounds((0.0, 1.0), {"directions": ["minimize"]}) == (-1.0, 0.0)
    assert score_bounds((None, None), {}) == (None, None)
    with pytest.raises(InternalError, match="need the direction of the metric"):
        score_bounds((0.0, 1.0), {})


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.floats())
def test_a_share_is_from_0_at_the_worst_to_1_at_the_best(
    low: float, width: float, score: float
) -> None:
    bounds = (low, low + width)
    assert share_of(bounds[0], bounds) == 0.0
    assert share_of(bounds[1], bounds) == 1.0
    if not math.isnan(score):
        assert 0.0 <= share_of(score, bounds) <= 1.0

"""Confidence, remaining time and the division of slots are HyperDrive's (sections 3.1, 3.2)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasktune.algos.curves import LEVELS, Prediction
from dasktune.algos.pop.allocation import Chances, Division, divide, expectation

confidences = st.lists(st.floats(0, 1), max_size=30)


def chances(*reached: float) -> Chances:
    """Return the chances of steps 1, 2, ... after step 0."""
    return Chances(after=0, steps=tuple(range(1, len(reached) + 1)), reached=reached)


def test_confidence_and_expected_time_by_hand() -> None:
    # p_1 = 0.1, p_2 = 0.2, p_3 = 0.3: x = 0.1 + 0.4 + 0.9.
    found = expectation(
        chances(0.1, 0.3, 0.6), step=0, max_steps=3, step_seconds=10.0, left_seconds=math.inf
    )
    assert found.confidence == 0.6
    assert found.remaining_seconds == pytest.approx(14.0)


def test_only_what_can_be_trained_in_time_counts() -> None:
    # M = floor(25 / 10) = 2.
    found = expectation(
        chances(0.1, 0.3, 0.6), step=0, max_steps=3, step_seconds=10.0, left_seconds=25.0
    )
    assert found.confidence == 0.3
    assert found.remaining_seconds == pytest.approx(5.0)


@pytest.mark.parametrize("left", [0.0, 9.0, -1.0])
def test_without_time_for_a_step_there_is_no_confidence(left: float) -> None:
    found = expectation(
        chances(0.5, 0.6), step=0, max_steps=2, step_seconds=10.0, left_seconds=left
    )
    assert found.confidence == 0.0


def test_the_expected_time_is_cut_at_what_is_left() -> None:
    found = expectation(
        chances(0.0, 1.0), step=0, max_steps=2, step_seconds=10.0, left_seconds=20.0
    )
    assert found.remaining_seconds == 20.0


def test_chances_are_interpolated_between_predicted_steps() -> None:
    coarse = Chances(after=10, steps=(20, 40), reached=(0.5, 0.7))
    assert [coarse.by(step) for step in (10, 15, 20, 30, 40, 99)] == pytest.approx(
        [0.0, 0.25, 0.5, 0.6, 0.7, 0.7]
    )
    # p_m = 0.05 for m = 1 to 10, and 0.01 for m = 11 to 30.
    by_hand = sum(0.05 * m for m in range(1, 11)) + sum(0.01 * m for m in range(11, 31))
    assert coarse.expected_steps(40) == pytest.approx(by_hand)


def test_what_was_reached_once_stays_reached() -> None:
    rising = tuple(float(level) for level in range(len(LEVELS)))
    falling = tuple(score - 10 for score in rising)
    prediction = Prediction(after=0, steps=(1, 2), scores=(rising, falling), deviations=(0, 0))
    found = Chances.of(prediction, 7.0).reached
    assert found[0] == found[1] == pytest.approx(0.5)


def test_the_threshold_is_where_desired_and_deserved_slots_cross() -> None:
    # S_effective: min(1, 3.6), min(2, 3.2), min(3, 0.4), min(4, 0.2).
    assert divide([0.1, 0.9, 0.05, 0.8], slots=4) == Division(threshold=0.8, slots=2)


def test_trials_that_take_several_slots_desire_more() -> None:
    # k = 2: min(2, 3.6), min(4, 3.2).
    assert divide([0.9, 0.8], slots=4, per_trial=2) == Division(threshold=0.8, slots=3.2)


def test_nobody_is_promising_without_confidence() -> None:
    assert (
        divide([], slots=4) == divide([0.0, 0.0], slots=4) == Division(threshold=math.inf, slots=0)
    )


@given(confidences, st.integers(1, 64))
def test_no_other_threshold_would_give_promising_trials_more(
    values: list[float], slots: int
) -> None:
    found = divide(values, slots)
    for threshold in values:
        satisfying = sum(value >= threshold for value in values)
        assert min(satisfying, slots * threshold) <= found.slots
    if found.slots:
        satisfying = sum(value >= found.threshold for value in values)
        assert found.slots == min(satisfying, slots * found.threshold)
        assert found.threshold in values


@given(confidences, st.integers(1, 64))
def test_more_slots_never_leave_fewer_to_promising_trials(values: list[float], slots: int) -> None:
    assert divide(values, slots).slots <= divide(values, slots + 1).slots


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.data())
def test_confidence_never_falls_with_more_time(rises: list[float], data: st.DataObject) -> None:
    total = max(1.0, sum(rises))
    reached = tuple(sum(rises[: end + 1]) / total for end in range(len(rises)))
    short, long = sorted(data.draw(st.tuples(st.floats(0, 200), st.floats(0, 200))))
    low, high = (
        expectation(
            chances(*reached), step=0, max_steps=len(rises), step_seconds=7.0, left_seconds=left
        )
        for left in (short, long)
    )
    assert 0 <= low.confidence <= high.confidence <= 1 + 1e-12
    assert low.remaining_seconds <= max(0.0, short)

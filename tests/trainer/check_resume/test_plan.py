"""A resume check is small, splits steps on no common divisor, and has a change of value inside."""

from itertools import combinations
from math import gcd

import pytest

from dasktune.sequences import Constant, Exponential, MultiStep, Piecewise, Warmup
from dasktune.trainer.check_resume.plan import (
    LONGEST,
    SPLITS,
    cost_of,
    first_change,
    plan_check,
    plan_one,
    spans_within,
    total_for,
    until,
)


def test_splits_have_no_common_divisor():
    assert {gcd(*pair) for pair in combinations(SPLITS, 2)} == {1}
    assert SPLITS[-1] < LONGEST


@pytest.mark.parametrize("total", range(2, 12))
def test_spans_lie_within_and_the_first_reaches_the_end(total):
    spans = spans_within(total)
    assert spans[0].stop == total
    assert all(1 <= span.split < span.stop <= total for span in spans)


@pytest.mark.parametrize("steps", range(4, 40))
def test_total_for_keeps_to_the_steps(steps):
    total = total_for(steps, None)
    assert cost_of(total, spans_within(total)) <= steps
    assert total == LONGEST or cost_of(total + 1, spans_within(total + 1)) > steps


@pytest.mark.parametrize(
    ("lr", "change", "moved_from"),
    [
        (Constant(0.1), None, None),
        (Exponential(0.1, 0.9), 3, None),
        (MultiStep(0.1, [4], 0.5), 4, None),
        (MultiStep(0.1, [60], 0.5), 3, 60),
        (MultiStep(0.1, [10**9], 0.5), 3, 10**9),
        (Warmup(2, 0.1) >> Constant(0.1), None, None),
        (Piecewise([1, 2, 3], [1, 40])[:41], 3, 40),
    ],
)
def test_plan_check_has_the_first_change_inside(lr, change, moved_from):
    plan = plan_check({"lr": lr, "width": Constant(8)}, 7, reach=200)
    assert (plan.change, plan.moved_from) == (change, moved_from)
    values = [hp["lr"] for hp in plan.values]
    at = change if change is not None else 7
    assert values[:at] == lr.values(0, at)
    if moved_from is not None:
        assert values[at] == lr(moved_from) != values[at - 1]
    assert len(values) >= 7


def test_plan_check_keeps_to_the_end_of_the_configuration():
    plan = plan_check({"lr": MultiStep(0.1, [4], 0.5)[:9]}, 7, reach=200)
    assert len(plan.values) == 9


def test_plan_one_is_as_it_was_asked_for():
    plan = plan_one({"lr": MultiStep(0.1, [60], 0.5)}, 3, 6)
    assert [(span.split, span.stop) for span in plan.spans] == [(3, 6)]
    assert (plan.total, plan.change, plan.cost) == (6, None, 12)
    assert [hp["lr"] for hp in plan.values] == [0.1] * 6


@pytest.mark.parametrize(
    ("lr", "step"), [(0.1, None), (MultiStep(0.1, [60], 0.5), 60), (Exponential(0.1, 0.9), 1)]
)
def test_first_change_is_the_first_step_of_another_value(lr, step):
    assert first_change({"lr": lr, "width": 8}, 100) == step
    assert first_change({"lr": lr}, 60) == (1 if step == 1 else None)


def test_until_ends_a_sequence_that_is_longer():
    assert until(0.1, 5).end == 5
    assert until(Warmup(3, 0.1), 5).end == 3

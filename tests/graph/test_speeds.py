"""Estimated seconds per step, from measurements."""

from __future__ import annotations

from dasktune.graph.keys import root_key
from dasktune.graph.plan import Node, SearchPlan
from dasktune.graph.speeds import Speeds
from dasktune.sequences import Constant


def leaf(plan: SearchPlan, trial: int, **values: object) -> Node:
    """Return the leaf of a trial with these constant values."""
    plan.register(trial, {name: Constant(value) for name, value in values.items()}, 4)
    return plan.paths[trial].leaf


def test_estimate_is_the_mean_of_the_same_kind_then_of_all() -> None:
    plan, speeds = SearchPlan(root_key("speeds", 0)), Speeds()
    small, large = leaf(plan, 0, batch=16, lr=0.1), leaf(plan, 1, batch=64, lr=0.1)
    assert (speeds.is_known, speeds.seconds_per_step(small)) == (False, 1.0)
    speeds.observe(small, steps=2, seconds=1.0)
    speeds.observe(leaf(plan, 2, batch=16, lr=0.5), steps=2, seconds=3.0)
    assert (speeds.is_known, speeds.seconds_per_step(small)) == (True, 1.0)
    assert speeds.seconds_per_step(large) == 1.0
    speeds.observe(large, steps=1, seconds=5.0)
    assert speeds.seconds_per_step(large) == 5.0
    assert speeds.seconds_per_step(leaf(plan, 3, batch=128, lr=0.1)) == 9.0 / 5


def test_measurement_without_steps_or_time_is_ignored() -> None:
    plan, speeds = SearchPlan(root_key("speeds", 0)), Speeds()
    node = leaf(plan, 0, lr=0.1)
    assert not speeds.observe(node, steps=0, seconds=1.0)
    assert not speeds.observe(node, steps=1, seconds=0.0)
    assert not speeds.is_known


def test_lengths_change_when_the_measurements_have_doubled() -> None:
    plan, speeds = SearchPlan(root_key("speeds", 0)), Speeds()
    node = leaf(plan, 0, lr=0.1)
    moved = [speeds.observe(node, steps=1, seconds=2.0**number) for number in range(9)]
    assert [number + 1 for number, has_moved in enumerate(moved) if has_moved] == [1, 2, 4, 8]


def test_lengths_stay_while_estimates_move_by_a_tenth() -> None:
    plan, speeds = SearchPlan(root_key("speeds", 0)), Speeds()
    node = leaf(plan, 0, lr=0.1)
    assert speeds.observe(node, steps=1, seconds=1.0)
    assert not speeds.observe(node, steps=1, seconds=1.2)
    assert not speeds.observe(node, steps=2, seconds=9.0), "the third measurement"
    assert speeds.observe(node, steps=1, seconds=1.0)


def test_old_measurements_fade() -> None:
    plan, speeds = SearchPlan(root_key("speeds", 0)), Speeds()
    node = leaf(plan, 0, lr=0.1)
    for _ in range(3):
        speeds.observe(node, steps=10_000, seconds=10_000.0)
    speeds.observe(node, steps=10_000, seconds=30_000.0)
    assert 1.95 < speeds.seconds_per_step(node) < 2.05

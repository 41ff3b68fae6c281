"""Estimated seconds per step, from measurements."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
from hypothesis import given

from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.events import Progress, RunStage, Started, TrainingEnded, WorkerJoined
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


def models(count: int) -> list[Node]:
    """Return the leaves of trials of so many models."""
    plan = SearchPlan(root_key("speeds", 0))
    return [leaf(plan, number, width=number, lr=0.1) for number in range(count)]


def test_class_has_its_own_estimate() -> None:
    speeds, (node,) = Speeds(), models(1)
    speeds.observe(node, steps=2, seconds=1.0, kind="fast")
    assert speeds.seconds_per_step(node, "slow") == 0.5, "nothing tells the classes apart yet"
    speeds.observe(node, steps=2, seconds=6.0, kind="slow")
    assert speeds.seconds_per_step(node, "fast") == 0.5
    assert speeds.seconds_per_step(node, "slow") == 3.0


def test_unmeasured_class_has_the_mean_factor_of_models() -> None:
    speeds, (first, second, third, never) = Speeds(), models(4)
    for node, slow in ((first, 2.0), (second, 8.0)):
        speeds.observe(node, steps=1, seconds=1.0, kind="fast")
        speeds.observe(node, steps=1, seconds=slow, kind="slow")
    speeds.observe(third, steps=1, seconds=5.0, kind="fast")
    assert speeds.seconds_per_step(third, "slow") == pytest.approx(20.0)
    # A model that nobody trained: 1, 1 and 5 seconds on "fast", 2 and 8 on "slow" a fourth.
    mean = (1 + 1 + 5 + (2 + 8) / 4) / 5
    assert speeds.seconds_per_step(never, "fast") == pytest.approx(mean)
    assert speeds.seconds_per_step(never, "slow") == pytest.approx(4 * mean)


def test_estimate_without_class_is_that_of_an_average_slot() -> None:
    speeds, (node,) = Speeds(), models(1)
    speeds.observe(node, steps=1, seconds=1.0, kind="fast")
    speeds.observe(node, steps=1, seconds=4.0, kind="slow")
    assert speeds.set_slots({"fast": 1, "slow": 4})
    assert speeds.seconds_per_step(node) == 5 / (1 + 4 / 4)
    assert not speeds.set_slots({"fast": 2, "slow": 4}), "the classes are the same"
    assert speeds.set_slots({"slow": 4})
    assert speeds.seconds_per_step(node) == 4.0


def test_first_class_is_no_reason_to_recompute_lengths() -> None:
    speeds = Speeds()
    assert not speeds.set_slots({"any": 1})
    assert not speeds.set_slots({})


@given(st.lists(st.floats(0.1, 10.0), min_size=3, max_size=3), st.randoms())
def test_products_of_model_and_class_are_estimated_exactly(
    costs: list[float], random: object
) -> None:
    speeds, nodes, factors = Speeds(), models(3), {"a": 1.0, "b": 3.0, "c": 0.2}
    pairs = [(0, "a"), (0, "b"), (0, "c"), (1, "b"), (2, "c")]
    random.shuffle(pairs)  # type: ignore[attr-defined]
    for number, kind in pairs:
        speeds.observe(nodes[number], steps=3, seconds=3 * costs[number] * factors[kind], kind=kind)
    for cost, node in zip(costs, nodes, strict=True):
        for kind, factor in factors.items():
            assert math.isclose(speeds.seconds_per_step(node, kind), cost * factor, rel_tol=1e-9)


def test_models_with_equal_values_tell_more_of_a_factor() -> None:
    plan, speeds = SearchPlan(root_key("speeds", 0)), Speeds()
    for number, (net, batch, slow) in enumerate([("a", 16, 2.0), ("a", 32, 2.0), ("b", 16, 18.0)]):
        node = leaf(plan, number, net=net, batch=batch)
        speeds.observe(node, steps=1, seconds=1.0, kind="fast")
        speeds.observe(node, steps=1, seconds=slow, kind="slow")
    like_a, like_b = leaf(plan, 3, net="a", batch=64), leaf(plan, 4, net="b", batch=64)
    for node in (like_a, like_b):
        speeds.observe(node, steps=1, seconds=1.0, kind="fast")
    mean = (2 * 2 * 18) ** (1 / 3)
    of_a, of_b = (2 * 2 * mean) ** (1 / 3), (18 * mean) ** (1 / 2)
    assert speeds.seconds_per_step(like_a, "slow") == pytest.approx((of_a * mean) ** 0.5)
    assert speeds.seconds_per_step(like_b, "slow") == pytest.approx((of_b * mean) ** 0.5)


def test_class_is_in_doubt_until_it_is_tried() -> None:
    speeds, (first, second, third) = Speeds(), models(3)
    speeds.set_slots({"fast": 1, "slow": 1})
    assert speeds.doubt(first, "slow") == 0.0, "nothing is known of the model at all"
    for node, slow in ((first, 2.0), (second, 8.0)):
        speeds.observe(node, steps=1, seconds=1.0, kind="fast")
        speeds.observe(node, steps=1, seconds=slow, kind="slow")
    speeds.observe(third, steps=1, seconds=1.0, kind="fast")
    assert speeds.doubt(third, "slow") > math.log(2.0) / 2
    assert speeds.doubt(third, "fast") == 0.0
    speeds.began(third, "slow")
    assert speeds.doubt(third, "slow") == 0.0


def test_profile_stays_when_the_first_worker_is_of_another_class() -> None:
    plan, speeds = SearchPlan(root_key("speeds", 0)), Speeds()
    node = leaf(plan, 0, batch=16)
    speeds.set_slots({"new": 1, "old": 1})
    speeds.observe(node, steps=1, seconds=1.0, kind="new")
    speeds.observe(node, steps=1, seconds=3.0, kind="old")
    before = speeds.profile(node)
    assert not speeds.set_slots({"old": 1, "new": 1})
    assert speeds.profile(node) == before


def progressed(steps: list[tuple[int, float]], end: tuple[int, float]) -> tuple[Dispatcher, Node]:
    """Return a dispatcher that was told of an attempt's steps and seconds, then of its end."""
    dispatcher = Dispatcher(root_key("progress", 0))
    dispatcher.register(0, {"width": Constant(8)}, 64)
    dispatcher.extend(0, 64, 0.0, 0.0)
    orders = dispatcher.handle(WorkerJoined(worker="w", kind="fast"), 0.0)
    (attempt,) = [order.attempt for order in orders if isinstance(order, RunStage)]
    dispatcher.handle(Started(attempt=attempt), 0.0)
    for step, seconds in steps:
        dispatcher.handle(Progress(attempt=attempt, step=step, seconds=seconds), seconds)
    if end[0]:
        ended = TrainingEnded(attempt=attempt, step=end[0], status="trained", seconds=end[1])
        dispatcher.handle(ended, end[1])
    return dispatcher, dispatcher.plan.paths[0].leaf


def test_speed_is_known_from_the_progress_of_a_running_stage() -> None:
    dispatcher, leaf = progressed([(1, 3.0)], (0, 0.0))
    assert dispatcher.speeds.seconds_per_step(leaf, "fast") == 3.0
    dispatcher, leaf = progressed([(1, 3.0), (4, 6.0)], (0, 0.0))
    assert dispatcher.speeds.seconds_per_step(leaf, "fast") == 1.5


def test_each_step_of_an_attempt_is_measured_once() -> None:
    steps = [(1, 3.0), (2, 4.0), (3, 5.0), (5, 9.0), (20, 30.0)]
    dispatcher, _ = progressed(steps, (64, 100.0))
    (speed,) = dispatcher.speeds.kept
    assert (speed.steps, speed.seconds) == (64.0, 100.0)


def test_progress_is_measured_each_time_the_steps_have_doubled() -> None:
    dispatcher, _ = progressed([(step, float(step)) for step in range(1, 64)], (0, 0.0))
    (speed,) = dispatcher.speeds.kept
    assert speed.steps == 32.0


def test_progress_without_seconds_is_not_measured() -> None:
    dispatcher, _ = progressed([(5, 0.0)], (0, 0.0))
    assert not dispatcher.speeds.is_known

"""Values of curves: evaluated once however many trials share them, and packed."""

from __future__ import annotations

from dasktune.graph.keys import BLOCK_STEPS, root_key
from dasktune.graph.plan import SearchPlan
from dasktune.graph.value_cache import ValueCache
from dasktune.sequences import Constant, Cosine, Exponential, Piecewise, Sequence, Warmup

STEPS = 5 * BLOCK_STEPS + 100
CURVE = Exponential(0.1, gamma=0.9999)


def plan_of(*paths: dict[str, Sequence], steps: int = STEPS) -> SearchPlan:
    """Return a plan in which the keys of all paths were computed."""
    plan = SearchPlan(root_key("value_cache", 0))
    for number, path in enumerate(paths):
        plan.register(number, path, steps).key_at(steps)
    return plan


def test_curve_of_many_trials_is_evaluated_once() -> None:
    plan = plan_of(*({"lr": CURVE, "width": Constant(2**n)} for n in range(8)))
    assert plan.value_cache.evaluated == STEPS


def test_curve_of_several_seeds_is_evaluated_once() -> None:
    plan = SearchPlan(root_key("value_cache", 0), merge=False)
    for number in range(4):
        plan.register(number, {"lr": CURVE}, STEPS, seed=number).key_at(STEPS)
    assert plan.value_cache.evaluated == STEPS


def test_curve_is_evaluated_as_far_as_requested() -> None:
    plan = plan_of({"lr": Cosine(0.1, 10**7)}, steps=100)
    assert plan.value_cache.evaluated == 100


def test_kept_values_are_eight_bytes_a_step() -> None:
    plan = plan_of({"lr": CURVE}, {"lr": CURVE, "width": Constant(1)})
    assert plan.value_cache.nbytes == 8 * STEPS


def test_curves_keep_no_more_than_their_bytes() -> None:
    value_cache = ValueCache(2 * 8 * BLOCK_STEPS)
    for start in range(0, 10 * BLOCK_STEPS, BLOCK_STEPS):
        value_cache.values(CURVE, start, start + BLOCK_STEPS)
        assert value_cache.nbytes <= 2 * 8 * BLOCK_STEPS
    assert value_cache.values(CURVE, 0, 4) == value_cache.values(CURVE, 0, 4)


def test_values_that_are_no_floats_come_as_they_are() -> None:
    assert ValueCache().values(Piecewise([1, True], [2]), 0, 4) == [1, 1, True, True]


def test_pieces_of_joined_curves_are_not_mixed_up() -> None:
    joined = Warmup(10, 0.5) >> CURVE
    value_cache = ValueCache()
    for start, stop in ((0, 10), (10, 20), (5, 15)):
        packed = ValueCache().values(joined, start, stop)
        assert (
            value_cache.values(joined, start, stop)
            == packed
            == value_cache.values(joined, start, stop)
        )
    assert value_cache.values(CURVE, 0, 10) == value_cache.values(joined, 10, 20)
    assert value_cache.evaluated == 10 + 10 + 2 * 10

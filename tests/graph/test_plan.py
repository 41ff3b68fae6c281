"""The search plan and its cost, against a reference that counts step by step."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasktune.errors import ConfigurationError, InternalError
from dasktune.graph.cost import cost_of, tree_bound
from dasktune.graph.keys import BLOCK_STEPS, root_key
from dasktune.graph.plan import Node, SearchPlan
from dasktune.graph.save_policy import SavePolicy
from dasktune.sequences import (
    Constant,
    Cyclic,
    Exponential,
    MultiStep,
    Piecewise,
    Sequence,
    WarmRestarts,
    Warmup,
)
from dasktune.types import Sequences, Step, Value

STEPS = 10
ROOT = root_key("plan", 0)
State = tuple[tuple[tuple[str, type, Value], ...], ...]

PARTS: st.SearchStrategy[Sequence] = st.one_of(
    st.sampled_from([Constant(1.0), Constant(1), Exponential(1.0, 0.5), Cyclic(0.5, 1.0, 1)]),
    st.builds(
        lambda at, gamma: MultiStep(1.0, [at], gamma),
        st.integers(1, STEPS),
        st.sampled_from([0.5, 1.0]),
    ),
    st.builds(lambda n: Warmup(n, 1.0) >> Constant(1.0), st.integers(1, 3)),
)
TRIALS = st.lists(
    st.tuples(
        st.fixed_dictionaries({"lr": PARTS}, optional={"batch": st.just(Constant(8))}),
        st.integers(1, STEPS),
    ),
    min_size=1,
    max_size=8,
)
Trials = list[tuple[Sequences, Step]]


def state_of(sequences: Sequences, step: Step) -> State:
    return tuple(
        tuple((name, type(one(at)), one(at)) for name, one in sorted(sequences.items()))
        for at in range(step)
    )


def states(trials: Trials) -> set[State]:
    return {state_of(one, step) for one, steps in trials for step in range(1, steps + 1)}


def planned(trials: Trials, **options: object) -> SearchPlan:
    plan = SearchPlan(ROOT, **options)  # type: ignore[arg-type]
    for trial, (sequences, steps) in enumerate(trials):
        plan.register(trial, sequences, steps)
    return plan


def length(plan: SearchPlan) -> int:
    return sum(node.stop - node.start for node in plan)


def check(plan: SearchPlan, trials: Trials) -> None:
    """Hold the plan against the trials it was made from."""
    assert length(plan) == len(states(trials))
    passing: dict[Node, int] = defaultdict(int)
    for trial, (sequences, steps) in enumerate(trials):
        nodes = plan.nodes_of(trial)
        assert [node.start for node in nodes] == [0, *(node.stop for node in nodes[:-1])]
        assert nodes[-1].stop >= steps
        for node in nodes:
            passing[node] += 1
            shown = min(node.stop, steps)
            assert state_of(node.sequences, shown) == state_of(sequences, shown)
    assert {node: node.passing for node in plan} == passing
    for node in plan:
        firsts = [state_of(child.sequences, node.stop + 1) for child in node.children.values()]
        assert len(set(firsts)) == len(firsts), "two children begin with the same step"
        assert all(child.parent is node for child in node.children.values())


@given(TRIALS)
def test_every_shared_step_is_planned_once_and_no_other(trials: Trials) -> None:
    check(planned(trials), trials)


@given(TRIALS)
def test_nodes_are_no_finer_than_trials_ask_for(trials: Trials) -> None:
    """Each node ends where trials part or one ends."""
    plan = planned(trials)
    ends = {state_of(sequences, steps) for sequences, steps in trials}
    for node in plan:
        assert len(node.children) > 1 or state_of(node.sequences, node.stop) in ends


@given(TRIALS)
def test_keys_name_states(trials: Trials) -> None:
    plan = planned(trials)
    keys = {
        state_of(node.sequences, step): node.key_at(step)
        for node in plan
        for step in range(node.start + 1, node.stop + 1)
    }
    assert len(set(keys.values())) == len(keys) == length(plan)
    again = planned(trials[::-1])
    for trial, (sequences, steps) in enumerate(trials[::-1]):
        assert again.node_at(trial, steps).key_at(steps) == keys[state_of(sequences, steps)]


@given(TRIALS, st.data())
def test_what_a_node_knows_survives_every_split(trials: Trials, data: st.DataObject) -> None:
    plan = planned(trials[:1])
    (first, *_) = plan
    known = {}
    for step in data.draw(st.sets(st.integers(1, first.stop))):
        first.checkpoints.add(step)
        first.metrics.add(step, {"loss": float(step)})
        known[state_of(first.sequences, step)] = float(step)
    first.request(0, 2.0)
    end = state_of(first.sequences, first.stop)
    for trial, (sequences, steps) in enumerate(trials[1:], start=1):
        plan.register(trial, sequences, steps)
    found = {}
    for node in plan:
        assert [*node.checkpoints] == [*node.metrics]
        for step, metrics in node.metrics.items():
            assert node.start < step <= node.stop
            found[state_of(node.sequences, step)] = metrics["loss"]
        if node.requests:
            assert (node, node.requests, state_of(node.sequences, node.stop)) == (
                first,
                {0: 2.0},
                end,
            )
    assert found == known
    assert first.requests


@given(TRIALS)
def test_registering_again_changes_nothing(trials: Trials) -> None:
    plan = planned(trials)
    before = {node.number: (node.start, node.stop, node.passing) for node in plan}
    for trial, (sequences, steps) in enumerate(trials):
        plan.register(trial, sequences, steps)
    assert {node.number: (node.start, node.stop, node.passing) for node in plan} == before
    for trial, (sequences, steps) in enumerate(trials, start=len(trials)):
        plan.register(trial, sequences, steps)
    assert {node.number: (node.start, node.stop) for node in plan} == {
        number: (start, stop) for number, (start, stop, _) in before.items()
    }


@given(TRIALS, st.lists(st.integers(1, STEPS), min_size=8, max_size=8))
def test_a_trial_carried_on_is_one_registered_in_full(trials: Trials, later: list[Step]) -> None:
    plan = planned(trials)
    for trial, (sequences, _) in enumerate(trials):
        assert plan.register(trial, sequences, later[trial]).stop == later[trial]
    longer = [(one, max(n, m)) for (one, n), m in zip(trials, later, strict=False)]
    assert length(plan) == len(states(longer))
    for trial, (sequences, steps) in enumerate(longer):
        leaf = plan.nodes_of(trial)[-1]
        assert leaf.stop >= steps
        assert state_of(leaf.sequences, steps) == state_of(sequences, steps)


LONG = 3 * BLOCK_STEPS
CURVE = {"lr": Exponential(0.1, gamma=0.9999), "width": Constant(64)}


def _hashes(function: Callable[[], object]) -> int:
    """Return how many states a call hashes."""
    digests: list[str] = []

    def count(frame: object, event: str, called: Any) -> None:
        if event == "c_call" and called.__name__ in ("digest", "hexdigest"):
            digests.append(event)

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return len(digests)


def test_keys_of_ascending_steps_hash_each_step_once() -> None:
    leaf = SearchPlan(ROOT).register(0, CURVE, LONG)
    steps = range(1, LONG + 1)
    assert _hashes(lambda: [leaf.key_at(step) for step in steps]) <= 2 * LONG


def test_keys_inside_a_hashed_curve_hash_one_block() -> None:
    leaf = SearchPlan(ROOT).register(0, CURVE, LONG)
    leaf.key_at(LONG)
    for step in (LONG - 1, BLOCK_STEPS // 2, 2 * BLOCK_STEPS, 2 * BLOCK_STEPS - 1):
        assert _hashes(lambda at=step: leaf.key_at(at)) <= BLOCK_STEPS + 1


def test_keys_after_a_split_stay_the_same() -> None:
    expected = SearchPlan(ROOT).register(0, CURVE, LONG)
    plan = SearchPlan(ROOT)
    leaf = plan.register(0, CURVE, LONG)
    leaf.key_at(LONG), leaf.key_at(BLOCK_STEPS + 5)
    cut = BLOCK_STEPS + 9
    plan.register(1, {**CURVE, "lr": CURVE["lr"][:cut] >> Constant(0.5)}, LONG)
    assert leaf.start == cut
    for step in (1, BLOCK_STEPS, BLOCK_STEPS + 5, cut - 1, cut, cut + 1, LONG - 1, LONG):
        assert leaf.key_at(step) == expected.key_at(step)
    assert _hashes(lambda: leaf.key_at(cut - 2)) <= BLOCK_STEPS + 1


def test_positions_computed_elsewhere_need_no_hashing_again() -> None:
    expected = SearchPlan(ROOT).register(0, CURVE, LONG)
    plan = SearchPlan(ROOT)
    leaf = plan.register(0, CURVE, LONG)
    start = leaf.known_position(LONG)
    assert start.step == 0
    marks = list(start.chain.marks(CURVE, 0, LONG))
    top = plan.register(1, CURVE, BLOCK_STEPS + 7)
    leaf.learn_positions(marks)
    assert leaf.known_position(LONG).step == LONG
    assert top.known_position(BLOCK_STEPS + 7).step == BLOCK_STEPS
    assert _hashes(lambda: leaf.key_at(LONG)) <= 1
    assert _hashes(lambda: top.key_at(top.stop)) <= 8
    for step in (1, top.stop, top.stop + 1, LONG - 1, LONG):
        assert leaf.key_at(step) == expected.key_at(step)


@given(TRIALS)
def test_without_merging_nothing_is_shared(trials: Trials) -> None:
    plan = planned(trials, merge=False)
    assert length(plan) == sum(steps for _, steps in trials)
    keys = [node.key_at(node.stop) for node in plan]
    assert len(set(keys)) == len(keys) == len(trials)


def test_trial_alone_has_keys_that_name_it() -> None:
    plan = SearchPlan(ROOT, alone_key="bb" * 16)
    merged = [plan.register(trial, CURVE, 9) for trial in (0, 1)]
    alone = [
        plan.register(trial, CURVE, 9, seed, is_alone=True) for trial, seed in ((2, 0), (3, 5))
    ]
    other = SearchPlan("cc" * 16, alone_key="bb" * 16).register(2, CURVE, 9, is_alone=True)
    assert merged[0] is merged[1]
    assert len({node.key_at(step) for node in (*merged, *alone) for step in (0, 9)}) == 6
    assert other.key_at(9) == alone[0].key_at(9), "named by the study, the trial and the values"
    assert [plan.root_key_of(node) for node in (*merged, *alone)] == [ROOT] * 2 + ["bb" * 16] * 2
    assert [plan.seed_of(node) for node in alone] == [0, 5]


def test_removed_trial_leaves_its_nodes() -> None:
    plan = planned([({"lr": Constant(1.0)}, 9), ({"lr": MultiStep(1.0, [4], 0.5)}, 9)])
    trunk, own = plan.nodes_of(1)
    assert plan.remove(1) == [trunk, own]
    assert 1 not in plan.paths
    assert plan.nodes_of(0)[0] is trunk
    assert (trunk.passing, own.passing) == (1, 0)


def test_plan_reports_new_nodes_and_splits() -> None:
    told: list[tuple[str, int, int]] = []
    plan = SearchPlan(
        ROOT,
        on_split=lambda top, bottom: told.append(("split", top.stop, bottom.number)),
        on_new=lambda node: told.append(("new", node.start, node.stop)),
    )
    plan.register(0, {"lr": Constant(1.0)}, 9)
    plan.register(1, {"lr": MultiStep(1.0, [4], 0.5)}, 9)
    plan.register(2, {"lr": Constant(1.0)}, 9)
    plan.register(2, {"lr": Constant(1.0)}, 12)
    first = plan.nodes_of(0)[-1]
    assert told == [("new", 0, 9), ("split", 4, first.number), ("new", 4, 9), ("new", 9, 12)]


def test_a_node_is_cut_only_inside() -> None:
    plan = planned([({"lr": Constant(1.0)}, 9)])
    node = plan.node_at(0, 9)
    assert plan.cut(node, 9) is node
    assert plan.cut(node, 4).stop == node.start == 4
    with pytest.raises(InternalError, match="cannot be cut at step 4"):
        plan.cut(node, 4)
    with pytest.raises(InternalError, match="not registered up to step 10"):
        plan.node_at(0, 10)


# ------------------------------------------------------------------------------- cost


@given(TRIALS, st.integers(1, 4))
def test_cost_is_what_counting_step_by_step_gives(trials: Trials, workers: int) -> None:
    cost = cost_of(trials, workers=workers)
    unique = states(trials)
    assert cost.steps_requested == sum(steps for _, steps in trials)
    assert cost.steps_unique == len(unique)
    assert cost.critical_path == max(steps for _, steps in trials)
    deeper = [t + sum(len(state) > t for state in unique) / workers for t in range(STEPS + 1)]
    longest = cost.critical_path
    assert cost.bound_steps == pytest.approx(max(longest, *deeper[: longest + 1]))


def grid() -> Trials:
    """Return 144 trials in the manner of Hippo's study of ResNet56 (Shin et al., section 6)."""

    def drop(*at: int) -> Sequence:
        return MultiStep(0.1, list(at), gamma=0.1)

    decay = Exponential(0.1, gamma=0.95)
    lrs = [Constant(0.1), drop(90), drop(60, 90), drop(40, 80), decay]
    lrs += [Warmup(5, 0.1) >> one for one in (Constant(0.1), drop(85), drop(55, 85), decay)]
    lrs += [Warmup(10, 0.1) >> one for one in (Constant(0.1), WarmRestarts(0.1, 20))]
    lrs += [Cyclic(0.001, 0.1, 20)]
    batches = [
        Constant(128),
        Piecewise([128, 256], [70]),
        Piecewise([128, 256], [40]),
        Piecewise([128, 512], [100]),
    ]
    momenta = [
        Constant(0.9),
        Piecewise([0.7, 0.8, 0.9], [40, 80]),
        Piecewise([0.9, 0.95], [80]),
    ]
    every = product(lrs, batches, momenta)
    return [({"lr": lr, "batch_size": b, "momentum": m}, 120) for lr, b, m in every]


@pytest.mark.parametrize(
    ("workers", "bound"), [(1, 7024.0), (2, 3512.0), (8, 878.0), (16, 446.25), (40, 206.5)]
)
def test_the_cost_of_a_grid_of_144(workers: int, bound: float) -> None:
    cost = cost_of(grid(), workers=workers)
    assert (cost.trials, cost.steps_requested, cost.steps_unique) == (144, 17_280, 7_024)
    assert cost.merge_rate == pytest.approx(2.4601, abs=1e-4)
    assert cost.bound_steps == bound
    assert cost.critical_path == 120


def test_the_bound_of_one_chain_is_its_length() -> None:
    plan = planned([({"lr": Constant(1.0)}, 9)])
    assert tree_bound(plan, 1) == tree_bound(plan, 5) == 9.0
    assert tree_bound([], 3) == 0.0


def test_a_cost_says_what_it_means() -> None:
    text = str(cost_of([({"lr": Constant(v)}, 10) for v in (0.1, 0.2)], workers=2))
    assert "2 trials ask for 20 steps; 20 are unique (100%)" in text
    assert "p = 1.000: nothing can merge in this space" in text
    assert "at least 10 steps of wall time on 2 workers" in text


def test_checkpoints_are_counted_by_the_policy() -> None:
    trials = [({"lr": MultiStep(1.0, [4], 0.5)}, 9), ({"lr": Constant(1.0)}, 9)]
    assert cost_of(trials, workers=1).checkpoints == 3
    assert cost_of(trials, workers=1, saves=SavePolicy(every=3)).checkpoints == 3 + 3
    with pytest.raises(ConfigurationError, match="checkpoint_every must be an int >= 1, got 0"):
        SavePolicy(every=0)
    with pytest.raises(ConfigurationError, match="workers must be >= 1, got 0"):
        cost_of(trials, workers=0)

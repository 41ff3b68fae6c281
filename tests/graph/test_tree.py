"""The stage tree [Hippo Algorithm 1], and as a Dask graph."""

from __future__ import annotations

from collections.abc import Sequence as Many

import dask
import pytest
from dask.threaded import get as threaded_get
from dask.typing import Key

from dasktune.errors import ConfigurationError
from dasktune.graph.keys import root_key
from dasktune.graph.plan import SearchPlan
from dasktune.graph.tree import Stage, StageTree, build_stage_tree, dask_key
from dasktune.sequences import Constant, MultiStep, Piecewise, Sequence
from dasktune.trainer import Trainer, run_alone
from dasktune.trainer.lifecycle import TrainerRun
from dasktune.types import Step

ROOT = root_key("tree", 0)


def plan_of(*trials: tuple[Sequence, Step]) -> SearchPlan:
    """Return a plan in which each trial is asked for to its end."""
    plan = SearchPlan(ROOT)
    for trial, (sequence, steps) in enumerate(trials):
        plan.register(trial, {"lr": sequence}, steps).request(trial, 0.0)
    return plan


def tree_of(plan: SearchPlan, running: Many[int] = ()) -> StageTree:
    return build_stage_tree(plan, lambda node: node.number in running)


def spans(tree: StageTree) -> list[tuple[Step, Step]]:
    return sorted((stage.start, stage.stop) for stage in tree)


def trunk() -> SearchPlan:
    """Return a trunk to 9 with branches at 4 (to 8) and at 6 (to 7)."""
    return plan_of((Constant(1.0), 9), (MultiStep(1.0, [4], 0.5), 8), (MultiStep(1.0, [6], 0.5), 7))


def test_each_shared_stage_is_there_once() -> None:
    tree = tree_of(trunk())
    assert spans(tree) == [(0, 4), (4, 6), (4, 8), (6, 7), (6, 9)]
    assert tree.steps == 4 + 2 + 4 + 1 + 3
    (root,) = tree.children(None)
    assert (root.start, root.stop, root.trials, root.start_key) == (0, 4, 3, ROOT)
    children = tree.children(root.node)
    assert {(one.start, one.stop, one.start_key) for one in children} == {
        (4, 6, root.key),
        (4, 8, root.key),
    }


def test_parents_come_before_their_children() -> None:
    seen: set[int] = set()
    for stage in tree_of(trunk()):
        assert stage.parent is None or stage.parent in seen
        seen.add(stage.node)


def test_what_has_a_checkpoint_is_not_trained() -> None:
    plan = trunk()
    plan.node_at(0, 4).checkpoints.add(4)
    assert spans(tree_of(plan)) == [(4, 6), (4, 8), (6, 7), (6, 9)]
    plan.node_at(1, 8).checkpoints.add(7)
    assert spans(tree_of(plan)) == [(4, 6), (6, 7), (6, 9), (7, 8)]


def test_a_checkpoint_inside_a_stage_is_where_it_starts() -> None:
    plan = trunk()
    plan.node_at(0, 4).checkpoints.add(3)
    tree = tree_of(plan)
    assert spans(tree)[0] == (3, 4)
    (first,) = (stage for stage in tree if stage.start == 3)
    assert first.start_key == plan.node_at(0, 3).key_at(3)
    assert first.parent is None


def test_a_checkpoint_far_down_makes_what_is_above_it_needless() -> None:
    plan = plan_of((Constant(1.0), 9))
    plan.register(1, {"lr": MultiStep(1.0, [4], 0.5)}, 8)
    plan.node_at(0, 9).checkpoints.add(6)
    assert spans(tree_of(plan)) == [(6, 9)]


def test_a_running_stage_is_waited_for() -> None:
    plan = trunk()
    running = plan.node_at(0, 4)
    tree = tree_of(plan, [running.number])
    assert spans(tree) == [(4, 6), (4, 8), (6, 7), (6, 9)]
    assert {stage.waits_for for stage in tree if stage.start == 4} == {running.number}
    assert {stage.waits_for for stage in tree if stage.start == 6} == {None}
    with pytest.raises(ConfigurationError, match="being trained now"):
        tree.to_dask(lambda stage, before: None)


def test_a_state_without_metrics_is_a_stage_of_no_steps() -> None:
    plan = plan_of((Constant(1.0), 9))
    plan.node_at(0, 9).checkpoints.add(9)
    assert spans(tree_of(plan)) == [(9, 9)]


def test_tree_of_plan_without_requests_is_empty() -> None:
    plan = SearchPlan(ROOT)
    plan.register(0, {"lr": Constant(1.0)}, 9)
    assert len(tree_of(plan)) == 0


# ------------------------------------------------------------------------------- Dask


class Counting(Trainer):
    """A model of two numbers, in which the order of all values leaves its trace."""

    def build(self, hp: dict[str, object]) -> None:
        self.weight, self.steps = 1.0, 0

    def setup(self, hp: dict[str, object]) -> None:
        self.lr = hp["lr"]

    def train(self) -> None:
        self.weight = self.weight * 0.9 + float(self.lr) / 3  # type: ignore[arg-type]
        self.steps += 1

    def evaluate(self) -> dict[str, float]:
        return {"weight": self.weight}

    def state_dict(self) -> dict[str, object]:
        return {"weight": self.weight, "steps": self.steps}

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.weight, self.steps = state["weight"], state["steps"]  # type: ignore[assignment]


def train(stage: Stage, before: object) -> dict[str, object]:
    """Train one stage as a worker does; a result is the state."""
    first = {name: one(0) for name, one in stage.sequences.items()}
    if before is None:
        run = TrainerRun.start(Counting, first, config={}, seed=0, device="cpu")
    else:
        run = TrainerRun.resume(
            Counting,
            step=stage.start,
            first_values=first,
            last_values={name: one(stage.start - 1) for name, one in stage.sequences.items()},
            state=before,  # type: ignore[arg-type]
            config={},
            seed=0,
            device="cpu",
        )
    for step in range(stage.start, stage.stop):
        run.advance({name: one(step) for name, one in stage.sequences.items()})
    return run.state()


TRIALS = (
    (Constant(1.0), 9),
    (MultiStep(1.0, [4], 0.5), 8),
    (Piecewise([1.0, 0.25, 2.0], [6, 7]), 9),
    (Constant(3.0), 2),
)


@pytest.mark.parametrize("get", [dask.get, threaded_get])
def test_dask_runs_the_tree_to_what_each_trial_alone_gives(get: object) -> None:
    plan = plan_of(*TRIALS)
    graph = tree_of(plan).to_dask(train)
    assert len(graph) == len(list(plan)) == 6
    ends: list[Key] = [
        f"stage-{plan.node_at(trial, steps).key_at(steps)}"
        for trial, (_, steps) in enumerate(TRIALS)
    ]
    found = get(graph, ends)  # type: ignore[operator]
    alone = [
        run_alone(Counting, {"lr": one}, steps, states_at=[steps]).states[steps]
        for one, steps in TRIALS
    ]
    assert list(found) == alone


def test_to_dask_names_a_stage_by_its_end_state_after_its_parent() -> None:
    tree = tree_of(trunk())
    graph = tree.to_dask(train)
    for stage in tree:
        task = graph[dask_key(stage)]
        before = None if stage.parent is None else f"stage-{stage.start_key}"
        assert task[-1] == before

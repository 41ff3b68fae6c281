"""Keys of long curves: the driver's loop hashes few of them, a thread hashes the others."""

from __future__ import annotations

import gc
import queue
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import dasktune as dt
from dasktune._driver import stage_keys
from dasktune._driver.stage_keys import CHANGES_PER_TURN, KeysHashed, StageKeys
from dasktune.errors import ConfigurationError
from dasktune.graph.events import RunStage
from dasktune.graph.keys import BLOCK_STEPS, root_key
from dasktune.graph.plan import Node, SearchPlan
from dasktune.sequences import Constant, Exponential
from dasktune.types import Sequences
from tests.holding import PATIENCE

ROOT = root_key("stages", 0)
CURVE: Sequences = {"lr": Exponential(0.1, gamma=1 - 1e-6)}
LONG = 40 * BLOCK_STEPS + 50
AT_ONCE = CHANGES_PER_TURN + BLOCK_STEPS


class Hashes:
    """Counts the hashes that the thread of a test computes, by turn of a loop."""

    def __init__(self) -> None:
        self.turns = [0]

    def __call__(self, frame: object, event: str, called: Any) -> None:
        if event == "c_call" and called.__name__ in ("digest", "hexdigest"):
            self.turns[-1] += 1
        elif event == "c_call" and called.__name__ == "get" and "Queue" in repr(called):
            self.turns.append(0)


@contextmanager
def counted() -> Iterator[Hashes]:
    """Count the hashes of this thread alone."""
    hashes = Hashes()
    sys.setprofile(hashes)
    try:
        yield hashes
    finally:
        sys.setprofile(None)


class Loop:
    """A loop with orders, as the driver's."""

    def __init__(self) -> None:
        self.inbox: queue.SimpleQueue[KeysHashed] = queue.SimpleQueue()
        self.open: set[str] = set()
        self.keys = StageKeys(self.open, self.inbox.put)
        self.started: list[str] = []

    def order(self, node: Node, after: str | None = None) -> RunStage:
        attempt = f"attempt-{len(self.open)}"
        self.open.add(attempt)
        start = node.start
        return RunStage(
            attempt=attempt,
            order=len(self.open),
            worker="w0",
            after=after,
            node=node,
            start=start,
            stop=node.stop,
            saves=(),
            needs={},
        )

    def start(self, *orders: RunStage) -> None:
        self.keys.turn()
        for order in orders:
            self.started += [ready.attempt for ready in self.keys.start(order)]

    def receive_until(self, count: int) -> None:
        """Receive messages until so many stages have started."""
        while len(self.started) < count:
            self.receive()

    def receive(self) -> None:
        message = self.inbox.get(timeout=PATIENCE)
        self.keys.turn()
        self.started += [ready.attempt for ready in self.keys.receive(message)]


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loop]:
    monkeypatch.setattr(stage_keys, "CHANGES_PER_JOB", 4 * BLOCK_STEPS)
    loop = Loop()
    yield loop
    loop.keys.close()


def planned(*paths: Sequences, steps: int = LONG) -> list[Node]:
    plan = SearchPlan(ROOT)
    return [plan.register(number, path, steps) for number, path in enumerate(paths)]


def test_loop_hashes_a_bounded_part_of_a_long_curve(loop: Loop) -> None:
    (node,) = planned(CURVE)
    with counted() as hashes:
        loop.start(loop.order(node))
        loop.receive_until(1)
        node.key_at(LONG)
    assert max(hashes.turns) <= AT_ONCE
    assert sum(hashes.turns) < LONG / 4
    assert node.key_at(LONG) == planned(CURVE)[0].key_at(LONG)


def test_loop_hashes_little_for_many_stages_at_once(loop: Loop) -> None:
    nodes = planned(*({**CURVE, "width": Constant(n)} for n in range(20)), steps=BLOCK_STEPS)
    with counted() as hashes:
        loop.start(*map(loop.order, nodes))
        loop.receive_until(len(nodes))
    assert max(hashes.turns) <= AT_ONCE


def test_thread_goes_on_to_another_stage_after_a_part(loop: Loop) -> None:
    nodes = planned(CURVE, {"lr": Exponential(0.2, gamma=1 - 1e-6)})
    loop.start(*map(loop.order, nodes))
    known = [node.known_position(LONG).step for node in nodes]
    for number, node in enumerate(nodes):
        loop.receive()
        trained = node.known_position(LONG).step - known[number]
        assert trained == stage_keys.CHANGES_PER_JOB


def test_short_stages_start_at_once(loop: Loop) -> None:
    nodes = planned({"lr": Constant(0.1)}, {"lr": Constant(0.2)}, CURVE, steps=100)
    loop.start(*map(loop.order, nodes))
    assert loop.started == ["attempt-0", "attempt-1", "attempt-2"]


def test_other_stages_do_not_wait_for_a_long_curve(loop: Loop) -> None:
    nodes = planned(CURVE, {"lr": Constant(0.1)})
    loop.start(*map(loop.order, nodes))
    assert loop.started == ["attempt-1"]
    loop.receive_until(2)


def test_stages_on_one_path_keep_their_order(loop: Loop) -> None:
    plan = SearchPlan(ROOT)
    top = plan.register(0, CURVE, LONG // 2)
    bottom = plan.register(0, CURVE, LONG)
    first = loop.order(top)
    second = loop.order(bottom, after=first.attempt)
    third = loop.order(plan.register(1, {"lr": Constant(1.0)}, 5), after=second.attempt)
    loop.start(first, second, third)
    assert loop.started == []
    loop.receive_until(3)
    assert loop.started == [first.attempt, second.attempt, third.attempt]


def test_curve_of_two_waiting_stages_is_evaluated_once(loop: Loop) -> None:
    plan = SearchPlan(ROOT)
    paths = [{**CURVE, "width": Constant(width)} for width in (1, 2, 3)]
    nodes = [plan.register(number, path, LONG) for number, path in enumerate(paths)]
    loop.start(*map(loop.order, nodes))
    loop.receive_until(3)
    in_thread, in_loop = loop.keys.value_cache.evaluated, plan.value_cache.evaluated
    assert in_thread + in_loop <= LONG + AT_ONCE
    assert in_loop <= AT_ONCE


def test_trunk_that_two_stages_wait_for_is_hashed_once(loop: Loop) -> None:
    plan = SearchPlan(ROOT)
    plan.register(0, CURVE, LONG)
    branch = {"lr": CURVE["lr"][: LONG - 10] >> Constant(0.5)}  # type: ignore[index]
    nodes = [plan.nodes_of(0)[-1], plan.register(1, branch, LONG)]
    loop.start(*map(loop.order, nodes))
    loop.receive_until(2)
    assert loop.keys.value_cache.evaluated <= LONG


def test_stage_of_a_lost_worker_is_dropped(loop: Loop) -> None:
    (node,) = planned(CURVE)
    order = loop.order(node)
    loop.start(order)
    loop.open.clear()
    loop.receive()
    assert loop.started == []
    assert loop.keys.give_up() == []


def test_edge_split_while_it_is_hashed_keeps_its_keys(loop: Loop) -> None:
    plan = SearchPlan(ROOT)
    node = plan.register(0, CURVE, LONG)
    loop.start(loop.order(node))
    cut = 6 * BLOCK_STEPS + 3
    top = plan.register(1, CURVE, cut)
    loop.start(loop.order(top))
    loop.receive_until(2)
    for step in (1, cut, cut + 1, LONG):
        assert node.key_at(step) == planned(CURVE)[0].key_at(step)


def test_stages_that_wait_can_be_given_up(loop: Loop) -> None:
    nodes = planned(CURVE, {"lr": Constant(0.1)})
    loop.start(*map(loop.order, nodes))
    (event,) = loop.keys.give_up()
    assert (event.attempt, event.step, event.status) == ("attempt-0", nodes[0].start, "skipped")
    loop.receive()
    assert loop.started == ["attempt-1"]


def test_value_that_overflows_in_the_thread_ends_the_run(loop: Loop) -> None:
    curve = {"lr": Exponential(1.0, gamma=1.05)}
    plan = SearchPlan(ROOT)
    loop.start(loop.order(plan.register(0, curve, 14_560)))
    with pytest.raises(ConfigurationError, match="overflows at step 14548"):
        loop.receive_until(1)


def test_memory_of_a_long_curve_is_under_ten_bytes_a_step() -> None:
    steps = 500 * BLOCK_STEPS
    (node,) = planned(CURVE, steps=steps)
    loop = Loop()
    gc.collect()
    tracemalloc.start()
    loop.start(loop.order(node))
    loop.receive_until(1)
    gc.collect()
    nbytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    loop.keys.close()
    assert nbytes < 10 * steps


class Idle(dt.Trainer):
    """Has no state but its step, and reports its value."""

    def build(self, hp: Any) -> None:
        self.steps = 0

    def setup(self, hp: Any) -> None:
        self.lr = hp["lr"]

    def train(self) -> None:
        self.steps += 1

    def evaluate(self) -> dict[str, float]:
        return {"loss": float(self.lr)}

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: Any) -> None:
        self.steps = state["steps"]


def test_run_with_long_curves_hashes_little_in_its_loop(
    tmp_path: Path, one_worker: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage_keys, "CHANGES_PER_TURN", BLOCK_STEPS)
    steps = 20 * BLOCK_STEPS
    space = dt.Space(lr=[Exponential(0.1, gamma=1 - 1e-6), Constant(0.1)])
    study = dt.create_study(Idle, name="long", storage=tmp_path, metric="loss", report_every=steps)
    with counted() as hashes:
        study.optimize(dt.algos.Grid(space, max_steps=steps), client=one_worker, progress=False)
    assert [trial.state.value for trial in study.trials] == ["COMPLETE"] * 2
    # A turn may ask for some keys near to those that are known: each costs a block at most.
    assert max(hashes.turns) <= 6 * BLOCK_STEPS

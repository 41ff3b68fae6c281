"""Trials with needs of their own: where their stages run, and that none runs twice."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dasktune._driver.waiting import Surroundings, waits_of
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.events import (
    Deliver,
    Failed,
    Instruction,
    RunStage,
    Saved,
    Started,
    TrainingEnded,
    WorkerJoined,
    WorkerLost,
)
from dasktune.graph.keys import root_key
from dasktune.graph.matching import AWAY_SECONDS
from dasktune.graph.plan import Node
from dasktune.graph.view import RunView
from dasktune.needs import NO_NEEDS, Needs
from dasktune.sequences import Piecewise

STEPS = 9
GPU, BIG = Needs.of({"GPU": 1}), Needs.of({"tags": "big"})


class Play:
    """A dispatcher whose workers train each stage as soon as it is ordered."""

    def __init__(self) -> None:
        self.dispatcher = Dispatcher(root_key("needs", 0))
        self.orders: list[RunStage] = []
        self.reported: set[int] = set()

    def trial(self, number: int, split: int, needs: Needs) -> None:
        sequence = Piecewise([0.1 if split > 1 else -number, 0.2 + number], [split])
        self.dispatcher.register(number, {"lr": sequence}, STEPS, needs=needs)

    def extend(self, number: int) -> None:
        self.go_on(self.dispatcher.extend(number, STEPS, 0.0, 0.0))

    def join(self, worker: str, resources: dict[str, float], *tags: str) -> None:
        event = WorkerJoined(worker=worker, resources=resources, tags=frozenset(tags))
        self.go_on(self.dispatcher.handle(event, 0.0))

    def go_on(self, instructions: Iterable[Instruction]) -> None:
        todo = deque(instructions)
        while todo:
            instruction = todo.popleft()
            if isinstance(instruction, Deliver):
                self.reported.add(instruction.report.trial)
            if isinstance(instruction, RunStage):
                self.orders.append(instruction)
                todo.extend(self.train(instruction))

    def train(self, order: RunStage) -> list[Instruction]:
        attempt, stop = order.attempt, order.stop
        events = [
            Started(attempt=attempt),
            *(Saved(attempt=attempt, step=step) for step in order.saves),
            TrainingEnded(attempt=attempt, step=stop, status="trained", seconds=1.0),
            Saved(attempt=attempt, step=stop, reports=((stop, {"loss": 0.0}),)),
        ]
        return [made for event in events for made in self.dispatcher.handle(event, 0.0)]


def test_stages_run_where_their_trial_needs_it() -> None:
    play = Play()
    play.trial(0, 1, GPU)
    play.trial(1, 1, BIG)
    play.extend(0)
    play.extend(1)
    play.join("plain", {})
    assert play.orders == []
    play.join("gpu", {"GPU": 2})
    play.join("big", {}, "big")
    assert [(order.worker, order.needs) for order in play.orders] == [
        ("gpu", {"GPU": 1}),
        ("big", {}),
    ]


def test_shared_stage_runs_where_all_needs_are_met() -> None:
    play = Play()
    for number, needs in enumerate((GPU, BIG)):
        play.trial(number, 4, needs)
    play.join("gpu", {"GPU": 1})
    play.join("both", {"GPU": 1}, "big")
    play.extend(0)
    play.extend(1)
    assert play.orders[0].worker == "both"
    assert play.reported == {0, 1}


def test_shared_stage_runs_for_one_trial_if_no_worker_fits_all() -> None:
    play = Play()
    for number, needs in enumerate((GPU, BIG)):
        play.trial(number, 4, needs)
        play.extend(number)
    play.join("big", {}, "big")
    assert play.reported == {1}
    play.join("gpu", {"GPU": 1})
    assert play.reported == {0, 1}
    ran = [(order.worker, order.start, order.stop) for order in play.orders]
    assert ran == [("big", 0, 4), ("big", 4, 9), ("gpu", 4, 9)]
    assert play.dispatcher.open.steps_repeated == 0


def test_stage_that_raises_is_tried_only_where_it_fits() -> None:
    play = Play()
    play.trial(0, 1, GPU)
    dispatcher = play.dispatcher
    for worker, resources in ("plain", {}), ("gpu", {"GPU": 1.0}):
        dispatcher.handle(WorkerJoined(worker=worker, resources=resources), 0.0)
    order = dispatcher.extend(0, STEPS, 0.0, 0.0)[0]
    for _ in range(2):
        assert isinstance(order, RunStage)
        assert order.worker == "gpu"
        failed = Failed(attempt=order.attempt, step=0, message="boom")
        (order,) = dispatcher.handle(failed, 0.0)
    assert not isinstance(order, RunStage), "it fails: there is no other worker"


def test_needs_of_an_earlier_run_are_forgotten() -> None:
    play = Play()
    play.trial(0, 1, GPU)
    play.dispatcher.dismiss()
    play.trial(0, 1, BIG)
    play.extend(0)
    play.join("gpu", {"GPU": 1})
    assert play.orders == []
    play.join("big", {}, "big")
    assert play.reported == {0}


def test_trials_of_a_class_that_is_gone_are_named() -> None:
    play = Play()
    play.trial(0, 1, GPU)
    play.trial(1, 1, NO_NEEDS)
    play.join("gpu", {"GPU": 1})
    play.join("plain", {})
    play.dispatcher.handle(WorkerLost(worker="gpu"), 0.0)
    play.extend(0)
    (unmet,) = waits_of(RunView(play.dispatcher), Surroundings(now=0.0))
    assert (unmet.kind, unmet.text) == (
        "resources",
        "1 stage of trial 0 to run: no worker has GPU=1; workers: a worker (neither amounts nor "
        "tags)",
    )
    play.extend(1)
    assert play.reported == {1}
    play.join("gpu again", {"GPU": 1})
    assert play.reported == {0, 1}


def test_waiting_stage_is_seen_when_its_needs_change() -> None:
    play = Play()
    play.join("plain", {})
    play.trial(0, 4, GPU)
    play.extend(0)
    assert play.orders == []
    play.trial(1, 4, NO_NEEDS)
    play.extend(1)
    assert play.reported == {1}
    assert [order.stop for order in play.orders] == [4, 9]
    play.join("gpu", {"GPU": 1})
    assert play.reported == {0, 1}


def test_stages_for_other_workers_are_not_looked_at() -> None:
    play = Play()
    play.join("plain", {})
    for number in range(50):
        play.trial(number, 1, GPU)
        play.extend(number)
    looked_at: list[Node] = []
    frontier = play.dispatcher.frontier

    def may_run(node: Node) -> bool:
        looked_at.append(node)
        return False

    matching = play.dispatcher.placing.matching
    assert frontier.best_ready(may_run, partial(matching.may_run, "plain")) is None
    assert looked_at == []
    assert len(list(frontier.ready())) == 50


def test_stages_that_are_passed_over_are_ready_meanwhile() -> None:
    """A question about one stage may ask for all: its answer must not depend on the order."""
    play = Play()
    for number in range(5):
        play.trial(number, 1, GPU)
        play.extend(number)
    frontier = play.dispatcher.frontier
    counts: list[int] = []

    def may_run(node: Node) -> bool:
        counts.append(len(list(frontier.ready())))
        return False

    assert frontier.best_ready(may_run) is None
    assert counts == [5] * 5


def test_idle_worker_beside_stages_for_others_says_so() -> None:
    dispatcher = Dispatcher(root_key("needs", 0))
    for number in range(2):
        sequence = Piecewise([-number, 0.2], [1])
        dispatcher.register(number, {"lr": sequence}, STEPS, needs=GPU)
        dispatcher.extend(number, STEPS, 0.0, 0.0)
    for worker, resources in ("gpu", {"GPU": 1.0}), ("plain", {}):
        dispatcher.handle(WorkerJoined(worker=worker, resources=resources), 0.0)
    (idle,) = waits_of(RunView(dispatcher), Surroundings(now=0.0))
    assert idle.text.endswith("nothing to do: the stages that can start need other workers")


def test_tuner_is_not_asked_for_ever_beside_idle_workers() -> None:
    play = Play()
    view = RunView(play.dispatcher)
    play.join("w0", {})
    play.join("w1", {})
    assert view.capacity(0.0) == 2
    for number, capacity in enumerate((1, 0, 0)):
        play.trial(number, 1, GPU)
        play.extend(number)
        assert view.capacity(0.0) == capacity


def test_tuner_is_asked_again_if_a_class_stays_away() -> None:
    play = Play()
    view = RunView(play.dispatcher)
    play.join("w0", {})
    play.join("w1", {})
    began = 0
    for now in (0.0, 1.0, AWAY_SECONDS - 1, AWAY_SECONDS, AWAY_SECONDS + 1, 2 * AWAY_SECONDS):
        for _ in range(view.capacity(now)):
            play.trial(began, 1, GPU)
            play.extend(began)
            began += 1
        assert view.capacity(now) == 0
        assert began == 2 * (1 + now // AWAY_SECONDS), "as many as workers, each time"
    play.trial(began, 1, NO_NEEDS)
    play.extend(began)
    assert play.reported == {began}
    play.join("gpu", {"GPU": 1})
    assert play.reported == {*range(began + 1)}
    assert view.capacity(2 * AWAY_SECONDS) == 3


def test_stage_that_a_worker_fitted_again_waits_anew() -> None:
    play = Play()
    view = RunView(play.dispatcher)
    play.join("w0", {})
    play.trial(0, 1, GPU)
    play.extend(0)
    assert view.capacity(0.0) == 0
    busy = WorkerJoined(worker="gpu", resources={"GPU": 1})
    play.dispatcher.handle(busy, 1.0)
    assert view.capacity(1.0) == 1
    play.dispatcher.handle(WorkerLost(worker="gpu"), 2.0)
    assert view.capacity(2.0) == 0
    assert view.capacity(AWAY_SECONDS + 1) == 0
    assert view.capacity(AWAY_SECONDS + 2) == 1


some_needs = st.sampled_from(
    [
        NO_NEEDS,
        GPU,
        BIG,
        Needs.of({"GPU": 1, "tags": "big"}),
        Needs.of([{"GPU": 2}, {"tags": "big"}]),
    ]
)
trials = st.lists(st.tuples(st.integers(1, 8), some_needs), min_size=1, max_size=6)
resources = st.sampled_from([{}, {"GPU": 1.0}, {"GPU": 2.0}])
workers = st.lists(st.tuples(resources, st.sampled_from([(), ("big",)])), min_size=1, max_size=4)


@given(trials, workers, st.booleans())
def test_every_trial_that_fits_some_worker_is_trained_once(
    configured: list[tuple[int, Needs]], present: list[Any], joins_first: bool
) -> None:
    play = Play()
    for number, (split, needs) in enumerate(configured):
        play.trial(number, split, needs)
    if joins_first:
        for number, (has, tags) in enumerate(present):
            play.join(f"w{number}", has, *tags)
    for number in range(len(configured)):
        play.extend(number)
    if not joins_first:
        for number, (has, tags) in enumerate(present):
            play.join(f"w{number}", has, *tags)
    offers = RunView(play.dispatcher).offers
    for number, (_, needs) in enumerate(configured):
        if any(map(needs.fits, offers.values())):
            assert number in play.reported
    assert play.dispatcher.open.steps_repeated == 0
    covered = [(order.node.number, order.start) for order in play.orders]
    assert len(covered) == len(set(covered))
    for order in play.orders:
        wanted, offer = order.node.needs, offers[order.worker]
        assert any(needs.fits(offer) for needs in wanted)

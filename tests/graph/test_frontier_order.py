"""The order of stages that can start: the longest path, or the deepest start, as it is told."""

from __future__ import annotations

from dasktune.graph.attempts import DispatchOptions
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.events import (
    Instruction,
    RunStage,
    Saved,
    StoreCrowded,
    TrainingEnded,
    WorkerJoined,
)
from dasktune.graph.keys import root_key
from dasktune.graph.save_policy import SavePolicy
from dasktune.sequences import Piecewise, Sequence
from dasktune.types import Step

PLAIN = DispatchOptions(attempt_prefix="a", saves=SavePolicy(at_changes=False))


def bush() -> list[Sequence]:
    """Return trials of 40 steps: four branches from step 10 on, each parting again at 20."""
    return [
        Piecewise([0.5, branch, twig], [10, 20])
        for branch in (1.0, 2.0, 3.0, 4.0)
        for twig in (0.1, 0.2, 0.3)
    ]


def order_of(dispatcher: Dispatcher, *events: StoreCrowded) -> tuple[list[tuple[Step, Step]], int]:
    """Return the stages in the order they ran on one worker, and the most states that waited."""
    for number, one in enumerate(bush()):
        dispatcher.register(number, {"lr": one}, 40)
    for number, _ in enumerate(bush()):
        dispatcher.extend(number, 40, 0.0, 0.0)
    for event in events:
        dispatcher.handle(event, 0.0)
    waiting: list[Instruction] = dispatcher.handle(WorkerJoined(worker="w"), 0.0)
    ran, most = [], 0
    while waiting:
        order = waiting.pop(0)
        assert isinstance(order, RunStage)
        ran.append((order.start, order.stop))
        reports = ((order.stop, {"loss": 1.0}),)
        said = dispatcher.handle(
            Saved(attempt=order.attempt, step=order.stop, reports=reports), 0.0
        )
        end = TrainingEnded(attempt=order.attempt, step=order.stop, status="trained", seconds=1.0)
        said += dispatcher.handle(end, 0.0)
        waiting += [one for one in said if isinstance(one, RunStage)]
        tree = dispatcher.frontier.tree()
        most = max(most, len({stage.start_key for stage in tree if stage.parent is None}))
    assert not dispatcher.wanted
    return ran, most


def test_deepest_start_first_trains_the_same_with_fewer_states() -> None:
    longest, many = order_of(Dispatcher(root_key("order", 0), PLAIN))
    crowded = StoreCrowded(is_crowded=True)
    deepest, few = order_of(Dispatcher(root_key("order", 0), PLAIN), crowded)
    assert sorted(longest) == sorted(deepest)
    assert longest != deepest
    assert few < many


def test_an_order_that_is_changed_back_is_the_first_one() -> None:
    dispatcher = Dispatcher(root_key("order", 0), PLAIN)
    for number, one in enumerate(bush()):
        dispatcher.register(number, {"lr": one}, 40)
        dispatcher.extend(number, 40, 0.0, 0.0)
    before = dispatcher.frontier.best_ready()
    dispatcher.handle(StoreCrowded(is_crowded=True), 0.0)
    dispatcher.handle(StoreCrowded(is_crowded=False), 0.0)
    assert dispatcher.frontier.best_ready() is before


def test_dismiss_ends_the_order_of_a_crowded_store() -> None:
    dispatcher = Dispatcher(root_key("order", 0), PLAIN)
    dispatcher.handle(StoreCrowded(is_crowded=True), 0.0)
    dispatcher.dismiss()
    assert order_of(dispatcher) == order_of(Dispatcher(root_key("order", 0), PLAIN))


def test_order_that_changes_starts_no_stage_that_is_not_waiting() -> None:
    dispatcher = Dispatcher(root_key("order", 0), PLAIN)
    for number, one in enumerate(bush()[:2]):
        dispatcher.register(number, {"lr": one}, 40)
    dispatcher.extend(0, 40, 0.0, 0.0)
    (order,) = dispatcher.handle(WorkerJoined(worker="a"), 0.0)[:1]
    assert isinstance(order, RunStage)
    told = dispatcher.handle(StoreCrowded(is_crowded=True), 0.0)
    told += dispatcher.handle(WorkerJoined(worker="b"), 0.0)
    assert not [each for each in told if isinstance(each, RunStage)], "the first one trains it"

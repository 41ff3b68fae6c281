"""Stages and the check of their trainer: what waits for it, and what does not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.events import (
    Deliver,
    Event,
    Failed,
    FailTrial,
    Instruction,
    RunStage,
    Saved,
    StagesHeld,
    Started,
    TrainingEnded,
    WorkerJoined,
    WorkersJoined,
)
from dasktune.graph.keys import root_key
from dasktune.graph.view import RunView
from dasktune.sequences import Piecewise

STEPS = 4


class Table:
    """A dispatcher whose trials part after two steps, and what it orders."""

    def __init__(self, trials: int, workers: int) -> None:
        self.dispatcher = Dispatcher(root_key("unchecked", 0))
        self.view = RunView(self.dispatcher)
        self.orders: dict[str, RunStage] = {}
        self.delivered: list[int] = []
        self.failed: list[int] = []
        self.now = 0.0
        for trial in range(trials):
            rates = {"lr": Piecewise([0.1, float(trial)], boundaries=[2])}
            self._take(self.dispatcher.register(trial, rates, STEPS))
            self._take(self.dispatcher.extend(trial, STEPS, 0.0, 0.0))
        self.workers = tuple(WorkerJoined(worker=f"w{number}") for number in range(workers))

    def join(self) -> None:
        self.tell(WorkersJoined(workers=self.workers))

    def tell(self, event: Event) -> None:
        self.now += 1.0
        self._take(self.dispatcher.handle(event, self.now))
        assert [*self.view.violations()] == []

    def _take(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case RunStage():
                    self.orders[instruction.attempt] = instruction
                case Deliver():
                    self.delivered.append(instruction.report.trial)
                case FailTrial():
                    self.failed.append(instruction.trial)
                case _:
                    pass

    @property
    def spans(self) -> list[tuple[int, int]]:
        return [(order.start, order.stop) for order in self.orders.values()]

    def train(self) -> None:
        """Train all that was ordered and all that follows."""
        while self.orders:
            order = self.orders.pop(next(iter(self.orders)))
            name, stop = order.attempt, order.stop
            self.tell(Started(attempt=name))
            self.tell(TrainingEnded(attempt=name, step=stop, status="trained", seconds=1.0))
            self.tell(Saved(attempt=name, step=stop, reports=((stop, {"loss": 1.0}),)))

    def fail(self) -> None:
        """Have the first stage that was ordered raise."""
        order = self.orders.pop(next(iter(self.orders)))
        self.tell(Started(attempt=order.attempt))
        message = "KeyError: 'lr'"
        self.tell(Failed(attempt=order.attempt, step=0, message=message, traceback=""))
        for name in list(self.orders):
            self.tell(TrainingEnded(attempt=name, step=2, status="skipped", seconds=0.0))
            del self.orders[name]


def test_what_loads_a_state_waits_for_the_check() -> None:
    table = Table(trials=3, workers=2)
    table.tell(StagesHeld(which="resumes"))
    table.join()
    assert table.spans == [(0, 2), (2, 4)], "a path goes on from memory"
    assert not table.view.is_checked
    table.train()
    assert len(table.delivered) == 1
    assert table.view.stages_waiting == 2
    table.tell(StagesHeld(which="none"))
    assert table.spans == [(2, 4), (2, 4)]
    assert table.view.is_checked
    table.train()
    assert sorted(table.delivered) == [0, 1, 2]
    assert (table.dispatcher.open.steps_executed, table.dispatcher.open.steps_repeated) == (8, 0)


def test_nothing_begins_where_all_is_held() -> None:
    table = Table(trials=2, workers=2)
    table.tell(StagesHeld(which="all"))
    table.join()
    assert table.spans == []
    table.tell(StagesHeld(which="none"))
    table.train()
    assert sorted(table.delivered) == [0, 1]


def test_the_next_run_holds_nothing_back_by_itself() -> None:
    table = Table(trials=2, workers=1)
    table.tell(StagesHeld(which="resumes"))
    table.join()
    table.train()
    assert table.view.stages_waiting == 1
    table.dispatcher.dismiss()  # the run was stopped before the check had ended
    assert table.view.is_checked


@pytest.mark.parametrize("workers", [1, 2])
def test_what_raises_beside_the_check_is_no_fault_of_a_trial(workers: int) -> None:
    table = Table(trials=2, workers=workers)
    table.tell(StagesHeld(which="resumes"))
    table.join()
    table.fail()
    for event in (StagesHeld(which="resumes"), StagesHeld(which="none")):
        assert (table.spans, table.failed) == ([], []), "the check may say why"
        table.tell(event)
        if event.which == "none":
            assert table.spans[0] == (0, 2), "it is tried again"

"""A policy that is left out leaves a run that trains all that is asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import pytest

from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.events import (
    Deliver,
    Event,
    Granted,
    Instruction,
    Paused,
    RunStage,
    Saved,
    Started,
    TrainingEnded,
    WorkerJoined,
    WorkersJoined,
)
from dasktune.graph.keys import root_key
from dasktune.graph.policies import POLICIES
from dasktune.graph.policy import Policy
from dasktune.graph.view import RunView
from dasktune.sequences import Piecewise

LISTS: list[Sequence[type[Policy]]] = [
    (),
    *([each for each in POLICIES if each is not policy] for policy in POLICIES),
    *([policy] for policy in POLICIES),
    POLICIES[::-1],
]


def name_of(policies: Sequence[type[Policy]]) -> str:
    return " ".join(policy.__name__ for policy in policies) or "none"


class Run:
    """Three trials that part after two steps, on four unlike workers of two devices."""

    def __init__(self, policies: Sequence[type[Policy]]) -> None:
        self.dispatcher = Dispatcher(root_key("policies", 0), policies=policies)
        self.orders: deque[RunStage] = deque()
        self.delivered: list[int] = []
        for trial in range(3):
            rates = {"lr": Piecewise([0.1, float(trial)], boundaries=[2])}
            self.carry_out(self.dispatcher.register(trial, rates, 4))
            self.carry_out(self.dispatcher.extend(trial, 4, 0.0, 0.0))
        workers = [
            WorkerJoined(worker=f"w{number}", kind=f"class {number % 2}", device=f"d{number // 2}")
            for number in range(4)
        ]
        self.tell(WorkersJoined(workers=tuple(workers)))

    def tell(self, event: Event) -> None:
        self.carry_out(self.dispatcher.handle(event, 1.0))
        assert [*RunView(self.dispatcher).violations()] == []

    def carry_out(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, RunStage):
                self.orders.append(instruction)
            elif isinstance(instruction, Deliver):
                self.delivered.append(instruction.report.trial)

    def train(self) -> None:
        while self.orders:
            order = self.orders.popleft()
            name, stop = order.attempt, order.stop
            self.tell(Started(attempt=name))
            self.tell(TrainingEnded(attempt=name, step=stop, status="trained", seconds=1.0))
            self.tell(Saved(attempt=name, step=stop, reports=((stop, {"loss": 1.0}),)))


@pytest.mark.parametrize("policies", LISTS, ids=name_of)
def test_trials_are_trained_whatever_is_left_out(policies: Sequence[type[Policy]]) -> None:
    run = Run(policies)
    run.train()
    assert sorted(run.delivered) == [0, 1, 2]
    assert (run.dispatcher.open.steps_executed, run.dispatcher.open.steps_repeated) == (8, 0)


def test_a_run_without_policies_has_none_of_their_effects() -> None:
    run = Run(())
    run.tell(Paused(workers=frozenset(["w0", "w1"])))
    run.tell(Granted(workers=frozenset(["w0"])))
    view = RunView(run.dispatcher)
    lists = (view.aside, view.paused, view.withheld, view.beside, view.gathering, view.packed)
    assert [*map(list, lists)] == [[]] * len(lists)
    assert view.factor_changes == ()
    assert list(view.claimable) == ["w0", "w1", "w2", "w3"]
    assert view.kept.factors == ()
    run.train()
    assert sorted(run.delivered) == [0, 1, 2]

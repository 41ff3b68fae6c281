"""The parts of the driver's loop that need no cluster, by messages and turns."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dasktune._driver.attempts import LineageRefused
from dasktune._driver.demand import RunDemand
from dasktune._driver.lost_workers import LostWorkers
from dasktune._driver.parts import Answered, AskedQuestion, Draining, Part
from dasktune._driver.predictions import Predictions
from dasktune._driver.refused_lineages import RefusedLineages
from dasktune._driver.refused_resumes import ResumeRefusedError
from dasktune._driver.worker_notes import WorkerNotes
from dasktune._driver.worker_supply import WorkerSupply
from dasktune._engine.outcome import RunPrediction
from dasktune._engine.timeouts import PREDICTION_SECONDS
from dasktune.errors import ClusterError
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.events import WorkerGone, WorkerJoined
from dasktune.graph.policies.broken_workers import BrokenWorkers
from dasktune.graph.view import RunView
from dasktune.sequences import Constant
from tests.driver.test_predictions import QUESTION

PATIENCE = 5.0


def drained(demand: RunDemand) -> RunDemand:
    demand.receive(Draining(), 0.0)
    return demand


def test_part_without_methods_says_nothing() -> None:
    assert [*Part().receive(Draining(), 0.0), *Part().turn(0.0)] == []


@pytest.mark.parametrize("to_begin", [3, None])
def test_demand_of_a_drained_run_has_no_new_trials(to_begin: int | None) -> None:
    engine = cast(Any, SimpleNamespace(to_begin=to_begin))
    assert RunDemand(engine).left == to_begin
    assert drained(RunDemand(engine)).left == 0


def test_supply_gives_up_once_all_workers_are_gone_for_long() -> None:
    dispatcher = Dispatcher("root")
    cluster = cast(Any, SimpleNamespace(elastic=None))
    lost, demand = LostWorkers(lambda _: None), RunDemand(cast(Any, None))
    supply = WorkerSupply(RunView(dispatcher), cluster, lost, demand, patience=PATIENCE)
    for now in (0.0, PATIENCE):
        assert supply.turn(now) == ()
    dispatcher.handle(WorkerJoined(worker="w"), 0.0)
    assert supply.turn(9.0) == ()
    dispatcher.handle(WorkerGone(worker="w"), 0.0)
    for now in (10.0, 10.0 + PATIENCE):
        assert supply.turn(now) == (), "patience begins anew"
    with pytest.raises(ClusterError, match="all are gone since 5 s"):
        supply.turn(10.1 + PATIENCE)


def test_notes_name_a_worker_put_aside_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    dispatcher = Dispatcher("root")
    dispatcher.handle(WorkerJoined(worker="w1"), 0.0)
    policy = dispatcher.placing.policy(BrokenWorkers)
    assert policy is not None
    policy.put_aside("w1", 0.0)
    notes = WorkerNotes(RunView(dispatcher))
    for now in (0.0, 1.0):
        assert notes.turn(now) == ()
    assert caplog.text.count("tried again in") == 1


def test_questions_are_given_up_before_others_are_sent() -> None:
    predictions = Predictions(["a"])
    predictions.add(RunPrediction(trial=5, question=QUESTION))
    (asked,) = predictions.turn(0.0)
    assert isinstance(asked, AskedQuestion)
    predictions.add(RunPrediction(trial=6, question=QUESTION))
    given_up, asked = predictions.turn(1.0 + PREDICTION_SECONDS)
    assert given_up == Answered(subject=5, answer=None)
    assert isinstance(asked, AskedQuestion)


def test_no_question_is_sent_while_a_run_is_drained() -> None:
    predictions = Predictions(["a"])
    predictions.add(RunPrediction(trial=5, question=QUESTION))
    predictions.receive(Draining(), 0.0)
    assert [*predictions.turn(0.0)] == []


def test_refused_lineage_ends_the_run_once() -> None:
    dispatcher = Dispatcher("root")
    for trial, rate in enumerate((0.1, 0.2)):
        dispatcher.register(trial, {"lr": Constant(rate)}, 10)
    refused = RefusedLineages(dispatcher.plan)
    refused.check()
    for _ in range(2):
        node = dispatcher.plan.paths[1].leaf
        refused.receive(LineageRefused(node=node, step=3, text="it differs", paths=()), 0.0)
    with pytest.raises(ResumeRefusedError, match="trial 1 cannot go on") as raised:
        refused.check()
    assert len(raised.value.refused) == 1

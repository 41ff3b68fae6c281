"""The engine asks for the priorities of a forest's models, and the event log keeps them."""

from __future__ import annotations

import pytest

from dasktune._engine.event_log import in_words, replay
from dasktune._engine.outcome import RunAssessment
from dasktune._engine.tuner_records import read_record
from dasktune.algos import Random
from dasktune.algos.curves import Curve, Persistence, Question
from dasktune.algos.forest import Forest, ForestSource
from dasktune.algos.forest.priority import Priority
from dasktune.errors import InternalError
from dasktune.space import Choice, Float, Space
from dasktune.types import Assess, Objective
from tests.engine.test_engine import Bench, loss

SPACE = Space(lr=Choice([Float(0.1, 0.2), Float(0.5, 0.9)]))
PRIORITY = Priority(shortest=0.25, longest=8.0)


def new_tuner() -> Random:
    return Random(SPACE, trials=24, max_steps=2, sampler=Forest())


def models_of(tuner: Random) -> list[tuple[float, float | None, int]]:
    """Return weight, priority and number of trials of each model."""
    assert isinstance(tuner.source, ForestSource)
    return [(model.weight, model.priority, model.trials) for model in tuner.source.model_weights]


def questions(bench: Bench) -> list[RunAssessment]:
    """Take the questions out of the orders."""
    asked = [order for order in bench.orders if isinstance(order, RunAssessment)]
    for order in asked:
        bench.orders.remove(order)
    return asked


def work(bench: Bench) -> None:
    """Train a stage, and ask for more when there is none."""
    bench.take(bench.engine.ask(1, 0.0))
    bench.run_but_questions(1)


def asked_first(snapshot_every: int = 1000) -> tuple[Bench, Random, RunAssessment]:
    """Return a study that has just asked its first question."""
    bench, tuner = Bench(loss, snapshot_every=snapshot_every), new_tuner()
    bench.begin(tuner)
    while True:
        work(bench)
        if asked := questions(bench):
            return bench, tuner, asked[0]


def test_a_priority_reaches_the_tuner_and_the_log() -> None:
    bench, tuner, order = asked_first()
    assert bench.engine.predicting
    bench.take(bench.engine.predicted(order.subject, PRIORITY, 0.0))
    assert not bench.engine.predicting
    assert models_of(tuner)[order.model][1] == PRIORITY.value
    assert bench.log[-1] == {
        "kind": "assessed",
        "model": order.model,
        "priority": {"shortest": 0.25, "longest": 8.0},
        "place": 0,
        "decisions": [],
    }
    assert in_words(read_record(bench.log[-1])) == f"the priority of model {order.model}"
    assert f"assess model {order.model}" in in_words(read_record(bench.log[-2]))


def test_a_replay_takes_priorities_from_the_log() -> None:
    bench, tuner = Bench(loss), new_tuner()
    bench.begin(tuner)
    while not bench.engine.finished:
        work(bench)
        for number, order in enumerate(questions(bench)):
            answer = None if number else PRIORITY
            bench.take(bench.engine.predicted(order.subject, answer, 0.0))
    assert [record["kind"] for record in bench.log].count("assessed") >= 4
    again = new_tuner()
    replayed = replay(again, map(read_record, bench.log), Objective.single("loss", "minimize"))
    assert replayed.identical, str(replayed)
    assert models_of(again) == models_of(tuner)


@pytest.mark.parametrize("snapshot_every", [2, 1000])
def test_a_run_that_goes_on_asks_open_questions_again(snapshot_every: int) -> None:
    before, tuner, order = asked_first(snapshot_every)
    again, restored = Bench(loss, before.trials), new_tuner()
    again.take(
        again.engine.resume(restored, place=0, records=map(read_record, before.log), now=0.0)
    )
    assert questions(again) == [order]
    for bench in (before, again):
        bench.take(bench.engine.predicted(order.subject, PRIORITY, 0.0))
    assert models_of(restored) == models_of(tuner)
    assert restored.source.propose(20) == tuner.source.propose(20)


def test_a_run_that_goes_on_places_by_the_same_ranks() -> None:
    before, _, order = asked_first()
    before.take(before.engine.predicted(order.subject, PRIORITY, 0.0))
    work(before)
    again = Bench(loss, before.trials)
    again.take(
        again.engine.resume(new_tuner(), place=0, records=map(read_record, before.log), now=0.0)
    )
    ranks = {number: path.model_rank for number, path in before.dispatcher.plan.paths.items()}
    assert len(set(ranks.values())) > 1, "a priority has come, and a trial was drawn after it"
    plan = again.dispatcher.plan
    assert {number: path.model_rank for number, path in plan.paths.items()} == ranks


def test_a_priority_after_the_end_is_dropped() -> None:
    bench, _, order = asked_first()
    while not bench.engine.finished:
        work(bench)
    written = len(bench.log)
    assert not bench.engine.predicting
    bench.take(bench.engine.predicted(order.subject, PRIORITY, 0.0))
    assert len(bench.log) == written


def test_an_answer_of_another_kind_is_refused() -> None:
    bench, _, _ = asked_first()
    curve = Curve(steps=(1,), scores=(0.5,), max_steps=8)
    prediction = Question(predictor=Persistence(), curve=curve, steps=(8,)).answer()
    with pytest.raises(InternalError, match="has an answer of another kind"):
        bench.engine.predicted(Assess(model=0), prediction, 0.0)

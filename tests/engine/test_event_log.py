"""The event log: decisions as documents, records in words, and replay."""

from __future__ import annotations

import pytest

from dasktune._engine.event_log import (
    cause_in_words,
    describe,
    difference_of,
    ending_of,
    extend_of,
    has_ended,
    in_words,
    replay,
    seconds_of,
)
from dasktune._engine.tuner_records import (
    Cause,
    ClockNoted,
    DevicesChosen,
    Document,
    FailureTold,
    LoggedRecord,
    PredictionTold,
    PriorityTold,
    Record,
    ReportTold,
    RetrainingBegun,
    RetrainingEnded,
    SnapshotTaken,
    TimeTold,
    TrialRetried,
    TunerBegun,
    TunerWidened,
    WorkAsked,
)
from dasktune.algos import Grid
from dasktune.errors import ConfigurationError
from dasktune.needs import Needs
from dasktune.sequences import Constant
from dasktune.space import Space
from dasktune.types import (
    Decision,
    Extend,
    Finish,
    Now,
    Objective,
    Predict,
    Rank,
    Register,
    Stop,
)

LOSS = Objective.single("loss", "minimize")


def register(lr: float = 0.1, **more: object) -> Register:
    return Register(trial=0, sequences={"lr": Constant(lr)}, max_steps=4, params={}, **more)


@pytest.mark.parametrize(
    ("decision", "document"),
    [
        (Extend(trial=1, until=4), {"do": "extend", "trial": 1, "until": 4, "priority": 0.0}),
        (
            Extend(trial=1, until=4, priority=2.0, reports=(2, 3)),
            {"do": "extend", "trial": 1, "until": 4, "priority": 2.0, "reports": [2, 3]},
        ),
        (Stop(trial=2), {"do": "stop", "trial": 2}),
        (Rank(trial=2, priority=1.5), {"do": "rank", "trial": 2, "priority": 1.5}),
        (Predict(trial=3), {"do": "predict", "trial": 3}),
        (Finish(), {"do": "finish"}),
        (Finish(reason="done"), {"do": "finish", "reason": "done"}),
    ],
)
def test_decision_is_described_as_logs_have_it(
    decision: Decision, document: dict[str, object]
) -> None:
    assert describe(decision) == document
    if isinstance(decision, Extend):
        assert extend_of(document) == decision


def test_registration_is_described_by_a_digest() -> None:
    document = describe(register())
    digest = document["sequences"]
    assert document == {"do": "register", "trial": 0, "max_steps": 4, "sequences": digest}
    assert describe(register(0.2))["sequences"] != digest
    assert describe(register(seed=3)) == {**document, "seed": 3}


def logged(cause: Cause, *decisions: Document) -> LoggedRecord:
    return Record(cause=cause, place=0, decisions=decisions)


TOLD = ReportTold(trial=1, step=2, metrics={"loss": 0.5, "acc": 1})
ASKED = WorkAsked(capacity=1)
RETRIED = TrialRetried(trial=1, step=0)
WIDENED = TunerWidened(trials=9)
RETRAINING = RetrainingBegun(trial=1, step=2)
RETRAINED = RetrainingEnded(trial=1, step=2, metrics={"loss": 0.5})


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        (TOLD, "the report of trial 1 at step 2"),
        (FailureTold(trial=1, message="", traceback=""), "the failure of trial 1"),
        (RETRIED, "taking trial 1 back, which had failed"),
        (RETRAINING, "training trial 1 again, alone, to step 2"),
        (RETRAINED, "the end of training trial 1 again"),
        (PredictionTold(trial=1, prediction=None, seconds=0.0), "a prediction for trial 1"),
        (PriorityTold(model=3, priority=None), "the priority of model 3"),
        (DevicesChosen(trial=1, devices=((0, 2),)), "the choice of devices for trial 1: 2"),
        (TimeTold(seconds=1234567.8), "the time, 1.23457e+06 s"),
        (WorkAsked(capacity=3), "being asked for 3 workers"),
        (WIDENED, "being widened to 9 trials"),
        (TunerBegun(identity={}, inputs={}), "the beginning"),
        (ClockNoted(seconds=1.0), "a record of kind 'clock'"),
    ],
)
def test_cause_of_a_call_in_words(cause: Cause, words: str) -> None:
    assert cause_in_words(cause) == words


def test_record_in_words_lists_metrics_and_decisions() -> None:
    decisions = [describe(Extend(trial=1, until=4, priority=2.0)), describe(Finish())]
    lines = in_words(logged(TOLD, *decisions)).splitlines()
    assert lines[0] == "the report of trial 1 at step 2 (loss 0.5, acc 1)"
    assert [line.split()[0] for line in lines[1:]] == ["extend", "finish"]
    assert in_words(logged(RETRAINED)) == "the end of training trial 1 again (loss 0.5)"
    assert in_words(logged(ASKED)) == cause_in_words(ASKED)


@pytest.mark.parametrize(
    ("now", "then", "difference"),
    [
        ([Stop(trial=1)], [Stop(trial=1)], None),
        ([], [], None),
        (
            [Stop(trial=1), Stop(trial=3)],
            [Stop(trial=1), Stop(trial=2)],
            "decision 1: recorded {'do': 'stop', 'trial': 2}, now {'do': 'stop', 'trial': 3}",
        ),
        ([], [Finish()], "decision 0: recorded {'do': 'finish'}, now nothing"),
        (
            [Stop(trial=1), Finish()],
            [Stop(trial=1)],
            "decision 1: recorded nothing, now {'do': 'finish'}",
        ),
    ],
)
def test_difference_names_the_first_other_decision(
    now: list[Decision], then: list[Decision], difference: str | None
) -> None:
    described = [describe(each) for each in then]
    words = None if difference is None else f"after being asked for 1 worker, {difference}"
    assert difference_of(logged(ASKED, *described), now) == words
    assert difference_of(logged(SnapshotTaken(state={}), *described), now) is None


def test_replay_counts_calls_up_to_the_difference() -> None:
    def grid() -> Grid:
        return Grid(Space(lr=[0.1]), max_steps=4)

    asked = logged(ASKED, *(describe(decision) for decision in grid().ask(1)))
    begun = logged(TunerBegun(identity={}, inputs={}))
    records = [begun, logged(ClockNoted(seconds=2.0)), asked]
    same = replay(grid(), records, LOSS)
    assert (same.identical, same.calls) == (True, 2)
    assert str(same) == "identical: 2 calls of the tuner gave the recorded decisions"
    other = replay(grid(), [*records, logged(ASKED, describe(Finish()))], LOSS)
    assert (other.identical, other.calls) == (False, 3)
    assert str(other).startswith("different at call 3: after being asked for 1 worker, decision 0")


def test_replay_names_the_call_that_a_tuner_refuses() -> None:
    class Refusing(Grid):
        def ask(self, capacity: int) -> list[Decision]:
            raise ConfigurationError("no more work")

    refused = replay(Refusing(Space(lr=[0.1]), max_steps=4), [logged(ASKED)], LOSS)
    assert str(refused) == "different at call 1: being asked for 1 worker: no more work"


def test_seconds_are_those_of_the_cause() -> None:
    now = Now(seconds=3, step_seconds=1.0, workers=1)
    assert seconds_of(ReportTold(trial=0, step=1, metrics={}, now=now)) == 3.0
    assert isinstance(seconds_of(TimeTold(seconds=5)), float), "snapshots hold it"
    assert seconds_of(PredictionTold(trial=0, prediction=None, seconds=5.0)) == 5.0
    assert seconds_of(TOLD) == 0.0


END = logged(TOLD, {"do": "finish", "reason": "target"})


@pytest.mark.parametrize(
    ("records", "ended", "ending"),
    [
        ([], False, ""),
        ([logged(TOLD)], False, ""),
        ([END], True, "target"),
        ([END, logged(TOLD)], True, "target"),
        ([END, logged(WIDENED)], False, ""),
        ([END, logged(RETRIED)], False, ""),
        ([logged(WIDENED, *END.decisions)], True, "target"),
        ([logged(SnapshotTaken(state={"finished": True, "ending": "e"}))], True, "e"),
        ([END, logged(SnapshotTaken(state={"finished": False}))], False, ""),
        ([END, logged(RETRAINING)], False, "target"),
        ([END, logged(RETRAINING), logged(RETRAINED)], True, "target"),
        ([logged(SnapshotTaken(state={"finished": True, "retrained": [1]}))], False, ""),
        (
            [
                logged(SnapshotTaken(state={"finished": True, "retrained": [1]})),
                logged(TOLD, {"do": "extend", "trial": 1}),
            ],
            True,
            "",
        ),
    ],
)
def test_tuner_has_ended_by_its_records(
    records: list[LoggedRecord], ended: bool, ending: str
) -> None:
    assert (has_ended(records), ending_of(records)) == (ended, ending)


def test_registration_describes_needs_only_where_there_are_some() -> None:
    assert "needs" not in describe(register())
    needs = Needs.of({"GPU": 1, "tags": "a100"})
    described = {**describe(register()), "needs": [{"GPU": 1.0, "tags": ["a100"]}]}
    assert describe(register(needs=needs)) == described

"""The event log: decisions as documents, records in words, and replay."""

from __future__ import annotations

import pytest

from dasktune._engine.event_log import (
    Record,
    cause_of,
    describe,
    difference_of,
    ending_of,
    extend_of,
    has_ended,
    in_words,
    prediction_of,
    recorded_report,
    replay,
    report_of,
    seconds_of,
)
from dasktune.algos import Grid
from dasktune.algos.curves import Prediction
from dasktune.needs import Needs
from dasktune.sequences import Constant
from dasktune.space import Space
from dasktune.types import (
    Decision,
    Extend,
    Finish,
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


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"kind": "tell", "trial": 1, "step": 2}, "the report of trial 1 at step 2"),
        ({"kind": "fail", "trial": 1}, "the failure of trial 1"),
        ({"kind": "retry", "trial": 1}, "taking trial 1 back, which had failed"),
        (
            {"kind": "retrain", "trial": 1, "step": 2},
            "training trial 1 again, alone, to step 2",
        ),
        ({"kind": "retrained", "trial": 1}, "the end of training trial 1 again"),
        ({"kind": "predicted", "trial": 1}, "a prediction for trial 1"),
        ({"kind": "time", "seconds": 1234567.8}, "the time, 1.23457e+06 s"),
        ({"kind": "ask", "capacity": 3}, "being asked for 3 workers"),
        ({"kind": "widen", "trials": 9}, "being widened to 9 trials"),
        ({"kind": "tuner"}, "the beginning"),
        ({"kind": "guess"}, "a record of kind 'guess'"),
    ],
)
def test_cause_of_a_call_in_words(record: Record, words: str) -> None:
    assert cause_of(record) == words


def test_record_in_words_lists_metrics_and_decisions() -> None:
    decisions = [describe(Extend(trial=1, until=4, priority=2.0)), describe(Finish())]
    record = {"kind": "tell", "trial": 1, "step": 2, "metrics": {"loss": 0.5, "acc": 1}}
    lines = in_words({**record, "decisions": decisions}).splitlines()
    assert lines[0] == "the report of trial 1 at step 2 (loss 0.5, acc 1)"
    assert [line.split()[0] for line in lines[1:]] == ["extend", "finish"]
    assert in_words({**record, "metrics": {}, "decisions": []}) == cause_of(record)


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
    record = {"kind": "ask", "capacity": 1, "decisions": [describe(each) for each in then]}
    words = None if difference is None else f"after being asked for 1 worker, {difference}"
    assert difference_of(record, now) == words
    assert difference_of({**record, "kind": "snapshot"}, now) is None


def test_replay_counts_calls_up_to_the_difference() -> None:
    def grid() -> Grid:
        return Grid(Space(lr=[0.1]), max_steps=4)

    tuner = grid()
    asked = {"kind": "ask", "capacity": 1, "decisions": [describe(d) for d in tuner.ask(1)]}
    clock = {"kind": "clock", "seconds": 2.0, "decisions": []}
    records: list[Record] = [{"kind": "tuner", "decisions": []}, clock, asked]
    same = replay(grid(), records, LOSS)
    assert (same.identical, same.calls) == (True, 2)
    assert str(same) == "identical: 2 calls of the tuner gave the recorded decisions"
    other = replay(grid(), [*records, {**asked, "decisions": [describe(Finish())]}], LOSS)
    assert (other.identical, other.calls) == (False, 3)
    assert str(other).startswith("different at call 3: after being asked for 1 worker, decision 0")
    broken = replay(grid(), [{"kind": "guess", "decisions": []}], LOSS)
    assert str(broken).startswith("different at call 1: a record of kind 'guess': ")


def test_report_is_read_back_from_its_record() -> None:
    record = {"kind": "tell", "trial": 1, "step": 2, "metrics": {"loss": 0.5}}
    assert recorded_report(record, LOSS) == report_of(1, 2, {"loss": 0.5}, LOSS)
    assert recorded_report(record, LOSS).now is None


def test_seconds_are_those_of_the_record() -> None:
    assert seconds_of({"now": {"seconds": 3}, "seconds": 5.0}) == 3.0
    assert seconds_of({"seconds": 5}) == 5.0
    assert seconds_of({}) == 0.0


def test_prediction_of_none_is_none() -> None:
    assert prediction_of({"prediction": None}) is None
    scores = tuple(map(float, range(15)))
    prediction = Prediction(after=2, steps=(4,), scores=(scores,), deviations=(0.1,))
    assert prediction_of({"prediction": prediction.to_json()}) == prediction


END: Record = {"kind": "tell", "decisions": [{"do": "finish", "reason": "target"}]}
TOLD: Record = {"kind": "tell", "decisions": []}


@pytest.mark.parametrize(
    ("records", "ended", "ending"),
    [
        ([], False, ""),
        ([TOLD], False, ""),
        ([END], True, "target"),
        ([END, TOLD], True, "target"),
        ([END, {"kind": "widen", "decisions": []}], False, ""),
        ([END, {"kind": "retry", "decisions": []}], False, ""),
        ([{"kind": "widen", "decisions": END["decisions"]}], True, "target"),
        ([{"kind": "snapshot", "state": {"finished": True, "ending": "e"}}], True, "e"),
        ([END, {"kind": "snapshot", "state": {"finished": False}}], False, ""),
        ([END, {"kind": "retrain", "trial": 1, "decisions": []}], False, "target"),
        (
            [
                END,
                {"kind": "retrain", "trial": 1, "decisions": []},
                {"kind": "retrained", "trial": 1, "decisions": []},
            ],
            True,
            "target",
        ),
        (
            [{"kind": "snapshot", "state": {"finished": True, "retrained": [1]}}],
            False,
            "",
        ),
        (
            [
                {"kind": "snapshot", "state": {"finished": True, "retrained": [1]}},
                {"kind": "tell", "decisions": [{"do": "extend", "trial": 1}]},
            ],
            True,
            "",
        ),
    ],
)
def test_tuner_has_ended_by_its_records(records: list[Record], ended: bool, ending: str) -> None:
    assert (has_ended(records), ending_of(records)) == (ended, ending)


def test_registration_describes_needs_only_where_there_are_some() -> None:
    assert "needs" not in describe(register())
    needs = Needs.of({"GPU": 1, "tags": "a100"})
    described = {**describe(register()), "needs": [{"GPU": 1.0, "tags": ["a100"]}]}
    assert describe(register(needs=needs)) == described

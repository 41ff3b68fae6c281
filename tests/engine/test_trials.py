"""Records of trials: read back as they were, compared, and shown to users."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from statistics import stdev

import pytest

from dasktune._engine.trials import (
    ADDED,
    TrialRecord,
    best_of,
    pareto_front,
    repeats_of,
    table_of,
    trial_of,
)
from dasktune.errors import CorruptRecordError
from dasktune.graph.keys import root_key
from dasktune.graph.known import Measured
from dasktune.graph.plan import SearchPlan
from dasktune.needs import Needs
from dasktune.sequences import Constant, Piecewise
from dasktune.types import Direction, Objective, Step, TrialState

NEW = TrialRecord(
    number=3,
    tuner=1,
    local=2,
    params={"lr": 0.1},
    sequences={"lr": Piecewise([0.1, 0.2], [4]), "size": Constant(8)},
    max_steps=9,
)
ENDED = TrialRecord(
    number=4,
    tuner=0,
    local=0,
    params={},
    sequences={"lr": Constant(0.1)},
    max_steps=9,
    state=TrialState.FAIL,
    until=7,
    steps=5,
    values=(0.25, 3.0),
    message="boom",
    traceback="tb",
    user_attrs={"who": "me"},
    point={"lr": 0.1},
    domains={"lr": {"low": 0, "high": 1}},
    seed=6,
)


NEEDY = replace(NEW, needs=Needs.of([{"GPU": 1, "tags": ["a100"]}, {"GPU": 2}]))


def test_record_without_needs_has_its_earlier_document() -> None:
    assert "needs" not in NEW.to_json()
    assert NEEDY.to_json() == {
        **NEW.to_json(),
        "needs": [{"GPU": 1.0, "tags": ["a100"]}, {"GPU": 2.0}],
    }


def test_record_keeps_the_rank_of_its_model_exactly() -> None:
    assert "model_rank" not in NEW.to_json()
    ranked = replace(NEW, model_rank=1 / 3)
    again = TrialRecord.from_json(
        json.loads(json.dumps(ranked.to_json())), number=0, state="PAUSED", steps=0
    )
    assert again.model_rank == 1 / 3


def test_record_with_unsound_needs_is_corrupt() -> None:
    document = {**NEW.to_json(), "needs": [{"GPU": -1}]}
    with pytest.raises(CorruptRecordError, match="trial 3 cannot be read"):
        TrialRecord.from_json(document, number=3, state="PAUSED", steps=0)


@pytest.mark.parametrize("record", [NEW, ENDED, NEEDY], ids=["new", "ended", "needy"])
def test_record_is_read_back_from_its_document(record: TrialRecord) -> None:
    document = json.loads(json.dumps(record.to_json()))
    columns = {"number": record.number, "state": record.state.value, "steps": record.steps}
    assert TrialRecord.from_json(document, **columns) == record


def test_value_is_the_first_of_its_values() -> None:
    assert (NEW.value, ENDED.value) == (None, 0.25)


@pytest.mark.parametrize(
    "changes", [{"sequences": None}, {"sequences": {"lr": {}}}, {"unknown": 1}, {"user": 1}]
)
def test_invalid_document_is_a_corrupt_record(changes: dict[str, object]) -> None:
    with pytest.raises(CorruptRecordError, match="trial 3 cannot be read"):
        TrialRecord.from_json({**NEW.to_json(), **changes}, number=3, state="PAUSED", steps=0)


def ended(number: int, *values: float, **fields: object) -> TrialRecord:
    """Return the record of a trial with these values."""
    made = replace(NEW, number=number, state=TrialState.COMPLETE, steps=9, values=values or None)
    return replace(made, **fields)


def test_metrics_are_the_values_by_name() -> None:
    objective = Objective(metrics=("loss", "cost"), directions=(Direction.MINIMIZE,) * 2)
    assert ENDED.metrics(objective) == {"loss": 0.25, "cost": 3.0}
    assert NEW.metrics(objective) == {}


def test_added_trials_were_not_trained_here() -> None:
    assert NEW.was_trained_here
    assert not replace(NEW, tuner=ADDED).was_trained_here


@pytest.mark.parametrize(("direction", "best"), [("minimize", 4), ("maximize", 5)])
def test_best_trial_is_the_first_of_equal_ones(direction: str, best: int) -> None:
    records = [
        ended(0),
        ended(1, math.nan),
        ended(2, -math.inf),
        ended(3, -9.0, state=TrialState.FAIL),
        ended(4, 1.0),
        ended(5, 2.0),
        ended(6, 1.0),
        ended(7, 2.0),
        ended(8, 9.0, state=TrialState.FAIL),
        ended(9, math.inf),
    ]
    found = best_of(records, Direction.parse(direction))
    assert found is not None
    assert found.number == best


def test_trials_without_a_finite_value_have_no_best() -> None:
    assert best_of([ended(0), ended(1, math.inf)], Direction.MINIMIZE) is None


def test_front_holds_what_nothing_dominates() -> None:
    records = [
        ended(0, 1.0, 5.0),
        ended(1, 2.0, 6.0),
        ended(2, 1.0, 5.0),  # equal values dominate nothing
        ended(3, 1.0, 4.0),  # dominated by 0: equal in one, worse in the other
        ended(4, 0.0, 5.0, state=TrialState.FAIL),
        ended(5, -math.inf, 9.0),
        ended(6, 0.5, math.nan),
        ended(7),
        ended(8, 2.5, 6.0),  # dominated by 1
    ]
    objective = Objective(
        metrics=("loss", "accuracy"), directions=(Direction.MINIMIZE, Direction.MAXIMIZE)
    )
    assert [trial.number for trial in pareto_front(records, objective)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("direction", "order"), [("minimize", [0.1, 0.2]), ("maximize", [0.2, 0.1])]
)
def test_repeats_are_sorted_by_mean(direction: str, order: list[float]) -> None:
    def repeat(number: int, lr: float, seed: int, value: float) -> TrialRecord:
        params, sequences = {"lr": lr}, {"lr": Constant(lr)}
        return ended(number, value, seed=seed, params=params, sequences=sequences)

    records = [
        repeat(0, 0.1, 1, 3.0),
        repeat(1, 0.1, 0, 1.0),
        repeat(2, 0.2, 0, 4.0),
        repeat(3, 0.2, 1, 2.0),
        repeat(4, 0.2, 2, 6.0),
        repeat(5, 0.3, 0, 0.0),  # one seed only
        repeat(6, 0.4, 0, 0.0),
        repeat(7, 0.4, 0, 0.0),  # a seed twice
        repeat(8, 0.5, 0, 0.0),
        repeat(9, 0.5, 1, math.nan),
        repeat(10, 0.6, 0, 0.0),
        replace(repeat(11, 0.6, 1, 0.0), values=None),
        repeat(12, 0.7, 0, 0.0),
        replace(repeat(13, 0.7, 1, 0.0), steps=8),  # did not get as far as the others
        repeat(14, 0.8, 0, 0.0),
        replace(repeat(15, 0.8, 1, 0.0), tuner=0),  # of another tuner
    ]
    repeats = repeats_of(records, Direction.parse(direction))
    assert [repeat.params["lr"] for repeat in repeats] == order
    low = next(repeat for repeat in repeats if repeat.params["lr"] == 0.1)
    assert (low.trials, low.values, low.mean) == ((1, 0), (1.0, 3.0), 2.0)
    assert low.deviation == stdev([1.0, 3.0])
    assert low.sequences == {"lr": Constant(0.1)}


def test_no_trials_have_no_repeats() -> None:
    assert repeats_of([], Direction.MINIMIZE) == []


def test_table_has_a_column_for_each_hyper_parameter() -> None:
    records = [ended(0, 0.5, params={"lr": 0.1}), ended(1, params={"size": 8})]
    names, rows = table_of(records)
    assert names == ["number", "state", "steps", "value", "lr", "size"]
    assert rows == [[0, "COMPLETE", 9, 0.5, 0.1, None], [1, "COMPLETE", 9, None, None, 8]]


def test_table_names_each_value_and_the_seeds() -> None:
    records = [ended(0, 0.5, 2.0, params={}), ended(1, params={}, seed=3)]
    names, rows = table_of(iter(records), 2)
    assert names == ["number", "state", "steps", "values_0", "values_1", "seed"]
    assert rows == [[0, "COMPLETE", 9, 0.5, 2.0, 0], [1, "COMPLETE", 9, None, None, 3]]


def test_table_names_devices_where_several_train_a_trial() -> None:
    records = [ended(0, params={"devices": 3}), ended(1, params={})]
    assert table_of(records)[0] == ["number", "state", "steps", "value", "devices"]
    records[1].devices = ((0, 1), (4, 2))
    names, rows = table_of(records)
    assert names == ["number", "state", "steps", "value", "devices", "params_devices"]
    assert [row[-2:] for row in rows] == [[1, 3], [2, None]]


def test_table_renames_what_has_the_name_of_a_column() -> None:
    names, _ = table_of([ended(0, params={"steps": 1, "params_steps": 2, "lr": 3})])
    assert names[4:] == ["params_params_steps", "params_steps", "lr"]


def measured(steps: Iterable[Step]) -> Measured:
    return Measured((step, {"loss": float(step)}) for step in steps)


def test_trial_shows_the_metrics_that_it_was_asked_for() -> None:
    plan = SearchPlan(root_key("trials", 0))
    plan.register(3, NEW.sequences, NEW.max_steps)
    for node in plan.nodes_of(3):
        node.metrics = measured(range(node.stop, node.start, -1))
    waiting = trial_of(plan, replace(NEW, steps=2, until=5, values=(2.0, 1.0)))
    assert list(waiting.metrics) == [1, 2, 3, 4, 5]
    assert (waiting.values, waiting.value, waiting.error) == ([2.0, 1.0], 2.0, None)
    beyond = trial_of(plan, replace(NEW, steps=6, until=5))
    assert list(beyond.metrics) == [1, 2, 3, 4, 5, 6]
    assert (beyond.values, beyond.value) == (None, None)
    assert trial_of(plan, NEW).metrics == {}


def test_trial_that_ended_has_metrics_of_a_later_evaluation() -> None:
    plan = SearchPlan(root_key("trials", 0))
    plan.register(3, NEW.sequences, NEW.max_steps)
    for node in plan.nodes_of(3):
        node.metrics = measured([step for step in (2, 4, 6) if node.start < step <= node.stop])
    ended = trial_of(plan, replace(NEW, steps=3, until=3, ended_at=3))
    assert ended.metrics == {2: {"loss": 2.0}, 3: {"loss": 4.0}}


def test_trial_has_a_duration_once_it_is_finished() -> None:
    plan = SearchPlan(root_key("trials", 0))
    plan.register(3, NEW.sequences, NEW.max_steps)
    unknown = trial_of(plan, replace(NEW, state=TrialState.COMPLETE))
    assert (unknown.datetime_start, unknown.datetime_complete, unknown.duration) == (None,) * 3
    running = trial_of(plan, NEW, span=(100.0, 130.0))
    assert running.datetime_start == datetime.fromtimestamp(100.0)
    assert (running.datetime_complete, running.duration) == (None, None)
    pruned = trial_of(plan, replace(NEW, state=TrialState.PRUNED), span=(100.0, 130.0))
    assert pruned.datetime_complete == datetime.fromtimestamp(130.0)
    assert pruned.duration == timedelta(seconds=30)


@pytest.mark.parametrize(("traceback", "error"), [("tb", "tb"), ("", "boom")])
def test_failed_trial_shows_all_metrics_and_its_error(traceback: str, error: str) -> None:
    plan = SearchPlan(root_key("trials", 0))
    plan.register(3, NEW.sequences, NEW.max_steps)
    for node in plan.nodes_of(3):
        node.metrics = measured(range(node.start + 1, node.stop + 1))
    failed = replace(NEW, state=TrialState.FAIL, steps=2, message="boom", traceback=traceback)
    shown = trial_of(plan, failed)
    assert shown.error == error
    assert list(shown.metrics) == list(range(1, 10))

"""Learning curves are found by state keys, and are those that the study itself reads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dasktune._dashboard.learning_curves import decimated
from dasktune._dashboard.study_view import StudyView
from dasktune._results import trial_paths
from dasktune._results.rows import registered
from dasktune._results.trial_paths import keys_of
from dasktune.errors import ConfigurationError
from dasktune.graph.plan import SearchPlan
from dasktune.sequences import Constant, Exponential, MultiStep, Sequence, Warmup
from dasktune.storage.database.database import Batch, Database
from dasktune.storage.database.rows import MetricRow

from .made_study import Made, loss_at, make_study


@pytest.fixture
def view(tmp_path: Path) -> StudyView:
    database = Database(tmp_path / "dasktune.db")
    return StudyView(make_study(database, "made", Made(trials=12, running=2)), database)


def test_curves_are_those_of_the_trials(view: StudyView) -> None:
    answer = view.curves("loss", [8])
    (curve,) = answer["curves"]  # type: ignore[misc]
    assert curve["steps"] == list(range(1, 21))
    # Trials of a group share their beginning: the first of them has written it.
    assert curve["values"] == [loss_at(8, step) for step in range(1, 21)]
    assert answer["metrics"] == ["loss", "accuracy"]
    assert answer["is_sample"] is False


def test_curves_of_a_running_trial_grow(view: StudyView) -> None:
    def last() -> int:
        return int(view.curves("", [11])["curves"][0]["steps"][-1])  # type: ignore[index]

    # It has reported step 10, and trial 9 has trained the same steps up to 11.
    assert last() == 11
    (record,) = view.records([11])
    ((step, key),) = keys_of(registered(view.row, [record]), 11, [13])
    row = MetricRow(key=key, root=view.row.root, step=step, values={"loss": 0.5})
    view.database.write(Batch(metrics=[row]))
    assert last() == 13


def test_curve_of_a_failed_trial_ends_with_its_last_report(view: StudyView) -> None:
    (row,) = view.database.some_trials(view.row.id, [8])
    view.database.write(Batch(trials=[replace(row, state="FAIL", steps=5)]))
    (curve,) = view.curves("loss", [8])["curves"]  # type: ignore[misc]
    # Trials 9, 10 and 11 share its first 10 steps, and have reported them.
    assert curve["steps"] == [1, 2, 3, 4, 5]
    lineage: Any = view.lineage(8, [view])
    assert [(each["start"], each["stop"]) for each in lineage["users"]] == [(0, 5)]


def test_curves_without_a_choice_are_a_sample(view: StudyView) -> None:
    answer = view.curves("accuracy")
    assert answer["metric"] == "accuracy"
    assert len(answer["curves"]) == 12  # type: ignore[arg-type]
    assert answer["is_sample"] is False


def test_curves_of_an_unknown_trial_are_refused(view: StudyView) -> None:
    with pytest.raises(ConfigurationError, match="there is no trial 99"):
        view.curves("", [1, 99])


@pytest.mark.parametrize(
    "sequence",
    [
        Constant(0.1),
        MultiStep(0.1, [7, 30], 0.5),
        Exponential(0.1, 0.9),
        Warmup(5, 0.1) >> Constant(0.1),
    ],
    ids=repr,
)
@pytest.mark.parametrize("steps", [range(1, 41), [1, 2, 3, 9, 10, 40], [40], [7, 38]], ids=str)
def test_keys_are_those_of_the_plan(
    sequence: Sequence, steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = SearchPlan("aa" * 16)
    plan.register(0, {"lr": sequence}, 40)
    # A trial that parts at step 9 makes another node.
    plan.register(1, {"lr": sequence[:9] >> Constant(0.7)}, 20)
    for number, last in ((0, 40), (1, 20)):
        own = [step for step in steps if step <= last]
        known = [(step, plan.node_at(number, step).key_at(step)) for step in own]
        for sparse in (0, trial_paths.SPARSE):
            monkeypatch.setattr(trial_paths, "SPARSE", sparse)
            assert [*keys_of(plan, number, own)] == known


def test_decimation_keeps_extremes_and_both_ends() -> None:
    points = [(step, 0.0) for step in range(10_000)]
    points[4321], points[7777] = (4321, 9.0), (7777, -9.0)
    kept = decimated(points, 100)
    assert len(kept) <= 102
    assert {(0, 0.0), (4321, 9.0), (7777, -9.0), (9999, 0.0)} <= {*kept}
    assert [step for step, _ in kept] == sorted(step for step, _ in kept)

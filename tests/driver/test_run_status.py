"""The status of a run: stored as a row and read again, and as figures for Prometheus."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from dasktune._driver.run_status import RunCounts, RunStatus, Wait
from dasktune.algos.forest.ranks import ModelWeight
from dasktune.graph.packing import PackedModel
from dasktune.storage.database.rows import RunRow

ROW = RunRow(run="r", study_id=1, host="h", pid=2, version="1", began=0.0, seen=0.0)
STATUS = RunStatus(
    seen=9.0,
    workers={"usable": 2, "busy": 1, "stages_waiting": 4},
    classes={"H100 80 GB": 2},
    waits=(Wait(kind="store", text="the store has not answered", since=3.0),),
    positions={"0-a": 7},
    seconds_left=60.0,
    models=(
        ModelWeight(name="net=a", weight=0.25, complexity=3.5, priority=None, trials=7, rank=0.0),
        ModelWeight(name="net=b", weight=0.75, complexity=9.0, priority=0.1, trials=9, rank=1.0),
    ),
    packing=(
        PackedModel(model="batch=64", kind="H100 80 GB", together=3, gain=2.5),
        PackedModel(model="", kind="H100 80 GB", together=1),
    ),
)


def test_status_survives_its_row() -> None:
    row = STATUS.to_row(ROW)
    assert row.waits == [{"kind": "store", "text": "the store has not answered", "since": 3.0}]
    assert RunStatus.from_row(row) == STATUS


def test_stored_wait_holds_no_secret() -> None:
    wait = Wait(kind="pool", text="asks s3://ann:hunter2-hunter2@bucket")
    assert wait.to_json()["text"] == "asks s3://***@bucket"


def test_malformed_waits_of_a_row_are_left_out() -> None:
    row = replace(ROW, waits=["x", {"since": "yesterday", "text": 5}])
    assert RunStatus.from_row(row).waits == (Wait(kind="", text="5"),)


def test_row_without_classes_is_as_before() -> None:
    row = replace(STATUS, classes={}, models=(), packing=()).to_row(ROW)
    assert row.workers == {"usable": 2, "busy": 1, "stages_waiting": 4}
    assert RunStatus.from_row(row).classes == {}
    assert RunStatus.from_row(replace(ROW, workers={"classes": [1]})).classes == {}


def test_malformed_models_of_a_row_are_left_out() -> None:
    row = STATUS.to_row(ROW)
    good, other = row.workers["models"]
    workers = {"models": [good, {**other, "weight": "much"}, {"name": "net=c"}, 5]}
    assert RunStatus.from_row(replace(ROW, workers=workers)).models == STATUS.models[:1]
    assert RunStatus.from_row(replace(ROW, workers={"models": 3})).models == ()


def test_malformed_packing_of_a_row_is_left_out() -> None:
    good, other = STATUS.to_row(ROW).workers["packing"]
    workers = {"packing": [good, {**other, "together": "many"}, {"kind": "H100"}, 5]}
    assert RunStatus.from_row(replace(ROW, workers=workers)).packing == STATUS.packing[:1]


def test_figures_have_no_best_value_without_one() -> None:
    counts = RunCounts(
        steps=5,
        repeated=1,
        stages=Counter(trained=2, failed=1),
        nbytes=100,
        worker_seconds=3.5,
        trials={"COMPLETE": 2},
        best=None,
    )
    assert STATUS.to_figures() == {"slots": 2, "busy": 1, "aside": 0, "waiting": 4}
    assert replace(STATUS, counts=counts).to_figures() == {
        **STATUS.to_figures(),
        "steps": 5,
        "repeated": 1,
        "stages": {"trained": 2, "failed": 1},
        "failures": 1,
        "bytes": 100,
        "worker_seconds": 3.5,
        "trials": {"COMPLETE": 2},
    }

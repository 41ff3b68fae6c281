"""``dasktune trace`` writes what a study measured, and ``dasktune simulate`` takes it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dasktune as dt
from dasktune.simulate import Trace

from .conftest import UNIQUE, Folder, command

STORE = "runs/counting"


pytestmark = pytest.mark.usefixtures("trained")


@pytest.mark.parametrize("target", ["counting.py", STORE, f"{STORE}/dasktune.db"])
def test_a_study_is_found_by_its_file_its_store_or_its_database(target: str) -> None:
    done = command("trace", target, "--out", "a.zarr")
    assert done.exit_code == 0, done.output
    assert done.stdout == (
        "a.zarr: 4 configurations, 4 of them with all 12 steps; loss, of study 'counting'\n"
    )
    trace = Trace.load("a.zarr")
    found = dt.simulate(dt.algos.Grid(trace.space(), max_steps=12), trace, workers=2)
    assert found.steps_executed == UNIQUE
    assert found.best_trial is not None
    assert found.best_trial.value == pytest.approx(trace.values[:, -1, 0].min())


def test_trace_is_described_as_json_and_can_be_simulated() -> None:
    document = json.loads(command("trace", STORE, "--out", "a.zarr.zip", "--json").stdout)
    assert (document["configurations"], document["steps"], document["complete"]) == (4, 12, 4)
    assert (document["study"], document["path"]) == ("counting", "a.zarr.zip")
    assert document["metrics"] == ["loss"]
    assert document["overheads"]["report"] > 0
    done = command("simulate", "a.zarr.zip", "--tuner", "grid", "--json")
    assert done.exit_code == 0, done.output
    (found,) = json.loads(done.stdout)["tuners"]
    assert found["steps"]["median"] == UNIQUE


def test_trace_reads_a_study_without_its_trainer_file(folder: Folder) -> None:
    (folder.path / "counting.py").unlink()
    assert command("trace", STORE, "--out", "a.npz").exit_code == 0
    assert Trace.load("a.npz").steps == 12


def test_trace_names_the_losses_of_an_npz() -> None:
    first, told = command("trace", STORE, "--out", "a.npz").stdout.splitlines()
    assert first.startswith("a.npz: 4 configurations")
    assert told == (
        "an .npz keeps no direction, overheads, shared steps or classes of workers: "
        "simulate with --metric loss --direction minimize"
    )
    assert json.loads(command("trace", STORE, "--out", "b.npz", "--json").stdout)["steps"] == 12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([STORE, "--study", "other"], "unknown study 'other'; known: counting"),
        ([STORE, "--out", "a.parquet"], "--out: a trace must end in .zarr, .zarr.zip, .npz"),
        ([STORE, "--out", "steps.log"], "--out: steps.log exists already"),
        ([STORE, "--out", "missing/a.zarr"], "--out: missing must be a folder that exists"),
        (["runs/other"], "target must be a study file, a storage folder or a database"),
        (["."], "is no store; stores below it: runs/counting"),
    ],
)
def test_trace_refuses_wrong_paths_without_traceback(arguments: list[str], message: str) -> None:
    done = command("trace", *arguments)
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert list(Path().glob("*.zarr")) == []


def test_a_study_must_be_named_where_there_are_several() -> None:
    dt.create_study(None, name="empty", metric="loss", storage=STORE).close()
    done = command("trace", STORE)
    assert (done.exit_code, "--study must be one of counting, empty" in done.stderr) == (2, True)
    done = command("trace", STORE, "--study", "empty")
    assert done.exit_code == 2
    assert "no step was measured yet" in done.stderr
    assert command("trace", STORE, "--study", "counting").exit_code == 0
    done = command("trace", STORE, "--study", "counting")
    assert "trace.zarr exists already" in done.stderr

"""Deleted and renamed studies: what goes, what other studies keep, and what is refused."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import numpy as np
import pytest
from distributed import Client
from typer.testing import CliRunner

import dasktune as dt
from dasktune.cli import app
from dasktune.errors import ConfigurationError
from dasktune.sequences import Constant, Piecewise
from dasktune.storage.database.database import Database
from dasktune.storage.database.rows import RunRow
from dasktune.storage.leases import HeldLeases, Leases

SHORT = Constant(0.1)
LONG = Piecewise([0.1, 0.3], [6])


class Walking(dt.Trainer):
    """Walks by lr."""

    def build(self, hp: dict[str, float]) -> None:
        self.x = np.zeros(1)

    def setup(self, hp: dict[str, float]) -> None:
        self.lr = hp["lr"]

    def train(self) -> None:
        self.x = self.x + self.lr

    def evaluate(self) -> dict[str, float]:
        return {"loss": float(self.x[0])}

    def state_dict(self) -> dict[str, object]:
        return {"x": self.x}

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.x = np.asarray(state["x"])


def create(folder: Path, name: str) -> dt.Study:
    return dt.create_study(
        Walking, name=name, metric="loss", storage=folder, load_if_exists=True, checkpoint_every=3
    )


def train(folder: Path, name: str, lr: object, client: Client) -> dt.Study:
    study = create(folder, name)
    grid = dt.algos.Grid(dt.Space(lr=[lr]), max_steps=9)
    study.optimize(grid, client=client, check=False, last_line=False)
    return study


@pytest.fixture
def store(tmp_path: Path, two_threads: Client) -> Path:
    """Return a store of two studies, whose trials have the first six steps in common."""
    folder = tmp_path / "store"
    for name, lr in [("kept", SHORT), ("typo", LONG)]:
        train(folder, name, lr, two_threads).close()
    return folder


def keys(folder: Path) -> set[str]:
    return set(dt.CheckpointStore(str(folder)).keys())


def names(folder: Path) -> list[str]:
    database = Database(folder / "dasktune.db", create=False)
    try:
        return [row.name for row in database.studies()]
    finally:
        database.close()


def command(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


def write_run(folder: Path, name: str) -> None:
    """Write the heartbeat of a driver: this process."""
    database = Database(folder / "dasktune.db")
    row = database.study(name)
    assert row is not None
    now = time.time()
    database.write_run(
        RunRow(
            run="run",
            study_id=row.id,
            host=socket.gethostname(),
            pid=os.getpid(),
            version="0",
            began=now,
            seen=now,
        )
    )
    database.close()


def test_a_deleted_study_leaves_what_others_use(store: Path, two_threads: Client) -> None:
    before = keys(store)
    planned = dt.delete_study("typo", storage=store, dry_run=True)
    assert (planned.trials, planned.is_done, names(store)) == (1, False, ["kept", "typo"])
    assert keys(store) == before
    deleted = dt.delete_study("typo", storage=store)
    assert (deleted.checkpoints, deleted.shared) == (planned.checkpoints, planned.shared)
    assert deleted.checkpoints > 0 < deleted.shared
    assert deleted.nbytes == planned.nbytes > 0
    assert names(store) == ["kept"]
    assert len(keys(store)) == len(before) - deleted.checkpoints
    for line in ("status", "ls"):
        assert "typo" not in command(line, str(store))[1]

    kept = train(store, "kept", SHORT, two_threads)
    assert kept.summary()["steps_executed"] == 9, "no step of the other study is trained again"
    kept.close()
    again = train(store, "typo", LONG, two_threads)
    assert again.summary()["steps_executed"] == 0, "metrics of one trainer and seed stay"
    assert [trial.number for trial in again.trials] == [0]
    again.close()


def test_nothing_is_left_of_the_only_study(store: Path) -> None:
    for name in ("kept", "typo"):
        dt.delete_study(name, storage=store)
    assert keys(store) == set()
    database = Database(store / "dasktune.db", create=False)
    assert list(database.storage_rows()) == []
    assert database.next_event(1) == database.next_event(2) == 0
    database.close()


def test_states_of_the_last_hour_stay_while_drivers_run(store: Path) -> None:
    checkpoints = dt.CheckpointStore(str(store))
    held = HeldLeases(holder="host-1", study="other", expires=checkpoints.time() + 60, leases=())
    Leases(checkpoints.files).hold(held)
    before = keys(store)
    deleted = dt.delete_study("typo", storage=store)
    assert (deleted.checkpoints, deleted.recent > 0, keys(store)) == (0, True, before)
    assert "since drivers run that may load them" in str(deleted)


def test_a_renamed_study_goes_on(store: Path) -> None:
    dt.rename_study("typo", "right", storage=store)
    assert names(store) == ["kept", "right"]
    study = create(store, "right")
    assert len(study.trials) == 1
    study.close()


def test_a_study_that_runs_is_refused(store: Path) -> None:
    write_run(store, "typo")
    driver = f"must not run: its driver is process {os.getpid()} on"
    with pytest.raises(ConfigurationError, match=driver):
        dt.delete_study("typo", storage=store)
    with pytest.raises(ConfigurationError, match=driver):
        dt.rename_study("typo", "right", storage=store)
    assert names(store) == ["kept", "typo"]


def test_wrong_names_are_refused(store: Path) -> None:
    with pytest.raises(ConfigurationError, match="unknown study 'x'; known: kept, typo"):
        dt.delete_study("x", storage=store)
    with pytest.raises(ConfigurationError, match="a name that no study has, got 'kept'"):
        dt.rename_study("typo", "kept", storage=store)
    with pytest.raises(ConfigurationError, match="name must be"):
        dt.rename_study("typo", "", storage=store)


def test_the_commands_delete_and_rename(store: Path) -> None:
    assert command("rm", str(store), "--dry-run")[2] == "error: --study must be one of kept, typo\n"
    refused = command("rm", str(store), "--study", "typo")
    assert refused[0] == 2
    assert "would delete study 'typo' with 1 trial" in refused[2]
    assert "elsewhere it must have --yes" in refused[2]
    assert names(store) == ["kept", "typo"]
    renamed = command("rename", str(store), "right", "--study", "typo")
    assert renamed[:2] == (0, "study 'typo' is 'right' now; its study file must say name='right'\n")
    deleted = command("rm", str(store), "--study", "right", "--yes")
    assert deleted[0] == 0
    assert deleted[1].startswith("deleted study 'right' with 1 trial; freed ")
    assert command("rm", str(store), "--yes")[0] == 0
    assert command("rm", str(store), "--yes")[2] == "error: the database holds no study\n"

"""A driver says how its run stands; that this fails is no reason for the run to fail."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import dasktune as dt
from dasktune.driver import heartbeat
from dasktune.driver.prometheus import FAMILIES, NAME
from dasktune.errors import StorageError
from dasktune.sequences import Constant
from dasktune.storage.database.database import Database
from dasktune.storage.database.schema import RunRow

pytestmark = pytest.mark.cluster


class Walk(dt.Trainer):
    def build(self, hp):
        self.at = np.zeros(1)

    def setup(self, hp):
        self.by = hp["by"]

    def train(self):
        time.sleep(self.config["pause"])
        self.at = self.at + self.by
        if self.by < 0:
            raise ValueError("backwards")

    def evaluate(self):
        return {"loss": float(abs(self.at[0] - 1))}

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Held(Walk):
    """Ends no second step before there is a file."""

    ignored_config = ("go",)

    def train(self):
        while self.at[0] and not Path(self.config["go"]).exists():
            time.sleep(0.005)
        super().train()


MANY = [number / 100 for number in range(1, 21)]
"""More than workers are given before the driver looks again whether it is to go on."""


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a heartbeat at every turn."""
    monkeypatch.setattr(heartbeat, "HEARTBEAT_SECONDS", 0.0)
    monkeypatch.setattr(heartbeat, "SHARE_OF_TIME", 1.0)


@contextmanager
def study_in(
    folder: Path,
    pause: float = 0.0,
    name: str = "wälk",
    trainer: type[Walk] = Walk,
    **config: str,
) -> Iterator[dt.Study]:
    given = {"pause": pause, **config}
    study = dt.create_study(trainer, name=name, storage=folder, metric="loss", config=given)
    yield study
    study.close()


def run(study: dt.Study, client: Client, *by: float, **options: Any) -> None:
    tuner = dt.algos.Grid(dt.Space(by=[Constant(one) for one in by]), max_steps=4)
    study.optimize(tuner, client=client, progress=False, last_line=False, **options)


def last_run(folder: Path) -> RunRow:
    with closing(Database(folder / "dasktune.db", create=False)) as database:
        found = database.last_run(1)
    assert found is not None
    return found


def test_a_run_that_ends_says_so(tmp_path: Path, two_threads: Client) -> None:
    with study_in(tmp_path) as study:
        run(study, two_threads, 0.1, 0.2)
    row = last_run(tmp_path)
    assert (row.how, row.message, row.waits, row.positions) == ("ended", "", [], {})
    assert row.began <= row.seen == row.ended
    assert row.workers["usable"] == 2


def test_run_status_records_the_limit_that_ended_the_run(
    tmp_path: Path, two_threads: Client
) -> None:
    with study_in(tmp_path, pause=0.05) as study:
        run(study, two_threads, *MANY, limits=dt.Limits(steps=1))
        assert last_run(tmp_path).how == "limit"
        assert last_run(tmp_path).message == study.limit


def test_a_failed_run_says_why_and_no_secret(tmp_path: Path, two_threads: Client) -> None:
    class Refuse(dt.Callback):
        def on_report(self, study: Any, trial: dt.Trial, report: Any) -> None:
            raise RuntimeError("no answer from s3://ann:hunter2-hunter2@bucket")

    with study_in(tmp_path) as study, pytest.raises(RuntimeError):
        run(study, two_threads, 0.1, callbacks=[Refuse()])
    row = last_run(tmp_path)
    assert (row.how, row.message) == ("failed", "RuntimeError: no answer from s3://***@bucket")


def test_run_status_of_a_stopped_run_is_interrupted(tmp_path: Path, two_threads: Client) -> None:
    class Stop(dt.Callback):
        def on_report(self, study: Any, trial: dt.Trial, report: Any) -> None:
            study.stop()

    with study_in(tmp_path, pause=0.05) as study:
        run(study, two_threads, *MANY, callbacks=[Stop()])
    assert last_run(tmp_path).how == "interrupted"


def test_heartbeats_contain_workers_and_positions(
    tmp_path: Path, two_threads: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[RunRow] = []
    sign, go = Database.write_run, tmp_path / "go"

    def note(database: Database, row: RunRow) -> None:
        seen.append(row)
        sign(database, row)
        if 1 in row.positions.values():
            go.touch()

    monkeypatch.setattr(Database, "write_run", note)
    # A step that takes as long is told of at its end.
    with study_in(tmp_path, pause=0.1, trainer=Held, go=str(go)) as study:
        run(study, two_threads, 0.1, 0.2, 0.3)
    assert seen[0].how == "running"
    first = next(row for row in seen if 1 in row.positions.values())
    assert first.workers["busy"] == 2
    assert first.seconds_left is not None
    assert all(row.run == seen[0].run for row in seen)


def test_unwritable_run_status_is_logged_once_and_keeps_results(
    tmp_path: Path, two_threads: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with study_in(tmp_path) as study:
        with closing(sqlite3.connect(tmp_path / "dasktune.db")) as connection:
            connection.execute("DROP TABLE dasktune_runs")
            connection.commit()
        run(study, two_threads, 0.1, 0.2)
        assert [one.state for one in study.trials] == [dt.TrialState.COMPLETE] * 2
        tuner = dt.algos.Grid(dt.Space(by=[Constant(0.1), Constant(0.2)]), max_steps=4)
        assert study.replay(tuner).identical
    assert sum("how the run stands cannot be written" in one for one in caplog.messages) == 1


def test_fenced_off_driver_fails_and_leaves_the_other_event_log(
    tmp_path: Path, two_threads: Client
) -> None:
    """Heartbeats belong to a run, so those of a second driver do not disturb."""

    class Intrude(dt.Callback):
        def on_report(self, study: Any, trial: dt.Trial, report: Any) -> None:
            with closing(sqlite3.connect(tmp_path / "dasktune.db")) as connection:
                connection.execute(
                    "INSERT INTO dasktune_events SELECT study_id, number + 1, payload, kind, place "
                    "FROM dasktune_events ORDER BY number DESC LIMIT 1"
                )
                connection.commit()

    refused = pytest.raises(StorageError, match="another process is running this study")
    with study_in(tmp_path, pause=0.05) as study, refused:
        run(study, two_threads, 0.1, 0.2, 0.3, 0.4, callbacks=[Intrude()])
    row = last_run(tmp_path)
    assert row.how == "failed"
    assert "another process is running this study" in row.message


def test_what_happens_is_logged_with_what_it_is_about(
    tmp_path: Path, two_threads: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "dasktune"), study_in(tmp_path) as study:
        run(study, two_threads, 0.1, -0.2)
    told = [one for one in caplog.records if one.name.startswith("dasktune.")]
    texts = [one.getMessage() for one in told]
    assert any(one.startswith("run ") and one.endswith(" began") for one in texts)
    assert any(one.endswith("ended (ended)") for one in texts)
    assert sum("joined" in one for one in texts) == 2
    (failed,) = (one for one in told if one.getMessage().startswith("trial 1 failed: Value"))
    assert (failed.levelname, failed.trials, failed.study) == ("WARNING", [1], study.name)
    stages = [one for one in told if one.getMessage().startswith("stage of trial 1,")]
    assert [one.levelname for one in stages if "failed" in one.getMessage()] == ["WARNING"] * 2
    for one in stages:
        assert (one.study, one.trials, one.start, one.stop) == (study.name, [1], 0, 4)
        assert one.worker.startswith("tcp://")
        assert len(one.stage) == 12
        assert one.attempt


def families(dask_scheduler: Any) -> dict[str, dict[Any, float]]:
    figures = dask_scheduler.plugins[NAME].figures
    return {family.name: dict(figures.samples(family)) for family in FAMILIES}


def test_scheduler_receives_the_figures_of_runs(tmp_path: Path, two_threads: Client) -> None:
    with study_in(tmp_path, name='figures\\of "one"') as study:
        run(study, two_threads, 0.1, -0.2)
        run(study, two_threads, 0.3)
        name = study.name
    found = two_threads.run_on_scheduler(families)
    assert found["dasktune_steps"][name,] == 8
    assert found["dasktune_failures"][name,] == 2
    assert found["dasktune_stages"][name, "trained"] == 2
    assert found["dasktune_checkpoint_bytes"][name,] > 0
    assert found["dasktune_worker_seconds"][name,] > 0
    assert found["dasktune_trials"] == {}  # gauges go with their run

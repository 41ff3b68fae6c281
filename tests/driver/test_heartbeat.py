"""A driver says how its run stands; that this fails is no reason for the run to fail."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import dasktune as dt
from dasktune._driver.prometheus import FAMILIES, NAME
from dasktune._engine.timeouts import Waits
from dasktune.errors import StorageError
from dasktune.sequences import Constant
from dasktune.storage.database.database import Database
from dasktune.storage.database.rows import RunRow
from tests.holding import wait_until

pytestmark = pytest.mark.cluster


class Walk(dt.Trainer):
    def build(self, hp):
        self.at = np.zeros(1)

    def setup(self, hp):
        self.by = hp["by"]

    def train(self):
        self.at = self.at + self.by
        if self.by < 0:
            raise ValueError("backwards")

    def evaluate(self):
        return {"loss": float(abs(self.at[0] - 1))}

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


MANY = [number / 100 for number in range(1, 21)]
"""More than workers are given before the driver looks again whether it is to go on."""

ENDLESS = 10**9
"""More steps than are ever trained: a test ends the run."""

EACH_TURN = dt.Timeouts(waits=Waits(heartbeat_seconds=0.0, heartbeat_share=1.0))


@contextmanager
def study_in(folder: Path, name: str = "wälk") -> Iterator[dt.Study]:
    study = dt.create_study(Walk, name=name, storage=folder, metric="loss", report_every=1000)
    yield study
    study.close()


def run(study: dt.Study, client: Client, *by: float, steps: int = 4, **options: Any) -> None:
    tuner = dt.algos.Grid(dt.Space(by=[Constant(rate) for rate in by]), max_steps=steps)
    usual = {"progress": False, "last_line": False, "timeouts": EACH_TURN}
    study.optimize(tuner, client=client, **usual, **options)


def last_run(folder: Path) -> RunRow:
    with closing(Database(folder / "dasktune.db", create=False)) as database:
        row = database.last_run(1)
    assert row is not None
    return row


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
    with study_in(tmp_path) as study:
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

    with study_in(tmp_path) as study:
        run(study, two_threads, *MANY, callbacks=[Stop()])
    assert last_run(tmp_path).how == "interrupted"


def test_heartbeats_contain_workers_and_positions(tmp_path: Path, two_threads: Client) -> None:
    rows: list[RunRow] = []

    def has_positions() -> bool:
        with closing(Database(tmp_path / "dasktune.db", create=False)) as database:
            rows.extend(filter(None, [database.last_run(1)]))
        positions = rows[-1].positions.values() if rows else ()
        return len([step for step in positions if step > 0]) == 2

    with study_in(tmp_path) as study:

        def stop_when_seen() -> None:
            try:
                wait_until(has_positions)
            finally:
                study.stop()

        other = threading.Thread(target=stop_when_seen)
        other.start()
        run(study, two_threads, 0.1, 0.2, 0.3, steps=ENDLESS)
        other.join()
    assert rows[-1].how == "running"
    assert rows[-1].workers["busy"] == 2
    assert rows[-1].seconds_left is not None
    assert {row.run for row in rows} == {last_run(tmp_path).run}


def test_unwritable_run_status_is_logged_once_and_keeps_results(
    tmp_path: Path, two_threads: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with study_in(tmp_path) as study:
        with closing(sqlite3.connect(tmp_path / "dasktune.db")) as connection:
            connection.execute("DROP TABLE dasktune_runs")
            connection.commit()
        run(study, two_threads, 0.1, 0.2)
        assert [trial.state for trial in study.trials] == [dt.TrialState.COMPLETE] * 2
        tuner = dt.algos.Grid(dt.Space(by=[Constant(0.1), Constant(0.2)]), max_steps=4)
        assert study.replay(tuner).identical
    assert sum("how the run stands cannot be written" in line for line in caplog.messages) == 1


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
    with study_in(tmp_path) as study, refused:
        run(study, two_threads, *MANY, callbacks=[Intrude()])
    row = last_run(tmp_path)
    assert row.how == "failed"
    assert "another process is running this study" in row.message


def test_what_happens_is_logged_with_what_it_is_about(
    tmp_path: Path, two_threads: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "dasktune"), study_in(tmp_path) as study:
        run(study, two_threads, 0.1, -0.2)
    records = [record for record in caplog.records if record.name.startswith("dasktune.")]
    texts = [record.getMessage() for record in records]
    assert any(text.startswith("run ") and text.endswith(" began") for text in texts)
    assert any(text.endswith("ended (ended)") for text in texts)
    assert sum("joined" in text for text in texts) == 2
    (failed,) = (one for one in records if one.getMessage().startswith("trial 1 failed: Value"))
    assert (failed.levelname, failed.trials, failed.study) == ("WARNING", [1], study.name)
    stages = [one for one in records if one.getMessage().startswith("stage of trial 1,")]
    assert [one.levelname for one in stages if "failed" in one.getMessage()] == ["INFO"] * 2
    for stage in stages:
        assert (stage.study, stage.trials, stage.start, stage.stop) == (study.name, [1], 0, 4)
        assert stage.worker.startswith("tcp://")
        assert len(stage.stage) == 12
        assert stage.attempt


def families(dask_scheduler: Any) -> dict[str, dict[Any, float]]:
    figures = dask_scheduler.plugins[NAME].figures
    return {family.name: dict(figures.samples(family)) for family in FAMILIES}


def test_scheduler_receives_the_figures_of_runs(tmp_path: Path, two_threads: Client) -> None:
    with study_in(tmp_path, name='figures\\of "one"') as study:
        run(study, two_threads, 0.1, -0.2)
        run(study, two_threads, 0.3)
        name = study.name
    figures = two_threads.run_on_scheduler(families)
    assert figures["dasktune_steps"][name,] == 8
    assert figures["dasktune_failures"][name,] == 2
    assert figures["dasktune_stages"][name, "trained"] == 2
    assert figures["dasktune_checkpoint_bytes"][name,] > 0
    assert figures["dasktune_worker_seconds"][name,] > 0
    assert figures["dasktune_trials"] == {}  # gauges go with their run

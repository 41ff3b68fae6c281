"""Workers on which every stage raises, as on nodes that lack a mount: the study completes."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster

import dasktune as dt
from dasktune._engine.timeouts import Waits
from dasktune._study.study import Study
from dasktune.graph.policies.broken_workers import IN_A_ROW

pytestmark = pytest.mark.cluster

TRIALS = 40


class Mounted(dt.Trainer):
    """Needs a mount that the processes lack whose number is a file in the folder `lacking`."""

    ignored_config = ("lacking", "wrong")

    def build(self, hp: Mapping[str, Any]) -> None:
        self.x = 0.0

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.lr = hp["lr"]

    def train(self) -> None:
        if (Path(self.config["lacking"]) / str(os.getpid())).exists():
            raise OSError("/data is not mounted")
        if self.lr == self.config["wrong"]:
            raise ValueError("wrong everywhere")
        self.x += self.lr

    def evaluate(self) -> dict[str, float]:
        return {"loss": self.x}

    def state_dict(self) -> dict[str, Any]:
        return {"x": self.x}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.x = state["x"]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Give a cluster of four processes."""
    with (
        LocalCluster(
            n_workers=4,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
        ) as cluster,
        Client(cluster) as connected,
    ):
        yield connected


def break_workers(client: Client, folder: Path, count: int) -> set[str]:
    """Take the mount from some workers; return their addresses."""
    folder.mkdir()
    processes = client.run(os.getpid)
    broken = sorted(processes)[:count]
    for worker in broken:
        (folder / str(processes[worker])).touch()
    return set(broken)


def grid(trials: int = TRIALS) -> dt.algos.Grid:
    return dt.algos.Grid(dt.Space(lr=[float(lr) for lr in range(trials)]), max_steps=2)


def run(client: Client, folder: Path, wrong: float = -1.0, trials: int = TRIALS) -> Study:
    study = dt.create_study(
        Mounted,
        name="mounted",
        storage=folder / "store",
        metric="loss",
        config={"lacking": str(folder / "lacking"), "wrong": wrong},
        load_if_exists=True,
    )
    timeouts = dt.Timeouts(waits=Waits(heartbeat_seconds=0.0, heartbeat_share=1.0))
    study.optimize(grid(trials), client=client, progress=False, timeouts=timeouts)
    return study


def raised_by_worker(study: Study) -> dict[str, int]:
    failed = [stage.worker for stage in study.stages() if stage.status == "failed"]
    return {worker: failed.count(worker) for worker in failed}


def test_study_with_two_of_four_workers_broken_completes(
    tmp_path: Path, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    broken = break_workers(client, tmp_path / "lacking", 2)
    with caplog.at_level(logging.WARNING):
        study = run(client, tmp_path)
    assert [trial.state.value for trial in study.trials] == ["COMPLETE"] * TRIALS
    assert [trial.value for trial in study.trials] == [2.0 * lr for lr in range(TRIALS)]
    raised = raised_by_worker(study)
    assert raised.keys() == broken
    assert max(raised.values()) <= IN_A_ROW + 1, "one more may have been on its way"
    last = study.database.last_run(study.results.row.id)
    assert last is not None
    assert last.workers["aside"] == 2
    for worker in broken:
        aside = f"worker {worker} is put aside: [34] stages in a row raised there"
        assert re.search(aside, caplog.text)
    study.close()


def test_trial_that_raises_on_every_worker_fails_alone(tmp_path: Path, client: Client) -> None:
    break_workers(client, tmp_path / "lacking", 0)
    study = run(client, tmp_path, wrong=7.0)
    assert [trial.number for trial in study.trials if trial.state.value == "FAIL"] == [7]
    assert "wrong everywhere" in str(study.trials[7].error)
    assert set(raised_by_worker(study).values()) == {1}
    assert 2 <= len(raised_by_worker(study)) <= 4
    study.close()


def test_retry_failed_trains_what_failed_once_the_mount_is_there(
    tmp_path: Path, client: Client
) -> None:
    break_workers(client, tmp_path / "lacking", 4)
    study = run(client, tmp_path, trials=6)
    assert {trial.state.value for trial in study.trials} == {"FAIL"}
    for file in (tmp_path / "lacking").iterdir():
        file.unlink()
    assert study.retry_failed() == list(range(6))
    study.close()
    study = run(client, tmp_path, trials=6)
    assert {trial.state.value for trial in study.trials} == {"FAIL"}, "asked of another object"
    assert study.retry_failed() == list(range(6))
    study.optimize(grid(6), client=client, progress=False)
    assert [trial.value for trial in study.trials] == [2.0 * lr for lr in range(6)]
    assert {trial.state.value for trial in study.trials} == {"COMPLETE"}
    assert all(trial.error is None for trial in study.trials)
    assert study.retry_failed() == []
    study.close()

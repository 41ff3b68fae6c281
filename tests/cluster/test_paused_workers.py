"""Workers that Dask pauses, since their memory is nearly full: their stages go elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster, Worker, get_worker
from distributed.core import Status

import dasktune as dt
from dasktune._engine.timeouts import WAITS
from dasktune.cli.status import read
from tests.holding import wait_until
from tests.toy_trainers import Adding

pytestmark = pytest.mark.cluster

TIMEOUTS = dt.Timeouts(
    waits=replace(WAITS, look_seconds=0.05, heartbeat_seconds=0.05, heartbeat_share=1.0)
)


class Pausing(Adding):
    """Has the first worker of two paused in the midst of a stage, as a full memory would."""

    ignored_config = ("marks",)

    def train(self) -> None:
        try:
            (Path(self.config["marks"]) / "first").open("x").close()
        except FileExistsError:
            pass
        else:
            worker = get_worker()
            worker.loop.add_callback(setattr, worker, "status", Status.paused)
        super().train()


@pytest.fixture
def client() -> Iterator[Client]:
    """Give a cluster of two processes, which never pause by themselves."""
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            memory_limit=0,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
        ) as cluster,
        Client(cluster) as connected,
    ):
        yield connected


def set_status(status: Status, dask_worker: Worker) -> None:
    dask_worker.status = status


VALUES = [3.0 * lr for lr in range(6)]


def grid() -> dt.algos.Grid:
    return dt.algos.Grid(dt.Space(lr=[float(lr) for lr in range(6)]), max_steps=3)


def create(tmp_path: Path) -> Any:
    return dt.create_study(
        Pausing,
        name="pausing",
        storage=tmp_path,
        metric="loss",
        config={"marks": str(tmp_path)},
        checkpoint_every=1,
    )


def train(study: Any, client: Client) -> None:
    study.optimize(grid(), client=client, timeouts=TIMEOUTS, progress=False, check=False)


def values(study: Any) -> list[float]:
    return [trial.value for trial in study.trials]


def test_a_study_ends_on_the_worker_that_is_left(
    client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    study = create(tmp_path)
    train(study, client)
    assert values(study) == VALUES
    assert study.summary()["steps_repeated"] == 0
    assert "Dask has paused worker tcp://" in caplog.text
    assert "memory_limit=0" in caplog.text


def test_a_study_waits_while_all_workers_are_paused_and_says_why(
    client: Client, tmp_path: Path
) -> None:
    (tmp_path / "first").touch()  # none is paused by a step
    client.run(set_status, Status.paused)
    study, seen = create(tmp_path), list[str]()

    def look() -> list[str]:
        (status,) = read(str(tmp_path))
        return [] if status.run is None else [wait.text for wait in status.run.waits]

    def act() -> None:
        try:
            wait_until(lambda: sum("Dask has paused worker" in text for text in look()) == 2)
            seen.extend(look())
        finally:
            client.run(set_status, Status.running)

    thread = threading.Thread(target=act)
    thread.start()
    train(study, client)
    thread.join()
    assert seen
    assert values(study) == VALUES

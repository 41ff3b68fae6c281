"""What the runner does when things around it fail: logs without gaps, states not forgotten."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import dasktune as dt
from dasktune.engine import with_save_points
from dasktune.errors import ClusterError, StorageError
from dasktune.graph.events import RunStage, SavePoint, StopStage
from dasktune.graph.plan import Node
from dasktune.storage.database import Batch, Database
from dasktune.study import Study

pytestmark = pytest.mark.cluster


class Slow(dt.Trainer):
    """Waits in each step for a file that the test makes, and counts its steps in another."""

    ignored_config = ("folder",)

    def build(self, hp: Any) -> None:
        self.weight = 0.0

    def setup(self, hp: Any) -> None:
        self.__dict__.update(hp)

    def train(self) -> None:
        folder = Path(str(self.config["folder"]))
        with open(folder / "count", "ab") as file:
            file.write(b".")
        gate = folder / f"gate-{int(self.weight / 1.0)}"
        while gate.exists():
            threading.Event().wait(0.01)
        self.weight += 1.0

    def evaluate(self) -> dict[str, float]:
        return {"loss": self.weight * self.lr}

    def state_dict(self) -> dict[str, Any]:
        return {"weight": self.weight}

    def load_state_dict(self, state: Any) -> None:
        self.weight = state["weight"]


def open_study(folder: Path, name: str = "slow") -> Study:
    return dt.create_study(
        Slow,
        name=name,
        storage=folder,
        metric="loss",
        config={"folder": str(folder)},
        load_if_exists=True,
    )


GRID = dt.Space(lr=[0.1, 0.2, 0.3])


def test_a_write_that_fails_leaves_no_gap_in_the_log(
    tmp_path: Path, one_worker: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, calls = Database.write, []

    def failing(self: Database, batch: Batch) -> None:
        calls.append(batch)
        told = [event for event in batch.events if event.payload["kind"] == "tell"]
        if told and not any(one is None for one in calls):
            calls.append(None)  # type: ignore[arg-type]
            raise StorageError("disk full")
        write(self, batch)

    study = open_study(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Database, "write", failing)
        with pytest.raises(StorageError, match="disk full"):
            study.optimize(dt.algos.Grid(GRID, max_steps=3), client=one_worker, progress=False)
    study.close()
    again = open_study(tmp_path)
    again.optimize(dt.algos.Grid(GRID, max_steps=3), client=one_worker, progress=False)
    assert [trial.state.value for trial in again.trials] == ["COMPLETE"] * 3
    assert (tmp_path / "count").stat().st_size == 9


def test_a_relative_storage_is_the_drivers(
    tmp_path: Path, one_worker: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    study = dt.create_study(
        Slow, name="near", storage="near", metric="loss", config={"folder": str(tmp_path)}
    )
    study.optimize(dt.algos.Grid(GRID, max_steps=3), client=one_worker, progress=False)
    assert len(list(study.store.keys())) == 3
    assert (tmp_path / "near" / "checkpoints").is_dir()


def test_two_studies_share_a_client(tmp_path: Path, four_workers: Client) -> None:
    heard: list[Any] = []
    four_workers.subscribe_topic("dasktune", heard.append)
    studies = [open_study(tmp_path, name) for name in ("one", "two")]
    threads = [
        threading.Thread(
            target=study.optimize,
            args=(dt.algos.Grid(GRID, max_steps=4),),
            kwargs={"client": four_workers, "progress": False},
        )
        for study in studies
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for study in studies:
        assert [trial.state.value for trial in study.trials] == ["COMPLETE"] * 3
    assert heard, "the user's own handler is still there"
    four_workers.unsubscribe_topic("dasktune")


def test_a_lost_scheduler_is_said(tmp_path: Path) -> None:
    scheduler_file = tmp_path / "scheduler.json"
    flags = ["--scheduler-file", str(scheduler_file)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    flags += ["--host", "127.0.0.1", "--no-dashboard"]
    python = [sys.executable, "-m"]
    scheduler = subprocess.Popen(
        [*python, "distributed.cli.dask_scheduler", "--port", "0", *flags],
        **quiet,  # type: ignore[call-overload]
    )
    worker = subprocess.Popen(
        [*python, "distributed.cli.dask_worker", "--nthreads", "1", "--no-nanny", *flags],
        **quiet,  # type: ignore[call-overload]
    )
    (tmp_path / "gate-2").touch()
    study = open_study(tmp_path)
    found: list[BaseException] = []

    def run(client: Client) -> None:
        try:
            study.optimize(dt.algos.Grid(GRID, max_steps=5), client=client, progress=False)
        except ClusterError as error:
            found.append(error)

    try:
        client = Client(scheduler_file=str(scheduler_file), timeout=30)
        thread = threading.Thread(target=run, args=(client,))
        thread.start()
        while not (tmp_path / "count").exists():
            threading.Event().wait(0.01)
        scheduler.kill()
        scheduler.wait()
        thread.join(60)
        client.close(timeout=1)
    finally:
        for process in (worker, scheduler):
            process.kill()
            process.wait()
    assert len(found) == 1
    assert "connection to the scheduler was lost" in str(found[0])
    (tmp_path / "gate-2").unlink()
    study.close()
    again = open_study(tmp_path)
    again.optimize(dt.algos.Grid(GRID, max_steps=5), workers=1, progress=False)
    assert [trial.state.value for trial in again.trials] == ["COMPLETE"] * 3


def test_save_points_of_stages_that_start_now_go_with_them() -> None:
    node = Node(1, None, (0, 9), {})
    stage = RunStage(
        attempt="a0",
        order=0,
        worker="w",
        after=None,
        node=node,
        start=0,
        stop=9,
        saves=(4,),
        needs={},
    )
    points = [SavePoint(attempt=name, worker="w", step=6) for name in ("a0", "b1")]
    stop = StopStage(attempt="b1", worker="w")
    found = with_save_points([stage, *points, stop])
    assert [getattr(one, "saves", None) for one in found] == [(4, 6), None, None]
    assert found[1:] == [points[1], stop]


def test_states_that_stages_begin_from_are_known_to_be_in_use(
    tmp_path: Path, one_worker: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dasktune.recorder.USED_SECONDS", -1.0)
    study = open_study(tmp_path)
    space = dt.Space(lr=[0.1])
    study.optimize(dt.algos.Grid(space, max_steps=2), client=one_worker, progress=False)
    assert {row.used for row in study.database.storage_rows()} == {0.0}
    study.optimize(dt.algos.Grid(space, max_steps=4), client=one_worker, progress=False)
    used = {row.step: row.used > 0 for row in study.database.storage_rows()}
    assert used == {2: True, 4: False}

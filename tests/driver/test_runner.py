"""The runner when its surroundings fail: the log stays whole, states stay known."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import dasktune as dt
from dasktune._cluster.local import local_client
from dasktune._engine.timeouts import Waits
from dasktune._study import create
from dasktune._study.create import opening_with
from dasktune._study.study import Study
from dasktune._worker.plugin import CLOSE_SECONDS
from dasktune.errors import ClusterError, StorageError
from dasktune.storage.database.database import Batch, Database
from tests.chaos.ports import free_port
from tests.holding import PATIENCE, wait_until

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


class FullOnce(Database):
    """Refuses the first batch in which a tuner is told something."""

    was_full = False

    def write(self, batch: Batch) -> None:
        tells = any(event.payload["kind"] == "tell" for event in batch.events)
        if tells and not self.was_full:
            self.was_full = True
            raise StorageError("disk full")
        super().write(batch)


def test_a_write_that_fails_leaves_no_gap_in_the_log(tmp_path: Path, one_worker: Client) -> None:
    with opening_with(partial(create.open_study, open_database=FullOnce)):
        study = open_study(tmp_path)
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
        thread.join(PATIENCE)
    for study in studies:
        assert [trial.state.value for trial in study.trials] == ["COMPLETE"] * 3
    wait_until(lambda: heard)  # the user's own handler is still there
    four_workers.unsubscribe_topic("dasktune")


QUIET: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


@contextmanager
def scheduler_and_worker(port: int) -> Iterator[tuple[subprocess.Popen[bytes], ...]]:
    """Run a scheduler and one worker as processes of their own; they end with this."""
    place = ["--host", "127.0.0.1", "--no-dashboard"]
    python = [sys.executable, "-m"]
    scheduler = subprocess.Popen(
        [*python, "distributed.cli.dask_scheduler", "--port", str(port), *place], **QUIET
    )
    flags = ["--nthreads", "1", "--no-nanny", *place]
    address = f"tcp://127.0.0.1:{port}"
    worker = subprocess.Popen([*python, "distributed.cli.dask_worker", address, *flags], **QUIET)
    try:
        yield scheduler, worker
    finally:
        for process in (worker, scheduler):
            process.kill()
            process.wait()


class InBackground:
    """A study that runs in a thread until its first step, which waits for a file to go."""

    def __init__(self, folder: Path, client: Client, timeouts: dt.Timeouts) -> None:
        (folder / "gate-2").touch()
        self.study = open_study(folder)
        self.error: BaseException | None = None
        self._client, self._timeouts = client, timeouts
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        while not (folder / "count").exists():
            threading.Event().wait(0.01)

    def _run(self) -> None:
        tuner = dt.algos.Grid(GRID, max_steps=5)
        try:
            self.study.optimize(tuner, client=self._client, progress=False, timeouts=self._timeouts)
        except ClusterError as error:
            self.error = error

    def join(self) -> None:
        self._thread.join(120)
        assert not self._thread.is_alive()


def test_run_names_a_scheduler_that_stays_away(tmp_path: Path) -> None:
    port = free_port()
    with scheduler_and_worker(port) as (scheduler, _):
        client = Client(f"tcp://127.0.0.1:{port}", timeout=PATIENCE)
        running = InBackground(tmp_path, client, dt.Timeouts(scheduler_seconds=1))
        scheduler.kill()
        running.join()
        client.close(timeout=1)
    assert "must be there, it is gone since 1 s; run this again" in str(running.error)
    (tmp_path / "gate-2").unlink()
    running.study.close()
    again = open_study(tmp_path)
    again.optimize(dt.algos.Grid(GRID, max_steps=5), workers=1, progress=False)
    assert [trial.state.value for trial in again.trials] == ["COMPLETE"] * 3
    again.close()


class Announced(logging.Handler):
    """Waits for a log record of some text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text, self._came = text, threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self._text in record.getMessage():
            self._came.set()

    def wait(self) -> None:
        assert self._came.wait(PATIENCE), f"no log record has {self._text!r}"


def test_run_stops_while_it_waits_for_a_lost_scheduler(tmp_path: Path) -> None:
    port, lost = free_port(), Announced("was lost; it is waited for")
    logger = logging.getLogger("dasktune._driver.connection")
    logger.addHandler(lost)
    with scheduler_and_worker(port) as (scheduler, _):
        client = Client(f"tcp://127.0.0.1:{port}", timeout=PATIENCE)
        running = InBackground(tmp_path, client, dt.Timeouts(scheduler_seconds=10 * PATIENCE))
        scheduler.kill()
        lost.wait()
        assert running.study.stop()
        running.join()
        client.close(timeout=1)
    logger.removeHandler(lost)
    assert running.error is None
    assert not any(trial.state.value == "COMPLETE" for trial in running.study.trials)
    running.study.close()


def test_a_run_goes_on_with_a_scheduler_that_comes_back(tmp_path: Path) -> None:
    port = free_port()
    with scheduler_and_worker(port) as processes:
        client = Client(f"tcp://127.0.0.1:{port}", timeout=PATIENCE)
        running = InBackground(tmp_path, client, dt.Timeouts())
        for process in processes:
            process.kill()
            process.wait()
        (tmp_path / "gate-2").unlink()
        with scheduler_and_worker(port):
            running.join()
        client.close(timeout=1)
    assert running.error is None
    assert [trial.state.value for trial in running.study.trials] == ["COMPLETE"] * 3
    assert {stage.status for stage in running.study.stages()} >= {"trained", "lost"}
    running.study.close()


def test_worker_told_to_end_saves_first_and_reports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CLOSE_SECONDS, "120")  # however late it is allowed to go on
    with local_client(1) as client:
        running = InBackground(tmp_path, client, dt.Timeouts())
        while (tmp_path / "count").stat().st_size < 3:  # two steps of the first trial, at least
            threading.Event().wait(0.01)
        (pid,) = client.run(os.getpid).values()
        os.kill(pid, signal.SIGTERM)
        runner = running.study._optimizer.runner
        while not runner._leaving:  # it has said so, and stops at its next step
            threading.Event().wait(0.01)
        (tmp_path / "gate-2").unlink()
        running.join()
    assert running.error is None
    summary = running.study.summary()
    assert summary["steps_executed"] == summary["steps_unique"] == 15
    assert (tmp_path / "count").stat().st_size == 15, "no step is trained twice"
    assert "stopped" in {stage.status for stage in running.study.stages()}
    running.study.close()


def test_a_worker_that_falls_silent_costs_its_stage_some_time(tmp_path: Path) -> None:
    with local_client(2) as client:
        running = InBackground(tmp_path, client, dt.Timeouts(silence_seconds=2))
        pids = client.run(os.getpid)
        view = running.study._optimizer.runner._engine.view
        while not (begun := [one for one in list(view.attempts.values()) if one.begun]):
            threading.Event().wait(0.01)  # a step counts before the driver has heard of it
        pid = pids[begun[0].worker]
        os.kill(pid, signal.SIGSTOP)
        (tmp_path / "gate-2").unlink()
        running.join()
        os.kill(pid, signal.SIGCONT)
        assert running.error is None
        assert [trial.state.value for trial in running.study.trials] == ["COMPLETE"] * 3
    running.study.close()


def test_states_that_stages_begin_from_are_known_to_be_in_use(
    tmp_path: Path, one_worker: Client
) -> None:
    study = open_study(tmp_path)
    space = dt.Space(lr=[0.1])
    at_once = dt.Timeouts(waits=Waits(used_seconds=0.0))
    study.optimize(dt.algos.Grid(space, max_steps=2), client=one_worker, progress=False)
    assert {row.used for row in study.database.storage_rows()} == {0.0}
    longer = dt.algos.Grid(space, max_steps=4)
    study.optimize(longer, client=one_worker, progress=False, timeouts=at_once)
    used = {row.step: row.used > 0 for row in study.database.storage_rows()}
    assert used == {2: True, 4: False}

"""Outages of store, database and scheduler, short and long: no result is lost or wrong."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from distributed import Client

import dasktune as dt
from dasktune._driver import leases as leasing
from dasktune._driver.leases import PATIENCE as LEASE_PATIENCE
from dasktune._engine.timeouts import DATABASE_SILENT_SECONDS, DRAIN_SECONDS, STORE_SECONDS
from dasktune._study.current_run import GOES_ON
from dasktune._study.study import Study
from dasktune.errors import StorageError
from dasktune.sequences import Constant, Piecewise
from dasktune.storage.files import objects as object_files
from dasktune.storage.files.retry import Patience
from tests.holding import Gate, pass_gate
from tests.services import S3Server
from tests.storage.proxy import Proxy

STEPS = 8
RATES = (0.1, 0.2, 0.3, 0.4)
SPACE = dt.Space(
    lr=[Constant(0.1), *(Piecewise([0.1, lr], boundaries=[4]) for lr in (0.2, 0.3, 0.4))]
)
UNIQUE = STEPS + 3 * 4


HELD = 6
"""Steps after which a trial passes the gate that may hold it."""


class Walk(dt.Trainer):
    """Multiplies a number by 1 - lr at every step, and counts its steps in a file."""

    ignored_config = ("log", "hold", "memory")

    def build(self, hp: Mapping[str, Any]) -> None:
        self.lr, self.done, self.x = hp["lr"], 0, 1.0

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.lr = hp["lr"]

    def train(self) -> None:
        if self.done == HELD:
            pass_gate(self.config["hold"])
        if self.lr == self.config.get("memory"):
            np.ones(2**50)
        self.x -= self.lr * self.x
        self.done += 1
        with open(self.config["log"], "a") as file:
            file.write(f"{self.done} {self.x.hex()}\n")

    def evaluate(self) -> dict[str, float]:
        return {"loss": self.x}

    def state_dict(self) -> dict[str, Any]:
        return {"x": self.x, "done": self.done}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.x, self.done = state["x"], state["done"]


def alone(rate: float) -> list[dict[str, Any]]:
    """Return the states of a trial as a lone run goes through them."""
    states, x = [], 1.0
    for done in range(1, STEPS + 1):
        x -= (0.1 if done <= 4 else rate) * x
        states.append({"x": x, "done": done})
    return states


class Place:
    """Where a study is, and what its trainers have counted."""

    def __init__(self, folder: Path, storage: str = "", database: str = "") -> None:
        self.folder = folder
        self.storage = storage or str(folder / "store")
        self.database = database or str(folder / "studies.db")
        self.log = folder / "log"
        self.gate = Gate(folder / "hold")

    def open(self, **config: object) -> Study:
        return dt.create_study(
            Walk,
            name="walk",
            storage=self.storage,
            database=self.database,
            metric="loss",
            config={"log": str(self.log), "hold": str(self.gate.path), **config},
            checkpoint_every=1,
            load_if_exists=True,
        )

    def trained(self) -> Counter[str]:
        """Return how often each state was trained, as the trainer itself counted."""
        return Counter(self.log.read_text().splitlines() if self.log.exists() else [])

    def durable(self, study: Study) -> set[str]:
        """Return the states that are in the store, as the trainer names them."""
        keys = list(study.store.keys())
        states = [study.store.load(key)[0] for key in keys]
        return {f"{one['done']} {one['x'].hex()}" for one in states}

    @contextmanager
    def under_way(self, act: Callable[[], object]) -> Iterator[None]:
        """Do something in another thread while trials are under way: none goes on before it.

        They go on when it calls `let_go`, or has ended.
        """
        self.gate.close()
        is_over = threading.Event()

        def wait_and_act() -> None:
            while self.trained().total() < HELD:
                if is_over.wait(0.005):
                    return
            try:
                act()
            finally:
                self.let_go()

        thread = threading.Thread(target=wait_and_act)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join(60)
        assert not thread.is_alive()

    def let_go(self) -> None:
        self.gate.open()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def run(study: Study, client: Client, **options: Any) -> None:
    study.optimize(dt.algos.Grid(SPACE, max_steps=STEPS), client=client, progress=False, **options)


def assert_exact(study: Study) -> None:
    """Every trial is complete, with the metrics and states of a lone run bit for bit."""
    assert [trial.state.value for trial in study.trials] == ["COMPLETE"] * len(RATES)
    for trial, rate in zip(study.trials, RATES, strict=True):
        expected = alone(rate)
        assert {step: one["loss"] for step, one in trial.metrics.items()} == {
            state["done"]: state["x"] for state in expected
        }
        node = study.plan.nodes_of(trial.number)[-1]
        for state in expected:
            assert study.store.load(node.key_at(state["done"]))[0] == state


class Heard(logging.Handler):
    """Waits until something is said in the log."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text, self._is_said = text, threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self._text in record.getMessage():
            self._is_said.set()

    def wait(self) -> None:
        assert self._is_said.wait(60), f"{self._text!r} was not said"


@contextmanager
def heard(text: str) -> Iterator[Heard]:
    handler, logger = Heard(text), logging.getLogger("dasktune")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


# ---------------------------------------------------------------------------- the store


@pytest.fixture
def proxy(moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """Return a proxy before an S3 server; this process's clients go there."""
    from s3fs import S3FileSystem

    with Proxy(moto.port) as found:
        for name, value in moto.environment(found.port).items():
            monkeypatch.setenv(name, value)
        S3FileSystem.clear_instance_cache()
        yield found
    S3FileSystem.clear_instance_cache()


@pytest.mark.slow
@pytest.mark.s3
def test_store_away_longer_than_lease_patience_ends_no_run(
    tmp_path: Path, moto: S3Server, proxy: Proxy, two_threads: Client
) -> None:
    place = Place(tmp_path, storage=f"s3://{moto.create_bucket()}/walk")
    study = place.open()

    def cut() -> None:
        proxy.fate = lambda request: "is reset"
        place.let_go()
        without_leases.wait()
        proxy.fate = Proxy.PASSES

    with heard("leases cannot be used") as without_leases, place.under_way(cut):
        run(study, two_threads)
    assert_exact(study)
    assert set(place.trained().values()) == {1}, "nothing is trained twice"
    assert study.summary()["steps_executed"] == place.trained().total() == UNIQUE
    study.close()


@pytest.mark.slow
@pytest.mark.s3
def test_store_that_stays_away_ends_run_that_can_continue(
    tmp_path: Path,
    moto: S3Server,
    proxy: Proxy,
    two_threads: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = Place(tmp_path, storage=f"s3://{moto.create_bucket()}/walk")

    def cut() -> None:
        proxy.fate = lambda request: "is reset"

    with monkeypatch.context() as hasty:
        hasty.setattr(object_files, "Patience", partial(Patience, seconds=1.0))
        hasty.setattr(leasing, "PATIENCE", Patience(seconds=1.0, request=1.0))
        study = place.open()
        with (
            place.under_way(cut),
            pytest.raises(StorageError, match=f"cannot write to {place.storage}: ") as caught,
        ):
            run(study, two_threads)
    assert caught.value.__notes__ == [GOES_ON]
    study.close()
    proxy.fate = Proxy.PASSES
    again = place.open()
    durable = place.durable(again)
    assert durable
    run(again, two_threads)
    assert_exact(again)
    counts = place.trained()
    assert len(counts) == UNIQUE
    assert {counts[state] for state in durable} == {1}, "what was durable is not trained again"
    again.close()


# ------------------------------------------------------------------------- the database


class Server:
    """A PostgreSQL server that can be stopped."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._folder = Path(parse_qs(urlsplit(url).query)["host"][0])
        # What it was started with, its program first.
        options = (self._folder / "data" / "postmaster.opts").read_text().split()
        self._program = str(Path(options[0]).with_name("pg_ctl"))
        self._options = " ".join(one.strip('"') for one in options[3:])

        self.is_there = True

    def stop(self) -> None:
        """End it at once, as a crash does."""
        self._call("-m", "immediate", "stop")
        self.is_there = False

    def start(self) -> None:
        self._call("-w", "-l", str(self._folder / "log"), "-o", self._options, "start")
        self.is_there = True

    def _call(self, *options: str) -> None:
        command = [self._program, "-D", str(self._folder / "data"), *options]
        owner: dict[str, Any] = {}
        if os.geteuid() == 0:
            owner = {"user": "postgres", "group": "postgres", "extra_groups": []}
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run(command, check=True, cwd=self._folder, timeout=60, **quiet, **owner)


@pytest.fixture
def server(postgresql: str) -> Iterator[Server]:
    import sqlalchemy as sa

    engine = sa.create_engine(postgresql, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with engine.connect() as connection:
        connection.exec_driver_sql("CREATE DATABASE outages")
    found = Server(postgresql.replace("/postgres?", "/outages?"))
    yield found
    if not found.is_there:
        found.start()
    with engine.connect() as connection:
        connection.exec_driver_sql("DROP DATABASE outages WITH (FORCE)")
    engine.dispose()


@pytest.mark.postgresql
def test_a_database_server_may_crash_and_come_back(
    tmp_path: Path, server: Server, two_threads: Client
) -> None:
    place = Place(tmp_path, database=server.url)
    study = place.open()

    def crash() -> None:
        server.stop()
        place.let_go()
        lost.wait()
        server.start()

    with heard("the connection was lost; trying again") as lost, place.under_way(crash):
        run(study, two_threads)
    assert_exact(study)
    assert set(place.trained().values()) == {1}, "nothing is trained twice"
    assert study.summary()["steps_executed"] == UNIQUE
    study.close()


@pytest.mark.postgresql
def test_database_that_stays_away_ends_run_that_can_continue(
    tmp_path: Path, server: Server, two_threads: Client, caplog: pytest.LogCaptureFixture
) -> None:
    place = Place(tmp_path, database=server.url)
    study = place.open()
    with (
        place.under_way(server.stop),
        pytest.raises(StorageError, match="cannot use database postgresql") as caught,
    ):
        run(study, two_threads, timeouts=dt.Timeouts(database_seconds=1))
    assert caught.value.__notes__ == [GOES_ON]
    assert caplog.text.count("the connection was lost; trying again") == 1, "waited for once"
    study.close()
    server.start()
    again = place.open()
    durable, before = place.durable(again), place.trained()
    run(again, two_threads)
    assert_exact(again)
    counts = place.trained()
    assert len(counts) == UNIQUE
    assert {counts[state] - before[state] for state in durable} == {0}
    again.close()


HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.process
def test_locked_database_file_is_waited_for(place: Place, two_threads: Client) -> None:
    study = place.open()

    def hold() -> None:
        command = [sys.executable, "-c", HOLDER, place.database]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, text=True, **pipes) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            place.let_go()
            threading.Event().wait(2.0)
            holder.communicate("")

    with place.under_way(hold):
        run(study, two_threads)
    assert_exact(study)
    assert set(place.trained().values()) == {1}
    study.close()


SMALL = 2**22
"""Bytes on a small disk."""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "disk"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SMALL}", "tmpfs", str(path)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("needs to be root, to mount a small disk")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def test_full_disk_ends_run_that_can_continue(
    tmp_path: Path, small_disk: Path, two_threads: Client
) -> None:
    place = Place(tmp_path, database=str(small_disk / "studies.db"))
    study = place.open()
    other = small_disk / "other"

    def fill() -> None:
        with other.open("wb", buffering=0) as file, suppress(OSError):
            for _ in range(SMALL // 4096):  # no more: should the small disk be gone, a large one
                file.write(b"0" * 4096)

    with (
        place.under_way(fill),
        pytest.raises(StorageError, match=f"cannot use database {place.database}: .*disk is full"),
    ):
        run(study, two_threads)
    study.close()
    other.unlink()
    again = place.open()
    durable, before = place.durable(again), place.trained()
    run(again, two_threads)
    assert_exact(again)
    counts = place.trained()
    assert len(counts) == UNIQUE
    assert {counts[state] - before[state] for state in durable} == {0}
    again.close()


# --------------------------------------------------------------------------- the memory


def test_a_trial_that_does_not_fit_into_memory_fails_alone(
    place: Place, two_threads: Client
) -> None:
    study = place.open(memory=0.3)
    run(study, two_threads)
    assert [trial.state.value for trial in study.trials] == [
        *("COMPLETE", "COMPLETE", "FAIL", "COMPLETE")
    ]
    assert "MemoryError: Unable to allocate" in study.records[2].message
    for number in (0, 1, 3):
        metrics = study.trials[number].metrics
        assert [metrics[step]["loss"] for step in range(1, STEPS + 1)] == [
            state["x"] for state in alone(RATES[number])
        ]
    failed = [stage for stage in study.stages() if stage.status == "failed"]
    assert len({stage.worker for stage in failed}) == 2, "tried again on another worker"
    assert set(place.trained().values()) == {1}
    study.close()


# ----------------------------------------------------------------------------- the page


def test_failures_page_names_existing_tests_and_true_times() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs" / "failures.md").read_text()
    named = set(re.findall(r"`((?:\w+/)*test_\w+\.py)`", page))
    assert len(named) > 10
    assert [one for one in sorted(named) if not (root / "tests" / one).is_file()] == []
    timeouts = dt.Timeouts()
    assert timeouts.step_seconds is None
    for name in ("silence_seconds", "scheduler_seconds", "database_seconds"):
        assert f"`{name}` ({getattr(timeouts, name):g} s)" in page
    for seconds in (
        STORE_SECONDS,
        LEASE_PATIENCE.seconds,
        DATABASE_SILENT_SECONDS,
        DRAIN_SECONDS,
    ):
        assert f" {seconds:g} s" in page
    for link in re.findall(r"\]\(([\w-]+\.md)\)", page):
        assert (root / "docs" / link).is_file()

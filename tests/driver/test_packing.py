"""Workers in processes of their own that share a device: how many train at a time."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import dasktune as dt
from dasktune._driver.speed_keeper import SpeedKeeper
from dasktune._worker.hardware import class_of, hardware_of
from dasktune._worker.shared_device import SHARED_DEVICE
from dasktune.cli.status import read
from dasktune.graph.kept_speeds import KeptFactor, KeptMeasurements
from dasktune.graph.packing import LEAST_SAMPLES
from dasktune.storage.database.database import Database
from tests.holding import Gate, pass_gate, wait_until
from tests.toy_trainers import Adding
from tests.unlike_workers import unlike_processes

pytestmark = [pytest.mark.cluster, pytest.mark.process]

FIRST = LEAST_SAMPLES
"""Trials that train alone before two are tried together."""


class Crowded(Adding):
    """Has no memory for two trainers; the later trials wait at a gate, each marked by a file."""

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        self.folder = Path(self.config["folder"])
        self.is_late = hp["lr"] > FIRST

    def train(self) -> None:
        mark = self.folder / f"trains-{os.getpid()}"
        mark.touch()
        if self.is_late:
            pass_gate(self.folder / "gate")
        crowd = len(list(self.folder.glob("trains-*")))
        with (self.folder / "crowds").open("a") as file:
            file.write(f"{crowd}\n")
        try:
            if crowd > 1:
                pass_gate(self.folder / "second")
                raise MemoryError("no room for two")
            super().train()
        finally:
            mark.unlink()


def test_memory_that_two_trials_fill_fails_no_trial(tmp_path: Path) -> None:
    shared = {SHARED_DEVICE: "socket"}
    study = dt.create_study(
        Crowded,
        name="crowded",
        storage=tmp_path / "runs",
        metric="loss",
        config={"folder": str(tmp_path)},
    )
    numbers = [float(1 + number) for number in range(FIRST + 5)]
    tuner = dt.algos.Grid(dt.Space(lr=numbers), max_steps=2)
    with (
        Gate(tmp_path / "gate") as gate,
        Gate(tmp_path / "second") as second,
        unlike_processes(shared, shared, shared) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        run = pool.submit(study.optimize, tuner, client=client, check=False)
        wait_until(lambda: run.done() or len(list(tmp_path.glob("trains-*"))) == 2)
        assert not run.done()
        gate.open()
        wait_until(lambda: (tmp_path / "crowds").read_text().count("2\n") == 2)
        second.open()
        run.result()
    assert {trial.state for trial in study.trials} == {dt.TrialState.COMPLETE}
    (status,) = read(str(tmp_path / "runs"))
    assert "  packing 1 trial trains alone on each" in str(status)
    assert [model["together"] for model in status.to_json()["packing"]] == [1]
    assert "1 trial trains alone on each" in study.report().read_text()
    crowds = (tmp_path / "crowds").read_text().split()
    assert crowds[: 2 * FIRST] == ["1"] * (2 * FIRST)
    assert crowds.count("2") == 2
    assert crowds.count("1") == 2 * len(numbers)
    with closing(Database(tmp_path / "runs" / "dasktune.db")) as database:
        (row,) = database.studies()
        (kept,) = SpeedKeeper(database, row.spec["fingerprint"]).recall().factors
    assert (kept.together, kept.fits) == (1, 1), "the next study does not try two"
    assert kept.nbytes > 0


class Marked(Adding):
    """Waits at a gate; each training has a file that names its study and its device."""

    def train(self) -> None:
        folder, study = Path(self.config["folder"]), self.config["study"]
        mark = folder / f"{os.environ[SHARED_DEVICE]} {study} {os.getpid()}"
        mark.touch()
        pass_gate(folder / "gate")
        here = sorted(folder.glob(f"{os.environ[SHARED_DEVICE]} *"))
        with (folder / "seen").open("a") as file:
            file.write(" ".join(sorted({path.name.split()[1] for path in here})) + "\n")
        super().train()
        mark.unlink()


def marked(folder: Path, name: str) -> dt.Study:
    # The configuration is part of the fingerprint, so each name has packing factors of its own.
    config = {"folder": str(folder), "study": name}
    runs = folder / "runs"
    return dt.create_study(Marked, name=name, storage=runs, metric="loss", config=config)


def own_class() -> str:
    return class_of(hardware_of({}))


def keep_factor(study: dt.Study, folder: Path, kind: str) -> None:
    """Keep the packing factor 2 for a study's trainer."""
    with closing(Database(folder / "runs" / "dasktune.db")) as database:
        row = database.study(study.name)
        assert row is not None
        kept = KeptFactor(model=(), kind=kind, together=2, most=2, nbytes=1)
        keeper = SpeedKeeper(database, row.spec["fingerprint"])
        keeper.keep(KeptMeasurements(factors=(kept,)))


def test_studies_with_kept_factors_share_no_device(tmp_path: Path) -> None:
    devices = [{SHARED_DEVICE: name} for name in ("a", "a", "b", "b")]
    first, second = marked(tmp_path, "first"), marked(tmp_path, "second")
    tuner = dt.algos.Grid(dt.Space(lr=[float(1 + number) for number in range(8)]), max_steps=1)

    def trains(name: str) -> int:
        return len(list(tmp_path.glob(f"? {name} *")))

    with unlike_processes(*devices) as client, ThreadPoolExecutor(2) as pool:
        options = {"client": client, "check": False, "progress": False, "last_line": False}
        (kind,) = set(client.run(own_class).values())
        for study in (first, second):
            keep_factor(study, tmp_path, kind)
        with Gate(tmp_path / "gate"):
            run = pool.submit(first.optimize, tuner, **options)
            wait_until(lambda: run.done() or trains("first") == 4)
            assert not run.done(), "the kept factor lets two train on each device at once"
            other = pool.submit(second.optimize, tuner, **options)
        for each in (run, other):
            each.result()
    seen = (tmp_path / "seen").read_text().splitlines()
    assert sorted(seen) == ["first"] * 8 + ["second"] * 8

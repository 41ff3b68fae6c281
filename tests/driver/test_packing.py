"""Workers in processes of their own that share a device: how many train at a time."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import dasktune as dt
from dasktune.cli.status import read
from dasktune.graph.packing import LEAST_SAMPLES
from dasktune.worker.sharing import SHARED_DEVICE
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

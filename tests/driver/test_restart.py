"""A restart of all workers by `client.restart()`: the running stages are saved, and go on."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import dasktune as dt
from dasktune._cluster.local import local_client
from dasktune._driver.connection import Submissions
from dasktune._engine.timeouts import CANCELLED_SECONDS, RECEIPT_SECONDS
from tests.holding import Gate, pass_gate, wait_until

STEPS, HELD = 6, 3
"""Steps of each trial, and those after which trainers are held."""

RATES = (0.1, 0.2, 0.3)


class Walk(dt.Trainer):
    """Multiplies a number by 1 - lr at every step, and writes each down."""

    ignored_config = ("folder",)

    def build(self, hp: Mapping[str, Any]) -> None:
        self.lr, self.done, self.x = hp["lr"], 0, 1.0

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.lr = hp["lr"]

    def train(self) -> None:
        folder = Path(self.config["folder"])
        if self.done == HELD:
            pass_gate(folder / "gate")
        self.x -= self.lr * self.x
        self.done += 1
        with open(folder / "log", "a") as file:
            file.write(f"{self.lr} {self.done}\n")

    def evaluate(self) -> dict[str, float]:
        return {"loss": self.x}

    def state_dict(self) -> dict[str, Any]:
        return {"x": self.x, "done": self.done}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.x, self.done = state["x"], state["done"]


class DoneFuture:
    """A future that has finished, or that somebody else has cancelled."""

    def __init__(self, status: str) -> None:
        self.status = status

    def cancelled(self) -> bool:
        return self.status == "cancelled"

    def done(self) -> bool:
        return True


def test_messages_of_a_finished_stage_are_waited_for() -> None:
    submissions = Submissions(client=None, plan=None, workers=None)  # type: ignore[arg-type]
    submissions._futures["a0"] = DoneFuture("finished")  # type: ignore[assignment]
    untold: dict[str, Any] = {"a0": SimpleNamespace(begun=True, ended=False)}
    told: dict[str, Any] = {"a0": SimpleNamespace(begun=True, ended=True)}
    assert list(submissions.done(untold, 100.0)) == []
    assert list(submissions.done(told, 100.0)) == ["a0"]
    assert list(submissions.done(untold, 100.0 + RECEIPT_SECONDS)) == ["a0"]


@pytest.mark.parametrize("begun", [True, False])
def test_cancelled_stage_that_trains_has_time_to_be_saved(begun: bool) -> None:
    submissions = Submissions(client=None, plan=None, workers=None)  # type: ignore[arg-type]
    submissions._futures["a0"] = DoneFuture("cancelled")  # type: ignore[assignment]
    attempts: dict[str, Any] = {"a0": SimpleNamespace(begun=begun, ended=False)}
    for now in (100.0, 99.0 + CANCELLED_SECONDS):
        assert list(submissions.done(attempts, now)) == ([] if begun else ["a0"])
    now = 100.0 + CANCELLED_SECONDS
    assert list(submissions.done(attempts, now)) == ["a0"]
    assert submissions.take("a0") is not None
    assert list(submissions.done(attempts, now)) == []


@pytest.mark.cluster
def test_restart_of_all_workers_repeats_no_step(tmp_path: Path) -> None:
    study = dt.create_study(
        Walk, name="walk", storage=tmp_path, metric="loss", config={"folder": str(tmp_path)}
    )
    log, gate = tmp_path / "log", Gate(tmp_path / "gate")

    def trained() -> list[str]:
        return log.read_text().splitlines() if log.exists() else []

    def act() -> None:
        try:
            wait_until(lambda: len(trained()) == 2 * HELD)
            restart.start()
            wait_until(lambda: len(study._optimizer.runner._leaving) == 2)
        finally:
            gate.open()

    gate.close()
    actor = threading.Thread(target=act)
    with local_client(2) as client:
        restart = threading.Thread(target=client.restart)
        actor.start()
        tuner = dt.algos.Grid(dt.Space(lr=list(RATES)), max_steps=STEPS)
        study.optimize(tuner, client=client, progress=False, check=False)
        actor.join()
        restart.join()
    assert sorted(trained()) == sorted(
        f"{rate} {step}" for rate in RATES for step in range(1, STEPS + 1)
    )
    assert study.summary()["steps_executed"] == STEPS * len(RATES)
    study.close()

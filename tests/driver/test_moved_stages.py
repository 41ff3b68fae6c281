"""A running stage leaves a far slower class: real worker processes."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from distributed import Worker

import dasktune as dt
from dasktune._engine.timeouts import PROGRESS_FLUSH_SECONDS
from tests.holding import stop_order, wait_until
from tests.unlike_workers import unlike_processes

STEPS = 30
SLOW_STEP_SECONDS = 4 * PROGRESS_FLUSH_SECONDS
"""So long that the worker reports its first step by itself; elsewhere a step takes far less."""


class Walk(dt.Trainer):
    """Adds up its learning rate; writes down each step with the tag of its worker.

    On the slow worker, the first step of a trial lasts until the other worker has nothing to do,
    and the second one until the driver has sent an order to stop.
    """

    ignored_config = ("folder",)

    def build(self, hp: Mapping[str, Any]) -> None:
        self.lr, self.done, self.x = hp["lr"], 0, 0.0

    def train(self) -> None:
        log, tag = Path(self.config["folder"]) / "log", os.environ["DASKTUNE_TAGS"]
        if tag == "slow" and self.done == 0:
            until = time.monotonic() + SLOW_STEP_SECONDS
            wait_until(lambda: time.monotonic() > until and lines(log).count("fast") == STEPS)
        elif tag == "slow" and self.done == 1:
            wait_until(stop_order(Worker._instances))
        self.x += self.lr
        self.done += 1
        with open(log, "a") as file:
            file.write(f"{tag} {self.lr} {self.done}\n")

    def evaluate(self) -> dict[str, float]:
        return {"loss": self.x}

    def state_dict(self) -> dict[str, Any]:
        return {"x": self.x, "done": self.done}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.x, self.done = state["x"], state["done"]


def lines(log: Path) -> list[str]:
    """Return the tags of the workers of all steps so far."""
    return [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []


@pytest.mark.process
def test_running_stage_leaves_a_far_slower_class(tmp_path: Path) -> None:
    study = dt.create_study(
        Walk,
        name="walk",
        storage=tmp_path,
        metric="loss",
        config={"folder": str(tmp_path)},
        portable=True,
    )
    workers = [
        {"DASKTUNE_TAGS": tag, "DASKTUNE_CLASS": tag, "DASKTUNE_NUMERICS": f"{tag} bits"}
        for tag in ("slow", "fast")
    ]
    with unlike_processes(*workers) as client:
        study.optimize(
            dt.algos.Grid(dt.Space(lr=[0.25, 0.5]), max_steps=STEPS),
            client=client,
            progress=False,
            check=False,
        )
    steps = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    trained = {(lr, int(done)) for _, lr, done in steps}
    assert trained == {(lr, step) for lr in ("0.25", "0.5") for step in range(1, STEPS + 1)}
    assert len(steps) == 2 * STEPS, "no step is trained twice"
    slow = [(lr, int(done)) for tag, lr, done in steps if tag == "slow"]
    assert [done for _, done in slow] == [1, 2]
    assert [trial.value for trial in study.trials] == [STEPS * 0.25, STEPS * 0.5]
    summary = study.summary()
    assert summary["steps_repeated"] == 0
    moved = [0.25, 0.5].index(float(slow[0][0]))
    (several,) = summary["trials_on_several_classes"]
    assert several == {"trial": moved, "classes": ["fast", "slow"]}
    stages = {(each.kind, each.start) for each in study.stages() if moved in each.trials}
    assert stages == {("slow", 0), ("fast", 2)}
    study.close()

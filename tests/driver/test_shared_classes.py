"""Several studies on one cluster of unlike workers: none keeps those that others wait for."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import ExitStack, closing
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, get_worker

import dasktune as dt
from dasktune._cluster.arbiter import ArbiterPlugin
from dasktune.graph.fair_shares import StudyShares
from tests.holding import wait_until
from tests.unlike_workers import unlike_workers

from . import turns

pytestmark = pytest.mark.cluster

KINDS = ("first", "second", "third")
STEPS = 1_000


class Paced(dt.Trainer):
    """Trains a step when it may."""

    def build(self, hp: Mapping[str, Any]) -> None:
        self.x = 0.0

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.study = hp["study"]

    def train(self) -> None:
        # By name, so that the trainer's code, which travels by value, does not hold a copy of it.
        import_module("tests.driver.turns").train_a_step(get_worker().address, self.study)
        self.x += 1.0

    def evaluate(self) -> dict[str, float]:
        return {"loss": self.x}

    def state_dict(self) -> dict[str, object]:
        return {"x": self.x}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.x = state["x"]


class Run(threading.Thread):
    """A study with one trial for each kind of worker, which runs in a thread of its own."""

    def __init__(self, name: str, folder: Path, client: Client) -> None:
        super().__init__()
        self._client = client
        self.study = dt.create_study(
            Paced,
            name=name,
            storage=folder / name,
            metric="loss",
            needs=lambda hp: {hp["kind"]: 1},
        )
        self.start()

    def run(self) -> None:
        """Run the study; what raises ends the thread, and no trial is complete then."""
        tuner = dt.algos.Grid(dt.Space(kind=[*KINDS], study=self.study.name), max_steps=STEPS)
        self.study.optimize(tuner, client=self._client, progress=False, last_line=False)

    def close(self) -> None:
        """Stop the run; what trains is saved at its next step."""
        with closing(self.study):
            self.study.stop()
            wait_until(lambda: turns.PERMITS.release(8) or not self.is_alive())
            self.join()


def test_studies_get_workers_that_others_cannot_use_now(tmp_path: Path) -> None:
    turns.TRAINING.clear()
    with (
        unlike_workers(*({kind: 1} for kind in KINDS)) as client,
        ExitStack() as stack,
    ):
        client.register_plugin(ArbiterPlugin(StudyShares(patience_seconds=0.0)))
        names = ("ana", "ben", "chi")
        runs = [stack.enter_context(closing(Run(name, tmp_path, client))) for name in names]
        # Each has one worker, and once this has trained its kind, only stages for the others.
        wait_until(lambda: turns.PERMITS.release(1) or {*turns.TRAINING.values()} == {*names})
        wait_until(lambda: turns.PERMITS.release(99) or not any(run.is_alive() for run in runs))
        for run in runs:
            assert [trial.state.value for trial in run.study.trials] == ["COMPLETE"] * len(KINDS)
            assert run.study.summary()["steps_repeated"] == 0

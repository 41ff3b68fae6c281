"""Priorities of models on real workers: computed beside the training, and in the event log."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import dasktune as dt
from dasktune._cluster.local import local_client
from dasktune.cli.status import read
from dasktune.errors import ConfigurationError
from tests.holding import Gate, pass_gate, wait_until

pytestmark = pytest.mark.cluster

HELD = 0.95
"""The trial with this value is held until the event log has a priority."""

SPACE = dt.Space(
    kernel=[
        dt.Branch("steady", dt.Space(a=dt.Float(0.0, 1.0))),
        dt.Branch("rough", dt.Space(b=dt.Float(0.0, 1.0))),
    ]
)


def opened(folder: Path) -> dt.Study:
    return dt.create_study(
        Wavy,
        name="wavy",
        storage=folder,
        metric="loss",
        load_if_exists=True,
        config={"folder": str(folder)},
    )


def has_priority(study: dt.Study) -> bool:
    """Return whether the event log has a priority."""
    try:
        log = study.log(new_tuner())
    except ConfigurationError:  # the tuner has not begun
        return False
    return "assessed" in {record["kind"] for record in log}


def new_tuner() -> dt.algos.Tuner:
    return dt.algos.Random(SPACE, trials=8, max_steps=2, sampler=dt.Forest())


class Wavy(dt.Trainer):
    """Has a loss that depends on the hyper-parameter of its model; one trial is held."""

    ignored_config = ("folder",)

    def build(self, hp: Mapping[str, Any]) -> None:
        self.done = 0

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.b = hp.get("b", 0.0)

    def train(self) -> None:
        self.done += 1
        if self.b == HELD:
            pass_gate(Path(self.config["folder"]) / "gate")

    def evaluate(self) -> dict[str, float]:
        return {"loss": (17.0 * self.b) % 1.0 + 1 / self.done}

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done, "b": self.b}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.done, self.b = state["done"], state["b"]


def test_workers_compute_priorities_beside_the_training(tmp_path: Path) -> None:
    study = opened(tmp_path)
    for b in (HELD, 0.1, 0.3, 0.5, 0.6, 0.8):
        study.enqueue_trial({"kernel": "rough", "kernel.rough.b": b})
    with Gate(tmp_path / "gate") as gate, local_client(2) as client, ThreadPoolExecutor(1) as pool:
        run = pool.submit(study.optimize, new_tuner(), client=client, progress=False, check=False)
        reader = opened(tmp_path)
        wait_until(lambda: run.done() or has_priority(reader))
        gate.open()
        run.result()
    assert [trial.state.value for trial in study.trials] == ["COMPLETE"] * 8
    models = study.models(new_tuner())
    rough = models[1]
    assert study.summary()["models"] == [asdict(model) for model in models]
    (status,) = read(str(tmp_path))
    assert status.to_json()["models"] == study.summary()["models"]
    assert f"  {rough.name}: weight {rough.weight:.3f}, rank" in str(status)
    page = study.report(tmp_path / "page.html").read_text()
    assert '<section id="models">' in page
    assert f"<th>{rough.name}</th>" in page
    assert rough.priority is not None
    assert rough.priority > 0
    replayed = study.replay(new_tuner())
    assert replayed.identical, str(replayed)

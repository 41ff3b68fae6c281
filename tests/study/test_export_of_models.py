"""The model of a trial is taken home: a plain file, that is read without dasktune."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distributed import Client

import dasktune as dt
from dasktune._study.study import Study
from dasktune.errors import ConfigurationError
from dasktune.sequences import MultiStep


class Line(dt.Trainer):
    """Tied weights, a batch norm, and what else a state may hold."""

    def build(self, hp: Mapping[str, Any]) -> None:
        torch.manual_seed(0)
        self.net = net()
        self.random = np.random.default_rng(self.seed)
        self.done = 0

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.lr = hp["lr"]

    def train(self) -> None:
        self.done += 1
        with torch.no_grad():
            self.net[0].weight -= self.lr * self.random.random()

    def evaluate(self) -> dict[str, float]:
        return {"loss": self.lr + self.done}

    def state_dict(self) -> dict[str, Any]:
        return {
            "net": self.net.state_dict(),
            "random": self.random.bit_generator.state,
            "done": self.done,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        self.random.bit_generator.state = state["random"]
        self.done = state["done"]


def net() -> torch.nn.Sequential:
    made = torch.nn.Sequential(
        torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 3, bias=False)
    )
    made[2].weight = made[0].weight
    return made


@pytest.fixture
def study(tmp_path: Path, two_threads: Client) -> Study:
    made = dt.create_study(Line, name="line", storage=tmp_path / "store", metric="loss", seed=4)
    space = dt.Space(lr=[MultiStep(0.4, milestones=[2], gamma=0.5), 0.1])
    made.optimize(dt.algos.Grid(space, max_steps=4), client=two_threads)
    return made


@pytest.mark.process
def test_export_best_trial_is_readable_without_dasktune(study: Study, tmp_path: Path) -> None:
    assert study.best_trial.number == 1
    path = study.export(path=tmp_path / "new" / "model.pt")
    program = f"""
import json, sys, torch
state = torch.load({str(path)!r}, weights_only=True)
assert "dasktune" not in sys.modules
print(json.dumps([sorted(state), state["done"], state["dasktune"]]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    names, steps, about = json.loads(done.stdout)
    assert (names, steps) == (["dasktune", "done", "net", "random"], 4)
    key = study.plan.node_at(1, 4).key_at(4)
    fingerprint = study.database.study("line").spec["fingerprint"]  # type: ignore[union-attr]
    assert about == {
        "study": "line",
        "trial": 1,
        "step": 4,
        "params": {"lr": 0.1},
        "values": {"lr": 0.1},
        "metrics": {"loss": 4.1},
        "seed": 4,
        "key": key,
        "fingerprint": fingerprint,
    }


def test_export_values_are_those_of_the_last_step(study: Study, tmp_path: Path) -> None:
    for step, lr in ((2, 0.4), (3, 0.2)):
        path = study.export(0, tmp_path / "model.pth", step=step)
        about = torch.load(path, weights_only=True)["dasktune"]
        assert (about["step"], about["values"], about["metrics"]) == (
            step,
            {"lr": lr},
            {"loss": lr + step},
        )


def test_export_part_loads_into_the_model(study: Study, tmp_path: Path) -> None:
    path = study.export(0, tmp_path / "net.pt", only="net")
    saved = torch.load(path, weights_only=True)
    fresh = net()
    fresh.load_state_dict(saved)
    state = study.trial_state(0)["net"]
    assert all(torch.equal(state[name], value) for name, value in fresh.state_dict().items())
    assert saved["0.weight"].data_ptr() == saved["2.weight"].data_ptr(), "tied weights stay tied"
    with pytest.raises(
        ConfigurationError, match="unknown part of the state 'model'; known: done, net, random"
    ):
        study.export(0, tmp_path / "net.pt", only="model")


def test_export_npz_has_dotted_names(study: Study, tmp_path: Path) -> None:
    path = study.export(0, tmp_path / "model.npz")
    state = study.trial_state(0)
    with np.load(path, allow_pickle=False) as saved:
        assert np.array_equal(saved["net.0.weight"], state["net"]["0.weight"].numpy())
        assert saved["done"] == 4
        assert int(str(saved["random.state.state"])) == state["random"]["state"]["state"]
        assert json.loads(str(saved["dasktune"]))["step"] == 4
    with np.load(study.export(0, tmp_path / "net.npz", only="net")) as saved:
        assert set(saved) == set(state["net"])
    with np.load(study.export(0, tmp_path / "done.npz", only="done")) as saved:
        assert {name: int(saved[name]) for name in saved} == {"done": 4}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model.onnx", "unknown ending '.onnx'; known: .npz, .pt, .pth"),
        ("model", "unknown ending ''; known: .npz, .pt, .pth"),
        ("folder.pt", "path must be a file, got the folder"),
    ],
)
def test_export_invalid_path_is_refused_before_training(
    study: Study, name: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "folder.pt").mkdir()
    for key in list(study.store.keys()):
        study.store.discard(key)
    with pytest.raises(ConfigurationError, match=message):
        study.export(0, tmp_path / name)
    assert list(study.store.keys()) == []

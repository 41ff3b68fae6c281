"""``dasktune export`` writes the model of a trial, or a study for Optuna."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import optuna
import pytest
import torch

from dasktune.storage.checkpoints import CheckpointStore

from .conftest import UNIQUE, Folder

pytestmark = pytest.mark.cluster


@pytest.fixture
def trained(folder: Folder) -> Folder:
    done = folder.command("run", "counting.py", "--workers", "1", "--no-report")
    assert done.returncode == 0, done.stderr
    assert len(folder.steps()) == UNIQUE
    return folder


def test_models_are_exported_also_those_that_have_gone(trained: Folder) -> None:
    done = trained.command("export", "counting.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("model.pt: trial 0 after 12 steps, ")
    state = torch.load(trained.path / "model.pt", weights_only=True)
    assert state["weight"].tolist() == pytest.approx([1.2, 1.2])
    assert state["dasktune"]["trial"] == 0

    store = CheckpointStore(str(trained.path / "runs" / "counting"))
    for key in list(store.keys()):
        store.discard(key)
    options = ["--trial", "1", "--step", "8", "--only", "weight", "--out", "out/weight.npz"]
    done = trained.command("export", "counting.py", *options, "--json")
    assert done.returncode == 0, done.stderr
    assert "the state at step 8 is not stored; training 8 steps again, from step 0" in done.stderr
    found = json.loads(done.stdout)
    path = trained.path / found["path"]
    assert found == {
        "path": str(Path("out/weight.npz")),
        "trial": 1,
        "step": 8,
        "nbytes": path.stat().st_size,
    }
    with np.load(path) as saved:
        assert saved["weight"].tolist() == pytest.approx([1.0, 1.0])
    assert len(trained.steps()) == UNIQUE + 8

    for wrong, message in (
        (["--trial", "7"], "trial must be one of 0 to 3, got 7"),
        (["--step", "13"], "step of trial 0 must be 1 to 12, or 'best', got 13"),
        (["--only", "net"], "unknown part of the state 'net'; known: path, weight"),
        (["--out", "model.h5"], "unknown ending '.h5'; known: .npz, .pt, .pth"),
    ):
        done = trained.command("export", "counting.py", *wrong)
        assert done.returncode == 2
        assert message in done.stderr
        assert "Traceback" not in done.stderr


def test_studies_are_exported_to_optuna_and_replaced(trained: Folder) -> None:
    url = f"sqlite:///{trained.path / 'optuna.db'}"
    for target in ("counting.py", "runs/counting", "runs/counting/dasktune.db"):
        done = trained.command("export", target, "--optuna", url, "--json")
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout) == {"study": "counting", "optuna": url, "trials": 4}
        study = optuna.load_study(study_name="counting", storage=url)
        assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 4
    assert len(trained.steps()) == UNIQUE

    for wrong, message in (
        (["--optuna", url, "--trial", "1"], "--optuna writes all trials; leave out --out, --trial"),
        (["--optuna", url, "--study", "other"], "unknown study 'other'; known: counting"),
        (["--study", "counting"], "--study, --storage and --database of export need --optuna"),
    ):
        done = trained.command("export", "counting.py", *wrong)
        assert done.returncode == 2
        assert message in done.stderr

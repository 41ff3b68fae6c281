"""The examples of XGBoost and LightGBM, and the page about them."""

from __future__ import annotations

import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from distributed import Client

from dasktune.trainer import run_alone
from tests.pages import python_blocks

ROOT = Path(__file__).parents[2]


def imported(path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, path.stem, module)
    spec.loader.exec_module(module)
    return module


def trained(module: ModuleType, client: Client) -> tuple[int, int]:
    """Return the steps that a study file asks for and trains; compare a trial with a lone run."""
    study = module.study()
    study.optimize(module.tuner(), client=client, check=False, progress=False)
    last = study.trials[-1]
    assert run_alone(study.trainer, last.sequences, last.steps).metrics == last.metrics
    summary = study.summary()
    study.close()
    return summary["steps_requested"], summary["steps_executed"]


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        pytest.param("xgboost_rates", (120, 49), marks=pytest.mark.framework("xgboost")),
        pytest.param("lightgbm_sampling", (90, 38), marks=pytest.mark.framework("lightgbm")),
    ],
)
def test_an_example_saves_the_steps_of_the_page(
    name: str,
    steps: tuple[int, int],
    two_threads: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    module = imported(ROOT / "examples" / f"{name}.py", monkeypatch)
    assert trained(module, two_threads) == steps
    page = (ROOT / "docs" / "integrations-boosting.md").read_text()
    assert re.search(rf"{name}.py` \| . x . \| {steps[0]} \| {steps[1]} \|", page)


@pytest.mark.framework("xgboost")
def test_the_study_file_of_the_page_runs(
    two_threads: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study_file, best_model, large = python_blocks("integrations-boosting.md")
    (tmp_path / "boosting.py").write_text(study_file)
    monkeypatch.chdir(tmp_path)
    module = imported(tmp_path / "boosting.py", monkeypatch)
    assert trained(module, two_threads) == (24, 18)
    done: dict[str, Any] = {}
    exec(best_model, done)
    best = done["best"]
    assert best.metrics[done["step"]]["valid_logloss"] == min(
        values["valid_logloss"] for values in best.metrics.values()
    )
    assert done["rounds"] == 10 * best.steps
    assert len(done["predictions"]) == done["model"].evaluation["valid"].num_row()
    assert (tmp_path / "best-step.json").exists()
    (tmp_path / "large.py").write_text(large)
    made = imported(tmp_path / "large.py", monkeypatch).study()
    metrics = run_alone(made.trainer, {"eta": 0.3}, 2, config={"rows": 400}).metrics
    assert metrics[2]["valid_logloss"] < metrics[1]["valid_logloss"]

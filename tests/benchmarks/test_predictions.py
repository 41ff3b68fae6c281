"""The benchmark of predictions asks all predictors the same, and counts what they answer."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from dasktune.algos.curves import LEVELS, Curve, Prediction
from dasktune.errors import ConfigurationError
from tests.forked import run_forked

FOLDER = Path(__file__).parents[2] / "benchmarks"
MODULES = ("figures", "predictions", "recorded", "scores")


class Oracle:
    """Knows that a curve rises by as much with each step, give or take some width."""

    def __init__(self, width: float) -> None:
        self.width = width
        self.asked: list[tuple[Curve, int]] = []

    def predict(self, curve: Curve, steps: tuple[int, ...], *, seed: int = 0) -> Prediction:
        self.asked.append((curve, seed))
        pace = curve.scores[-1] / curve.steps[-1]
        rows = [[pace * step + self.width * (level - 0.5) for level in LEVELS] for step in steps]
        return Prediction(
            after=curve.last_step,
            steps=steps,
            scores=tuple(map(tuple, rows)),
            deviations=(0.0,) * len(steps),
        )

    def identity(self) -> dict[str, object]:
        return {"predictor": "Oracle", "width": self.width}


@pytest.fixture
def predictions(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(FOLDER)
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module("predictions")
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with two kinds of straight lines."""
    for name, steepest in (("own_mlp_a", 0.9), ("lcbench_a", 0.5)):
        curves = np.linspace(0.1, steepest, 12)[:, None] * np.arange(1, 21) / 20
        np.savez(
            tmp_path / f"{name}.npz",
            curves=curves[:, :, None],
            columns=np.array(["val_accuracy"]),
            configs_jsonl=np.frombuffer(b"\n".join([b'{"lr": 0.1}'] * 12), np.uint8),
            tasks=np.array(["one"]),
            val_accuracy=curves[None],
            cum_time_s=np.ones((1, 12, 20)),
        )
    return tmp_path


def test_all_predictors_are_asked_the_same(predictions: ModuleType, folder: Path) -> None:
    sets = predictions.recorded.load(folder)
    asked = predictions.challenges(sets, 5)
    few = predictions.challenges(sets, 2)
    assert len(asked) == 10
    assert {id(one.run) for one in few} < {id(one.run) for one in asked}
    one, other = Oracle(0.1), Oracle(0.2)
    found = [*predictions.answers("one", one, asked), *predictions.answers("other", other, asked)]
    assert one.asked == other.asked
    assert [len(curve.steps) for curve, _ in one.asked[:3]] == [2, 4, 8]
    assert [answer.part for answer in found[:3]] == list(predictions.PARTS)


def test_lines_compare_with_persistence_without_smooth_curves(
    predictions: ModuleType, folder: Path
) -> None:
    asked = predictions.challenges(predictions.recorded.load(folder), 4)
    persistence = predictions.made("Persistence")
    found = [
        *predictions.answers("Persistence", persistence, asked),
        *predictions.answers("PriorFitted", Oracle(0.01), asked),
        *predictions.answers("CurveEnsemble", Oracle(0.5), asked),
    ]
    lines = predictions.lines(found, beside_plain=False)
    by_place = {(one.source, one.part, one.predictor): one for one in lines}
    assert len(lines) == 3 * (2 * 4 + 1)
    whole, smooth = by_place["all", None, "PriorFitted"], by_place["lcbench", None, "PriorFitted"]
    assert whole.predictions == by_place["own_mlp", None, "PriorFitted"].predictions == 12
    assert smooth.scores.coverage == whole.scores.coverage == 1.0
    assert whole.scores.median_error < 1e-6
    assert whole.skill > by_place["all", None, "CurveEnsemble"].skill > 0
    assert by_place["all", None, "Persistence"].skill == 0
    figures = {one.name: one for one in predictions.figures(lines)}
    coverage = figures["PriorFitted, all: coverage of the 80% interval, off 80%"]
    assert coverage.value == pytest.approx(0.2)
    assert coverage.reached is False
    assert "PriorFitted, lcbench: coverage of the 80% interval, off 80%" not in figures
    assert figures["PriorFitted, own_mlp: CRPS over persistence's"].reached is True


def test_what_is_beside_the_plain_ensemble_is_compared_with_it(
    predictions: ModuleType, folder: Path
) -> None:
    asked = predictions.challenges(predictions.recorded.load(folder), 2)
    found = [
        *predictions.answers("PriorFitted", Oracle(0.01), asked),
        *predictions.answers("PlainEnsemble", Oracle(0.5), asked),
    ]
    figures = {
        one.name: one for one in predictions.figures(predictions.lines(found, beside_plain=True))
    }
    assert figures["PriorFitted: CRPS over the plain ensemble's"].value < 1
    assert figures["PriorFitted: NLL less the plain ensemble's"].value < 0
    assert figures["PriorFitted: CPU over the plain ensemble's"].at_most == 0.01


def test_a_predictor_that_is_not_there_is_refused(predictions: ModuleType) -> None:
    with pytest.raises(ConfigurationError, match="unknown predictor 'Crystal'; known: CurveEns"):
        predictions.made("Crystal")


@pytest.mark.process
def test_it_runs_as_users_run_it(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    command = [sys.executable, str(FOLDER / "predictions.py"), "--data", str(folder)]
    options = ["--predictors", "Persistence", "--short", "--json", str(path)]
    done = run_forked([*command, *options], text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(path.read_text())
    assert document["benchmark"] == "predictions"
    assert {one["predictor"] for one in document["lines"]} == {"Persistence"}
    assert document["lines"][0]["scores"]["crps"] > 0
    done = run_forked([*command, "--sources", "taskset"], text=True)
    assert done.returncode == 2
    assert "begin with taskset" in done.stderr

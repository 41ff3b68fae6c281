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

from dasktune.algos.curves import Mixture, Persistence
from tests.forked import run_forked

FOLDER = Path(__file__).parents[2] / "benchmarks"
MODULES = ("curve_families", "figures", "predictions", "recorded", "scores")


@pytest.fixture
def predictions(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(FOLDER)
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module("predictions")
    for name in MODULES:
        sys.modules.pop(name, None)


def write_lines(folder: Path) -> None:
    """Write twelve straight lines of 20 steps, as a file of recorded curves."""
    curves = np.linspace(0.1, 0.9, 12)[:, None] * np.arange(1, 21) / 20
    np.savez(
        folder / "own_mlp_a.npz",
        curves=curves[:, :, None],
        columns=np.array(["val_accuracy"]),
        configs_jsonl=np.frombuffer(b"\n".join([b'{"lr": 0.1}'] * 12), np.uint8),
    )


def test_study_asks_what_was_known_then(predictions: ModuleType, tmp_path: Path) -> None:
    write_lines(tmp_path)
    (of,) = predictions.recorded.load(tmp_path)
    asked = list(predictions.study(of, 0, slots=2))
    assert len(asked) == 36
    first = asked[0]
    assert (first.trial, len(first.curve.steps), first.step) == (0, 2, 20)
    assert first.curve.others == ()
    assert first.resolved == 0
    last = asked[-1]
    # Trials 0 to 9 have ended when trial 11 knows 40%; trial 10 began half a trial earlier.
    assert sorted(branch.steps[-1] for branch in last.curve.others) == [18, *[20] * 10]
    assert last.resolved == 30
    assert all(branch.at == 0 for branch in last.curve.others)


def test_made_drops_are_equal_up_to_where_they_part(predictions: ModuleType) -> None:
    of = predictions.curve_families.load(["made_drops"])[0]
    parted = 0
    for curve in of.curves:
        for branch in curve.siblings:
            assert curve.scores[: branch.at] == branch.scores[: branch.at]
            parted += curve.scores != branch.scores
    assert parted > 100


def test_line_compares_with_the_best_single_rule(predictions: ModuleType, tmp_path: Path) -> None:
    write_lines(tmp_path)
    sets = predictions.recorded.load(tmp_path)
    (line,) = predictions.lines(list(predictions.answers(sets, 2, 0)))
    assert line.predictions == 72
    assert line.best == min(predictions.SINGLE, key=line.crps.__getitem__)
    assert line.ratio == pytest.approx(line.crps["Mixture"] / line.crps[line.best])
    assert line.low <= line.ratio <= line.high
    figures = predictions.figures([line], 4.0)
    assert {figure.name for figure in figures if figure.value == 4.0} == {
        "CPU of a prediction with 100 active trials"
    }


def test_single_rule_answers_by_the_last_score_alone(predictions: ModuleType) -> None:
    of = predictions.curve_families.load(["made_rises"])[0]
    asked = next(iter(predictions.study(of, 0)))
    rule = predictions.SingleRule("same")
    steps = (asked.step,)
    assert rule.predict(asked.curve, steps) == Persistence().predict(asked.curve, steps)
    assert rule.predict(asked.curve, steps) != Mixture().predict(asked.curve, steps)


@pytest.mark.process
def test_command_prints_and_writes_the_figures(tmp_path: Path) -> None:
    write_lines(tmp_path)
    found = tmp_path / "found.json"
    command = [sys.executable, str(FOLDER / "predictions.py"), "--data", str(tmp_path)]
    options = ["--sources", "own_mlp", "--short", "--json", str(found)]
    done = run_forked([*command, *options], text=True, timeout=100)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert json.loads(found.read_text())["lines"][0]["source"] == "own_mlp"
    done = run_forked([*command, "--sources", "taskset"], text=True)
    assert done.returncode == 2
    assert "begin with taskset" in done.stderr

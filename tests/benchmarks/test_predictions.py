"""The benchmark of predictions asks all predictors the same, and counts what they answer."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from dasktune.algos.curves import Mixture, Persistence
from dasktune.errors import ConfigurationError


@pytest.fixture
def predictions(load: Any) -> ModuleType:
    module: ModuleType = load("predictions")
    return module


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


def test_figure_compares_with_the_best_single_rule(predictions: ModuleType, tmp_path: Path) -> None:
    write_lines(tmp_path)
    every = list(predictions.answers(predictions.recorded.load(tmp_path), 2, 0))
    first, *coverage = predictions.source_figures("own_mlp", every, 0.8)
    means = {
        name: np.mean([each.crps for each in every if each.predictor == name])
        for name in ("Mixture", *predictions.SINGLE)
    }
    mixture = means.pop("Mixture")
    assert first.value == pytest.approx(mixture / min(means.values()))
    low, _, high = first.note.split(";")[0].split()
    assert float(low) <= round(first.value, 2) <= float(high)
    assert "72 predictions" in first.note
    assert all(0 <= figure.value <= 1 for figure in coverage)


def test_single_rule_answers_by_the_last_score_alone(predictions: ModuleType) -> None:
    of = predictions.curve_families.load(["made_rises"])[0]
    asked = next(iter(predictions.study(of, 0)))
    rule = predictions.SingleRule("same")
    steps = (asked.step,)
    assert rule.predict(asked.curve, steps) == Persistence().predict(asked.curve, steps)
    assert rule.predict(asked.curve, steps) != Mixture().predict(asked.curve, steps)


@pytest.mark.process
def test_command_needs_curves_of_the_sources(run: Any, load: Any, tmp_path: Path) -> None:
    write_lines(tmp_path)
    figures = run("predictions", "--data", str(tmp_path), "--sources", "own_mlp")
    assert "own_mlp: CRPS over that of the best single rule" in figures
    options = {"short": True, "data": tmp_path, "orders": 1, "ensemble": 0}
    with pytest.raises(ConfigurationError, match="begin with taskset"):
        list(load("predictions").measure(sources=["taskset"], **options))

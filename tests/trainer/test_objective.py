"""Objectives of Optuna as they are: what is drawn, trained, saved and refused (from-optuna.md)."""

from __future__ import annotations

import random
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

import dasktune as dt
from dasktune.algos import Random, StoppingASHA
from dasktune.errors import ConfigurationError, ResumeError, TrainerError
from dasktune.space import DefinedByRun
from dasktune.trainer.given import as_trainer
from dasktune.trainer.lifecycle import TrainerRun, run_alone
from tests.pages import python_blocks

WITH_OPTUNA, _, _, AS_IT_IS = python_blocks("from-optuna.md")

CALLS: list[str] = []
"""What objectives of this page have done."""


def model_of(trial: Any) -> list[float]:
    return [trial.suggest_float(f"unit_{i}", 0.0, 1.0) for i in range(trial.suggest_int("n", 1, 3))]


def objective(trial: Any) -> float:
    model = model_of(trial)
    kind = trial.suggest_categorical("kind", ["sgd", "adam"])
    if kind == "sgd":
        trial.suggest_float("momentum", 0.0, 0.9)
    CALLS.append("trains")
    score = sum(model)
    for epoch in range(5):
        score += random.random() + float(np.random.rand())
        trial.report(score, epoch)
        if trial.should_prune():
            raise optuna.TrialPruned()
    return score + 100


VALUES = {"n": 1, "unit_0": 0.5, "kind": "adam"}


def metrics(function: Any, steps: int, values: Any = VALUES, **options: Any) -> list[float]:
    reports = run_alone(dt.from_optuna(function, **options), values, steps).metrics
    return [reports[step]["value"] for step in range(1, steps + 1)]


def resumed(function: Any, values: Any, at: int) -> TrainerRun:
    trainer = as_trainer(dt.from_optuna(function))
    state = run_alone(trainer, values, at, states_at=[at]).states[at]
    return TrainerRun.resume(
        trainer,
        step=at,
        first_values=values,
        last_values=values,
        state=state,
        config={},
        seed=0,
    )


def test_suggestions_are_drawn_without_training() -> None:
    CALLS.clear()
    space = DefinedByRun(dt.from_optuna(objective))
    drawn = [space.sample(np.random.default_rng(seed)).params for seed in range(20)]
    assert {len([name for name in each if "unit" in name]) for each in drawn} == {1, 2, 3}
    assert all(("momentum" in each) == (each["kind"] == "sgd") for each in drawn)
    assert not CALLS


def test_a_step_ends_at_each_report_and_at_the_return() -> None:
    values = metrics(objective, 6)
    assert values[:5] == sorted(values[:5])
    assert values[5] == values[4] + 100


@pytest.mark.parametrize("at", [1, 3, 6])
def test_a_resumed_objective_gives_the_same_values(at: int) -> None:
    alone = metrics(objective, 6)
    run = resumed(objective, VALUES, at)
    assert run.evaluate() == {"value": alone[at - 1]}
    for step in range(at, 6):
        run.advance(VALUES)
        assert run.evaluate() == {"value": alone[step]}


def test_a_returned_objective_is_not_trained_again() -> None:
    CALLS.clear()
    resumed(objective, VALUES, 6)
    assert CALLS == ["trains"]


def test_an_objective_that_depends_on_more_fails() -> None:
    calls = []

    def counting(trial: Any) -> None:
        calls.append(trial.suggest_float("lr", 0, 1))
        for step in range(3):
            trial.report(len(calls), step)

    with pytest.raises(ResumeError, match="must be reported again as it was"):
        resumed(counting, {"lr": 0.5}, 2)


def returns(trial: Any) -> float:
    x = trial.suggest_float("x", -1, 1)
    return float(x**2)


def prunes(trial: Any) -> float:
    trial.report(trial.suggest_float("x", 0, 1), 0)
    raise optuna.TrialPruned


def test_an_objective_without_reports_has_one_step() -> None:
    assert metrics(returns, 1, {"x": 0.5}) == [0.25]
    with pytest.raises(TrainerError, match="max_steps must be at most 1; if it may return before"):
        metrics(returns, 2, {"x": 0.5})
    assert metrics(returns, 3, {"x": 0.5}, ends_early=True) == [0.25] * 3


def test_an_objective_that_prunes_itself_reports_nan() -> None:
    assert str(metrics(prunes, 3, {"x": 0.5})) == "[0.5, nan, nan]"


def asks_number(trial: Any) -> float:
    return float(trial.number)


def returns_two(trial: Any) -> tuple[int, int]:
    return 1, 2


def suggests_late(trial: Any) -> None:
    trial.report(0.0, 0)
    trial.suggest_float("y", 0, 1)


def is_elsewhere(trial: Any) -> float:
    return float(trial.suggest_float("x", 2, 3))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (asks_number, "has no 'number'; equal trials share their training"),
        (returns_two, "the return value of returns_two must be one number, got (1, 2)"),
        (suggests_late, "the value of 'y' must be suggested before the objective trains"),
        (is_elsewhere, "the value of 'x' must be in "),
    ],
)
def test_a_trial_says_what_it_has_not(function: Any, words: str) -> None:
    with pytest.raises((TrainerError, AttributeError)) as error:
        metrics(function, 2, {"x": 0.5})
    assert words in str(error.value)


def fit(run: Any, lr: float) -> float:
    run.report(run.suggest_float("late", 0, 1), 0)
    return lr


def trains_elsewhere(trial: Any) -> float:
    lr = trial.suggest_float("lr", 0, 1)
    return fit(trial, lr)


@pytest.mark.parametrize("function", [suggests_late, is_elsewhere, trains_elsewhere])
def test_suggestions_among_the_training_are_refused(function: Any) -> None:
    with pytest.raises(ConfigurationError) as error:
        Random(dt.from_optuna(function), trials=1, max_steps=1)
    assert "must suggest its values in statements before" in str(error.value)
    assert f"{Path(__file__).name}:" in str(error.value)


@pytest.mark.parametrize("given", [3, lambda trial: 1, optuna.Study, lambda: 1])
def test_only_functions_of_a_trial_are_objectives(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="objective must be a function of a trial"):
        dt.from_optuna(given)


def test_user_attributes_that_are_numbers_are_metrics() -> None:
    def noting(trial: Any) -> float:
        trial.set_user_attr("epochs", 3)
        trial.set_user_attr("kind", "deep")
        return 1.0

    assert run_alone(dt.from_optuna(noting), {"x": 1}, 1).metrics == {
        1: {"value": 1.0, "epochs": 3.0}
    }


@pytest.mark.parametrize("name", ["number", "study", "datetime_start", "suggest_uniform"])
def test_drawing_refuses_the_names_that_training_refuses(name: str) -> None:
    def curious(trial: Any) -> float:
        getattr(trial, name)
        trial.suggest_float("x", 0, 1)
        return 1.0

    words = f"a trial under dasktune has no '{name}'"
    with pytest.raises(ConfigurationError, match=words):
        Random(dt.from_optuna(curious), trials=2, max_steps=1)
    with pytest.raises(AttributeError, match=words):
        run_alone(dt.from_optuna(curious), {"x": 0.5}, 1)


def test_drawing_takes_user_attributes_before_a_suggestion(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def noting(trial: Any) -> float:
        trial.set_user_attr("kind", "deep")
        trial.set_user_attr("epochs", 3)
        x = float(trial.suggest_float("x", 0, 1))
        assert trial.params == {"x": x}
        assert trial.user_attrs == {"kind": "deep", "epochs": 3}
        y = float(trial.suggest_float("y", 0, 1))
        return x + y

    drawn = DefinedByRun(dt.from_optuna(noting)).sample(np.random.default_rng(0))
    assert list(drawn.params) == ["x", "y"]
    assert not caplog.records, "only a trial that is trained tells what it does not keep"
    trained = run_alone(dt.from_optuna(noting), drawn.params, 1).metrics[1]
    assert trained == {"value": sum(map(float, drawn.params.values())), "epochs": 3.0}  # type: ignore[arg-type]


def test_another_metric_than_value_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="unknown metric 'accuracy'; known: value"):
        dt.create_study(
            dt.from_optuna(objective), name="o", metric="accuracy", storage=tmp_path / "runs"
        )


@pytest.mark.process
@pytest.mark.parametrize("kind", [StoppingASHA, dt.algos.ASHA])
def test_the_objective_of_the_page_runs_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_worker: Any, kind: Any
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    name = f"with_optuna_{kind.__name__}"
    (tmp_path / f"{name}.py").write_text(WITH_OPTUNA)
    page = tmp_path / f"as_it_is_{kind.__name__}.py"
    page.write_text(AS_IT_IS.replace("from with_optuna", f"from {name}"))
    train = import_module(page.stem).train
    study = dt.create_study(
        train, name="digits", metric="value", direction="maximize", storage=tmp_path / "runs"
    )
    tuner = kind(train, trials=4, max_steps=4, eta=2, seed=0)
    study.optimize(tuner, client=one_worker, progress=False, check=False, last_line=False)
    assert not [trial for trial in study.trials if trial.state is dt.TrialState.FAIL]
    assert study.best_value > 0.5
    best = study.best_trial
    alone = run_alone(train, best.sequences, 2, seed=0).metrics
    assert {step: best.metrics[step] for step in alone} == alone
    study.close()
    sys.modules.pop(name)
    sys.modules.pop(page.stem)

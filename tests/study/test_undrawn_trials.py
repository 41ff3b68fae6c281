"""Trials whose configuration cannot be drawn: they fail with the reason, and the others go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest
from distributed import Client

import dasktune as dt
from dasktune.algos.base import Tuner
from dasktune.simulate import simulate
from dasktune.types import TrialState


def train(run: Any) -> None:
    low, high = run.suggest_int("low", 0, 9), run.suggest_int("high", 0, 9)
    if low > high:
        raise optuna.TrialPruned("low must be at most high")
    rate = run.suggest_float("rate", 0.1, 0.9)
    run.state["x"] = 1.0
    for _ in run.steps():
        run.state["x"] *= rate
        run.report(loss=run.state["x"] + low)


def tpe() -> optuna.samplers.BaseSampler:
    return optuna.samplers.TPESampler(n_startup_trials=4, seed=1)


TUNERS = {
    "random": lambda: dt.algos.Random(train, trials=20, max_steps=4),
    "tpe": lambda: dt.algos.Random(train, trials=20, max_steps=4, sampler=tpe()),
    "asha": lambda: dt.algos.ASHA(train, trials=20, max_steps=4, eta=2),
    "sha": lambda: dt.algos.SHA(train, trials=16, max_steps=4, eta=2),
    "hyperband": lambda: dt.algos.Hyperband(train, trials=20, max_steps=4, eta=2),
    "pbt": lambda: dt.algos.PBT(train, trials=20, max_steps=4, population=10, every=2),
}


@pytest.mark.parametrize("kind", TUNERS)
def test_a_study_with_undrawn_trials_comes_to_its_end(kind: str) -> None:
    result = simulate(
        TUNERS[kind](), lambda values, step: values["low"] + values["rate"] ** step, workers=3
    )
    failed = [trial for trial in result.trials if trial.state is TrialState.FAIL]
    assert 0 < len(failed) < len(result.trials)
    for trial in result.trials:
        is_odd = trial.params["low"] > trial.params["high"]
        assert (trial.state is TrialState.FAIL) == is_odd
        if is_odd:
            assert "it raised TrialPruned: low must be at most high" in str(trial.error)
            assert (trial.steps, "rate" in trial.params) == (0, False)


def test_a_sampler_that_learns_avoids_undrawn_trials() -> None:
    result = simulate(
        dt.algos.Random(train, trials=80, max_steps=1, sampler=tpe()),
        lambda values, step: values["rate"],
    )
    odd = [trial.state is TrialState.FAIL for trial in result.trials]
    assert sum(odd) < 20, "of 80 random ones 36 would be odd"


@pytest.mark.process
def test_undrawn_trials_stay_failed_in_later_runs(tmp_path: Path, one_worker: Client) -> None:
    def tuner(trials: int) -> Tuner:
        return dt.algos.Random(train, trials=trials, max_steps=2, sampler=tpe())

    study = dt.create_study(train, name="odd", storage=tmp_path, metric="loss")
    options: dict[str, Any] = {"client": one_worker, "progress": False, "check": False}
    for trials in (12, 16):
        study.optimize(tuner(trials), last_line=False, **options)
        states = [trial.state for trial in study.trials]
        assert len(states) == trials
        assert set(states) == {TrialState.COMPLETE, TrialState.FAIL}
    assert study.replay(tuner(16)).identical
    failed = study.retry_failed()
    assert failed
    study.optimize(tuner(16), last_line=False, **options)
    assert [trial.state for trial in study.trials] == states
    assert all("it raised TrialPruned" in str(study.trials[number].error) for number in failed)
    study.close()

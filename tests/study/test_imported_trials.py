"""Trials from elsewhere: added one by one, from Optuna, and from tables."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pandas
import pytest

import dasktune as dt
from dasktune._study.study import Study
from dasktune.errors import ConfigurationError

SPACE = dt.Space(lr=dt.Float(0.0, 1.0), kind=["a", "b"])


def make(folder: Path, **options: Any) -> Study:
    named = {"name": "own", "metric": "loss", "load_if_exists": True, **options}
    return dt.create_study(None, storage=folder, **named)


def test_add_trial_counts_for_best_and_is_stored(tmp_path: Path) -> None:
    study = make(tmp_path)
    number = study.add_trial({"lr": np.float64(0.5), "kind": "a"}, 0.25, steps=7)
    assert number == 0
    study.close()
    trial = make(tmp_path).best_trial
    assert (trial.value, trial.steps, trial.state.value) == (0.25, 7, "COMPLETE")
    assert trial.params == {"lr": 0.5, "kind": "a"}
    assert make(tmp_path).summary()["steps_requested"] == 0, "nobody trained it here"


def test_add_trial_does_not_disturb_tuners(tmp_path: Path) -> None:
    study = make(tmp_path)
    study.add_trial({"lr": 0.5, "kind": "a"}, 0.25)
    tuner = dt.algos.Random(SPACE, trials=2, max_steps=1)
    asked = study.ask(tuner)
    assert asked is not None
    assert asked.number == 1
    study.tell(asked, 1.0)
    study.close()
    again = make(tmp_path)
    assert again.ask(tuner) is not None
    assert [one.value for one in again.trials] == [0.25, 1.0, None]


def optuna_study(direction: str = "minimize") -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction=direction, sampler=optuna.samplers.RandomSampler(seed=0))

    def objective(trial: optuna.Trial) -> float:
        lr, kind = trial.suggest_float("lr", 0, 1), trial.suggest_categorical("kind", ["a", "b"])
        if trial.number == 2:
            raise optuna.TrialPruned
        return lr + (kind == "b")

    study.optimize(objective, n_trials=4)
    return study


def test_warm_start_adds_trials_of_an_optuna_study(tmp_path: Path) -> None:
    study, theirs = make(tmp_path), optuna_study()
    assert study.warm_start(theirs) == [0, 1, 2]
    assert study.best_value == theirs.best_value
    assert dict(study.best_params) == theirs.best_params


def test_warm_start_other_direction_is_refused(tmp_path: Path) -> None:
    study = make(tmp_path)
    with pytest.raises(ConfigurationError, match="directions minimize, got maximize"):
        study.warm_start(optuna_study("maximize"))
    assert study.trials == []


def test_warm_start_adds_rows_of_a_data_frame(tmp_path: Path) -> None:
    study = make(tmp_path / "one")
    study.add_trial({"lr": 0.5, "kind": "a"}, 0.25, steps=7)
    study.add_trial({"lr": 0.75}, math.inf, steps=2)
    other = make(tmp_path / "two")
    assert other.warm_start(study.trials_dataframe()) == [0, 1]
    kept = [(dict(one.params), one.value, one.steps) for one in other.trials]
    assert kept == [({"lr": 0.5, "kind": "a"}, 0.25, 7), ({"lr": 0.75}, math.inf, 2)]


def test_warm_start_leaves_out_empty_cells(tmp_path: Path) -> None:
    cells = pandas.Series(["a", None, math.nan, pandas.NA], dtype=object)
    study = make(tmp_path)
    study.warm_start(pandas.DataFrame({"lr": 0.5, "kind": cells, "loss": 0.25}))
    assert [set(trial.params) for trial in study.trials] == [{"lr", "kind"}, *[{"lr"}] * 3]


def test_warm_start_adds_rows_of_an_optuna_data_frame(tmp_path: Path) -> None:
    study = make(tmp_path)
    assert len(study.warm_start(optuna_study().trials_dataframe())) == 3
    assert set(study.trials[0].params) == {"lr", "kind"}


def test_warm_start_invalid_source_is_refused(tmp_path: Path) -> None:
    study = make(tmp_path)
    with pytest.raises(ConfigurationError, match=r"must be an optuna\.Study or a pandas"):
        study.warm_start([1, 2])
    with pytest.raises(ConfigurationError, match="must have columns loss, got lr"):
        study.warm_start(pandas.DataFrame({"lr": [0.1]}))
    with pytest.raises(ConfigurationError, match="values must be one for each of loss"):
        study.add_trial({"lr": 0.5}, [0.1, 0.2])
    with pytest.raises(ConfigurationError, match="steps must be an int >= 1, got 0"):
        study.add_trial({"lr": 0.5}, 0.1, steps=0)
    with pytest.raises(ConfigurationError, match="lr: "):
        study.add_trial({"lr": [0.5]}, 0.1)  # type: ignore[dict-item]
    assert study.trials == []

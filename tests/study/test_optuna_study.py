"""A study as Optuna shows it: its plots in memory, and its snapshot in a storage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest

import dasktune as dt
from dasktune._study.study import Study
from dasktune.errors import ConfigurationError

SPACE = dt.Space(lr=dt.Float(0.1, 1.0, log=True), kind=["a", "b"])


def make(folder: Path, **options: Any) -> Study:
    named = {"name": "own", "metric": "loss", "load_if_exists": True, **options}
    return dt.create_study(None, storage=folder, **named)


def value_of(asked: Any) -> float:
    return float(asked.params["lr"]) / asked.until


def run(study: Study, tuner: dt.algos.Tuner) -> None:
    while asked := study.ask(tuner):
        study.tell(asked, value_of(asked))


def test_optuna_study_of_pruned_trials_can_be_plotted(tmp_path: Path) -> None:
    study = make(tmp_path)
    run(study, dt.algos.ASHA(SPACE, trials=24, max_steps=16))
    shown = study.optuna_study()
    assert shown.best_value == study.best_value
    assert shown.best_params == dict(study.best_params)
    states = [one.state.name for one in shown.trials]
    assert states == [one.state.value for one in study.trials]
    assert shown.trials[0].intermediate_values == {
        step: metrics["loss"] for step, metrics in study.trials[0].metrics.items()
    }
    figure = optuna.visualization.plot_intermediate_values(shown)
    assert len(figure.data) == 24


def test_optuna_study_in_a_storage_is_replaced_by_the_next(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/optuna.db"
    study = make(tmp_path)
    study.add_trial({"lr": 0.5, "kind": "a"}, 0.75)
    for trials in (3, 5):
        run(study, dt.algos.Random(SPACE, trials=trials, max_steps=2))
        shown = study.optuna_study(url)
        stored = optuna.load_study(study_name="own", storage=url)
        assert [one.value for one in stored.trials] == [one.value for one in study.trials]
        assert [one.params for one in stored.trials] == [one.params for one in shown.trials]
    assert len(stored.trials) == 6


def test_optuna_study_of_another_folder_is_kept(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/optuna.db"
    make(tmp_path / "one").optuna_study(url)
    with pytest.raises(ConfigurationError, match="it is no snapshot of this study"):
        make(tmp_path / "two").optuna_study(url)


def test_live_mirror_is_refused_with_the_command(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="dasktune export STORAGE --study NAME --optuna"):
        make(tmp_path, mirror="optuna.db")

"""A study as Optuna shows it: its plots in memory, and a storage that follows a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest

import dasktune as dt
from dasktune.errors import ConfigurationError
from dasktune.study.study import Study

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


def test_mirror_follows_study_and_is_continued(tmp_path: Path) -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    url = f"sqlite:///{tmp_path}/optuna.db"
    study = make(tmp_path, mirror=url)
    study.add_trial({"lr": 0.5, "kind": "a"}, 0.75)
    run(study, dt.algos.Random(SPACE, trials=3, max_steps=2))
    study.close()
    shown = optuna.load_study(study_name="own", storage=url)
    assert [one.value for one in shown.trials] == [one.value for one in make(tmp_path).trials]
    again = make(tmp_path, mirror=url)
    run(again, dt.algos.Random(SPACE, trials=5, max_steps=2))
    again.close()
    shown = optuna.load_study(study_name="own", storage=url)
    assert [one.state.name for one in shown.trials] == ["COMPLETE"] * 6


def test_mirror_of_another_study_is_refused_before_the_run(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/optuna.db"
    run(make(tmp_path / "one", mirror=url), dt.algos.Random(SPACE, trials=1, max_steps=1))
    other = make(tmp_path / "two", mirror=url)
    with pytest.raises(ConfigurationError, match="must mirror"):
        other.ask(dt.algos.Random(SPACE, trials=1, max_steps=1))
    assert other.trials == []

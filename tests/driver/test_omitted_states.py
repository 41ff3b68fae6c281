"""States that are not stored, since that costs more than to train them again: all stays exact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import dasktune as dt
from dasktune._driver.retention.kept_ends import SWITCH
from dasktune._study.study import Study
from dasktune.sequences import Constant
from tests.toy_trainers import Adding

TRIALS = 60
RATES = [(number * 7) % TRIALS + 1.0 for number in range(TRIALS)]


@pytest.fixture(autouse=True)
def switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "on")


def study_in(folder: Path, **options: Any) -> Study:
    names = {"name": "cheap", "metric": "loss", "direction": "minimize"}
    return dt.create_study(Adding, storage=folder, load_if_exists=True, **{**names, **options})


def grid(steps: int) -> dt.algos.Grid:
    return dt.algos.Grid(dt.Space(lr=[Constant(rate) for rate in RATES]), max_steps=steps)


def stored_trials(study: Study, folder: Path) -> set[int]:
    keys = {path.parent.name for path in folder.rglob("commit")}
    plan = study.results.plan
    last = {trial.number: trial.steps for trial in study.trials}
    return {
        number for number, step in last.items() if plan.node_at(number, step).key_at(step) in keys
    }


def test_cheap_states_are_omitted_and_results_stay_exact(
    two_threads: Client, tmp_path: Path
) -> None:
    study = study_in(tmp_path)
    study.optimize(grid(2), client=two_threads)
    assert [trial.value for trial in study.trials] == [2 * rate for rate in RATES]
    stored = stored_trials(study, tmp_path)
    assert study.best_trial.number in stored
    assert len(stored) < TRIALS
    omitted = next(trial.number for trial in study.trials if trial.number not in stored)

    again = study_in(tmp_path)
    again.optimize(grid(2), client=two_threads)
    assert again.summary()["steps_executed"] == 2 * TRIALS, "results are durable without states"
    again.optimize(grid(3), client=two_threads)
    summary = again.summary()
    assert summary["steps_executed"] - summary["steps_repeated"] == 3 * TRIALS
    assert summary["steps_repeated"] == 2 * (TRIALS - len(stored))
    values = [trial.value for trial in again.trials[TRIALS:]]
    assert values == [3 * rate for rate in RATES]
    assert again.trial_state(omitted) == {"total": 2 * RATES[omitted]}


def test_keep_all_stores_every_last_state(two_threads: Client, tmp_path: Path) -> None:
    study = study_in(tmp_path, keep="all")
    study.optimize(grid(2), client=two_threads)
    assert stored_trials(study, tmp_path) == set(range(TRIALS))


def test_states_that_trials_go_on_from_are_stored(two_threads: Client, tmp_path: Path) -> None:
    study = study_in(tmp_path)
    space = dt.Space(lr=[Constant(rate) for rate in RATES])
    study.optimize(dt.algos.SHA(space, trials=8, max_steps=4, seed=0), client=two_threads)
    assert study.summary()["steps_repeated"] == 0

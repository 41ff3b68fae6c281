"""Tuners on real workers: what is paused, promoted, forked, repeated and proposed is exact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from distributed import Client

import dasktune as dt
from dasktune._study.study import Study
from dasktune.sequences import MultiStep
from dasktune.trainer.lifecycle import run_alone
from dasktune.types import Report, TrialState

pytestmark = pytest.mark.cluster


class Noisy(dt.Trainer):
    """A walk whose every step draws from a generator of its own."""

    def build(self, hp: Mapping[str, Any]) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.height = 1.0

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.lr = hp.get("lr", getattr(self, "lr", 0.0))

    def train(self) -> None:
        self.height += self.lr * (0.3 - self.height) + 0.01 * float(self.rng.normal())

    def evaluate(self) -> dict[str, float]:
        return {"loss": abs(self.height - 0.3)}

    def state_dict(self) -> dict[str, Any]:
        return {"rng": self.rng.bit_generator.state, "height": self.height, "lr": self.lr}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.rng.bit_generator.state = state["rng"]
        self.height, self.lr = state["height"], state["lr"]


RATE = dt.Float(0.01, 0.5, log=True)
SPACE = dt.Space(lr=dt.Choice([dt.Family(MultiStep, init=RATE, milestones=[3], gamma=0.5), RATE]))


def make(folder: Path, **options: Any) -> Study:
    named = {"name": "noisy", "metric": "loss", "load_if_exists": True, **options}
    return dt.create_study(Noisy, storage=folder, **named)


def assert_is_as_alone(study: Study) -> None:
    seeds = {number: one.seed for number, one in study.records.items()}
    for trial in study.trials:
        seed = study.seed + seeds[trial.number]
        alone = run_alone(Noisy, trial.sequences, trial.steps, seed=seed)
        assert {step: trial.metrics[step] for step in alone.metrics} == alone.metrics


class StopAfter(dt.Callback):
    """Stops the study after a number of reports."""

    def __init__(self, reports: int) -> None:
        self.left = reports

    def on_report(self, study: dt.Study, trial: dt.Trial, report: Report) -> None:
        assert isinstance(study, Study)
        self.left -= 1
        if self.left == 0:
            study.stop()


TUNERS = {
    "ASHA": lambda: dt.algos.ASHA(SPACE, trials=20, max_steps=16, eta=2),
    "ASHA by TPE": lambda: dt.algos.ASHA(
        SPACE, trials=16, max_steps=8, eta=2, sampler=optuna.samplers.TPESampler(n_startup_trials=4)
    ),
    "SHA": lambda: dt.algos.SHA(SPACE, trials=8, max_steps=8, eta=2),
    "Hyperband": lambda: dt.algos.Hyperband(SPACE, trials=14, max_steps=8, eta=2),
    "AsyncHyperband": lambda: dt.algos.AsyncHyperband(SPACE, trials=14, max_steps=8, eta=2),
    "Auto": lambda: dt.algos.Auto(SPACE, budget=60, max_steps=8, eta=2),
    # It pauses at step 3, where a schedule may part from a constant learning rate that the tuner
    # proposed before: without a state there, step 3 is trained again.
    "FreezeThaw": lambda: dt.algos.FreezeThaw(SPACE, budget=50, max_steps=8, min_steps=3),
    "StoppingASHA": lambda: dt.algos.StoppingASHA(SPACE, trials=12, max_steps=8, eta=2),
    "MedianStopping": lambda: dt.algos.MedianStopping(SPACE, trials=8, max_steps=8, every=2),
    "Bandit": lambda: dt.algos.Bandit(SPACE, trials=8, max_steps=8, every=2),
    "EarlyTerm": lambda: dt.algos.EarlyTerm(SPACE, trials=8, max_steps=8, every=2, delta=0.3),
    "Repeats of EarlyTerm": lambda: dt.algos.Repeats(
        dt.algos.EarlyTerm(SPACE, trials=4, max_steps=8, every=2, bounds=(0, 1), delta=0.3),
        seeds=2,
    ),
    "PBT": lambda: dt.algos.PBT(SPACE, population=5, max_steps=12, every=3),
    "POP": lambda: dt.algos.POP(SPACE, trials=10, max_steps=12, every=2, bounds=(0.0, 1.0)),
    "POP with barriers": lambda: dt.algos.POP(
        SPACE, target=0.001, trials=8, max_steps=8, every=2, barrier=True
    ),
    "Repeats of POP": lambda: dt.algos.Repeats(
        dt.algos.POP(SPACE, target=0.01, trials=4, max_steps=8, every=2, least=0.0), seeds=2
    ),
    "Repeats": lambda: dt.algos.Repeats(dt.algos.SHA(SPACE, trials=4, max_steps=4, eta=2)),
}


@pytest.mark.parametrize("name", TUNERS)
def test_states_equal_lone_run_however_often_stopped(
    name: str, tmp_path: Path, four_workers: Client
) -> None:
    for reports in (3, 4):
        study = make(tmp_path)
        study.optimize(TUNERS[name](), client=four_workers, callbacks=[StopAfter(reports)])
        study.close()
    study = make(tmp_path)
    study.optimize(TUNERS[name](), client=four_workers)
    assert all(one.state.is_finished for one in study.trials)
    assert TrialState.FAIL not in {one.state for one in study.trials}
    assert_is_as_alone(study)
    assert study.replay(TUNERS[name]()).identical
    assert study.summary()["steps_repeated"] == 0
    ran = study.summary()["steps_executed"]
    study.optimize(TUNERS[name](), client=four_workers)
    assert study.summary()["steps_executed"] == ran, "it had ended"


def test_promoted_trials_go_on_from_where_they_paused(tmp_path: Path, four_workers: Client) -> None:
    study = make(tmp_path)
    study.optimize(dt.algos.SHA(SPACE, trials=8, max_steps=8, eta=2), client=four_workers)
    assert Counter(one.steps for one in study.trials) == {1: 4, 2: 2, 4: 1, 8: 1}
    summary = study.summary()
    assert summary["steps_executed"] == summary["steps_unique"]
    assert summary["steps_executed"] <= 4 + 2 * 2 + 4 + 8


def test_schedule_of_population_runs_again_as_one_trial(
    tmp_path: Path, four_workers: Client
) -> None:
    study = make(tmp_path / "one")
    tuner = dt.algos.PBT(dt.Space(lr=RATE), population=8, max_steps=24, every=3)
    study.optimize(tuner, client=four_workers)
    children = [one for one in study.trials if len(one.sequences["lr"].leaves()) > 1]  # type: ignore[attr-defined]
    child = max(children, key=lambda one: one.steps)
    ran = study.summary()["steps_executed"]
    again = study.evaluate(child.sequences, child.steps, client=four_workers)
    assert again == child.metrics[child.steps]
    assert study.summary()["steps_executed"] == ran, "the tree had it"
    elsewhere = make(tmp_path / "two")
    assert elsewhere.evaluate(child.sequences, child.steps, client=four_workers) == again


def test_repeats_are_the_trials_of_studies_with_the_next_seeds(
    tmp_path: Path, four_workers: Client
) -> None:
    study = make(tmp_path, seed=4)
    single = dt.algos.Random(SPACE, trials=2, max_steps=5)
    study.optimize(dt.algos.Repeats(single, seeds=3), client=four_workers)
    values = [[one.value for one in study.trials[at::3]] for at in range(3)]
    for at in range(3):
        other = make(tmp_path, name=f"seed {4 + at}", seed=4 + at)
        other.optimize(single, client=four_workers)
        assert [one.value for one in other.trials] == values[at]
        assert other.summary()["steps_executed"] == 0, "the other study has trained it"
    assert len({value for column in values for value in column}) == 6


def test_a_finished_study_is_widened(tmp_path: Path, four_workers: Client) -> None:
    study = make(tmp_path)
    narrow, wide = (dt.algos.ASHA(SPACE, trials=n, max_steps=8, eta=2) for n in (14, 40))
    study.optimize(narrow, client=four_workers)
    first = {one.number: one.steps for one in study.trials}
    study.close()
    study = make(tmp_path)
    study.optimize(wide, client=four_workers)
    assert len(study.trials) == 40
    assert all(study.trials[number].steps >= steps for number, steps in first.items())
    assert all(one.state.is_finished for one in study.trials)
    assert_is_as_alone(study)
    assert study.replay(wide).identical
    assert study.summary()["steps_repeated"] == 0


def test_several_objectives_have_a_front(tmp_path: Path, four_workers: Client) -> None:
    class Two(Noisy):
        def evaluate(self) -> dict[str, float]:
            return {"loss": abs(self.height - 0.3), "rate": float(self.lr)}

    study = dt.create_study(
        Two,
        name="two",
        storage=tmp_path,
        metric=["loss", "rate"],
        direction=["minimize", "maximize"],
    )
    sampler = optuna.samplers.NSGAIISampler(population_size=4)
    space = dt.Space(lr=RATE)
    tuner = dt.algos.Random(space, trials=10, max_steps=4, sampler=sampler)
    study.optimize(tuner, client=four_workers)
    front = study.best_trials
    assert 1 <= len(front) <= 10
    for one in front:
        assert one.values is not None
        assert not any(
            other.values is not None
            and other.values[0] < one.values[0]
            and other.values[1] > one.values[1]
            for other in study.trials
        )
    assert study.replay(tuner).identical
    with pytest.raises(dt.errors.ConfigurationError, match="ASHA must have one objective"):
        study.optimize(dt.algos.ASHA(space, trials=9, max_steps=4), client=four_workers)

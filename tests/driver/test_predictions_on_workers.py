"""Predictions on real workers: made beside the training, late, lost, failed and asked for again."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, get_worker

import dasktune as dt
from dasktune._cluster.local import local_client
from dasktune._driver import predictions
from dasktune._study.study import Study
from dasktune.algos.curves import Curve, Persistence, Prediction
from dasktune.algos.early_term import EarlyTerm
from dasktune.types import Report, Step
from tests.holding import stop_order, wait_until

pytestmark = pytest.mark.cluster

MOST = 160
EVERY = 40
BOUNDARIES = 3
HELD = 130
"""The step, after the last boundary, at which the bad trial stays until it is to go on."""

GOOD, BAD = 0.9, 0.0
SPACE = dt.Space(lr=[GOOD, BAD])


class Walk(dt.Trainer):
    """Goes down by its rate. After its first boundary the bad one waits for files."""

    ignored_config = ("folder", "wait_for", "make")

    def build(self, hp: Mapping[str, Any]) -> None:
        self.x, self.done = 1.0, 0

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.lr = hp["lr"]

    def train(self) -> None:
        self.done += 1
        self.x -= self.lr * self.x
        if self.lr == BAD and self.done > EVERY:
            folder = Path(self.config["folder"])
            if "wait_for" in self.config:
                wait_until((folder / self.config["wait_for"]).exists)
            if "make" in self.config and self.done > EVERY + 5:
                (folder / self.config["make"]).touch()
            if self.done == HELD:
                go_on, has_stop_order = folder / "go on", stop_order([get_worker()])
                wait_until(lambda: go_on.exists() or has_stop_order())

    def evaluate(self) -> dict[str, float]:
        return {"loss": self.x}

    def state_dict(self) -> dict[str, Any]:
        return {"x": self.x, "done": self.done, "lr": self.lr}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.x, self.done, self.lr = state["x"], state["done"], state["lr"]


@dataclass(frozen=True)
class Stern:
    """Predicts that what is bad at its first boundary stays far behind, and does more before."""

    folder: str
    wait_for: str = ""
    dies: bool = False
    raises: bool = False

    def predict(self, curve: Curve, steps: tuple[Step, ...], *, seed: int = 0) -> Prediction:
        flat = Persistence().predict(curve, steps, seed=seed)
        if curve.measured[-1][1] > -0.5:
            return flat
        folder = Path(self.folder)
        with open(folder / "asked", "a") as file:
            file.write(f"{os.getpid()}\n")
        if self.dies and len((folder / "asked").read_text().splitlines()) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.raises:
            raise ValueError("the crystal ball is cloudy")
        if self.wait_for:
            wait_until((folder / self.wait_for).exists)
        (folder / "answered").touch()
        rows = tuple(tuple(score - 100.0 for score in row) for row in flat.scores)
        return Prediction(after=flat.after, steps=steps, scores=rows, deviations=flat.deviations)

    def identity(self) -> dict[str, object]:
        return {"predictor": "Stern"}


def tuner_of(folder: Path, **changes: Any) -> EarlyTerm:
    return dt.algos.EarlyTerm(
        SPACE,
        trials=2,
        max_steps=MOST,
        every=EVERY,
        sampler="grid",
        predictor=Stern(str(folder), **changes),
    )


def open_study(folder: Path, **config: str) -> Study:
    return dt.create_study(
        Walk,
        name="walk",
        storage=folder,
        metric="loss",
        config={"folder": str(folder), **config},
        load_if_exists=True,
        report_every=20,
    )


class GoOn(dt.Callback):
    """Lets the bad trial go on when it was stopped before its end."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "go on"

    def on_trial_end(self, study: dt.Study, trial: dt.Trial) -> None:
        if trial.state is dt.TrialState.PRUNED:
            self.path.touch()


class GoOnAfterFailures(logging.Handler):
    """Lets the bad trial go on when the prediction at each of its boundaries has failed."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.path, self.lines = folder / "go on", []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        if len(self.lines) == BOUNDARIES:
            self.path.touch()


def run(study: Study, tuner: EarlyTerm, folder: Path, client: Client) -> None:
    study.optimize(tuner, client=client, progress=False, callbacks=[GoOn(folder)])


def assert_only_the_bad_was_stopped(study: Study) -> None:
    good, bad = study.trials
    assert (good.state.value, good.steps) == ("COMPLETE", MOST)
    assert bad.state.value == "PRUNED"
    assert EVERY <= bad.steps < MOST


def asked(folder: Path) -> list[str]:
    return (folder / "asked").read_text().splitlines()


def test_training_goes_on_while_a_prediction_is_computed(
    tmp_path: Path, one_worker: Client
) -> None:
    # The only worker trains on when it is asked, and is answered when it has trained on.
    study = open_study(tmp_path, wait_for="asked", make="gone on")
    tuner = tuner_of(tmp_path, wait_for="gone on")
    run(study, tuner, tmp_path, one_worker)
    assert_only_the_bad_was_stopped(study)
    assert len(asked(tmp_path)) == 1
    assert study.replay(tuner).identical
    study.close()


def test_what_a_worker_that_is_killed_was_asked_another_is_asked(tmp_path: Path) -> None:
    study = open_study(tmp_path, wait_for="answered")
    tuner = tuner_of(tmp_path, dies=True)
    with local_client(2) as client:
        run(study, tuner, tmp_path, client)
    assert_only_the_bad_was_stopped(study)
    first, second = asked(tmp_path)
    assert first != second
    assert study.replay(tuner).identical
    study.close()


def test_raising_predictor_is_logged_and_trials_complete(
    tmp_path: Path, four_workers: Client
) -> None:
    study = open_study(tmp_path, wait_for="asked")
    tuner = tuner_of(tmp_path, raises=True)
    failures = GoOnAfterFailures(tmp_path)
    predictions.logger.addHandler(failures)
    try:
        study.optimize(tuner, client=four_workers, progress=False)
    finally:
        predictions.logger.removeHandler(failures)
    assert [trial.state.value for trial in study.trials] == ["COMPLETE"] * 2
    why = "trial 1 cannot be predicted: ValueError: the crystal ball is cloudy"
    assert failures.lines == [why] * BOUNDARIES
    assert len(asked(tmp_path)) == BOUNDARIES
    assert study.replay(tuner).identical
    study.close()


class StopAtBoundary(dt.Callback):
    """Stops the study when the bad trial has come to its first boundary."""

    def on_report(self, study: dt.Study, trial: dt.Trial, report: Report) -> None:
        assert isinstance(study, Study)
        if trial.number == 1 and report.step == EVERY:
            study.stop()


def test_question_open_at_stop_is_asked_by_next_run(tmp_path: Path, one_worker: Client) -> None:
    tuner = tuner_of(tmp_path, wait_for="gate")
    study = open_study(tmp_path)
    try:
        study.optimize(tuner, client=one_worker, progress=False, callbacks=[StopAtBoundary()])
        assert study.trials[1].state.value == "RUNNING"
    finally:
        (tmp_path / "gate").touch()
    study.close()
    study = open_study(tmp_path, wait_for="answered")
    run(study, tuner, tmp_path, one_worker)
    assert_only_the_bad_was_stopped(study)
    assert study.replay(tuner).identical
    study.close()

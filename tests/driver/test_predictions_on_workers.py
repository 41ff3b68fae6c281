"""Predictions on real workers: made beside the training, late, lost, failed and asked for again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import dasktune as dt
from dasktune.algos.curves import Curve, Persistence, Prediction
from dasktune.algos.early_term import EarlyTerm
from dasktune.cluster.local import local_client
from dasktune.study.study import Study
from dasktune.types import Report, Step

pytestmark = pytest.mark.cluster

MOST = 160
EVERY = 40
WAIT_SECONDS = 60.0
GOOD, BAD = 0.9, 0.0
SPACE = dt.Space(lr=[GOOD, BAD])


def wait_for(path: Path) -> None:
    """Wait until another process has made a file."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(path.name)
        time.sleep(0.002)


class Walk(dt.Trainer):
    """Goes down by its rate. After its first boundary the bad one waits, and then walks slowly."""

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
                wait_for(folder / self.config["wait_for"])
            if "make" in self.config and self.done > EVERY + 5:
                (folder / self.config["make"]).touch()
            time.sleep(0.02)

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
        found = Persistence().predict(curve, steps, seed=seed)
        if curve.measured[-1][1] > -0.5:
            return found
        folder = Path(self.folder)
        with open(folder / "asked", "a") as file:
            file.write(f"{os.getpid()}\n")
        if self.dies and len((folder / "asked").read_text().splitlines()) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.raises:
            raise ValueError("the crystal ball is cloudy")
        if self.wait_for:
            wait_for(folder / self.wait_for)
        (folder / "answered").touch()
        rows = tuple(tuple(score - 100.0 for score in row) for row in found.scores)
        return Prediction(after=found.after, steps=steps, scores=rows, deviations=found.deviations)

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
    study.optimize(tuner, client=one_worker, progress=False)
    assert_only_the_bad_was_stopped(study)
    assert len(asked(tmp_path)) == 1
    assert study.replay(tuner).identical
    study.close()


def test_what_a_worker_that_is_killed_was_asked_another_is_asked(tmp_path: Path) -> None:
    study = open_study(tmp_path, wait_for="answered")
    tuner = tuner_of(tmp_path, dies=True)
    with local_client(2) as client:
        study.optimize(tuner, client=client, progress=False)
    assert_only_the_bad_was_stopped(study)
    first, second = asked(tmp_path)
    assert first != second
    assert study.replay(tuner).identical
    study.close()


def test_raising_predictor_is_logged_and_trials_complete(
    tmp_path: Path, four_workers: Client, caplog: pytest.LogCaptureFixture
) -> None:
    study = open_study(tmp_path, wait_for="asked")
    tuner = tuner_of(tmp_path, raises=True)
    study.optimize(tuner, client=four_workers, progress=False)
    assert [trial.state.value for trial in study.trials] == ["COMPLETE"] * 2
    said = [record.getMessage() for record in caplog.records]
    why = "trial 1 cannot be predicted: ValueError: the crystal ball is cloudy"
    assert said.count(why) == len(asked(tmp_path)) == 3, "at each of its boundaries"
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
    study.optimize(tuner, client=one_worker, progress=False)
    assert_only_the_bad_was_stopped(study)
    assert study.replay(tuner).identical
    study.close()

"""A study whose late trials several workers train together, from tuner to processes."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from distributed import Client, LocalCluster, Worker

import dasktune as dt
from dasktune._engine import scaling
from dasktune._engine.timeouts import PROGRESS_FLUSH_SECONDS
from dasktune._engine.trials import Trial
from dasktune._study.study import Study
from dasktune.graph.devices import devices_at, with_devices
from dasktune.sequences import Constant
from dasktune.trainer.check_switch import SWITCH
from dasktune.trainer.lifecycle import run_alone
from dasktune.types import Decision, Extend, Finish, Register, Report
from tests.driver.test_audits import pass_check
from tests.holding import PATIENCE, Gate, pass_gate, stop_order, wait_until
from tests.worker.test_divided import TOLERANCE, Net, divided, ranks

pytestmark = pytest.mark.cluster

STEPS = 4

SEED = 3
"""The training seed, which is also that of `divided`."""


REPORTED_STEP_SECONDS = 4 * PROGRESS_FLUSH_SECONDS
"""A step that takes so long is reported before the next one ends."""


class Paired(Net):
    """A net that passes a gate before its last step, if two devices train it."""

    def build(self, hp: Any) -> None:
        super().build({"drop": 0.0})
        self.optimizer.param_groups[0]["lr"] = hp["lr"]
        self.steps = 0

    def train(self) -> None:
        self.steps += 1
        is_watched = "folder" in self.config and self.division.rank == 0
        if is_watched and self.steps == STEPS and self.division.world_size == 2:
            Path(self.config["folder"], "reached").touch()
            pass_gate(Path(self.config["folder"], "gate"))
        super().train()


class Growing(Paired):
    """A net whose first step is reported by itself, and whose second one waits for a stop.

    Each rank leaves a file for each of its steps.
    """

    def train(self) -> None:
        if "folder" in self.config:
            ranks, rank = self.division.world_size, self.division.rank
            Path(self.config["folder"], f"step {self.steps + 1}: {rank} of {ranks}").touch()
            if self.steps == 0:
                time.sleep(REPORTED_STEP_SECONDS)
            elif self.steps == 1:
                wait_until(stop_order(Worker._instances))
        super().train()


class Halfway(dt.algos.Tuner):
    """Trains a trial to step 2, and then to the end."""

    max_steps = STEPS
    state = ("has_begun",)

    def __init__(self) -> None:
        self.has_begun = False

    def ask(self, capacity: int) -> list[Decision]:
        if self.has_begun:
            return []
        self.has_begun = True
        lr = {"lr": Constant(0.05)}
        known = Register(trial=0, sequences=lr, max_steps=STEPS, params={"lr": 0.05})
        return [known, Extend(trial=0, until=2)]

    def tell(self, report: Report) -> list[Decision]:
        return [Finish()] if report.step == STEPS else [Extend(trial=0, until=STEPS)]

    def tell_failure(self, trial: int) -> list[Decision]:
        return [Finish()]

    def identity(self) -> dict[str, object]:
        return {"tuner": "Halfway"}


@contextmanager
def client_of(workers: int) -> Iterator[Client]:
    with (
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            memory_limit=0,
            dashboard_address="127.0.0.1:0",
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def study_of(folder: Path, trainer: type[Paired] = Paired, audit: float = 0) -> Study:
    """Return a study whose trials get two devices as soon as there are so many for each."""
    return dt.create_study(
        trainer,
        name="scaled",
        metric="loss",
        storage=folder / "study",
        config={"folder": str(folder)},
        scale=dt.Scale(max=2, efficiency=1e-9),
        seed=SEED,
        audit=audit,
    )


def run(study: Study, client: Client) -> None:
    """Run ASHA with rungs 1, 2 and 4: at most two trials live at its last promotion."""
    space = dt.Space(lr=dt.Float(0.005, 0.05))
    tuner = dt.algos.ASHA(
        space, trials=4, max_steps=STEPS, min_steps=1, eta=2, brackets=[0], seed=0
    )
    study.optimize(tuner, client=client, progress=False, last_line=False, check=False)


def losses_alone(trial: Trial) -> dict[int, float]:
    """Return the losses of a trial that is trained on its devices without Dask, in one go."""
    hp = {"lr": float(trial.params["lr"])}
    sequences = with_devices(trial.sequences, trial.devices)
    border = next((s for s in range(trial.steps) if devices_at(sequences, s) == 2), trial.steps)
    alone = run_alone(Paired, hp, border, states_at=[border], seed=SEED)
    losses = {step: metrics["loss"] for step, metrics in alone.metrics.items()}
    if border < trial.steps:
        state = alone.states[border] if border else None
        with divided(Paired, state, border, **hp) as together:
            for step in range(border, trial.steps):
                together.advance(hp)
                losses[step + 1] = together.evaluate()["loss"]
    return losses


def assert_trained_as_alone(study: Study) -> None:
    """Compare all metrics with those of the same devices, and of one device."""
    assert any(trial.devices[-1][1] == 2 for trial in study.trials)
    for trial in study.trials:
        assert trial.error is None
        losses = {step: metrics["loss"] for step, metrics in trial.metrics.items()}
        assert losses == losses_alone(trial)
        one = run_alone(Paired, {"lr": float(trial.params["lr"])}, trial.steps, seed=SEED)
        for step, loss in losses.items():
            assert loss == pytest.approx(one.metrics[step]["loss"], abs=TOLERANCE)


def test_late_trials_are_trained_on_two_workers(tmp_path: Path) -> None:
    with client_of(4) as client, closing(study_of(tmp_path)) as study:
        run(study, client)
        assert study.summary()["steps_repeated"] == 0
        assert_trained_as_alone(study)


def test_audit_trains_with_as_many_workers_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, "on")
    with client_of(2) as client, closing(study_of(tmp_path, audit=1.0)) as study:
        pass_check(study)
        study.optimize(Halfway(), client=client, progress=False, last_line=False)
        assert study.trials[0].devices == ((0, 1), (2, 2))
        audits = study.summary()["audits"]
        assert (audits["identical"], audits["differing"], audits["incomparable"]) == (1, 0, 0)


def test_killed_lender_costs_no_more_than_its_stage(tmp_path: Path) -> None:
    gate, reached = Gate(tmp_path / "gate"), tmp_path / "reached"
    with client_of(4) as client, closing(study_of(tmp_path)) as study, gate:
        running = threading.Thread(target=run, args=(study, client))
        running.start()
        wait_until(reached.exists, seconds=4 * PATIENCE)
        pids, lent = client.run(os.getpid), client.run(lambda: [each.pid for each in ranks()])
        # Two trials may be trained by two workers each.
        lender, (process,) = next((worker, each) for worker, each in lent.items() if each)
        os.kill(pids[lender], signal.SIGKILL)
        wait_until(lambda: not psutil.pid_exists(process))  # it ends with its worker
        gate.open()
        running.join()
        # The stage began after step 2, which was saved, and ends with step 4.
        assert study.summary()["steps_repeated"] <= 2
        assert_trained_as_alone(study)


def test_running_stage_grows_to_two_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scaling, "LEAST_GAIN", -math.inf)  # the steps of tests are short
    tuner = dt.algos.Grid(dt.Space(lr=[0.02]), max_steps=STEPS)
    with client_of(2) as client, closing(study_of(tmp_path, Growing)) as study:
        study.optimize(tuner, client=client, progress=False, last_line=False, check=False)
        (trial,) = study.trials
        assert trial.devices == ((0, 1), (2, 2))
        assert_trained_as_alone(study)
        assert STEPS in trial.metrics
        summary = study.summary()
        assert (summary["steps_executed"], summary["steps_repeated"]) == (STEPS, 0)
        again = dt.algos.Grid(dt.Space(lr=[0.02]), max_steps=STEPS)
        assert study.replay(again).identical
    trained = sorted(path.name for path in tmp_path.glob("step *"))
    together = [f"step {step}: {rank} of 2" for step in (3, 4) for rank in (0, 1)]
    assert trained == ["step 1: 0 of 1", "step 2: 0 of 1", *together]

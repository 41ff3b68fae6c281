"""A study whose late trials several workers train together, from tuner to processes."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from distributed import Client, LocalCluster

import dasktune as dt
from dasktune.engine.trials import Trial
from dasktune.graph.devices import devices_at, with_devices
from dasktune.study.study import Study
from dasktune.trainer.lifecycle import run_alone
from tests.holding import PATIENCE, Gate, pass_gate, wait_until
from tests.worker.test_divided import TOLERANCE, Net, divided, ranks

pytestmark = pytest.mark.cluster

STEPS = 4

SEED = 3
"""The training seed, which is also that of `divided`."""


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


def study_of(folder: Path) -> Study:
    """Return a study whose trials get two devices as soon as there are so many for each."""
    return dt.create_study(
        Paired,
        name="scaled",
        metric="loss",
        storage=folder / "study",
        config={"folder": str(folder)},
        scale=dt.Scale(max=2, efficiency=1e-9),
        seed=SEED,
        audit=0,
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

"""A worker in which nothing can be trained any more is replaced, and the study goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster, get_worker

import dasktune as dt
from dasktune._cluster.local import local_client
from dasktune._study.study import Study
from dasktune._worker.errors_in_words import spoils_process
from dasktune._worker.plugin import StagePlugin
from dasktune.sequences import Constant, Piecewise
from tests.holding import wait_until

STEP_SECONDS = 1.0
SPACE = dt.Space(
    lr=[Constant(0.1), *(Piecewise([0.1, lr], boundaries=[3]) for lr in (0.2, 0.3, 0.4))]
)


class Walk(dt.Trainer):
    """Multiplies a number by 1 - lr at every step; does at rate 0.3 what its config says."""

    ignored_config = ("log", "does", "once")

    def build(self, hp: Mapping[str, Any]) -> None:
        self.lr, self.x = hp["lr"], 1.0

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.lr = hp["lr"]

    def train(self) -> None:
        with open(self.config["log"], "a") as file:
            file.write(f"{os.getpid()} {self.lr}\n")
        if self.lr == 0.3 and self.is_first():
            self.misbehave()
        self.x -= self.lr * self.x

    def is_first(self) -> bool:
        once = self.config.get("once")
        try:
            return once is None or Path(once).touch(exist_ok=False) is None
        except FileExistsError:
            return False

    def misbehave(self) -> None:
        match self.config["does"]:
            case "hang":
                threading.Event().wait()
            case "spoil":
                raise RuntimeError("CUDA error: device-side assert triggered")
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "freeze":
                subprocess.Popen(["sh", "-c", f"sleep 3; kill -CONT {os.getpid()}"])
                os.kill(os.getpid(), signal.SIGSTOP)
                wait_until(is_known_to_have_stood_still)

    def evaluate(self) -> dict[str, float]:
        return {"loss": self.x}

    def state_dict(self) -> dict[str, Any]:
        return {"x": self.x}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.x = state["x"]


def is_known_to_have_stood_still() -> bool:
    """Whether this worker has seen that its process did nothing for longer than a step may take."""
    plugins = [one for one in get_worker().plugins.values() if isinstance(one, StagePlugin)]
    return any(plugin.host.watch.still[1] > STEP_SECONDS for plugin in plugins)


def run(folder: Path, client: Client, **config: object) -> Study:
    study = dt.create_study(
        Walk,
        name="walk",
        storage=folder,
        metric="loss",
        config={"log": str(folder / "log"), **config},
    )
    tuner = dt.algos.Grid(SPACE, max_steps=6)
    study.optimize(
        tuner, client=client, progress=False, timeouts=dt.Timeouts(step_seconds=STEP_SECONDS)
    )
    return study


def trained(folder: Path) -> list[tuple[str, str]]:
    """Return the process and rate of each step that was begun."""
    lines = (folder / "log").read_text().splitlines()
    return [(process, rate) for process, rate in map(str.split, lines)]


@pytest.mark.cluster
@pytest.mark.parametrize("does", ["hang", "spoil", "die"])
def test_what_happens_once_in_a_process_costs_that_process(tmp_path: Path, does: str) -> None:
    with local_client(2) as client:
        study = run(tmp_path, client, does=does, once=str(tmp_path / "once"))
    assert [trial.state.value for trial in study.trials] == ["COMPLETE"] * 4
    assert [trial.value for trial in study.trials] == pytest.approx(
        [0.9**6, *(0.9**3 * (1 - lr) ** 3 for lr in (0.2, 0.3, 0.4))]
    )
    steps = trained(tmp_path)
    first = next(at for at, (_, rate) in enumerate(steps) if rate == "0.3")
    spoiled = steps[first][0]
    assert spoiled not in {process for process, _ in steps[first + 1 :]}, "it trains no more"
    assert "0.3" in {rate for process, rate in steps if process != spoiled}
    study.close()


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("does", "error"),
    [
        ("hang", "a step must end within 1 s, the one after step 3 has not"),
        ("spoil", "CUDA error: device-side assert triggered"),
        ("die", "its worker was lost 5 times in a row in or soon after step 3"),
    ],
)
def test_what_happens_each_time_fails_its_trial_alone(
    tmp_path: Path, does: str, error: str
) -> None:
    with local_client(2) as client:
        study = run(tmp_path, client, does=does)
        failed = study.trials[2]
    assert [trial.state.value for trial in study.trials] == [
        *("COMPLETE", "COMPLETE", "FAIL", "COMPLETE")
    ]
    assert failed.error is not None
    assert error in study.records[2].message
    if does == "hang":
        assert "threading.Event().wait()" in failed.error, "it says where it hangs"
    study.close()


@pytest.mark.cluster
def test_a_process_that_stood_still_is_not_replaced(tmp_path: Path) -> None:
    with local_client(2) as client:
        study = run(tmp_path, client, does="freeze", once=str(tmp_path / "once"))
    assert [trial.state.value for trial in study.trials] == ["COMPLETE"] * 4
    assert {stage.status for stage in study.stages()} <= {"trained", "stopped", "skipped"}
    assert len(trained(tmp_path)) == study.summary()["steps_unique"]
    study.close()


@pytest.mark.slow
def test_a_hung_step_costs_a_worker_of_this_process_alone(tmp_path: Path) -> None:
    with (
        LocalCluster(
            processes=False,
            n_workers=2,
            threads_per_worker=1,
            host="127.0.0.1",
            protocol="tcp://",
            dashboard_address="127.0.0.1:0",
        ) as cluster,
        Client(cluster) as client,
    ):
        study = run(tmp_path, client, does="hang", once=str(tmp_path / "once"))
        assert len(client.scheduler_info(n_workers=-1)["workers"]) == 1
    assert [trial.state.value for trial in study.trials] == ["COMPLETE"] * 4
    study.close()


class OutOfMemoryError(RuntimeError):
    """As torch calls it."""


class AcceleratorError(RuntimeError):
    """As torch calls what a GPU fails with."""


def test_which_errors_spoil_a_process() -> None:
    assert spoils_process(AcceleratorError("device-side assert"))
    assert spoils_process(RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert spoils_process(RuntimeError("CUBLAS_STATUS_EXECUTION_FAILED when calling gemm"))
    assert spoils_process(RuntimeError("Triton Error [CUDA]: device-side assert triggered"))
    assert spoils_process(RuntimeError("INTERNAL: CUDA_ERROR_ILLEGAL_ADDRESS: in a kernel"))
    assert spoils_process(RuntimeError("cudaErrorIllegalAddress: an illegal memory access"))
    assert not spoils_process(OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"))
    assert not spoils_process(AcceleratorError("CUDA error: out of memory"))
    assert not spoils_process(RuntimeError("cudaErrorMemoryAllocation: out of memory"))
    assert not spoils_process(ValueError("shapes differ"))
    error = ValueError("no step")
    error.__cause__ = AcceleratorError("device-side assert")
    assert spoils_process(error)

"""A study file in a folder, and the command that runs it on a real SLURM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.slurm_server import Slurm

STUDY_FILE = '''
import os
import time

import numpy as np

import dasktune as dt
from dasktune.sequences import Constant, Piecewise


class Walk(dt.Trainer):
    """Walks at random by lr, and appends each step that it trains to a file."""

    ignored_config = ("log", "pause")

    def build(self, hp):
        self.random = np.random.default_rng(self.seed)
        self.weight = np.zeros(4)
        self.steps = 0

    def setup(self, hp):
        self.lr = hp["lr"]

    def train(self):
        time.sleep(self.config["pause"])
        self.weight = self.weight + self.lr * self.random.normal(size=4)
        self.steps += 1
        with open(self.config["log"], "a") as file:
            job, gpu = os.environ.get("SLURM_JOB_ID"), os.environ.get("CUDA_VISIBLE_DEVICES")
            file.write(f"{job} {gpu} {self.lr} {self.steps}\\n")

    def evaluate(self):
        return {"loss": float(np.abs(self.weight - 1).sum())}

    def state_dict(self):
        random = self.random.bit_generator.state
        return {"weight": self.weight, "steps": self.steps, "random": random}

    def load_state_dict(self, state):
        self.weight, self.steps = state["weight"], state["steps"]
        self.random.bit_generator.state = state["random"]


def study(pause=0.0, checkpoint_every=None):
    return dt.create_study(
        Walk,
        name="walk",
        storage="runs/walk",
        metric="loss",
        config={"log": os.path.abspath("steps.log"), "pause": pause},
        checkpoint_every=checkpoint_every,
        load_if_exists=True,
    )


def tuner(trials=20, steps=8):
    lrs = [Piecewise([0.1, 0.1 + number / 100], [steps // 2]) for number in range(trials)]
    return dt.algos.Grid(dt.Space(lr=lrs), max_steps=steps)
'''

PROGRAM = [sys.executable, "-c", "from dasktune.cli import main; main()"]
PATIENCE = 60.0


@dataclass(frozen=True)
class Folder:
    """A folder with a study file, in which commands are run."""

    path: Path
    environment: dict[str, str]
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start the command."""
        process = subprocess.Popen(
            [*PROGRAM, *arguments],
            cwd=self.path,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.running.append(process)
        return process

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command to its end."""
        process = self.start(*arguments)
        output, errors = process.communicate(timeout=PATIENCE)
        return subprocess.CompletedProcess(arguments, process.returncode, output, errors)

    def steps(self) -> list[list[str]]:
        """Return job, GPUs, value and number of each step that was trained."""
        log = self.path / "steps.log"
        return [line.split() for line in log.read_text().splitlines()] if log.exists() else []

    def wait(self, is_there: Callable[[], object], process: subprocess.Popen[str]) -> None:
        """Wait until something is so, while a process runs."""
        deadline = time.monotonic() + PATIENCE
        while not is_there():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, "it did not come"
            time.sleep(0.02)


@pytest.fixture
def folder(tmp_path: Path, slurm: Slurm) -> Iterator[Folder]:
    """Return a folder with a study file; what still runs at the end is killed."""
    (tmp_path / "walk.py").write_text(STUDY_FILE)
    made = Folder(tmp_path, {**os.environ, **slurm.environment})
    yield made
    for process in made.running:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()

"""A study file whose trainer counts its own steps, and the command in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from distributed import Client
from typer.testing import CliRunner, Result

from dasktune.cli import app
from dasktune.cli.study_file import load
from tests.forked import run_forked
from tests.holding import wait_until
from tests.study_folder import working_in

STUDY_FILE = '''
import os
import time

import numpy as np

import dasktune as dt
from dasktune.sequences import Constant, Piecewise


class Counting(dt.Trainer):
    """Walks by lr, and appends each step that it trains to a file.

    A step does not end as long as there is a file to hold all of its number.
    """

    ignored_config = ("log", "pause")

    def build(self, hp):
        self.weight = np.zeros(2)
        self.path = ""

    def setup(self, hp):
        self.lr = hp["lr"]

    def train(self):
        time.sleep(self.config["pause"])
        while os.path.exists(f"{self.config['log']}.hold-{len(self.path.split()) + 1}"):
            time.sleep(0.01)
        if self.lr < 0:
            raise ValueError(f"lr must be >= 0, got {self.lr}")
        self.weight = self.weight + self.lr
        self.path += f" {self.lr}"
        with open(self.config["log"], "a") as file:
            file.write(self.path + "\\n")

    def evaluate(self):
        return {"loss": float(abs(self.weight[0] - 1))}

    def state_dict(self):
        return {"weight": self.weight, "path": self.path}

    def load_state_dict(self, state):
        self.weight, self.path = state["weight"], state["path"]


def study(metric="loss", pause=0.0):
    return dt.create_study(
        Counting,
        name="counting",
        storage="runs/counting",
        metric=metric,
        config={"log": os.path.abspath("steps.log"), "pause": pause},
        load_if_exists=True,
    )


def tuner(bad=False):
    lrs = [Constant(0.1), Piecewise([0.1, 0.2], [6]), Piecewise([0.1, 0.3], [9]), Constant(0.05)]
    if bad:
        lrs.append(Piecewise([0.1, -1.0], [6]))
    return dt.algos.Grid(dt.Space(lr=lrs), max_steps=12)
'''
"""Four trials of 12 steps: 48 are asked for, 33 are unique."""

UNIQUE = 33

PROGRAM = [sys.executable, "-c", "from dasktune.cli import main; main()"]
PATIENCE = 120.0


def command(*arguments: str) -> Result:
    """Run the command to its end in this process."""
    return CliRunner().invoke(app, arguments)


@dataclass(frozen=True)
class Folder:
    """A folder with a study file, in which the command is run."""

    path: Path
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command to its end, in a forked process."""
        return run_forked([*PROGRAM, *arguments], cwd=self.path, text=True, timeout=PATIENCE)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start the command as a terminal does: in a process group of its own."""
        process = subprocess.Popen(
            [*PROGRAM, *arguments],
            cwd=self.path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.running.append(process)
        return process

    def steps(self) -> list[str]:
        """Return the steps that were trained, each as the path that led to it."""
        log = self.path / "steps.log"
        return log.read_text().splitlines() if log.exists() else []

    def hold(self, at: int) -> None:
        """Hold all trainers at the end of step `at`."""
        (self.path / f"steps.log.hold-{at}").touch()

    def go_on(self, at: int) -> None:
        """Release the trainers that `hold` stopped at step `at`."""
        (self.path / f"steps.log.hold-{at}").unlink()

    def wait_for_steps(self, number: int, process: subprocess.Popen[str]) -> None:
        """Wait until so many steps have been trained."""
        self.wait_until(lambda: len(self.steps()) >= number, process)

    def wait_for_file(self, name: str, process: subprocess.Popen[str]) -> None:
        """Wait until a file has been made."""
        self.wait_until((self.path / name).exists, process)

    def wait_until(self, is_there: Callable[[], bool], process: subprocess.Popen[str]) -> None:
        """Wait for whatever it is, while the process runs."""
        wait_until(is_there, process)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    """Return a folder with a study file; what still runs there at the end is killed."""
    (tmp_path / "counting.py").write_text(STUDY_FILE)
    made = Folder(tmp_path)
    yield made
    for process in made.running:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture
def at_home(folder: Folder) -> Iterator[None]:
    """Work in the study file's folder; forget what was imported from there."""
    with working_in(folder.path):
        yield


@pytest.fixture
def trained(folder: Folder, two_threads: Client) -> Iterator[Folder]:
    """Work in a folder with a study that has run: four trials of 12 steps, six checkpoints."""
    with working_in(folder.path):
        file = load(Path("counting.py"))
        study = file.study()
        study.optimize(file.tuner(), client=two_threads, last_line=False)
        study.close()
        yield folder

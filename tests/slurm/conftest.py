"""A study file in a folder, the command that runs it on a real SLURM, and what came of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest

from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.database.database import Database
from tests.holding import wait_until
from tests.slurm_server import Slurm

STUDY_FILE = '''
import os
import time

import numpy as np

import dasktune as dt
from dasktune.sequences import Constant, Piecewise


class Walk(dt.Trainer):
    """Walks at random by lr, and appends each step that it trains to a file.

    A step does not end as long as there is a file to hold it, or all of its number.
    """

    ignored_config = ("log", "pause", "hold")

    def build(self, hp):
        self.random = np.random.default_rng(self.seed)
        self.weight = np.zeros(4)
        self.steps = 0

    def setup(self, hp):
        self.lr = hp["lr"]

    def train(self):
        time.sleep(self.config["pause"])
        hold = self.config["hold"]
        while os.path.exists(hold) or os.path.exists(f"{hold}-{self.steps + 1}"):
            time.sleep(0.01)
        self.weight = self.weight + self.lr * self.random.normal(size=4)
        self.steps += 1
        with open(self.config["log"], "a") as file:
            job, gpu = os.environ.get("SLURM_JOB_ID"), os.environ.get("CUDA_VISIBLE_DEVICES")
            file.write(f"{job} {gpu} {self.lr} {self.steps}\\n")

    def evaluate(self):
        return {"loss": float(np.abs(self.weight - 1).sum())}

    def state_dict(self):
        random = self.random.bit_generator.state
        return {"weight": self.weight, "steps": self.steps, "random": random, "lr": self.lr}

    def load_state_dict(self, state):
        self.weight, self.steps = state["weight"], state["steps"]
        self.random.bit_generator.state = state["random"]


def study(pause=0.0, checkpoint_every=None, database=None):
    return dt.create_study(
        Walk,
        name="walk",
        storage="runs/walk",
        database=database,
        metric="loss",
        config={
            "log": os.path.abspath("steps.log"),
            "hold": os.path.abspath("hold"),
            "pause": pause,
        },
        checkpoint_every=checkpoint_every,
        load_if_exists=True,
    )


def tuner(trials=20, steps=8):
    lrs = [Piecewise([0.1, 0.1 + number / 100], [steps // 2]) for number in range(trials)]
    return dt.algos.Grid(dt.Space(lr=lrs), max_steps=steps)
'''

PROGRAM = [sys.executable, "-c", "from dasktune.cli import main; main()"]
PATIENCE = 120.0

QUIET = ("--no-progress", "--no-report", "--json")
ON_SLURM = ("--interface", "lo", "--memory", "200MB")
RUN = ("run", "walk.py", "--slurm", *ON_SLURM, *QUIET)

STAGE = 4
"""Steps of a stage: trials share the first ones, and then each has one of its own."""

UNIQUE = STAGE + 20 * STAGE
"""Steps of 20 trials of 8 steps."""

UNSAVED = 2 * STAGE
"""Steps that a worker may lose: of the stage that it trains, and of the one before, whose state
is being written."""

TWICE = UNSAVED + STAGE
"""Steps that a worker which is silent, and comes back, and the one in its place may both train:
what it had not saved, and of the stage after until it hears that this is not its own any more."""


class Results(NamedTuple):
    """All that a study has made: what came of its steps, wherever they were trained."""

    states: dict[str, object]
    metrics: dict[tuple[str, int], dict[str, float]]
    trials: dict[int, tuple[str, int, float | None]]


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

    def repeated(self) -> int:
        """Return how many steps were trained again."""
        return len(self.steps()) - len({(lr, number) for *_, lr, number in self.steps()})

    def durable(self) -> set[tuple[str, str]]:
        """Return value and number of each step whose state is stored, or a later one's."""
        store = CheckpointStore(str(self.path / "runs" / "walk"))
        states = [store.load(key)[0] for key in store.keys()]  # noqa: SIM118 - not a mapping
        return {
            (str(state["lr"]), str(number))
            for state in states
            for number in range(1 if state["steps"] <= 4 else 5, state["steps"] + 1)
        }

    def results(self, database: str | None = None) -> Results:
        """Return all that the study has made, also as a database of its own has it."""
        place = self.path / "runs" / "walk"
        store = CheckpointStore(str(place))
        states: dict[str, object] = {}
        for key in store.keys():  # noqa: SIM118 - not a mapping
            state, commit = store.load(key)
            states[key] = (state["weight"].tobytes(), state["random"], commit.step)
        opened = Database(database or str(place / "dasktune.db"), create=False)
        study = opened.study("walk")
        assert study is not None
        metrics = {(one.key, one.step): dict(one.values) for one in opened.metrics(study.root)}
        trials = {one.number: (one.state, one.steps, one.value) for one in opened.trials(study.id)}
        opened.close()
        return Results(states, metrics, trials)

    def hold(self, at: int | None = None) -> None:
        """Hold all trainers at the end of step `at`, or of any step."""
        self._held(at).touch()

    def hold_in_mid_stage(self, process: subprocess.Popen[str] | None = None) -> None:
        """Hold a worker at a step in the middle of its stage."""
        self.wait(lambda: self._is_in_mid_stage(), process)

    def _is_in_mid_stage(self) -> bool:
        if len(self.steps()) < 10 or self.steps()[-1][-1] != "5":
            return False
        self.hold()
        # The next step may have been through in this moment, and does not end the stage.
        if self.steps()[-1][-1] in "56":
            return True
        self.go_on()
        return False

    def go_on(self, at: int | None = None) -> None:
        """Release the trainers that `hold` stopped with the same `at`."""
        self._held(at).unlink()

    def _held(self, at: int | None) -> Path:
        return self.path / ("hold" if at is None else f"hold-{at}")

    def wait(
        self, is_there: Callable[[], object], process: subprocess.Popen[str] | None = None
    ) -> None:
        """Wait until something is so, while a process runs."""
        wait_until(is_there, *([] if process is None else [process]))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Function,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the state of SLURM when a test fails."""
    report = yield
    if report.failed and (slurm := item.funcargs.get("slurm")):
        report.sections.append(("SLURM", slurm.state()))
    return report


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put commands of SLURM into the PATH that do nothing; return their folder."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sbatch", "squeue", "scancel"):
        (folder / name).touch(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return folder


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


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Return the results of the same study on one local worker."""
    folder = Folder(tmp_path_factory.mktemp("undisturbed"), dict(os.environ))
    (folder.path / "walk.py").write_text(STUDY_FILE)
    done = folder.command("run", "walk.py", "--workers", "1", *QUIET)
    assert done.returncode == 0, done.stderr
    return folder.results()


def assert_same(found: Results, expected: Results) -> None:
    """Fail unless a run made what the undisturbed one made, bit for bit.

    More states may be stored: those that were saved where something was interrupted.
    """
    assert {key: found.states.get(key) for key in expected.states} == expected.states
    assert found.metrics == expected.metrics
    assert found.trials == expected.trials

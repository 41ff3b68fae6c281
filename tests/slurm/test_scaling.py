"""Jobs of several workers, and as many jobs as can be used, on a real SLURM."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time

import pytest

from dasktune.cli.status import read
from dasktune.graph.packing import LEAST_SAMPLES
from tests.slurm_server import Slurm

from .conftest import PATIENCE, Folder

pytestmark = [pytest.mark.cluster, pytest.mark.slurm]

STUDY_FILE = '''
import os
import time

import dasktune as dt


class Count(dt.Trainer):
    """Counts, and appends each step that it trains to a file."""

    def build(self, hp):
        self.steps = 0

    def setup(self, hp):
        self.hp = hp

    def train(self):
        while os.path.exists(f"hold-{self.hp['trial']}-{self.steps}"):
            time.sleep(0.02)
        time.sleep(0.1)
        self.steps += 1
        with open("steps.log", "a") as file:
            job, gpu = os.environ.get("SLURM_JOB_ID"), os.environ.get("CUDA_VISIBLE_DEVICES")
            file.write(f"{job} {gpu} {self.hp['trial']} {self.steps} {os.getpid()}\\n")

    def evaluate(self):
        return {"loss": 1.0}

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]


os.chdir(os.path.dirname(os.path.abspath(__file__)))


def study():
    return dt.create_study(
        Count, name="count", storage="runs/count", metric="loss", load_if_exists=True
    )


def tuner(trials=8, steps=8, halving=False):
    space = dt.Space(trial=list(range(trials)))
    if halving:
        numbers = {"trials": trials, "max_steps": steps, "min_steps": 2, "eta": 2}
        return dt.algos.SHA(space, **numbers, sampler="grid")
    return dt.algos.Grid(space, max_steps=steps)
'''

BLOCKER = (
    *("sbatch", "--parsable", "--nodes=1", "--exclusive", "--output=/dev/null"),
    *("--wrap", "sleep 600"),
)
"""Submits a job that takes a node for itself."""

QUIET = ("--no-progress", "--no-report", "--json")
LOG = "run.log"
RUN = (
    *("run", "count.py", "--slurm", "--interface", "lo", "--memory", "200MB"),
    *("--log-file", LOG, *QUIET),
)


@pytest.fixture(autouse=True)
def study_file(folder: Folder) -> None:
    """Put the study file into the folder."""
    (folder.path / "count.py").write_text(STUDY_FILE)


def options(folder: Folder, **values: object) -> None:
    lines = [f"{name} = {json.dumps(value)}\n" for name, value in values.items()]
    (folder.path / "dasktune.toml").write_text("".join(["[slurm]\n", *lines]))


class Held:
    """Trials that go no further than a step until they are let go."""

    def __init__(self, folder: Folder, *trials: int, at: int) -> None:
        self._paths = {trial: folder.path / f"hold-{trial}-{at}" for trial in trials}
        for path in self._paths.values():
            path.touch()

    def let_go(self, *trials: int) -> None:
        """Release these trials; all trials if none are named."""
        for trial in trials or self._paths:
            self._paths[trial].unlink(missing_ok=True)


def has_said(folder: Folder, words: str) -> bool:
    """Whether something is in the driver's log."""
    log = folder.path / LOG
    return log.exists() and words in log.read_text()


def jobs_at(folder: Folder, step: int) -> set[str]:
    """Return the jobs that have trained a step of some trial."""
    return {job for job, _, _, at, _ in folder.steps() if at == str(step)}


def wait_seconds(folder: Folder, seconds: float, process: subprocess.Popen[str]) -> None:
    """Wait so many seconds, in which the process must go on running."""
    end = time.monotonic() + seconds
    folder.wait(lambda: time.monotonic() > end, process)


def start(folder: Folder, **config: object) -> subprocess.Popen[str]:
    return folder.start(
        *RUN, *(word for key, value in config.items() for word in ("--config", f"{key}={value}"))
    )


def finished(process: subprocess.Popen[str]) -> tuple[dict[str, object], str]:
    output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    return json.loads(output)["summary"], errors


def check_each_step_once(folder: Folder, trials: int, steps: int) -> None:
    found = sorted((int(trial), int(step)) for _, _, trial, step, _ in folder.steps())
    assert found == [(trial, step + 1) for trial in range(trials) for step in range(steps)]


def test_workers_of_a_job_share_its_gpus_in_separate_processes(
    folder: Folder, slurm: Slurm
) -> None:
    options(folder, workers=4, workers_per_job=4, gpus_per_worker=0.5)
    held = Held(folder, *range(8), at=4)  # until all four are at work
    process = start(folder)
    folder.wait(lambda: len({pid for *_, pid in folder.steps()}) == 4, process)
    (job,) = slurm.jobs()
    assert slurm.call("squeue", "-h", "-j", job, "-o", "%b").endswith("gpu:2")
    held.let_go()
    finished(process)
    seen = {(pid, gpu) for _, gpu, *_, pid in folder.steps()}
    assert len(seen) == 4
    assert sorted(gpu for _, gpu in seen) == ["0", "0", "1", "1"]
    check_each_step_once(folder, 8, 8)


def test_workers_of_a_gpu_train_together_once_that_was_measured(
    folder: Folder, slurm: Slurm
) -> None:
    begins = """with torch.no_grad(), open("steps.log", "a") as file:
            device = os.environ.get("DASKTUNE_DEVICE", "").replace(" ", "")
            file.write(f"begins {device} {self.hp['trial']} {self.steps} {os.getpid()}\\n")
        while os.path.exists"""
    text = STUDY_FILE.replace("while os.path.exists", begins)
    # It finds no GPU, so the memory of a worker is that of its process.
    text = text.replace("import dasktune", "import torch\n\nimport dasktune")
    # Trials that differ in a float are of one model.
    text = text.replace("trial=list(range(trials))", "trial=[float(n) for n in range(trials)]")
    text = text.replace("hold-{self.hp['trial']}-", "hold-{self.hp['trial']:g}-")
    (folder.path / "count.py").write_text(text)
    options(folder, gpus_per_worker=1, trials_per_gpu=2)
    held = Held(folder, *range(LEAST_SAMPLES, 8), at=0)
    words = ("--memory", "4GB", "--config", "trials=8", "--config", "steps=1")
    process = folder.start(*RUN, *words)
    folder.wait(lambda: len(folder.steps()) == 2 * LEAST_SAMPLES + 2, process)
    (job,) = slurm.jobs()
    assert slurm.call("squeue", "-h", "-j", job, "-o", "%b").endswith("gpu:1")
    alone, together = folder.steps()[:-2], folder.steps()[-2:]
    assert [line[0] for line in alone] == ["begins", job] * LEAST_SAMPLES
    assert {line[1] for line in together} == {f"job{job},GPU0"}
    assert len({pid for *_, pid in together}) == 2
    held.let_go()
    finished(process)
    trained = [line for line in folder.steps() if line[0] != "begins"]
    assert sorted(float(line[2]) for line in trained) == [*range(8)]


def test_all_workers_of_a_job_that_is_cancelled_save_first(folder: Folder, slurm: Slurm) -> None:
    options(folder, workers=2, workers_per_job=2)
    held = Held(folder, 0, 1, at=5)
    process = start(folder, trials=2, steps=60)
    folder.wait(lambda: len({pid for *_, pid in folder.steps()}) == 2, process)
    (first,) = slurm.jobs()
    slurm.call("scancel", first)
    folder.wait(lambda: slurm.told(first, "JobState") != "RUNNING", process)
    held.let_go()
    finished(process)
    assert len({job for job, *_ in folder.steps()}) == 2
    check_each_step_once(folder, 2, 60)


def test_killed_worker_leaves_the_other_workers_of_its_job_alive(
    folder: Folder, slurm: Slurm
) -> None:
    options(folder, workers=2, workers_per_job=2)
    held = Held(folder, 0, 1, at=10)  # or one worker has done all before the other is there
    process = start(folder, trials=2, steps=20)
    folder.wait(lambda: len({pid for *_, pid in folder.steps()}) == 2, process)
    os.kill(int(folder.steps()[0][-1]), signal.SIGKILL)
    held.let_go()
    finished(process)
    assert len({job for job, *_ in folder.steps()}) == 1


def test_while_slurm_does_not_answer_jobs_are_left_as_they_are(
    folder: Folder, slurm: Slurm
) -> None:
    options(folder, workers=2)
    held = Held(folder, 0, 1, at=40)
    process = start(folder, trials=2, steps=50)
    folder.wait(lambda: len({job for job, *_ in folder.steps()}) == 2, process)
    before = slurm.jobs()
    slurm.kill("slurmctld")
    # That takes squeue a while to find out.
    told = "jobs are left as they are until it answers"
    folder.wait(lambda: has_said(folder, told), process)
    folder.wait(lambda: len(jobs_at(folder, 40)) == 2, process)
    slurm.start("slurmctld")
    held.let_go()
    _, errors = finished(process)
    assert errors.count(told) == 1
    assert {job for job, *_ in folder.steps()} == set(before)
    check_each_step_once(folder, 2, 50)


@pytest.mark.slow
def test_refused_job_after_the_start_is_logged_once_and_retried(
    folder: Folder, slurm: Slurm
) -> None:
    options(folder, workers=2)
    held = Held(folder, 0, 1, at=3)
    process = start(folder, trials=2, steps=6)
    folder.wait(lambda: len(jobs_at(folder, 3)) == 2, process)
    slurm.call("scontrol", "update", "PartitionName=low", "State=DRAIN")
    first, second = sorted(slurm.jobs())
    slurm.call("scancel", second)
    folder.wait(lambda: slurm.told(second, "JobState") != "RUNNING", process)
    held.let_go(*(int(trial) for job, _, trial, *_ in folder.steps() if job == second))
    folder.wait(lambda: slurm.jobs("PENDING,RUNNING,COMPLETING") == [first], process)
    folder.wait(lambda: has_said(folder, "SLURM refuses a job"), process)
    slurm.call("scontrol", "update", "PartitionName=low", "State=UP")
    folder.wait(lambda: len(slurm.jobs()) == 2, process)
    held.let_go()
    _, errors = finished(process)
    assert errors.count("SLURM refuses a job") == 1
    assert "partition" in errors


def test_next_driver_cancels_the_queued_jobs_of_a_killed_driver(
    folder: Folder, slurm: Slurm
) -> None:
    options(folder, workers=2, directives=["--exclusive"])
    blocker = slurm.call(*BLOCKER)
    held = Held(folder, 0, 1, at=10)
    try:
        first = start(folder, trials=2, steps=20)
        folder.wait(lambda: folder.steps() and slurm.jobs("PENDING"), first)
        (pending,) = slurm.jobs("PENDING")
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
        held.let_go()
        _, errors = finished(start(folder, trials=2, steps=20))
        (told,) = (line for line in errors.splitlines() if "of a driver that is gone" in line)
        assert pending in told
        assert blocker not in told
        assert slurm.jobs("PENDING,RUNNING") == [blocker]
    finally:
        slurm.call("scancel", blocker)
    check_each_step_once(folder, 2, 20)


def test_the_log_of_jobs_that_end_at_once_is_shown(folder: Folder) -> None:
    options(folder, prologue=["echo no module cuda >&2", "exit 3"])
    done = folder.command(*RUN)
    assert done.returncode == 1
    told = done.stderr.partition("error: ")[2]
    assert "3 jobs of SLURM ended before their worker was there" in told
    assert "no module cuda" in told


def test_jobs_follow_what_can_be_used_up_and_down_and_up_again(
    folder: Folder, slurm: Slurm
) -> None:
    options(folder, workers="1-4", idle_seconds=2)
    first, second = Held(folder, *range(16), at=1), Held(folder, *range(16), at=3)
    before = set(slurm.jobs("all"))
    process = start(folder, trials=16, steps=8, halving=True)
    folder.wait(lambda: len(jobs_at(folder, 1)) == 4, process)
    slowest = next(int(trial) for _, _, trial, step, _ in folder.steps() if step == "1")
    (last,) = {job for job, _, trial, *_ in folder.steps() if trial == str(slowest)}
    first.let_go(*(trial for trial in range(16) if trial != slowest))
    # The rung is complete but for one trial: nothing else can be trained.
    folder.wait(lambda: slurm.jobs("PENDING,RUNNING,COMPLETING") == [last], process)
    wait_seconds(folder, 5, process)
    assert len({*slurm.jobs("all")} - before) == 4, "nothing could use a fifth"
    first.let_go()
    folder.wait(lambda: len(jobs_at(folder, 3)) == 4, process)
    assert len({*slurm.jobs("all")} - before) == 7
    second.let_go()
    finished(process)
    steps = [(trial, step) for _, _, trial, step, _ in folder.steps()]
    assert len(steps) == len(set(steps)), "no worker was cancelled at work"


def test_queued_job_is_cancelled_when_no_stage_needs_it(folder: Folder, slurm: Slurm) -> None:
    options(folder, workers="1-2", idle_seconds=2, directives=["--exclusive"])
    blocker = slurm.call(*BLOCKER)
    held = Held(folder, 0, 1, at=3)
    try:
        process = start(folder, trials=2, steps=6)
        folder.wait(lambda: jobs_at(folder, 3) and slurm.jobs("PENDING"), process)
        wait_seconds(folder, 6, process)
        assert len(slurm.jobs("PENDING")) == 1, "the second trial would use it"
        held.let_go(int(folder.steps()[0][2]))
        folder.wait(lambda: slurm.jobs("PENDING") == [], process)
        held.let_go()
        finished(process)
    finally:
        slurm.call("scancel", blocker)
    check_each_step_once(folder, 2, 6)
    assert len({job for job, *_ in folder.steps()}) == 1


def test_step_longer_than_the_margin_is_logged_once(folder: Folder) -> None:
    options(folder, walltime="2", margin="0:01")
    slow = STUDY_FILE.replace("sleep(0.1)", "sleep(1.6)")
    (folder.path / "count.py").write_text(slow)
    _, errors = finished(start(folder, trials=3, steps=2))
    told = r"a step takes \d+ s, and workers stop 1 s before their walltime ends"
    assert len(re.findall(told, errors)) == 1


def needy(folder: Folder, needs: str) -> None:
    """Give the study of the folder needs."""
    text = STUDY_FILE.replace("load_if_exists=True", f"load_if_exists=True, needs={needs}")
    (folder.path / "count.py").write_text(text)


def test_jobs_have_the_class_and_tags_that_needs_ask_for(folder: Folder) -> None:
    needy(folder, "lambda hp: {'GPU': 0.5, 'tags': 'lab3'}")
    options(folder, workers=2, workers_per_job=2, gpus_per_worker=0.5, tags=["Lab3"])
    finished(start(folder))
    check_each_step_once(folder, 8, 8)
    (status,) = read(str(folder.path / "runs" / "count"))
    assert status.run is not None
    (kind,) = status.run.classes
    assert kind.endswith("(0.5 of a GPU)")


@pytest.mark.parametrize("needs", ["{'GPU': 1}", "lambda hp: {'GPU': 1}"])
def test_jobs_without_the_needed_amounts_are_refused_first(folder: Folder, needs: str) -> None:
    needy(folder, needs)
    options(folder, workers=2, workers_per_job=2, gpus_per_worker=0.5)
    process = start(folder)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "no worker has GPU=1; workers: " in errors
    assert "jobs of SLURM (GPU=0.5)" in errors
    assert folder.steps() == []

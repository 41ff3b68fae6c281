"""`dasktune submit` on a real SLURM: the driver is a job, and goes on in its next life."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.slurm_server import Slurm, send

from .conftest import (
    ON_SLURM,
    QUIET,
    STAGE,
    TWICE,
    UNIQUE,
    UNSAVED,
    Folder,
    Results,
    assert_same,
)

pytestmark = [pytest.mark.cluster, pytest.mark.slurm]

SUBMIT = ("submit", "walk.py", *ON_SLURM, "--driver-memory", "300MB", "--config", "pause=0.05")


@dataclass(frozen=True)
class Driver:
    """A driver's job."""

    job: str
    log: Path
    folder: Folder
    slurm: Slurm

    def has_said(self, words: str, times: int = 1) -> bool:
        """Whether something is in its log, so often."""
        return self.log.exists() and self.log.read_text().count(words) == times

    def has_ended(self) -> bool:
        """Whether the job is done, as SLURM sees it."""
        state = self.slurm.told(self.job, "JobState")
        assert state not in ("FAILED", "TIMEOUT", "OUT_OF_MEMORY"), self.log.read_text()
        return state == "COMPLETED"

    def workers(self) -> list[str]:
        """Return the jobs of workers that trained, in their order."""
        return list(dict.fromkeys(job for job, *_ in self.folder.steps()))


@pytest.fixture
def submitted(folder: Folder, slurm: Slurm) -> Iterator[list[Driver]]:
    """Return a list for drivers' jobs; what still runs at the end is cancelled."""
    made: list[Driver] = []
    yield made
    if made:
        slurm.call("scancel", "--partition=low")
    folder.wait(lambda: not slurm.call("squeue", "-h"))


def submit(folder: Folder, slurm: Slurm, submitted: list[Driver], *flags: str) -> Driver:
    done = folder.command(*SUBMIT, *flags, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    submitted.append(Driver(told["job"], Path(told["log"]), folder, slurm))
    return submitted[-1]


def test_driver_job_resumes_after_its_walltime_and_a_requeue(
    folder: Folder, undisturbed: Results, slurm: Slurm, submitted: list[Driver]
) -> None:
    driver = submit(folder, slurm, submitted, "--driver-walltime", "1:00:00")
    folder.hold_in_mid_stage()
    # As SLURM does, at some time in the half minute after it is due.
    slurm.call("scancel", "--batch", "--signal=USR1", driver.job)
    folder.wait(lambda: driver.has_said("saving what runs"))
    folder.go_on()
    folder.wait(lambda: slurm.told(driver.job, "JobState") != "RUNNING")
    folder.hold()  # what the next life would add
    (found,) = json.loads(folder.command("status", "walk.py", "--json").stdout)
    assert found["steps_executed"] == len(folder.steps()), "all that was trained is saved"
    folder.go_on()
    folder.wait(lambda: len(driver.workers()) == 2)
    folder.hold()
    assert folder.repeated() == 0
    slurm.call("scontrol", "requeue", driver.job)
    folder.wait(lambda: driver.has_said("saving what runs", times=2))
    folder.go_on()
    folder.wait(driver.has_ended)
    assert driver.has_said("interrupted; the same command goes on", times=2)
    assert_same(folder.results(), undisturbed)
    assert len(folder.steps()) == UNIQUE + folder.repeated()
    assert folder.repeated() <= UNSAVED
    assert len(driver.workers()) == 3, "each life has its own"
    assert slurm.jobs("PENDING,RUNNING") == []


@pytest.mark.postgresql
def test_a_driver_whose_node_dies_goes_on_elsewhere(
    folder: Folder, undisturbed: Results, slurm: Slurm, submitted: list[Driver], postgresql: str
) -> None:
    driver = submit(folder, slurm, submitted, "--config", f"database={postgresql}")
    folder.hold_in_mid_stage()
    with slurm.gone(slurm.told(driver.job, "NodeList")):
        durable, before = folder.durable(), len(folder.steps())
        folder.go_on()
        folder.wait(driver.has_ended)
    assert_same(folder.results(postgresql), undisturbed)
    assert not {(lr, number) for *_, lr, number in folder.steps()[before:]} & durable
    assert folder.repeated() < STAGE
    assert slurm.jobs("PENDING,RUNNING") == []


def test_a_driver_that_was_silent_does_not_disturb_its_next_life(
    folder: Folder, undisturbed: Results, slurm: Slurm, submitted: list[Driver]
) -> None:
    driver = submit(folder, slurm, submitted)
    folder.hold_in_mid_stage()
    with slurm.silent(slurm.told(driver.job, "NodeList")) as processes:
        folder.go_on()
        folder.wait(lambda: len(driver.workers()) > 1)
        send(processes, signal.SIGCONT)
        folder.wait(driver.has_ended)
    assert_same(folder.results(), undisturbed)
    assert folder.repeated() <= TWICE


def test_a_driver_that_is_cancelled_saves_and_stays_ended(
    folder: Folder, undisturbed: Results, slurm: Slurm, submitted: list[Driver]
) -> None:
    driver = submit(folder, slurm, submitted)
    folder.hold_in_mid_stage()
    slurm.call("scancel", driver.job)
    folder.wait(lambda: driver.has_said("saving what runs"))
    folder.go_on()
    folder.wait(lambda: not slurm.call("squeue", "-h"))
    assert slurm.told(driver.job, "JobState") == "CANCELLED"
    assert driver.has_said("interrupted")
    assert folder.command("run", "walk.py", "--workers", "1", *QUIET).returncode == 0
    assert_same(folder.results(), undisturbed)
    assert folder.repeated() == 0

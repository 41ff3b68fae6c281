"""Faults of jobs, nodes and daemons on a real SLURM: results stay the same.

Each test says how many steps may be trained again: at most those of the stages that ran and
were not durable.
"""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from tests.slurm_server import Slurm, send

from .conftest import (
    PATIENCE,
    RUN,
    STAGE,
    TWICE,
    UNIQUE,
    UNSAVED,
    Folder,
    Results,
    assert_same,
)

pytestmark = [pytest.mark.cluster, pytest.mark.slurm]

TWO_JOBS = ("--workers", "2", "--cpus-per-worker", "8", "--config", "pause=0.05")
"""One fills a node."""

QUICK = ("--output=/dev/null", "--wrap", "sleep 1")
"""What another job does."""


def ended(process: subprocess.Popen[str]) -> None:
    """Wait until a command is done, and well."""
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors


def at_work(folder: Folder) -> set[str]:
    """Return the jobs that have trained a step."""
    return {job for job, *_ in folder.steps()}


HELD = 6
"""A step in mid-stage that no trial ends until it is let go."""


def held_at_work(folder: Folder, *arguments: str) -> subprocess.Popen[str]:
    """Start two jobs, and return once both are in mid-stage and go no further.

    Else the first may have done all before the other is there, or before it can be disturbed.
    """
    folder.hold(HELD)
    process = folder.start(*RUN, *TWO_JOBS, *arguments)
    folder.wait(lambda: len(at_work(folder)) == 2, process)
    return process


def test_jobs_cancelled_or_requeued_in_mid_stage_keep_results(
    folder: Folder, undisturbed: Results, slurm: Slurm
) -> None:
    process = held_at_work(folder)
    cancelled, requeued = slurm.jobs()
    slurm.call("scancel", cancelled)
    folder.hold(HELD + 2)
    folder.go_on(HELD)
    folder.wait(lambda: len(at_work(folder)) == 3, process)
    slurm.call("scontrol", "requeue", requeued)
    folder.go_on(HELD + 2)
    ended(process)
    assert_same(folder.results(), undisturbed)
    assert len(at_work(folder)) == 3, "one took the place of the cancelled one"
    assert folder.repeated() <= 2 * STAGE
    assert len(folder.steps()) == UNIQUE + folder.repeated()


def test_a_preempted_job_saves_first_and_comes_back(
    folder: Folder, undisturbed: Results, slurm: Slurm
) -> None:
    process = folder.start(*RUN, "--cpus-per-worker", "8", "--config", "pause=0.05")
    folder.hold_in_mid_stage(process)
    (job,) = slurm.jobs()
    both = ",".join(slurm.nodes)
    slurm.call("sbatch", "-p", "high", "-N2", "-w", both, "--exclusive", *QUICK)
    folder.wait(lambda: slurm.told(job, "JobState") != "RUNNING", process)
    folder.go_on()
    ended(process)
    assert_same(folder.results(), undisturbed)
    assert {job for job, *_ in folder.steps()} == {job}
    assert slurm.told(job, "Restarts") == "1"
    assert folder.repeated() == 0


def test_what_ran_on_a_node_that_dies_is_trained_elsewhere(
    folder: Folder, undisturbed: Results, slurm: Slurm
) -> None:
    process = held_at_work(folder)
    with slurm.gone(slurm.told(slurm.jobs()[0], "NodeList")):
        folder.go_on(HELD)
        ended(process)
    assert_same(folder.results(), undisturbed)
    assert folder.repeated() <= UNSAVED


def test_a_node_that_is_silent_counts_as_gone_and_may_come_back(
    folder: Folder, undisturbed: Results, slurm: Slurm
) -> None:
    process = held_at_work(folder, "--silence-timeout", "5")
    with slurm.silent(slurm.told(slurm.jobs()[0], "NodeList")) as processes:
        before = len(folder.steps())
        folder.go_on(HELD)
        # What the other job has to do, it has done meanwhile.
        folder.wait(lambda: len(folder.steps()) > before + 20, process)
        send(processes, signal.SIGCONT)
        ended(process)
    assert_same(folder.results(), undisturbed)
    assert folder.repeated() <= TWICE


def test_command_resumes_after_a_killed_driver_whose_jobs_ended(
    folder: Folder, undisturbed: Results, slurm: Slurm
) -> None:
    process = held_at_work(folder)
    old = set(slurm.jobs())
    folder.go_on(HELD)
    folder.wait(lambda: len(folder.steps()) > 20, process)
    os.killpg(process.pid, signal.SIGKILL)
    folder.wait(lambda: not slurm.jobs("PENDING,RUNNING,COMPLETING"))
    durable, before = folder.durable(), len(folder.steps())
    ended(folder.start(*RUN, *TWO_JOBS))
    assert_same(folder.results(), undisturbed)
    again = folder.steps()[before:]
    assert not {(lr, number) for *_, lr, number in again} & durable
    assert not {job for job, *_ in again} & old
    assert folder.repeated() <= 2 * UNSAVED


def test_a_run_outlives_a_restart_of_the_controller(
    folder: Folder, undisturbed: Results, slurm: Slurm
) -> None:
    process = held_at_work(folder)
    cancelled = slurm.jobs()[0]
    slurm.kill("slurmctld")
    before = len(folder.steps())
    folder.go_on(HELD)
    folder.wait(lambda: len(folder.steps()) > before + 10, process)
    folder.hold()
    slurm.start("slurmctld")
    slurm.call("scancel", cancelled)
    folder.go_on()
    ended(process)
    assert_same(folder.results(), undisturbed)
    assert folder.repeated() <= STAGE
    assert slurm.jobs("PENDING,RUNNING") == []


def test_step_that_outlasts_the_walltime_alone_is_trained_again(
    folder: Folder, undisturbed: Results, slurm: Slurm
) -> None:
    process = folder.start(*RUN, "--config", "pause=0.02")
    folder.hold_in_mid_stage(process)
    (job,) = slurm.jobs()
    slurm.call("scontrol", "update", f"JobId={job}", "EndTime=now+1")
    folder.wait(lambda: slurm.told(job, "JobState") == "TIMEOUT", process)
    durable, before = folder.durable(), len(folder.steps())
    folder.go_on()
    ended(process)
    assert_same(folder.results(), undisturbed)
    assert not {(lr, number) for *_, lr, number in folder.steps()[before:]} & durable
    assert folder.repeated() < STAGE

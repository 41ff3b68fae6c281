"""`dasktune run --slurm` on a real SLURM: undisturbed, with jobs killed, and through a walltime."""

from __future__ import annotations

import json
import os
import signal

import pytest

from tests.slurm_server import Slurm

from .conftest import PATIENCE, RUN, UNIQUE, Folder, Results, assert_same

pytestmark = [pytest.mark.cluster, pytest.mark.slurm]

TWO_JOBS = ("--workers", "2", "--gpus-per-worker", "1")


def test_trials_on_two_jobs_equal_those_of_one_local_worker(
    folder: Folder, undisturbed: Results, slurm: Slurm
) -> None:
    folder.hold(at=6)  # or one job has done all before the other is there
    process = folder.start(*RUN, *TWO_JOBS)
    folder.wait(lambda: len({job for job, *_ in folder.steps()}) == 2, process)
    folder.go_on(at=6)
    output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    assert json.loads(output)["summary"]["trials"] == 20
    assert len(folder.steps()) == UNIQUE
    assert len({(job, gpus) for job, gpus, *_ in folder.steps()}) == 2
    assert {gpus for _, gpus, *_ in folder.steps()} <= {"0", "1"}
    assert_same(folder.results(), undisturbed)
    assert slurm.jobs("PENDING,RUNNING") == []


def test_worker_near_its_walltime_saves_and_a_new_job_continues(
    folder: Folder, slurm: Slurm
) -> None:
    (folder.path / "dasktune.toml").write_text(
        '[slurm]\nwalltime = "2"\nmargin = "1:50"\nworkers = "1"\n'
    )
    # Longer than the ten seconds of a job, of which its worker needs some to be there.
    study = ("--config", "pause=0.25", "--config", "trials=1", "--config", "steps=50")
    done = folder.command(*RUN, *study)
    assert done.returncode == 0, done.stderr
    numbers = [int(number) for *_, number in folder.steps()]
    assert numbers == list(range(1, 51)), "no step was lost or repeated"
    assert len({job for job, *_ in folder.steps()}) >= 2


def test_ctrl_c_saves_what_runs_and_ends_the_jobs(folder: Folder, slurm: Slurm) -> None:
    command = (*RUN, "--config", "trials=1", "--config", "steps=20")
    folder.hold(at=6)
    process = folder.start(*command, "--config", "pause=0.5")
    folder.wait(lambda: len(folder.steps()) == 5, process)
    os.killpg(process.pid, signal.SIGINT)
    assert process.stderr is not None
    assert any("saving what runs" in line for line in process.stderr)
    folder.go_on(at=6)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert slurm.jobs("PENDING,RUNNING") == []
    assert folder.command(*command).returncode == 0
    assert [int(number) for *_, number in folder.steps()] == list(range(1, 21))


def test_encrypted_workers_run_a_study(folder: Folder) -> None:
    (folder.path / "dasktune.toml").write_text("[slurm]\nencrypt = true\n")
    done = folder.command(*RUN, "--config", "trials=2")
    assert done.returncode == 0, done.stderr
    (log,) = (folder.path / "slurm" / "logs").glob("*.err")
    assert "tls://127.0.0.1" in log.read_text()
    assert not list((folder.path / "slurm").glob(".dask*")), "no key is left behind"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--partition", "none"), "invalid partition specified: none"),
        (("--gpus-per-worker", "7"), "Requested node configuration is not available"),
        (("--directive", "--no-such"), "unrecognized option"),
    ],
)
def test_run_shows_the_refusal_in_the_words_of_slurm(
    folder: Folder, flags: tuple[str, ...], words: str
) -> None:
    done = folder.command(*RUN, *flags)
    assert done.returncode == 1
    assert "SLURM refuses such jobs" in done.stderr
    assert words in done.stderr
    assert not folder.steps()


def test_jobs_that_end_at_once_are_not_submitted_for_ever(folder: Folder) -> None:
    (folder.path / "dasktune.toml").write_text('[slurm]\nprologue = ["exit 3"]\n')
    done = folder.command(*RUN)
    assert done.returncode == 1
    assert "3 jobs of SLURM ended before their worker was there" in done.stderr


def test_run_reports_all_wrong_slurm_options_together(folder: Folder) -> None:
    done = folder.command(*RUN, "--workers", "8-2", "--walltime", "soon", "--interface", "no0")
    assert done.returncode == 2
    for words in ("workers must be", "walltime must be", "unknown interface 'no0'"):
        assert words in done.stderr


def test_flags_of_slurm_without_it_are_refused(folder: Folder) -> None:
    done = folder.command("run", "walk.py", "--partition", "low", "--memory", "1GB")
    assert done.returncode == 2
    assert "--partition, --memory must come with --slurm" in done.stderr

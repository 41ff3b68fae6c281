"""The doctor on workers that are jobs."""

from __future__ import annotations

import json

import pytest

from .conftest import ON_SLURM, Folder

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


def test_workers_that_are_jobs_are_examined_and_end(folder: Folder) -> None:
    place = ("--slurm", "--workers", "2", *ON_SLURM)
    done = folder.command("doctor", "walk.py", *place, "--json", "--seconds", "60")
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert document["workers"] == 2
    ok = {one["check"] for one in document["findings"] if len(one["workers"]) == 2}
    assert ok >= {"versions", "trainer", "store", "clock"}
    warned = {one["check"] for one in document["findings"] if one["status"] == "warning"}
    assert not warned & {"settings", "ports", "processes", "slots"}, done.stdout
    assert not (folder.path / "runs").exists()


def test_doctor_shows_the_refusal_of_slurm(folder: Folder) -> None:
    done = folder.command("doctor", "walk.py", "--slurm", *ON_SLURM, "--partition", "nowhere")
    assert done.returncode == 1
    assert "nowhere" in done.stderr or "partition" in done.stderr

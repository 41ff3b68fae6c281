"""The command ``doctor``: the flags of ``run``, and nothing that stays behind."""

from __future__ import annotations

import json

import dask
import pytest
from distributed import LocalCluster

from dasktune._cluster.local import LOCAL_SETTINGS

from .conftest import Folder

pytestmark = pytest.mark.process


def test_a_study_that_never_ran_is_examined_and_not_made(folder: Folder) -> None:
    done = folder.command("doctor", "counting.py", "--workers", "1", "--seconds", "60")
    assert done.returncode == 0, done.stdout + done.stderr
    first, *lines = done.stdout.splitlines()
    assert first.startswith("study counting, 1 worker, ")
    assert lines[-1].startswith("no problems, ")
    assert "'dasktune check FILE' shows whether it resumes exactly" in " ".join(done.stdout.split())
    left = {path.name for path in folder.path.iterdir()} - {"__pycache__"}
    assert left == {"counting.py"}


def test_it_reads_as_json_and_fails_by_its_exit_code(folder: Folder) -> None:
    text = (folder.path / "counting.py").read_text()
    other = text.replace('"runs/counting"', '"memory://counting"')
    (folder.path / "memory.py").write_text(other)
    with (
        dask.config.set({**LOCAL_SETTINGS, "temporary-directory": str(folder.path / "dask")}),
        LocalCluster(n_workers=1, host="127.0.0.1", dashboard_address="127.0.0.1:0") as cluster,
    ):
        address = cluster.scheduler_address
        done = folder.command("doctor", "memory.py", "--scheduler", address, "--json")
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    assert (document["study"], document["ok"], document["workers"]) == ("counting", False, 1)
    (problem,) = [one for one in document["findings"] if one["status"] == "problem"]
    assert problem["check"] == "store"
    assert len(problem["workers"]) == 1
    assert "bucket" in problem["mend"]


def test_doctor_names_a_wrong_option_or_an_absent_scheduler(folder: Folder) -> None:
    nobody = folder.command("doctor", "counting.py", "--scheduler", "tcp://127.0.0.1:1")
    assert (nobody.returncode, nobody.stdout) == (1, "")
    assert "cannot reach the scheduler" in nobody.stderr
    wrong = folder.command("doctor", "counting.py", "--workers", "0")
    assert wrong.returncode == 2
    assert "--workers must be a number >= 1 or a range such as 0-16, got '0'" in wrong.stderr
    hasty = folder.command("doctor", "counting.py", "--workers", "1", "--seconds", "0")
    assert hasty.returncode == 2
    assert "--seconds" in hasty.stderr

"""The examples that run elsewhere do so: states in a bucket, jobs of SLURM, as their texts say."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from dasktune.storage.checkpoints import CheckpointStore
from tests.forked import run_forked
from tests.services import S3Server
from tests.slurm_server import Slurm

pytestmark = [pytest.mark.cluster, pytest.mark.s3, pytest.mark.slow]

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAM = [sys.executable, "-c", "from dasktune.cli import main; main()"]


TRIAL = 24
"""Steps of one trial; a run that was ended by a limit stops as soon as its driver says so."""


@pytest.fixture
def bucket(moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a new bucket, to which the environment leads."""
    for name, value in moto.environment().items():
        monkeypatch.setenv(name, value)
    return moto.create_bucket()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a copy of the examples."""
    return Path(shutil.copytree(EXAMPLES, tmp_path / "examples"))


def edit(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert text.count(before) == 1, before
    path.write_text(text.replace(before, after))


def summary_of(file: Path, *arguments: str, where: Path) -> dict[str, Any]:
    """Run a study file in a folder and return the summary of its study."""
    where.mkdir(exist_ok=True)
    options = ("--json", "--no-progress", "--no-report")
    done = run_forked([*PROGRAM, "run", str(file), *arguments, *options], cwd=where, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["summary"]
    return found


def test_bucket_keeps_its_budget_and_serves_another_machine(
    bucket: str, folder: Path, tmp_path: Path
) -> None:
    url = f"s3://{bucket}/digits"
    edit(folder / "bucket.py", 's3://your-bucket/digits",', f'{url}",')
    there = Path(shutil.copytree(folder, tmp_path / "there"))
    one = ("--workers", "1", "--steps", "6", "--config", "budget=2MB")
    first = summary_of(folder / "bucket.py", *one, where=folder)
    assert 6 <= first["steps_executed"] < TRIAL, "its limit has ended it"
    stored = list(CheckpointStore(url).inventory())
    assert len(stored) >= 1
    assert sum(one.nbytes for one in stored) <= 2_000_000
    again = ("--workers", "1", "--steps", "1", "--config", f"storage={url}")
    second = summary_of(there / "bucket.py", *again, where=there)
    assert second["steps_executed"] < TRIAL
    assert second["steps_reused"] >= 4, "of another database, found in the bucket"


@pytest.mark.slurm
def test_three_edits_run_asha_in_jobs_with_states_in_a_bucket(
    slurm: Slurm, bucket: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
    edit(folder / "slurm_s3.py", "s3://your-bucket/digits", f"s3://{bucket}/digits")
    edit(folder / "dasktune.toml", 'partition = "gpu"', 'partition = "low"')
    edit(folder / "dasktune.toml", "gpus_per_worker = 1", "gpus_per_worker = 0")
    small = ("--workers", "2", "--config", "trials=6", "--config", "max_steps=4")
    loopback = ("--interface", "lo", "--memory", "1GB")
    found = summary_of(folder / "slurm_s3.py", "--slurm", *small, *loopback, where=folder)
    assert found["trials"] == 6
    assert found["steps_executed"] >= 4
    assert found["best_value"] > 0.2
    store = CheckpointStore(f"s3://{bucket}/digits")
    commits = store.commits(store.keys())
    assert any(one.step == 4 for one in commits.values()), "a promoted trial came to its end"
    assert slurm.jobs("PENDING,RUNNING") == []
    assert (folder / "dasktune.db").exists()
    assert list((folder / "slurm" / "logs").iterdir())

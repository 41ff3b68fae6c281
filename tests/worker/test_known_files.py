"""A worker refuses to train with a file that differs from that of the trainer's check."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dasktune._worker.job import Job
from dasktune._worker.known_files import KnownFiles
from dasktune.errors import StorageError
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.verdicts import SEVERAL, Verdicts
from dasktune.trainer import data_digest
from dasktune.trainer.check_resume.verdict import verdict
from tests.toy_trainers import Adding

FINGERPRINT = "ab" * 16


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """Return a job whose fingerprint has a verdict with a file."""
    monkeypatch.chdir(tmp_path)
    Path("net.yaml").write_text("width: 1")
    store = str(tmp_path / "store")
    files = {"net.yaml": data_digest("net.yaml"), "other/net.yaml": "f" * 32}
    row = verdict(FINGERPRINT, "cpu", ok=True, text="passed", files=files)
    Verdicts(None, CheckpointStore(store).files).record(row)
    return Job(
        trainer_class=Adding,
        config={},
        device="cpu",
        store=store,
        report_every=1,
        fingerprint=FINGERPRINT,
        code_folder=str(tmp_path),
    )


def known(job: Job) -> KnownFiles:
    return KnownFiles(job, CheckpointStore(job.store))


def test_an_edited_file_is_refused_and_a_lost_one_is_not(job: Job) -> None:
    files = known(job)
    files.refuse_changed()
    Path("net.yaml").write_text("width: 2")
    for each in (files, known(job)):
        with pytest.raises(StorageError, match=r"reads net\.yaml, which must be as when"):
            each.refuse_changed()
    Path("net.yaml").unlink()
    files.refuse_changed()


def test_a_file_with_several_contents_is_refused(job: Job) -> None:
    row = verdict(FINGERPRINT, "cpu", ok=True, text="passed", files={"net.yaml": SEVERAL})
    Verdicts(None, CheckpointStore(job.store).files).record(row)
    with pytest.raises(StorageError, match=r"net\.yaml"):
        known(job).refuse_changed()


def test_a_job_without_fingerprint_compares_nothing(job: Job) -> None:
    Path("net.yaml").write_text("width: 2")
    known(replace(job, fingerprint="")).refuse_changed()
    known(replace(job, fingerprint="cd" * 16)).refuse_changed()

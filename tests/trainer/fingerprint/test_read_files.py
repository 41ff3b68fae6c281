"""Files that a check has seen are kept by path, and make another fingerprint when they change."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dasktune.trainer import data_digest, fingerprint
from dasktune.trainer.fingerprint.fingerprint import differing, taken
from dasktune.trainer.fingerprint.named_files import MOST_BYTES
from dasktune.trainer.fingerprint.read_files import (
    MOST_FILES,
    changed_files,
    code_folder,
    kept_files,
    uncovered_files,
)
from tests.toy_trainers import Adding

CODE = Path(__file__).parents[1].parent


class Logging(Adding):
    ignored_config = ("log", "threads")


class Identified(Adding):
    @classmethod
    def fingerprint_data(cls, config: Any) -> str:
        return "none"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory; temporary files are in a folder of it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "net.yaml").write_text("width: 1")
    return tmp_path


def kept(*paths: Path, trainer: type = Adding, **config: object) -> dict[str, str]:
    return kept_files([(str(path), False) for path in paths], trainer, config)


def test_paths_are_kept_for_other_machines(folder: Path) -> None:
    (folder / "home").mkdir()
    (folder / "home" / "net.yaml").write_text("width: 1")
    file, digest = folder / "net.yaml", data_digest("net.yaml")
    assert kept(file) == {str(file): digest}
    assert kept_files([("net.yaml", True)], Adding, {}) == {"./net.yaml": digest}
    assert kept(folder / "home" / "net.yaml") == {"~/net.yaml": digest}
    beside = kept(CODE / "conftest.py")
    assert beside == {"conftest.py": data_digest(CODE / "conftest.py")}
    for files in ({str(file): digest}, {"./net.yaml": digest}, {"~/net.yaml": digest}, beside):
        assert changed_files(files, code_folder(Adding)) == []


def test_other_files_are_not_kept(folder: Path) -> None:
    (folder / "log").mkdir()
    for name in ("temporary/a.txt", "log/a.txt", "b.txt"):
        (folder / name).write_text("1")
    installed = Path(np.__file__).with_name("py.typed")
    hidden = folder / "home" / ".cache" / "token"
    hidden.parent.mkdir(parents=True)
    hidden.write_text("1")
    system = Path("/proc/self/status"), Path("/etc/passwd")
    paths = [folder / "temporary" / "a.txt", hidden, installed, *system, folder]
    assert kept(*paths, folder / "nothing.txt") == {}
    logs = folder / "log" / "a.txt", folder / "b.txt"
    assert kept(*logs, trainer=Logging, log="log", threads=3, other="b.txt") == {
        str(folder / "b.txt"): data_digest("b.txt")
    }


def test_a_study_in_a_hidden_folder_has_files(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = folder / "home" / ".work" / "study"
    work.mkdir(parents=True)
    (work / "net.yaml").write_text("1")
    (work.parent / "net.yaml").write_text("1")
    monkeypatch.chdir(work)
    assert list(kept(work / "net.yaml", work.parent / "net.yaml")) == ["~/.work/study/net.yaml"]


def test_a_study_in_a_temporary_folder_has_files(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(folder.parent))
    assert list(kept(folder / "net.yaml")) == [str(folder / "net.yaml")]
    monkeypatch.chdir(folder.parent)
    assert kept(folder / "net.yaml") == {}


def test_changed_and_lost_files_are_parts(folder: Path) -> None:
    files = kept_files([("net.yaml", True)], Adding, {})
    before = fingerprint(Adding, {})
    assert taken(Adding, {}, read_files=files).fingerprint == before
    (folder / "net.yaml").write_text("width: 2")
    edited = taken(Adding, {}, read_files=files)
    assert edited.fingerprint.parts == {
        **before.parts,
        "read file ./net.yaml": data_digest("net.yaml"),
    }
    assert edited.fingerprint.digest != before.digest
    assert differing(before.parts, edited.fingerprint.parts) == ["read file ./net.yaml"]
    assert edited.holds(Adding, {}, files)
    (folder / "net.yaml").unlink()
    assert not edited.holds(Adding, {}, files)
    lost = taken(Adding, {}, read_files=files)
    assert lost.fingerprint.parts["read file ./net.yaml"] == "missing"
    (folder / "net.yaml").write_text("width: 1")
    assert taken(Adding, {}, read_files=files).fingerprint == before


class ByLoop(Adding):
    def build(self, hp: Any) -> None:
        super().build(hp)
        self.text = [Path(name).read_text() for name in ["net.yaml", "other.yaml"]]


def test_a_file_that_a_check_saw_is_no_gap(folder: Path) -> None:
    (folder / "other.yaml").write_text("1")
    before = fingerprint(ByLoop, {})
    assert {"file net.yaml", "file other.yaml"} <= {*before.gaps}
    files = kept_files([("net.yaml", True)], ByLoop, {})
    now = taken(ByLoop, {}, read_files=files).fingerprint
    assert {*before.gaps} - {*now.gaps} == {"file net.yaml"}
    assert now.digest == before.digest


def test_a_large_file_counts_by_its_size_and_is_named(folder: Path) -> None:
    (folder / "big.npy").write_bytes(bytes(MOST_BYTES + 1))
    files = kept_files([("big.npy", True)], Adding, {})
    assert files == {"./big.npy": f"{MOST_BYTES + 1} bytes"}
    assert uncovered_files(files, Adding, ()) == ["./big.npy (1048577 bytes)"]
    assert uncovered_files(files, Adding, ["data", "file big.npy"]) == []
    (folder / "big.npy").write_bytes(bytes(MOST_BYTES + 2))
    assert changed_files(files, code_folder(Adding)) == [("./big.npy", f"{MOST_BYTES + 2} bytes")]
    assert kept_files([("big.npy", True)], Identified, {}) == {}


def test_files_above_the_limit_are_named(folder: Path) -> None:
    paths = [folder / f"{number}.txt" for number in range(MOST_FILES + 1)]
    for path in paths:
        path.touch()
    files = kept(*paths)
    assert list(files) == [str(path) for path in paths[:MOST_FILES]]
    assert uncovered_files(files, Adding, ()) == ["files after the first 1,000"]
    assert uncovered_files(files, Identified, ()) == []


def test_a_file_that_cannot_be_read_is_missing(folder: Path) -> None:
    files = kept_files([("net.yaml", True)], Adding, {})
    (folder / "net.yaml").unlink()
    os.mkfifo("net.yaml")
    assert changed_files(files, code_folder(Adding)) == [("./net.yaml", "missing")]

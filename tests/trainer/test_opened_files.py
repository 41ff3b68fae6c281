"""The files that own code reads are recorded, whoever opens them for it; others are not."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dasktune.trainer import data_digest
from dasktune.trainer.opened_files import (
    MOST_BYTES,
    OpenedFile,
    changed_files,
    digests_now,
    ignored_paths,
    recording,
)
from tests.toy_trainers import Adding

READS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "open": ("c.txt", lambda path: path.open().close()),
    "text": ("c.txt", lambda path: path.read_text()),
    "bytes": ("c.txt", lambda path: path.read_bytes()),
    "JSON": ("c.json", lambda path: json.loads(path.read_text())),
    "NumPy": ("c.npy", lambda path: np.load(path)),
    "NumPy, mapped": ("c.npy", lambda path: np.load(path, mmap_mode="r")),
    "NumPy, text": ("c.txt", lambda path: np.loadtxt(path)),
    "torch": ("c.pt", lambda path: torch.load(path)),
    "descriptor": ("c.txt", lambda path: os.close(os.open(path, os.O_RDONLY))),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a file of each kind; temporary files are elsewhere."""
    elsewhere = tmp_path / "temporary"
    elsewhere.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(elsewhere))
    (tmp_path / "c.txt").write_text("1")
    (tmp_path / "c.json").write_text("1")
    np.save(tmp_path / "c.npy", np.ones(1))
    torch.save(torch.ones(1), tmp_path / "c.pt")
    return tmp_path


@pytest.mark.parametrize("name", READS)
def test_files_that_own_code_reads_are_recorded(name: str, folder: Path) -> None:
    file, read = READS[name]
    path = folder / file
    with recording(Adding) as recorder:
        read(path)
    (folder / "other.txt").write_text("1")
    (folder / "other.txt").read_text()
    expected = OpenedFile(nbytes=path.stat().st_size, digest=data_digest(path))
    assert recorder.files() == {str(path): expected}


def test_files_of_others_are_not_recorded(folder: Path) -> None:
    (folder / "own.py").write_text("")
    (folder / "log").mkdir()
    (folder / "log" / "a.txt").write_text("")
    with recording(Adding, ignored=[str(folder / "log")]) as recorder:
        (folder / "new.txt").write_text("1")
        with (folder / "c.txt").open("a"), (folder / "c.json").open("r+"):
            pass
        (folder / "own.py").read_text()
        (folder / "log" / "a.txt").read_text()
        (folder / "temporary" / "a.txt").write_text("1")
        (folder / "temporary" / "a.txt").read_text()
        Path("/proc/self/status").read_text()
        Path(np.__file__).with_name("py.typed").read_text()
        thread = threading.Thread(target=(folder / "c.txt").read_text)
        thread.start()
        thread.join()
        with pytest.raises(FileNotFoundError):
            (folder / "nothing.txt").read_text()
    assert recorder.files() == {}


def test_contexts_are_nested_and_end(folder: Path) -> None:
    with recording(Adding, all_threads=True) as outer:
        (folder / "c.txt").read_text()
        with recording(Adding) as inner:
            (folder / "c.json").read_text()
        thread = threading.Thread(target=lambda: (folder / "c.npy").read_bytes())
        thread.start()
        thread.join()
    names = [{Path(path).name for path in recorder.files()} for recorder in (outer, inner)]
    assert names == [{"c.txt", "c.json", "c.npy"}, {"c.json"}]


def test_paths_beside_the_code_are_relative() -> None:
    beside = Path(__file__).parents[1] / "a_file_of_this_test.txt"
    try:
        beside.write_text("1")
        with recording(Adding) as recorder:
            beside.read_text()
        assert list(recorder.files()) == ["a_file_of_this_test.txt"]
        assert digests_now(recorder.files(), Adding) == recorder.files()
    finally:
        beside.unlink()


def test_changed_large_and_lost_files_are_named(folder: Path) -> None:
    large = folder / "large.txt"
    large.write_bytes(bytes(MOST_BYTES + 1))
    with recording(Adding) as recorder:
        for name in ("c.txt", "c.json", "large.txt"):
            (folder / name).read_bytes()
    before = recorder.files()
    assert before[str(large)] == OpenedFile(nbytes=MOST_BYTES + 1, digest=None)
    assert changed_files(before, digests_now(before, Adding)) == []
    (folder / "c.txt").write_text("2")
    (folder / "c.json").unlink()
    now = digests_now(before, Adding)
    assert now[str(folder / "c.json")] == OpenedFile(nbytes=-1, digest=None)
    assert changed_files(before, now) == [str(folder / "c.json"), str(folder / "c.txt")]


def test_ignored_config_names_paths() -> None:
    class Logging(Adding):
        ignored_config = ("log", "threads")

    config = {"log": "a.log", "threads": 3, "data": "data.txt"}
    assert ignored_paths(Logging, config) == ["a.log"]

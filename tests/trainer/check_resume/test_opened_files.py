"""The files that own code reads in a check are recorded, whoever opens them; others are not."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dasktune.trainer import data_digest
from dasktune.trainer.check_resume.opened_files import OpenedFiles

OLD = 1_600_000_000

READS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "open": ("c.txt", lambda path: path.open().close()),
    "text": ("c.txt", lambda path: path.read_text()),
    "JSON": ("c.json", lambda path: json.loads(path.read_text())),
    "NumPy": ("c.npy", lambda path: np.load(path)),
    "NumPy, mapped": ("c.npy", lambda path: np.load(path, mmap_mode="r")),
    "NumPy, text": ("c.txt", lambda path: np.loadtxt(path)),
    "torch": ("c.pt", lambda path: torch.load(path)),
    "weights": ("c.pth", lambda path: torch.load(path)),
    "descriptor": ("c.txt", lambda path: os.close(os.open(path, os.O_RDONLY))),
    "executor": ("c.npy", lambda path: ThreadPoolExecutor(1).submit(np.load, path).result()),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory, with a file of each kind."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.txt").write_text("1")
    (tmp_path / "c.json").write_text("1")
    np.save(tmp_path / "c.npy", np.ones(1))
    torch.save(torch.ones(1), tmp_path / "c.pt")
    torch.save(torch.ones(1), tmp_path / "c.pth")
    for path in tmp_path.iterdir():
        os.utime(path, (OLD, OLD))
    return tmp_path


@pytest.fixture
def opened(folder: Path) -> Iterator[OpenedFiles]:
    """Return a recorder that stops at the end of the test."""
    opened = OpenedFiles("tests")
    opened.begin()
    yield opened
    opened.read()


@pytest.mark.parametrize("name", READS)
def test_files_that_own_code_reads_are_recorded(name: str, folder: Path) -> None:
    file, read = READS[name]
    opened = OpenedFiles("tests")
    opened.begin()
    read(folder / file)
    assert opened.read() == [(str(folder / file), False)]


def test_a_relative_name_stays_relative(opened: OpenedFiles, folder: Path) -> None:
    Path("c.txt").read_text()
    os.chdir("/")
    Path("proc/self/status").read_text()  # of the system: it does not count
    (folder / "c.json").read_text()
    os.chdir(folder)
    assert opened.read() == [("c.txt", True), (str(folder / "c.json"), False)]


def test_what_training_writes_is_not_recorded(opened: OpenedFiles, folder: Path) -> None:
    Path("new.txt").write_text("1")
    Path("new.txt").read_text()
    torch.save(torch.ones(1), "new.pt")  # opened in C++
    torch.load("new.pt")
    Path("c.json").read_text()
    with Path("c.txt").open("a"), Path("c.json").open("r+"):
        pass
    Path("c.txt").read_text()
    os.utime("new.txt", (OLD, OLD))
    Path("new.txt").rename("c.npy")
    Path("c.npy").read_text()
    assert opened.read() == []


def test_source_byte_code_and_imports_are_not_recorded(
    opened: OpenedFiles, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("module_of_this_test.py").write_text("import json\n")
    os.utime("module_of_this_test.py", (OLD, OLD))
    monkeypatch.syspath_prepend(folder)
    import_module("module_of_this_test")
    Path("module_of_this_test.py").read_text()
    assert opened.read() == []


def test_files_that_a_module_reads_at_its_import_are_recorded(
    opened: OpenedFiles, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("module_that_reads.py").write_text(
        "from pathlib import Path\nTEXT = Path('c.txt').read_text()\n"
    )
    monkeypatch.syspath_prepend(folder)
    assert import_module("module_that_reads").TEXT == "1"
    assert opened.read() == [("c.txt", True)]


def test_files_that_dasktune_or_no_one_opens_are_not_recorded(
    opened: OpenedFiles, folder: Path
) -> None:
    data_digest("c.txt")
    load_verdict = compile("open('c.txt').close()", "<string>", "exec")
    exec(load_verdict, {"__name__": "dasktune.storage"})
    with pytest.raises(FileNotFoundError):
        Path("nothing.txt").read_text()
    with pytest.raises(ValueError, match="null"):
        Path("c\0.txt").read_text()
    assert opened.read() == []

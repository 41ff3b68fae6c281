"""Local files: large parts go to the disk from where they lie, whatever their place is."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dasktune.storage.buffers import PAGE, Buffer, empty
from dasktune.storage.files import local
from dasktune.storage.files.local import LocalFiles

LARGE = local.LARGE_BYTES


def content(nbytes: int, start: int = 0) -> Buffer:
    """Return random bytes in memory that begins so far behind a page."""
    data = empty(start + nbytes)[start:]
    data[:] = np.random.default_rng(0).integers(0, 256, nbytes, np.uint8)
    return data


def is_in_memory(path: Path) -> bool:
    """Return whether the system has a file's first page in its own memory."""
    with path.open("rb") as file:
        try:
            return os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT) == 1
        except BlockingIOError:
            return False


@pytest.mark.parametrize("start", [0, 1, 64], ids="behind-page-{}".format)
@pytest.mark.parametrize("more", [0, 1, PAGE - 1, PAGE + 1])
def test_write_of_several_parts_keeps_all_bytes(tmp_path: Path, start: int, more: int) -> None:
    parts = [content(LARGE), content(LARGE + more, start), content(5), content(LARGE)]
    LocalFiles(tmp_path).write("folder", {"file": iter(parts)})
    assert (tmp_path / "folder" / "file").read_bytes() == np.concatenate(parts).tobytes()


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """Return a folder on a disk, past whose memory a file may be written."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        path = Path(folder, "reference")
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
            os.write(descriptor, empty(LARGE))
            os.close(descriptor)
            is_kept = is_in_memory(path)
        except (AttributeError, OSError):
            is_kept = True
        if is_kept:
            pytest.skip("/var/tmp keeps all files in memory")
        yield Path(folder)


def test_write_of_a_large_part_makes_no_copy(on_disk: Path) -> None:
    LocalFiles(on_disk).write("folder", {"file": [content(LARGE + 1)]})
    assert not is_in_memory(on_disk / "folder" / "file")


def test_write_where_the_disk_refuses_is_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = fcntl.fcntl

    def refuse(file: int, command: int, flags: int = 0) -> int:
        if command == fcntl.F_SETFL and flags & os.O_DIRECT:
            raise OSError(errno.EOPNOTSUPP, "not supported")
        return kept(file, command, flags)

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    part = content(LARGE)
    LocalFiles(tmp_path).write("folder", {"file": [part]})
    assert (tmp_path / "folder" / "file").read_bytes() == part.tobytes()


def test_stores_of_a_process_share_their_threads(tmp_path: Path) -> None:
    before = {*threading.enumerate()}
    stores = [LocalFiles(tmp_path / str(number)) for number in range(6)]
    for store in stores:
        store.write("a", {"x": [content(5)]})
    begun = {*threading.enumerate()} - before
    assert len(begun) <= 4

"""The clock of a store, and the marks whose age it tells."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dasktune._engine.timeouts import REMOVAL_MARK_SECONDS
from dasktune.storage.files.base import Entry
from dasktune.storage.files.clock import store_clock, store_time
from dasktune.storage.files.local import LocalFiles
from dasktune.storage.files.removal import removal_mark
from dasktune.storage.layout import CLOCK, MARK

AHEAD = 5000.0
PATH = "checkpoints/aa/aa1/commit"


class Ahead(LocalFiles):
    """Files of a server whose clock is ahead of this machine's, or that tells no time."""

    def __init__(self, root: Path, *, ahead: float | None = AHEAD) -> None:
        super().__init__(root)
        self.ahead = ahead

    def entries(self, folder: str) -> Iterator[Entry]:
        """Return the entries with the times of the server."""
        for entry in super().entries(folder):
            modified = 0.0 if self.ahead is None else entry.modified + self.ahead
            yield replace(entry, modified=modified)


class Broken(LocalFiles):
    """Files of a store that does not answer."""

    def replace(self, path: str, content: bytes, *, durable: bool = False) -> None:
        """Fail."""
        raise OSError("no answer")


def near(seconds: float) -> object:
    return pytest.approx(time.time() + seconds, abs=300)


def test_time_is_that_of_a_file_written_now(tmp_path: Path) -> None:
    files = Ahead(tmp_path)
    assert store_time(files) == near(AHEAD)
    os.utime(tmp_path / CLOCK, (1000, 1000))
    assert store_time(files) == near(AHEAD), "the file is written again"
    files.replace(CLOCK + "-other", b"")
    assert store_time(files) == near(AHEAD)
    assert store_time(Ahead(tmp_path, ahead=None)) == 0


def test_clock_goes_on_from_the_time_of_the_store(tmp_path: Path) -> None:
    elapsed = [50.0]
    clock = store_clock(Ahead(tmp_path), lambda: elapsed[0])
    began = clock()
    assert began == near(AHEAD)
    elapsed[0] += 7
    assert clock() == began + 7


@pytest.mark.parametrize("kind", ["no time", "broken"])
def test_clock_is_that_of_the_machine_without_the_store(tmp_path: Path, kind: str) -> None:
    files = Broken(tmp_path) if kind == "broken" else Ahead(tmp_path, ahead=None)
    assert store_clock(files)() == near(0)


@pytest.mark.parametrize(
    ("age", "ahead", "stays"),
    [
        (REMOVAL_MARK_SECONDS - 300, 0.0, True),
        (REMOVAL_MARK_SECONDS + 300, 0.0, False),
        # A clock of the store that is behind this machine's makes no mark older.
        (REMOVAL_MARK_SECONDS - 300, -AHEAD, True),
        (REMOVAL_MARK_SECONDS + 300, None, True),
    ],
)
def test_mark_is_old_by_the_clock_of_the_store(
    tmp_path: Path, age: float, ahead: float | None, stays: bool
) -> None:
    files = Ahead(tmp_path, ahead=ahead)
    files.replace(PATH + MARK, b"")
    files.replace(PATH + "-else", b"")
    for name in (MARK, "-else"):
        os.utime(tmp_path / (PATH + name), (time.time() - age,) * 2)
    with removal_mark(files, PATH) as may_remove:
        assert not may_remove
    assert (tmp_path / (PATH + MARK)).exists() is stays
    assert (tmp_path / (PATH + "-else")).exists()


def test_mark_is_held_by_one_and_left_by_none(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    with removal_mark(files, PATH) as first:
        with removal_mark(files, PATH) as second:
            assert (first, second) == (True, False)
        assert (tmp_path / (PATH + MARK)).exists()
    assert not (tmp_path / (PATH + MARK)).exists()
    with pytest.raises(ValueError, match="broken off"), removal_mark(files, PATH):
        raise ValueError("broken off")
    assert not (tmp_path / (PATH + MARK)).exists()

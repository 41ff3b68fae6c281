"""The garbage collector, where it is off: in blocks, and at the end of a process."""

from __future__ import annotations

import gc
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from dasktune._garbage import without_collections


def test_collections_are_off_until_the_last_block_ends() -> None:
    first, second = ExitStack(), ExitStack()
    first.enter_context(without_collections())
    second.enter_context(without_collections())
    first.close()
    is_on_between = gc.isenabled()
    second.close()
    assert not is_on_between
    assert gc.isenabled()


@pytest.mark.process
def test_a_quick_end_keeps_what_was_written_and_registered(tmp_path: Path) -> None:
    program = """
import atexit
from dasktune._garbage import end_quickly

class Cycle:
    def __del__(self):
        print("collected")

atexit.register(print, "registered before")
for _ in range(2):
    end_quickly()
atexit.register(print, "registered after")
cycle, file = Cycle(), open("file", "w")
cycle.own, cycle.file = [cycle], file
file.write("never closed")
del cycle, file
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n") == ["registered after", "registered before", ""]
    assert (tmp_path / "file").read_text() == "never closed"

"""The job of a run, and the process in which it is opened."""

from __future__ import annotations

import sys

import pytest

from dasktune.worker.job import this_process
from tests.forked import run_forked


@pytest.mark.process
def test_forked_processes_have_names_of_their_own() -> None:
    program = "from dasktune.worker.job import this_process; print(this_process(), end='')"
    command = [sys.executable, "-c", program]
    names = {run_forked(command, text=True).stdout for _ in range(2)} | {this_process()}
    assert len(names) == 3
    assert "" not in names

"""The job of a run, and the process in which it is opened."""

from __future__ import annotations

import sys

import pytest

from dasktune._worker.job import this_process
from tests.forked import run_forked


@pytest.mark.process
def test_forked_processes_have_names_of_their_own() -> None:
    job = "dasktune._worker.job"
    program = f"import sys; print({job!r} in sys.modules); import {job} as job"
    command = [sys.executable, "-c", f"{program}; print(job.this_process())"]
    lines = [run_forked(command, text=True).stdout.splitlines() for _ in range(2)]
    assert [is_loaded for is_loaded, _ in lines] == ["True", "True"], "before the fork"
    assert len({this_process(), *(name for _, name in lines)}) == 3

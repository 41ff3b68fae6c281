"""New processes for `check_resume`, forked from one that has imported the libraries already.

A new interpreter needs seconds to import torch. A fork of a process that has imported it, and
that never saw a trainer, starts from the same state at once.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

LIBRARIES = [
    "dasktune.trainer.check_resume.new_process",
    "pytest",
    "sklearn.linear_model",
    "torch._dynamo",  # which the first optimizer imports
]


def fork_for_resume_checks(patch: pytest.MonkeyPatch) -> None:
    """Make every `check_resume` fork its processes."""
    new_process = import_module("dasktune.trainer.check_resume.new_process")
    patch.setattr(new_process, "subprocess", SimpleNamespace(run=run_forked))


def run_forked(
    command: list[str], *, input: bytes, **_: object
) -> subprocess.CompletedProcess[bytes]:
    """Return the result of a command, as `subprocess.run`, from a forked process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LIBRARIES)
    with tempfile.TemporaryDirectory() as folder:
        errors = Path(folder, "errors")
        process = context.Process(target=_work, args=(command[2], input, str(errors)))
        process.start()
        process.join()
        text = errors.read_bytes() if errors.exists() else b""
        return subprocess.CompletedProcess(command, process.exitcode or 0, b"", text)


def _work(program: str, input: bytes, errors: str) -> None:
    sys.stdin = io.TextIOWrapper(io.BytesIO(input))
    # To this file multiprocessing writes the traceback of an error.
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), sys.stderr.fileno())
    exec(program, {})

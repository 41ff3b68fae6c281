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
    """Let `check_resume` fork its processes."""
    check = import_module("dasktune.trainer.check_resume.check")
    patch.setattr(check, "subprocess", SimpleNamespace(run=_run))


def _run(command: list[str], *, input: bytes, **_: object) -> subprocess.CompletedProcess[bytes]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LIBRARIES)
    with tempfile.TemporaryDirectory() as folder:
        errors = Path(folder, "errors")
        process = context.Process(target=_work, args=(command[2], input, str(errors)))
        process.start()
        process.join()
        said = errors.read_bytes() if errors.exists() else b""
        return subprocess.CompletedProcess(command, process.exitcode or 0, b"", said)


def _work(program: str, input: bytes, errors: str) -> None:
    sys.stdin = io.TextIOWrapper(io.BytesIO(input))
    # To this file multiprocessing writes the traceback of an error.
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), sys.stderr.fileno())
    exec(program, {})

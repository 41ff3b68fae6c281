"""New processes for tests, forked from one that has imported the libraries already.

A new interpreter needs seconds to import torch and Dask. A fork of a process that has imported
them, and that never saw a trainer or a study, starts from the same state at once. Forked are the
processes of `check_resume`, the programs that `run_forked` runs, and the workers of local clusters
that these programs and the tests start.

Each forked process has the environment and the folder of the process that starts it, and its own
state of NumPy's global generator, as a new interpreter has. The seed of the hashes of strings is
the same in all of them. Signals reach the forked process alone: it is in no group of the test.

Its garbage collector leaves out the objects of the libraries. They are never garbage, and one
collection among them costs more than all else that a new worker does.
"""

from __future__ import annotations

import atexit
import gc
import io
import multiprocessing
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import import_module
from multiprocessing import forkserver, resource_tracker, spawn
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import dask
import numpy as np
import pytest
from distributed.utils import get_mp_context

LIBRARIES = [
    "tests.forked",
    "bokeh.server.server",  # Dask's dashboard
    "dasktune.cli.results",
    "dasktune.cli.run",
    "dasktune._driver.run",
    "dasktune._study.study",
    "dasktune.trainer.check_resume.new_process",
    "dasktune._worker.host",
    "dasktune._worker.plugin",
    "distributed.dashboard.scheduler",
    "distributed.nanny",
    "distributed.http.scheduler.prometheus.core",
    "pytest",
    "sklearn.linear_model",
    "torch._dynamo",  # which the first optimizer imports
]

if any("multiprocessing.forkserver" in argument for argument in sys.orig_argv):
    gc.disable()  # While the server imports the libraries, too; forked processes enable it.

_described = spawn.get_preparation_data
_prepare = spawn.prepare


def _described_with_environment(name: str) -> dict[str, Any]:
    return {**_described(name), "environment": dict(os.environ)}


def _prepare_with_environment(data: dict[str, Any]) -> None:
    gc.freeze()
    gc.enable()
    os.environ.clear()
    os.environ.update(data["environment"])
    # A forked process asks the server that it comes from; by itself it would start another.
    forkserver._forkserver.ensure_running = resource_tracker.ensure_running
    np.random.seed()
    _prepare(data)


spawn.get_preparation_data = _described_with_environment
spawn.prepare = _prepare_with_environment


def fork_workers() -> None:
    """Make local clusters of this process fork their workers."""
    dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"})
    # Dask sets the libraries of its own choice on the first call.
    get_mp_context().set_forkserver_preload(LIBRARIES)


def fork_for_resume_checks(patch: pytest.MonkeyPatch) -> None:
    """Make every `check_resume` fork its processes."""
    new_process = import_module("dasktune.trainer.check_resume.new_process")
    patch.setattr(new_process, "subprocess", SimpleNamespace(run=run_forked))


def run_forked(
    command: Sequence[str | os.PathLike[str]],
    *,
    input: bytes = b"",
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    text: bool = False,
    timeout: float = 250.0,
    check: bool = False,
    forks: bool = False,
    **_: object,
) -> subprocess.CompletedProcess[Any]:
    """Return the result of a Python program, as `subprocess.run`, from a forked process.

    Parameters
    ----------
    command
        An interpreter; then ``-c`` and a program, ``-m`` and a module, or the path of a script;
        then its arguments.
    input, cwd, env, text, timeout, check
        As for `subprocess.run`. The output is always captured.
    forks
        Whether `subprocess.run` in the program forks interpreters, too.
    """
    process = Forked(command, input=input, cwd=cwd, env=env, text=text, forks=forks)
    try:
        output = process.communicate(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    done = subprocess.CompletedProcess(process.args, process.returncode, *output)
    if check:
        done.check_returncode()
    return done


class Forked:
    """A Python program in a forked process, with the arguments of `run_forked`.

    Its members are those of `subprocess.Popen`.
    """

    def __init__(
        self,
        command: Sequence[str | os.PathLike[str]],
        *,
        input: bytes = b"",
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        text: bool = False,
        forks: bool = False,
    ) -> None:
        self.args = list(map(str, command))
        self._text = text
        self._folder = Path(tempfile.mkdtemp())
        streams = [self._folder / name for name in ("in", "out", "err")]
        for path, content in zip(streams, (input, b"", b""), strict=True):
            path.write_bytes(content)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(LIBRARIES)
        where = (cwd and str(cwd), env and dict(env))
        self._process = context.Process(
            target=_work, args=(self.args[1:], list(map(str, streams)), *where, forks)
        )
        self._process.start()
        self._output: tuple[Any, Any] | None = None

    @property
    def returncode(self) -> int:
        """The exit code of a process that has ended."""
        code = self._process.exitcode
        if code is None:
            raise RuntimeError(f"{self.args} must have ended")
        return code

    def poll(self) -> int | None:
        """Return the exit code, None while the process runs."""
        return self._process.exitcode

    def kill(self) -> None:
        """End the process."""
        self._process.kill()

    def communicate(self, timeout: float | None = None) -> tuple[Any, Any]:
        """Wait until the process has ended; return what it wrote to its two streams."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0, *self._written())
        if self._output is None:
            self._output = self._written()
            shutil.rmtree(self._folder)
        return self._output

    def _written(self) -> tuple[Any, Any]:
        out, err = (self._folder / name for name in ("out", "err"))
        if self._text:
            return out.read_text(), err.read_text()
        return out.read_bytes(), err.read_bytes()


def _work(
    arguments: list[str],
    streams: list[str],
    cwd: str | None,
    env: dict[str, str] | None,
    forks: bool,
) -> None:
    """Run a program as if a new interpreter ran it."""
    for number, path in enumerate(streams):
        os.dup2(os.open(path, os.O_RDWR), number)
    sys.stdin = io.TextIOWrapper(open(0, "rb", closefd=False))  # noqa: SIM115 - of this process
    if cwd is not None:
        os.chdir(cwd)
    if env is not None:
        os.environ.clear()
        os.environ.update(env)
    dask.config.refresh()
    fork_workers()
    if forks:
        subprocess.run = _run_or_fork  # type: ignore[assignment]
    try:
        _run(arguments)
    finally:
        atexit._run_exitfuncs()


_run_new = subprocess.run


def _run_or_fork(command: Sequence[Any], **options: Any) -> subprocess.CompletedProcess[Any]:
    return (run_forked if command[0] == sys.executable else _run_new)(command, **options)


def _run(arguments: list[str]) -> None:
    program, *rest = arguments
    if program == "-m":
        sys.argv = rest
        sys.path.insert(0, "")
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        return
    if program != "-c":
        sys.argv = arguments
        sys.path.insert(0, str(Path(program).parent))
        runpy.run_path(program, run_name="__main__")
        return
    sys.argv = ["-c", *rest[1:]]
    sys.path.insert(0, "")
    main = sys.modules["__main__"] = ModuleType("__main__")
    exec(rest[0], main.__dict__)

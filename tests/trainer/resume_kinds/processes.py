"""The processes of a measurement: forked, because hundreds of kinds start thousands of them.

Each of them begins like a new interpreter; see `tests.forked`. A trial that is trained alone has a
process to itself, so the global variables of its module are as they were after the import.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any
from unittest.mock import patch

from dasktune.trainer.check_resume import limited, new_process
from tests.forked import LIBRARIES


class LimitError(Exception):
    """A process did not end in time, or ended without a result."""


def call_forked(function: Callable[..., Any], *arguments: Any, seconds: float) -> Any:
    """Return the result of a function of a module, called in a forked process.

    Raises
    ------
    LimitError
        If it takes longer, or its process dies.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LIBRARIES)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sender, function, arguments))
    process.start()
    sender.close()
    try:
        if not receiver.poll(seconds):
            raise LimitError(f"not done after {seconds:g} s")
        result, error = pickle.loads(receiver.recv_bytes())
    except EOFError:
        process.join(5.0)
        raise LimitError(f"its process ended with code {process.exitcode}") from None
    finally:
        receiver.close()
        process.kill()
        process.join()
    if error:
        raise LimitError(error)
    return result


def _answer(sender: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        answer = (function(*arguments), "")
    except Exception:  # noqa: BLE001 - the caller shows it
        answer = (None, traceback.format_exc())
    sender.send_bytes(pickle.dumps(answer))


def each_in_a_fork(function: Callable[[Any], Any], items: list[Any]) -> list[Any]:
    """Return the result of a function for each item, each called in a fork of this process.

    This process has one thread only, and must not have called the function. An exception is
    returned as its text.
    """
    results = []
    for item in items:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            _write_and_exit(writing, function, item)
        os.close(writing)
        with open(reading, "rb") as stream:
            content = stream.read()
        os.waitpid(pid, 0)
        results.append(pickle.loads(content) if content else "its process died")
    return results


def _write_and_exit(writing: int, function: Callable[[Any], Any], item: Any) -> None:
    code = 1
    try:
        result: Any
        try:
            result = function(item)
        except Exception as error:  # noqa: BLE001 - whatever the trainer raises
            result = f"{type(error).__name__}: {error}"
        with open(writing, "wb") as stream:
            stream.write(pickle.dumps(result))
        code = 0
    finally:
        os._exit(code)


@contextmanager
def own_folder() -> Iterator[Path]:
    """Give a new folder for temporary files, which is that of this process meanwhile."""
    before = os.environ.get("TMPDIR"), tempfile.tempdir
    with tempfile.TemporaryDirectory(prefix="kinds-") as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        try:
            yield Path(folder)
        finally:
            os.environ.pop("TMPDIR")
            if before[0] is not None:
                os.environ["TMPDIR"] = before[0]
            tempfile.tempdir = before[1]


@contextmanager
def forked_first_checks() -> Iterator[None]:
    """Have the checks of studies fork their processes meanwhile."""
    stand_in = SimpleNamespace(
        Popen=ForkedInterpreter,
        PIPE=subprocess.PIPE,
        DEVNULL=subprocess.DEVNULL,
        TimeoutExpired=subprocess.TimeoutExpired,
        CompletedProcess=subprocess.CompletedProcess,
    )
    with patch.object(limited, "subprocess", stand_in):
        yield


class ForkedInterpreter:
    """A forked process of a check, with the members of `subprocess.Popen` that a check uses."""

    def __init__(self, command: list[str], *, stderr: IO[bytes], **_: object) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(LIBRARIES)
        reading, writing = os.pipe()
        source = Connection(reading, writable=False)
        errors = Connection(os.dup(stderr.fileno()))
        self.stdin = open(writing, "wb")  # noqa: SIM115 - closed by the check
        self._command = command
        self._process = context.Process(target=_check, args=(source, errors, os.getpid()))
        self._process.start()
        source.close()
        errors.close()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int | None:
        if timeout is None:  # a check has killed it, perhaps before it had a session of its own
            self._process.kill()
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self._command, timeout or 0.0)
        return self._process.exitcode


def _check(source: Connection, errors: Connection, parent: int) -> None:
    """Run the process of a check, which ends when its parent is gone."""
    os.setsid()
    os.dup2(source.fileno(), 0)
    os.dup2(errors.fileno(), 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    # The parent of a forked process is the server.
    os.getppid = lambda: parent if Path(f"/proc/{parent}").exists() else 1
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - of this process
    new_process.main()

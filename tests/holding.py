"""Hold trainers in the middle of a stage, in any process, and wait for what they do.

A test closes a gate, and a trainer of any process of this host stops where it passes that gate,
until the test opens it. The gate is a lock on a file: nothing looks again and again, and when the
test's process dies, the system opens it.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Self, TextIO

from distributed import Worker

from dasktune._worker.control import Control
from dasktune._worker.host import StageHost
from dasktune._worker.plugin import StagePlugin

PATIENCE = 120.0
"""How long a test waits for an event before it fails, in seconds: the machine may be busy."""


def pass_gate(path: str | os.PathLike[str]) -> None:
    """Return as soon as the gate is open; at once if no test has closed it."""
    try:
        file = open(path)  # noqa: SIM115 - closed below
    except FileNotFoundError:
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_SH)


class Gate:
    """A gate at a path, open at first."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._lock: TextIO | None = None

    def close(self) -> None:
        """Stop every trainer that comes here from now on."""
        self._lock = open(self.path, "w")  # noqa: SIM115 - held until the gate is opened
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def open(self) -> None:
        """Release all trainers; an open gate stays open."""
        if self._lock is not None:
            self.path.unlink(missing_ok=True)
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Self:
        self.close()
        return self

    def __exit__(self, *_: object) -> None:
        self.open()


def stop_order(workers: Iterable[Worker]) -> Callable[[], bool]:
    """Return whether a stage on one of these workers of this process was told to end.

    The workers' plugins are looked up now: a worker that is closed has none.
    """
    hosts = _hosts(workers)
    return lambda: any(control.ordered is not None for control in _controls(hosts))


def save_order(workers: Iterable[Worker], step: int) -> Callable[[], bool]:
    """Return whether a stage on one of these workers of this process was told to save there."""
    hosts = _hosts(workers)
    return lambda: any(step in control._saves for control in _controls(hosts))


def _hosts(workers: Iterable[Worker]) -> list[StageHost]:
    plugins = [plugin for worker in workers for plugin in [*worker.plugins.values()]]
    return [plugin.host for plugin in plugins if isinstance(plugin, StagePlugin)]


def _controls(hosts: Iterable[StageHost]) -> list[Control]:
    return [control for host in hosts for control in [*host._controls.values()]]


def wait_until(
    holds: Callable[[], object],
    *processes: subprocess.Popen[str] | subprocess.Popen[bytes],
    seconds: float = PATIENCE,
) -> None:
    """Wait until a condition holds; fail after `seconds`, or when a process has ended."""
    deadline = time.monotonic() + seconds
    while not holds():
        for process in processes:
            if process.poll() is not None:
                output = process.communicate()
                raise AssertionError(f"{process.args!r} ended: {output}")
        # No assert: pytest rewrites those, and a trainer that calls this would differ by process.
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s")
        time.sleep(0.01)

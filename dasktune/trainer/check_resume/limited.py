"""The processes of a check that a study starts by itself: they are watched, and ended in time.

A trainer that hangs, or that crashes its interpreter, ends its process and nothing else. The
process shows its parent each step that it trains, in a file that grows by 1 byte a step. It ends
by itself when its parent is gone. What the trainer has started ends with the process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Protocol, Self, cast

import psutil

from dasktune._engine.timeouts import FIRST_CHECK_LOOK_SECONDS, IMPORT_SECONDS
from dasktune.errors import DasktuneError
from dasktune.trainer.check_resume.new_process import (
    COMMAND,
    CheckJob,
    accepted,
    findings_of,
    work_seconds,
)
from dasktune.trainer.check_resume.plan import cost_of
from dasktune.trainer.fingerprint.read_files import OpenedFile
from dasktune.types import Step


class CheckEndedError(Exception):
    """A check was ended before it had a result; the text is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckTimes:
    """How long the processes of one check may take.

    Parameters
    ----------
    seconds
        Work of all of them together, with the building of trainers: see `work_seconds`.
    free
        Number of steps that may be trained however long they take together; 0 for none.
    step_seconds
        After `seconds`, the longest time without another step, if there are free steps.
    start_seconds
        Longest time from the start of a process until its training begins.
    """

    seconds: float
    free: Step = 0
    step_seconds: float = 0.0
    start_seconds: float = IMPORT_SECONDS


class Watch:
    """Decides from looks at a process whether it is to be ended.

    The limit is one of work: see `work_seconds`.

    Parameters
    ----------
    times
        How long the processes of the check may take.
    spent
        Work of the processes before this one, in seconds.
    now
        When this one was started, in seconds of the clock of the looks.

    Examples
    --------
    >>> watch = Watch(CheckTimes(seconds=30.0), spent=20.0, now=0.0)
    >>> watch.look(4.0, 0, cpu=3.0), watch.look(13.0, 2, cpu=9.0)
    (None, None)
    >>> watch.look(14.5, 2, cpu=9.5)
    >>> watch.look(18.5, 2, cpu=13.5)
    'it was not done after 30 s of work, at step 3 of its process'
    """

    def __init__(self, times: CheckTimes, *, spent: float, now: float) -> None:
        self._times, self._spent = times, spent
        self._begun = self._last = now
        self._cpu_begun = self._cpu = 0.0
        self._steps: Step | None = None

    @property
    def steps(self) -> Step:
        """Number of steps that the process had trained at the last look."""
        return self._steps or 0

    def look(self, now: float, steps: Step | None, *, cpu: float) -> str | None:
        """Return the reason to end the process, or None.

        Parameters
        ----------
        steps
            Number of steps that it has trained; None before its training has begun.
        cpu
            Processor time of the process, in seconds.
        """
        times, self._cpu = self._times, max(cpu, self._cpu)
        if steps is None:
            waited = now - self._begun
            is_late = waited > times.start_seconds
            return f"its process did not start within {waited:.0f} s" if is_late else None
        if self._steps is None:
            self._begun, self._cpu_begun = now, self._cpu
        if steps != self._steps:
            self._steps, self._last = steps, now
        silence = now - self._last
        if self.spent(now) <= times.seconds:
            return None
        if times.free and silence <= times.step_seconds:
            return None
        if times.free:
            return f"step {steps + 1} of its process took longer than {silence:.0f} s"
        work = f"{times.seconds:.0f} s of work"
        return f"it was not done after {work}, at step {steps + 1} of its process"

    def spent(self, now: float) -> float:
        """Return the work of this and the earlier processes at a time, in seconds."""
        if self._steps is None:
            return self._spent
        return self._spent + work_seconds(now - self._begun, self._cpu - self._cpu_begun)


class WatchedProcess(Protocol):
    """A process as `subprocess.Popen` gives it."""

    stdin: Any
    pid: int
    returncode: Any

    def poll(self) -> int | None:
        """Return how it ended; None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; raise `subprocess.TimeoutExpired` if that takes longer."""


Start = Callable[[IO[bytes]], tuple[WatchedProcess, int]]
"""Starts a process whose errors go into a file; returns it, and the number of its parent."""


def start_interpreter(errors: IO[bytes]) -> tuple[WatchedProcess, int]:
    """Start a new interpreter; it leads a session of its own."""
    process = subprocess.Popen(
        COMMAND,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=errors,
        start_new_session=True,
    )
    return process, os.getpid()


class LimitedProcesses:
    """Runs the jobs of one check, one after another, each in a process that is watched.

    The process of the second job starts with that of the first, and imports the trainer's code
    meanwhile: that often takes longer than the steps of a check.

    Parameters
    ----------
    is_cancelled
        Returns whether the check is to end; asked every `FIRST_CHECK_LOOK_SECONDS`.
    clock
        Returns the time in seconds.
    start
        Starts a process; by default a new interpreter.
    has_files
        Is set once a step is trained: then most files are known that the trainer opens.

    Attributes
    ----------
    planned
        Number of steps that the check trains, as far as is known; 0 before its first job.
    opened
        The files that the trainer's code has opened, as far as is known.
    """

    def __init__(
        self,
        times: CheckTimes,
        *,
        is_cancelled: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        start: Start = start_interpreter,
        has_files: threading.Event | None = None,
    ) -> None:
        self._times, self._is_cancelled, self._clock = times, is_cancelled, clock
        self._start, self._has_files = start, has_files or threading.Event()
        self._spent = 0.0
        self._next: _StartedProcess | None = None
        self._watch: Watch | None = None
        self._ended: Step = 0
        self.planned: Step = 0
        self.opened: list[OpenedFile] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the process that waits for a job, if any."""
        if self._next is not None:
            self._next.close()

    @property
    def steps(self) -> Step:
        """Number of steps that they have trained, those of ended processes too."""
        return self._ended + (0 if self._watch is None else self._watch.steps)

    def run(self, job: CheckJob) -> dict[str, Any]:
        """Run a job and return its findings, as `run_in_new_process` does.

        Of a job that took too long or was cancelled these are the findings until then.

        Raises
        ------
        CheckEndedError
            If it was ended without any finding.
        ConfigurationError
            If the trainer refused its hyper-parameters or config.
        TrainerError
            If the trainer failed; the error holds the traceback of the process.
        """
        shown = replace(job, parent=os.getpid())
        is_first = shown.part == "whole"
        if shown.spans:
            self.planned = self.steps + cost_of(shown.total if is_first else 0, shown.spans)
        started, self._next = self._next or _StartedProcess(shown, self._start), None
        try:
            with started:
                if is_first:
                    self._next = _StartedProcess(shown, self._start)
                started.give(shown)
                self._follow(started.process, shown)
        except CheckEndedError as error:
            try:
                findings = shown.findings()
            except (OSError, ValueError, DasktuneError):  # none, or ended while it wrote them
                raise error from None
            return accepted(shown, findings)
        return findings_of(shown, started.completed())

    def _follow(self, process: WatchedProcess, job: CheckJob) -> None:
        """Wait until the process ends; raise if it must not go on."""
        self._watch = watch = Watch(self._times, spent=self._spent, now=self._clock())
        is_running = True
        try:
            while is_running:
                if self._is_cancelled():
                    raise CheckEndedError("it was interrupted")
                with suppress(subprocess.TimeoutExpired):
                    process.wait(FIRST_CHECK_LOOK_SECONDS)
                    is_running = False
                cpu = _cpu_seconds(process.pid)
                reason = watch.look(self._clock(), _steps_in(job.steps_path), cpu=cpu)
                self._look_at_files(job)
                if is_running and reason is not None:
                    raise CheckEndedError(reason)
        finally:
            self._spent = watch.spent(self._clock())
            self._watch, self._ended = None, self.steps
            self._look_at_files(job)

    def _look_at_files(self, job: CheckJob) -> None:
        """Take the files that are known, once a step is trained."""
        with suppress(OSError, ValueError):
            opened = json.loads(job.opened_path.read_text())
            self.opened = [(path, is_near) for path, is_near in opened]
            self._has_files.set()


class _StartedProcess:
    """A process that imports the code of a check, and then waits for its job.

    It has a session of its own: a terminal's ctrl-C goes to the driver alone, and the processes
    that the trainer starts are killed with it.
    """

    def __init__(self, job: CheckJob, start: Start) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self.process, parent = start(self._errors)
        with suppress(OSError):  # it has ended, and its exit code says more
            # It reads this before it imports anything of the user's.
            self._input.write(replace(job, parent=parent).opening)
            self._input.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def give(self, job: CheckJob) -> None:
        """Give it its job; it may still import the code, which may take for ever."""
        threading.Thread(target=self._write_last, args=(job.order,), daemon=True).start()

    def _write_last(self, data: bytes) -> None:
        with suppress(OSError, ValueError), self._input as stream:  # it may have been closed
            stream.write(data)

    @property
    def _input(self) -> IO[bytes]:
        return cast(IO[bytes], self.process.stdin)

    def close(self) -> None:
        """Kill it if it runs, and what it has started in any case."""
        _kill(self.process)
        self.process.wait()
        with suppress(OSError):
            self._input.close()
        self._errors.seek(0)
        self.error_output = self._errors.read()
        self._errors.close()

    def completed(self) -> subprocess.CompletedProcess[bytes]:
        """Return how it ended, after `close`."""
        return subprocess.CompletedProcess(
            COMMAND, self.process.returncode, stdout=b"", stderr=self.error_output
        )


def _steps_in(path: Path) -> Step | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _cpu_seconds(pid: int) -> float:
    """Return the processor time of a process and of its ended children; 0 if it is gone."""
    with suppress(psutil.Error):
        return float(sum(psutil.Process(pid).cpu_times()[:4]))
    return 0.0


def _kill(process: WatchedProcess) -> None:
    """Kill a process if it runs, and what it has started in any case."""
    if hasattr(os, "killpg"):
        # It leads its group. The group keeps its number as long as anything of it is left, and
        # numbers are given out in turn, so nothing else has this one a moment after its end.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    elif process.poll() is None:
        with suppress(psutil.Error):
            psutil.Process(process.pid).kill()

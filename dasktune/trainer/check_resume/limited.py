"""The processes of a check that a study starts by itself: they are watched, and ended in time.

A trainer that hangs, or that crashes its interpreter, ends its process and nothing else. The
process shows its parent each step that it trains, in a file that grows by 1 byte a step. It ends
by itself when its parent is gone. What the trainer has started ends with the process.
"""

from __future__ import annotations

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
from typing import IO, Any, Self, cast

from dasktune._engine.timeouts import FIRST_CHECK_LOOK_SECONDS, IMPORT_SECONDS
from dasktune.trainer.check_resume.new_process import COMMAND, CheckJob, findings_of
from dasktune.trainer.check_resume.plan import cost_of
from dasktune.types import Step


class CheckEndedError(Exception):
    """A check was ended before it had a result; the text is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckTimes:
    """How long the processes of one check may take.

    Parameters
    ----------
    seconds
        Training time of all of them together, with the building of trainers.
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

    Parameters
    ----------
    times
        How long the processes of the check may take.
    spent
        Training time of the processes before this one, in seconds.
    now
        When this one was started, in seconds of the clock of the looks.

    Examples
    --------
    >>> watch = Watch(CheckTimes(seconds=30.0), spent=20.0, now=0.0)
    >>> watch.look(4.0, 0), watch.look(13.0, 2)
    (None, None)
    >>> watch.look(14.5, 2)
    'it was not done after 30 s, at step 3 of its process'
    """

    def __init__(self, times: CheckTimes, *, spent: float, now: float) -> None:
        self._times, self._spent = times, spent
        self._begun = self._last = now
        self._steps: Step | None = None

    @property
    def steps(self) -> Step:
        """Number of steps that the process had trained at the last look."""
        return self._steps or 0

    def look(self, now: float, steps: Step | None) -> str | None:
        """Return the reason to end the process, or None.

        Parameters
        ----------
        steps
            Number of steps that it has trained; None before its training has begun.
        """
        times = self._times
        if steps is None:
            waited = now - self._begun
            is_late = waited > times.start_seconds
            return f"its process did not start within {waited:.0f} s" if is_late else None
        if self._steps is None:
            self._begun = now
        if steps != self._steps:
            self._steps, self._last = steps, now
        silence = now - self._last
        if self.spent(now) <= times.seconds:
            return None
        if times.free and silence <= times.step_seconds:
            return None
        if times.free:
            return f"step {steps + 1} of its process took longer than {silence:.0f} s"
        return f"it was not done after {times.seconds:.0f} s, at step {steps + 1} of its process"

    def spent(self, now: float) -> float:
        """Return the training time of this and the earlier processes at a time, in seconds."""
        return self._spent + (0.0 if self._steps is None else now - self._begun)


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

    Attributes
    ----------
    planned
        Number of steps that the check trains, as far as is known; 0 before its first job.
    """

    def __init__(
        self,
        times: CheckTimes,
        *,
        is_cancelled: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._times, self._is_cancelled, self._clock = times, is_cancelled, clock
        self._spent = 0.0
        self._next: _StartedProcess | None = None
        self._watch: Watch | None = None
        self._ended: Step = 0
        self.planned: Step = 0

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

        Raises
        ------
        CheckEndedError
            If it took too long, or was cancelled.
        ConfigurationError
            If the trainer refused its hyper-parameters or config.
        TrainerError
            If the trainer failed; the error holds the traceback of the process.
        """
        shown = replace(job, parent=os.getpid())
        is_first = shown.part == "whole"
        if shown.spans:
            self.planned = self.steps + cost_of(shown.total if is_first else 0, shown.spans)
        started, self._next = self._next or _StartedProcess(shown), None
        with started:
            if is_first:
                self._next = _StartedProcess(shown)
            started.give(shown)
            self._follow(started.process, shown.steps_path)
        return findings_of(shown, started.completed())

    def _follow(self, process: subprocess.Popen[bytes], steps_path: Path) -> None:
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
                reason = watch.look(self._clock(), _steps_in(steps_path))
                if is_running and reason is not None:
                    raise CheckEndedError(reason)
        finally:
            self._spent = watch.spent(self._clock())
            self._watch, self._ended = None, self.steps


class _StartedProcess:
    """A process that imports the code of a check, and then waits for its job.

    It has a session of its own: a terminal's ctrl-C goes to the driver alone, and the processes
    that the trainer starts are killed with it.
    """

    def __init__(self, job: CheckJob) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self.process = subprocess.Popen(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            start_new_session=True,
        )
        with suppress(OSError):  # it has ended, and its exit code says more
            # It reads this before it imports anything of the user's.
            self._input.write(job.opening)
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


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process if it runs, and what it has started in any case."""
    if hasattr(os, "killpg"):
        # It leads its group. The group keeps its number as long as anything of it is left, and
        # numbers are given out in turn, so nothing else has this one a moment after its end.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    elif process.poll() is None:
        process.kill()

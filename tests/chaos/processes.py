"""The processes of a run: started, started again when they have ended, and seen off."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

AGAIN_SECONDS = 0.3
"""How long after its end a process is started again."""

MOST_LINES = 150
"""Lines that a process may need to say what it is doing."""


ROOT = Path(__file__).parents[2]


def _path() -> str:
    """Return where processes find modules: in the repository, too, whatever their folder is."""
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How to start a process once.

    Parameters
    ----------
    command
        Program and arguments.
    environment
        Variables beside our own.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a process ended.

    Parameters
    ----------
    name
        Which.
    code
        As `subprocess.Popen.returncode` has it: negative after a signal.
    was_ours
        Whether it was told to.
    """

    name: str
    code: int
    was_ours: bool


class Kept:
    """A process that is started again whenever it has ended.

    Parameters
    ----------
    role
        What it is: ``scheduler``, ``driver``, ``worker-0``.
    start
        Says how to start it, given the name of this time: ``worker-0.2``.
    folder
        Where its output goes: a file for each time, ``worker-0.2.out`` and ``.log``.
    """

    def __init__(self, role: str, start: Callable[[str], Start], folder: Path) -> None:
        self.role = role
        self.name = role
        self.times = 0
        self.paused = False
        self._start = start
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._ended_at = 0.0
        self._was_told = False

    @property
    def pid(self) -> int | None:
        """The process id, or None while the process is down."""
        return None if self._process is None else self._process.pid

    @property
    def output(self) -> Path:
        """Where the standard output of this time goes."""
        return self._folder / f"{self.name}.out"

    @property
    def log(self) -> Path:
        """Where the standard error of this time goes."""
        return self._folder / f"{self.name}.log"

    def launch(self) -> None:
        """Start it."""
        self.name = f"{self.role}.{self.times}"
        self.times += 1
        self.paused = self._was_told = False
        how = self._start(self.name)
        with self.output.open("wb") as output, self.log.open("wb") as log:
            self._process = subprocess.Popen(
                how.command,
                env={**os.environ, **how.environment, "PYTHONPATH": _path()},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
                start_new_session=True,
            )

    def look(self) -> End | None:
        """Return its end if it has ended since the last look."""
        if self._process is None or self._process.poll() is None:
            return None
        end = End(name=self.name, code=self._process.returncode, was_ours=self._was_told)
        self._process, self._ended_at = None, time.monotonic()
        return end

    def launch_again(self) -> None:
        """Start it if it has ended a moment ago."""
        if self._process is None and time.monotonic() - self._ended_at > AGAIN_SECONDS:
            self.launch()

    def send(self, number: signal.Signals) -> None:
        """Send it a signal; it may be ending at this moment."""
        if self._process is None:
            return
        self._was_told |= number in (signal.SIGKILL, signal.SIGTERM)
        if number in (signal.SIGSTOP, signal.SIGCONT):
            self.paused = number == signal.SIGSTOP
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def abort(self, seconds: float = 60.0) -> str:
        """End it so that it says what it was doing; return the end of its log."""
        self.send(signal.SIGCONT)
        self.send(signal.SIGABRT)
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        return self.tail(MOST_LINES)

    def last_words(self) -> str:
        """Return the last line of its log that says what went wrong, or just the last one."""
        lines = [one for one in self.tail(60).splitlines() if one.strip()]
        errors = [one for one in lines if one.startswith("error: ") or "Reason: " in one]
        return [*lines, *errors][-1] if lines else ""

    def tail(self, lines: int) -> str:
        """Return the last lines of its log."""
        with suppress(OSError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        return ""

    def destroy(self) -> None:
        """End it, and all that it has started, at once."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

"""One run: a study on real processes, faults at random times, and what came of it."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.faults import Done, Fault
from tests.chaos.lines import HOST, Exchange, Line
from tests.chaos.ports import free_port
from tests.chaos.processes import End, Kept, Start
from tests.chaos.witness import PATH, PRELOAD

TURN_SECONDS = 0.02
STEPS = "steps"
"""Folder of what workers write down."""

STUDY = "chaos_study.py"
"""The study file that is run: the user's, with another storage."""

_STUDY_FILE = '''"""The study of {path}, kept in this folder."""

from pathlib import Path

from dasktune.cli.study_file import load
from dasktune._study.create import open_in, opening_with

HERE = Path(__file__).parent

with opening_with(open_in(HERE)):
    FILE = load(Path({path!r}), {settings!r})


def study():
    with opening_with(open_in(HERE)):
        return FILE.study()


def tuner():
    return FILE.tuner()
'''

NEVER_ENDED = "it did not end within {seconds:.0f} s; what each process was doing:\n{doing}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The parts of one chaos run.

    Parameters
    ----------
    file
        The study file.
    settings
        ``key=value`` for it.
    folder
        For all that the run leaves behind; it is there, and empty.
    workers
        How many.
    faults
        What happens when.
    seconds
        The run must have ended by then.
    silence
        After how many seconds without a sign a worker is given up.
    dask
        Settings of Dask that are not its own.
    """

    file: Path
    settings: tuple[str, ...]
    folder: Path
    workers: int
    faults: tuple[Fault, ...]
    seconds: float
    silence: float
    dask: Mapping[str, object] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Course:
    """How a run went; it grows meanwhile.

    Attributes
    ----------
    done
        What was done to processes.
    ends
        How processes ended that were not told to.
    seconds
        From the first process to the end of the tuner.
    problem
        Why it did not come to an end; empty if it did.
    """

    done: list[Done] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    seconds: float = 0.0
    problem: str = ""

    @property
    def kills(self) -> int:
        """How many processes were killed."""
        return sum(one.fault.is_kill for one in self.done)


def run(setup: Setup) -> Course:
    """Run a study to the end of its tuner while faults happen; check nothing."""
    (setup.folder / STEPS).mkdir()
    settings = list(setup.settings)
    text = _STUDY_FILE.format(path=str(setup.file.resolve()), settings=settings)
    (setup.folder / STUDY).write_text(text)
    with ExitStack() as stack:
        exchange = stack.enter_context(Exchange())
        world = _World(setup, exchange)
        stack.callback(world.destroy)
        return world.run()


class _World:
    """The processes of a run, and the hand that disturbs them."""

    def __init__(self, setup: Setup, exchange: Exchange) -> None:
        self._setup = setup
        self._exchange = exchange
        self._port = free_port()
        self._course = Course()
        self._lines: dict[str, tuple[Line, Line]] = {}
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._began = time.monotonic()
        self._trained_at: float | None = None
        folder = setup.folder
        self._scheduler = Kept("scheduler", self._start_scheduler, folder)
        self._driver = Kept("driver", self._start_driver, folder)
        self._workers = [
            Kept(f"worker-{number}", self._start_worker, folder) for number in range(setup.workers)
        ]

    @property
    def _all(self) -> list[Kept]:
        return [self._scheduler, *self._workers, self._driver]

    def run(self) -> Course:
        """Run the processes until the tuner ends or the time limit passes."""
        for one in self._all:
            one.launch()
        left = list(self._setup.faults)
        while True:
            now = time.monotonic()
            for one in self._all:
                end = one.look()
                if end is not None and self._is_over(one, end):
                    self._course.seconds = now - self._began
                    return self._course
                one.launch_again()
            if now - self._began > self._setup.seconds:
                self._give_up()
                return self._course
            self._disturb(now, left)
            time.sleep(TURN_SECONDS)

    def _is_over(self, one: Kept, end: End) -> bool:
        """Handle the end of a process; return whether the whole run has ended."""
        if one is self._driver:
            if _is_json(one.output.read_text()):
                return True
            if end.code == 2:
                self._course.problem = f"the driver cannot run this:\n{one.tail(20)}"
                return True
        if not end.was_ours:
            at = time.monotonic() - (self._trained_at or self._began)
            words = one.last_words()
            self._course.ends.append(f"{at:6.2f} s  {end.name}, code {end.code}: {words}")
            if one is self._driver and not words.startswith("error: "):
                self._course.problem = (
                    f"the driver came to an end that it does not know:\n{one.tail(40)}"
                )
                return True
        return False

    # ----------------------------------------------------------------------- faults

    def _disturb(self, now: float, left: list[Fault]) -> None:
        """Do what is due: ends of what lasts, and the next fault."""
        for due in [one for one in self._later if one[0] <= now]:
            self._later.remove(due)
            due[1]()
        if self._trained_at is None:
            if any(one.stat().st_size for one in (self._setup.folder / STEPS).iterdir()):
                self._trained_at = now
            return
        if left and left[0].at <= now - self._trained_at:
            target = self._target(left[0])
            if target is not None:
                fault = left.pop(0)
                self._course.done.append(Done(fault=fault, process=target.name, at=time.time()))
                self._do(fault, target, now)

    def _target(self, fault: Fault) -> Kept | None:
        """Return the process that a fault hits; None if all candidates are down."""
        match fault.target:
            case "scheduler":
                some = [self._scheduler]
            case "driver":
                some = [self._driver]
            case _:
                some = self._workers
        some = [one for one in some if one.pid is not None and not one.paused]
        return some[int(fault.which * len(some))] if some else None

    def _do(self, fault: Fault, target: Kept, now: float) -> None:
        end = now + fault.seconds
        match fault.name.partition("-")[0]:
            case "kill":
                target.send(signal.SIGKILL)
            case "end":
                target.send(signal.SIGTERM)
            case "pause" | "freeze":
                target.send(signal.SIGSTOP)
                name = target.name
                self._later.append((end, lambda: self._wake(target, name)))
            case "hide" | "lose":
                lines = self._lines[target.name]
                for line in lines:
                    line.hold()
                self._later.append((end, lambda: _release(lines)))
            case "cut":
                for line in self._lines[target.name]:
                    line.reset()

    def _wake(self, target: Kept, name: str) -> None:
        if target.name == name:
            target.send(signal.SIGCONT)

    # -------------------------------------------------------------------- processes

    def _start_scheduler(self, name: str) -> Start:
        options = (f"--host={HOST}", f"--port={self._port}", "--no-dashboard")
        idle = f"--idle-timeout={self._setup.seconds:.0f}"
        command = (sys.executable, "-m", "distributed.cli.dask_scheduler", *options, idle)
        return Start(command=command, environment=self._settings())

    def _start_worker(self, name: str) -> Start:
        """Return how to start a worker that is reached, and reaches others, by lines only."""
        role = name.partition(".")[0]
        for line in self._lines.pop(role, ()):
            line.close()
        listen = free_port()
        lines = Line(self._exchange, self._port), Line(self._exchange, listen)
        for old in [one for one in self._lines if one.startswith(f"{role}.")]:
            for line in self._lines.pop(old):
                line.close()
        self._lines[name] = lines
        scratch = self._setup.folder / "scratch"
        options = (
            *("--no-nanny", "--nthreads=1", "--memory-limit=0", "--no-dashboard"),
            *(f"--name={name}", f"--local-directory={scratch}", "--death-timeout=30"),
            f"--listen-address=tcp://{HOST}:{listen}",
            f"--contact-address=tcp://{HOST}:{lines[1].port}",
            f"--preload={PRELOAD}",
        )
        scheduler = f"tcp://{HOST}:{lines[0].port}"
        command = (sys.executable, "-m", "distributed.cli.dask_worker", scheduler, *options)
        steps = {PATH: str(self._setup.folder / STEPS / name)}
        return Start(command=command, environment={**self._settings(), **steps})

    def _start_driver(self, name: str) -> Start:
        code = "from dasktune.cli import main; main()"
        study = str(self._setup.folder / STUDY)
        options = (
            *(f"--scheduler=tcp://{HOST}:{self._port}", "--json", "--no-report", "--no-progress"),
            f"--silence-timeout={self._setup.silence:g}",
        )
        command = (sys.executable, "-c", code, "run", study, *options)
        return Start(command=command, environment=self._settings())

    def _settings(self) -> dict[str, str]:
        """Return the variables of all processes: Dask's settings, and to speak when aborted."""
        found = {_variable(name): str(value) for name, value in self._setup.dask.items()}
        return {**found, "PYTHONFAULTHANDLER": "1"}

    def _give_up(self) -> None:
        """Collect the stack of every process, then end all processes."""
        doing = "\n".join(f"--- {one.name}\n{one.abort()}" for one in self._all)
        self._course.problem = NEVER_ENDED.format(seconds=self._setup.seconds, doing=doing)
        self._course.seconds = time.monotonic() - self._began

    def destroy(self) -> None:
        """End all processes."""
        for one in self._all:
            one.destroy()


def _release(lines: Iterable[Line]) -> None:
    for line in lines:
        line.release()


def _variable(setting: str) -> str:
    """Return the variable that gives Dask a setting."""
    return f"DASK_{setting.replace('.', '__').replace('-', '_').upper()}"


def _is_json(text: str) -> bool:
    """Whether a driver has written its results: it does when its tuner has ended."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True

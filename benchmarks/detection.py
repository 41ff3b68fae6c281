"""How long until a stage runs elsewhere whose worker is killed, falls silent, or hangs."""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from figures import Figure, main
from trainers import Nothing

import dasktune as dt
from dasktune.cluster.local import local_client

TRIALS, SHORT_TRIALS = 2, 1
"""One fewer than workers: one is free, so that what is measured is noticing and sending."""

STEPS = 100_000
STEP_SECONDS = 0.05
BEFORE = 20
"""Steps that a worker has trained when something is done to it."""

ROUNDS, SHORT_ROUNDS = 3, 1
KILLED_SECONDS, SILENT_SECONDS, HUNG_SECONDS = 5.0, 60.0, 5.0
SILENCE, SHORT_SILENCE = dt.Timeouts().silence_seconds, 3.0
LIMIT, SHORT_LIMIT = 5.0, 1.0
"""Seconds that a step may take."""

PATIENCE_SECONDS = 300.0
POLL_SECONDS = 0.01


class Marking(Nothing):
    """Writes down when each step begins, of which trial and in which process.

    It hangs once, at step `BEFORE` of the first trial, if ``config["hangs"]`` is a path.
    """

    ignored_config = ("log", "hangs")

    def build(self, hp: Mapping[str, Any]) -> None:
        """Open the file, to which all processes append."""
        self.value, self.trial = 0.0, hp["trial"]
        self.log = os.open(self.config["log"], os.O_APPEND | os.O_CREAT | os.O_WRONLY)

    def __del__(self) -> None:
        if hasattr(self, "log"):
            os.close(self.log)

    def train(self) -> None:
        """Write, and sleep: once for ever."""
        self.value += 1
        os.write(self.log, b"%d %d %d %.6f\n" % (self.trial, os.getpid(), self.value, time.time()))
        hangs = self.config["hangs"]
        if hangs and self.trial == 0 and self.value == BEFORE and not os.path.exists(hangs):
            Path(hangs).touch()
            while True:
                time.sleep(STEP_SECONDS)
        time.sleep(STEP_SECONDS)


@dataclass(frozen=True, slots=True)
class Mark:
    """A step that begins: of which trial, in which process, which one, and when."""

    trial: int
    process: int
    step: int
    at: float


def marks(log: Path) -> list[Mark]:
    """Return the marks that trainers have written so far."""
    if not log.exists():
        return []
    whole = log.read_text().rpartition("\n")[0]
    rows = (line.split() for line in whole.splitlines())
    return [Mark(int(row[0]), int(row[1]), int(row[2]), float(row[3])) for row in rows]


def measure(short: bool) -> list[Figure]:
    """Do each thing to a worker of a running study; wait for its stage to begin elsewhere."""
    rounds, trials = (SHORT_ROUNDS, SHORT_TRIALS) if short else (ROUNDS, TRIALS)
    silence, limit = (SHORT_SILENCE, SHORT_LIMIT) if short else (SILENCE, LIMIT)
    killed = [_after(_kill, trials, dt.Timeouts()) for _ in range(rounds)]
    silent = [_after(_pause, trials, dt.Timeouts(silence_seconds=silence))]
    hung = [_after(_wait, trials, dt.Timeouts(step_seconds=limit)) for _ in range(rounds)]
    return [
        _figure("a killed worker's stage runs elsewhere after", killed, KILLED_SECONDS, "SIGKILL"),
        _figure(
            "a silent worker's stage runs elsewhere after",
            silent,
            SILENT_SECONDS,
            f"SIGSTOP, silence_seconds={silence:g}",
        ),
        _figure(
            "a hung step's stage runs elsewhere, after its limit by",
            [seconds - limit for seconds in hung],
            HUNG_SECONDS,
            f"step_seconds={limit:g}",
        ),
    ]


def _figure(name: str, found: list[float], bound: float, how: str) -> Figure:
    every = ", ".join(f"{seconds:.2f}" for seconds in found)
    note = f"{how}; {every}: the worst of {len(found)}; a worker is free"
    return Figure(name=name, value=max(found), unit="s", at_most=bound, note=note)


def _after(disturb: Callable[[int], float], trials: int, timeouts: dt.Timeouts) -> float:
    """Run a study, do something to the process of its first trial; return the seconds since.

    They end when that trial's next step begins in another process.
    """
    # What is done to workers is warned of.
    logging.getLogger("dasktune").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder, local_client(trials + 1) as client:
        log, delays = Path(folder) / "log", list[float]()
        study = dt.create_study(
            Marking,
            name="detection",
            storage=Path(folder) / "store",
            metric="value",
            direction="minimize",
            config={"log": str(log), "hangs": f"{folder}/hung" if disturb is _wait else None},
        )

        def watch() -> None:
            try:
                victim = _wait_for(log, lambda one: one.trial == 0 and one.step >= BEFORE)
                since = disturb(victim.process) or victim.at
                again = _wait_for(log, lambda one: one.trial == 0 and _is_other(one, victim))
                delays.append(again.at - since)
                if disturb is _pause:
                    os.kill(victim.process, signal.SIGCONT)
            finally:
                study.stop()

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        tuner = dt.algos.Grid(dt.Space(trial=list(range(trials))), max_steps=STEPS)
        study.optimize(tuner, client=client, timeouts=timeouts, progress=False, last_line=False)
        watcher.join()
        study.close()
    if not delays:
        raise RuntimeError(f"the stage must run elsewhere within {PATIENCE_SECONDS:.0f} s")
    return delays[0]


def _is_other(one: Mark, victim: Mark) -> bool:
    return one.process != victim.process and one.at > victim.at


def _wait_for(log: Path, wanted: Callable[[Mark], bool]) -> Mark:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        mark = next(filter(wanted, marks(log)), None)
        if mark is not None:
            return mark
        time.sleep(POLL_SECONDS)
    raise TimeoutError(f"nothing of that kind was trained within {PATIENCE_SECONDS:.0f} s")


def _kill(process: int) -> float:
    os.kill(process, signal.SIGKILL)
    return time.time()


def _pause(process: int) -> float:
    os.kill(process, signal.SIGSTOP)
    return time.time()


def _wait(process: int) -> float:
    """Do nothing: it hangs since the step that was waited for began."""
    return 0.0


if __name__ == "__main__":
    sys.exit(main("detection", measure))

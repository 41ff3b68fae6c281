"""The faults of a run: a seed decides which process is hurt, how, and when."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass

KILLS = {
    "kill-worker": "SIGKILL of a worker",
    "kill-scheduler": "SIGKILL of the scheduler",
    "kill-driver": "SIGKILL of the driver",
    "end-worker": "SIGTERM of a worker",
    "end-driver": "SIGTERM of the driver",
}
"""What ends a process; it is started again."""

PAUSES = {
    "pause-worker": "SIGSTOP of a worker, for less than the silence timeout",
    "freeze-worker": "SIGSTOP of a worker until it was given up, then SIGCONT",
    "pause-driver": "SIGSTOP of the driver for a while",
    "pause-scheduler": "SIGSTOP of the scheduler for a while",
    "hide-worker": "nothing passes between a worker and the rest, for less than the timeout",
    "lose-worker": "nothing passes between a worker and the rest until it was given up",
    "cut-worker": "the connections of a worker are reset",
}
"""What disturbs a process that lives on."""

FAULTS = {**KILLS, **PAUSES}
"""What may happen, in words, by name."""

UNHEARD = ("freeze-worker", "lose-worker", "cut-worker")
"""After these a worker that was given up may go on, and save, without being heard of."""

_WEIGHTS = {"kill-worker": 8, "kill-scheduler": 2, "kill-driver": 2, "end-worker": 2}
"""How often some happen, compared with the others."""

KINDS = ("worker", "scheduler", "driver")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that is done to a process.

    Parameters
    ----------
    at
        When: seconds since the first step was trained.
    name
        One of `FAULTS`.
    seconds
        How long it lasts; 0 for what does not last.
    which
        Decides to which worker; from 0 to below 1.
    """

    at: float
    name: str
    seconds: float
    which: float

    @property
    def is_kill(self) -> bool:
        """Whether it ends a process."""
        return self.name in KILLS

    @property
    def target(self) -> str:
        """One of `KINDS`."""
        return self.name.partition("-")[2]

    def __str__(self) -> str:
        lasting = f" for {self.seconds:.1f} s" if self.seconds else ""
        return f"{self.at:6.2f} s  {self.name}{lasting}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A fault that happened.

    Parameters
    ----------
    fault
        Which.
    process
        Name of the process that it happened to.
    at
        When (epoch seconds).
    """

    fault: Fault
    process: str
    at: float

    def __str__(self) -> str:
        return f"{self.fault}, {self.process}"


def timetable(
    seed: int, *, kills: int, gap: float, silence: float, only: Collection[str] = tuple(FAULTS)
) -> list[Fault]:
    """Return the timetable of faults: `kills` kills, and half as many pauses.

    Worker, scheduler and driver each have a share of the kills, if there are as many.

    Parameters
    ----------
    seed
        Decides all of it.
    kills
        How many processes are killed.
    gap
        Mean time between two faults, in seconds.
    silence
        After how many seconds without a sign a worker is given up.
    only
        What may happen.

    Examples
    --------
    >>> for fault in timetable(3, kills=2, gap=2.0, silence=5.0, only=["kill-worker"]):
    ...     print(fault)
      1.51 s  kill-worker
      3.98 s  kill-worker
    """
    rng = random.Random(seed)
    names = _drawn(rng, [name for name in KILLS if name in only], kills)
    names += _drawn(rng, [name for name in PAUSES if name in only], kills // 2)
    rng.shuffle(names)
    found, at = [], 0.0
    for name in names:
        at += rng.uniform(0.1, 2 * gap - 0.1)
        seconds = _seconds(rng, name, silence)
        found.append(Fault(at=at, name=name, seconds=seconds, which=rng.random()))
    return found


def _drawn(rng: random.Random, names: list[str], count: int) -> list[str]:
    """Return names at random: first one for each target, as far as that goes."""
    if not names:
        return []
    targets = {kind: [name for name in names if name.endswith(kind)] for kind in KINDS}
    first = [rng.choice(some) for some in targets.values() if some]
    weights = [_WEIGHTS.get(name, 1) for name in names]
    return (first + rng.choices(names, weights, k=max(0, count - len(first))))[:count]


def _seconds(rng: random.Random, name: str, silence: float) -> float:
    match name:
        case "pause-worker" | "hide-worker" | "pause-driver" | "pause-scheduler":
            return rng.uniform(0.1, 0.5) * silence
        case "freeze-worker" | "lose-worker":
            return rng.uniform(1.2, 2.5) * silence
        case _:
            return 0.0

"""How many of 64 slots train while there is work, for one study, and for 2 and 4 at once.

Workers, scheduler and drivers are one process, so all of them wait while one thread holds Python's
lock. The driver sends the first stages of all slots at once, which takes a quarter of a second.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import fmean, median
from typing import Any

import dask
import numpy as np
from distributed import Client
from figures import Figure, main
from threads import client_of_threads
from trainers import Nothing

import dasktune as dt
from dasktune.sequences import Piecewise

WORKERS, SHORT_WORKERS = 64, 4
BEGINNINGS = 2
"""First stages for each worker: each has two second ones, and each of those two third ones."""

STUDIES, REPEATS = (2, 4), 3
"""Numbers of studies that share the slots, and how often each is measured."""

STEPS = 3
"""Of a stage."""

STEP_SECONDS, SHORT_STEP_SECONDS = 0.5, 0.02
SHARED_STEP_SECONDS = 3.0
"""Of a step of studies that share the slots: several drivers leave these less of the process."""

SPREAD = 0.4
"""Deviation of the logarithm of how long a step takes, by trial."""

QUIET = {
    "distributed.admin.system-monitor.interval": "10s",
    "distributed.worker.profile.enabled": False,
    "distributed.scheduler.work-stealing": False,
}
"""64 workers that look at their process twice a second leave little of it to others."""

IDLE = 0.05
MEMORY = Path("/dev/shm")
"""Where states are written if it is there: it is not the disk that is measured."""

Span = tuple[float, ...]
"""From when until when a slot was busy."""


class Sleeper(Nothing):
    """Sleeps, which needs neither a core nor Python, and writes down from when until when."""

    ignored_config = ("log", "seconds")

    def setup(self, hp: Mapping[str, Any]) -> None:
        """Take over how long a step takes."""
        self.pace = hp.get("pace", getattr(self, "pace", 1.0))

    def train(self) -> None:
        """Sleep."""
        began = time.time()
        time.sleep(self.config["seconds"] * abs(self.pace))
        self.value += self.pace
        log = os.open(self.config["log"], os.O_APPEND | os.O_CREAT | os.O_WRONLY)
        os.write(log, b"%.6f %.6f\n" % (began, time.time()))
        os.close(log)


def space(beginnings: int, seed: int = 0) -> dt.Space:
    """Return trials that begin differently, and part twice: a stage each is `STEPS` long."""
    rng = np.random.default_rng(seed)
    return dt.Space(
        pace=[
            Piecewise([pace, second * pace, third * pace], boundaries=[STEPS, 2 * STEPS])
            for pace in rng.lognormal(-(SPREAD**2) / 2, SPREAD, beginnings).tolist()
            for second in (1, -1)
            for third in (1, -1)
        ]
    )


def measure(short: bool) -> list[Figure]:
    """Measure one study next to Dask alone, then several studies at once."""
    workers, repeats = (SHORT_WORKERS, 1) if short else (WORKERS, REPEATS)
    seconds = SHORT_STEP_SECONDS if short else STEP_SECONDS
    shared_seconds = SHORT_STEP_SECONDS if short else SHARED_STEP_SECONDS
    return [
        *_single(workers, seconds),
        *(_shared(workers, shared_seconds, count, repeats) for count in STUDIES),
    ]


def _single(workers: int, seconds: float) -> list[Figure]:
    with (
        tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder,
        dask.config.set(QUIET),
        client_of_threads(workers) as client,
    ):
        plain = _of_dask(client, workers, seconds)
        cpu, own = time.process_time(), time.thread_time()
        steps, begins = _run(client, Path(folder), seconds, BEGINNINGS * workers, 0)
        cpu, own = time.process_time() - cpu, time.thread_time() - own
    mean = fmean(ended - began for began, ended in steps) * STEPS
    return [
        Figure(
            name=f"idle share of {workers} slots while there is work",
            value=1 - busy(steps, begins, workers),
            at_most=IDLE,
            note=f"{len(begins):,} stages of {mean:.2f} s; busy by the training code's own clock",
        ),
        Figure(
            name=f"idle share of {workers} slots, the same by plain distributed",
            value=plain,
            note="all tasks known to it from the beginning; nothing saved",
        ),
        Figure(
            name="CPU per stage, all of the process",
            value=cpu / len(begins) * 1e3,
            unit="ms",
            note=f"{workers} workers, scheduler and driver; {STEPS} steps, each reported",
        ),
        Figure(
            name="CPU per stage, the driver's loop alone",
            value=own / len(begins) * 1e3,
            unit="ms",
            note="deciding, writing to the database, submitting",
        ),
    ]


def _shared(workers: int, seconds: float, count: int, repeats: int) -> Figure:
    """Return the idle share of slots that several studies share, each with a driver."""
    idle = []
    for _ in range(repeats):
        with (
            tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder,
            dask.config.set(QUIET),
            client_of_threads(workers) as client,
            ThreadPoolExecutor(count) as pool,
        ):
            run = partial(_run, client, Path(folder), seconds, workers // count)
            spans, begins = zip(*pool.map(run, range(count)), strict=True)
            idle.append(1 - busy(chain(*spans), sorted(chain(*begins)), workers))
    return Figure(
        name=f"idle share of {workers} slots, {count} studies at once, while there is work",
        value=median(idle),
        at_most=IDLE,
        note=f"median of {repeats}, {min(idle):.3f} to {max(idle):.3f}; stages of "
        f"{STEPS * seconds:g} s in the mean",
    )


def _run(
    client: Client, folder: Path, seconds: float, beginnings: int, number: int
) -> tuple[list[Span], list[float]]:
    """Run a study; return its steps from when until when, and when its stages began."""
    log = folder / f"log-{number}"
    study = dt.create_study(
        Sleeper,
        name=f"utilisation-{number}",
        storage=folder / f"store-{number}",
        metric="value",
        direction="minimize",
        config={"log": str(log), "seconds": seconds},
    )
    tuner = dt.algos.Grid(space(beginnings, seed=number), max_steps=3 * STEPS)
    study.optimize(tuner, client=client, progress=False, last_line=False)
    # Stages that were taken back before they began have no time.
    begins = sorted(stage.started for stage in study.stages() if stage.started)
    study.close()
    return [tuple(map(float, line.split())) for line in log.read_text().splitlines()], begins


def _of_dask(client: Client, workers: int, seconds: float) -> float:
    """Return the idle share of tasks that sleep as long as the stages."""
    paces = [
        abs(configuration.sequences["pace"](0))
        for configuration in space(BEGINNINGS * workers).configurations()
    ]
    # A quarter of the trials are as many as there are beginnings; of each there are 7 stages.
    lengths = [pace * seconds * STEPS for pace in paces[::4] for _ in range(7)]
    times = client.gather(client.map(_sleep, lengths, pure=False))
    return 1 - busy(times, sorted(began for began, _ in times), workers)


def _sleep(seconds: float) -> Span:
    """Sleep as long as a stage; return from when until when."""
    began = time.time()
    time.sleep(seconds)
    return began, time.time()


def busy(spans: Iterable[Span], begins: list[float], workers: int) -> float:
    """Return which share of the slots' time is in `spans`, while all of them could be busy.

    That is from the first begin until fewer stages than slots have not begun.
    """
    first, last = begins[0], begins[-workers]
    inside = sum(max(0.0, min(ended, last) - max(began, first)) for began, ended in spans)
    return min(1.0, inside / (workers * (last - first)))  # a sum may be rounded up


if __name__ == "__main__":
    sys.exit(main("utilisation", measure))

"""How many slots train while there is work: 64 real ones, and 512 in a simulation.

Real slots run one study, and 2 and 4 studies at once that share them.
"""

from __future__ import annotations

import gc
import heapq
import math
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import dask
import numpy as np
from figures import Figure, main
from trainers import Nothing

import dasktune as dt
from dasktune.engine.engine import Engine
from dasktune.engine.outcome import Outcome, with_save_points
from dasktune.graph.attempts import LOOKAHEAD_SECONDS, DispatchOptions
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.events import (
    Event,
    RunStage,
    Saved,
    SaveMissed,
    SavePoint,
    Started,
    Tick,
    TrainingEnded,
    WorkerJoined,
)
from dasktune.graph.keys import root_key
from dasktune.sequences import Piecewise
from dasktune.types import Objective

WORKERS, SHORT_WORKERS = 64, 4
SIMULATED, SHORT_SIMULATED = 512, 16
BEGINNINGS = 2
"""First stages for each worker: each has two second ones, and each of those two third ones."""

SIMULATED_BEGINNINGS = 1

STUDIES, REPEATS = (2, 4), 3
"""Numbers of studies that share the real slots, and how often each is measured."""

SHARED_STEP_SECONDS = 3.0
"""Of a step of these studies: several drivers in one process leave the slots less of it."""

STEPS = 3
"""Of a stage."""

STEP_SECONDS, SHORT_STEP_SECONDS = 0.5, 0.02
SPREAD = 0.4
"""Deviation of the logarithm of how long a step takes, by trial."""

LATENCY_SECONDS = 0.01
"""How long a word takes in the simulation, either way."""

LEAST_WAIT = 0.001
"""How long a driver waits at least, if nothing is heard."""

QUIET = {
    "distributed.admin.system-monitor.interval": "10s",
    "distributed.worker.profile.enabled": False,
    "distributed.scheduler.work-stealing": False,
}
"""64 workers that look at their process twice a second leave little of it to others."""

IDLE = 0.05
MEMORY = Path("/dev/shm")
"""Where states are written if it is there: it is not the disk that is measured."""


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


def sleep(seconds: float) -> tuple[float, float]:
    """Sleep as long as a stage; return from when until when."""
    began = time.time()
    time.sleep(seconds)
    return began, time.time()


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
    """Measure on real slots, on those of Dask alone, and on simulated ones."""
    workers, simulated = (SHORT_WORKERS, SHORT_SIMULATED) if short else (WORKERS, SIMULATED)
    seconds = SHORT_STEP_SECONDS if short else STEP_SECONDS
    repeats, shared_seconds = (1, seconds) if short else (REPEATS, SHARED_STEP_SECONDS)
    return [
        *_real(workers, seconds),
        *(_shared(workers, shared_seconds, count, repeats) for count in STUDIES),
        *_simulated(simulated, seconds),
    ]


# ---------------------------------------------------------------------------- real slots


def _real(workers: int, seconds: float) -> list[Figure]:
    tuner = dt.algos.Grid(space(BEGINNINGS * workers), max_steps=3 * STEPS)
    with (
        tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder,
        _in_process_client(workers) as client,
    ):
        plain = _of_dask(client, workers, seconds)
        log = Path(folder) / "log"
        study = dt.create_study(
            Sleeper,
            name="utilisation",
            storage=Path(folder) / "store",
            metric="value",
            direction="minimize",
            config={"log": str(log), "seconds": seconds},
        )
        cpu, own = time.process_time(), time.thread_time()
        study.optimize(tuner, client=client, progress=False, last_line=False)
        cpu, own = time.process_time() - cpu, time.thread_time() - own
        begins = sorted(stage.started for stage in study.stages())
        steps = [tuple(map(float, line.split())) for line in log.read_text().splitlines()]
        study.close()
    idle = 1 - _busy(steps, begins, workers)
    mean = statistics.fmean(ended - began for began, ended in steps) * STEPS
    stages = len(begins)
    return [
        Figure(
            name=f"idle share of {workers} slots while there is work",
            value=idle,
            at_most=IDLE,
            note=f"{stages:,} stages of {mean:.2f} s; busy by the training code's own clock; "
            "workers, scheduler and driver are one process",
        ),
        Figure(
            name=f"idle share of {workers} slots, the same by plain distributed",
            value=plain,
            note="all tasks known to it from the beginning; nothing saved",
        ),
        Figure(
            name="CPU per stage, all of the process",
            value=cpu / stages * 1e3,
            unit="ms",
            note=f"{workers} workers, scheduler and driver; {STEPS} steps, each reported",
        ),
        Figure(
            name="CPU per stage, the driver's loop alone",
            value=own / stages * 1e3,
            unit="ms",
            note="deciding, writing to the database, submitting",
        ),
    ]


def _shared(workers: int, seconds: float, count: int, repeats: int) -> Figure:
    """Return the idle share of real slots that several studies share, each with a driver."""
    load, cpu = os.getloadavg()[0], time.process_time()
    idle = []
    for _ in range(repeats):
        with (
            tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder,
            _in_process_client(workers) as client,
            ThreadPoolExecutor(count) as pool,
        ):
            run = partial(_run_one_of, client, Path(folder), seconds, workers // count)
            spans, begins = zip(*pool.map(run, range(count)), strict=True)
            idle.append(1 - _busy(chain(*spans), sorted(chain(*begins)), workers))
    cpu = time.process_time() - cpu
    return Figure(
        name=f"idle share of {workers} slots, {count} studies at once, while there is work",
        value=statistics.median(idle),
        at_most=IDLE,
        note=f"median of {repeats}, {min(idle):.3f} to {max(idle):.3f}; stages of "
        f"{STEPS * seconds:g} s in the mean; workers, scheduler and "
        f"{count} drivers are one process, {cpu / repeats:.0f} s of its CPU each; "
        f"load before {load:.1f} on {os.cpu_count()} cores",
    )


def _run_one_of(
    client: Any, folder: Path, seconds: float, beginnings: int, number: int
) -> tuple[list[tuple[float, ...]], list[float]]:
    """Run one of several studies; return its steps from when until when, and its stages' begins."""
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
    begins = [stage.started for stage in study.stages() if stage.started]
    study.close()
    return [tuple(map(float, line.split())) for line in log.read_text().splitlines()], begins


@contextmanager
def _in_process_client(workers: int) -> Iterator[Any]:
    from distributed import Client, LocalCluster

    with (
        dask.config.set(QUIET),
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            memory_limit=0,
            processes=False,
            dashboard_address="127.0.0.1:0",
            worker_dashboard_address="127.0.0.1:0",
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def _of_dask(client: Any, workers: int, seconds: float) -> float:
    """Return the idle share of tasks that sleep as long as the stages."""
    paces = [
        abs(configuration.sequences["pace"](0))
        for configuration in space(BEGINNINGS * workers).configurations()
    ]
    # A quarter of the trials are as many as there are beginnings; of each there are 7 stages.
    lengths = [pace * seconds * STEPS for pace in paces[::4] for _ in range(7)]
    times = client.gather(client.map(sleep, lengths, pure=False))
    return 1 - _busy(times, sorted(began for began, _ in times), workers)


def _busy(spans: Iterable[tuple[float, ...]], begins: list[float], workers: int) -> float:
    """Return which share of the slots' time is in `spans`, while all of them could be busy.

    That is from the first begin until fewer stages than slots have not begun.
    """
    first, last = begins[0], begins[-workers]
    inside = sum(max(0.0, min(ended, last) - max(began, first)) for began, ended in spans)
    return min(1.0, inside / (workers * (last - first)))  # a sum may be rounded up


# ----------------------------------------------------------------------- simulated slots


@dataclass(slots=True)
class _Slot:
    """A worker that sleeps by a simulated clock: what it is at, and what it is to do next."""

    name: str
    queue: deque[RunStage] = field(default_factory=deque)
    order: RunStage | None = None
    step: int = 0


class _World:
    """The engine of a study, and slots to and from which every word takes its time."""

    def __init__(self, slots: int, seconds: float) -> None:
        options = DispatchOptions(lookahead_seconds=LOOKAHEAD_SECONDS)
        self.engine = Engine(
            Dispatcher(root_key("simulated", 0), options),
            objective=Objective.single("value", "minimize"),
            trials={},
        )
        self.now = 0.0
        self.cpu = 0.0
        self.events = 0
        self.spans: list[tuple[float, float]] = []
        self.begins: list[float] = []
        self._saves: dict[str, set[int]] = defaultdict(set)
        self._seconds = seconds
        self._slots = {f"w{at}": _Slot(f"w{at}") for at in range(slots)}
        self._due: list[tuple[float, int, Any]] = []
        self._count = 0

    def run(self, tuner: dt.algos.Grid) -> None:
        """Run a tuner to its end."""
        self._obey(self.engine.begin(tuner, place=0, capacity=len(self._slots), now=0.0))
        for name in self._slots:
            self._tell(WorkerJoined(worker=name))
        while not (self.engine.finished and self.engine.view.is_idle):
            tick = self._next_tick()
            if tick < self._due[0][0]:
                self.now = tick
                self._tell(Tick())
                continue
            self.now, _, content = heapq.heappop(self._due)
            match content:
                case RunStage():
                    self._hear(content)
                case SavePoint():
                    self._save_at(content)
                case (slot, order):
                    self._reach(slot, order)
                case _:
                    self._tell(content)

    def _next_tick(self) -> float:
        """Return when the driver looks at what it has anew, as a runner does."""
        began = time.process_time()
        tick = self.engine.next_tick(self.now)
        self.cpu += time.process_time() - began
        return math.inf if tick is None else max(self.now + LEAST_WAIT, tick)

    def _later(self, seconds: float, content: Any) -> None:
        self._count += 1
        heapq.heappush(self._due, (self.now + seconds, self._count, content))

    def _tell(self, event: Event) -> None:
        """Give the driver an event now."""
        began = time.process_time()
        outcome = self.engine.handle(event, self.now)
        self.cpu += time.process_time() - began
        self.events += 1
        self._obey(outcome)

    def _obey(self, outcome: Outcome) -> None:
        for order in with_save_points(list(outcome.orders)):
            self._later(LATENCY_SECONDS, order)

    def _hear(self, order: RunStage) -> None:
        """Give a slot a stage now."""
        slot = self._slots[order.worker]
        self._saves[order.attempt].update(order.saves)
        slot.queue.append(order)
        if slot.order is None:
            self._begin(slot)

    def _save_at(self, point: SavePoint) -> None:
        """Give a slot a save-point now, which may be too late."""
        slot = self._slots[point.worker]
        waits = any(each.attempt == point.attempt for each in slot.queue)
        runs = slot.order is not None and slot.order.attempt == point.attempt
        if waits or (runs and slot.step < point.step):
            self._saves[point.attempt].add(point.step)
        else:
            self._later(LATENCY_SECONDS, SaveMissed(attempt=point.attempt, step=point.step))

    def _begin(self, slot: _Slot) -> None:
        order = slot.order = slot.queue.popleft()
        slot.step = order.start
        self.begins.append(self.now)
        self._later(LATENCY_SECONDS, Started(attempt=order.attempt))
        self._train(slot, order)

    def _train(self, slot: _Slot, order: RunStage) -> None:
        """Begin the next step of a slot."""
        seconds = self._seconds * abs(order.node.sequences["pace"](slot.step))
        self.spans.append((self.now, self.now + seconds))
        self._later(seconds, (slot, order))

    def _reach(self, slot: _Slot, order: RunStage) -> None:
        """Count a step as trained by a slot."""
        slot.step += 1
        ends = slot.step == order.stop
        if ends or slot.step in self._saves[order.attempt]:
            reports = ((slot.step, {"value": 1 / slot.step}),)
            saved = Saved(attempt=order.attempt, step=slot.step, reports=reports)
            self._later(LATENCY_SECONDS, saved)
        if not ends:
            self._train(slot, order)
            return
        seconds = self._seconds * (order.stop - order.start)
        end = TrainingEnded(
            attempt=order.attempt, step=slot.step, status="trained", seconds=seconds
        )
        self._later(LATENCY_SECONDS, end)
        slot.order = None
        if slot.queue:
            self._begin(slot)


def _simulated(slots: int, seconds: float) -> list[Figure]:
    world = _World(slots, seconds)
    gc.collect()
    world.run(dt.algos.Grid(space(SIMULATED_BEGINNINGS * slots), max_steps=3 * STEPS))
    return [
        Figure(
            name=f"idle share of {slots} simulated slots while there is work",
            value=1 - _busy(world.spans, world.begins, slots),
            at_most=IDLE,
            note=f"{len(world.begins):,} stages, {LATENCY_SECONDS * 1e3:.0f} ms each way",
        ),
        Figure(
            name=f"CPU per event of the driver, {slots} simulated slots",
            value=world.cpu / world.events * 1e6,
            unit="us",
            note=f"{world.events:,} events; deciding alone",
        ),
    ]


if __name__ == "__main__":
    sys.exit(main("utilisation", measure))

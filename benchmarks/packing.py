"""How fast it is learned how many trials share a device, next to the best fixed number."""

from __future__ import annotations

import logging
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
from distributed import Client, LocalCluster, Nanny
from figures import Figure, main

import dasktune as dt
from dasktune.graph import packing
from dasktune.graph.packing import PackingFactor
from dasktune.worker.sharing import SHARED_DEVICE

CURVES: Mapping[str, tuple[float, ...]] = {
    "4 pay": (1.0, 1.9, 2.7, 3.3),
    "3 pay": (1.0, 1.7, 2.1, 2.1),
    "2 pay a little": (1.0, 1.15, 1.15, 1.1),
    "none pays": (1.0, 1.0, 0.95, 0.9),
    "all harm": (1.0, 0.8, 0.65, 0.5),
}
"""Steps a second of a device with 1 to 4 trials together, as multiples of those of one alone."""

MODELS, DEVICES, STEPS = 3, 2, 10
TRIALS, SHORT_TRIALS = 300, 60
REPEATS, SHORT_REPEATS = 12, 2
STRAGGLING = 0.1
"""Stages take ``1 + |z|`` times as long; this is the standard deviation of z."""

REAL_TRIALS, SHORT_REAL_TRIALS = 60, 24
REAL_WORKERS = 3
REAL_PAIRS = 3
SIZE = 220
"""Rows of the matrices that the real trials multiply."""


class Fixed(PackingFactor):
    """A number that is known before the run, and stays."""

    number = 1

    @property
    def tried(self) -> int:
        """The number, always."""
        return self.number

    def observe(self, together: int, *, steps: int, seconds: float) -> None:
        """Learn nothing."""
        self.kept = self.number


@contextmanager
def fixed(number: int) -> Iterator[None]:
    """Have devices run so many stages together from the second stage of a model on."""
    with patch.object(Fixed, "number", number), patch.object(packing, "PackingFactor", Fixed):
        yield


def seconds_of(total: Sequence[float] | None, trials: int, seed: int) -> float:
    """Return the virtual seconds of a random search over models on shared devices."""
    space = dt.Space(lr=dt.Float(1e-4, 0.1, log=True), model=[*range(MODELS)])
    tuner = dt.algos.Random(space, trials=trials, max_steps=STEPS, seed=seed)
    found = dt.simulate(
        tuner,
        lambda values, step: values["lr"] / step,
        workers=DEVICES,
        together=total,
        seconds_per_step=lambda values: 1.0 + values["model"],
        straggling=STRAGGLING,
        seed=seed,
    )
    if found.steps_executed != trials * STEPS:
        raise AssertionError(f"{found.steps_executed} steps were trained")
    return found.seconds


def simulated(name: str, total: tuple[float, ...], trials: int, repeats: int) -> Iterator[Figure]:
    """Yield the ratios of the learned number to no sharing, and to the best fixed number."""
    to_alone, to_best, best = [], [], list[int]()
    for seed in range(repeats):
        learned, alone = seconds_of(total, trials, seed), seconds_of(None, trials, seed)
        times = {1: alone}
        for number in range(2, len(total) + 1):
            with fixed(number):
                times[number] = seconds_of(total, trials, seed)
        best.append(min(times, key=times.__getitem__))
        to_alone.append(learned / alone)
        to_best.append(learned / times[best[-1]])
    note = f"{trials} trials of {MODELS} models on {DEVICES} devices, {repeats} seeds, "
    known = ", ".join(map(str, sorted(set(best))))
    yield Figure(
        name=f"{name}: time, learned / best fixed",
        value=statistics.mean(to_best),
        unit="x",
        at_most=1.25,
        note=f"{note}{spread(to_best)}; best fixed number {known}",
    )
    yield Figure(
        name=f"{name}: time, learned / one at a time",
        value=statistics.mean(to_alone),
        unit="x",
        at_most=1.03,
        note=f"{note}{spread(to_alone)}; limit {1 / max(total):.3f}",
    )


class Multiplying(dt.Trainer):
    """Multiplies matrices on one core."""

    def build(self, hp: Mapping[str, Any]) -> None:
        """Begin with a matrix."""
        self.matrix = np.random.default_rng(0).normal(size=(SIZE, SIZE)) / math.sqrt(SIZE)
        self.total = 0.0

    def setup(self, hp: Mapping[str, Any]) -> None:
        """Take the learning rate."""
        self.lr = hp["lr"]

    def train(self) -> None:
        """Multiply some matrices."""
        product = self.matrix
        for _ in range(60):
            product = product @ self.matrix
        self.total += self.lr * float(np.tanh(product).mean())

    def evaluate(self) -> dict[str, float]:
        """Return the sum so far."""
        return {"loss": self.total}

    def state_dict(self) -> dict[str, Any]:
        """Return the sum so far."""
        return {"total": self.total}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a sum."""
        self.total = state["total"]


class SharingNanny(Nanny):
    """Starts a worker that shares the cores of this host."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, env={SHARED_DEVICE: "cores"}, **keywords)


class Changes(logging.Handler):
    """Keeps what a run logs of packing."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        if record.getMessage().startswith("packing: "):
            self.lines.append(record.getMessage().removeprefix("packing: "))


def live_seconds(workers: int, trials: int, *, is_fixed: bool) -> tuple[float, list[str]]:
    """Return the seconds of a study on workers that share the cores, and what it learned."""
    changes, logger = Changes(), logging.getLogger("dasktune.driver.runner")
    level = logger.level
    logger.addHandler(changes)
    logger.setLevel(logging.INFO)
    kind = Nanny if is_fixed else SharingNanny
    options: dict[str, Any] = {"threads_per_worker": 1, "memory_limit": 0, "worker_class": kind}
    options |= {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            LocalCluster(n_workers=workers, **options) as cluster,
            Client(cluster) as client,
        ):
            study = dt.create_study(Multiplying, name="real", storage=folder, metric="loss")
            space = dt.Space(lr=dt.Float(0.1, 1.0))
            warm = dt.algos.Random(space, trials=workers, max_steps=1, seed=9)
            study.optimize(warm, client=client, check=False, progress=False, last_line=False)
            tuner = dt.algos.Random(space, trials=trials, max_steps=STEPS, seed=0)
            began = time.monotonic()
            study.optimize(tuner, client=client, check=False, progress=False, last_line=False)
            return time.monotonic() - began, changes.lines
    finally:
        logger.removeHandler(changes)
        logger.setLevel(level)


def real(trials: int, pairs: int) -> Iterator[Figure]:
    """Yield what is learned, and gained, by real trials that share the cores of this host."""
    ratios, learned = {1: list[float](), 2: list[float]()}, list[str]()
    for _ in range(pairs):
        shared, lines = live_seconds(REAL_WORKERS, trials, is_fixed=False)
        learned.append(lines[-1] if lines else "1 trial trains alone")
        for workers, found in ratios.items():
            alone, _ = live_seconds(workers, trials, is_fixed=True)
            found.append(shared / alone)
    for workers, found in ratios.items():
        yield Figure(
            name=f"real: time, learned among {REAL_WORKERS} / {workers} fixed",
            value=statistics.mean(found),
            unit="x",
            note=f"{trials} trials on this host, {pairs} runs, {spread(found)}; learned: "
            + "; ".join(sorted(set(learned))),
        )


def spread(values: Sequence[float]) -> str:
    """Return the range of values in words."""
    return f"{min(values):.3f} to {max(values):.3f}"


def measure(short: bool) -> list[Figure]:
    """Return the figures of all curves, and of real trials."""
    trials, repeats = (SHORT_TRIALS, SHORT_REPEATS) if short else (TRIALS, REPEATS)
    figures = [
        figure
        for name, total in CURVES.items()
        for figure in simulated(name, total, trials, repeats)
    ]
    return [*figures, *real(*((SHORT_REAL_TRIALS, 1) if short else (REAL_TRIALS, REAL_PAIRS)))]


if __name__ == "__main__":
    sys.exit(main("packing", measure))

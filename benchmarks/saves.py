"""Saves of 100 MB by two workers: what training waits for, and how soon they are durable.

Two workers train side by side in three ways, round by round. ``none`` saves one number at the end.
``objects`` does the least that a save can do: after each step it copies the state into a buffer
that it uses again each time, and a thread writes the copy as one plain file, synced and renamed.
``saves`` has dasktune save after each step. A step multiplies matrices on one core and changes the
state in place. Each round gives one ratio of the medians over all saves of both workers. A figure
is the median of these ratios, with the least and the greatest.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from figures import Figure, main
from saving import stage, write_object

import dasktune as dt
from dasktune.worker.host import StageHost
from dasktune.worker.job import Job
from dasktune.worker.messages import StageMessage, StateSaved

WORKERS, ROUNDS, STEPS = 2, 5, 10
NBYTES, TENSORS = 100_000_000, 20
MATRIX, PRODUCTS = 1000, 4
WAYS = ("none", "objects", "saves")

HOLD_UP = 1.1
"""Longest hold-up of training, over a copy of the state in memory."""

SHARE = 0.9
"""Least throughput of saves, as a share of that of one synced object."""


@dataclass(slots=True, kw_only=True)
class SaveTimes:
    """Seconds of one run of one worker: of each save, and of all."""

    hold_ups: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    whole: float = 0.0


class Large(dt.Trainer):
    """Multiplies matrices, and has a state of NumPy arrays and torch tensors."""

    objects: Objects | None = None
    """What the last trainer of this process wrote."""

    def build(self, hp: Mapping[str, Any]) -> None:
        """Make the state."""
        rng = np.random.default_rng(0)
        arrays = [rng.random(self.config["nbytes"] // TENSORS // 8) for _ in range(TENSORS)]
        half = TENSORS // 2
        self.weights = {str(i): array for i, array in enumerate(arrays[:half])}
        self.momenta = {str(i): torch.from_numpy(array) for i, array in enumerate(arrays[half:])}
        self.matrix = rng.random((MATRIX, MATRIX))
        Large.objects = Objects(arrays) if self.config["way"] == "objects" else None

    def setup(self, hp: Mapping[str, Any]) -> None:
        """Set the learning rate."""
        self.lr = hp["lr"]

    def train(self) -> None:
        """Work on one core, and change an array in place."""
        for _ in range(self.config["products"]):
            self.matrix @ self.matrix
        self.weights["0"] += self.lr
        if self.objects is not None:
            self.objects.write(Path(self.config["folder"]))

    def evaluate(self) -> dict[str, float]:
        """Return a number of the state."""
        return {"value": float(self.weights["0"][0])}

    def state_dict(self) -> dict[str, Any]:
        """Return the state, or little of it where dasktune does not save."""
        if self.config["way"] != "saves":
            return {"first": self.weights["0"][:1]}
        return {"weights": self.weights, "momenta": self.momenta}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take arrays back."""
        self.weights, self.momenta = dict(state["weights"]), dict(state["momenta"])


class Objects:
    """Writes copies of arrays as plain files, behind training."""

    def __init__(self, arrays: list[np.ndarray[Any, Any]]) -> None:
        self._arrays = arrays
        self._thread = ThreadPoolExecutor(1)
        self._memory = np.empty(sum(array.nbytes for array in arrays), np.uint8)
        self._writes: list[Future[None]] = []
        self.times = SaveTimes()

    def write(self, folder: Path) -> None:
        """Copy the arrays, and begin to write them."""
        wait(self._writes)  # the copy before has been written
        began, at = time.monotonic(), 0
        for array in self._arrays:
            self._memory[at : at + array.nbytes] = array.view(np.uint8)
            at += array.nbytes
        self.times.hold_ups.append(time.monotonic() - began)
        self._writes = [self._thread.submit(self._write, folder, self._memory.data, began)]

    def finish(self) -> SaveTimes:
        """Return the times when all is written."""
        self._thread.shutdown()
        return self.times

    def _write(self, folder: Path, content: memoryview, began: float) -> None:
        write_object(folder / uuid4().hex, content)
        self.times.latencies.append(time.monotonic() - began)


def run(way: str, folder: str, steps: int, nbytes: int, products: int) -> SaveTimes:
    """Train one stage in one way until all is durable."""
    spec = stage(steps, range(1, steps) if way == "saves" else ())
    messages: list[StageMessage] = []
    config = {"way": way, "folder": folder, "nbytes": nbytes, "products": products}
    job = Job(trainer_class=Large, config=config, device="cpu", store=folder, report_every=1)
    host = StageHost(job, messages.extend)
    began = time.monotonic()
    host.run(spec)
    host.finish_writes(60.0)
    saved = [each for each in messages if isinstance(each, StateSaved) and way == "saves"]
    times = Large.objects.finish() if Large.objects is not None else SaveTimes()
    times.hold_ups += [each.hold_up or 0.0 for each in saved]
    times.latencies += [each.latency or 0.0 for each in saved]
    times.whole = time.monotonic() - began
    host.close(60.0)
    return times


def work(folder: str, orders: Any, results: Any, together: Any, sizes: tuple[int, ...]) -> None:
    """Run what is ordered, at the same time as the other workers."""
    torch.set_num_threads(1)
    for way in iter(orders.get, None):
        together.wait()
        results.put(asdict(run(way, folder, *sizes)))


def rounds(number: int, sizes: tuple[int, ...]) -> Iterator[dict[str, list[SaveTimes]]]:
    """Yield the times of all workers by way, round by round."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    context = get_context("spawn")
    orders, results = [context.Queue() for _ in range(WORKERS)], context.Queue()
    together = context.Barrier(WORKERS)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        workers = [
            context.Process(target=work, args=(folder, own, results, together, sizes))
            for own in orders
        ]
        for worker in workers:
            worker.start()
        try:
            for at in range(-1, number):
                times = {}
                for way in (*WAYS[at % 3 :], *WAYS[: at % 3]):
                    for own in orders:
                        own.put(way)
                    times[way] = [SaveTimes(**results.get(timeout=120)) for _ in workers]
                    for path in Path(folder).iterdir():
                        shutil.rmtree(path) if path.is_dir() else path.unlink()
                    os.sync()
                if at >= 0:  # the first round meets fresh memory
                    yield times
        finally:
            for own in orders:
                own.put(None)
            for worker in workers:
                worker.join(60)


def measure(short: bool) -> list[Figure]:
    """Measure the hold-up and the throughput of saves, and the whole time of training."""
    sizes = (3, NBYTES // 50, 1) if short else (STEPS, NBYTES, PRODUCTS)
    held, shares, wholes, copies, objects, more = [], [], [], [], [], []
    for times in rounds(1 if short else ROUNDS, sizes):
        copy, ours = (median_of(times[way], "hold_ups") for way in ("objects", "saves"))
        plain, durable = (median_of(times[way], "latencies") for way in ("objects", "saves"))
        whole = {way: max(each.whole for each in times[way]) for way in WAYS}
        held.append(ours / copy)
        shares.append(durable / plain)
        wholes.append(whole["saves"] / whole["objects"])
        copies.append(copy)
        objects.append(plain)
        more.append((whole["saves"] - whole["none"], whole["objects"] - whole["none"]))
    extra, least = (median(each) for each in zip(*more, strict=True))
    return [
        Figure(
            name="hold-up of training, over a copy of the state in memory",
            value=median(held),
            unit="x",
            at_most=HOLD_UP,
            note=f"{spread(held)}; the copy {median(copies) * 1e3:.1f} ms",
        ),
        Figure(
            name="time until a save is durable, over one synced object",
            value=median(shares),
            unit="x",
            at_most=1 / SHARE,
            note=f"{spread(shares)}; the object {median(objects) * 1e3:.0f} ms; throughput "
            f"{1 / median(shares):.2f} of its",
        ),
        Figure(
            name="training with saves, over training with copies and objects",
            value=median(wholes),
            unit="x",
            note=f"{spread(wholes)}; {extra:.2f} s more than without saves, objects {least:.2f} s",
        ),
    ]


def median_of(times: list[SaveTimes], what: str) -> float:
    """Return the median over all saves of all workers."""
    return median([each for own in times for each in getattr(own, what)])


def spread(ratios: list[float]) -> str:
    """Return the least and the greatest of the rounds."""
    return f"{min(ratios):.2f} to {max(ratios):.2f} in {len(ratios)} rounds"


if __name__ == "__main__":
    sys.exit(main("saves", measure))

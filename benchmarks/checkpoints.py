"""Checkpoints: throughput next to one raw object, torch.save and safetensors.

`saves.py` measures what training waits for where states are large, and saves next to training.

A large state is that of a ResNet-50 with the momentum of SGD, a small one has 60 tensors in
1 MB. Everything is measured in turns, and the figures are medians of ratios of neighbours, since
a disk or server of others does not keep its pace. A state is copied into memory that an earlier
copy was in, as on a worker. ``raw`` writes the same bytes as one object, synced and with a
digest as a checkpoint is, and reads them with their digest; ``plain`` does so without one. What
is ours includes the copy of the state where the figure says so, its checksums, and the commit.

Without ``--url`` the files lie in a temporary folder. ``--url s3://bucket/folder`` takes
credentials and ``AWS_ENDPOINT_URL`` from the environment. Local files are read twice: from the
memory of the system, and from the disk.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

import fsspec
import numpy as np
import torch
from figures import Figure, main
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors
from saving import stage, write_object

import dasktune as dt
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.codec import encode
from dasktune.storage.tensors import digest_of
from dasktune.worker.host import StageHost
from dasktune.worker.job import Job

SHARE = 0.8
"""Of the throughput of one raw object."""

ROUNDS = {"large": 7, "small": 60}
OBJECTS = {"large": 12, "small": 3}
HOLD_UPS = 150
STEPS, SHORT_STEPS, STEP_SECONDS = 40, 5, 0.1

State = dict[str, Any]


def measure(short: bool, url: Path | None) -> list[Figure]:
    """Measure one place, and here what training waits for."""
    states = {"large": resnet(0.1 if short else 1.0), "small": small()}
    with place(url) as files:
        figures = [
            figure
            for name, state in states.items()
            for figure in throughput(files, name, state, 1 if short else ROUNDS[name])
        ]
    return [*figures, hold_up(states["small"], short), steps_with_checkpoints(short)]


# ---------------------------------------------------------------------- states


def resnet(scale: float) -> State:
    """Return the state of a ResNet-50 and its momentum; `scale` shrinks its channels."""
    model = {name: torch.randn(shape) for name, shape in resnet_shapes(scale)}
    momenta = {
        index: {"momentum_buffer": weight * 2} for index, weight in enumerate(model.values())
    }
    groups = [{"lr": 0.1, "momentum": 0.9, "params": list(momenta)}]
    optimizer = {"state": momenta, "param_groups": groups}
    return {"model": model, "optimizer": optimizer, "epoch": 3, "rng": torch.get_rng_state()}


def resnet_shapes(scale: float) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the parameters of a ResNet-50 by name (He et al. 2016, table 1)."""

    def layer(name: str, out: int, *rest: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield f"{name}.conv", (out, *rest)
        for part in ("weight", "bias"):
            yield f"{name}.{part}", (out,)

    width = [max(1, round(scale * channels)) for channels in (64, 64, 128, 256, 512)]
    yield from layer("stem", width[0], 3, 7, 7)
    before = width[0]
    for layers, (inner, blocks) in enumerate(zip(width[1:], (3, 4, 6, 3), strict=True)):
        for block in range(blocks):
            name = f"layer{layers}.{block}"
            yield from layer(f"{name}.1", inner, before, 1, 1)
            yield from layer(f"{name}.2", inner, inner, 3, 3)
            yield from layer(f"{name}.3", 4 * inner, inner, 1, 1)
            if not block:
                yield from layer(f"{name}.down", 4 * inner, before, 1, 1)
            before = 4 * inner
    yield "fc.weight", (1000, before)
    yield "fc.bias", (1000,)


def small() -> State:
    """Return a state of 1 MB in 60 tensors."""
    return {"model": {f"layer{index}": torch.randn(4167) for index in range(60)}, "epoch": 3}


def tensors_of(value: Any, path: str = "state") -> dict[str, torch.Tensor]:
    """Return the tensors of a state by where they are, as safetensors takes them."""
    if isinstance(value, torch.Tensor):
        return {path: value}
    if not isinstance(value, dict):
        return {}
    return {
        k: v for key, item in value.items() for k, v in tensors_of(item, f"{path}.{key}").items()
    }


# ---------------------------------------------------------------------- places


class Place:
    """Where objects are written as one, next to a checkpoint store."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.store = CheckpointStore(url)
        self.is_local = "://" not in url
        self.system, self.root = fsspec.url_to_fs(url, use_listings_cache=False)

    def write(self, name: str, content: bytes) -> None:
        """Write one object so that it is durable."""
        if self.is_local:
            write_object(Path(self.root, name), content)
        else:
            self.system.pipe_file(f"{self.root}/{name}", content)

    def read(self, name: str) -> bytes:
        """Return one object."""
        content: bytes = self.system.cat_file(f"{self.root}/{name}")
        return content

    def forget(self) -> None:
        """Take all files out of the memory of the system."""
        for path in Path(self.root).rglob("*") if self.is_local else ():
            if path.is_file():
                descriptor = os.open(path, os.O_RDONLY)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(descriptor)

    def objects(self) -> int:
        """Return how many objects of checkpoints there are."""
        return sum(1 for _ in self.store.files.entries("checkpoints"))

    def clear(self) -> None:
        """Remove everything."""
        for stored in list(self.store.keys()):
            self.store.discard(stored)
        with suppress(FileNotFoundError):
            for path in self.system.ls(self.root, detail=False):
                self.system.rm(path, recursive=True)


@contextmanager
def place(url: Path | None) -> Iterator[Place]:
    """Yield a place of its own below a URL, or in a temporary folder."""
    with ExitStack() as stack:
        # A path has made one slash of two.
        parts = str(url).partition(":/") if url is not None else ()
        if parts:
            own = Place(f"{parts[0]}://{parts[2].lstrip('/')}/{uuid4().hex}")
        else:
            own = Place(stack.enter_context(tempfile.TemporaryDirectory()))
        yield own
        own.clear()


# ---------------------------------------------------------------------- throughput


def throughput(files: Place, name: str, state: State, rounds: int) -> list[Figure]:
    """Return the throughput of each way of storing a state, as a share of a raw object's."""
    snapshot = encode(state)
    raw, memory = snapshot.data.tobytes(), snapshot.data.copy()
    tensors = {key: value.contiguous() for key, value in tensors_of(state).items()}
    writes: dict[str, Callable[[str], object]] = {
        "raw": lambda key: files.write(key, raw) or digest_of(raw),
        "plain": lambda key: files.write(key, raw),
        "dasktune, encoded": lambda key: save(files, encode_again(snapshot), key),
        "dasktune": lambda key: save(files, encode(state, allocate=lambda _: memory), key),
        "torch.save": lambda key: files.write(key, torch_bytes(state)),
        "safetensors": lambda key: files.write(key, save_safetensors(tensors)),
    }
    reads: dict[str, Callable[[str], object]] = {
        "raw": lambda key: digest_of(files.read(key)),
        "plain": lambda key: files.read(key),
        "dasktune": lambda key: files.store.load(key),
        "torch.load": lambda key: torch.load(io.BytesIO(files.read(key)), weights_only=True),
        "safetensors": lambda key: load_safetensors(files.read(key)),
    }
    keys = {}
    written: dict[str, list[float]] = {way: [] for way in writes}
    for number in range(rounds):
        for way in rotated(writes, number):
            keys[way] = uuid4().hex
            settle(files)
            written[way].append(seconds(writes[way], keys[way]))
    keys["torch.load"] = keys["torch.save"]
    objects = files.objects() / (2 * rounds)
    times_of = {"write": written}
    for temperature in ("read", "read, not in memory")[: 1 + files.is_local]:
        times_of[temperature] = {way: [] for way in reads}
        for number in range(rounds):
            for way in rotated(reads, number):
                if temperature != "read":
                    files.forget()
                times_of[temperature][way].append(seconds(reads[way], keys[way]))
    files.clear()
    figures = [
        figure(f"{name}, {what}, {way}", times["raw"], times[way], len(raw))
        for what, times in times_of.items()
        for way in times
        if way != "raw"
    ]
    title = f"{name}, objects of a checkpoint"
    return [*figures, Figure(name=title, value=objects, at_most=OBJECTS[name])]


def rotated(ways: Iterable[str], number: int) -> list[str]:
    """Return them in another order each time: what comes before slows down what comes after."""
    every = list(ways)
    return every[number % len(every) :] + every[: number % len(every)]


def settle(files: Place) -> None:
    """Wait until the disk has written the files of other processes."""
    if files.is_local:
        os.sync()


def figure(name: str, raw: list[float], ours: list[float], nbytes: int) -> Figure:
    """Return how many times as long as a raw object something takes."""
    ratio = median(own / plain for own, plain in zip(ours, raw, strict=True))
    speeds = [nbytes / median(times) / 1e6 for times in (ours, raw)]
    return Figure(
        name=f"{name}, over one raw object",
        value=ratio,
        unit="x",
        at_most=1 / SHARE if "dasktune" in name else None,
        note=f"{speeds[0]:,.0f} MB/s, raw {speeds[1]:,.0f}; {median(ours) * 1e3:.1f} ms",
    )


def save(files: Place, snapshot: Any, key: str) -> None:
    files.store.save(snapshot, key=key, attempt="1-aa", step=7)


def encode_again(snapshot: Any) -> Any:
    """Return the same snapshot, of which no checksum has been computed yet."""
    return type(snapshot)(tree=snapshot.tree, tensors=snapshot.tensors, data=snapshot.data)


def torch_bytes(state: State) -> bytes:
    """Return the bytes that torch writes into a file."""
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def seconds(work: Callable[..., object], *arguments: object) -> float:
    """Return how long a call takes; what it returns is freed after that."""
    began = time.perf_counter()
    result = work(*arguments)
    ended = time.perf_counter()
    del result
    return ended - began


# ---------------------------------------------------------------------- hold-up


def hold_up(state: State, short: bool) -> Figure:
    """Return the time of the training thread for a checkpoint of a small state."""
    held = [seconds(encode, state) for _ in range(1 if short else HOLD_UPS)]
    return Figure(name="small, hold-up", value=median(held) * 1e3, unit="ms", at_most=1.0)


class Sleeping(dt.Trainer):
    """Sleeps, and has a state of 1 MB."""

    def build(self, hp: Mapping[str, Any]) -> None:
        """Make 60 arrays."""
        self.weights = {f"layer{index}": np.zeros(2083) for index in range(60)}

    def setup(self, hp: Mapping[str, Any]) -> None:
        """Take the learning rate over."""
        self.lr = hp["lr"]

    def train(self) -> None:
        """Sleep, and change an array."""
        threading.Event().wait(STEP_SECONDS)
        self.weights["layer0"] += self.lr

    def evaluate(self) -> dict[str, float]:
        """Return a number of the state."""
        return {"value": float(self.weights["layer0"][0])}

    def state_dict(self) -> State:
        """Return the arrays."""
        return self.weights

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take arrays back."""
        self.weights = dict(state)


def steps_with_checkpoints(short: bool) -> Figure:
    """Return how much longer training takes with a checkpoint at every step."""
    steps = SHORT_STEPS if short else STEPS
    every, single = (trained(steps, saves) for saves in (tuple(range(1, steps)), ()))
    return Figure(
        name=f"{steps} steps of {STEP_SECONDS * 1e3:.0f} ms, 1 MB, a checkpoint at each over one",
        value=every / single,
        unit="x",
        at_most=1.05,
        note=f"{every:.2f} s and {single:.2f} s, until the last is durable",
    )


def trained(steps: int, saves: tuple[int, ...]) -> float:
    """Return how long a stage takes until its last state is durable."""
    with tempfile.TemporaryDirectory() as folder:
        job = Job(trainer_class=Sleeping, config={}, device="cpu", store=folder, report_every=1)
        host = StageHost(job, lambda messages: None)
        began = time.perf_counter()
        host.run(stage(steps, saves))
        host.close(60.0)
        return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main("checkpoints", measure, url="a store, such as s3://bucket/folder"))

"""Checkpoints: throughput next to one raw object, torch.save and safetensors; hold-up of training.

A large state is that of a ResNet-50 with the momentum of SGD, a small one has 60 tensors in
1 MB. Everything is measured in turns, and the figures are medians of ratios of neighbours, since
a disk of others does not keep its pace. A state is copied into memory that an earlier copy was
in, as on a worker. ``raw`` writes the same bytes as one file, synced and with a digest as a
checkpoint is, and reads them with their digest; ``plain`` does so without one. What is ours
includes the copy of the state where the figure says so, its checksums, and the commit. Files are
read twice: from the memory of the system, and from the disk.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

import torch
from figures import Figure, main
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors
from trainers import Heavy

from dasktune._worker.host import StageHost
from dasktune._worker.job import Job, StageSpec
from dasktune.graph.keys import Chain, encode_at
from dasktune.sequences import Constant
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.codec import encode
from dasktune.storage.tensors import digest_of

OVER_RAW = 1.25
"""Largest time, as a multiple of that of one raw file."""

ROUNDS = {"large": 7, "small": 60}
OBJECTS = {"large": 12, "small": 3}
HOLD_UPS = 150
STEPS, SHORT_STEPS, STEP_SECONDS = 40, 5, 0.1
NBYTES = 10**6

State = dict[str, Any]
Work = Callable[[str], object]
"""Writes or reads a state by its key."""


def measure(short: bool) -> list[Figure]:
    """Measure a temporary folder, and what training waits for."""
    states = {"large": resnet(0.1 if short else 1.0), "small": small()}
    return [
        *(
            figure
            for name, state in states.items()
            for figure in throughput(name, state, 1 if short else ROUNDS[name])
        ),
        hold_up(states["small"], short),
        steps_with_checkpoints(short),
    ]


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


# ---------------------------------------------------------------------- throughput


def throughput(name: str, state: State, rounds: int) -> list[Figure]:
    """Return the times of each way of storing a state, as multiples of a raw file's."""
    with tempfile.TemporaryDirectory() as place:
        folder, store = Path(place), CheckpointStore(place)
        nbytes = encode(state).data.nbytes
        writes, reads = _writes(folder, store, state), _reads(folder, store)
        keys, written = {}, _no_times(writes)
        for number in range(rounds):
            for way in _rotated(writes, number):
                keys[way] = uuid4().hex
                os.sync()  # what other processes write is no part of it
                written[way].append(seconds(writes[way], keys[way]))
        keys["torch.load"] = keys["torch.save"]
        objects = sum(1 for _ in store.files.entries("checkpoints")) / (2 * rounds)
        times = {
            "write": written,
            "read": _no_times(reads),
            "read, not in memory": _no_times(reads),
        }
        for number in range(rounds):
            for way in _rotated(reads, number):
                times["read"][way].append(seconds(reads[way], keys[way]))
        for number in range(rounds):
            for way in _rotated(reads, number):
                _forget(folder)
                times["read, not in memory"][way].append(seconds(reads[way], keys[way]))
    return [
        *(
            _over_raw(f"{name}, {what}, {way}", of["raw"], of[way], nbytes)
            for what, of in times.items()
            for way in of
            if way != "raw"
        ),
        Figure(name=f"{name}, objects of a checkpoint", value=objects, at_most=OBJECTS[name]),
    ]


def _writes(folder: Path, store: CheckpointStore, state: State) -> dict[str, Work]:
    """Return the ways of storing the state."""
    snapshot = encode(state)
    raw, memory = snapshot.data.tobytes(), snapshot.data.copy()
    tensors = {key: value.contiguous() for key, value in tensors_of(state).items()}

    def save(content: Any, key: str) -> None:
        store.save(content, key=key, attempt="1-aa", step=7)

    def save_raw(key: str) -> None:
        write_object(folder / key, raw)
        digest_of(raw)

    def again() -> Any:
        """Return the same snapshot, of which no checksum has been computed yet."""
        return type(snapshot)(tree=snapshot.tree, tensors=snapshot.tensors, data=snapshot.data)

    def torch_bytes() -> bytes:
        file = io.BytesIO()
        torch.save(state, file)
        return file.getvalue()

    return {
        "raw": save_raw,
        "plain": lambda key: write_object(folder / key, raw),
        "dasktune, encoded": lambda key: save(again(), key),
        "dasktune": lambda key: save(encode(state, allocate=lambda _: memory), key),
        "torch.save": lambda key: write_object(folder / key, torch_bytes()),
        "safetensors": lambda key: write_object(folder / key, save_safetensors(tensors)),
    }


def _reads(folder: Path, store: CheckpointStore) -> dict[str, Work]:
    """Return the ways of reading a state, each by the key under which its like has written it."""
    return {
        "raw": lambda key: digest_of((folder / key).read_bytes()),
        "plain": lambda key: (folder / key).read_bytes(),
        "dasktune": store.load,
        "torch.load": lambda key: torch.load(folder / key, weights_only=True),
        "safetensors": lambda key: load_safetensors((folder / key).read_bytes()),
    }


def write_object(path: Path, content: bytes) -> None:
    """Write one file so that it is durable and appears whole: the least that a save can do."""
    aside = path.with_suffix(".new")
    with aside.open("wb", buffering=0) as file:
        file.write(content)
        os.fsync(file.fileno())
    aside.rename(path)
    descriptor = os.open(path.parent, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def _no_times(ways: Iterable[str]) -> dict[str, list[float]]:
    return {way: [] for way in ways}


def _rotated(ways: Iterable[str], number: int) -> list[str]:
    """Return them in another order each time: what comes before slows down what comes after."""
    every = list(ways)
    return every[number % len(every) :] + every[: number % len(every)]


def _forget(folder: Path) -> None:
    """Take all files out of the memory of the system."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def _over_raw(name: str, raw: list[float], ours: list[float], nbytes: int) -> Figure:
    """Return how many times as long as a raw file something takes."""
    speeds = [nbytes / median(times) / 1e6 for times in (ours, raw)]
    return Figure(
        name=f"{name}, over one raw object",
        value=median(own / plain for own, plain in zip(ours, raw, strict=True)),
        unit="x",
        at_most=OVER_RAW if "dasktune" in name else None,
        note=f"{speeds[0]:,.0f} MB/s, raw {speeds[1]:,.0f}; {median(ours) * 1e3:.1f} ms",
    )


def seconds(work: Callable[..., object], *arguments: object) -> float:
    """Return how long a call takes; what it returns is freed after that."""
    began = time.perf_counter()
    result = work(*arguments)
    ended = time.perf_counter()
    del result
    return ended - began


# ---------------------------------------------------------------------- training


def hold_up(state: State, short: bool) -> Figure:
    """Return the time of the training thread for a checkpoint of a small state."""
    held = [seconds(encode, state) for _ in range(1 if short else HOLD_UPS)]
    return Figure(name="small, hold-up", value=median(held) * 1e3, unit="ms", at_most=1.0)


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
    sequences = {"lr": Constant(0.1)}
    chain = Chain(uuid4().hex).extend(encode_at(sequences, 0), 0)
    spec = StageSpec(
        attempt="1-aa",
        start=0,
        stop=steps,
        saves=saves,
        sequences={name: sequence.to_json() for name, sequence in sequences.items()},
        chain=(chain.base, chain.values.hex(), chain.length),
        seed=0,
    )
    with tempfile.TemporaryDirectory() as folder:
        config = {"log": f"{folder}/log", "seconds": STEP_SECONDS, "nbytes": NBYTES}
        job = Job(trainer_class=Heavy, config=config, device="cpu", store=folder, report_every=1)
        host = StageHost(job, lambda messages: None)
        began = time.perf_counter()
        host.run(spec)
        host.close(60.0)
        return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main("checkpoints", measure))

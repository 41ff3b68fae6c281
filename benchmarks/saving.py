"""The parts of the benchmarks of saves: one synced object, and a stage that saves."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from uuid import uuid4

from dasktune.graph.keys import Chain, encode_at
from dasktune.sequences import Constant
from dasktune.types import Step
from dasktune.worker.job import StageSpec


def write_object(path: Path, content: bytes | memoryview) -> None:
    """Write one file so that it is durable and appears whole: the least that a save can do."""
    aside, rest = path.with_suffix(".new"), memoryview(content)
    with aside.open("wb", buffering=0) as file:
        while rest:
            rest = rest[file.write(rest) :]
        os.fsync(file.fileno())
    aside.rename(path)
    descriptor = os.open(path.parent, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def stage(steps: Step, saves: Iterable[Step]) -> StageSpec:
    """Return a stage from step 0 on that saves at some steps; no other has its state keys."""
    sequences = {"lr": Constant(0.1)}
    chain = Chain(uuid4().hex).extend(encode_at(sequences, 0), 0)
    return StageSpec(
        attempt="1-aa",
        start=0,
        stop=steps,
        saves=tuple(saves),
        sequences={name: sequence.to_json() for name, sequence in sequences.items()},
        chain=(chain.base, chain.values.hex(), chain.length),
        seed=0,
    )

"""The trail of trained steps, written by each worker: a preload of `dask worker`.

dasktune's own counts say what drivers have heard. This one does not pass through them: each
worker process appends a line to a file of its own for every stage it begins, and for every step
it has trained, with the digest of the state that came of it. A line that was written outlives
SIGKILL.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dasktune.types import Step

PATH = "DASKTUNE_WITNESS"
"""Variable with the path of the file."""

PRELOAD = __name__
"""What `dask worker --preload` is to be given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """One step that a worker trained.

    Parameters
    ----------
    process
        Name of the worker process.
    attempt
        What it was trained for.
    began, at
        When the attempt began, and the step was done (epoch seconds).
    step
        Steps trained, with this one.
    digest
        Of the state that came of it.
    """

    process: str
    attempt: str
    began: float
    at: float
    step: Step
    digest: str


def read(folder: Path) -> Iterator[Trained]:
    """Yield all steps that the files of a folder tell of, process by process, in order."""
    for path in sorted(folder.iterdir()):
        attempt, began = "", 0.0
        for line in path.read_text().splitlines(keepends=True):
            if not line.endswith("\n"):
                continue  # its writer was killed
            kind, at, name, *rest = line.split()
            if kind == "begin":
                attempt, began = name, float(at)
            else:
                yield Trained(
                    process=path.name,
                    attempt=attempt,
                    began=began,
                    at=float(at),
                    step=int(name),
                    digest=rest[0],
                )


def dask_setup(worker: Any) -> Callable[[], None]:
    """Write down, from now on, what is trained in this process; return what ends that."""
    from dasktune._worker.host import StageHost
    from dasktune.storage.codec import encode
    from dasktune.trainer.lifecycle import TrainerRun

    file = os.open(os.environ[PATH], os.O_APPEND | os.O_CREAT | os.O_WRONLY)
    train, run = TrainerRun.advance, StageHost.run

    def advance(self: TrainerRun, values: Any) -> None:
        train(self, values)
        digest = encode(self.state()).digest
        os.write(file, f"step {time.time()} {self.step} {digest}\n".encode())

    def begin(self: StageHost, spec: Any) -> Any:
        os.write(file, f"begin {time.time()} {spec.attempt}\n".encode())
        return run(self, spec)

    TrainerRun.advance = advance  # type: ignore[method-assign]
    StageHost.run = begin  # type: ignore[method-assign]

    def end() -> None:
        TrainerRun.advance, StageHost.run = train, run  # type: ignore[method-assign]
        os.close(file)

    return end

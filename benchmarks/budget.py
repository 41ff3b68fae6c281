"""The byte budget: how large a store ever gets under one, and what that costs in steps."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from distributed import Client
from figures import Figure, main
from spaces import STEPS, hippo_144, hippo_448
from trainers import Heavy, logged

import dasktune as dt
from dasktune.algos.base import Tuner
from dasktune.cluster.local import local_client

WORKERS = 2
MORE_STEPS = 1.15
SAMPLE_SECONDS = 0.02
SAMPLE_OPTION = "--sample"
SECONDS = {None: 0.004, 1: 0.02}
STATE_NBYTES = {None: 200_000, 1: 50_000}
"""What a step takes, and the size of a state, by how often it is saved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """The steps and bytes of a run.

    Parameters
    ----------
    steps
        Trained, by the trainer's count.
    repeated
        Of these, trained before.
    largest, last
        Bytes in the store: at most, and at the end.
    results
        Every trial's state and metrics.
    """

    steps: int
    repeated: int
    largest: int
    last: int
    results: list[object]


def measure(short: bool) -> list[Figure]:
    """Run studies without a budget, then with a part of what their states took."""
    steps = STEPS // 4 if short else STEPS
    trials = 40 if short else 448
    with local_client(WORKERS) as client:
        return [
            *_grid(client, steps),
            *([] if short else _each_step(client, steps)),
            *_halving(client, "ASHA", dt.algos.ASHA, trials, steps),
            *_halving(client, "SHA", dt.algos.SHA, trials, steps),
        ]


def _grid(client: Client, steps: int) -> list[Figure]:
    def tuner() -> Tuner:
        return dt.algos.Grid(hippo_144(), max_steps=steps)

    free = _run(client, tuner, budget=None)
    tight = _run(client, tuner, budget=free.last // 20)
    differing = sum(each != other for each, other in zip(free.results, tight.results, strict=True))
    what = "144 trials"
    return [
        *_figures(what, tight, free.steps, free.last, 20),
        Figure(name=f"{what}: trials with other results", value=differing, equals=0),
    ]


def _each_step(client: Client, steps: int) -> list[Figure]:
    def tuner() -> Tuner:
        return dt.algos.Grid(hippo_144(), max_steps=steps)

    unique = dt.preview(hippo_144(), max_steps=steps).steps_unique
    whole = unique * STATE_NBYTES[1]  # at least: what is beside the tensors comes on top
    tight = _run(client, tuner, budget=whole // 20, every=1)
    return _figures("144 trials saved at every step", tight, unique, whole, 20)


def _halving(
    client: Client, name: str, kind: Callable[..., Tuner], trials: int, steps: int
) -> list[Figure]:
    """Return the cost of pausing trials: a promoted trial may have to be trained again."""

    def tuner() -> Tuner:
        return kind(hippo_448(), trials=trials, max_steps=steps, min_steps=max(1, steps // 8))

    free = _run(client, tuner, budget=None)
    tight = _run(client, tuner, budget=free.last // 10)
    # Which trials are promoted may depend on the order of arrival.
    return _figures(
        f"{name} of {trials} trials", tight, tight.steps - tight.repeated, free.last, 10
    )


def _figures(what: str, tight: Ran, steps: int, whole: int, part: int) -> list[Figure]:
    budget = whole // part
    sizes = f"{tight.largest / 1e6:.2f} of {budget / 1e6:.2f} MB"
    return [
        Figure(
            name=f"{what}: largest store ever seen, of the budget",
            value=tight.largest / budget,
            unit="x",
            at_most=1.0,
            note=f"{sizes}; without one {whole / 1e6:.0f} MB",
        ),
        Figure(
            name=f"{what}: steps with 1/{part} of the room",
            value=tight.steps / steps,
            unit="x",
            at_most=MORE_STEPS,
            note=f"{tight.steps:,} steps, {tight.repeated:,} of them repeated",
        ),
    ]


def _run(
    client: Client, tuner: Callable[[], Tuner], *, budget: int | None, every: int | None = None
) -> Ran:
    with tempfile.TemporaryDirectory() as folder:
        log, store = Path(folder) / "log", Path(folder) / "store"
        study = dt.create_study(
            Heavy,
            name="budget",
            storage=store,
            metric="value",
            direction="minimize",
            config={"log": str(log), "seconds": SECONDS[every], "nbytes": STATE_NBYTES[every]},
            checkpoint_every=every,
            budget=budget,
        )
        with _sampled(store / "checkpoints") as sampler:
            study.optimize(tuner(), client=client, progress=False)
            largest = int(sampler.communicate("\n")[0])
        ran = Ran(
            steps=len(logged(log)),
            repeated=int(study.summary()["steps_repeated"]),
            largest=largest,
            last=_size(store / "checkpoints"),
            results=[(trial.state, trial.metrics) for trial in study.trials],
        )
        study.close()
    return ran


@contextmanager
def _sampled(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Yield a process that samples the size of a folder until its input ends."""
    command = [sys.executable, __file__, SAMPLE_OPTION, str(folder)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


def _sample(folder: Path) -> None:
    largest = 0
    while not select.select([sys.stdin], [], [], SAMPLE_SECONDS)[0]:
        largest = max(largest, _size(folder))
    print(max(largest, _size(folder)))


def _size(folder: Path) -> int:
    """Return the bytes of all files in a folder, whatever they are."""
    total = 0
    for above, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(above, name)).st_size
            except FileNotFoundError:
                continue
    return total


if __name__ == "__main__":
    if SAMPLE_OPTION in sys.argv:
        _sample(Path(sys.argv[-1]))
    else:
        sys.exit(main("budget", measure))

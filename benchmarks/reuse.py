"""Reuse: what a second study trains, and how long it takes, if all or part of it is there.

Steps are counted by the trainer itself, which appends a line to a file for each.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from distributed import Client
from figures import Figure, main
from spaces import BATCH_SIZES, REQUESTED, STEPS, UNIQUE, hippo_144
from trainers import Counting, logged

import dasktune as dt
from dasktune._cluster.local import local_client
from dasktune._results.summary import Summary
from dasktune.sequences import Constant, MultiStep, Piecewise

WORKERS = 2
REPEAT = 5
MOST_SECONDS = 3.0
OVERLAPPING = (
    *BATCH_SIZES[:2],
    Piecewise([128, 1024], boundaries=[40]),
    Piecewise([128, 1024], boundaries=[100]),
)
"""Two batch sizes of `hippo_144`, and two that part from others of it where those part."""

SHORT = 45
"""Steps after which the first of those batch sizes has parted."""

DISTANCES = (1, 2, 5, 10)
"""Steps between the checkpoints of a study that others branch off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """The figures of one run of a study; the seconds include its database and its own cluster."""

    seconds: float
    trained: int
    summary: Summary
    merge_rate: float


class Place:
    """A folder with one store, where studies run one after the other.

    All run on the cluster of a client, or with None each on its own.
    """

    def __init__(self, folder: Path, client: Client | None) -> None:
        self.folder = folder
        self.client = client
        self.studies = 0
        self.earlier: list[dt.Study] = []

    def run(
        self, space: dt.Space, steps: int, *, database: str = "first.db", every: int | None = None
    ) -> Ran:
        """Create a study, and train a grid."""
        self.studies += 1
        name = f"study-{self.studies}"
        log = self.folder / name
        log.touch()
        began = time.perf_counter()
        study = dt.create_study(
            Counting,
            name=name,
            storage=self.folder / "store",
            database=str(self.folder / database),
            metric="value",
            direction="minimize",
            config={"log": str(log), "seconds": 0},
            checkpoint_every=every,
        )
        tuner = dt.algos.Grid(space, max_steps=steps)
        workers = WORKERS if self.client is None else None
        study.optimize(tuner, client=self.client, workers=workers, progress=False, last_line=False)
        seconds = time.perf_counter() - began
        self.earlier.append(study)
        return Ran(
            seconds=seconds,
            trained=len(logged(log)),
            summary=study.summary(),
            merge_rate=dt.merge_rate(self.earlier),
        )


@contextmanager
def place(client: Client | None = None) -> Iterator[Place]:
    """Yield a new place; close its studies in the end."""
    with tempfile.TemporaryDirectory() as folder:
        made = Place(Path(folder), client)
        yield made
        for study in made.earlier:
            study.close()


def measure(short: bool) -> list[Figure]:
    """Run a study again, with its database and without; then studies that overlap with it."""
    steps = STEPS // 10 if short else STEPS
    repeat = 1 if short else REPEAT
    again = _again(steps, repeat)
    with local_client(WORKERS) as client:
        overlapping = _overlapping(client, SHORT if short else STEPS)
        return [*again, *overlapping, *_between_checkpoints(client, short)]


def _again(steps: int, repeat: int) -> list[Figure]:
    space, figures = hippo_144(), []
    with place() as here:
        first = here.run(space, steps)
        again: dict[str, list[Ran]] = {"the same database": [], "a new database": []}
        for number in range(repeat):
            for label, database in zip(again, ("first.db", f"new-{number}.db"), strict=True):
                again[label].append(here.run(space, steps, database=database))
        for label, runs in again.items():
            seconds = [each.seconds for each in runs]
            figures += [
                Figure(
                    name=f"steps trained again, {label}",
                    value=sum(run.trained for run in runs),
                    unit="steps",
                    equals=0,
                    note=f"of {runs[0].summary['steps_requested']:,}; reused "
                    f"{runs[0].summary['steps_reused']:,}",
                ),
                Figure(
                    name=f"wall time of 144 trials again, {label}",
                    value=min(seconds),
                    unit="s",
                    at_most=MOST_SECONDS,
                    note=f"with the start of {WORKERS} processes; the best of {len(seconds)}, "
                    f"median {median(seconds):.2f}; the first study took {first.seconds:.1f}",
                ),
            ]
    full = steps == STEPS
    cost = dt.preview(space, max_steps=steps)
    return [
        Figure(
            name="steps trained by the first study",
            value=first.trained,
            unit="steps",
            equals=UNIQUE if full else cost.steps_unique,
            note=f"asked for: {REQUESTED if full else cost.steps_requested:,}",
        ),
        *figures,
    ]


def _overlapping(client: Client, steps: int) -> list[Figure]:
    """A study of which half of the trials are there, and the others branch off them."""
    spaces = [hippo_144(), hippo_144(OVERLAPPING)]
    together = dt.preview(spaces, max_steps=steps)
    alone = together.studies[0].steps_unique
    with place(client) as here:
        here.run(spaces[0], steps)
        second = here.run(spaces[1], steps)
    return [
        Figure(
            name="steps trained by an overlapping study",
            value=second.trained,
            unit="steps",
            equals=together.steps_unique - alone,
            note=f"of {second.summary['steps_requested']:,}; by its summary "
            f"{second.summary['steps_executed']:,}",
        ),
        Figure(
            name="of those repeated, by the study's summary",
            value=second.summary["steps_repeated"],
            unit="steps",
            equals=0,
        ),
        Figure(
            name="merge rate q over both studies",
            value=second.merge_rate,
            equals=together.merge_rate,
            note="the bound is the preview; p = "
            + ", ".join(f"{study.merge_rate:.3f}" for study in together.studies),
        ),
    ]


def _between_checkpoints(client: Client, short: bool) -> list[Figure]:
    """Branch off a trial at every step, between the checkpoints that it left."""
    steps, figures = (12 if short else 60), []
    rates = [MultiStep(0.1, milestones=[at], gamma=0.1) for at in range(1, steps)]
    for every in DISTANCES[:2] if short else DISTANCES:
        with place(client) as here:
            here.run(dt.Space(lr=Constant(0.1)), steps, every=every)
            second = here.run(dt.Space(lr=rates), steps, every=every)
        new = sum(range(1, steps))
        repeated = second.trained - new
        figures += [
            Figure(
                name=f"steps repeated per new branch, a checkpoint every {every}",
                value=repeated / len(rates),
                unit="steps",
                at_most=every - 1,
                note=f"{repeated:,} for {len(rates)} branches; {new:,} are new",
            ),
            Figure(
                name=f"of those reported, a checkpoint every {every}",
                value=second.summary["steps_repeated"],
                unit="steps",
                equals=repeated,
            ),
        ]
    return figures


if __name__ == "__main__":
    sys.exit(main("reuse", measure))

"""Merging: the steps trained are the unique steps, and the wall time is near the tree bound.

The steps are counted, and measured around their sleep, by the training code itself: 144 trials on
two worker processes, with checkpoints and database. The time runs from the start of the first
stage, by its worker's clock, until the word comes that the last state is durable. The best of
several runs counts, since other programs can only add to it.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from figures import Figure, main
from spaces import REQUESTED, STEPS, UNIQUE, hippo_144, random_space, unique_steps
from trainers import Counting, logged

import dasktune as dt
from dasktune._cluster.local import local_client
from dasktune._worker.messages import StateSaved, unpacked
from dasktune._worker.plugin import TOPIC

RANDOM_STEPS = 12
SLEEP_SECONDS = 0.002
WORKERS, REPEAT = 2, 5
OVER_BOUND = 1.05
"""Largest wall time, as a multiple of the least that the stage tree allows."""

BOUNDS = {2: 3512.0, 8: 878.0, 16: 446.25, 40: 206.5}
"""Least wall time of the grid in steps, by number of workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run of the grid: its wall time, the seconds of each step, and the steps by its summary."""

    seconds: float
    steps: list[float]
    executed: int

    @property
    def step_seconds(self) -> float:
        """The mean seconds of a step."""
        return fmean(self.steps)


def measure(short: bool) -> list[Figure]:
    """Count and time the grid on real workers, then on simulated ones; count random spaces."""
    steps, repeat = (STEPS // 10, 1) if short else (STEPS, REPEAT)
    return [*_real(steps, repeat), *_simulated(), _naive(20 if short else 300)]


def _real(steps: int, repeat: int) -> Iterator[Figure]:
    space = hippo_144()
    cost = dt.preview(space, max_steps=steps, workers=WORKERS)
    full = steps == STEPS
    runs = [_run(space, steps) for _ in range(repeat)]
    ratios = [run.seconds / (cost.bound_steps * run.step_seconds) for run in runs]
    best = runs[ratios.index(min(ratios))]
    yield Figure(
        name="steps asked for",
        value=cost.steps_requested,
        unit="steps",
        equals=REQUESTED if full else 144 * steps,
    )
    yield Figure(
        name="steps trained, by the trainer's count",
        value=len(best.steps),
        unit="steps",
        equals=UNIQUE if full else counted(space, steps),
        note=f"p = {cost.merge_rate:.4f}",
    )
    yield Figure(
        name="steps trained, by the study's summary",
        value=best.executed,
        unit="steps",
        equals=cost.steps_unique,
        note="the bound is the preview",
    )
    yield Figure(
        name=f"real, {WORKERS} worker processes, over the tree bound",
        value=min(ratios),
        unit="x",
        at_most=OVER_BOUND if full else None,
        note=f"best of {', '.join(f'{ratio:.3f}' for ratio in ratios)}; {best.seconds:.2f} s; "
        f"a step takes {best.step_seconds * 1e3:.2f} ms",
    )


def _run(space: dt.Space, steps: int) -> Run:
    with tempfile.TemporaryDirectory() as folder, local_client(WORKERS) as client:
        log = Path(folder) / "log"
        study = dt.create_study(
            Counting,
            name="merging",
            storage=Path(folder) / "store",
            metric="value",
            direction="minimize",
            config={"log": str(log), "seconds": SLEEP_SECONDS},
        )
        study.optimize(dt.algos.Grid(space, max_steps=steps), client=client, progress=False)
        began = min(stage.started for stage in study.stages())
        seconds = _last_durable(client.get_events(TOPIC)) - began
        executed = study.summary()["steps_executed"]
        study.close()
        return Run(seconds=seconds, steps=logged(log), executed=executed)


def _last_durable(events: Iterable[tuple[float, Mapping[str, Any]]]) -> float:
    """Return when the word came that the last state is durable; Dask keeps the last events."""
    return max(
        at
        for at, content in events
        if any(
            message["kind"] == StateSaved.__name__
            for message in unpacked(content["message"]).get("messages", ())
        )
    )


def _simulated() -> Iterator[Figure]:
    for workers, bound in BOUNDS.items():
        tuner = dt.algos.Grid(hippo_144(), max_steps=STEPS)
        ran = dt.simulate(tuner, lambda values, step: 1 / step, workers=workers)
        yield Figure(
            name=f"simulated, {workers} workers, over the tree bound",
            value=ran.seconds / bound,
            unit="x",
            at_most=OVER_BOUND,
            note=f"{ran.seconds:g} of {bound:g} steps",
        )


def _naive(spaces: int) -> Figure:
    rng = np.random.default_rng(0)
    same = trials = 0
    for _ in range(spaces):
        space = random_space(rng, RANDOM_STEPS)
        cost = dt.preview(space, max_steps=RANDOM_STEPS)
        ran = dt.simulate(
            dt.algos.Grid(space, max_steps=RANDOM_STEPS), lambda values, step: 1 / step, workers=3
        )
        naive = counted(space, RANDOM_STEPS)
        same += cost.steps_unique == naive == ran.steps_executed
        trials += cost.steps_requested // RANDOM_STEPS
    return Figure(
        name="random spaces merged like the naive reference",
        value=same,
        equals=spaces,
        note=f"{trials:,} trials; preview and simulated run against a set of prefixes",
    )


def counted(space: dt.Space, steps: int) -> int:
    return unique_steps((each.sequences, steps) for each in space.configurations())


if __name__ == "__main__":
    sys.exit(main("merging", measure))

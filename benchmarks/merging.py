"""Merging: the steps trained are the unique steps, counted by the training code itself."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from figures import Figure, main
from spaces import REQUESTED, STEPS, UNIQUE, hippo_144, random_space
from trainers import Counting, logged

import dasktune as dt
from dasktune.cluster.local import local_client

RANDOM_STEPS = 12


def measure(short: bool) -> list[Figure]:
    """Train a grid on two worker processes; compare previews with a naive count."""
    return [*_trained(STEPS // 10 if short else STEPS), *_naive(20 if short else 300)]


def _trained(steps: int) -> list[Figure]:
    space = hippo_144()
    cost = dt.preview(space, max_steps=steps, workers=2)
    with tempfile.TemporaryDirectory() as folder, local_client(2) as client:
        log = Path(folder) / "log"
        study = dt.create_study(
            Counting,
            name="merging",
            storage=Path(folder) / "store",
            metric="value",
            direction="minimize",
            config={"log": str(log), "seconds": 0},
        )
        tuner = dt.algos.Grid(space, max_steps=steps)
        study.optimize(tuner, client=client, progress=False)
        trained = len(logged(log))
        summary = study.summary()
        study.close()
    full = steps == STEPS
    return [
        Figure(
            name="steps asked for",
            value=cost.steps_requested,
            unit="steps",
            equals=REQUESTED if full else 144 * steps,
        ),
        Figure(
            name="steps trained, by the trainer's count",
            value=trained,
            unit="steps",
            equals=UNIQUE if full else unique_steps(space, steps),
            note=f"p = {cost.merge_rate:.4f}",
        ),
        Figure(
            name="steps trained, by the study's summary",
            value=summary["steps_executed"],
            unit="steps",
            equals=cost.steps_unique,
            note="the bound is the preview",
        ),
    ]


def _naive(spaces: int) -> list[Figure]:
    rng = np.random.default_rng(0)
    same = trials = 0
    for _ in range(spaces):
        space = random_space(rng, RANDOM_STEPS)
        cost = dt.preview(space, max_steps=RANDOM_STEPS)
        ran = dt.simulate(
            dt.algos.Grid(space, max_steps=RANDOM_STEPS), lambda values, step: 1 / step, workers=3
        )
        naive = unique_steps(space, RANDOM_STEPS)
        same += cost.steps_unique == naive == ran.steps_executed
        trials += cost.steps_requested // RANDOM_STEPS
    return [
        Figure(
            name="random spaces merged like the naive reference",
            value=same,
            equals=spaces,
            note=f"{trials:,} trials; preview and simulated run against a set of prefixes",
        )
    ]


def unique_steps(space: dt.Space, steps: int) -> int:
    """Count the different beginnings of all trials, step by step: slow, and plainly right."""
    beginnings = set()
    for configuration in space.configurations():
        sequences = sorted(configuration.sequences.items())
        beginning: tuple[object, ...] = ()
        for step in range(steps):
            seen = ((value := sequence(step), type(value)) for _, sequence in sequences)
            beginning = (*beginning, *seen)
            beginnings.add(beginning)
    return len(beginnings)


if __name__ == "__main__":
    sys.exit(main("merging", measure))

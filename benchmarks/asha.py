"""ASHA's figures: how soon a configuration is trained to R, and stragglers and dropped jobs.

All simulated, as in the paper. The grid of deviations and drop probabilities is not in its text; a
run in which nothing was trained to R counts with its duration.

References
----------
Li et al., "A System for Massively Parallel Hyperparameter Tuning", sections 3.3 and 4.4, appendix
A.1 with Fig. 7.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np
from figures import Figure, main

import dasktune as dt
from dasktune._engine.limits import Limits
from dasktune.algos.samplers import GivenSource
from dasktune.sequences import Constant
from dasktune.space import Configuration, Space

LOSS = "loss"
"""The hyper-parameter that says what a trial's loss is at every step."""

SPACE = Space({LOSS: 0.0})

TOY = {"max_steps": 9, "min_steps": 1, "eta": 3}
"""Nine machines and nine trials, as in the paper's Figure 1."""

MANY = {"max_steps": 256, "min_steps": 4, "eta": 4}
MANY_WORKERS, MANY_TRIALS = 500, 2_000
"""As many machines as in the paper's section 4.4, and r = R/64."""

SOON = 1.05

RUNGS = {"max_steps": 256, "min_steps": 1, "eta": 4}
WIDTH, WORKERS, COUNT = 256, 25, 5
"""The paper's n, its number of workers, and its number of rungs."""

MORE = 1.25
"""As many brackets more than there is time for on average."""

REPEATS, SECONDS = 5, 2_000.0
DEVIATIONS, DROPS = (0.0, 0.5, 1.0, 1.67), (0.0, 0.001, 0.005)
SHORT_REPEATS, SHORT_SECONDS = 1, 400.0
SHORT_DEVIATIONS, SHORT_DROPS = (0.0, 1.0), (0.0, 0.001)
HIGH_DEVIATION, HIGH_DROP = 0.5, 0.001
"""From one of these on, ASHA must be ahead."""

SHA, ASHA = "synchronous SHA", "ASHA"


def measure(short: bool) -> list[Figure]:
    """Simulate the paper's examples, then both tuners over a grid of conditions."""
    trials = MANY_WORKERS if short else MANY_TRIALS
    return [
        _first("9 machines, R 9, eta 3, from scratch", 9, 9, TOY, resume=False, equals=13 / 9),
        _first("9 machines, R 9, eta 3, resumed", 9, 9, TOY, resume=True, equals=1.0),
        _first("500 machines, resumed", trials, MANY_WORKERS, MANY, resume=True, at_most=SOON),
        *_stragglers(short),
    ]


def _first(
    name: str, trials: int, workers: int, rungs: dict[str, int], *, resume: bool, **bound: float
) -> Figure:
    """Return when the first trial was trained to R, as a multiple of the time that R takes."""
    sampler = with_losses(random_losses(trials, 0))
    ran = dt.simulate(
        dt.algos.ASHA(SPACE, trials=trials, brackets=[0], sampler=sampler, **rungs),
        lambda values, step: values[LOSS],
        workers=workers,
        report_every=rungs["max_steps"],
        merge=False,
        resume=resume,
    )
    return Figure(
        name=f"first configuration trained to R, {name}",
        value=ran.completed[0] / rungs["max_steps"],
        unit="x",
        note=f"of time(R); {trials:,} trials",
        **bound,
    )


def with_losses(losses: Iterable[float]) -> GivenSource:
    """Return trials of `SPACE` that have these losses at every step."""
    configurations = (
        Configuration(params={LOSS: loss}, sequences={LOSS: Constant(loss)}) for loss in losses
    )
    return GivenSource(configurations, "losses")


def random_losses(trials: int, seed: int) -> list[float]:
    """Return losses that are all different, and say nothing of each other."""
    losses: list[float] = np.random.default_rng(seed).random(trials).tolist()
    return losses


# ------------------------------------------------------------- stragglers and dropped jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One simulated run: a tuner, the conditions, and the duration."""

    kind: str
    deviation: float
    drop: float
    seed: int
    seconds: float

    @property
    def tuner(self) -> dt.algos.Tuner:
        """The tuner, with trials for more brackets than there is time for."""
        slowness = 1 + math.sqrt(2 / math.pi) * self.deviation
        brackets = math.ceil(MORE * WORKERS * self.seconds / (WIDTH * COUNT * slowness)) + 1
        sampler = with_losses(random_losses(WIDTH * brackets, self.seed))
        given: dict[str, Any] = {"sampler": sampler, **RUNGS}
        if self.kind == SHA:
            return dt.algos.SHA(SPACE, trials=WIDTH, brackets=brackets, **given)
        return dt.algos.ASHA(SPACE, trials=WIDTH * brackets, brackets=[0], **given)

    def completions(self) -> list[float]:
        """Return when configurations had been trained to R, always from scratch."""
        ran = dt.simulate(
            self.tuner,
            lambda values, step: values[LOSS],
            workers=WORKERS,
            report_every=RUNGS["max_steps"],
            merge=False,
            resume=False,
            straggling=self.deviation,
            drop=self.drop,
            seed=self.seed,
            limits=Limits(seconds=self.seconds),
        )
        return list(ran.completed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The results of a tuner under given conditions: means over the repeats."""

    completed: float
    first: float

    @classmethod
    def of(cls, repeats: Sequence[Sequence[float]], seconds: float) -> Cell:
        """Return the means; a run in which none was trained to R counts with its duration."""
        first = fmean(times[0] if times else seconds for times in repeats)
        return cls(completed=fmean(map(len, repeats)), first=first)

    def is_ahead(self, other: Cell) -> bool:
        """Whether it trained at least as many to R, and the first one earlier."""
        return self.completed >= other.completed and self.first < other.first


def _stragglers(short: bool) -> Iterator[Figure]:
    repeats, seconds = (SHORT_REPEATS, SHORT_SECONDS) if short else (REPEATS, SECONDS)
    grid = (SHORT_DEVIATIONS, SHORT_DROPS) if short else (DEVIATIONS, DROPS)
    settings = [
        Setting(kind=kind, deviation=deviation, drop=drop, seed=seed, seconds=seconds)
        for deviation, drop in product(*grid)
        for kind in (ASHA, SHA)
        for seed in range(repeats)
    ]
    with multiprocessing.get_context("spawn").Pool(len(os.sched_getaffinity(0))) as pool:
        times = pool.map(Setting.completions, settings, chunksize=1)
    behind = high = 0
    for place in range(0, len(settings), 2 * repeats):
        of = settings[place]
        asha = Cell.of(times[place : place + repeats], seconds)
        sha = Cell.of(times[place + repeats : place + 2 * repeats], seconds)
        if of.deviation >= HIGH_DEVIATION or of.drop >= HIGH_DROP:
            high += 1
            behind += not asha.is_ahead(sha)
        yield Figure(
            name=f"ASHA's lead in configurations trained to R, std {of.deviation:g}, "
            f"drop {of.drop:g}",
            value=asha.completed - sha.completed,
            note=f"{asha.completed:.2f} and {sha.completed:.2f}; the first after {asha.first:.0f} "
            f"and {sha.first:.0f} time units",
        )
    yield Figure(
        name=f"conditions with std >= {HIGH_DEVIATION:g} or drop >= {HIGH_DROP:g} in which "
        "synchronous SHA trains more to R, or one as early",
        value=behind,
        at_most=0,
        note=f"paper: 0; of {high}; {repeats} runs of {seconds:,.0f} time units each, "
        f"{WORKERS} workers, never resumed",
    )


if __name__ == "__main__":
    sys.exit(main("asha", measure))

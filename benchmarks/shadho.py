"""SHADHO's setting in simulation: support vector machines on workers of 4, 8 and 16 cores.

Four kernels are trained one against the rest, 10 machines for each configuration. So 4, 8 and 16
cores train them in 3, 2 and 1 waves. Seconds were measured (`svc_times`), and are scaled to 50,000
images by the measured exponent of each kernel. All kernels gain equally from cores, so placement
can gain something while the last tasks run alone; the bound is that of a linear program.

References
----------
Kinnison et al., "SHADHO: Massively Scalable Hardware-Aware Distributed Hyperparameter
Optimization", section 5.1, table 1 and Fig. 5.
"""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

import numpy as np
from figures import Figure, main
from hardware import Blind, Unknown, least_seconds
from simulated import engine_of, runner_of
from svc_times import MEASURED, space

import dasktune as dt
from dasktune.types import Sequences

CORES = {"4 cores": 4, "8 cores": 8, "16 cores": 16}
WAVES = {kind: math.ceil(10 / cores) for kind, cores in CORES.items()}
"""In how many waves a class trains the 10 machines of a configuration."""

IMAGES = 50_000
WORKERS, SHORT_WORKERS = 50, 2
"""Of each class."""

TRIALS, SHORT_TRIALS = 750, 60
SEEDS, SHORT_SEEDS = 48, 2
FIRST_COME = "first come"
RULES = {
    FIRST_COME: "classes ignored, no speeds",
    "placement": "speeds learned during the run, ranks of models",
}


class Measured:
    """The measured seconds of a machine on one core, by configuration.

    Any other configuration is like the nearest one of its kernel.
    """

    def __init__(self) -> None:
        document = json.loads(MEASURED.read_text())
        self._seconds: dict[str, list[float]] = defaultdict(list)
        self._points: dict[str, list[list[float]]] = defaultdict(list)
        for row in document["rows"]:
            kernel = row["kernel"]
            scale = (IMAGES / document["origin"]["images"][0]) ** document["exponents"][kernel]
            self._seconds[kernel].append(row["seconds"] * scale)
            self._points[kernel].append(_place(row))

    def seconds(self, values: Mapping[str, Any]) -> float:
        """Return the seconds of a machine of a configuration."""
        kernel = values["kernel"]
        distances = ((np.array(self._points[kernel]) - _place(values)) ** 2).sum(axis=1)
        return self._seconds[kernel][int(distances.argmin())]


def _place(values: Mapping[str, Any]) -> list[float]:
    """Return the hyper-parameters in a unit cube; those that a kernel lacks are 0."""
    return [
        math.log(values["C"] / 0.001) / math.log(15.0 / 0.001),
        values.get("gamma", 0.0) / 1000.0,
        values.get("r", 0.0) / 2000.0,
        (values.get("degree", 1) - 1) / 14.0,
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The makespan of a run, and the least that any plan for the same trials has."""

    seconds: float
    least: float


def run(measured: Measured, rule: str, workers: int, trials: int, seed: int) -> Run:
    """Return the run of a search under a rule."""

    def seconds(sequences: Sequences) -> float:
        return measured.seconds({name: sequence(0) for name, sequence in sequences.items()})

    is_blind = rule == FIRST_COME
    engine = engine_of("shadho", Blind, speeds=Unknown()) if is_blind else engine_of("shadho")
    pool = dict.fromkeys(CORES, workers)
    runner = runner_of(
        engine, lambda sequences, kind: seconds(sequences) * WAVES[kind], pool, report_every=1
    )
    forest = dt.Forest(priority=False)
    runner.run(dt.algos.Random(space(), trials=trials, max_steps=1, seed=seed, sampler=forest))
    waves = [seconds(trial.sequences) for trial in engine.trials.values()]
    work = {"all": {kind: sum(waves) * count for kind, count in WAVES.items()}}
    longest = max(waves) * min(WAVES.values())
    return Run(seconds=runner.now, least=max(least_seconds(work, pool), longest))


def measure(short: bool) -> list[Figure]:
    """Simulate the search by each rule."""
    measured = Measured()
    workers, trials = (SHORT_WORKERS, SHORT_TRIALS) if short else (WORKERS, TRIALS)
    seeds = range(SHORT_SEEDS if short else SEEDS)
    runs = {rule: [run(measured, rule, workers, trials, seed) for seed in seeds] for rule in RULES}
    first = runs[FIRST_COME]
    possible = [each.seconds / each.least for each in first]
    gains = [
        base.seconds / placed.seconds for base, placed in zip(first, runs["placement"], strict=True)
    ]
    return [
        Figure(
            name="tasks an hour of the best plan over first come",
            value=fmean(possible),
            unit="x",
            note=f"linear program; {_range(possible)}",
        ),
        Figure(
            name="tasks an hour over first come",
            value=fmean(gains),
            unit="x",
            note=f"paper: 2.0 (463 and 227); {_range(gains)}; {RULES['placement']}",
        ),
    ]


def _range(values: list[float]) -> str:
    return (
        f"{min(values):.3g} to {max(values):.3g}, deviation {pstdev(values):.2g}, "
        f"{len(values)} runs"
    )


if __name__ == "__main__":
    sys.exit(main("shadho", measure))

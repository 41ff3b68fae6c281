"""Hippo's figures: the work and the time that merging saves grids, SHA and ASHA. All simulated.

The spaces are in the manner of the paper's tables and have its merge rates, since it prints
examples, not its spaces. The errors of SHA's and ASHA's trials are made up.

References
----------
Shin et al., "Hippo: Taming Hyper-parameter Optimization of Deep Learning with Stage Trees",
Tables 1 and 5, Fig. 13.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from figures import Figure, main
from spaces import STEPS, hippo_40, hippo_144, hippo_240, hippo_448, unique_steps

import dasktune as dt
from dasktune.algos.base import Tuner
from dasktune.sequences import Constant, Piecewise
from dasktune.simulate import Simulation

GPUS = 40
"""As many as Hippo's studies had."""

GRIDS = {
    "MobileNetV2": (hippo_240, 200, GPUS, 3.144, 944.88 / 291.48, 30.29 / 10.43),
    # A trial needs several GPUs there; how many is not said.
    "BERT": (hippo_40, 300, GPUS // 4, 2.045, 808.21 / 404.21, 24.1 / 11.93),
}
"""Space, steps of a trial, workers, and the paper's merge rate, saved GPU hours and saved time."""

MIN_STEPS, ETA = 15, 4
HALVING = {"SHA": (4.84, 2.24), "ASHA": (2.70, 1.84)}
"""The paper's saved GPU hours and saved time, by tuner of its ResNet56 study."""

ANOTHER_STUDY = (
    Constant(64),
    Piecewise([128, 1024], boundaries=[60]),
    Piecewise([64, 128], boundaries=[40]),
    Piecewise([64, 512], boundaries=[100]),
)
"""Batch sizes of a second study, one of which begins like those of `hippo_144`."""


def measure(short: bool) -> list[Figure]:
    """Simulate with merging and without; all of it is short."""
    space = hippo_448()
    common = {"trials": space.size, "max_steps": STEPS, "min_steps": MIN_STEPS, "eta": ETA}
    return [
        *_grids(),
        _two_studies(),
        *_halving("SHA", lambda: dt.algos.SHA(space, sampler="grid", **common)),
        *_halving("ASHA", lambda: dt.algos.ASHA(space, sampler="grid", brackets=[0], **common)),
    ]


def _grids() -> Iterator[Figure]:
    for model, (space, steps, workers, rate, saved, faster) in GRIDS.items():
        merged, alone = (
            dt.simulate(
                dt.algos.Grid(space(), max_steps=steps),
                lambda values, step: 1.0 / step,
                workers=workers,
                report_every=steps,
                merge=merge,
            )
            for merge in (True, False)
        )
        bound = dt.preview(space(), max_steps=steps, workers=workers)
        yield Figure(
            name=f"{model} grid: work without merging over with it",
            value=alone.steps_executed / merged.steps_executed,
            unit="x",
            equals=bound.merge_rate,
            note=f"paper: {saved:.2f}, merge rate {rate}",
        )
        yield Figure(
            name=f"{model} grid: time without merging over with it",
            value=alone.seconds / merged.seconds,
            unit="x",
            note=f"paper: {faster:.2f}; {workers} workers; with merging "
            f"{merged.seconds / bound.bound_steps:.3f} times the tree bound",
        )


def _two_studies() -> Figure:
    both = dt.preview([hippo_144(), hippo_144(ANOTHER_STUDY)], max_steps=STEPS)
    rates = ", ".join(f"{study.merge_rate:.2f}" for study in both.studies)
    return Figure(
        name="steps of two studies over those that differ (q)",
        value=both.merge_rate,
        unit="x",
        note=f"paper: 2.26 (p of each 1.5 to 2.73); two spaces of 144 trials with p {rates}",
    )


def _halving(name: str, make: Callable[[], Tuner]) -> Iterator[Figure]:
    merged, alone = _simulate(make(), merge=True), _simulate(make(), merge=False)
    saved, faster = HALVING[name]
    explored = sum(trial.steps for trial in merged.trials) / unique_steps(
        (trial.sequences, trial.steps) for trial in merged.trials
    )
    yield Figure(
        name=f"{name}: steps trained without merging over with it",
        value=alone.steps_executed / merged.steps_executed,
        unit="x",
        # What SHA decides does not depend on who arrives first.
        equals=explored if name == "SHA" else None,
        note=f"paper: {saved}; {alone.steps_executed:,} and {merged.steps_executed:,}; merge rate "
        f"of what was explored {explored:.2f}",
    )
    yield Figure(
        name=f"{name}: time without merging over with it, {GPUS} workers",
        value=alone.seconds / merged.seconds,
        unit="x",
        note=f"paper: {faster}; {alone.seconds:.0f} and {merged.seconds:.0f} steps' time",
    )


def _simulate(tuner: Tuner, *, merge: bool) -> Simulation:
    return dt.simulate(tuner, error, workers=GPUS, report_every=MIN_STEPS, merge=merge)


def error(values: Mapping[str, Any], step: int) -> float:
    """Return the validation error of a made-up network.

    It falls with the steps, and lies higher by the noise of large steps: learning rate over
    batch size. The optimizer matters more than the rest, then how momentum begins, then
    weight decay. So the best of a rung agree in what no stage can be shared across, and
    differ in sequences that begin alike: what makes them good is what they share.
    """
    by_optimizer = {"adam": 0.02, "sgd": 0.035, "sgd with momentum": 0.0}
    return (
        0.06
        + by_optimizer[values["optimizer"]]
        + 0.04 * (0.9 - values.get("momentum", 0.9))
        + (0.006 if values["weight_decay"] == 1e-4 else 0.0)
        + 32.0 * values["lr"] / values["batch_size"]
        + 0.6 * math.exp(-step / 20)
    )


if __name__ == "__main__":
    sys.exit(main("hippo", measure))

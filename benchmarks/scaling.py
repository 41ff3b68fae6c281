"""The number of devices of a trial on measured scaling curves: the choice, and the makespan."""

from __future__ import annotations

import csv
import gzip
import itertools
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from figures import Figure, main

import dasktune as dt
from dasktune.engine.scaling import Scale, choose_devices

NUMBERS = (1, 2, 4, 8)
SCALE = Scale(max=8)
STEP_SECONDS = 60.0
"""A step of each model is a minute's work of one device."""

TRIALS = {"ASHA": 128, "Random": 100}
STEPS = 64
WORKERS = (16, 32)
SEEDS, SHORT_SEEDS = range(6), range(1)

MOST = 1.05
"""Numbers that were not measured are tried, which may cost some time."""

TUNERS: Mapping[str, Callable[[dt.Space, int], dt.algos.Tuner]] = {
    "ASHA": lambda space, seed: dt.algos.ASHA(
        space, trials=TRIALS["ASHA"], max_steps=STEPS, min_steps=1, eta=4, seed=seed
    ),
    "Random": lambda space, seed: dt.algos.Random(
        space, trials=TRIALS["Random"], max_steps=STEPS, seed=seed
    ),
}

Curve = Mapping[int, float]
"""The steps a second by the number of devices, as multiples of those of one."""

PLACES = {"1": "GPUs of one server", "0": "GPUs of several servers"}


def curves_of(path: Path) -> dict[tuple[str, str], dict[str, Curve]]:
    """Return the measured curves by class and place, then by model.

    Parameters
    ----------
    path
        ``gavel_throughputs.csv.gz``. Its throughputs are taken as steps of one size.
    """
    speeds: dict[tuple[str, str, str], dict[int, float]] = defaultdict(dict)
    with gzip.open(path, "rt") as file:
        for row in csv.DictReader(file):
            model = f"{row['job']} {row['batch_size']}".strip()
            key = row["gpu"], row["consolidated"], model
            speeds[key][int(row["num_gpus"])] = float(row["steps_per_sec"])
    curves: dict[tuple[str, str], dict[str, Curve]] = defaultdict(dict)
    for (gpu, place, model), each in speeds.items():
        if each.keys() == set(NUMBERS) and min(each.values()) > 0:
            curves[gpu, place][model] = {number: each[number] / each[1] for number in NUMBERS}
    return dict(curves)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The choices for one trial at a row of requests, with nothing but one device measured first.

    Parameters
    ----------
    numbers
        The number of devices of each request, until it stays the same.
    best
    The choice by the whole curve.
    """

    numbers: tuple[int, ...]
    best: int

    @property
    def is_right(self) -> bool:
        """Whether the last choice is that by the whole curve."""
        return self.numbers[-1] == self.best

    @property
    def wrong(self) -> int:
        """How many requests were trained on another number."""
        return sum(number != self.best for number in self.numbers)


def choices_on(curve: Curve) -> Choices:
    """Return the choices on a curve, of which each request measures one number more."""
    known, numbers = {1: 1.0}, [0]
    while len(numbers) < 2 or numbers[-1] != numbers[-2]:
        number = choose_devices(SCALE, most=SCALE.max, speedups=known)
        known[number] = curve[number]
        numbers.append(number)
    best = choose_devices(SCALE, most=SCALE.max, speedups=curve)
    return Choices(numbers=tuple(numbers[1:]), best=best)


def seconds_of(curves: Mapping[str, Curve], values: Mapping[str, object], devices: int) -> float:
    """Return the seconds of a step of a model on so many devices."""
    return STEP_SECONDS / curves[str(values["model"])][devices]


def makespan(
    curves: Mapping[str, Curve], *, tuner: str, workers: int, seed: int, scale: Scale | None
) -> float:
    """Return the simulated seconds of a tuner over the models of some curves."""
    space = dt.Space(model=sorted(curves), quality=dt.Float(0.0, 1.0))
    found = dt.simulate(
        TUNERS[tuner](space, seed),
        lambda values, step: float(values["quality"]) + 1.0 / step,  # type: ignore[arg-type]
        workers=workers,
        scale=scale,
        seconds_per_step=lambda values, devices: seconds_of(curves, values, devices),
    )
    return float(found.seconds)


def measure(short: bool, data: Path | None) -> list[Figure]:
    """Return the figures of the choice, then those of the makespan."""
    if data is None:
        raise SystemExit("--data must name gavel_throughputs.csv.gz")
    curves = curves_of(data)
    return [*_choice_figures(curves), *_makespan_figures(curves, short=short)]


def _choice_figures(curves: Mapping[tuple[str, str], Mapping[str, Curve]]) -> Iterable[Figure]:
    for place, where in PLACES.items():
        each = [
            choices_on(curve)
            for (_, at), models in curves.items()
            if at == place
            for curve in models.values()
        ]
        wrong = [choices.wrong for choices in each]
        best = [sum(choices.best == number for choices in each) for number in NUMBERS]
        counts = ", ".join(
            f"{number}: {count}" for number, count in zip(NUMBERS, best, strict=True)
        )
        yield Figure(
            name=f"curves with another choice than the best, {where}",
            value=sum(not choices.is_right for choices in each),
            equals=0,
            note=(
                f"of {len(each)} curves; best numbers {counts}; {statistics.fmean(wrong):.2f} "
                f"requests of a trial on another number before, {max(wrong)} at most"
            ),
        )


def _makespan_figures(
    curves: Mapping[tuple[str, str], Mapping[str, Curve]], *, short: bool
) -> Iterable[Figure]:
    seeds = SHORT_SEEDS if short else SEEDS
    pools = [(*key, models) for key, models in sorted(curves.items())]
    for tuner, workers, (gpu, place, models) in itertools.product(TUNERS, WORKERS, pools):
        run = partial(makespan, models, tuner=tuner, workers=workers)
        ratios = [run(seed=seed, scale=SCALE) / run(seed=seed, scale=None) for seed in seeds]
        yield Figure(
            name=f"makespan of {tuner} with Scale, {workers} {gpu}, {PLACES[place]}",
            value=_mean(ratios),
            unit="x",
            at_most=MOST,
            note=(
                f"over that without; {min(ratios):.2f} to {max(ratios):.2f} in "
                f"{len(ratios)} runs of {TRIALS[tuner]} trials of {len(models)} models"
            ),
        )


def _mean(ratios: Sequence[float]) -> float:
    """Return the geometric mean."""
    return math.exp(statistics.fmean(map(math.log, ratios)))


if __name__ == "__main__":
    sys.exit(main("scaling", measure, data="gavel_throughputs.csv.gz, the measured steps a second"))

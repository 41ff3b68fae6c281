"""How soon ASHA returns a configuration trained to R, and which promotions it regrets."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
from figures import Figure, main
from given import LOSS, SPACE, random_losses, with_losses

import dasktune as dt
from dasktune.types import Extend, Report

TOY = {"max_steps": 9, "min_steps": 1, "eta": 3}
"""Nine machines and nine trials, as in the paper's Figure 1."""

MANY = {"max_steps": 256, "min_steps": 4, "eta": 4}
MANY_WORKERS, MANY_TRIALS = 500, 2_000
"""As many machines as in the paper's section 4.4, and r = R/64."""

SOON, SQUARE_ROOT = 1.05, 0.6
ETA = 4
REPEATS, SIZES = 100, (100, 215, 464, 1_000, 2_154, 4_642, 10_000)
SHORT_REPEATS, SHORT_SIZES = 5, (100, 316, 1_000)


def measure(short: bool) -> list[Figure]:
    """Simulate the paper's examples; promote on a growing rung, and look back."""
    return [*_toy(), *_many(short), *_regretted(short)]


def _toy() -> list[Figure]:
    return [
        Figure(
            name="first configuration trained to R, 9 machines, R 9, eta 3, from scratch",
            value=_first(TOY, trials=9, workers=9, resume=False),
            unit="x",
            equals=13 / 9,
            note="of time(R); (1 + 3 + 9) / 9",
        ),
        Figure(
            name="first configuration trained to R, 9 machines, R 9, eta 3, resumed",
            value=_first(TOY, trials=9, workers=9, resume=True),
            unit="x",
            equals=1,
            note="of time(R)",
        ),
    ]


def _many(short: bool) -> list[Figure]:
    trials = MANY_WORKERS if short else MANY_TRIALS
    note = f"of time(R); eta 4, r = R/64, {trials:,} trials, no stragglers"
    return [
        Figure(
            name=f"first configuration trained to R, {MANY_WORKERS} machines, {how}",
            value=_first(MANY, trials=trials, workers=MANY_WORKERS, resume=resume),
            unit="x",
            at_most=bound,
            note=note,
        )
        for how, resume, bound in (("resumed", True, SOON), ("from scratch", False, 2.0))
    ]


def _first(rungs: dict[str, int], *, trials: int, workers: int, resume: bool) -> float:
    """Return when the first trial was trained to R, as a multiple of the time that R takes."""
    tuner = dt.algos.ASHA(
        SPACE, trials=trials, brackets=[0], sampler=with_losses(random_losses(trials, 0)), **rungs
    )
    ran = dt.simulate(
        tuner,
        lambda values, step: values[LOSS],
        workers=workers,
        report_every=rungs["max_steps"],
        merge=False,
        resume=resume,
    )
    return ran.completed[0] / rungs["max_steps"]


def _regretted(short: bool) -> list[Figure]:
    """Return how promotions that hindsight would not make grow with the width of a rung."""
    repeats, sizes = (SHORT_REPEATS, SHORT_SIZES) if short else (REPEATS, SIZES)
    counts = np.array([regretted(sizes, random_losses(sizes[-1], seed)) for seed in range(repeats)])
    means = counts.mean(axis=0)
    slope, intercept = np.polyfit(np.log(sizes), np.log(means), 1)
    ratios = means / np.sqrt(sizes)
    every = ", ".join(f"{mean:.1f}" for mean in means)
    half = len(sizes) // 2
    late = np.log(means[-1] / means[half]) / np.log(sizes[-1] / sizes[half])
    return [
        Figure(
            name="exponent of mispromotions in the number of configurations",
            value=float(slope),
            at_most=SQUARE_ROOT,
            note=f"c = {np.exp(intercept):.2f}; {late:.2f} from n = {sizes[half]:,} on; "
            f"{every} at n = {', '.join(f'{size:,}' for size in sizes)}; eta {ETA}, "
            f"base rung, mean of {repeats}",
        ),
        Figure(
            name="mispromotions over the square root of n, at most",
            value=float(ratios.max()),
            at_most=1.0,
            note=f"{', '.join(f'{ratio:.2f}' for ratio in ratios)}",
        ),
    ]


def regretted(sizes: Sequence[int], losses: Sequence[float]) -> list[int]:
    """Return how many of the first n configurations were promoted that are not in their top.

    Parameters
    ----------
    sizes
        The values of n, ascending.
    losses
        Those of the configurations.
    """
    tuner = dt.algos.ASHA(
        SPACE,
        trials=sizes[-1],
        max_steps=ETA,
        min_steps=1,
        eta=ETA,
        brackets=[0],
        sampler=with_losses(losses),
    )
    tuner.ask(1)
    promoted: list[float] = []
    counts = []
    for trial, loss in enumerate(losses):
        report = Report(trial=trial, step=1, metrics={LOSS: loss}, losses=(loss,))
        promoted += [losses[each.trial] for each in tuner.tell(report) if isinstance(each, Extend)]
        if trial + 1 in sizes:
            worst = sorted(losses[: trial + 1])[(trial + 1) // ETA - 1]
            counts.append(sum(each > worst for each in promoted))
    return counts


if __name__ == "__main__":
    sys.exit(main("promotions", measure))

"""How good predictions of learning curves are in a study: of the last score of each trial.

A study tries configurations of one task in a random order, on `SLOTS` slots: each trial is
trained in full, and one begins whenever another ends. A trial is asked about when 10, 20 and 40%
of its steps are known, and of the others as much as has been trained by then. Orders are drawn
at random, the same for all predictors; those of a source take turns among its tasks. Intervals
are of 95%, by drawing the orders again with replacement.

Next to `Mixture` stand the single rules that it could have followed. The published ensemble takes
seconds for a curve: it is asked about a few trials of each order (`--ensemble`), and compared on
those.

The network of the mixture was trained on curves of a prior alone (`train_predictor`). Its constants
were chosen on every other task of the sources that have several; these tasks are left out.
"""

from __future__ import annotations

import math
import sys
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import curve_families
import numpy as np
import recorded
from figures import Figure, main
from numpy.typing import NDArray
from recorded import RecordedCurve, RecordedSet
from scores import crps

from dasktune.algos.curves import (
    LEVELS,
    Branch,
    Curve,
    CurveEnsemble,
    Mixture,
    Persistence,
    Prediction,
    Predictor,
    PriorFitted,
)
from dasktune.algos.curves.curve import MOST_OTHERS, MOST_SIBLINGS, future_steps
from dasktune.algos.curves.mixture import rules
from dasktune.algos.curves.mixture.mixture import quantiles
from dasktune.algos.curves.mixture.panel import Panel
from dasktune.types import Step

PARTS = (0.1, 0.2, 0.4)
"""How much of a curve is known."""

TRIALS, SLOTS = 40, 8
"""Of a study."""

ORDERS, SHORT_ORDERS = 25, 2
BAND = 0.8
"""Share of the scores that the band should hold whose coverage is counted."""

RESOLVED = 10
"""Coverage is counted from so many predictions on whose trials have ended, and before."""

ACTIVE = 100
"""Trials that run at the same time where CPU is measured."""

MIXTURE, ENSEMBLE, NETWORK = "Mixture", "CurveEnsemble", "PriorFitted"
AHEAD = ", drop ahead"
"""After the name of a source: only trials whose learning rate drops later."""

MOST_RATIO, MOST_RATIO_AHEAD, OFF, LEAST_BEFORE, MOST_MS = 0.8, 0.9, 0.05, 0.75, 5.0
"""Bounds: of the CRPS over the best single rule's; of the coverage; of CPU for a prediction."""

DRAWS = 1000
"""How often orders are drawn again for an interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A trial as it was known at some moment of a study, and its last measurement.

    `scale` is the width of the metric's range; so many earlier predictions were of trials that have
    ended (`resolved`).
    """

    trial: int
    curve: Curve
    step: Step
    score: float
    scale: float
    resolved: int
    drop_ahead: bool


@dataclass(frozen=True, slots=True)
class SingleRule:
    """Predicts by one rule of the mixture alone; by the last score where that has no answer."""

    name: str

    def predict(self, curve: Curve, steps: tuple[Step, ...], *, seed: int = 0) -> Prediction:
        """Return the prediction of the rule."""
        answers = getattr(rules, self.name)(_material(curve, steps))
        if not answers.given[: len(steps)].all():
            return Persistence().predict(curve, steps)
        values, shares = (each[: len(steps)] for each in answers.points())
        rows = quantiles(values, shares, np.array(LEVELS))
        rows = rows.clip(curve.low, curve.high)
        return Prediction(
            after=curve.last_step,
            steps=steps,
            scores=tuple(map(tuple, rows.tolist())),
            deviations=(0.0,) * len(steps),
        )

    def identity(self) -> dict[str, object]:
        """Return the name of the rule."""
        return {"predictor": "SingleRule", "rule": self.name}


@lru_cache(maxsize=1)
def _material(curve: Curve, steps: tuple[Step, ...]) -> rules.Material:
    return rules.Material.of(Panel.of(curve, steps))


SINGLE: dict[str, Predictor] = {
    "last score": Persistence(),
    "same step": SingleRule("same"),
    "power law": SingleRule("power"),
}
"""The single rules: what a careful user would try first."""


def study(of: RecordedSet, order: int, trials: int = TRIALS, slots: int = SLOTS) -> Iterator[Asked]:
    """Yield what is asked in a study, in the order of time."""
    usable = [run for run in of.curves if math.isfinite(run.scores[-1])]
    drawn = np.random.default_rng(order).permutation(len(usable))[:trials]
    runs = [usable[place] for place in drawn]
    begins = [number / slots for number in range(len(runs))]
    shared = [_shared(run, runs) for run in runs]
    questions = sorted(
        (begin + part, number, part) for number, begin in enumerate(begins) for part in PARTS
    )
    for place, (now, number, part) in enumerate(questions):
        run = runs[number]
        seen = max(2, bisect_right(run.steps, part * run.steps[-1]))
        if seen >= len(run.steps) or not any(map(math.isfinite, run.scores[:seen])):
            continue
        branches = [
            Branch(
                at=shared[number][other],
                steps=each.steps[:known],
                scores=each.scores[:known],
                rates=each.rates,
            )
            for other, each in enumerate(runs)
            if other != number and now > begins[other]
            for known in [bisect_right(each.steps, min(now - begins[other], 1) * each.steps[-1])]
            if known
        ]
        last = run.steps[seen - 1]
        branches.sort(key=lambda branch: -branch.at)
        siblings = [each for each in branches if 0 < each.at < each.steps[-1]][:MOST_SIBLINGS]
        others = [each for each in branches if each not in siblings and each.steps[-1] > last]
        others.sort(key=lambda branch: (-branch.at, -branch.steps[-1]))
        curve = Curve(
            steps=run.steps[:seen],
            scores=run.scores[:seen],
            max_steps=run.max_steps,
            low=of.low,
            high=of.high,
            rates=run.rates,
            siblings=tuple(siblings),
            others=tuple(others[: MOST_OTHERS - len(siblings)]),
        )
        yield Asked(
            trial=number,
            curve=curve,
            step=run.steps[-1],
            score=run.scores[-1],
            scale=of.scale,
            resolved=sum(begins[other] + 1 <= now for _, other, _ in questions[:place]),
            drop_ahead=any(
                rate < before and step >= last for (_, before), (step, rate) in pairwise(run.rates)
            ),
        )


def _shared(run: RecordedCurve, runs: Sequence[RecordedCurve]) -> list[Step]:
    """Return for each run how many steps it shares with one."""
    by_scores = {branch.scores: branch.at for branch in run.siblings}
    return [by_scores.get(each.scores, 0) for each in runs]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How good one prediction was, in parts of the metric's range."""

    source: str
    order: int
    predictor: str
    crps: float
    is_covered: bool
    resolved: int
    drop_ahead: bool


def answer(name: str, predictor: Predictor, source: str, order: int, asked: Asked) -> Answer:
    """Ask a predictor."""
    steps = future_steps(asked.curve.last_step, asked.step)
    prediction = predictor.predict(asked.curve, steps, seed=asked.trial)
    low, high = prediction.interval(BAND)[-1]
    return Answer(
        source=source,
        order=order,
        predictor=name,
        crps=crps(prediction.scores[-1], asked.score) / asked.scale,
        is_covered=low <= asked.score <= high,
        resolved=asked.resolved,
        drop_ahead=asked.drop_ahead,
    )


def answers(sets: Sequence[RecordedSet], orders: int, ensemble: int) -> Iterator[Answer]:
    """Ask all predictors, and `ensemble` times in each order the published ensemble."""
    predictors = {**SINGLE, NETWORK: PriorFitted(), MIXTURE: Mixture()}
    for source in dict.fromkeys(each.source for each in sets):
        of_source = [each for each in sets if each.source == source]
        tasks = np.random.default_rng(0).permutation(len(of_source))
        for order in range(orders):
            asked = list(study(of_source[tasks[order % len(tasks)]], order))
            for each in asked:
                for name, predictor in predictors.items():
                    yield answer(name, predictor, source, order, each)
            for place in np.random.default_rng(order).permutation(len(asked))[:ensemble]:
                few = {**predictors, ENSEMBLE: CurveEnsemble()}
                for name, predictor in few.items():
                    yield answer(name, predictor, f"{source}, few", order, asked[place])
        sys.stderr.write(f"{source}\n")


# -------------------------------------------------------------------------- the figures


def measure(
    short: bool, data: Path, sources: Sequence[str], orders: int | None, ensemble: int
) -> Iterator[Figure]:
    """Yield the figures of each source, and the CPU time of a prediction."""
    made_up = [each for each in sources if each.startswith("made")]
    real = [each for each in sources if not each.startswith("made")]
    sets: list[RecordedSet] = []
    if real or not made_up:
        sets += recorded.unseen(recorded.load(data, real))
    if made_up or not real:
        sets += curve_families.load(made_up)
    every = list(answers(sets, orders or (SHORT_ORDERS if short else ORDERS), ensemble))
    for source in dict.fromkeys(each.source for each in every):
        of_source = [each for each in every if each.source == source]
        yield from source_figures(source, of_source, MOST_RATIO)
        ahead = [each for each in of_source if each.drop_ahead]
        if ahead and len(ahead) < len(of_source):
            yield from source_figures(source + AHEAD, ahead, MOST_RATIO_AHEAD)
    yield Figure(
        name=f"CPU of a prediction with {ACTIVE} active trials",
        value=cpu(Mixture()),
        unit="ms",
        at_most=MOST_MS,
    )


def source_figures(source: str, every: Sequence[Answer], most: float) -> Iterator[Figure]:
    """Yield the CRPS over that of the best single rule, with its interval, and the coverage."""
    orders = sorted({each.order for each in every})
    names = list(dict.fromkeys(each.predictor for each in every))
    sums = np.zeros((len(orders), len(names)))
    for each in every:
        sums[orders.index(each.order), names.index(each.predictor)] += each.crps
    drawn = np.random.default_rng(0).integers(len(orders), size=(DRAWS, len(orders)))
    low, high = np.quantile(_ratios(sums[drawn].sum(axis=1), names), (0.025, 0.975))
    mixed = [each for each in every if each.predictor == MIXTURE]
    means = dict(zip(names, sums.sum(axis=0) / len(mixed), strict=True))
    yield Figure(
        name=f"{source}: CRPS over that of the best single rule",
        value=float(_ratios(sums.sum(axis=0)[None], names)[0]),
        unit="x",
        at_most=most,
        note=f"{low:.2f} to {high:.2f}; {len(mixed)} predictions; CRPS "
        + ", ".join(f"{name} {mean:.4f}" for name, mean in means.items()),
    )
    before = [each.is_covered for each in mixed if each.resolved < RESOLVED]
    after = [each.is_covered for each in mixed if each.resolved >= RESOLVED]
    if before:
        yield Figure(
            name=f"{source}: missed by the 80% band before {RESOLVED} resolved predictions",
            value=round(1 - fmean(before), 6),
            at_most=1 - LEAST_BEFORE,
        )
    if after:
        yield Figure(
            name=f"{source}: coverage of the 80% band, off 80%",
            value=round(abs(fmean(after) - BAND), 6),
            at_most=OFF,
            note=f"{fmean(after):.1%} after {RESOLVED} resolved predictions",
        )


def _ratios(sums: NDArray[np.float64], names: Sequence[str]) -> NDArray[np.float64]:
    single = [names.index(name) for name in SINGLE]
    ratios: NDArray[np.float64] = sums[:, names.index(MIXTURE)] / sums[:, single].min(axis=1)
    return ratios


def cpu(predictor: Predictor, trials: int = ACTIVE) -> float:
    """Return the median milliseconds of CPU of a prediction while so many trials run."""
    rng = np.random.default_rng(0)
    steps = range(1, 101)
    curves = [0.1 * rng.standard_normal(100).cumsum() for _ in range(trials)]
    branches = [
        Branch(at=0, steps=tuple(steps[:known]), scores=tuple(scores[:known].tolist()))
        for known, scores in zip(rng.integers(40, 101, trials).tolist(), curves, strict=True)
    ]
    branches.sort(key=lambda branch: -branch.steps[-1])
    curve = Curve(
        steps=tuple(steps[:40]),
        scores=tuple(curves[0][:40].tolist()),
        max_steps=100,
        others=tuple(branches[:MOST_OTHERS]),
    )
    spent = []
    for _ in range(20):
        before = time.process_time()
        predictor.predict(curve, future_steps(40, 100))
        spent.append(1000 * (time.process_time() - before))
    return float(np.median(spent))


if __name__ == "__main__":
    sys.exit(
        main(
            "predictions",
            measure,
            data={"type": Path, "required": True, "help": "folder of recorded curves"},
            sources={"nargs": "+", "default": (), "help": "only sources that begin so"},
            orders={"type": int, "help": "studies of each source"},
            ensemble={"type": int, "default": 0, "help": f"trials for {ENSEMBLE}, an order"},
        )
    )

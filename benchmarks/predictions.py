"""How good predictions of learning curves are in a study: of the last score of each trial.

A study tries configurations of one task in a random order, on `SLOTS` slots: each trial is
trained in full, and one begins whenever another ends. A trial is asked about when 10, 20 and 40%
of its steps are known, and of the others as much as has been trained by then. Orders are drawn
at random, the same for all predictors; those of a source take turns among its tasks. Intervals
are of 95%, by drawing the orders again with replacement.

Next to `Mixture` stand the single rules that it could have followed. The published ensemble takes
seconds for a curve: it is asked about a few trials of each order (`--ensemble`), and compared on
those.

What the figures have seen: the network of the mixture was trained on curves of a prior alone
(`train_predictor`). The constants of the mixture were chosen on studies that `--choosing` takes:
schedules by the laws of that prior (`curve_studies`), and every other task of the sources that
have several. Without it these tasks are left out. The forms of the rules were written earlier,
with two of 25 studies of most sources in view.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import curve_families
import curve_studies
import numpy as np
import recorded
from figures import Figure, machine, publish
from numpy.typing import NDArray
from recorded import RecordedCurve, RecordedSet
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from scores import Score

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
from dasktune.errors import ConfigurationError
from dasktune.types import Step

PARTS = (0.1, 0.2, 0.4)
"""How much of a curve is known."""

TRIALS, SLOTS = 40, 8
"""Of a study."""

ORDERS, SHORT_ORDERS = 25, 2
CHOOSING = 1000
"""The first order of those that constants were chosen on."""

RESOLVED = 10
"""Coverage is counted from so many predictions on whose trials have ended, and before."""

ACTIVE = 100
"""Trials that run at the same time where CPU is measured."""

MIXTURE, ENSEMBLE, NETWORK = "Mixture", "CurveEnsemble", "PriorFitted"
COMPARED = (MIXTURE, NETWORK)
"""Those that are no single rule."""
AHEAD = ", drop ahead"
"""After the name of a source: only trials whose learning rate drops later."""

WIDTH = 110
"""Of the table, in characters."""

MOST_RATIO, MOST_RATIO_AHEAD, OFF, LEAST_BEFORE, MOST_MS = 0.8, 0.9, 0.05, 0.75, 5.0
"""Bounds: of the CRPS over the best single rule's; of the coverage; of CPU for a prediction."""

DRAWS = 1000
"""How often orders are drawn again for an interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A trial as it was known at some moment of a study, and what became of it.

    Parameters
    ----------
    trial, curve, step, score
        The trial, what was known of it, and its last measurement.
    scale
        The width of the metric's range.
    resolved
        How many earlier predictions were of trials that have ended.
    drop_ahead
        Whether its learning rate will drop.
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
    """How good one prediction was, and what it took in seconds of CPU."""

    source: str
    order: int
    predictor: str
    score: Score
    seconds: float
    resolved: int
    drop_ahead: bool


def answer(name: str, predictor: Predictor, source: str, order: int, asked: Asked) -> Answer:
    """Ask a predictor."""
    steps = future_steps(asked.curve.last_step, asked.step)
    before = time.process_time()
    prediction = predictor.predict(asked.curve, steps, seed=asked.trial)
    return Answer(
        source=source,
        order=order,
        predictor=name,
        score=Score.of(prediction, asked.score, scale=asked.scale),
        seconds=time.process_time() - before,
        resolved=asked.resolved,
        drop_ahead=asked.drop_ahead,
    )


def answers(
    sets: Sequence[RecordedSet], orders: int, ensemble: int, *, seed: int = 0
) -> Iterator[Answer]:
    """Ask all predictors, and `ensemble` times in each order the published ensemble."""
    predictors = {**SINGLE, NETWORK: PriorFitted(), MIXTURE: Mixture()}
    for source in dict.fromkeys(each.source for each in sets):
        of_source = [each for each in sets if each.source == source]
        tasks = np.random.default_rng(0).permutation(len(of_source))
        for order in range(orders):
            asked = list(study(of_source[tasks[order % len(tasks)]], seed + order))
            for each in asked:
                for name, predictor in predictors.items():
                    yield answer(name, predictor, source, order, each)
            for place in np.random.default_rng(order).permutation(len(asked))[:ensemble]:
                few = {**predictors, ENSEMBLE: CurveEnsemble()}
                for name, predictor in few.items():
                    yield answer(name, predictor, f"{source}, few", order, asked[place])
        sys.stderr.write(f"{source}\n")


# -------------------------------------------------------------------------- the figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """How good the predictions were on one source.

    Parameters
    ----------
    source, predictions
        Of what, and how many.
    crps
        Mean CRPS by predictor, in parts of the metric's range.
    best
        The best single rule.
    ratio, low, high
        The mixture's CRPS over that of the best single rule, with its interval.
    before, after
        How often the 80% band held the last score, before and after `RESOLVED` predictions had
        been resolved; None where there was no prediction.
    milliseconds
        Mean CPU of a prediction of the mixture.
    """

    source: str
    predictions: int
    crps: dict[str, float]
    best: str
    ratio: float
    low: float
    high: float
    before: float | None
    after: float | None
    milliseconds: float

    @classmethod
    def of(cls, source: str, found: Sequence[Answer]) -> Line:
        """Return the line of some answers."""
        orders = sorted({each.order for each in found})
        names = list(dict.fromkeys(each.predictor for each in found))
        sums = np.zeros((len(orders), len(names)))
        for each in found:
            sums[orders.index(each.order), names.index(each.predictor)] += each.score.crps
        mixed = [each for each in found if each.predictor == MIXTURE]
        others = [place for place, name in enumerate(names) if name not in COMPARED]
        drawn = np.random.default_rng(0).integers(len(orders), size=(DRAWS, len(orders)))
        low, high = np.quantile(_ratios(sums[drawn].sum(axis=1), names), (0.025, 0.975))
        totals = sums.sum(axis=0)
        best = min(others, key=lambda place: totals[place])
        return cls(
            source=source,
            predictions=len(mixed),
            crps=dict(zip(names, (totals / len(mixed)).tolist(), strict=True)),
            best=names[best],
            ratio=float(_ratios(totals[None], names)[0]),
            low=float(low),
            high=float(high),
            before=_coverage(each for each in mixed if each.resolved < RESOLVED),
            after=_coverage(each for each in mixed if each.resolved >= RESOLVED),
            milliseconds=1000 * fmean(each.seconds for each in mixed),
        )


def _ratios(sums: NDArray[np.float64], names: Sequence[str]) -> NDArray[np.float64]:
    single = [place for place, name in enumerate(names) if name not in COMPARED]
    ratios: NDArray[np.float64] = sums[:, names.index(MIXTURE)] / sums[:, single].min(axis=1)
    return ratios


def _coverage(found: Iterable[Answer]) -> float | None:
    covered = [each.score.covered for each in found]
    return fmean(covered) if covered else None


def lines(found: Sequence[Answer]) -> list[Line]:
    """Return a line for each source, and where schedules drop also one for what is ahead."""
    every = []
    for source in dict.fromkeys(each.source for each in found):
        of_source = [each for each in found if each.source == source]
        every.append(Line.of(source, of_source))
        ahead = [each for each in of_source if each.drop_ahead]
        if ahead and len(ahead) < len(of_source):
            every.append(Line.of(source + AHEAD, ahead))
    return every


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


def figures(found: Iterable[Line], milliseconds: float) -> list[Figure]:
    """Return the figures that have bounds."""
    every = []
    for line in found:
        most = MOST_RATIO_AHEAD if line.source.endswith(AHEAD) else MOST_RATIO
        every.append(
            Figure(
                name=f"{line.source}: CRPS over that of the best single rule",
                value=line.ratio,
                unit="x",
                at_most=most,
                note=f"{line.low:.2f} to {line.high:.2f}; {line.best}",
            )
        )
        if line.source.endswith((AHEAD, ", few")):
            continue
        if line.after is not None:
            every.append(
                Figure(
                    name=f"{line.source}: coverage of the 80% band, off 80%",
                    value=round(abs(line.after - 0.8), 6),
                    at_most=OFF,
                    note=f"{line.after:.1%} after {RESOLVED} resolved predictions",
                )
            )
        if line.before is not None:
            every.append(
                Figure(
                    name=f"{line.source}: missed by the 80% band before",
                    value=round(1 - line.before, 6),
                    at_most=1 - LEAST_BEFORE,
                    note=f"{line.before:.1%} held",
                )
            )
    every.append(
        Figure(
            name=f"CPU of a prediction with {ACTIVE} active trials",
            value=milliseconds,
            unit="ms",
            at_most=MOST_MS,
        )
    )
    return every


def table(found: Sequence[Line]) -> Table:
    """Return all lines as a table for a terminal."""
    title = "CRPS of the last score, in parts of the metric's range"
    made = Table(title=title, title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0))
    made.add_column("source", no_wrap=True)
    names = [*SINGLE, ENSEMBLE, NETWORK, MIXTURE]
    for name in ("n", *names, "ratio", "95%", "before", "after", "ms"):
        made.add_column(name, justify="right", no_wrap=True)
    for line in found:
        made.add_row(
            line.source,
            str(line.predictions),
            *(f"{line.crps[name]:.4f}" if name in line.crps else "" for name in names),
            f"{line.ratio:.2f}",
            f"{line.low:.2f}-{line.high:.2f}",
            "" if line.before is None else f"{line.before:.0%}",
            "" if line.after is None else f"{line.after:.0%}",
            f"{line.milliseconds:.1f}",
        )
    return made


def main() -> int:
    """Return 1 if a bound was missed, 2 if what was asked for is not there, else 0."""
    parser = argparse.ArgumentParser(prog="predictions.py")
    parser.add_argument("--data", type=Path, required=True, help="folder of recorded curves")
    parser.add_argument("--sources", nargs="+", default=(), help="only sources that begin so")
    parser.add_argument("--orders", type=int, help="studies of each source")
    parser.add_argument("--ensemble", type=int, default=0, help=f"trials for {ENSEMBLE}, an order")
    parser.add_argument("--choosing", action="store_true", help="the tasks that chose constants")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    parser.add_argument("--short", action="store_true", help="try it on something small")
    options = parser.parse_args()
    made_up = [each for each in options.sources if each.startswith("made")]
    real = [each for each in options.sources if not each.startswith("made")]
    sets: list[RecordedSet] = []
    try:
        if real or not made_up:
            sets += recorded.part(recorded.load(options.data, real), choosing=options.choosing)
        if options.choosing:
            sets += curve_studies.load()
        elif made_up or not real:
            sets += curve_families.load(made_up)
    except ConfigurationError as error:
        sys.stderr.write(f"predictions.py: {error}\n")
        return 2
    orders = options.orders or (SHORT_ORDERS if options.short else ORDERS)
    seed = CHOOSING if options.choosing else 0
    measured = lines(list(answers(sets, orders, options.ensemble, seed=seed)))
    Console(width=WIDTH).print(table(measured))
    more = {"machine": machine(), "lines": [asdict(each) for each in measured]}
    found = figures(measured, cpu(Mixture()))
    return publish("predictions", found, short=options.short, path=options.json, more=more)


if __name__ == "__main__":
    sys.exit(main())

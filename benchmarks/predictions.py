"""How good predictions of learning curves are: of the last score, from the first part of a curve.

Runs of one source are drawn at random, the same for all predictors. The plain ensemble, which
takes most of a minute for a curve, is asked about few of them, and next to it all others are
scored on those few again. Times are of CPU, for all of a prediction's future steps.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import recorded
from figures import Figure, machine, publish
from recorded import RecordedCurve, RecordedSet
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from scores import COVERED, FLOOR, Score, Scores

from dasktune.algos import curves
from dasktune.algos.curves import Predictor, Question
from dasktune.algos.curves.curve import future_steps
from dasktune.errors import ConfigurationError, unknown

PARTS = (0.1, 0.2, 0.4)
"""How much of a curve is known."""

PERSISTENCE, ENSEMBLE, FAST, PLAIN = "Persistence", "CurveEnsemble", "PriorFitted", "PlainEnsemble"
OURS = (PERSISTENCE, ENSEMBLE, FAST)

CURVES, SHORT_CURVES = 100, 3
"""Runs of each source."""

SMOOTH = ("lcbench",)
"""Sources of curves without noise: on them nobody can show that they know how sure they are."""

WIDTH = 100
"""Of the table, in characters."""

OFF, SECONDS, SPEED = 0.05, 3.0, 0.01
"""Bounds: of the coverage from 80%; of CPU for a curve; of the fast one's time over the plain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """A run that predictors are asked about, as it was known at each of `PARTS`."""

    of: RecordedSet
    run: RecordedCurve
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How good one prediction was, and what it took in seconds of CPU."""

    source: str
    part: float
    predictor: str
    score: Score
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """How good the predictions of one predictor were on one source, given one part.

    Parameters
    ----------
    source, part, predictor
        Of what; the source ``all`` is every one but `SMOOTH`, the part None all parts.
    predictions
        How many.
    scores
        What they come to.
    skill
        See `Scores.skill`; next to persistence.
    seconds
        Mean of CPU for a prediction.
    beside_plain
        Whether on the few runs that the plain ensemble was asked about.
    """

    source: str
    part: float | None
    predictor: str
    predictions: int
    scores: Scores
    skill: float
    seconds: float
    beside_plain: bool


def challenges(sets: Iterable[RecordedSet], count: int, seed: int = 0) -> list[Challenge]:
    """Return so many runs of each source, drawn at random: the fewer are among the more."""
    by_source: dict[str, list[Challenge]] = {}
    for of in sets:
        known = by_source.setdefault(of.source, [])
        for run in of.curves:
            if all(of.asked(run, part) is not None for part in PARTS):
                known.append(Challenge(of=of, run=run, number=len(known)))
    drawn = []
    for known in by_source.values():
        order = np.random.default_rng(seed).permutation(len(known))[:count]
        drawn += [known[place] for place in order]
    return drawn


def answers(name: str, predictor: Predictor, asked: Iterable[Challenge]) -> Iterator[Answer]:
    """Ask a predictor about runs, at each of `PARTS`."""
    for question_of in asked:
        for part in PARTS:
            known = question_of.of.asked(question_of.run, part)
            if known is None:
                continue
            steps = future_steps(known.curve.last_step, known.step)
            question = Question(
                predictor=predictor, curve=known.curve, steps=steps, seed=question_of.number
            )
            before = time.process_time()
            prediction = question.answer()
            yield Answer(
                source=question_of.of.source,
                part=part,
                predictor=name,
                score=Score.of(prediction, known.score, scale=question_of.of.scale),
                seconds=time.process_time() - before,
            )


def lines(found: Sequence[Answer], *, beside_plain: bool) -> list[Line]:
    """Return the scores of answers: by source and part, by source, and all together."""
    sources = list(dict.fromkeys(each.source for each in found))
    names = list(dict.fromkeys(each.predictor for each in found))
    noisy = [each for each in found if each.source not in SMOOTH]
    groups = [
        (
            source,
            part,
            [each for each in found if each.source == source and part in (each.part, None)],
        )
        for source in sources
        for part in (*PARTS, None)
    ]
    groups.append(("all", None, noisy))
    every = []
    for source, part, of_group in groups:
        by_name = {name: [each for each in of_group if each.predictor == name] for name in names}
        plainest = by_name.get(PERSISTENCE) or by_name[names[0]]
        if not plainest:
            continue
        baseline = Scores.of(each.score for each in plainest)
        for name, of_one in by_name.items():
            scores = Scores.of(each.score for each in of_one)
            every.append(
                Line(
                    source=source,
                    part=part,
                    predictor=name,
                    predictions=len(of_one),
                    scores=scores,
                    skill=scores.skill(baseline),
                    seconds=sum(each.seconds for each in of_one) / len(of_one),
                    beside_plain=beside_plain,
                )
            )
    return every


def made(name: str) -> Predictor:
    """Return the predictor of a name.

    Raises
    ------
    ConfigurationError
        If there is none.
    """
    module = importlib.import_module("curve_reference") if name == PLAIN else curves
    if name not in (*OURS, PLAIN) or not hasattr(module, name):
        raise ConfigurationError(unknown("predictor", name, (*OURS, PLAIN)))
    predictor: Predictor = getattr(module, name)()
    return predictor


def measure(
    sets: Sequence[RecordedSet], names: Iterable[str], count: int, plain: int
) -> list[Line]:
    """Return the lines of all predictors on `count` runs of each source, and beside the plain."""
    predictors = {name: made(name) for name in names}
    asked = challenges(sets, count)
    answered = [item for name, each in predictors.items() for item in answers(name, each, asked)]
    every = lines(answered, beside_plain=False)
    if plain:
        few = challenges(sets, plain)
        predictors[PLAIN] = made(PLAIN)
        answered = [
            answer for name, each in predictors.items() for answer in answers(name, each, few)
        ]
        every += lines(answered, beside_plain=True)
    return every


# -------------------------------------------------------------------------- the figures


def figures(found: Iterable[Line]) -> list[Figure]:
    """Return the figures that have bounds."""
    by_place = {
        (each.beside_plain, each.source, each.predictor): each
        for each in found
        if each.part is None
    }
    every: list[Figure] = []
    for (beside, source, name), line in by_place.items():
        if name in (PERSISTENCE, PLAIN):
            continue
        if not beside:
            every += _alone(line, by_place.get((False, source, PERSISTENCE)))
        elif source == "all":
            every += _next_to_plain(line, by_place[True, source, PLAIN])
    return every


def _alone(line: Line, persistence: Line | None) -> Iterator[Figure]:
    """Return how a predictor does on a source, next to persistence."""
    where = f"{line.predictor}, {line.source}"
    note = f"{line.predictions} predictions"
    if persistence is not None:
        yield _nll(f"{where}: NLL less persistence's", line, persistence)
        yield _crps(f"{where}: CRPS over persistence's", line, persistence)
    if line.source not in SMOOTH:
        coverage = line.scores.coverage
        yield Figure(
            name=f"{where}: coverage of the 80% interval, off 80%",
            value=round(abs(coverage - COVERED), 6),
            at_most=OFF,
            note=f"{coverage:.1%}; {note}",
        )
    if line.source == "all" and line.predictor == ENSEMBLE:
        yield Figure(
            name=f"{where}: CPU for a curve",
            value=line.seconds,
            unit="s",
            at_most=SECONDS,
            note=note,
        )


def _next_to_plain(line: Line, plain: Line) -> Iterator[Figure]:
    """Return how a predictor does on the few runs that the plain ensemble was asked about."""
    yield _nll(f"{line.predictor}: NLL less the plain ensemble's", line, plain)
    yield _crps(f"{line.predictor}: CRPS over the plain ensemble's", line, plain)
    yield Figure(
        name=f"{line.predictor}: CPU over the plain ensemble's",
        value=line.seconds / plain.seconds,
        unit="x",
        at_most=SPEED if line.predictor == FAST else 1.0,
        note=f"{1000 * line.seconds:.3g} ms and {plain.seconds:.3g} s for a curve",
    )


def _nll(name: str, line: Line, other: Line) -> Figure:
    values = line.scores.nll, other.scores.nll
    return Figure(
        name=name,
        value=values[0] - values[1],
        unit="nats",
        at_most=0.0,
        note=f"{values[0]:.3f} and {values[1]:.3f}; {line.predictions} predictions",
    )


def _crps(name: str, line: Line, other: Line) -> Figure:
    values = line.scores.crps, other.scores.crps
    return Figure(
        name=name,
        value=values[0] / values[1],
        unit="x",
        at_most=1.0,
        note=f"{values[0]:.4f} and {values[1]:.4f}; {line.predictions} predictions",
    )


def table(found: Iterable[Line]) -> Table:
    """Return all lines as a table for a terminal."""
    title = f"the last score, in parts of its range; NLL read to {FLOOR:g}"
    made = Table(title=title, title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0))
    for name in ("source", "known", "predictor"):
        made.add_column(name, no_wrap=True)
    for name in ("n", "NLL", "CRPS", "skill", "in 80%", "median error", "mean", "ms"):
        made.add_column(name, justify="right", no_wrap=True)
    for line in found:
        made.add_row(
            line.source + (" (few)" if line.beside_plain else ""),
            "" if line.part is None else f"{line.part:.0%}",
            line.predictor,
            str(line.predictions),
            f"{line.scores.nll:.3f}",
            f"{line.scores.crps:.4f}",
            f"{line.skill:.3f}",
            f"{line.scores.coverage:.1%}",
            f"{line.scores.median_error:.4f}",
            f"{line.scores.mean_error:.4f}",
            f"{1000 * line.seconds:.3g}",
        )
    return made


def main() -> int:
    """Return 1 if a bound was missed, 2 if what was asked for is not there, else 0."""
    parser = argparse.ArgumentParser(prog="predictions.py")
    parser.add_argument("--data", type=Path, required=True, help="folder of recorded curves")
    parser.add_argument("--sources", nargs="+", default=(), help="only files that begin so")
    parser.add_argument("--predictors", nargs="+", default=OURS, choices=OURS)
    parser.add_argument("--curves", type=int, help="runs of each source")
    parser.add_argument("--plain", type=int, default=0, help=f"of which {PLAIN} is asked about")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    parser.add_argument("--short", action="store_true", help="try it on something small")
    options = parser.parse_args()
    count = options.curves or (SHORT_CURVES if options.short else CURVES)
    try:
        sets = recorded.load(options.data, options.sources)
        measured = measure(sets, options.predictors, count, options.plain)
    except ConfigurationError as error:
        sys.stderr.write(f"predictions.py: {error}\n")
        return 2
    Console(width=WIDTH).print(table(measured))
    more = {"machine": machine(), "lines": [asdict(each) for each in measured]}
    return publish(
        "predictions", figures(measured), short=options.short, path=options.json, more=more
    )


if __name__ == "__main__":
    sys.exit(main())

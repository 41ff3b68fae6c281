"""The learning curves that a tuner has observed, with the known future of their trials."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any, Final

from dasktune.algos.curves.curve import MOST_OTHERS, MOST_SIBLINGS, Branch, Curve
from dasktune.errors import unknown
from dasktune.sequences.values import Arguments
from dasktune.space import Space
from dasktune.types import Register, Sequences, Step, ValueFunction

RATE_NAMES: Final = ("lr", "learning_rate")
"""Names of a hyper-parameter that is the learning rate."""

MOST_RATES: Final = 64
"""The largest number of values of a learning rate that are kept."""

MOST_PIECES: Final = 64
"""The largest number of changes of a hyper-parameter that are kept."""

Pieces = tuple[tuple[Step, str], ...]
"""``(step, text)``: a value or formula from that step on. Trials with equal pieces are equal."""


class ObservedCurves:
    """The scores of each trial, larger is better, and the course of its sequences.

    Parameters
    ----------
    rate
        Name of the learning rate, which a trial of another branch of the space may lack. If None,
        the first of `RATE_NAMES` that a trial has.
    """

    def __init__(self, rate: str | None = None) -> None:
        self._rate = rate
        self.best = -math.inf
        """The best score of all trials."""
        self._steps: dict[int, list[Step]] = {}
        self._scores: dict[int, list[float]] = {}
        self._rates: dict[int, tuple[tuple[Step, float], ...]] = {}
        self._pieces: dict[int, dict[str, Pieces]] = {}

    def register(self, trial: Register) -> None:
        """Add a new trial, with its sequences."""
        number, stop = trial.trial, trial.max_steps
        self._steps[number], self._scores[number] = [], []
        self._rates[number] = rates_of(trial.sequences, stop, self._rate)
        self._pieces[number] = {
            name: pieces_of(function, stop) for name, function in sorted(trial.sequences.items())
        }
        if trial.seed:
            self._pieces[number][""] = ((0, str(trial.seed)),)

    def observe(self, trial: int, step: Step, score: float) -> None:
        """Add a score, finite or not; steps of a trial ascend."""
        self._steps[trial].append(step)
        self._scores[trial].append(score)
        self.best = max(self.best, score)

    def steps(self, trial: int) -> list[Step]:
        """Return the steps that a trial has reported at."""
        return self._steps[trial]

    def scores(self, trial: int) -> list[float]:
        """Return the scores that a trial has reported."""
        return self._scores[trial]

    def curve(
        self, trial: int, *, max_steps: Step, low: float | None = None, high: float | None = None
    ) -> Curve:
        """Return the curve of a trial, with those of the study's other trials.

        The others are those that are known further than this one; of many, those that share
        most with it or were trained furthest.
        """
        partings = self._partings(trial, max_steps)
        siblings = self._siblings(partings)
        last = self._steps[trial][-1] if self._steps[trial] else 0
        others = [
            pair
            for pair in sorted(partings, key=lambda pair: (-pair[0], -self._steps[pair[1]][-1]))
            if pair not in siblings and self._steps[pair[1]][-1] > last
        ]
        return Curve(
            steps=tuple(self._steps[trial]),
            scores=tuple(self._scores[trial]),
            max_steps=max_steps,
            low=low,
            high=high,
            rates=self._rates[trial],
            siblings=tuple(itertools.starmap(self._branch, siblings)),
            others=tuple(itertools.starmap(self._branch, others[: MOST_OTHERS - len(siblings)])),
        )

    def _siblings(self, partings: list[tuple[Step, int]]) -> list[tuple[Step, int]]:
        """Return the trials that begin alike and have scores after they part."""
        return [(at, other) for at, other in partings if 0 < at < self._steps[other][-1]][
            :MOST_SIBLINGS
        ]

    def _partings(self, trial: int, max_steps: Step) -> list[tuple[Step, int]]:
        """Return the other trials with scores, each after the step at which it parts.

        Those that share most come first.
        """
        partings = [
            (parting(self._pieces[trial], self._pieces[other], max_steps), other)
            for other, steps in self._steps.items()
            if other != trial and steps
        ]
        return sorted(partings, key=lambda pair: (-pair[0], pair[1]))

    def _branch(self, at: Step, other: int) -> Branch:
        return Branch(
            at=at,
            steps=tuple(self._steps[other]),
            scores=tuple(self._scores[other]),
            rates=self._rates[other],
        )

    def to_json(self) -> list[dict[str, object]]:
        """Return all as JSON: scores that are not finite become text."""
        return [
            {
                "trial": trial,
                "steps": list(steps),
                "scores": [score if abs(score) < float("inf") else str(score) for score in scores],
                "rates": [list(pair) for pair in self._rates[trial]],
                "pieces": {
                    name: [list(pair) for pair in pieces]
                    for name, pieces in self._pieces[trial].items()
                },
            }
            for trial, steps in self._steps.items()
            for scores in [self._scores[trial]]
        ]

    @classmethod
    def from_json(
        cls, document: list[Mapping[str, Any]], rate: str | None = None
    ) -> ObservedCurves:
        """Return the curves of such a document; `rate` is as for a new object."""
        curves = cls(rate)
        for entry in document:
            trial = entry["trial"]
            curves._steps[trial] = list(entry["steps"])
            curves._scores[trial] = list(map(float, entry["scores"]))
            curves.best = max([curves.best, *curves._scores[trial]])
            curves._rates[trial] = tuple((step, rate) for step, rate in entry["rates"])
            curves._pieces[trial] = {
                name: tuple((step, text) for step, text in pieces)
                for name, pieces in entry["pieces"].items()
            }
        return curves


def checked_rate(check: Arguments, rate: object, space: object) -> str | None:
    """Return the name of a learning rate, or None; `check` keeps the problem.

    Only some branches of the space need to have it.
    """
    if rate is not None and not (isinstance(rate, str) and rate):
        check.add(f"rate must be the name of a hyper-parameter, got {rate!r}")
        return None
    if rate is not None and isinstance(space, Space) and rate not in space.names:
        check.add(f"rate: {unknown('hyper-parameter', rate, sorted(space.names))}")
    return rate


def rates_of(
    sequences: Sequences, max_steps: Step, name: str | None = None
) -> tuple[tuple[Step, float], ...]:
    """Return a trial's learning rate from each step on at which it changes.

    A rate that changes at every step is sampled at `MOST_RATES` steps, and where its form
    changes.

    Parameters
    ----------
    sequences
        The trial's hyper-parameters.
    max_steps
        The largest step that it may be trained to.
    name
        Of the learning rate; if None, the first of `RATE_NAMES` that there is.

    Examples
    --------
    >>> from dasktune.sequences import Constant
    >>> rates_of({"lr": Constant(0.1)[:30] >> Constant(0.01)}, 60)
    ((0, 0.1), (30, 0.01))
    """
    names = RATE_NAMES if name is None else (name,)
    known = next((known for known in names if known in sequences), None)
    if known is None:
        return ()
    function = sequences[known]
    values = [(step, function(step)) for step in _telling_steps(function, max_steps)]
    if not all(type(value) in (int, float) for _, value in values):
        return ()
    return tuple(
        (step, float(value))  # type: ignore[arg-type]
        for place, (step, value) in enumerate(values)
        if place == 0 or value != values[place - 1][1]
    )


def _telling_steps(function: ValueFunction, max_steps: Step) -> list[Step]:
    """Return the steps at which a value jumps; with a grid of others if it changes in between."""
    jumps = [0, *function.boundaries(0, max_steps)]
    if len(jumps) > MOST_RATES:
        last = len(jumps) - 1
        jumps = [jumps[place * last // (MOST_RATES - 1)] for place in range(MOST_RATES)]
    ends = [*jumps[1:], max_steps]
    changes = [function.constant_until(step) for step in jumps]
    if all(change is None or change >= end for change, end in zip(changes, ends, strict=True)):
        return jumps
    grid = (place * max_steps // MOST_RATES for place in range(MOST_RATES))
    return sorted({*jumps, *grid})


def pieces_of(function: ValueFunction, max_steps: Step) -> Pieces:
    """Return the values of a hyper-parameter, each with its first step; at last maybe a formula.

    After `MOST_PIECES` changes a formula stands for the rest.

    Examples
    --------
    >>> from dasktune.sequences import Constant
    >>> pieces_of(Constant(0.1)[:30] >> Constant(0.01), 60)
    ((0, '0.1'), (30, '0.01'))
    """
    pieces: list[tuple[Step, str]] = []
    step = 0
    while step < max_steps:
        change = function.constant_until(step)
        if change is None or len(pieces) < MOST_PIECES:
            pieces.append((step, repr(function(step))))
            step = max_steps if change is None else change
        else:
            leaf, counted_from, end = function.leaf_at(step)
            pieces.append((step, f"{leaf!r} from {counted_from}"))
            step = max_steps if end is None else end
    return tuple(pieces)


def parting(first: Mapping[str, Pieces], second: Mapping[str, Pieces], max_steps: Step) -> Step:
    """Return the first step at which two trials differ; `max_steps` if they do not before."""
    if first.keys() != second.keys():
        return 0
    return min(
        (_parting(pieces, second[name], max_steps) for name, pieces in first.items()),
        default=max_steps,
    )


def _parting(first: Pieces, second: Pieces, max_steps: Step) -> Step:
    if first == second:
        return max_steps
    for step in sorted({step for step, _ in (*first, *second)}):
        if _ruling(first, step) != _ruling(second, step):
            return step
    return max_steps


def _ruling(pieces: Pieces, step: Step) -> str:
    place = bisect_right(pieces, step, key=lambda pair: pair[0])
    return pieces[place - 1][1]

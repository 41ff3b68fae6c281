"""The learning curves that a tuner has seen, with what is known of their trials' future."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any, Final

from dasktune.algos.curves.curve import MOST_SIBLINGS, Branch, Curve
from dasktune.types import Register, Sequences, Step, ValueFunction

RATE_NAMES: Final = ("lr", "learning_rate")
"""Names by which a hyper-parameter is taken for the learning rate."""

MOST_RATES: Final = 64
"""Values of a learning rate that are kept of a trial."""

MOST_PIECES: Final = 64
"""Changes of a hyper-parameter that are kept of a trial."""

Pieces = tuple[tuple[Step, str], ...]
"""From which step on what rules; two trials are alike as long as all their pieces are."""


class ObservedCurves:
    """What was reported of each trial, and what its sequences will be.

    Scores are larger-is-better.
    """

    def __init__(self) -> None:
        self.best = -math.inf
        """The best score of all trials."""
        self._steps: dict[int, list[Step]] = {}
        self._scores: dict[int, list[float]] = {}
        self._rates: dict[int, tuple[tuple[Step, float], ...]] = {}
        self._pieces: dict[int, dict[str, Pieces]] = {}

    def register(self, trial: Register) -> None:
        """Take in the sequences of a new trial."""
        number, stop = trial.trial, trial.max_steps
        self._steps[number], self._scores[number] = [], []
        self._rates[number] = rates_of(trial.sequences, stop)
        self._pieces[number] = {
            name: pieces_of(function, stop) for name, function in sorted(trial.sequences.items())
        }
        if trial.seed:
            self._pieces[number][""] = ((0, str(trial.seed)),)

    def observe(self, trial: int, step: Step, score: float) -> None:
        """Take in a score, finite or not; steps of a trial ascend."""
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
        """Return the curve of a trial, with its siblings'."""
        return Curve(
            steps=tuple(self._steps[trial]),
            scores=tuple(self._scores[trial]),
            max_steps=max_steps,
            low=low,
            high=high,
            rates=self._rates[trial],
            siblings=self._siblings(trial, max_steps),
        )

    def _siblings(self, trial: int, max_steps: Step) -> tuple[Branch, ...]:
        """Return the trials that begin like one and were seen beyond where they part."""
        found = []
        for other, steps in self._steps.items():
            if other == trial or not steps:
                continue
            at = parting(self._pieces[trial], self._pieces[other], max_steps)
            if 0 < at < steps[-1]:
                found.append((at, other))
        found.sort(key=lambda pair: (-pair[0], pair[1]))
        return tuple(
            Branch(
                at=at,
                steps=tuple(self._steps[other]),
                scores=tuple(self._scores[other]),
                rates=self._rates[other],
            )
            for at, other in found[:MOST_SIBLINGS]
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
    def from_json(cls, document: list[Mapping[str, Any]]) -> ObservedCurves:
        """Return what `to_json` described."""
        found = cls()
        for one in document:
            trial = one["trial"]
            found._steps[trial] = list(one["steps"])
            found._scores[trial] = list(map(float, one["scores"]))
            found.best = max([found.best, *found._scores[trial]])
            found._rates[trial] = tuple((step, rate) for step, rate in one["rates"])
            found._pieces[trial] = {
                name: tuple((step, text) for step, text in pieces)
                for name, pieces in one["pieces"].items()
            }
        return found


def rates_of(
    sequences: Sequences, max_steps: Step, name: str | None = None
) -> tuple[tuple[Step, float], ...]:
    """Return a trial's learning rate from each step on at which it changes.

    One that changes at every step is taken at `MOST_RATES` of them, and where its form changes.

    Parameters
    ----------
    sequences
        The trial's hyper-parameters.
    max_steps
        How far it may be trained.
    name
        Of the learning rate; if None, the first of `RATE_NAMES` that there is.

    Examples
    --------
    >>> from dasktune.sequences import Constant
    >>> rates_of({"lr": Constant(0.1)[:30] >> Constant(0.01)}, 60)
    ((0, 0.1), (30, 0.01))
    """
    names = RATE_NAMES if name is None else (name,)
    found = next((one for one in names if one in sequences), None)
    if found is None:
        return ()
    function = sequences[found]
    values = [(step, function(step)) for step in _telling_steps(function, max_steps)]
    if not all(type(value) in (int, float) for _, value in values):
        return ()
    return tuple(
        (step, float(value))  # type: ignore[arg-type]
        for place, (step, value) in enumerate(values)
        if place == 0 or value != values[place - 1][1]
    )


def _telling_steps(function: ValueFunction, max_steps: Step) -> list[Step]:
    """Return the steps at which a value jumps, and others in between where it changes always."""
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
    """Return what rules a hyper-parameter from which step on: a value, or in the end a formula.

    What changes more than `MOST_PIECES` times is known by its formula from there on.

    Examples
    --------
    >>> from dasktune.sequences import Constant
    >>> pieces_of(Constant(0.1)[:30] >> Constant(0.01), 60)
    ((0, '0.1'), (30, '0.01'))
    """
    found: list[tuple[Step, str]] = []
    step = 0
    while step < max_steps:
        change = function.constant_until(step)
        if change is None or len(found) < MOST_PIECES:
            found.append((step, repr(function(step))))
            step = max_steps if change is None else change
        else:
            leaf, counted_from, end = function.leaf_at(step)
            found.append((step, f"{leaf!r} from {counted_from}"))
            step = max_steps if end is None else end
    return tuple(found)


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

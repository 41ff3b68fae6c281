"""Made-up studies to measure predictions on; no predictor was built or trained with them.

================  ============================================================
source            its curves
================  ============================================================
``made_drops``    schedules: a gain of 0.02 to 0.3 where the learning rate drops, late in the
                  training; trials are bit-identical up to where their schedules part
``made_rises``    two exponentials
``made_falls``    the same, most of which fall from some step on
``made_late``     a plateau that most leave late, at once or slowly
``made_ends``     as ``made_drops``, but no rate drops in the first 60% of the training
================  ============================================================

The noise of a study is 0.001 to 0.03.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise, product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from recorded import RecordedCurve, RecordedSet

from dasktune.algos.curves import Branch

Array = NDArray[Any]
Random = np.random.Generator
Rates = tuple[tuple[int, float], ...]

STUDIES = 25
"""Studies of each source."""

TRIALS = 40


def load(sources: Sequence[str] = ()) -> list[RecordedSet]:
    """Return the studies of the sources that begin so; of all if none are named."""
    wanted = tuple(sources) or tuple(MAKERS)
    return [
        _set(source, number, make(np.random.default_rng((1, place, number))))
        for place, (source, make) in enumerate(MAKERS.items())
        if source.startswith(wanted)
        for number in range(STUDIES)
    ]


def _set(source: str, number: int, curves: Iterator[RecordedCurve]) -> RecordedSet:
    return RecordedSet(
        name=f"{source} {number}",
        source=source,
        task=str(number),
        curves=tuple(curves),
        metric="accuracy",
        maximize=True,
        low=0.0,
        high=1.0,
    )


def _steps(rng: Random) -> Array:
    return np.arange(1, int(rng.integers(40, 121)) + 1.0)


def _noise(rng: Random) -> float:
    return float(np.exp(rng.uniform(np.log(0.001), np.log(0.03))))


def _curve(steps: Array, scores: Array, **others: Any) -> RecordedCurve:
    return RecordedCurve(
        steps=tuple(steps.astype(int).tolist()),
        scores=tuple(np.clip(scores, 0, 1).tolist()),
        max_steps=len(steps),
        **others,
    )


def _drops(rng: Random, first_part: float = 0.45) -> Iterator[RecordedCurve]:
    steps, noise = _steps(rng), _noise(rng)
    count = len(steps)
    gain, settling = rng.uniform(0.02, 0.3), rng.uniform(0.5, 0.04 * count)
    laws = [
        (rng.uniform(0.35, 0.65), rng.uniform(0.02, 0.15) * count, gain * rng.uniform(0.7, 1.3))
        for _ in range(4)
    ]
    places = np.arange(int(first_part * count), int(0.9 * count))
    drops = sorted(rng.choice(places, 5, replace=False).tolist())
    plans = [
        (law, first, second)
        for law, first in product(range(len(laws)), drops)
        for second in [*[drop for drop in drops if drop > first][:2], count]
    ]
    shocks: dict[tuple[int, ...], Array] = {}
    made = []
    for plan in [plans[place] for place in rng.permutation(len(plans))[:TRIALS]]:
        law, first, second = plan
        level, pace, size = laws[law]
        scores = level * (1 - np.exp(-((steps / pace) ** 0.8)))
        # Noise depends on the schedule so far alone: trials are equal up to where they part.
        pieces = ((0, (law,)), (first, (law, first)), (second, (law, first, second)), (count, ()))
        for (begin, key), (end, _) in pairwise(pieces):
            drawn = shocks.setdefault(key, rng.standard_normal(count))
            scores[begin:end] += noise * drawn[begin:end]
        for drop, part in ((first, 1.0), (second, 0.35)):
            scores += part * size * (1 - np.exp(-np.maximum(steps - drop, 0) / settling))
        rate = 0.1 * (law + 1)
        rates: Rates = ((0, rate), (first, rate / 10), (second, rate / 100))
        made.append((plan, _curve(steps, scores, rates=rates[: 3 if second < count else 2])))
    for plan, curve in made:
        siblings = tuple(
            Branch(at=at, steps=other.steps, scores=other.scores, rates=other.rates)
            for another, other in made
            if another != plan
            for at in [_parting(plan, another)]
            if at > 0
        )
        yield RecordedCurve(
            steps=curve.steps,
            scores=curve.scores,
            max_steps=curve.max_steps,
            rates=curve.rates,
            siblings=siblings,
        )


def _parting(plan: tuple[int, int, int], other: tuple[int, int, int]) -> int:
    """Return the step at which two plans part; 0 if their first rates differ."""
    if plan[0] != other[0]:
        return 0
    pair = (plan[1], other[1]) if plan[1] != other[1] else (plan[2], other[2])
    return min(pair)


def _rising(rng: Random, steps: Array) -> Array:
    size, pace = rng.uniform(0.3, 0.8), np.exp(rng.uniform(np.log(0.02), np.log(0.5)))
    past = steps / (pace * len(steps))
    return np.asarray(0.1 + size * (1 - 0.6 * np.exp(-past) - 0.4 * np.exp(-past / 6)))


def _rises(rng: Random) -> Iterator[RecordedCurve]:
    steps, noise = _steps(rng), _noise(rng)
    for _ in range(TRIALS):
        yield _curve(steps, _rising(rng, steps) + noise * rng.standard_normal(len(steps)))


def _falls(rng: Random) -> Iterator[RecordedCurve]:
    steps, noise = _steps(rng), _noise(rng)
    for _ in range(TRIALS):
        begin, size = rng.uniform(0.1, 0.9), rng.uniform(0.05, 0.4) * (rng.random() < 0.7)
        fall = size * np.maximum(steps / len(steps) - begin, 0)
        yield _curve(steps, _rising(rng, steps) - fall + noise * rng.standard_normal(len(steps)))


def _late(rng: Random) -> Iterator[RecordedCurve]:
    steps, noise = _steps(rng), _noise(rng)
    usual = rng.uniform(0.3, 0.8)
    for _ in range(TRIALS):
        begin = np.clip(usual + 0.2 * rng.normal(), 0.05, 1.5)
        rise = 1 / (1 + np.exp(-(steps / len(steps) - begin) / rng.uniform(0.01, 0.08)))
        size = rng.uniform(0.3, 0.8) * (rng.random() < 0.8)
        yield _curve(steps, 0.1 + size * rise + noise * rng.standard_normal(len(steps)))


MAKERS: Mapping[str, Callable[[Random], Iterator[RecordedCurve]]] = {
    "made_drops": _drops,
    "made_rises": _rises,
    "made_falls": _falls,
    "made_late": _late,
    "made_ends": partial(_drops, first_part=0.6),
}
"""By the name of a source: what makes the curves of one study."""

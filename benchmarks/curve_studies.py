"""Studies of schedules by the laws of the prior (`curve_prior`): constants are chosen on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

import numpy as np
from curve_prior import Array, Random, _compressed, _Law, _schedules
from recorded import RecordedCurve, RecordedSet

from dasktune.algos.curves import Branch

STUDIES = 25
"""Studies of schedules."""

LAWS, TRIALS_OF_LAW = 4, 10
"""How many laws a study has, which differ a little, and the trials of each."""

APART = 0.3
"""The standard deviation of the logarithm of what two laws of a study differ by."""

RANGE = (0.1, 0.95)
"""The least and largest score of a study, without noise."""


def load() -> list[RecordedSet]:
    """Return the studies."""
    return [
        RecordedSet(
            name=f"drawn_schedules {number}",
            source="drawn_schedules",
            task=str(number),
            curves=tuple(_curves(np.random.default_rng((2, number)))),
            metric="accuracy",
            maximize=True,
            low=0.0,
            high=1.0,
        )
        for number in range(STUDIES)
    ]


def _curves(rng: Random) -> Iterator[RecordedCurve]:
    count = int(rng.integers(30, 121))
    law = _Law.drawn(rng, count)
    groups = []
    for _ in range(LAWS):
        changes = {
            each.name: getattr(law, each.name) * float(np.exp(APART * rng.normal()))
            for each in fields(law)
        }
        rates = _schedules(rng, count, TRIALS_OF_LAW - 1)
        groups.append(
            (0.1 * np.exp(rng.normal()), rates, _scores(rng, replace(law, **changes), rates))
        )
    clean = np.concatenate([scores.ravel() for *_, scores in groups])
    low, high = np.percentile(clean, [2, 98])
    scale = (RANGE[1] - RANGE[0]) / max(high - low, 1e-9)
    steps = tuple(range(1, count + 1))
    for peak, rates, scores in groups:
        rows = np.clip(RANGE[0] + scale * (scores - low), 0, 1).tolist()
        known = [_compressed(peak * each) for each in rates]
        for place, own in enumerate(rates):
            siblings = tuple(
                Branch(at=at, steps=steps, scores=tuple(rows[other]), rates=known[other])
                for other, each in enumerate(rates)
                if other != place
                for at in [_shared(own, each)]
                if at > 0
            )
            yield RecordedCurve(
                steps=steps,
                scores=tuple(rows[place]),
                max_steps=count,
                rates=known[place],
                siblings=siblings,
            )


def _scores(rng: Random, law: _Law, rates: list[Array]) -> Array:
    """Return scores with noise; trials are equal up to where their rates part."""
    shocks: list[Array] = []
    rows = []
    for own in rates:
        shared = [_shared(own, each) for each in rates[: len(shocks)]]
        drawn = rng.standard_normal(len(own))
        if shared:
            at = max(shared)
            drawn[:at] = shocks[shared.index(at)][:at]
        shocks.append(drawn)
        clean = law.run(own)
        rows.append(clean + law.noise(own, clean) * drawn)
    return np.array(rows)


def _shared(own: Array, other: Array) -> int:
    """Return the steps that two schedules share."""
    return int(np.argmin(np.append(own == other, False)))

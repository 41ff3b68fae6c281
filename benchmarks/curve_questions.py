"""Questions that a predictor learns from: drawn curves, as another might know them.

Each is a beginning of a curve, thinned out, with or without its bounds, learning rates and
siblings, and future steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from curve_prior import Array, Random, Record, draw
from torch import Tensor

from dasktune.algos.curves import Branch, Curve
from dasktune.algos.curves.network.features import Features, describe

FRACTIONS = (0.1, 0.2, 0.4)

# ------------------------------------------------------------------------------ questions


@dataclass(frozen=True, slots=True)
class Question:
    """A beginning of a curve, future steps, what was measured there and the unit of errors."""

    curve: Curve
    steps: tuple[int, ...]
    truths: tuple[float, ...]
    spread: float


def asked(rng: Random, record: Record) -> Question | None:
    """Return a question about a changed copy of a record, or None."""
    record = _perhaps_thinned(rng, record)
    count, steps = len(record.scores), record.steps
    fraction = rng.choice(FRACTIONS) if rng.random() < 0.4 else np.exp(rng.uniform(-3.9, -0.05))
    seen = min(max(round(fraction * count), 2 if rng.random() < 0.9 else 1), count - 1)
    ahead = np.unique(np.append(rng.integers(seen, count, 2), count - 1))
    ahead = ahead[np.isfinite(record.scores[ahead])]
    kept = np.arange(seen)
    if rng.random() < 0.15:  # seldom measured, or not always
        kept = kept[:: int(rng.integers(1, 6))] if rng.random() < 0.5 else _some(rng, kept)
    if not len(ahead) or not np.isfinite(record.scores[kept]).any():
        return None
    every = int(rng.integers(2, 500)) if rng.random() < 0.3 else 1
    end = record.max_steps
    if rng.random() < 0.25:  # it is stopped early, or would be trained for longer
        end = max(int(end * rng.uniform(0.5, 2.5)), int(steps[-1]))
    bounds = rng.random() < 0.75
    rates = record.rates if rng.random() < 0.85 else ()
    curve = Curve(
        steps=tuple((steps[kept] * every).tolist()),
        scores=tuple(record.scores[kept].tolist()),
        max_steps=end * every,
        low=record.low if bounds else None,
        high=record.high if bounds else None,
        rates=tuple((step * every, rate) for step, rate in rates),
        siblings=_branches(rng, record, int(steps[kept[-1]]), every),
    )
    truths = tuple(record.scores[ahead].tolist())
    return Question(curve, tuple((steps[ahead] * every).tolist()), truths, record.spread)


def _some(rng: Random, places: Array) -> Array:
    chosen = places[rng.random(len(places)) < rng.uniform(0.3, 1.0)]
    return chosen if len(chosen) else places[-1:]


def _perhaps_thinned(rng: Random, record: Record) -> Record:
    if rng.random() < 0.15 and len(record.scores) >= 20:
        return _thinned(record, int(rng.integers(2, max(len(record.scores) // 8, 3))))
    return record


def _thinned(record: Record, every: int) -> Record:
    """Return every so manieth measurement of a record and its siblings."""
    kin = tuple((at, _thinned(sibling, every)) for at, sibling in record.siblings)
    part = slice(every - 1, None, every)
    return replace(record, steps=record.steps[part], scores=record.scores[part], siblings=kin)


def _branches(rng: Random, record: Record, last: int, every: int) -> tuple[Branch, ...]:
    """Return some siblings, each trained as far as it may have been by then."""
    kin = [(at, sibling) for at, sibling in record.siblings if at > 0 and len(sibling.steps)]
    if rng.random() < 0.5:  # only those that branched off before
        kin = [(at, each) for at, each in kin if at <= last]
    if not kin or rng.random() < 0.3:
        return ()
    many = len(kin) if rng.random() < 0.3 else min(int(rng.integers(1, 9)), len(kin))
    branches = []
    for place in rng.choice(len(kin), min(many, 16), replace=False):
        at, other = kin[place]
        count = len(other.scores)
        length = count if rng.random() < 0.6 else int(rng.integers(1, count + 1))
        branches.append(
            Branch(
                at=at * every,
                steps=tuple((other.steps[:length] * every).tolist()),
                scores=tuple(other.scores[:length].tolist()),
                rates=tuple((step * every, rate) for step, rate in other.rates),
            )
        )
    return tuple(branches)


@dataclass(frozen=True, slots=True)
class Examples:
    """Questions as a network is given them, one row for each future step."""

    rows: Tensor
    truths: Tensor
    below: Tensor
    above: Tensor
    spreads: Tensor

    @classmethod
    def of(cls, questions: Iterable[Question]) -> Examples:
        """Return the examples that questions come to."""
        parts: list[Features] = []
        truths, spreads = [], []
        for question in questions:
            description = describe(question.curve, question.steps)
            parts.append(description)
            truths.append((np.array(question.truths) - description.origin) / description.scale)
            spreads.append(np.full(len(question.steps), question.spread / description.scale))
        sizes = [len(part.rows) for part in parts]
        return cls(
            torch.tensor(np.concatenate([part.rows for part in parts]), dtype=torch.float32),
            torch.tensor(np.concatenate(truths), dtype=torch.float32).clamp(-1e7, 1e7),
            torch.tensor(np.repeat([part.below for part in parts], sizes), dtype=torch.float32),
            torch.tensor(np.repeat([part.above for part in parts], sizes), dtype=torch.float32),
            torch.tensor(np.concatenate(spreads), dtype=torch.float32).clamp(1e-3, 1e7),
        )

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, places: Tensor) -> Examples:
        return Examples(
            self.rows[places],
            self.truths[places],
            self.below[places],
            self.above[places],
            self.spreads[places],
        )


def examples(rng: Random, count: int) -> Examples:
    """Return the examples of `count` questions about curves of the prior."""
    rng.random(count)  # once chose among more kinds of curves; without it a seed draws others
    questions = (asked(rng, draw(rng)) for _ in range(count))
    return Examples.of(question for question in questions if question is not None)

"""Questions that a predictor learns from: curves, recorded or drawn, as another might know them.

Each is a beginning of a curve, brought into another unit, thinned out, with or without its bounds,
learning rates and siblings, and future steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from curve_prior import Array, Random, Record, draw
from recorded import RecordedSet
from torch import Tensor

from dasktune.algos.curves import Branch, Curve
from dasktune.algos.curves.network.features import Features, describe

FRACTIONS = (0.1, 0.2, 0.4)
PARTS = {
    "prior": 0.39,
    "algoperf": 0.13,
    "taskset": 0.12,
    "lcbench": 0.09,
    "rl": 0.13,
    "own_mlp": 0.05,
    "own_stage": 0.09,
}
"""Which part of the questions is about which curves."""


# ------------------------------------------------------------------------ recorded curves


def records_of(sets: Iterable[RecordedSet]) -> list[Record]:
    """Return the runs of recorded sets; siblings are records, too."""
    records = []
    for of in sets:
        runs = [
            _record(of, curve.steps, curve.scores, curve.max_steps, curve.rates)
            for curve in of.curves
        ]
        for run, source_curve in zip(runs, of.curves, strict=True):
            kin = tuple(
                (branch.at, _record(of, branch.steps, branch.scores, run.max_steps, branch.rates))
                for branch in source_curve.siblings
            )
            records.append(replace(run, siblings=kin))
    return records


def _record(
    of: RecordedSet,
    steps: tuple[int, ...],
    scores: tuple[float, ...],
    max_steps: int,
    rates: tuple[tuple[int, float], ...],
) -> Record:
    return Record(
        kind=of.source,
        group=group_of(of),
        steps=np.array(steps),
        scores=np.array(scores),
        max_steps=max_steps,
        low=of.low,
        high=of.high,
        rates=rates,
        spread=of.scale,
    )


def group_of(of: RecordedSet) -> str:
    """Return the group that is held out together: all variants and trials of a task."""
    return "own" if of.source.startswith("own") else f"{of.source} {of.task}"


# ------------------------------------------------------------------------------ questions


@dataclass(frozen=True, slots=True)
class Question:
    """A beginning of a curve, future steps, what was measured there and the unit of errors."""

    curve: Curve
    steps: tuple[int, ...]
    truths: tuple[float, ...]
    spread: float
    group: str


def asked(rng: Random, record: Record) -> Question | None:
    """Return a question about a changed copy of a record, or None."""
    record = _another_unit(rng, record)
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
    return Question(
        curve, tuple((steps[ahead] * every).tolist()), truths, record.spread, record.group
    )


def _some(rng: Random, places: Array) -> Array:
    chosen = places[rng.random(len(places)) < rng.uniform(0.3, 1.0)]
    return chosen if len(chosen) else places[-1:]


def _another_unit(rng: Random, record: Record) -> Record:
    """Return the record in another unit, thinned out, bent or, rarely, upside down."""
    if rng.random() < 0.15 and len(record.scores) >= 20:
        every = int(rng.integers(2, max(len(record.scores) // 8, 3)))
        record = _thinned(record, every)
    if record.kind == "prior":
        return record
    if rng.random() < 0.2 and record.low is not None and record.high is not None:
        return _bent(record, power=float(np.exp(rng.uniform(-1, 1))), size=10 ** rng.uniform(-1, 1))
    if rng.random() < 0.05:
        return _straight(record, -1.0, 0.0)
    if rng.random() < 0.25:
        factor = float(10 ** rng.uniform(-2, 2))
        shift = float(rng.normal() * factor * record.spread) if rng.random() < 0.5 else 0.0
        return _straight(record, factor, shift)
    return record


def _thinned(record: Record, every: int) -> Record:
    """Return every so manieth measurement of a record and its siblings."""
    kin = tuple((at, _thinned(sibling, every)) for at, sibling in record.siblings)
    part = slice(every - 1, None, every)
    return replace(record, steps=record.steps[part], scores=record.scores[part], siblings=kin)


def _straight(record: Record, factor: float, shift: float) -> Record:
    """Return the record and its siblings in another unit; larger need not be better."""
    ends = (record.low, record.high) if factor > 0 else (record.high, record.low)
    low, high = (None if end is None else factor * end + shift for end in ends)
    return replace(
        record,
        scores=factor * record.scores + shift,
        low=low,
        high=high,
        spread=abs(factor) * record.spread,
        siblings=tuple((at, _straight(sibling, factor, shift)) for at, sibling in record.siblings),
    )


def _bent(record: Record, power: float, size: float) -> Record:
    """Return the record and its siblings as losses: a power of the distance to what is best."""
    if record.low is None or record.high is None:
        return record
    part = (record.high - record.scores) / (record.high - record.low)
    return replace(
        record,
        scores=-size * np.maximum(part, 0.0) ** power,
        low=-size,
        high=0.0,
        spread=size,
        siblings=tuple((at, _bent(sibling, power, size)) for at, sibling in record.siblings),
    )


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
    folds: Tensor

    @classmethod
    def of(cls, questions: Iterable[Question], folds: Mapping[str, int]) -> Examples:
        """Return the examples that questions come to."""
        parts: list[Features] = []
        truths, spreads, places = [], [], []
        for question in questions:
            description = describe(question.curve, question.steps)
            parts.append(description)
            truths.append((np.array(question.truths) - description.origin) / description.scale)
            places.append(folds.get(question.group, -1))
            spreads.append(np.full(len(question.steps), question.spread / description.scale))
        sizes = [len(part.rows) for part in parts]
        return cls(
            torch.tensor(np.concatenate([part.rows for part in parts]), dtype=torch.float32),
            torch.tensor(np.concatenate(truths), dtype=torch.float32).clamp(-1e7, 1e7),
            torch.tensor(np.repeat([part.below for part in parts], sizes), dtype=torch.float32),
            torch.tensor(np.repeat([part.above for part in parts], sizes), dtype=torch.float32),
            torch.tensor(np.concatenate(spreads), dtype=torch.float32).clamp(1e-3, 1e7),
            torch.tensor(np.repeat(places, sizes)),
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
            self.folds[places],
        )


def examples(
    rng: Random, records: Sequence[Record], count: int, folds: Mapping[str, int]
) -> Examples:
    """Return the examples of `count` questions, by `PARTS`; those of the prior are of fold -1."""
    kinds = defaultdict(lambda: defaultdict(list))  # type: ignore[var-annotated]
    for record in records:
        kinds[record.kind][record.group].append(record)

    def questions() -> Iterable[Question]:
        names = [name for name in PARTS if name in kinds or name == "prior"]
        parts = np.array([PARTS[name] for name in names])
        for name in rng.choice(names, count, p=parts / parts.sum()):
            if name == "prior":
                record = draw(rng)
            else:
                groups = kinds[name]
                group = groups[list(groups)[int(rng.integers(len(groups)))]]
                record = group[int(rng.integers(len(group)))]
            question = asked(rng, record)
            if question is not None:
                yield question

    return Examples.of(questions(), folds)

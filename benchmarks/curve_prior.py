"""Learning curves drawn from a prior: what training may look like, the learning rate included.

A drawn curve comes with its learning rate and with siblings, trials that begin alike. Eleven
parametric families (Domhan et al. 2015) are one part of the prior; learning rates that drop,
curves that never learn or learn late, that crash, diverge or walk at random are the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Random = np.random.Generator


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A whole learning curve, larger is better.

    Parameters
    ----------
    kind, group
        Where it comes from, and the task among those.
    steps, scores
        What was measured.
    max_steps
        How far it was meant to go on.
    low, high
        The bounds of its metric.
    rates
        Its learning rate; empty if it is not known.
    siblings
        ``(steps it shares, record)`` of others that begin alike.
    spread
        The unit in which errors count: how far its task's curves end apart.
    """

    kind: str
    group: str
    steps: Array
    scores: Array
    max_steps: int
    low: float | None = None
    high: float | None = None
    rates: tuple[tuple[int, float], ...] = ()
    siblings: tuple[tuple[int, Record], ...] = field(default=(), repr=False)
    spread: float = 1.0


def draw(rng: Random) -> Record:
    """Return one curve of the prior."""
    count = int(np.exp(rng.uniform(np.log(10), np.log(400))))
    kinds: tuple[tuple[float, Callable[[Random, int], Record]], ...] = (
        (0.36, _families),
        (0.36, _scheduled),
        (0.10, _chance),
        (0.10, _late),
        (0.08, _walk),
    )
    chances = [chance for chance, _ in kinds]
    kind = kinds[int(rng.choice(len(kinds), p=chances))][1]
    return _metric(rng, kind(rng, count))


def _record(scores: Array, **others: Any) -> Record:
    count = len(scores)
    steps = np.arange(1, count + 1)
    return Record(
        kind="prior", group="prior", steps=steps, scores=scores, max_steps=count, **others
    )


# The eleven families, as functions of x = 1, 2, ...; parameters wide around their usual starts.


def _family(rng: Random, x: Array) -> Array:
    """Return one of the families, brought to rise from 0 to 1 where it rises at all."""
    log = np.log
    near = lambda low, high: float(np.exp(rng.uniform(log(low), log(high))))  # noqa: E731
    end = x[-1]
    shapes: tuple[Callable[[], Array], ...] = (
        lambda: np.exp(-near(0.1, 20) / x + rng.uniform(0, 0.2) * log(x)),
        lambda: -(x ** -near(0.02, 2)),
        lambda: log(near(0.1, 5) * log(x) + near(0.3, 5)),
        lambda: x ** (e := near(0.3, 4)) / (near(0.01, 1) * end**e + x**e),
        lambda: 1 / (1 + (x / (near(0.005, 1) * end)) ** -near(0.3, 4)),
        lambda: -((near(0.05, 20) * x + near(0.1, 5)) ** -near(0.05, 2)),
        lambda: -1 / (1 + (x / (near(0.01, 1) * end)) ** near(0.5, 5)),
        lambda: -np.exp(-near(0.3, 6) * (x / end) ** near(0.2, 1.5)),
        lambda: -np.exp(-near(0.05, 1) * x ** near(0.2, 1.0)),
        lambda: -np.exp(-((x / (near(0.01, 1.0) * end)) ** near(0.4, 3))),
        lambda: -1 / log(x + 1),
    )
    shape = shapes[int(rng.integers(len(shapes)))]()
    return (shape - shape[0]) / max(float(np.ptp(shape)), 1e-9)


def _families(rng: Random, count: int) -> Record:
    x = np.arange(1.0, count + 1)
    if rng.random() < 0.3:  # measured every few epochs
        x *= rng.integers(2, 20)
    parts = int(rng.integers(1, 4))
    weights = rng.dirichlet(np.ones(parts))
    scores = sum(weight * _family(rng, x) for weight in weights)
    if rng.random() < 0.2:  # over-fitting
        peak = rng.uniform(0.05, 0.8) * count
        scores = scores - rng.uniform(0, 0.6) * np.maximum(np.arange(count) - peak, 0) / count
    return _record(_noisy(rng, np.asarray(scores)), rates=_constant(rng))


def _constant(rng: Random) -> tuple[tuple[int, float], ...]:
    return ((0, float(10 ** rng.uniform(-4, 0))),) if rng.random() < 0.3 else ()


# Learning rates that change.


def _schedules(rng: Random, count: int, many: int) -> list[Array]:
    """Return the rates of trials that begin alike, one for each step, the largest about 1."""
    kinds = (_stepwise, _stepwise, _stepwise, _cosine, _linear, _exponential)
    draw_one = kinds[int(rng.integers(len(kinds)))]
    first = draw_one(rng, count)
    if rng.random() < 0.25:  # warm-up
        length = max(int(rng.uniform(0.01, 0.15) * count), 1)
        first[:length] *= (np.arange(length) + 1.0) / (length + 1)
    schedules = [first]
    for _ in range(many):
        other = schedules[int(rng.integers(len(schedules)))].copy()
        at = int(rng.uniform(0.0, 0.9) * count)
        if rng.random() < 0.85:
            tail = (_stepwise, _stepwise, _kept)[int(rng.integers(3))](rng, count)
            other[at:] = other[max(at - 1, 0)] * tail[at:] / tail[max(at - 1, 0)]
        schedules.append(other)
    return schedules


def _kept(rng: Random, count: int) -> Array:
    return np.ones(count)


def _stepwise(rng: Random, count: int) -> Array:
    rates = np.ones(count)
    for _ in range(int(rng.integers(1, 4))):
        rates[int(rng.uniform(0.1, 0.95) * count) :] *= float(rng.choice([0.1, 0.2, 0.3, 0.5]))
    return rates


def _cosine(rng: Random, count: int) -> Array:
    floor = float(rng.choice([0.0, 0.01, 0.1]))
    return floor + (1 - floor) * 0.5 * (1 + np.cos(np.pi * np.arange(count) / count))


def _linear(rng: Random, count: int) -> Array:
    begin = rng.uniform(0, 0.8) if rng.random() < 0.5 else 0.0
    left = 1 - (np.arange(count) / count - begin) / (1 - begin)
    return np.clip(left, rng.choice([1e-3, 0.01, 0.1]), 1.0)


def _exponential(rng: Random, count: int) -> Array:
    every = int(rng.integers(1, max(count // 8, 2)))
    return float(rng.uniform(0.05, 0.7)) ** (np.arange(count) // every * every / count * 4)


def _scheduled(rng: Random, count: int) -> Record:
    """Return a curve whose rate changes: noise of large steps falls away where it drops."""
    many = int(rng.integers(0, 7)) if rng.random() < 0.6 else 0
    schedules = _schedules(rng, count, many)
    law = _Law.drawn(rng, count)
    shocks = rng.standard_normal(count)
    peak = float(10 ** rng.uniform(-4, 0))
    # Steps too large may end it for good, whatever the rate is later; siblings die alike. Most
    # die soon after the start, at once or over many steps.
    death = int(rng.beta(0.5, 2.0) * (count - 1))
    alive = rng.uniform(0.2, 0.95) if rng.random() < 0.14 else np.inf
    fall = float(np.exp(rng.uniform(math.log(0.2), math.log(0.2 * count))))
    records = []
    for rates in schedules:
        clean = law.run(rates)
        at = int(np.argmin(np.append(rates == schedules[0], False)))
        own = shocks.copy()
        own[at:] = rng.standard_normal(count - at)
        scores = clean + law.noise(rates, clean) * own
        if rates[death] > alive:
            floor = float(scores.min())
            scores = floor + (scores - floor) * np.exp(
                -np.maximum(np.arange(count) - death, 0) / fall
            )
        records.append((at, _record(scores, rates=_compressed(rates * peak))))
    siblings = [(at, record) for at, record in records[1:] if at > 0]
    known = rng.random() < 0.6
    first = records[0][1]
    return replace(first, siblings=tuple(siblings), rates=first.rates if known else ())


@dataclass(frozen=True, slots=True)
class _Law:
    """How a score answers to the learning rate."""

    gain: float
    clock: float
    slow: float
    cost: float
    power: float
    settle: float
    level: float
    jitter: float
    unstable: float
    overfit: float

    @classmethod
    def drawn(cls, rng: Random, count: int) -> _Law:
        near = lambda low, high: float(np.exp(rng.uniform(np.log(low), np.log(high))))  # noqa: E731
        cost = near(0.01, 0.8)
        return cls(
            gain=1.0,
            clock=count * near(0.01, 1.0),
            slow=near(0.25, 1.2),
            cost=cost,
            power=rng.uniform(0.3, 1.2),
            settle=max(near(0.002, 0.1) * count, 0.3),
            # What large steps cost shows in their noise.
            level=cost * near(0.02, 0.5) if rng.random() < 0.8 else near(2e-4, 0.06),
            jitter=rng.uniform(0.2, 1.0),
            unstable=0.0 if rng.random() < 0.88 else rng.uniform(0.5, 1.0),
            overfit=0.0 if rng.random() < 0.7 else near(0.01, 0.2),
        )

    def run(self, rates: Array) -> Array:
        """Return the scores without noise."""
        done = np.cumsum(rates**0.5) / self.clock
        rise = self.gain * (1 - (1 + done) ** (-1 / self.slow))
        target = self.cost * rates**self.power
        excess = np.empty_like(target)
        current = float(target[0])
        keep = math.exp(-1 / self.settle)
        for place, wanted in enumerate(target):
            current = wanted + (current - wanted) * keep
            excess[place] = current
        fine = rates < self.unstable if self.unstable else np.ones(len(rates), bool)
        low = np.where(fine, 1.0, 0.05)
        late = np.cumsum(rates < 0.3) / len(rates)
        return (rise - excess) * low - self.overfit * late

    def noise(self, rates: Array, clean: Array) -> Array:
        """Return the standard deviation of the noise."""
        return self.level * rates**self.jitter + 0.1 * self.level


def _compressed(rates: Array) -> tuple[tuple[int, float], ...]:
    places = np.flatnonzero(np.diff(rates, prepend=np.nan) != 0)
    return tuple((int(place), float(rates[place])) for place in places)


# Curves that do not learn, or not yet, and those that walk.


def _chance(rng: Random, count: int) -> Record:
    level = 10 ** rng.uniform(-5, -1)
    scores = level * rng.standard_normal(count)
    if rng.random() < 0.3:
        scores = np.round(scores / level) * level * (rng.random(count) < rng.uniform(0, 1))
    if rng.random() < 0.4:  # something is learnt before, or forgotten
        size = 10 ** rng.uniform(-2, 1) * float(rng.choice([-1, 1]))
        scores = scores + size * np.exp(-np.arange(count) / (rng.uniform(0.005, 0.1) * count))
    return _record(scores, rates=_constant(rng))


def _late(rng: Random, count: int) -> Record:
    """Return a curve that leaves a plateau, at once or slowly, and may fall back."""
    time = np.arange(count) / count
    begin = rng.uniform(0.02, 1.1)
    speed = 10 ** rng.uniform(-2.5, -0.3)
    rise = 1 - np.exp(-np.maximum(time - begin, 0) / speed)
    level = 10 ** rng.uniform(-4, -1)
    scores = rise + level * (0.1 + rise * rng.uniform(0, 5)) * rng.standard_normal(count)
    if rng.random() < 0.4:
        scores = scores + 0.3 * rng.random() * _family(rng, np.arange(1.0, count + 1))
    return _record(_crashes(rng, scores), rates=_constant(rng))


def _walk(rng: Random, count: int) -> Record:
    """Return a walk that is drawn to a level that itself may rise, as returns in RL are."""
    pull = 10 ** rng.uniform(-2.5, -0.3)
    step = 10 ** rng.uniform(-2, -0.5)
    level = rng.uniform(0, 1.5) * _family(rng, np.arange(1.0, count + 1))
    walk = np.zeros(count)
    shocks = step * rng.standard_normal(count)
    for place in range(1, count):
        walk[place] = walk[place - 1] * (1 - pull) + shocks[place]
    noise = 10 ** rng.uniform(-3, -0.5) * rng.standard_normal(count)
    return _record(_crashes(rng, level + walk + noise))


def _noisy(rng: Random, scores: Array) -> Array:
    count = len(scores)
    level = 10 ** rng.uniform(-4.5, -0.8)
    shocks = rng.standard_normal(count)
    if rng.random() < 0.3:
        shocks = rng.standard_t(3, count)
    if rng.random() < 0.3:  # what is off stays off for a while
        keep = rng.uniform(0.2, 0.9)
        for place in range(1, count):
            shocks[place] = keep * shocks[place - 1] + (1 - keep**2) ** 0.5 * shocks[place]
    if rng.random() < 0.5:  # it gets calmer, or wilder
        shocks = shocks * np.linspace(1, 10 ** rng.uniform(-1.5, 0.5), count)
    return _crashes(rng, scores + level * shocks)


def _crashes(rng: Random, scores: Array) -> Array:
    """Return the scores, some of them with falls that recover at once, slowly or never."""
    if rng.random() < 0.8:
        return scores
    count, fallen = len(scores), scores.copy()
    for _ in range(int(rng.integers(1, 5))):
        at = int(rng.integers(count))
        depth = rng.uniform(0.1, 1.2) * max(float(np.ptp(scores)), 1e-3)
        lasting = 10 ** rng.uniform(-2.5, 1) * count
        fallen[at:] -= depth * np.exp(-np.arange(count - at) / lasting)
    return fallen


# Units.


def _metric(rng: Random, record: Record) -> Record:
    """Return the record, its siblings with it, in the unit of some metric."""
    family = [record, *(sibling for _, sibling in record.siblings)]
    size = max(float(np.percentile(np.abs(record.scores - record.scores.mean()), 98)), 1e-9)
    changed: list[Array]
    low: float | None
    high: float | None
    match int(rng.integers(4)):
        case 0 | 1:  # an accuracy
            bottom = rng.choice([0.0, 0.1, 0.5, float(rng.uniform(0, 0.9))])
            width = (1 - bottom) * rng.uniform(0.05, 1.0) / (2 * size)
            start = record.scores[: max(len(record.scores) // 20, 1)].mean()
            changed = [np.clip(bottom + width * (each.scores - start), 0, 1) for each in family]
            if rng.random() < 0.3:
                grains = float(rng.choice([100, 500, 1000, 5000]))
                changed = [np.round(each * grains) / grains for each in changed]
            low, high = 0.0, 1.0
        case 2:  # a loss that falls
            depth = rng.uniform(0.1, 4.0) / (2 * size)
            top = 10 ** rng.uniform(-1.5, 1)
            exponents = [depth * (record.scores[0] - each.scores) for each in family]
            changed = [-top * np.exp(np.clip(exponent, -12, 12)) for exponent in exponents]
            low, high = None, 0.0
        case _:
            width = 10 ** rng.uniform(-1, 4) / size
            shift = rng.normal() * width * size * 3
            changed = [shift + width * each.scores for each in family]
            low, high = None, None
    done = [
        replace(each, scores=new, low=low, high=high)
        for each, new in zip(family, changed, strict=True)
    ]
    kin: Sequence[tuple[int, Record]] = [
        (at, each) for (at, _), each in zip(record.siblings, done[1:], strict=True)
    ]
    spread = max(float(np.ptp(done[0].scores)) * 0.3, 1e-3 * float(np.abs(done[0].scores).max()))
    return replace(done[0], siblings=tuple(kin), spread=max(spread, 1e-9))

"""What a network is told of a learning curve: numbers without a unit, one row for each step.

Scores are counted from the last one in units of the curve's own recent movement, and pressed
together by asinh, so that noise around a plateau and a jump a thousand times as large are both
told apart. A curve and the same curve in another unit give the same rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dasktune.algos.curves.curve import Branch, Curve
from dasktune.types import Step

Array = NDArray[np.float64]

FORM: Final = 1
"""Counts up whenever rows come out differently: weights fit one form."""

LIMIT: Final = 12.0
"""No compressed score and no logarithm is told as larger."""

_HUGE = 1e100
"""A larger score is taken for this one: its square must be a number, too."""

_LAGS = np.array([2, 3, 4, 6, 9, 13, 20])
_KNOTS = np.array([0.0, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 1.0])
_RECENT = np.array([2, 4, 8, 16, 32])
_DROP = -0.3
"""Logarithm of the ratio from which on a falling learning rate counts as a drop."""

_LEAST_RATE = 1e-4
"""Rates are counted from this part of the largest one on: a schedule may end at 0."""

_MOST_SIBLINGS = 16

_RANGES = 25.0
"""So many times what a curve of ten points has moved it may move yet, if no bound is known."""


@dataclass(frozen=True, slots=True)
class Features:
    """What a network is told, and how its answer is to be read.

    Parameters
    ----------
    rows
        ``(steps, features)``.
    origin
        The last score.
    scale
        The unit in which scores are counted from there; positive.
    noise
        Standard deviation of a single measurement, estimated.
    below, above
        How far the score can fall and rise from the origin, compressed. Where no bound is known
        it is some ranges of what was seen, or the way to zero where that is not too far.
    """

    rows: Array
    origin: float
    scale: float
    noise: float
    below: float
    above: float


def describe(curve: Curve, steps: tuple[Step, ...]) -> Features:
    """Return what a network is told of a curve's score at future steps.

    It does not check the question.
    """
    seen = _Seen.of(curve)
    ahead = np.asarray(steps, float)
    constant = np.concatenate((seen.extent(), seen.shape(), seen.movement(), seen.room()))
    rows = np.column_stack(
        (
            np.tile(constant, (len(ahead), 1)),
            seen.distance(ahead),
            seen.extrapolated(ahead),
            _schedule(seen, ahead),
            _kin(seen, ahead),
        )
    )
    below, above = seen.bounds()
    return Features(
        rows=np.clip(np.nan_to_num(rows, posinf=LIMIT, neginf=-LIMIT), -LIMIT, LIMIT),
        origin=seen.origin,
        scale=seen.scale,
        noise=seen.noise * seen.scale,
        below=below,
        above=above,
    )


@dataclass(frozen=True, slots=True)
class _Seen:
    """A curve's finite scores: `values` are counted from the last one, in `scale`, as is `noise`.

    `gap` is the usual distance between two measurements, `end` where the curve ends.
    """

    curve: Curve
    times: Array
    values: Array
    origin: float
    scale: float
    noise: float
    gap: float
    end: float

    @classmethod
    def of(cls, curve: Curve) -> _Seen:
        times, scores = np.array(curve.measured, float).T
        scores = np.clip(scores, -_HUGE, _HUGE)
        gap = float(np.median(np.diff(times))) if len(times) > 1 else max(times[0], 1.0)
        scale, noise = _unit(curve, scores)
        return cls(
            curve=curve,
            times=times,
            values=(scores - scores[-1]) / scale,
            origin=float(scores[-1]),
            scale=scale,
            noise=noise / scale,
            gap=gap,
            end=float(max(curve.max_steps, times[-1] + 1)),
        )

    def compress(self, score: float) -> float:
        """Return a score counted from the last one, a large distance pressed together."""
        return float(np.arcsinh((score - self.origin) / self.scale))

    def extent(self) -> Array:
        """Return how much has been seen."""
        last, count = self.times[-1], len(self.times)
        return np.array(
            [
                np.log(count),
                np.log(max(last, 0.5) / self.end),
                last / self.end,
                np.log(self.end / self.gap),
                np.log1p((self.curve.last_step - last) / self.gap),
            ]
        )

    def shape(self) -> Array:
        """Return the past: single scores, means of parts and means of the last few."""
        count = len(self.values)
        sums = np.concatenate(([0.0], np.cumsum(self.values)))
        places = np.arange(count + 1)
        knots = np.interp(_KNOTS * count, places, sums)
        parts = np.diff(knots) / (np.diff(_KNOTS) * count)
        recent = np.minimum(_RECENT, count)
        last = (sums[-1] - sums[count - recent]) / recent
        single = self.values[np.maximum(count - _LAGS, 0)]
        found: Array = np.arcsinh(np.concatenate((single, parts, last)))
        return found

    def movement(self) -> Array:
        """Return noise, range, extremes and how often the score rose."""
        values, count = self.values, len(self.values)
        changes = np.diff(values)
        recent = changes[len(changes) // 2 :]
        best, worst = int(np.argmax(values)), int(np.argmin(values))
        turn = 0.0
        if count > 3:
            centred = changes - changes.mean()
            turn = float(centred[1:] @ centred[:-1] / (centred @ centred + 1e-300))
        return np.array(
            [
                _log(self.noise),
                _log(np.ptp(values)),
                _log(np.ptp(values[count // 2 :])),
                np.arcsinh(values[best]),
                np.arcsinh(values[worst]),
                (best + 1) / count,
                (worst + 1) / count,
                float((changes > 0).mean()) if count > 1 else 0.5,
                float((recent > 0).mean()) if count > 1 else 0.5,
                float((changes == 0).mean()) if count > 1 else 0.0,
                turn,
            ]
        )

    def room(self) -> Array:
        """Return how far it is to the bounds, and to zero: many a metric ends there."""
        low, high, last = self.curve.low, self.curve.high, self.origin
        return np.array(
            [
                float(low is not None),
                float(high is not None),
                0.0 if low is None else self.compress(low),
                0.0 if high is None else self.compress(high),
                self.compress(0.0),
                0.0 if low is None or high is None else (last - low) / (high - low),
            ]
        )

    def bounds(self) -> tuple[float, float]:
        """Return how far the score can fall and rise, compressed."""
        spread = float(np.ptp(self.values)) or 20.0
        reach = _RANGES * spread * max(1.0, 10.0 / len(self.values))
        zero = abs(self.origin) / self.scale
        to_zero = max(reach, zero) if zero < 40.0 * reach else reach
        falls, rises = (to_zero, reach) if self.origin > 0 else (reach, to_zero)
        low, high = self.curve.low, self.curve.high
        return (
            float(np.arcsinh(falls)) if low is None else max(-self.compress(low), 0.0),
            float(np.arcsinh(rises)) if high is None else max(self.compress(high), 0.0),
        )

    def distance(self, ahead: Array) -> Array:
        """Return how far each step lies ahead."""
        last = self.times[-1]
        return np.column_stack(
            (
                np.log(ahead / max(last, 0.5)),
                (ahead - last) / self.end,
                ahead / self.end,
                np.log1p((ahead - last) / self.gap),
            )
        )

    def extrapolated(self, ahead: Array) -> Array:
        """Return where simple laws lead, how far each may be off, and how well it fitted.

        Straight lines over functions of time, by least squares over all points, later ones
        weighing more, and over the last ones alone; and a gain that shrinks geometrically.
        """
        past, future = _laws(self.times / self.gap), _laws(ahead / self.gap)
        places = np.arange(1, len(self.values) + 1) / len(self.values)
        weights = np.stack((places, np.exp(8.0 * (places - 1.0)) * places))
        weights /= weights.sum(axis=1, keepdims=True)
        values = self.values
        level = weights @ values
        middle = weights @ past.T
        spread = weights @ (past**2).T - middle**2 + 1e-12
        slope = (weights @ (past * values).T - middle * level[:, None]) / spread
        lines = level[:, None, None] + slope[..., None] * (past - middle[..., None])
        rest = np.sqrt(np.einsum("wn,wln->wl", weights, (values - lines) ** 2))
        away = future[None] - middle[..., None]
        found = np.arcsinh(level[:, None, None] + slope[..., None] * away)
        count = 1.0 / (weights**2).sum(axis=1)[:, None, None]
        off = rest[..., None] * np.sqrt((1.0 + away**2 / spread[..., None]) / count)
        fitted = np.broadcast_to(_log(rest.ravel()), (len(ahead), rest.size))
        parts = (
            found.reshape(-1, len(ahead)).T,
            np.arcsinh(off).reshape(-1, len(ahead)).T,
        )
        return np.column_stack((*parts, fitted, self._shrinking(ahead)))

    def _shrinking(self, ahead: Array) -> Array:
        """Return where gains lead that shrink by the same part from third to third."""
        if len(self.values) < 3:
            return np.zeros(len(ahead))
        sums = np.concatenate(([0.0], np.cumsum(self.values)))
        count = len(self.values)
        first = 0.4 * count if count > 5 else 0.0
        knots = np.interp(np.linspace(first, count, 4), np.arange(count + 1), sums)
        early, middle, late = np.diff(knots) / ((count - first) / 3)
        change = middle - early
        ratio = float(np.clip((late - middle) / change, -0.9, 0.98)) if abs(change) > 1e-6 else 0.0
        thirds = (ahead - self.times[-1]) / self.gap / ((count - first) / 3)
        gain = (late - middle) * ratio * (1 - np.abs(ratio) ** thirds) / (1 - ratio)
        found: Array = np.arcsinh(gain)
        return found

    def around(self, step: float) -> tuple[float, float]:
        """Return the mean of up to three values just before a step and just after it."""
        place = int(np.searchsorted(self.times, step, side="right"))
        return (
            float(self.values[max(place - 3, 0) : place].mean()) if place else np.nan,
            float(self.values[place : place + 3].mean()) if place < len(self.times) else np.nan,
        )


@dataclass(frozen=True, slots=True)
class _Rates:
    """A learning rate over time, as logarithms; `starts` ascend."""

    starts: Array
    logs: Array

    @classmethod
    def of(cls, rates: tuple[tuple[Step, float], ...]) -> _Rates | None:
        """Return the rates; None if they are not known or never positive."""
        if not rates:
            return None
        starts, sizes = np.array(rates, float).T
        if not np.isfinite(sizes).all() or sizes.max() <= 0:
            return None
        return cls(
            starts, np.log(np.maximum(sizes / sizes.max(), _LEAST_RATE)) + np.log(sizes.max())
        )

    def before(self, steps: Any) -> Array:
        """Return the logarithm of the rate with which each step was trained."""
        places = np.searchsorted(self.starts, np.asarray(steps, float) - 1.0, side="right")
        found: Array = self.logs[np.maximum(places - 1, 0)]
        return found

    def drops(self) -> tuple[Array, Array]:
        """Return where the rate drops, and the logarithms of the ratios."""
        changes = np.diff(self.logs)
        chosen = changes < _DROP
        return self.starts[1:][chosen], changes[chosen]


def _schedule(seen: _Seen, ahead: Array) -> Array:
    """Return what the learning rate will do until each step, and what it has done."""
    rates = _Rates.of(seen.curve.rates)
    if rates is None:
        return np.zeros((len(ahead), 19))
    last = seen.times[-1]
    now = float(rates.before(last))
    parts = (np.arange(16) + 1.0) / 16
    between = rates.before(np.ceil(last + (ahead - last)[:, None] * parts)) - now
    past = rates.before(np.maximum(np.ceil(last * parts), 1.0)) - now
    drops, sizes = rates.drops()
    coming = (drops >= last) & (drops < ahead[:, None])
    has = coming.any(axis=1)
    first = drops[np.argmax(coming, axis=1)] if len(drops) else np.zeros(len(ahead))
    since = np.where(has, ahead - first, 0.0)
    behind = drops[drops < last]
    earlier = [0.0, 0.0, 0.0, 1.0]
    if len(behind):
        before, after = seen.around(behind[-1])
        earlier = [
            1.0,
            float(sizes[drops < last][-1]),
            float(np.arcsinh(after - before)),
            (last - behind[-1]) / max(last, 1.0),
        ]
    constant = np.array([1.0, past.max(), past.mean(), past.min(), *earlier])
    return np.column_stack(
        (
            np.tile(constant, (len(ahead), 1)),
            between[:, -1],
            between.mean(axis=1),
            between.min(axis=1),
            between.max(axis=1),
            _log(np.exp(between).mean(axis=1) * (ahead - last) / max(last, 1.0)),
            coming.sum(axis=1),
            (coming * sizes).sum(axis=1),
            has,
            since / seen.end,
            np.log1p(since / seen.gap),
            np.where(has, first - last, 0.0) / seen.end,
        )
    )


def _kin(seen: _Seen, ahead: Array) -> Array:
    """Return what siblings did from this curve's last step on, and after a drop of theirs.

    Siblings weigh as they reach towards the step, as they share the past and as their
    learning rate until there is like this curve's.
    """
    closest = (_Sibling.of(one, seen) for one in _closest(seen.curve))
    known = [one for one in closest if one is not None]
    return np.column_stack((_followed(seen, known, ahead), _dropped(seen, known, ahead)))


@dataclass(frozen=True, slots=True)
class _Sibling:
    """A sibling's finite scores, counted like the curve's own, and its learning rate."""

    at: float
    times: Array
    values: Array
    rates: _Rates | None

    @classmethod
    def of(cls, branch: Branch, seen: _Seen) -> _Sibling | None:
        """Return what is known of a sibling; None if that is nothing."""
        times, scores = np.asarray(branch.steps, float), np.asarray(branch.scores, float)
        finite = np.isfinite(scores)
        if not finite.any():
            return None
        values = (np.clip(scores[finite], -_HUGE, _HUGE) - seen.origin) / seen.scale
        return cls(float(branch.at), times[finite], values, _Rates.of(branch.rates))

    def level(self, steps: Any) -> Array:
        """Return the score at steps, its last one after its end."""
        found: Array = np.interp(steps, self.times, self.values)
        return found


def _closest(curve: Curve) -> tuple[Branch, ...]:
    """Return the siblings that share most, those that went on longest first among equals."""
    order = sorted(
        curve.siblings, key=lambda one: (-one.at, -one.steps[-1] if one.steps else 0, one.scores)
    )
    return tuple(order[:_MOST_SIBLINGS])


def _followed(seen: _Seen, known: list[_Sibling], ahead: Array) -> Array:
    """Return the gains of siblings between the last step and each future one."""
    last = float(seen.times[-1])
    further = [one for one in known if one.times[-1] > last]
    if not further:
        return np.zeros((len(ahead), 11))
    reach = np.array([np.minimum((one.times[-1] - last) / (ahead - last), 1.0) for one in further])
    start = np.array([float(one.level(last)) for one in further])
    gains = np.array([one.level(ahead) for one in further]) - start[:, None]
    own = _Rates.of(seen.curve.rates)
    unlike = np.array([_unlike(own, one.rates, last, ahead) for one in further])
    shared = np.array([min(one.at / max(last, 1.0), 1.0) for one in further])
    weights = reach**2 * np.exp(-3.0 * unlike) * (0.02 + shared**2)[:, None] + 1e-9
    total = weights.sum(axis=0)
    weights = weights / total
    mean = (weights * gains).sum(axis=0)
    spread = np.sqrt((weights * (gains - mean) ** 2).sum(axis=0))
    nearest = np.argmax(weights, axis=0)
    each = np.arange(len(ahead))
    return np.column_stack(
        (
            np.ones(len(ahead)),
            np.full(len(ahead), np.log(len(further))),
            np.arcsinh(mean),
            np.arcsinh(spread),
            np.arcsinh(gains[nearest, each]),
            np.arcsinh(start[nearest]),
            _log(total),
            (weights * reach).sum(axis=0),
            (weights * unlike).sum(axis=0),
            weights.T @ shared,
            unlike[nearest, each],
        )
    )


def _unlike(own: _Rates | None, other: _Rates | None, last: float, ahead: Array) -> Array:
    """Return how far two learning rates are apart until each step, as a mean of logarithms."""
    if own is None or other is None:
        return np.full(len(ahead), 0.0 if own is other else 0.5)
    parts = (np.arange(8) + 1.0) / 8
    places = np.ceil(last + (ahead - last)[:, None] * parts)
    apart: Array = np.minimum(np.abs(own.before(places) - other.before(places)), 2.0).mean(axis=1)
    return apart


def _dropped(seen: _Seen, known: list[_Sibling], ahead: Array) -> Array:
    """Return what siblings gained by a drop of theirs, as long after it as each step is."""
    empty = np.zeros((len(ahead), 4))
    rates = _Rates.of(seen.curve.rates)
    if rates is None:
        return empty
    coming = rates.drops()[0]
    coming = coming[coming >= seen.times[-1]]
    if not len(coming):
        return empty
    lag = ahead - coming[0]
    gains, reach = [], []
    for one in known:
        theirs = one.rates.drops()[0] if one.rates is not None else np.empty(0)
        theirs = theirs[(theirs > one.times[0]) & (theirs < one.times[-1])]
        if len(theirs):
            gains.append(one.level(theirs[0] + lag) - float(one.level(theirs[0])))
            reach.append(np.minimum((one.times[-1] - theirs[0]) / np.maximum(lag, 1.0), 1.0))
    if not gains:
        return empty
    after = lag > 0
    mean = np.where(after, np.mean(gains, axis=0), 0.0)
    return np.column_stack(
        (
            after,
            np.arcsinh(mean),
            np.where(after, np.arcsinh(np.std(gains, axis=0)), 0.0),
            np.where(after, np.mean(reach, axis=0), 0.0),
        )
    )


def _unit(curve: Curve, values: Array) -> tuple[float, float]:
    """Return the unit of a curve's scores, and the standard deviation of their noise.

    Both rest on the later half, so that a wild beginning does not hide what is fine now.
    """
    size, least = float(np.abs(values).max()) or 1.0, 1e-7
    if curve.low is not None and curve.high is not None:
        size, least = curve.high - curve.low, 1e-4
    if not np.ptp(values):
        part = 0.05 if len(values) == 1 else 1e-3
        return part * size, 0.2 * part * size
    late = values[min(len(values) // 2, max(len(values) - 4, 0)) :]
    if len(late) > 2:
        bends = np.abs(late[2:] - 2 * late[1:-1] + late[:-2])
        noise = float(0.5 * (np.median(bends) / 0.6745 + np.sqrt((bends**2).mean()))) / 6**0.5
    else:
        noise = 0.5 * float(np.abs(np.diff(late)).mean())
    least *= size
    return float(np.hypot(noise, 0.05 * np.ptp(late))) + least, max(noise, 0.1 * least)


def _laws(times: Array) -> Array:
    """Return functions of time, over which scores are taken for straight lines."""
    shifted = times + 1.0
    return np.stack((np.log(shifted), shifted**-0.5, shifted**-1.0, shifted))


def _log(values: Any) -> Any:
    return np.log(np.maximum(values, 1e-5))

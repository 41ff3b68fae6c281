"""The measured part of a learning curve, in a unit of its own, as numbers.

Scores are counted from the last one in units of the curve's own recent movement, and
compressed by asinh: noise around a plateau and a jump a thousand times as large stay apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasktune.algos.curves.curve import Curve

Array = NDArray[np.float64]

_LAGS = np.array([2, 3, 4, 6, 9, 13, 20])
_KNOTS = np.array([0.0, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 1.0])
_RECENT = np.array([2, 4, 8, 16, 32])

_LEAST = 1e-290
"""The least size of scores: a ten-millionth of it is still a number with all its digits."""

_RANGES = 25.0
"""How far a curve of ten points without a bound may still move, in ranges of its scores."""


@dataclass(frozen=True, slots=True)
class Seen:
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
    def of(cls, curve: Curve) -> Seen:
        """Return the measured part of a curve; at least one score must be finite."""
        curve = curve.moderate
        times, scores = np.array(curve.measured, float).T
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
        """Return a score counted from the last one, compressed."""
        return float(np.arcsinh((score - self.origin) / self.scale))

    def extent(self) -> Array:
        """Return the extent of the measured part, beside the whole."""
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
        features: Array = np.arcsinh(np.concatenate((single, parts, last)))
        return features

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
                log(self.noise),
                log(np.ptp(values)),
                log(np.ptp(values[count // 2 :])),
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
        """Return the distances to the bounds, and to zero: many metrics end there."""
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
        """Return the ends of simple laws, their uncertainty, and how well they fit.

        The laws are straight lines over functions of time, by least squares over all points,
        later ones with more weight, and over the last ones alone; and a gain that shrinks
        geometrically.
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
        led = np.arcsinh(level[:, None, None] + slope[..., None] * away)
        count = 1.0 / (weights**2).sum(axis=1)[:, None, None]
        off = rest[..., None] * np.sqrt((1.0 + away**2 / spread[..., None]) / count)
        fitted = np.broadcast_to(log(rest.ravel()), (len(ahead), rest.size))
        parts = (
            led.reshape(-1, len(ahead)).T,
            np.arcsinh(off).reshape(-1, len(ahead)).T,
        )
        return np.column_stack((*parts, fitted, self._shrinking(ahead)))

    def _shrinking(self, ahead: Array) -> Array:
        """Return the gains ahead if they shrink by the same part from third to third."""
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
        gains: Array = np.arcsinh(gain)
        return gains

    def around(self, step: float) -> tuple[float, float]:
        """Return the mean of up to three values just before a step and just after it."""
        place = int(np.searchsorted(self.times, step, side="right"))
        return (
            float(self.values[max(place - 3, 0) : place].mean()) if place else np.nan,
            float(self.values[place : place + 3].mean()) if place < len(self.times) else np.nan,
        )


def _unit(curve: Curve, values: Array) -> tuple[float, float]:
    """Return the unit of a curve's scores, and the standard deviation of their noise.

    Both are those of the later half: a wild beginning must not hide small changes now.
    """
    size, least = float(np.abs(values).max()) or 1.0, 1e-7
    if curve.low is not None and curve.high is not None:
        size, least = curve.high - curve.low, 1e-4
    size = max(size, _LEAST)
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
    """Return the functions of time over which scores are taken for straight lines."""
    shifted = times + 1.0
    return np.stack((np.log(shifted), shifted**-0.5, shifted**-1.0, shifted))


def log(values: Any) -> Any:
    """Return logarithms, of one hundred-thousandth at least."""
    return np.log(np.maximum(values, 1e-5))

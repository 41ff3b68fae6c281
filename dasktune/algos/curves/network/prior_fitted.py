"""Prediction by a small network that was trained on many learning curves.

It was trained on curves drawn from a prior and on recorded ones, by
``benchmarks/train_predictor.py``; the weights are part of the package. Its input is
`dasktune.algos.curves.network.features`, which has coming drops of the learning rate and
siblings that begin alike, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from dasktune.algos.curves.curve import LEVELS, Curve, Prediction, check_question
from dasktune.algos.curves.network.features import FORM, Features, describe
from dasktune.errors import refuse
from dasktune.types import Step

Array = NDArray[np.float64]

_FILE: Final = "prior_fitted.npz"
_MIDDLE: Final = LEVELS.index(0.5)
_LEVELS: Final = np.array(LEVELS)

_OUTWARD: Final = 0.05
"""The last level lies at least this part of the way from its neighbour to the bound."""

LEAST_GAP: Final = -9.0
MOST_GAP: Final = 2.5
"""Bounds of the logarithm of the distance between two neighbouring levels, compressed."""

FARTHEST: Final = 15.0
"""Bound of a compressed score."""

LEAST_ROOM: Final = 1e-3
"""The least distance of a bound, compressed."""

MOST_INPUT: Final = 5.0
"""Bound of the input of the first layer, in standard deviations of the training."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Weights:
    """The weights of networks of one shape, whose answers are averaged.

    Parameters
    ----------
    form
        The form of the features that they were trained on.
    mean, deviation
        ``(networks, 1, features)``: mean and deviation of the rows in the training.
    layers
        For each layer the matrices, ``(networks, inputs, outputs)``, and the offsets,
        ``(networks, 1, outputs)``.
    stretch
        ``(3, 2)``: for calibration, the logarithms of factors for the distances below and
        above the median: a constant, and coefficients of the first two features.

    Raises
    ------
    ConfigurationError
        If they were trained on features of another form.
    """

    form: int
    mean: Array
    deviation: Array
    layers: tuple[tuple[Array, Array], ...]
    stretch: Array
    digest: str

    def __post_init__(self) -> None:
        if self.form != FORM:
            refuse([f"weights must be for features of form {FORM}, got {self.form}"])

    @classmethod
    def load(cls, file: IO[bytes]) -> Weights:
        """Return the weights in a file of `numpy.savez`."""
        with np.load(file, allow_pickle=False) as held:
            return cls.from_arrays({name: held[name] for name in held.files})

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Weights:
        """Return the weights of these arrays."""
        digest = hashlib.sha256()
        for name in sorted(arrays):
            digest.update(name.encode() + arrays[name].tobytes())
        count = sum(name.startswith("matrices") for name in arrays)
        return cls(
            form=int(arrays["form"]),
            mean=arrays["mean"].astype(float),
            deviation=arrays["deviation"].astype(float),
            layers=tuple(
                (
                    arrays[f"matrices{n}"].astype(np.float32),
                    arrays[f"offsets{n}"].astype(np.float32),
                )
                for n in range(count)
            ),
            stretch=arrays["stretch"].astype(float),
            digest=digest.hexdigest()[:16],
        )

    def answer(self, features: Features) -> Array:
        """Return ``(steps, levels)``: the scores, in the curve's own unit."""
        hidden = ((features.rows - self.mean) / self.deviation).clip(-MOST_INPUT, MOST_INPUT)
        sides = np.exp(self.stretch[0] + hidden[..., :2] @ self.stretch[1:])
        hidden = hidden.astype(np.float32)
        for matrices, offsets in self.layers[:-1]:
            inner = hidden @ matrices + offsets
            hidden = inner / (1 + np.exp(-inner))
        matrices, offsets = self.layers[-1]
        raw = (hidden @ matrices + offsets).astype(float)
        gaps = np.exp(raw.clip(LEAST_GAP, MOST_GAP))
        lower = -gaps[..., :_MIDDLE][..., ::-1].cumsum(axis=-1)[..., ::-1]
        upper = gaps[..., _MIDDLE + 1 :].cumsum(axis=-1)
        parts = (lower * sides[..., :1], np.zeros_like(raw[..., :1]), upper * sides[..., 1:])
        each = raw[..., _MIDDLE, None] + np.concatenate(parts, axis=-1)
        scores: Array = each.mean(axis=0).clip(-FARTHEST, FARTHEST)
        return np.where(
            scores > 0, _within(scores, features.above), -_within(-scores, features.below)
        )


def _within(distances: Array, room: float) -> Array:
    """Return distances pressed below a bound."""
    room = max(room, LEAST_ROOM)
    return room * np.tanh(distances / room)


@dataclass(frozen=True, slots=True)
class PriorFitted:
    """Predicts with a small network that was trained beforehand; the fast default.

    It uses a curve's bounds, its whole learning rate and its siblings, where they are given. A
    prediction takes a few milliseconds, draws nothing and is the same on every machine up to
    rounding.

    Parameters
    ----------
    weights
        None for those of the package.
    """

    weights: Weights | None = None

    def predict(self, curve: Curve, steps: tuple[Step, ...], *, seed: int = 0) -> Prediction:
        """Return the scores that curves like this one had at such steps."""
        check_question(curve, steps)
        features = describe(curve, steps)
        weights = self.weights or packaged()
        away = _open(
            np.sinh(weights.answer(features)), np.sinh(features.below), np.sinh(features.above)
        )
        scores = features.origin + features.scale * away
        low = -np.inf if curve.low is None else curve.low
        high = np.inf if curve.high is None else curve.high
        rows = np.maximum.accumulate(scores.clip(low, high), axis=1)
        return Prediction(
            after=curve.last_step,
            steps=steps,
            scores=tuple(map(tuple, rows.tolist())),
            deviations=tuple(_deviations(rows, features.noise).tolist()),
        )

    def identity(self) -> dict[str, object]:
        """Return its class and a digest of the weights."""
        weights = self.weights or packaged()
        return {"predictor": "PriorFitted", "weights": weights.digest}


@cache
def packaged() -> Weights:
    """Return the weights that are part of the package."""
    with files("dasktune.algos.curves.network").joinpath(_FILE).open("rb") as file:
        return Weights.load(file)


def _open(away: Array, below: float, above: float) -> Array:
    """Return scores whose outermost levels lie some way towards the bounds.

    No training shows everything that may happen to one curve in a hundred.
    """
    least = away[:, 1] - _OUTWARD * (away[:, 1] + below)
    most = away[:, -2] + _OUTWARD * (above - away[:, -2])
    inner = (np.minimum(away[:, 0], least), away[:, 1:-1], np.maximum(away[:, -1], most))
    return np.column_stack(inner)


def _deviations(rows: Array, noise: float) -> Array:
    """Return the standard deviations of the scores without noise.

    The variance of a measurement is subtracted from the whole variance, of which at least a
    tenth stays: the network was not told which is which.
    """
    middles = (rows[:, 1:] + rows[:, :-1]) / 2
    parts = np.diff(_LEVELS) / np.diff(_LEVELS).sum()
    mean = middles @ parts
    variance = ((middles - mean[:, None]) ** 2) @ parts
    deviations: Array = np.sqrt(np.maximum(variance - noise**2, 0.1 * variance))
    return deviations

"""The predictor that follows, in each study, the simple rules that predict well there.

Nothing is kept between predictions: what the rules would have said of the study's other trials
is computed anew for each. So a prediction depends on the reported scores alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dasktune.algos.curves.curve import LEVELS, Curve, Prediction, check_question
from dasktune.algos.curves.mixture.panel import Array, Panel
from dasktune.algos.curves.mixture.rules import RULES, Material, RuleAnswers, anything, drop, kin
from dasktune.algos.curves.network.prior_fitted import PriorFitted
from dasktune.types import Step

FORM: Final = 2
"""The version of the rules, which the identity of a tuner names."""

_LEVELS: Final = np.array(LEVELS)
_BAND: Final = np.array([0.1, 0.5, 0.9])

_FLOOR: Final = 1e-3
"""The least density of a rule's answer, in a unit of the range of scores."""

_NETWORK, _CHECKS = 15.0, 20.0
"""The share of the network is the first over the sum of the second and the number of checks."""

_ROUNDS: Final = 8
"""Rounds of the search for the best weights."""

_BEFORE: Final = (0.5, 1.2, 2.0)
"""Errors of checks that are taken for seen beforehand, in halves of the 80% band: many miss it."""

_PART: Final = 0.5
"""The part of the factor, as a logarithm, that stretches the network: it was not checked."""

_BEFORE_COUNTS: Final = 0.3
"""How many checks each of them counts as."""

_REACH: Final = 25.0
"""How far beyond all scores a prediction goes without a bound, in ranges of the scores."""

_LEAST, _MOST = 0.2, 4.0
"""The least and the largest factor of a band."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """Predicts with a weighted mixture of simple rules; the default.

    The rules: the last score, the present level, or a power law goes on; the scores of other
    trials at the same step, their gains, those of the nearest curves, or a straight line
    through them; the scores of trials that were the same up to now; and the gains of trials
    whose learning rate has dropped as it will here.

    Each rule is checked on the other trials of the study that are known further than this one: it
    predicts their scores from what was known at the same step. The weights are those that give
    the mixture the highest likelihood on these checks (a log score), with a prior. The bands
    are then stretched or shrunk so that they hold as much as they say on these checks (conformal
    prediction), above all on those that the same rules answered; without a check they are wide.

    A network that was trained on curves of a prior (`PriorFitted`) answers, too: its quantiles and
    those of the rules are averaged. Its share is three quarters while there is no check, and less
    with each. It has none where trials were the same up to now, nor for a curve between two bounds
    that has not moved yet. Its bands are stretched by the square root of the rules' factor, and
    by the whole factor where the learning rate will drop as it has in no other trial.

    It draws nothing, and takes some milliseconds.

    References
    ----------
    Yao et al., "Using Stacking to Average Bayesian Predictive Distributions" (2018). Lei et al.,
    "Distribution-Free Predictive Inference for Regression" (2018), for the errors in units of
    the band; Barber et al., "Predictive Inference with the Jackknife+" (2021), for leaving out
    one trial at a time.
    """

    def predict(self, curve: Curve, steps: tuple[Step, ...], *, seed: int = 0) -> Prediction:
        """Return the mixture of the rules; `seed` has no effect.

        Raises
        ------
        ConfigurationError
            As for `check_question`.
        """
        check_question(curve, steps)
        panel = Panel.of(curve, steps)
        material = Material.of(panel)
        every = {rule: rule(material) for rule in RULES}
        answers = list(every.values())
        own = len(steps)
        weights = _weights(answers, panel, own)
        points = [
            (values, weights[:, [place]] * shares)
            for place, answer in enumerate(answers)
            if weights[:, place].any()
            for values, shares in [answer.points()]
        ]
        values, shares = (np.concatenate(each, axis=1) for each in zip(*points, strict=True))
        bands = quantiles(values[own:], shares[own:], _BAND)
        alike = np.minimum(weights[own:], weights[own - 1]).sum(axis=1)
        factor = _factor(bands, panel.truths[own:], alike)
        rows = quantiles(values[:own], shares[:own], _LEVELS)
        rows = _stretched(rows, factor)
        if not any(every[rule].given[0] for rule in (anything, kin)):
            share = _NETWORK / (_CHECKS + len(panel.truths) - own)
            network = np.array(PriorFitted().predict(curve, steps).scores)
            is_new = panel.has_drop_ahead and not every[drop].given[own - 1]
            stretch = factor if is_new else factor**_PART
            rows = (1 - share) * rows + share * _stretched(network, stretch)
        reach = _REACH * panel.unit
        low = float(panel.rows.min()) - reach if curve.low is None else curve.low
        high = float(panel.rows.max()) + reach if curve.high is None else curve.high
        rows = np.maximum.accumulate(rows.clip(low, high), axis=1)
        return Prediction(
            after=curve.last_step,
            steps=steps,
            scores=tuple(map(tuple, rows.tolist())),
            deviations=tuple(_deviations(rows, float(material.noise[0])).tolist()),
        )

    def identity(self) -> dict[str, object]:
        """Return its class, and the version of the rules."""
        return {**PriorFitted().identity(), "predictor": "Mixture", "form": FORM}


def _weights(answers: list[RuleAnswers], panel: Panel, own: int) -> Array:
    """Return ``(queries, rules)``: the weights of the rules that answer a query.

    They maximise the likelihood of the mixture on the checks, times that of a prior, by
    expectation maximisation; a rule is judged by the checks that it answers.
    """
    given = np.array([answer.given for answer in answers]).T
    prior = np.array(list(RULES.values()))
    density = np.array([answer.densities(panel.truths) for answer in answers]).T[own:]
    density = np.where(given[own:], density + _FLOOR / panel.unit, 0.0)
    weights = prior / prior.sum()
    for _ in range(_ROUNDS if len(density) else 0):
        parts = density * weights
        parts /= np.maximum(parts.sum(axis=1, keepdims=True), 1e-300)
        weights = (parts.sum(axis=0) + prior) / (given[own:].sum(axis=0) + prior)
        weights /= weights.sum()
    chosen = given * weights
    total: Array = chosen / chosen.sum(axis=1, keepdims=True)
    return total


def _factor(bands: Array, truths: Array, alike: Array) -> float:
    """Return the factor that makes bands hold 80%: the quantile of errors over half a band.

    A check has more weight, the more its rules are those that answer the question.
    """
    errors = truths - bands[:, 1]
    halves = np.where(errors > 0, bands[:, 2] - bands[:, 1], bands[:, 1] - bands[:, 0])
    scores = np.concatenate((np.abs(errors) / np.maximum(halves, 1e-300), _BEFORE))
    counts = np.concatenate((alike, np.full(len(_BEFORE), _BEFORE_COUNTS)))
    factor = quantiles(scores[None], counts[None], np.array([0.8]))[0, 0]
    return float(np.clip(factor, _LEAST, _MOST))


def _stretched(rows: Array, factor: float) -> Array:
    middle = rows[:, [LEVELS.index(0.5)]]
    stretched: Array = middle + factor * (rows - middle)
    return stretched


def quantiles(values: Array, weights: Array, levels: NDArray[np.float64]) -> Array:
    """Return ``(rows, levels)``: the quantiles of weighted values in each row."""
    order = np.argsort(values, axis=1)
    values = np.take_along_axis(values, order, axis=1)
    weights = np.take_along_axis(weights, order, axis=1)
    middles = np.cumsum(weights, axis=1) - weights / 2
    middles /= weights.sum(axis=1, keepdims=True)
    pairs = zip(middles, values, strict=True)
    return np.array([np.interp(levels, *pair) for pair in pairs]).reshape(-1, len(levels))


def _deviations(rows: Array, noise: float) -> Array:
    """Return the standard deviations of the scores without noise.

    The variance of a measurement is subtracted from the whole variance, of which at least a
    tenth stays.
    """
    middles = (rows[:, 1:] + rows[:, :-1]) / 2
    parts = np.diff(_LEVELS) / np.diff(_LEVELS).sum()
    mean = middles @ parts
    variance = ((middles - mean[:, None]) ** 2) @ parts
    deviations: Array = np.sqrt(np.maximum(variance - noise**2, 0.1 * variance))
    return deviations

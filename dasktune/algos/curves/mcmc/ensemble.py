"""Eleven parametric families, weighted, and sampled by an ensemble of walkers."""

from __future__ import annotations

from typing import Final

import numpy as np

from dasktune.algos.curves.curve import Curve, Prediction, check_question
from dasktune.algos.curves.mcmc import extra
from dasktune.algos.curves.mcmc.families import FAMILIES, Abscissae
from dasktune.algos.curves.mcmc.frame import Array, Axis, Frame, within
from dasktune.algos.curves.mcmc.posterior import Posterior, sampled
from dasktune.algos.curves.mcmc.starting import Fit, fits
from dasktune.algos.curves.persistence import Persistence
from dasktune.sequences.values import Arguments
from dasktune.types import Step

_LEAST_POINTS: Final = 4
"""A curve with fewer scores has no shape to fit."""

_MOST_POINTS: Final = 100
"""Of more scores as many are used, evenly spread, the last among them."""

_DRAWS: Final = 2000
"""The number of samples of a prediction."""

_DOUBT: Final = 0.55
"""Scale of the model's own error, as a part of the families' disagreement.

Chosen on 38 beginnings of recorded curves (images, tables, text and games; 10, 20 or 40% seen),
where the middle 80% held 79% of the final scores, and 37% without it. On 157 others they held
82%: 73, 81 and 93% by how much was seen; by the kind of curve from 56% (games, which take off
unforeseen) to 98% (tables, whose recorded curves have no noise).
"""


class CurveEnsemble:
    """Predicts with the weighted mean of eleven parametric families, sampled by MCMC.

    Each family is fitted by least squares; those that fail are left out for the curve. From
    there an affine-invariant ensemble sampler draws parameters, weights and noise, 48
    dimensions in all; the later half of its samples, thinned, is the posterior. It is the
    model of Domhan et al. as HyperDrive uses it, with these differences:

    - Scores are normalised and bounded to the range of the metric, so that no prediction
      runs away (`Frame`); of steps only the distances matter (`Axis`).
    - A curve that falls is turned over, since the prior admits only families that rise.
    - The posterior takes the model for right, and is far too sure. Predicted scores therefore
      have an error of the model, too. Its scale at each step is a part of the disagreement of
      the families there: the root of their fits' mean squared distance from the median. Its
      distribution is Student's t with two degrees of freedom.
    - A curve with fewer than 4 scores, a constant one, and one that no family fits is
      predicted by `Persistence`.

    It needs the extra ``curves``, also on workers: ``pip install 'dasktune[curves]'``. A
    prediction takes about a second. `Prediction.deviations` are those of the posterior alone,
    as HyperDrive has them.

    Parameters
    ----------
    walkers
        Of the sampler, even and at least twice the dimensions: 96.
    samples
        Of each walker; 100 x 700 are HyperDrive's 70,000.
    recency
        Whether point i of n counts 10^(i/n) times, so that the last count most.

    Raises
    ------
    ConfigurationError
        If an argument is out of range: all problems at once; or if emcee or scipy is not
        installed: this is refused before anything is trained.

    References
    ----------
    Domhan, Springenberg, Hutter (IJCAI 2015), section 3; Rasley et al., HyperDrive (Middleware
    2017), sections 3.1.1 and 5.2.
    """

    def __init__(self, *, walkers: int = 100, samples: int = 700, recency: bool = True) -> None:
        check = Arguments(type(self).__name__)
        fewest = 2 * (sum(family.size + 1 for family in FAMILIES) + 1)
        self._walkers = check.whole("walkers", walkers, at_least=fewest)
        if self._walkers % 2:
            check.add(f"walkers must be even, got {walkers}")
        self._samples = check.whole("samples", samples, at_least=2)
        if not isinstance(recency, bool):
            check.add(f"recency must be True or False, got {recency!r}")
        self._recency = recency
        check.refuse()
        extra.emcee()
        extra.optimize()

    def predict(self, curve: Curve, steps: tuple[Step, ...], *, seed: int = 0) -> Prediction:
        """Return the scores of the posterior's samples.

        Raises
        ------
        ConfigurationError
            As for `check_question`; or if emcee or scipy is not installed.
        """
        check_question(curve, steps)
        known = curve.moderate
        measured = known.measured
        if len(measured) < _LEAST_POINTS or len({score for _, score in measured}) == 1:
            return Persistence().predict(curve, steps, seed=seed)
        axis, frame = Axis.of([step for step, _ in measured]), Frame.of(known)
        measured = _thinned(measured)
        x, y = axis.x(step for step, _ in measured), frame.y(score for _, score in measured)
        until = float(axis.x([max(curve.max_steps, steps[-1])])[0])
        places = Abscissae.of([*x, 2.0, until])
        fitted = fits(places, y)
        if not fitted:
            return Persistence().predict(curve, steps, seed=seed)
        posterior = Posterior(places, y, fitted, recency=self._recency)
        chain = sampled(posterior, walkers=self._walkers, samples=self._samples, seed=seed)
        kept = _later(chain)
        ahead = Abscissae.of(axis.x(steps))
        expected = posterior.curves(kept, ahead).clip(0, 1)
        errors = _errors(expected, kept[:, -1:], _disagreement(expected, fitted, ahead), seed)
        return Prediction.of_samples(
            curve.last_step,
            steps,
            within(curve, frame.scores(expected + errors)),
            within(curve, frame.scores(expected)),
        )

    def identity(self) -> dict[str, object]:
        """Return its class and arguments."""
        return {
            "predictor": type(self).__name__,
            "walkers": self._walkers,
            "samples": self._samples,
            "recency": self._recency,
        }


def _thinned(measured: tuple[tuple[Step, float], ...]) -> tuple[tuple[Step, float], ...]:
    if len(measured) <= _MOST_POINTS:
        return measured
    places = np.linspace(0, len(measured) - 1, _MOST_POINTS).round().astype(int)
    return tuple(measured[place] for place in places)


def _later(chain: Array) -> Array:
    """Return `_DRAWS` of the later half of the samples, evenly from all walkers."""
    flat = chain[len(chain) // 2 :].reshape(-1, chain.shape[-1])
    later: Array = flat[np.linspace(0, len(flat) - 1, _DRAWS).astype(int)]
    return later


def _disagreement(expected: Array, fitted: tuple[Fit, ...], ahead: Abscissae) -> Array:
    """Return for each step the root of the fits' mean squared distance from the median."""
    with np.errstate(all="ignore"):
        values = np.stack([fit.family.of(ahead, *fit.parameters) for fit in fitted])
    values = np.nan_to_num(values, nan=0.0).clip(0, 1)
    spread: Array = np.sqrt(np.mean((values - np.median(expected, axis=0)) ** 2, axis=0))
    return spread


def _errors(expected: Array, noise: Array, disagreement: Array, seed: int) -> Array:
    """Return the noise of each measurement, plus one error of the model for a whole curve."""
    random = np.random.default_rng((seed % 2**32, 1))
    model = _DOUBT * disagreement * random.standard_t(2, size=(len(expected), 1))
    errors: Array = noise * random.standard_normal(expected.shape) + model
    return errors

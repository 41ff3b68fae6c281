"""The posterior of the weighted families, given a curve: for all walkers at once."""

from __future__ import annotations

import numpy as np

from dasktune.algos.curves.mcmc import extra
from dasktune.algos.curves.mcmc.families import Abscissae
from dasktune.algos.curves.mcmc.frame import Array
from dasktune.algos.curves.mcmc.starting import Fit, admitted

_WEIGHT = 10.0
"""The weight with which each family starts; only ratios matter."""

_BALL = 1e-6
"""How far from the fits walkers start, relative to each coordinate."""

_LEAST_NOISE = 1e-4
"""The least standard deviation of the noise at the start, on the y axis."""


class Posterior:
    """The posterior of all families' parameters, their weights, and the noise.

    Coordinates are the parameters of each family in turn, then the families' weights, then
    the noise's standard deviation. The curve is the families' weighted mean; measurements lie
    about it with Gaussian noise. The prior is flat where `admitted` is true and weights and noise
    are above 0, and zero elsewhere.

    Parameters
    ----------
    places, y
        The curve, as for `dasktune.algos.curves.mcmc.starting.fits`.
    fits
        The families that fit it.
    recency
        Whether point i of n counts 10^(i/n) times.

    References
    ----------
    Domhan et al. (2015), section 3.2.
    """

    def __init__(
        self, places: Abscissae, y: Array, fits: tuple[Fit, ...], *, recency: bool
    ) -> None:
        self._places, self._y, self._fits = places, y, fits
        order = np.arange(1, len(y) + 1) / len(y)
        self._counts = 10**order if recency else np.ones(len(y))
        sizes = [fit.family.size for fit in fits]
        self._cuts = [int(cut) for cut in np.cumsum([0, *sizes])]
        self.dimensions = self._cuts[-1] + len(fits) + 1

    def starts(self, walkers: int, random: np.random.RandomState) -> Array:
        """Return the starts of walkers: closely about the fits, within the prior."""
        parameters = [value for fit in self._fits for value in fit.parameters]
        centre = np.array([*parameters, *(_WEIGHT for _ in self._fits), 1.0])
        residuals = self.curves(centre[None], self._places)[0, : len(self._y)] - self._y
        centre[-1] = max(float(np.sqrt(np.mean(residuals**2))), _LEAST_NOISE)
        offsets = _BALL * np.maximum(np.abs(centre), _BALL)
        offsets = offsets * random.standard_normal((walkers, len(centre)))
        outside = ~np.isfinite(self.log_probability(centre + offsets))
        offsets[outside] *= _BALL  # the fits themselves lie within
        positions: Array = centre + offsets
        return positions

    def log_probability(self, coordinates: Array) -> Array:
        """Return the log probability, up to a constant, for each of ``(walkers, dimensions)``."""
        noise, known = coordinates[:, -1], len(self._y)
        with np.errstate(all="ignore"):
            values = self._values(coordinates, self._places)
            allowed = admitted(values).all(axis=0)
            allowed &= (coordinates[:, self._cuts[-1] :] > 0).all(axis=1)
            residuals = self._mix(coordinates, values[..., :known]) - self._y
            logs = -0.5 * (residuals**2 @ self._counts) / noise**2
            logs -= self._counts.sum() * np.log(noise)
        return np.where(allowed & np.isfinite(logs), logs, -np.inf)

    def curves(self, coordinates: Array, places: Abscissae) -> Array:
        """Return the curve, without noise, of each walker: ``(walkers, places)``."""
        with np.errstate(all="ignore"):
            return self._mix(coordinates, self._values(coordinates, places))

    def _values(self, coordinates: Array, places: Abscissae) -> Array:
        """Return the values ``(families, walkers, places)``."""
        columns = coordinates.T[:, :, None]
        values = np.empty((len(self._fits), len(coordinates), len(places.x)))
        spans = zip(self._cuts, self._cuts[1:], strict=False)
        for place, (fit, (start, stop)) in enumerate(zip(self._fits, spans, strict=True)):
            values[place] = fit.family.of(places, *columns[start:stop])
        return values

    def _mix(self, coordinates: Array, values: Array) -> Array:
        weights = coordinates[:, self._cuts[-1] : -1]
        weights = weights / weights.sum(axis=1, keepdims=True)
        mixed: Array = np.einsum("wk,kwp->wp", weights, values)
        return mixed


def sampled(posterior: Posterior, *, walkers: int, samples: int, seed: int) -> Array:
    """Return the draws of an affine-invariant sampler: ``(samples, walkers, dimensions)``.

    References
    ----------
    Goodman and Weare (2010); Foreman-Mackey et al. (2013), emcee.
    """
    emcee = extra.emcee()
    random = np.random.RandomState(seed % 2**32)
    sampler = emcee.EnsembleSampler(
        walkers, posterior.dimensions, posterior.log_probability, vectorize=True
    )
    start = posterior.starts(walkers, random)
    state = emcee.State(start, random_state=random.get_state())
    sampler.run_mcmc(state, samples, skip_initial_state_check=True)
    chain: Array = sampler.get_chain()
    return chain

"""A Gaussian process over distances that are summed with a weight each.

Sums of products are `einsum`s, which use one thread. The threads of a BLAS would wait for each
other on a busy machine, and change the last bit of a result with their number. OpenBLAS takes
one thread for the root of a matrix with fewer than 128 rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

SWEEPS: Final = 4
"""Passes over the parameters of the search for the most likely ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """The parameters of a process with mean 0.

    Parameters
    ----------
    lengths
        ``(parts,)``: the length scale of each distance, as its logarithm.
    noise, signal
        Logarithms of the variances.
    """

    lengths: Array
    noise: float
    signal: float

    @property
    def penalty(self) -> float:
        """The negative logarithm of their prior: log-normal around the values of `start`."""
        centred = self.as_array() - Parameters.start(len(self.lengths)).as_array()
        return float(0.5 * np.sum((centred / _deviations(len(self.lengths))) ** 2))

    @classmethod
    def start(cls, parts: int) -> Parameters:
        """Return the mode of the prior.

        Lengths grow with the number of distances, as in Hvarfner et al., "Vanilla Bayesian
        Optimization Performs Great in High Dimensions", ICML 2024.
        """
        length = math.log(0.5) + 0.5 * math.log(max(parts, 1))
        return cls(lengths=np.full(parts, length), noise=math.log(0.05), signal=0.0)

    def as_array(self) -> Array:
        """Return all of them as one array."""
        return np.array([*self.lengths, self.noise, self.signal])

    @classmethod
    def of(cls, array: Array) -> Parameters:
        """Return the parameters that an array holds."""
        return cls(lengths=array[:-2], noise=float(array[-2]), signal=float(array[-1]))


def _deviations(parts: int) -> Array:
    return np.array([*np.full(parts, 1.0), 1.5, 0.5])


def kernel(squared: Array, parameters: Parameters) -> Array:
    """Return the covariances at distances: Matern with smoothness 5/2.

    Parameters
    ----------
    squared
        ``(parts, n, m)``: squared distances.
    parameters
        The length scales and the signal.

    References
    ----------
    Rasmussen and Williams, "Gaussian Processes for Machine Learning", equation 4.17.
    """
    weights = np.exp(-2 * parameters.lengths)
    radius = np.sqrt(5 * np.einsum("p,pnm->nm", weights, squared))
    value: Array = math.exp(parameters.signal) * (1 + radius + radius**2 / 3) * np.exp(-radius)
    return value


def fitted(squared: Array, values: Array) -> Parameters:
    """Return the parameters with the largest posterior density, by a pattern search.

    Parameters
    ----------
    squared
        ``(parts, n, n)``: squared distances of the observations.
    values
        ``(n,)``: what was observed, standardised.
    """
    best = Parameters.start(len(squared)).as_array()
    least = _cost(squared, values, best)
    reach = 1.0
    for _ in range(SWEEPS):
        before = least
        for moved in _moves(len(best), reach):
            for sign in (1, -1):
                other = best + sign * moved
                if (cost := _cost(squared, values, other)) < least:
                    best, least = other, cost
                    break
        if before - least < 0.1:
            reach /= 2
    return Parameters.of(best)


def _moves(size: int, reach: float) -> Iterator[Array]:
    return (reach * row for row in np.eye(size))


def _cost(squared: Array, values: Array, array: Array) -> float:
    """Return the negative logarithm of the posterior density of parameters."""
    parameters = Parameters.of(array)
    count = len(values)
    covariance = _noisy(kernel(squared, parameters), parameters)
    # The root of the covariance with the values as a last row ends with the whitened values.
    beside = np.zeros((count + 1, count + 1))
    beside[:count, :count], beside[count, :count] = covariance, values
    beside[count, count] = 1 + np.sum(values**2) / _variance(parameters)
    try:
        root = np.linalg.cholesky(beside)
    except np.linalg.LinAlgError:
        return math.inf
    fit = 0.5 * np.sum(root[count, :count] ** 2)
    return float(fit + np.log(np.diag(root)[:count]).sum()) + parameters.penalty


def _variance(parameters: Parameters) -> float:
    return math.exp(parameters.noise) + 1e-8


def _noisy(covariance: Array, parameters: Parameters) -> Array:
    return covariance + _variance(parameters) * np.eye(len(covariance))


def _whitened(root: Array, columns: Array) -> Array:
    """Return the solution of ``root @ solution = columns`` for a lower triangle `root`."""
    solution = np.zeros_like(columns)
    for row in range(len(root)):
        above = np.einsum("i,im->m", root[row, :row], solution[:row])
        solution[row] = (columns[row] - above) / root[row, row]
    return solution


def predicted(squared: Array, values: Array, parameters: Parameters) -> tuple[Array, Array]:
    """Return mean and standard deviation of all points, without noise.

    Parameters
    ----------
    squared
        ``(parts, m, n)``: squared distances of the first ``m`` points from all.
    values
        The observed values of the very first points. The rest of the first ``m`` are about to
        be observed: they lower the deviation of others, and leave the means [1].
    parameters
        The parameters.

    References
    ----------
    [1] Ginsbourger, Le Riche and Carraro, "Kriging Is Well-Suited to Parallelize
    Optimization", 2010: the kriging believer.
    """
    count, seen = len(values), squared.shape[1]
    covariance = kernel(squared, parameters)
    root = np.linalg.cholesky(_noisy(covariance[:, :seen], parameters))
    explained = _whitened(root, covariance)
    whitened = _whitened(root[:count, :count], values[:, None])[:, 0]
    means = np.einsum("n,nm->m", whitened, explained[:count])
    variance = math.exp(parameters.signal) - np.sum(explained**2, axis=0)
    return means, np.sqrt(np.maximum(variance, 1e-12))

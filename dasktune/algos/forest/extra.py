"""The package of the extra ``forest``, imported when it is first needed."""

from __future__ import annotations

import warnings
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from dasktune.errors import ConfigurationError

_MISSING = (
    "the priority of models needs scikit-learn: pip install 'dasktune[forest]', also on workers; "
    "or leave it out with Forest(priority=False)"
)


def require() -> None:
    """Refuse to go on without scikit-learn, without importing it."""
    if find_spec("sklearn") is None:
        raise ConfigurationError(_MISSING)


def fitted_length(points: Any, losses: Any, *, start: float, low: float, noise: float) -> float:
    """Return the length scale of an RBF kernel with the maximum marginal likelihood.

    Parameters
    ----------
    points, losses
        ``(n, d)`` and ``(n,)``.
    start
        Where the search begins; it ends between `low` and 100.
    noise
        Variance of the losses for equal points, in units of the kernel's variance.

    Raises
    ------
    ConfigurationError
        If scikit-learn is missing.
    """
    try:
        process = import_module("sklearn.gaussian_process")
    except ImportError as error:
        raise ConfigurationError(_MISSING) from error
    kernel = process.kernels.RBF(start, (low, 100.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a length is at a bound is a result here
        fitted = process.GaussianProcessRegressor(kernel=kernel, alpha=noise).fit(points, losses)
    return float(fitted.kernel_.length_scale)

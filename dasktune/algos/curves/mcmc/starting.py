"""The starts of the sampler: each family fitted to the curve by least squares."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dasktune.algos.curves.mcmc import extra
from dasktune.algos.curves.mcmc.families import FAMILIES, Abscissae, CurveFamily
from dasktune.algos.curves.mcmc.frame import Array

_PULL = 10.0
"""Weight of a distance beyond the prior, next to residuals."""

_MARGIN = 1e-3
"""How far inside the prior a fit should lie."""

_WRONG = 1e3
"""The largest residual, also of a value that is not finite."""

_MOST_EVALUATIONS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A fitted family.

    Parameters
    ----------
    family
        The family.
    parameters
        Its parameters, within the prior.
    deviation
        Root of the mean squared residual.
    """

    family: CurveFamily
    parameters: tuple[float, ...]
    deviation: float


def fits(places: Abscissae, y: Array) -> tuple[Fit, ...]:
    """Return the families that can be fitted to a curve.

    Levenberg-Marquardt from the starts of each family. A fit that leaves the prior is pulled
    back into it; one that stays outside, or is not finite, has failed.

    Parameters
    ----------
    places
        The places of the measurements, then those at which the prior looks at a family: x = 2
        and the last x (see `admitted`).
    y
        The measurements.
    """
    fitted = (fit_of(family, places, y) for family in FAMILIES)
    return tuple(fit for fit in fitted if fit is not None)


def admitted(values: Array) -> npt.NDArray[np.bool_]:
    """Return which curves the prior admits, by their last two values: at x = 2 and the last x.

    References
    ----------
    Domhan et al. (2015), section 3.2: no curve falls between the two, or ends out of range. Their
    range is 0 to 100; here it is 0 to 1, the range of the metric.
    """
    first, last = values[..., -2], values[..., -1]
    rises: npt.NDArray[np.bool_] = (first <= last) & (last >= 0) & (last <= 1)
    return rises


@np.errstate(all="ignore")
def fit_of(family: CurveFamily, places: Abscissae, y: Array) -> Fit | None:
    """Return the fit of one family to a curve, or None if it has failed; see `fits`."""
    known = len(y)
    # The algorithm needs as many residuals as parameters; the pulls are three of them.
    size = max(known + 3, family.size)

    def residuals(parameters: Array) -> Array:
        values = family.of(places, *parameters)
        first, last = values[-2:]
        rest = np.zeros(size)
        rest[:known] = values[:known] - y
        rest[known : known + 3] = first - last, last - 1 + _MARGIN, _MARGIN - last
        rest[known:] = _PULL * np.maximum(rest[known:], 0)
        finite: Array = np.nan_to_num(rest, nan=_WRONG).clip(-_WRONG, _WRONG)
        return finite

    result = extra.optimize().least_squares(
        residuals, family.starts, method="lm", max_nfev=_MOST_EVALUATIONS
    )
    values = family.of(places, *result.x)
    if not np.isfinite(values).all() or not admitted(values):
        return None
    deviation = float(np.sqrt(np.mean((values[:known] - y) ** 2)))
    return Fit(family=family, parameters=tuple(result.x.tolist()), deviation=deviation)

"""Where the sampler starts: each family fitted to the curve by least squares."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dasktune.algos.curves.mcmc import extra
from dasktune.algos.curves.mcmc.families import FAMILIES, Abscissae, Family
from dasktune.algos.curves.mcmc.frame import Array

_PULL = 10.0
"""Weight of what goes beyond the prior, next to residuals."""

_MARGIN = 1e-3
"""How far inside the prior a fit should lie."""

_WRONG = 1e3
"""Residual of what is not finite, or beyond it."""

_MOST_EVALUATIONS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A family as it was fitted.

    Parameters
    ----------
    family
        Which it is.
    parameters
        Those of the fit, within the prior.
    deviation
        Root of the mean squared residual.
    """

    family: Family
    parameters: tuple[float, ...]
    deviation: float


def fits(places: Abscissae, y: Array) -> tuple[Fit, ...]:
    """Return the families that can be fitted; those that cannot are left out for this curve.

    Levenberg-Marquardt from the starts of each family. A fit that leaves the prior is pulled
    back into it; one that stays outside, or is not finite, has failed.

    Parameters
    ----------
    places
        Where the curve was measured, then where the prior looks at a family: x = 2 and the
        last x (see `admitted`).
    y
        What was measured.
    """
    with np.errstate(all="ignore"):
        found = [_fit(family, places, y) for family in FAMILIES]
    return tuple(fit for fit in found if fit is not None)


def admitted(values: Array) -> npt.NDArray[np.bool_]:
    """Return which curves the prior admits, by their last two values: at x = 2 and the last x.

    References
    ----------
    Domhan et al. (2015), section 3.2: none that falls between the two, none that ends out of
    range. Theirs is 0 to 100; ours is that of the metric, which is 0 to 1 here.
    """
    first, last = values[..., -2], values[..., -1]
    found: npt.NDArray[np.bool_] = (first <= last) & (last >= 0) & (last <= 1)
    return found


def _fit(family: Family, places: Abscissae, y: Array) -> Fit | None:
    known = len(y)
    # The algorithm wants as many residuals as parameters; the pulls are three of them.
    size = max(known + 3, family.size)

    def residuals(parameters: Array) -> Array:
        values = family.of(places, *parameters)
        first, last = values[-2:]
        found = np.zeros(size)
        found[:known] = values[:known] - y
        found[known : known + 3] = first - last, last - 1 + _MARGIN, _MARGIN - last
        found[known:] = _PULL * np.maximum(found[known:], 0)
        finite: Array = np.nan_to_num(found, nan=_WRONG).clip(-_WRONG, _WRONG)
        return finite

    result = extra.optimize().least_squares(
        residuals, family.starts, method="lm", max_nfev=_MOST_EVALUATIONS
    )
    values = family.of(places, *result.x)
    if not np.isfinite(values).all() or not admitted(values):
        return None
    deviation = float(np.sqrt(np.mean((values[:known] - y) ** 2)))
    return Fit(family=family, parameters=tuple(result.x.tolist()), deviation=deviation)

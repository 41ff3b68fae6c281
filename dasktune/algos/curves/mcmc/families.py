"""Eleven parametric families of learning curves, each a function of x = 1, 2, 3, ...

References
----------
Domhan, Springenberg, Hutter: Speeding up automatic hyperparameter optimization of deep neural
networks by extrapolation of learning curves (IJCAI 2015), Table 1; used by HyperDrive (Rasley
et al., Middleware 2017, section 3.1.1). Symbols are the paper's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from dasktune.algos.curves.mcmc.frame import Array


@dataclass(frozen=True, slots=True)
class Abscissae:
    """Places on the x axis, with the functions of them that the families need, computed once.

    Parameters
    ----------
    x
        Places, all at least 1.
    """

    x: Array
    log: Array
    inverse: Array
    inverse_log: Array

    @classmethod
    def of(cls, x: Any) -> Abscissae:
        """Return the abscissae of places."""
        places = np.asarray(x, float)
        return cls(places, np.log(places), 1 / places, 1 / np.log1p(places))


@dataclass(frozen=True, slots=True)
class CurveFamily:
    """One family of curves.

    Parameters
    ----------
    name
        As in the paper.
    starts
        Where the least-squares fit starts, by parameter.
    of
        ``of(places, *parameters)``: its values; parameters and places broadcast. An
        undefined value is not finite.
    """

    name: str
    starts: tuple[float, ...]
    of: Callable[..., Array]

    @property
    def size(self) -> int:
        """Its number of parameters."""
        return len(self.starts)


def _vapor_pressure(at: Abscissae, a: Array, b: Array, c: Array) -> Array:
    """Return exp(a + b/x + c ln x)."""
    return np.exp(a + b * at.inverse + c * at.log)


def _pow3(at: Abscissae, c: Array, a: Array, alpha: Array) -> Array:
    """Return c - a x^-alpha."""
    return c - a * np.exp(-alpha * at.log)


def _log_log_linear(at: Abscissae, a: Array, b: Array) -> Array:
    """Return ln(a ln x + b)."""
    return np.log(a * at.log + b)


def _hill3(at: Abscissae, theta: Array, eta: Array, kappa: Array) -> Array:
    """Return theta x^eta / (kappa^eta + x^eta)."""
    values: Array = theta / (1 + np.exp(eta * (np.log(kappa) - at.log)))
    return values


def _log_power(at: Abscissae, a: Array, b: Array, c: Array) -> Array:
    """Return a / (1 + (x / e^b)^c)."""
    values: Array = a / (1 + np.exp(c * (at.log - b)))
    return values


def _pow4(at: Abscissae, c: Array, a: Array, b: Array, alpha: Array) -> Array:
    """Return c - (a x + b)^-alpha."""
    return c - np.exp(-alpha * np.log(a * at.x + b))


def _mmf(at: Abscissae, alpha: Array, beta: Array, kappa: Array, delta: Array) -> Array:
    """Return alpha - (alpha - beta) / (1 + (kappa x)^delta)."""
    values: Array = alpha - (alpha - beta) / (1 + np.exp(delta * (np.log(kappa) + at.log)))
    return values


def _exp4(at: Abscissae, c: Array, a: Array, b: Array, alpha: Array) -> Array:
    """Return c - exp(-a x^alpha + b)."""
    return c - np.exp(b - a * np.exp(alpha * at.log))


def _janoschek(at: Abscissae, alpha: Array, beta: Array, kappa: Array, delta: Array) -> Array:
    """Return alpha - (alpha - beta) exp(-kappa x^delta)."""
    return alpha - (alpha - beta) * np.exp(-kappa * np.exp(delta * at.log))


def _weibull(at: Abscissae, alpha: Array, beta: Array, kappa: Array, delta: Array) -> Array:
    """Return alpha - (alpha - beta) exp(-(kappa x)^delta)."""
    return alpha - (alpha - beta) * np.exp(-np.exp(delta * (np.log(kappa) + at.log)))


def _ilog2(at: Abscissae, c: Array, a: Array) -> Array:
    """Return c - a / ln(x + 1)."""
    return c - a * at.inverse_log


FAMILIES: Final = (
    CurveFamily("vapor pressure", (-0.622028, -0.470050, 0.042322), _vapor_pressure),
    CurveFamily("pow3", (0.84, 0.52, 0.01), _pow3),
    CurveFamily("log log linear", (1.0, 1.0), _log_log_linear),
    CurveFamily("Hill3", (0.772320, 0.586449, 2.460843), _hill3),
    CurveFamily("log power", (0.77, 2.98, -0.51), _log_power),
    CurveFamily("pow4", (0.8, 200.0, 0.0, 0.1), _pow4),
    CurveFamily("MMF", (0.7, 0.1, 0.01, 5.0), _mmf),
    CurveFamily("exp4", (0.7, 0.8, -0.8, 0.3), _exp4),
    CurveFamily("Janoschek", (0.73, 0.07, 0.355, 0.46), _janoschek),
    CurveFamily("Weibull", (0.7, 0.1, 0.01, 1.0), _weibull),
    CurveFamily("ilog2", (0.78, 0.43), _ilog2),
)
"""All of them: 36 parameters together."""

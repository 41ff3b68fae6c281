"""The eleven families are what the paper says, for one walker and for many."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dasktune.algos.curves.mcmc.families import FAMILIES, Abscissae, CurveFamily
from dasktune.algos.curves.mcmc.starting import fit_of, fits

X = (1.0, 2.0, 7.5, 100.0)

FORMULAS = {
    "vapor pressure": lambda x, a, b, c: math.exp(a + b / x + c * math.log(x)),
    "pow3": lambda x, c, a, alpha: c - a * x**-alpha,
    "log log linear": lambda x, a, b: math.log(a * math.log(x) + b),
    "Hill3": lambda x, theta, eta, kappa: theta * x**eta / (kappa**eta + x**eta),
    "log power": lambda x, a, b, c: a / (1 + (x / math.exp(b)) ** c),
    "pow4": lambda x, c, a, b, alpha: c - (a * x + b) ** -alpha,
    "MMF": lambda x, alpha, beta, kappa, delta: alpha - (alpha - beta) / (1 + (kappa * x) ** delta),
    "exp4": lambda x, c, a, b, alpha: c - math.exp(-a * x**alpha + b),
    "Janoschek": lambda x, alpha, beta, kappa, delta: (
        alpha - (alpha - beta) * math.exp(-kappa * x**delta)
    ),
    "Weibull": lambda x, alpha, beta, kappa, delta: (
        alpha - (alpha - beta) * math.exp(-((kappa * x) ** delta))
    ),
    "ilog2": lambda x, c, a: c - a / math.log(x + 1),
}

each_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


def curve(family: CurveFamily) -> tuple[Abscissae, np.ndarray]:
    """Return places and what `family` is there, with parameters a little off its starts.

    The log log linear one would end above 1 there.
    """
    places = Abscissae.of([*np.arange(1.0, 31.0), 2.0, 60.0])
    factor = 0.3 if family.name == "log log linear" else 0.95
    return places, family.of(places, *(factor * start + 0.01 for start in family.starts))


def test_there_are_eleven_with_36_parameters() -> None:
    assert [family.name for family in FAMILIES] == list(FORMULAS)
    assert sum(family.size for family in FAMILIES) == 36


@each_family
def test_each_is_its_formula(family: CurveFamily) -> None:
    rng = np.random.default_rng(1)
    for _ in range(10):
        parameters = [start * rng.uniform(0.8, 1.2) for start in family.starts]
        expected = [FORMULAS[family.name](x, *parameters) for x in X]
        assert family.of(Abscissae.of(X), *parameters) == pytest.approx(expected)


@each_family
def test_many_walkers_are_each_of_them(family: CurveFamily) -> None:
    rng = np.random.default_rng(2)
    walkers = np.array(family.starts) * rng.uniform(0.9, 1.1, (5, family.size))
    places = Abscissae.of(X)
    together = family.of(places, *walkers.T[:, :, None])
    assert together.shape == (5, 4)
    for walker, values in zip(walkers, together, strict=True):
        assert values == pytest.approx(family.of(places, *walker))


@each_family
def test_what_a_family_made_is_fitted_by_it(family: CurveFamily) -> None:
    places, values = curve(family)
    fit = fit_of(family, places, values[:-2])
    assert fit is not None
    assert fit.deviation < 0.01


def test_fits_end_within_the_range_that_scores_can_have() -> None:
    """The curve goes straight to 0.95: what goes on beyond 1 is pulled back, or left out."""
    places = Abscissae.of([*np.arange(1.0, 11.0), 2.0, 100.0])
    found = fits(places, np.linspace(0.1, 0.95, 10))
    assert len(found) >= 8
    for fit in found:
        *_, second, last = fit.family.of(places, *fit.parameters)
        assert second <= last
        assert 0 <= last <= 1


def test_fits_of_a_falling_line_leave_out_rising_families() -> None:
    places = Abscissae.of([*np.arange(1.0, 11.0), 2.0, 100.0])
    for fit in fits(places, np.linspace(0.9, 0.1, 10)):
        *_, second, last = fit.family.of(places, *fit.parameters)
        assert second <= last

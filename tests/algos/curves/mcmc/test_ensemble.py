"""The families' posterior: where it puts a curve, how sure it is, and what it refuses."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

import dasktune as dt
from dasktune.algos.curves import Curve, CurveEnsemble, Persistence
from dasktune.algos.curves.mcmc.families import Abscissae
from dasktune.algos.curves.mcmc.posterior import Posterior, sampled
from dasktune.algos.curves.mcmc.starting import fits
from dasktune.errors import ConfigurationError
from dasktune.testing import PredictorConformance

SMALL = CurveEnsemble(walkers=96, samples=10)


def curve(points: int = 15, **changes: object) -> Curve:
    x = np.arange(1.0, points + 1)
    scores = 0.8 - 0.6 / x**0.8 + 0.01 * np.random.default_rng(3).standard_normal(points)
    given = {"low": 0.0, "high": 1.0, "max_steps": 100, **changes}
    return Curve(steps=tuple(range(1, points + 1)), scores=tuple(scores.tolist()), **given)


@pytest.fixture(scope="module")
def posterior() -> Posterior:
    known = curve()
    places = Abscissae.of([*known.steps, 2.0, 100.0])
    y = np.array(known.scores)
    return Posterior(places, y, fits(places, y), recency=False)


@pytest.mark.slow
class TestConformance(PredictorConformance):
    def make(self) -> CurveEnsemble:
        return CurveEnsemble(walkers=96, samples=8)

    def make_other(self) -> CurveEnsemble:
        return CurveEnsemble(walkers=96, samples=8, recency=False)


# ------------------------------------------------------------------------------ the posterior


def test_it_has_48_dimensions_if_all_families_fit(posterior: Posterior) -> None:
    assert posterior.dimensions == 48


def test_the_likelihood_is_gaussian(posterior: Posterior) -> None:
    (start,) = posterior.starts(1, np.random.RandomState(0))
    known = curve()
    (fitted,) = posterior.curves(start[None], Abscissae.of(known.steps))
    noise = start[-1]
    expected = sum(
        -0.5 * ((score - mean) / noise) ** 2 - np.log(noise)
        for score, mean in zip(known.scores, fitted, strict=True)
    )
    assert posterior.log_probability(start[None])[0] == pytest.approx(expected)


def test_only_the_ratio_of_weights_matters(posterior: Posterior) -> None:
    (start,) = posterior.starts(1, np.random.RandomState(0))
    other = start.copy()
    other[-12:-1] *= 3
    first, second = posterior.log_probability(np.array([start, other]))
    assert first == pytest.approx(second)


@pytest.mark.parametrize(("place", "value"), [(-1, 0.0), (-1, -0.1), (-2, -1.0), (3, 2.0)])
def test_what_the_prior_refuses_has_no_probability(
    posterior: Posterior, place: int, value: float
) -> None:
    """No noise, a weight below 0, and a family (pow3) that ends above 1."""
    (start,) = posterior.starts(1, np.random.RandomState(0))
    start[place] = value
    assert posterior.log_probability(start[None])[0] == -np.inf


def test_the_last_points_count_most_if_so_asked() -> None:
    known = curve()
    places, y = Abscissae.of([*known.steps, 2.0, 100.0]), np.array(known.scores)
    found = fits(places, y)
    plain = Posterior(places, y, found, recency=False)
    (start,) = plain.starts(1, np.random.RandomState(0))

    def loss(place: int) -> float:
        moved = y.copy()
        moved[place] += 0.1
        one, other = (Posterior(places, values, found, recency=True) for values in (y, moved))
        (first,), (second,) = (each.log_probability(start[None]) for each in (one, other))
        return float(first - second)

    start[-1] = 0.05
    assert loss(-1) > 5 * loss(0) > 0


def test_walkers_stay_where_the_prior_admits_them(posterior: Posterior) -> None:
    chain = sampled(posterior, walkers=96, samples=20, seed=1)
    assert chain.shape == (20, 96, 48)
    assert np.isfinite(posterior.log_probability(chain[-1])).all()
    assert (chain[-1] != chain[0]).any()


# ---------------------------------------------------------------------------- predictions


def test_it_goes_on_with_a_curve_that_rises() -> None:
    """Nearer to what will be, about 0.785, than the last score is."""
    found = CurveEnsemble(walkers=96, samples=100).predict(curve(), (100,))
    assert abs(found.medians[0] - 0.785) < abs(curve().scores[-1] - 0.785)
    ((low, high),) = found.interval(0.8)
    assert low < 0.785 < high


def test_it_is_less_sure_the_further_it_looks() -> None:
    (near, far) = SMALL.predict(curve(), (16, 100)).interval(0.8)
    assert far[1] - far[0] > near[1] - near[0]


def test_a_curve_upside_down_has_the_prediction_upside_down() -> None:
    known = curve()
    down = replace(known, scores=tuple(1 - score for score in known.scores))
    up, fallen = SMALL.predict(known, (50, 100)), SMALL.predict(down, (50, 100))
    assert fallen.medians == pytest.approx([1 - score for score in up.medians], abs=0.02)


def test_the_unit_of_scores_and_steps_does_not_matter() -> None:
    known = curve(low=None, high=None)
    other = Curve(
        steps=tuple(10 * step for step in known.steps),
        scores=tuple(800 * score - 500 for score in known.scores),
        max_steps=1000,
    )
    first, second = SMALL.predict(known, (50, 100)), SMALL.predict(other, (500, 1000))
    expected = [800 * score - 500 for score in first.medians]
    assert second.medians == pytest.approx(expected, abs=800 * 0.01)


@pytest.mark.parametrize("scores", [(0.1, 0.2, 0.25), (0.3,) * 9])
def test_what_has_no_shape_is_left_to_persistence(scores: tuple[float, ...]) -> None:
    known = Curve(steps=tuple(range(1, len(scores) + 1)), scores=scores, max_steps=60)
    assert SMALL.predict(known, (30, 60)) == Persistence().predict(known, (30, 60))


def test_of_a_long_curve_some_points_are_enough() -> None:
    found = SMALL.predict(curve(1000, max_steps=2000), (2000,))
    assert found.medians[0] == pytest.approx(0.8, abs=0.02)


def test_another_seed_draws_other_samples() -> None:
    first, second = (SMALL.predict(curve(), (100,), seed=seed) for seed in (1, 2))
    assert first != second
    assert first.medians[0] == pytest.approx(second.medians[0], abs=0.05)


# --------------------------------------------------------------------------------- refusals


def test_all_wrong_arguments_are_refused_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        CurveEnsemble(walkers=10, samples=0, recency="yes")  # type: ignore[arg-type]
    assert len(caught.value.problems) == 3
    assert "walkers must be >= 96, got 10" in str(caught.value)


def test_walkers_move_in_two_halves() -> None:
    with pytest.raises(ConfigurationError, match="walkers must be even, got 97"):
        CurveEnsemble(walkers=97)


@pytest.mark.parametrize("name", ["emcee", "scipy.optimize"])
def test_a_missing_package_is_named_before_anything_runs(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigurationError, match=r"pip install 'dasktune\[curves\]'"):
        CurveEnsemble()
    space = dt.Space(lr=dt.Float(0.1, 1.0))
    with pytest.raises(ConfigurationError, match=r"EarlyTerm: CurveEnsemble needs \w+: pip inst"):
        dt.algos.EarlyTerm(space, trials=2, max_steps=4, predictor="CurveEnsemble")


@pytest.mark.parametrize("name", ["emcee", "scipy.optimize"])
def test_a_worker_without_a_package_says_so(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigurationError, match=r"pip install 'dasktune\[curves\]'"):
        SMALL.predict(curve(), (100,))

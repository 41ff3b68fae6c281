"""Scoring rules agree with closed forms, and with the distribution that predictions speak of."""

from __future__ import annotations

import math
from statistics import NormalDist
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasktune.algos.curves import LEVELS, Prediction

STANDARD = NormalDist()

rows = st.lists(st.integers(-1000, 1000), min_size=len(LEVELS), max_size=len(LEVELS)).map(
    lambda found: tuple(sorted(one / 100 for one in found))
)
truths = st.integers(-1500, 1500).map(lambda found: found / 100 + 1 / 313)


@pytest.fixture(scope="module")
def scores(load: Any) -> ModuleType:
    module: ModuleType = load("scores")
    return module


def predicted(row: Any) -> Prediction:
    return Prediction(after=1, steps=(2,), scores=(tuple(row),), deviations=(0.0,))


def gaussian(mean: float, deviation: float) -> tuple[float, ...]:
    return tuple(NormalDist(mean, deviation).inv_cdf(level) for level in LEVELS)


def numeric_crps(row: Any, truth: float) -> float:
    """Return the integral that defines the score, by many narrow rectangles."""
    grid = np.linspace(min(*row, truth) - 60, max(*row, truth) + 60, 400_001)
    middles = (grid[1:] + grid[:-1]) / 2
    chances = predicted(row).chances
    known = np.interp(middles, grid[::200], [1 - chances(float(z))[0] for z in grid[::200]])
    return float(np.sum((known - (middles >= truth)) ** 2) * (grid[1] - grid[0]))


@pytest.mark.parametrize("truth", [-3.0, -0.4, 0.0, 1.3, 2.9])
def test_the_crps_of_a_gaussian_is_its_closed_form(scores: ModuleType, truth: float) -> None:
    # Gneiting and Raftery (2007), equation 21.
    exact = truth * (2 * STANDARD.cdf(truth) - 1) + 2 * STANDARD.pdf(truth) - 1 / math.sqrt(math.pi)
    assert scores.crps(gaussian(0, 1), truth) == pytest.approx(exact, abs=0.005)
    wide = scores.crps(gaussian(5, 2), 5 + 2 * truth)
    assert wide == pytest.approx(2 * scores.crps(gaussian(0, 1), truth))


@pytest.mark.parametrize("truth", [-5.0, 0.005, 0.123, 0.5, 0.9, 3.0])
def test_the_crps_is_the_integral_that_defines_it(scores: ModuleType, truth: float) -> None:
    for row in (LEVELS, gaussian(0.3, 1)):
        assert scores.crps(row, truth) == pytest.approx(numeric_crps(row, truth), rel=0.01)


@given(row=rows, truth=truths)
def test_the_crps_is_twice_the_pinball_loss_over_all_levels(
    scores: ModuleType, row: tuple[float, ...], truth: float
) -> None:
    levels = (np.arange(20_000) + 0.5) / 20_000
    inner = np.interp(levels, LEVELS, row)
    lower = row[0] + scores.TAIL * (row[1] - row[0]) * np.log(levels / LEVELS[0])
    upper = row[-1] - scores.TAIL * (row[-1] - row[-2]) * np.log((1 - levels) / LEVELS[0])
    quantiles = np.where(levels < LEVELS[0], lower, np.where(levels > LEVELS[-1], upper, inner))
    losses = np.maximum(levels * (truth - quantiles), (levels - 1) * (truth - quantiles))
    assert scores.crps(row, truth) == pytest.approx(2 * losses.mean(), rel=0.005, abs=1e-4)


@given(truth=truths, at=truths)
def test_the_crps_of_one_point_is_the_distance(scores: ModuleType, truth: float, at: float) -> None:
    assert scores.crps([at] * len(LEVELS), truth) == pytest.approx(abs(truth - at))


def test_the_true_distribution_scores_best(scores: ModuleType) -> None:
    drawn = np.random.default_rng(0).normal(size=4000)
    rows = {
        "true": gaussian(0, 1),
        "narrow": gaussian(0, 0.5),
        "wide": gaussian(0, 2),
        "shifted": gaussian(0.7, 1),
    }
    means = {name: np.mean([scores.crps(row, z) for z in drawn]) for name, row in rows.items()}
    assert min(means, key=means.__getitem__) == "true"

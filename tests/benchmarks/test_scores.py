"""Scoring rules agree with closed forms, and with the distribution that predictions speak of."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import NormalDist
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasktune.algos.curves import LEVELS, Prediction

FOLDER = Path(__file__).parents[2] / "benchmarks"
STANDARD = NormalDist()

rows = st.lists(st.integers(-1000, 1000), min_size=len(LEVELS), max_size=len(LEVELS)).map(
    lambda found: tuple(sorted(one / 100 for one in found))
)
truths = st.integers(-1500, 1500).map(lambda found: found / 100 + 1 / 313)


@pytest.fixture(scope="module")
def scores() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        yield importlib.import_module("scores")
    sys.modules.pop("scores", None)


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
    assert scores.pinball(quantiles[7], levels[7], truth) == pytest.approx(losses[7])


@given(truth=truths, at=truths)
def test_the_crps_of_one_point_is_the_distance(scores: ModuleType, truth: float, at: float) -> None:
    assert scores.crps([at] * len(LEVELS), truth) == pytest.approx(abs(truth - at))


@given(row=rows, score=truths)
def test_the_distribution_is_that_of_the_predictions_chances(
    scores: ModuleType, row: tuple[float, ...], score: float
) -> None:
    assert scores.below(row, score) == pytest.approx(1 - predicted(row).chances(score)[0])


def test_the_log_loss_of_what_is_known_by_its_density(scores: ModuleType) -> None:
    # LEVELS themselves are the quantiles of the uniform distribution from 0 to 1.
    assert scores.log_loss(LEVELS, 0.37) == pytest.approx(0.0, abs=1e-9)
    halved = [level / 2 for level in LEVELS]
    assert scores.log_loss(halved, 0.2) == pytest.approx(-math.log(2))
    mean = np.mean([scores.log_loss(gaussian(0, 1), z) for z in gaussian(0, 1)[2:-2]])
    exact = np.mean([-math.log(STANDARD.pdf(z)) for z in gaussian(0, 1)[2:-2]])
    assert mean == pytest.approx(exact, abs=0.05)
    scale = scores.TAIL * (LEVELS[1] - LEVELS[0])
    density = LEVELS[0] / scale * math.exp(-0.03 / scale)
    assert scores.log_loss(LEVELS, LEVELS[0] - 0.03) == pytest.approx(-math.log(density), abs=0.01)


@given(row=rows, truth=truths)
def test_the_log_loss_is_finite_and_no_surer_than_its_floor(
    scores: ModuleType, row: tuple[float, ...], truth: float
) -> None:
    found = scores.log_loss(row, truth)
    assert math.log(scores.FLOOR) - 1e-9 <= found < math.inf
    reflected = scores.log_loss([-edge for edge in reversed(row)], -truth)
    assert found == pytest.approx(reflected, rel=1e-6, abs=1e-6)


@given(row=rows)
def test_likelihoods_are_those_of_a_distribution(
    scores: ModuleType, row: tuple[float, ...]
) -> None:
    width = 0.05
    centres = np.arange(row[0] - 40, row[-1] + 40, width)
    total = sum(math.exp(-scores.log_loss(row, z, floor=width)) for z in centres) * width
    assert total == pytest.approx(1.0, abs=1e-3)


def test_being_surer_of_what_does_not_come_costs_more(scores: ModuleType) -> None:
    losses = [scores.log_loss(gaussian(0, width), 1.0) for width in (0.5, 0.1, 0.01, 0.0001)]
    assert losses == sorted(losses)
    assert losses[-1] == pytest.approx(1 / scores.FLOOR, rel=0.02)


def test_the_true_distribution_scores_best(scores: ModuleType) -> None:
    drawn = np.random.default_rng(0).normal(size=4000)
    for rule in (scores.crps, scores.log_loss):
        means = {
            name: np.mean([rule(row, z) for z in drawn])
            for name, row in {
                "true": gaussian(0, 1),
                "narrow": gaussian(0, 0.5),
                "wide": gaussian(0, 2),
                "shifted": gaussian(0.7, 1),
            }.items()
        }
        assert min(means, key=means.get) == "true"


def test_scores_are_parts_of_the_scale(scores: ModuleType) -> None:
    small = scores.Score.of(predicted(gaussian(0.4, 0.1)), 0.5)
    large = scores.Score.of(predicted(gaussian(40, 10)), 50.0, scale=100.0)
    assert large.error == pytest.approx(small.error) == pytest.approx(0.1)
    assert large.crps == pytest.approx(small.crps)
    assert large.nll == pytest.approx(small.nll)
    assert small.covered == large.covered == 1.0
    assert scores.Score.of(predicted(gaussian(0.4, 0.1)), 0.6).covered == 0.0


def test_many_scores_come_to_means_a_median_and_a_skill(scores: ModuleType) -> None:
    some = [
        scores.Score(nll=1.0, crps=0.2, covered=1.0, error=0.1),
        scores.Score(nll=2.0, crps=0.4, covered=0.0, error=0.2),
        scores.Score(nll=3.0, crps=0.6, covered=1.0, error=0.6),
    ]
    found = scores.Scores.of(some)
    assert (found.nll, found.crps, found.median_error) == pytest.approx((2.0, 0.4, 0.2))
    assert (found.coverage, found.mean_error) == pytest.approx((2 / 3, 0.3))
    assert scores.Scores.of(some[:1]).skill(found) == pytest.approx(0.5)
    assert found.skill(found) == 0.0

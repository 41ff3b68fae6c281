"""The process: it passes near what was observed, and knows what it cannot know."""

from __future__ import annotations

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from dasktune.algos.branching import gaussian_process
from dasktune.algos.branching.model import MOST, MOST_PENDING


def squared(points: np.ndarray, first: int) -> np.ndarray:
    differences: np.ndarray = points[:first, None] - points
    return differences[None] ** 2


X = np.linspace(0, 1, 12)
Y = np.sin(6 * X)
SEEN = MOST + MOST_PENDING


def test_fitted_process_predicts_between_observations() -> None:
    parameters = gaussian_process.fitted(squared(X, 12), Y)
    points = np.array([*X, 0.21, 0.63])
    means, deviations = gaussian_process.predicted(squared(points, 12), Y, parameters)
    assert np.abs(means[12:] - np.sin(6 * points[12:])).max() < 0.05
    assert deviations.max() < 0.3


def test_fitted_lengths_are_long_where_nothing_depends() -> None:
    other = np.random.default_rng(0).random(12)
    both = np.concatenate([squared(X, 12), squared(other, 12)])
    matters, does_not = gaussian_process.fitted(both, Y).lengths
    assert matters < does_not


def test_pending_points_lower_deviations_and_leave_means() -> None:
    parameters = gaussian_process.fitted(squared(X, 12), Y)
    points = np.array([*X, 1.5, 1.5])
    alone = gaussian_process.predicted(squared(points, 12), Y, parameters)
    beside = gaussian_process.predicted(squared(points, 13), Y, parameters)
    assert np.allclose(alone[0], beside[0])
    assert beside[1][13] < 0.6 * alone[1][13]


def test_number_of_blas_threads_changes_no_bit() -> None:
    points = np.random.default_rng(0).random((3, 300))
    distances = np.concatenate([squared(each, SEEN) for each in points])
    values = np.sin(9 * points[0, :MOST])
    results = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            parameters = gaussian_process.fitted(distances[:, :MOST, :MOST], values)
            results.append(gaussian_process.predicted(distances, values, parameters))
    for means, deviations in results[1:]:
        assert np.array_equal(means, results[0][0])
        assert np.array_equal(deviations, results[0][1])

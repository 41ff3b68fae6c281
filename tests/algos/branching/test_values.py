"""Distances of configurations by the values that a trainer sees."""

from __future__ import annotations

import numpy as np

from dasktune.algos.branching.values import compared_steps, distances
from dasktune.sequences import Constant, MultiStep, Piecewise, Sequence

LATE = MultiStep(1.0, [6], gamma=0.01)


def between(*sequences: Sequence, until: int = 8) -> np.ndarray:
    return distances([({"x": each}, until) for each in sequences], len(sequences))


def test_distances_of_late_changes_are_in_the_second_half() -> None:
    (late,) = between(Constant(1.0), LATE)
    assert late[0].tolist() == [0.0, 0.5]  # 2 of 4 steps differ by the whole range


def test_values_of_positive_decades_are_in_logarithms() -> None:
    early, late = between(Constant(0.01), Constant(0.1), Constant(1.0))
    assert np.allclose(early[0], [0.0, 0.25, 1.0])
    assert np.allclose(early, late)


def test_equal_values_of_other_families_have_no_distance() -> None:
    same = Piecewise([1.0, 0.01], boundaries=[6])
    assert between(LATE, same, Constant(1.0))[0][0].tolist() == [0.0, 0.0, 0.5]


def test_texts_booleans_and_missing_values_are_unlike() -> None:
    rows: list[dict[str, Sequence]] = [
        {"act": Constant("relu")},
        {"act": Constant("tanh")},
        {"act": Constant(value=True)},
        {},
        {"act": Constant(1)},
    ]
    early, _ = distances([(row, 4) for row in rows], 5)
    assert np.array_equal(early, 1.0 - np.eye(5))


def test_constants_alike_have_no_part() -> None:
    assert between(Constant(1.0), Constant(1.0)).shape == (0, 2, 2)


def test_compared_steps_of_long_trials_are_few() -> None:
    steps = compared_steps(10_000_000, 24)
    assert len(steps) == 24
    assert steps == sorted(set(steps))
    assert steps[-1] < 10_000_000

"""Ranks of models, and the weights that follow from them."""

from __future__ import annotations

import math

import pytest

from dasktune.algos.forest.ranks import ranks, weights


def test_ranks_of_equal_values_are_their_mean() -> None:
    assert ranks([3.0, 1.0, 3.0, 2.0]) == [3.5, 1.0, 3.5, 2.0]


def test_an_infinite_value_ranks_highest() -> None:
    assert ranks([1.0, math.inf, 5.0]) == [1.0, 3.0, 2.0]


def test_weights_are_mean_ranks_of_both_heuristics() -> None:
    assert weights(3, [1.0, 2.0, 3.0], [9.0, 1.0, 5.0]) == pytest.approx([4 / 12, 3 / 12, 5 / 12])


def test_equal_models_have_equal_weights() -> None:
    assert weights(5, [4.0] * 5) == pytest.approx([0.2] * 5)


def test_without_heuristics_models_are_equal() -> None:
    assert weights(4) == [0.25] * 4

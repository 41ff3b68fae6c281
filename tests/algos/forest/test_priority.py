"""Priority: equation 2 of the paper, and what its Gaussian processes see."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from dasktune.algos.forest import extra
from dasktune.algos.forest.priority import (
    MOST_POINTS,
    Array,
    Priority,
    PriorityQuestion,
    in_unit_cube,
    spread,
    standardised,
)
from dasktune.errors import ConfigurationError
from dasktune.space import Choice, Float, Int


def question(loss: Callable[[Array], Array], *, points: int = 24) -> PriorityQuestion:
    """Return the question for losses at random points of two coordinates."""
    rows = np.random.default_rng(3).random((points, 2))
    losses = loss(rows[:, 0])
    return PriorityQuestion(
        points=tuple(map(tuple, rows.tolist())), losses=tuple((losses - losses.mean()).tolist())
    )


def constant(x: Array) -> Array:
    return 0.02 * x


def line(x: Array) -> Array:
    return 2.0 * x


def wave(x: Array) -> Array:
    return np.sin(12 * x)


def noise(x: Array) -> Array:
    return np.random.default_rng(5).normal(size=len(x))


def test_priority_rises_with_the_variation_of_losses() -> None:
    values = [question(loss).answer().value for loss in (constant, line, wave, noise)]
    assert values[0] < 1e-6
    assert all(first < second for first, second in pairwise(values)), values


def test_priority_is_that_of_the_paper() -> None:
    assert Priority(shortest=0.2, longest=4.0).value == pytest.approx(5 - 0.25)


def test_the_same_question_has_the_same_answer() -> None:
    answer = question(wave).answer()
    assert question(wave).answer() == answer
    assert PriorityQuestion.read(json.loads(json.dumps(answer.to_json()))) == answer


def test_equal_points_with_unlike_losses_have_an_answer() -> None:
    same = PriorityQuestion(points=((0.5,),) * 6, losses=(1.0, -1.0) * 3)
    assert same.answer().value >= 0


def test_repeats_of_points_do_not_raise_the_priority() -> None:
    # Six options, each drawn four times: the losses of an option differ by very little.
    points = tuple((0.2 * (place % 6),) for place in range(24))
    scatter = np.random.default_rng(7).normal(scale=0.01, size=24)
    assert PriorityQuestion(points=points, losses=tuple(scatter.tolist())).answer().value < 1


def test_scikit_learn_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'dasktune\[forest\]'"):
        extra.require()
    monkeypatch.setitem(sys.modules, "sklearn.gaussian_process", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'dasktune\[forest\]'"):
        question(wave).answer()


def test_points_lie_in_the_unit_cube() -> None:
    domains = {
        "c": Choice(["a", "b"]).document,
        "lr": Float(0.01, 1.0, log=True).to_json(),
        "n": Int(1, 5).to_json(),
    }
    assert in_unit_cube({"lr": 0.1, "n": 5, "c": "b"}, domains) == pytest.approx(
        (0.0, 0.5**0.5, 0.5, 1.0)
    )
    assert in_unit_cube({"lr": 1.0, "c": "a"}, domains) == pytest.approx((0.5**0.5, 0.0, 1.0, 0.5))


def test_losses_are_measured_by_those_of_all_models() -> None:
    assert standardised([1.0, 1.0], [1.0, 1.0]) == (0.0, 0.0)
    assert max(standardised([0.90, 0.91], [0.1, 0.3, 0.90, 0.91])) < 0.02


def test_of_many_losses_some_from_all_times_are_used() -> None:
    kept = spread(range(1000))
    assert (len(kept), kept[0], kept[-1]) == (MOST_POINTS, 0, 999)
    assert max(second - first for first, second in pairwise(kept)) <= 11
    assert spread(range(7)) == list(range(7))

"""Features of a curve have no unit, and depend only on its past scores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dasktune.algos.curves import Branch, Curve
from dasktune.algos.curves.curve import MOST_SIBLINGS
from dasktune.algos.curves.network.features import LIMIT, describe
from tests.effort import examples

STEPS = (45, 60)


def curve(**others: object) -> Curve:
    x = np.arange(1, 41)
    wobble = 0.01 * np.random.default_rng(1).standard_normal(40)
    scores = 0.8 - 0.6 / x**0.8 + wobble
    known: dict[str, object] = {"max_steps": 60, "low": 0.0, "high": 1.0, **others}
    return Curve(steps=tuple(x.tolist()), scores=tuple(scores.tolist()), **known)  # type: ignore[arg-type]


def branch(gain: float, *, until: int = 60, rates: tuple[tuple[int, float], ...] = ()) -> Branch:
    """Return a sibling that is the same, and gains something after step 40."""
    scores = curve().scores + tuple(curve().scores[-1] + gain for _ in range(40, until))
    return Branch(at=40, steps=tuple(range(1, until + 1)), scores=scores, rates=rates)


def told_apart(one: Curve, other: Curve) -> int:
    """Return how many features differ."""
    first, second = describe(one, STEPS).rows, describe(other, STEPS).rows
    return int((np.abs(first - second) > 1e-9).any(axis=0).sum())


@settings(max_examples=examples(30), deadline=None)
@given(factor=st.sampled_from([1e-6, 0.1, 3.0, 1e5]), every=st.sampled_from([1, 7, 200]))
def test_another_unit_of_scores_or_steps_gives_the_same_rows(factor: float, every: int) -> None:
    one = replace(curve(), siblings=(branch(0.1),), rates=((0, 0.1), (50, 0.01)))
    other = Curve(
        steps=tuple(step * every for step in one.steps),
        scores=tuple(factor * score for score in one.scores),
        max_steps=one.max_steps * every,
        low=0.0,
        high=factor,
        rates=((0, 0.1), (50 * every, 0.01)),
        siblings=(
            Branch(
                at=40 * every,
                steps=tuple(step * every for step in one.siblings[0].steps),
                scores=tuple(factor * score for score in one.siblings[0].scores),
            ),
        ),
    )
    found, again = describe(one, STEPS), describe(other, tuple(every * step for step in STEPS))
    assert again.rows == pytest.approx(found.rows, abs=1e-6)
    assert again.scale == pytest.approx(factor * found.scale)
    assert again.noise == pytest.approx(factor * found.noise)


def test_there_is_a_row_for_each_step_and_all_are_bounded() -> None:
    found = describe(curve(), (41, 45, 50, 60))
    assert len(found.rows) == 4
    assert np.abs(found.rows).max() <= LIMIT


def test_the_noise_is_found() -> None:
    assert 0.006 < describe(curve(), STEPS).noise < 0.015


def test_bounds_are_where_they_are_given() -> None:
    known = describe(curve(), STEPS)
    assert known.origin + known.scale * np.sinh(known.above) == pytest.approx(1.0)
    assert known.origin - known.scale * np.sinh(known.below) == pytest.approx(0.0)


@pytest.mark.parametrize("shift", [0.0, -5.0, 1e6])
def test_features_without_bounds_reach_some_ranges_or_zero(shift: float) -> None:
    one = curve(low=None, high=None)
    found = describe(replace(one, scores=tuple(np.add(one.scores, shift).tolist())), STEPS)
    rise, fall = (found.scale * np.sinh(room) for room in (found.above, found.below))
    spread = max(one.scores) - min(one.scores)
    assert rise == pytest.approx(25 * spread)
    assert fall == pytest.approx(25 * spread)


def test_without_bounds_a_plateau_may_be_left_as_far_as_to_zero() -> None:
    scores = tuple(-0.7 + 0.001 * (step % 3) for step in range(40))
    found = describe(Curve(steps=tuple(range(40)), scores=scores, max_steps=60), STEPS)
    assert found.origin + found.scale * np.sinh(found.above) == pytest.approx(0.0, abs=1e-9)
    assert found.scale * np.sinh(found.below) == pytest.approx(25 * 0.002)


def test_a_drop_is_told_only_for_steps_after_it() -> None:
    kept, dropped = curve(rates=((0, 0.1),)), curve(rates=((0, 0.1), (50, 0.01)))
    first, second = describe(kept, STEPS).rows, describe(dropped, STEPS).rows
    assert (first[0] == second[0]).all()
    assert (first[1] != second[1]).sum() >= 8


def test_a_rate_in_another_unit_is_told_alike() -> None:
    one = curve(rates=((0, 0.1), (20, 0.05), (50, 0.01)))
    other = curve(rates=((0, 10.0), (20, 5.0), (50, 1.0)))
    assert told_apart(one, other) == 0


def test_a_schedule_may_end_at_zero_or_be_no_rate_at_all() -> None:
    for rates in (((0, 0.1), (50, 0.0)), ((0, 0.0),), ((0, float("nan")),)):
        assert np.isfinite(describe(curve(rates=rates), STEPS).rows).all()


def test_features_do_not_depend_on_the_order_of_siblings() -> None:
    pair = (branch(0.1), branch(0.2))
    assert told_apart(curve(), curve(siblings=pair)) >= 8
    assert told_apart(curve(siblings=pair), curve(siblings=(branch(0.1), branch(-0.2)))) >= 2
    assert told_apart(curve(siblings=pair), curve(siblings=pair[::-1])) == 0


def test_a_sibling_that_did_not_go_further_says_nothing() -> None:
    assert told_apart(curve(), curve(siblings=(branch(0.1, until=40),))) == 0


def test_a_drop_of_a_sibling_tells_of_the_drop_that_comes() -> None:
    rates = ((0, 0.1), (40, 0.01))
    coming = curve(rates=((0, 0.1), (50, 0.01)))
    answers = [replace(coming, siblings=(branch(gain, rates=rates),)) for gain in (0.1, 0.0)]
    assert told_apart(*answers) >= 2


def test_scores_too_large_to_be_squared_are_told_as_large() -> None:
    wild = replace(curve(low=None, high=None), scores=(1e300, -1e300, *curve().scores[2:]))
    assert np.isfinite(describe(wild, STEPS).rows).all()


def test_features_ignore_siblings_beyond_the_largest_number() -> None:
    closest = tuple(branch(0.01 * number) for number in range(MOST_SIBLINGS))
    others = tuple(replace(branch(0.5), at=20) for _ in range(3))
    assert told_apart(curve(siblings=closest), curve(siblings=(*others, *closest))) == 0
    assert told_apart(curve(siblings=closest), curve(siblings=(*others, *closest[1:]))) > 0

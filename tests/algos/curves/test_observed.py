"""Observed curves: scores, learning rates and siblings."""

from __future__ import annotations

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from dasktune.algos.curves.curve import MOST_SIBLINGS
from dasktune.algos.curves.observed import (
    MOST_RATES,
    ObservedCurves,
    parting,
    pieces_of,
    rates_of,
)
from dasktune.sequences import Constant, Cosine, Sequence
from dasktune.types import Register


def trial(number: int, lr: Sequence, seed: int = 0) -> Register:
    return Register(trial=number, sequences={"lr": lr}, max_steps=60, seed=seed)


def drop(at: int, rate: float = 0.01) -> Sequence:
    return Constant(0.1)[:at] >> Constant(rate)


def test_a_curve_holds_what_was_seen_and_what_the_rate_will_be() -> None:
    curves = ObservedCurves()
    curves.register(trial(0, drop(30)))
    curves.observe(0, 10, 0.5)
    found = curves.curve(0, max_steps=60, low=0.0, high=1.0)
    assert (found.steps, found.scores, found.rates) == ((10,), (0.5,), ((0, 0.1), (30, 0.01)))
    assert [found.rate_at(step) for step in (0, 29, 30, 59)] == [0.1, 0.1, 0.01, 0.01]


def test_siblings_are_those_seen_beyond_where_they_part() -> None:
    curves = ObservedCurves()
    for number, at in enumerate((30, 30, 20, 30)):
        curves.register(trial(number, drop(at, 0.01 * (number + 1))))
    curves.register(trial(4, Constant(0.5)))
    for number, last in ((1, 40), (2, 40), (3, 30), (4, 60)):
        for step in range(10, last + 1, 10):
            curves.observe(number, step, step / 100)
    siblings = curves.curve(0, max_steps=60).siblings
    # Trial 3 has not been seen beyond step 30, trial 4 has nothing in common.
    assert [(one.at, one.steps[-1]) for one in siblings] == [(30, 40), (20, 40)]
    assert siblings[0].rates[-1] == (30, 0.02)


def test_repeats_with_other_seeds_share_nothing() -> None:
    curves = ObservedCurves()
    curves.register(trial(0, drop(30)))
    curves.register(trial(1, drop(30), seed=1))
    curves.observe(1, 40, 0.5)
    assert curves.curve(0, max_steps=60).siblings == ()


def test_siblings_are_not_too_many() -> None:
    curves = ObservedCurves()
    for number in range(MOST_SIBLINGS + 3):
        curves.register(trial(number, drop(10 + number)))
        curves.observe(number, 60, 0.5)
    found = curves.curve(0, max_steps=60).siblings
    assert [one.at for one in found] == [10] * MOST_SIBLINGS


def test_a_rate_that_changes_always_is_kept_at_some_steps() -> None:
    rates = rates_of({"learning_rate": Cosine(0.1, period=1000)}, 1000)
    assert len(rates) == MOST_RATES
    assert rates[0] == (0, 0.1)


def test_a_drop_is_kept_to_the_step_among_changes_without_number() -> None:
    sequence = Cosine(0.1, period=700_001) >> Constant(0.001)[:299_998] >> Constant(1e-4)
    rates = rates_of({"lr": sequence}, 1_000_000)
    assert len(rates) <= MOST_RATES + 2
    assert {(700_001, 0.001), (999_999, 1e-4)} <= set(rates)


def test_nothing_is_a_rate_that_is_not_called_so_or_no_number() -> None:
    assert rates_of({"momentum": Constant(0.9)}, 60) == ()
    assert rates_of({"lr": Constant("auto")}, 60) == ()
    assert rates_of({"eta": Constant(0.2), "lr": Constant(0.1)}, 60, "eta") == ((0, 0.2),)


def test_equal_values_are_alike_however_they_are_written() -> None:
    first = {"lr": pieces_of(Constant(0.1), 60)}
    second = {"lr": pieces_of(drop(30), 60)}
    assert parting(first, second, 60) == 30
    assert parting(first, first, 60) == 60
    assert parting(first, {}, 60) == 0


@given(st.integers(1, 59), st.integers(1, 59), st.sampled_from([0.1, 0.01]))
def test_trials_part_where_their_values_first_differ(one: int, two: int, rate: float) -> None:
    first, second = drop(one), drop(two, rate)
    values = ([sequence(step) for step in range(60)] for sequence in (first, second))
    pairs = zip(*values, strict=True)
    differ = next((step for step, (a, b) in enumerate(pairs) if a != b), 60)
    found = parting({"lr": pieces_of(first, 60)}, {"lr": pieces_of(second, 60)}, 60)
    assert found == differ


def test_it_is_the_same_after_a_snapshot() -> None:
    curves = ObservedCurves()
    curves.register(trial(0, drop(30)))
    curves.register(trial(1, drop(40)))
    curves.observe(0, 10, -math.inf)
    curves.observe(0, 20, math.nan)
    curves.observe(1, 50, 0.25)
    document = json.loads(json.dumps(curves.to_json(), allow_nan=False))
    again = ObservedCurves.from_json(document)
    assert repr(again.curve(0, max_steps=60)) == repr(curves.curve(0, max_steps=60))
    assert again.to_json() == curves.to_json()


def test_a_snapshot_stays_as_it_was_when_more_is_seen() -> None:
    curves = ObservedCurves()
    curves.register(trial(0, drop(30)))
    curves.observe(0, 10, 0.5)
    snapshot = curves.to_json()
    before = json.dumps(snapshot)
    curves.observe(0, 20, 0.6)
    assert json.dumps(snapshot) == before

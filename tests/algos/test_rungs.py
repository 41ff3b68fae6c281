"""Rungs and brackets are whole numbers by one rule, and trials are split to the last one."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasktune.algos.asha import ASHA
from dasktune.algos.rungs import Bracket, Halving, allocate, reachable, rungs, weight
from dasktune.errors import ConfigurationError
from dasktune.sequences.values import Arguments
from dasktune.space import Float, Space

STEPS = st.integers(1, 10**7)
ETAS = st.integers(2, 10)


def halving(
    brackets: object = "standard",
    *,
    trials: int = 1000,
    max_steps: int | None = 256,
    min_steps: int | None = None,
    eta: int = 4,
) -> Halving:
    check = Arguments("tuner")
    found = Halving.checked(
        check,
        trials=trials,
        max_steps=max_steps,
        min_steps=min_steps,
        eta=eta,
        brackets=brackets,  # type: ignore[arg-type]
    )
    check.refuse()
    return found


def widths(brackets: tuple[Bracket, ...]) -> list[tuple[int, int]]:
    return [(bracket.steps[0], bracket.width) for bracket in brackets]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"max_steps": 120, "min_steps": 15}, (15, 60, 120)),
        ({"max_steps": 60}, (3, 15, 60)),
        ({"max_steps": 256}, (1, 4, 16, 64, 256)),
        ({"max_steps": 1024}, (4, 16, 64, 256, 1024)),
        ({"max_steps": 9, "eta": 3, "most": 3}, (1, 3, 9)),
        ({"max_steps": 10, "eta": 2, "most": 4}, (1, 2, 5, 10)),
        ({"max_steps": 900, "eta": 3, "most": 3}, (100, 300, 900)),
        ({"max_steps": 243, "min_steps": 1, "eta": 3}, (1, 3, 9, 27, 81, 243)),
        ({"max_steps": 1000, "min_steps": 1, "eta": 10}, (1, 10, 100, 1000)),
        ({"max_steps": 243, "eta": 3, "most": 6}, (1, 3, 9, 27, 81, 243)),
        ({"max_steps": 3}, (3,)),
        ({"max_steps": 1}, (1,)),
        ({"max_steps": 7, "min_steps": 7}, (7,)),
        ({"max_steps": 8, "min_steps": 7}, (7, 8)),
    ],
)
def test_rungs_are_the_published_ones(arguments: dict[str, int], expected: tuple[int, ...]) -> None:
    assert rungs(**arguments) == expected


@given(max_steps=STEPS, eta=ETAS, most=st.integers(1, 8))
def test_from_above_each_rung_is_the_one_above_it_divided(
    max_steps: int, eta: int, most: int
) -> None:
    found = rungs(max_steps, eta=eta, most=most)
    assert found == tuple(max_steps // eta**level for level in reversed(range(len(found))))
    assert found[0] >= 1
    assert len(found) == most or found[0] < eta


@given(max_steps=STEPS, min_steps=STEPS, eta=ETAS)
def test_rungs_with_a_minimum_are_powers_below_the_maximum(
    max_steps: int, min_steps: int, eta: int
) -> None:
    min_steps = min(min_steps, max_steps)
    found = rungs(max_steps, min_steps, eta)
    assert found[-1] == max_steps
    assert found[:-1] == tuple(min_steps * eta**level for level in range(len(found) - 1))
    assert min_steps * eta ** (len(found) - 1) >= max_steps


@given(min_steps=st.integers(1, 100), eta=ETAS, power=st.integers(0, 12))
def test_no_rung_is_lost_at_an_exact_power(min_steps: int, eta: int, power: int) -> None:
    found = rungs(min_steps * eta**power, min_steps, eta)
    assert found == tuple(min_steps * eta**level for level in range(power + 1))
    assert reachable(eta**power, min_steps, eta) == found
    if power:
        assert reachable(eta**power - 1, min_steps, eta) == found[:-1]


def test_shares_are_those_of_the_paper() -> None:
    weights = [weight(count, eta=4) for count in (5, 4, 3)]
    assert weights == [Fraction(256, 5), Fraction(64, 4), Fraction(16, 3)]
    assert [round(float(one / sum(weights)), 4) for one in weights] == [0.7059, 0.2206, 0.0735]
    assert allocate(10_000, weights) == (7059, 2206, 735)


@given(
    trials=st.integers(0, 10**6),
    weights=st.lists(st.fractions(Fraction(1, 1000), 10**6), min_size=1, max_size=8),
)
def test_a_split_loses_nobody_and_is_off_by_less_than_one(
    trials: int, weights: list[Fraction]
) -> None:
    found = allocate(trials, weights)
    assert sum(found) == trials
    for count, share in zip(found, weights, strict=True):
        assert abs(count - trials * share / sum(weights)) < 1


def test_of_equal_remainders_the_first_gets_the_place() -> None:
    assert allocate(5, [1, 1, 1]) == (2, 2, 1)


def test_brackets_begin_at_higher_and_higher_rungs() -> None:
    trials = 10_000
    assert widths(halving("standard").layout(trials)) == [(1, 7059), (4, 2206), (16, 735)]
    assert widths(halving("aggressive").layout(trials)) == [(1, 10_000)]
    assert [first for first, _ in widths(halving("conservative").layout(trials))] == [
        1,
        4,
        16,
        64,
        256,
    ]
    assert [first for first, _ in widths(halving([3, 1]).layout(trials))] == [4, 64]


def test_brackets_that_do_not_exist_are_left_out_of_the_split() -> None:
    assert widths(halving([0, 1, 2], max_steps=12).layout(9)) == [(3, 6), (12, 3)]
    assert widths(halving(max_steps=3).layout(9)) == [(3, 9)]


@given(
    trials=st.integers(1, 3000),
    max_steps=st.integers(1, 5000),
    eta=ETAS,
    brackets=st.sampled_from(["standard", "aggressive", "conservative", [1], [0, 2]]),
)
def test_brackets_without_a_minimum_all_reach_the_end(
    trials: int, max_steps: int, eta: int, brackets: object
) -> None:
    all_rungs = rungs(max_steps, eta=eta)
    if brackets == [1] and len(all_rungs) == 1:
        with pytest.raises(ConfigurationError, match="bracket 1 must have rungs, got 1 in all"):
            halving(brackets, max_steps=max_steps, eta=eta, trials=trials)
        return
    found = halving(brackets, max_steps=max_steps, eta=eta, trials=trials).layout(trials)
    assert sum(bracket.width for bracket in found) == trials
    for bracket in found:
        assert bracket.steps == all_rungs[-len(bracket.steps) :]
        assert bracket.width >= bracket.needs(eta)


def test_standard_brackets_that_halve_nobody_are_left_out() -> None:
    assert widths(halving(max_steps=10).layout(20)) == [(2, 20)]
    assert widths(halving(max_steps=60).layout(25)) == [(3, 18), (15, 7)]
    assert widths(halving(max_steps=60).layout(6)) == [(15, 6)]
    assert widths(halving(max_steps=60).layout(3)) == [(60, 3)], "no other is left"
    assert widths(halving("conservative", max_steps=10).layout(20)) == [(2, 13), (10, 7)]


def test_few_trials_leave_out_as_few_rungs_as_possible() -> None:
    three = (0, 1, 2)
    assert widths(halving(three, max_steps=60).layout(25)) == [(3, 16), (15, 6), (60, 3)]
    assert widths(halving(three, max_steps=60).layout(24)) == [(15, 16), (60, 8)]
    assert widths(halving(three, max_steps=60).layout(6)) == [(15, 4), (60, 2)]
    assert widths(halving(three, max_steps=60).layout(5)) == [(60, 5)]
    assert widths(halving("aggressive", max_steps=60).layout(16)) == [(3, 16)]
    assert widths(halving("aggressive", max_steps=60).layout(15)) == [(15, 15)]


@given(
    min_steps=st.integers(1, 20),
    max_steps=st.integers(20, 2000),
    eta=ETAS,
    brackets=st.sampled_from(["standard", "aggressive", "conservative"]),
    more=st.integers(0, 100),
)
def test_the_number_that_is_said_to_be_enough_is_enough(
    min_steps: int, max_steps: int, eta: int, brackets: str, more: int
) -> None:
    arguments = {"max_steps": max_steps, "min_steps": min_steps, "eta": eta}
    try:
        halving(brackets, trials=1, **arguments)
    except ConfigurationError as error:
        enough = int(str(error).partition(">= ")[2].partition(" ")[0])
        with pytest.raises(ConfigurationError, match=f"trials must be >= {enough} "):
            halving(brackets, trials=enough - 1, **arguments)
        for trials in (enough, enough + more):
            found = halving(brackets, trials=trials, **arguments).layout(trials)
            assert all(bracket.width >= bracket.needs(eta) for bracket in found)
            assert found[0].steps == rungs(**arguments)


def test_too_few_trials_are_refused_with_the_number_needed() -> None:
    with pytest.raises(ConfigurationError, match=r"trials must be >= 363 .*, got 144"):
        halving(trials=144, min_steps=1)
    with pytest.raises(ConfigurationError, match=r"trials must be >= 16 .*rungs 15, 60, 120"):
        halving("aggressive", trials=15, max_steps=120, min_steps=15)


def test_an_infinite_horizon_ends_where_the_trials_do() -> None:
    found = halving("aggressive", max_steps=None, min_steps=3, trials=100)
    assert found.layout(100)[0].steps == (3, 12, 48, 192)
    assert found.layout(3)[0].steps == (3,)


@pytest.mark.parametrize(
    ("arguments", "problems"),
    [
        ({"eta": 1}, ["eta must be >= 2, got 1"]),
        ({"min_steps": 300}, ["min_steps must be <= max_steps (256), got 300"]),
        ({"max_steps": None}, ["max_steps must be given, or min_steps, got neither"]),
        ({"brackets": "bold"}, ["bracket set 'bold'"]),
        ({"brackets": []}, ["brackets must be at least one, got none"]),
        ({"brackets": [0, 0]}, ["brackets must be distinct, got [0, 0]"]),
        ({"brackets": [-1]}, ["each of brackets must be >= 0, got -1"]),
        ({"brackets": 2}, ["brackets must be the name of a set or a list of ints, got 2"]),
        ({"brackets": [7]}, ["bracket 7 must have rungs, got 5 in all (1, 4, 16, 64, 256)"]),
        (
            {"eta": 0, "min_steps": 9, "max_steps": 8, "trials": 0, "brackets": "all"},
            [
                "min_steps must be <= max_steps (8), got 9",
                "trials must be >= 1, got 0",
                "eta must be >= 2, got 0",
                "'all'",
            ],
        ),
    ],
)
def test_everything_that_is_wrong_is_said_at_once(
    arguments: dict[str, object], problems: list[str]
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        halving(**arguments)  # type: ignore[arg-type]
    assert len(caught.value.problems) == len(problems)
    for said, expected in zip(caught.value.problems, problems, strict=True):
        assert expected in said


def test_rungs_refuse_all_that_is_wrong_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        rungs(0, min_steps=0, eta=1, most=0)
    assert len(caught.value.problems) == 4


@pytest.mark.parametrize(
    ("trials", "steps", "brackets", "part"),
    [
        (20, 10, [0, 1], "about 10 of 20 trials to step 10, since some brackets"),
        (40, 10, [0, 1], "about 19 of 40 trials to step 10, since some brackets"),
        (20, 10, "standard", None),
        (50, 20, "standard", None),
        (3, 10, "standard", "ASHA trains all 3 trials to step 10: it stops some only"),
        (3, 10, "aggressive", "ASHA trains all 3 trials to step 10: it stops some only"),
        (20, 10, "aggressive", None),
        (1000, 256, "standard", None),
        (1, 10, "standard", None),
    ],
)
def test_advice_of_asha_is_for_layouts_that_stop_few(
    trials: int, steps: int, brackets: str | list[int], part: str | None
) -> None:
    tuner = ASHA(Space(lr=Float(0.1, 1.0)), trials=trials, max_steps=steps, brackets=brackets)
    advice = tuner.advice
    assert advice == [] if part is None else part in advice[0]

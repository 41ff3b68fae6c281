"""Evictions take the cheapest states first and keep those that must stay."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasktune.errors import ConfigurationError
from dasktune.storage.retention import (
    GRACE,
    HALF_LIFE,
    Keep,
    State,
    bytes_of,
    evictions,
    retention_problems,
    size_text,
    unknown_state,
)


@st.composite
def forests(draw: st.DrawFn, most: int = 12) -> list[State]:
    """Return states of which each lies behind one that came before it, or behind none."""
    made: list[State] = []
    for number in range(draw(st.integers(0, most))):
        above = draw(st.sampled_from([None, *(one.key for one in made)]))
        made.append(
            State(
                key=f"k{number:02}",
                nbytes=draw(st.integers(1, 4)),
                # Sums of these are exact, whatever the order.
                seconds=draw(st.integers(0, 64)) / 4,
                chance=draw(st.sampled_from([0.0, 0.125, 0.5, 1.0])),
                above=above,
                stays=draw(st.booleans()),
            )
        )
    return draw(st.permutations(made))


def greedy(states: list[State], excess: int) -> list[State]:
    """Return the evictions by a slow rule: compute all prices again after each eviction."""
    left, gone = list(states), []
    while excess > 0 and (candidates := [one for one in left if not one.stays]):
        cheapest = min(candidates, key=lambda one: (one.price, one.key))
        left.remove(cheapest)
        left = [after(cheapest, one) for one in left]
        gone.append(cheapest)
        excess -= cheapest.nbytes
    return gone


def after(gone: State, one: State) -> State:
    """Return a state as it is once another has gone."""
    if one.above == gone.key:
        return replace(one, seconds=one.seconds + gone.seconds, above=gone.above)
    if gone.above == one.key:
        return replace(one, chance=1 - (1 - one.chance) * (1 - gone.chance))
    return one


@given(forests(), st.integers(-2, 40))
def test_evictions_follow_the_current_prices(states: list[State], excess: int) -> None:
    assert evictions(states, excess) == greedy(states, excess)


@given(forests(), st.integers(0, 40))
def test_evictions_keep_states_and_free_the_excess(states: list[State], excess: int) -> None:
    gone = evictions(states, excess)
    assert not any(one.stays for one in gone)
    free = sum(one.nbytes for one in gone)
    assert free >= min(excess, sum(one.nbytes for one in states if not one.stays))
    # And no more than is needed.
    assert not gone or free - gone[-1].nbytes < excess


@given(forests(), st.integers(0, 40), st.randoms())
def test_evictions_do_not_depend_on_the_order(
    states: list[State], excess: int, random: object
) -> None:
    assert evictions(sorted(states, key=lambda one: one.key), excess) == evictions(states, excess)


def test_trunk_costs_more_after_its_branches_are_evicted() -> None:
    trunk = State(key="trunk", nbytes=1, seconds=10, chance=0.1)
    branches = [
        State(key=f"branch {n}", nbytes=1, seconds=10, chance=0.2, above="trunk") for n in range(2)
    ]
    gone = evictions([trunk, *branches], 3)
    assert [one.key for one in gone] == ["trunk", "branch 0", "branch 1"]
    assert [one.seconds for one in gone] == [10, 20, 20]
    gone = evictions([replace(trunk, chance=0.3), *branches], 3)
    assert [one.key for one in gone] == ["branch 0", "branch 1", "trunk"]
    assert gone[-1].chance == pytest.approx(1 - 0.7 * 0.8 * 0.8)


@pytest.mark.parametrize(("nbytes", "price"), [(0, 5.0), (1, 5.0), (2, 2.5)])
def test_price_is_the_expected_time_of_a_byte(nbytes: int, price: float) -> None:
    assert State(key="k", nbytes=nbytes, seconds=10, chance=0.5).price == price


def test_larger_states_of_equal_value_go_first() -> None:
    small = State(key="a", nbytes=1, seconds=10, chance=0.5)
    large = State(key="b", nbytes=100, seconds=10, chance=0.5)
    assert evictions([small, large], 1) == [large]


def test_unknown_states_lose_value_and_young_ones_stay() -> None:
    young, older, oldest = (
        unknown_state("k", 10, seconds=8, age=age, grace=GRACE)
        for age in (10, GRACE, GRACE + HALF_LIFE)
    )
    assert [one.stays for one in (young, older, oldest)] == [True, False, False]
    assert oldest.price == pytest.approx(older.price / 2)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("20 GB", 20_000_000_000),
        ("500MB", 500_000_000),
        ("1.5 GiB", 1_610_612_736),
        ("2 tib", 2 * 1024**4),
        ("64k", 64_000),
        ("1 B", 1),
        (" 7 ", 7),
        (4096, 4096),
    ],
)
def test_bytes_of_parses_sizes(text: object, nbytes: int) -> None:
    assert bytes_of(text) == nbytes


@pytest.mark.parametrize(
    "text", ["", "GB", "20 XB", "20 iB", "-1 GB", "0", 0, -5, 1.5, True, None, "1e9", "1 GB 2", "."]
)
def test_bytes_of_refuses_other_text(text: object) -> None:
    with pytest.raises(ConfigurationError, match="budget must be a size such as '20 GB'"):
        bytes_of(text)


@given(st.integers(1, 10**17))
def test_size_text_has_three_digits(nbytes: int) -> None:
    assert bytes_of(size_text(nbytes)) == pytest.approx(nbytes, rel=0.006)


@pytest.mark.parametrize("text", ["best:1", "best:30", "all", "none"])
def test_keep_round_trips(text: str) -> None:
    assert str(Keep.parse(text)) == text


@pytest.mark.parametrize("given", ["best:0", "best", "best:-1", "worst:1", "", 3, None, True])
def test_keep_refuses_other_text(given: object) -> None:
    with pytest.raises(ConfigurationError, match="keep must be 'best:N'"):
        Keep.parse(given)


def test_retention_problems_are_all_returned() -> None:
    assert len(retention_problems("much", "some")) == 2
    assert retention_problems(None, "best:2") == []

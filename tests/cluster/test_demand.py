"""How many workers there should be, by a clock of the test's own."""

from __future__ import annotations

import pytest

from dasktune._cluster.demand import Demand

IDLE_SECONDS = 40.0


@pytest.mark.parametrize(("wanted", "target"), [(0, 2), (3, 3), (99, 8)])
def test_what_can_be_used_is_followed_within_the_bounds(wanted: int, target: int) -> None:
    demand = Demand(least=2, most=8, idle_seconds=IDLE_SECONDS)
    assert demand.target == 2
    demand.note(wanted, (), 0.0)
    assert demand.target == target


def test_it_falls_only_after_nothing_more_was_wanted_for_a_while() -> None:
    demand = Demand(least=1, most=8, idle_seconds=IDLE_SECONDS)
    demand.note(6, (), 0.0)
    demand.note(2, (), 1.0)
    demand.note(6, (), IDLE_SECONDS)
    demand.note(2, (), IDLE_SECONDS + 1)
    demand.note(2, (), 2 * IDLE_SECONDS)
    assert demand.target == 6
    demand.note(2, (), 2 * IDLE_SECONDS + 1)
    assert demand.target == 2


def test_long_idle_names_workers_idle_during_the_whole_period() -> None:
    demand = Demand(least=1, most=8, idle_seconds=IDLE_SECONDS)
    demand.note(2, ("a", "b"), 0.0)
    demand.note(2, ("b", "c"), 5.0)
    assert demand.long_idle(IDLE_SECONDS - 1) == []
    assert demand.long_idle(IDLE_SECONDS + 5) == ["b", "c"]
    demand.note(2, ("a", "b"), 6.0)
    assert demand.long_idle(IDLE_SECONDS + 5) == ["b"]

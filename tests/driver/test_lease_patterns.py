"""Any pattern of branches behind and ahead: what several drivers train twice is counted.

Drivers arrive and end at any moment, and requests to the store come in any order.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dasktune._engine.timeouts import LEASE_LIMIT_SECONDS
from tests.driver.lease_world import Branch, Pattern, World
from tests.effort import examples

STEPS = 24

branches = st.builds(
    Branch,
    leaves_at=st.integers(1, STEPS),
    gamma=st.sampled_from([0.1, 0.5]),
    until=st.integers(2, STEPS),
)
patterns = st.builds(
    Pattern,
    branches=st.lists(branches, min_size=1, max_size=4).map(tuple),
    workers=st.integers(1, 2),
    saves_every=st.sampled_from([None, None, 3, 8]),
    arrives_after=st.sampled_from([0, 0, 100, 300, 1000]) | st.integers(0, 3000),
)


def check(world: World) -> None:
    world.run()
    assert world.wrong_reports() == []
    trained, distinct = world.trained.total(), len(world.trained)
    assert trained == sum(driver.view.steps_executed for driver in world.drivers.values())
    assert distinct + world.reported_repeats == trained


def test_states_saved_at_the_end_of_a_lease_are_found() -> None:
    first = Pattern(
        branches=(
            Branch(leaves_at=3, gamma=0.1, until=12),
            Branch(leaves_at=8, gamma=0.5, until=20),
        ),
        workers=2,
    )
    second = Pattern(
        branches=(
            Branch(leaves_at=5, gamma=0.1, until=20),
            Branch(leaves_at=8, gamma=0.5, until=24),
        ),
        arrives_after=100,
    )
    for seed in range(25):
        world = World([first, second], seed)
        check(world)
        assert world.reported_repeats <= 2, "the steps between two saved states, at most"


@pytest.mark.parametrize(("leaves_at", "repeated"), [(20, 0), (8, 8)])
def test_steps_of_a_driver_that_left_long_ago_are_counted(leaves_at: int, repeated: int) -> None:
    """The second driver lists the store, waits for workers, and never sees the first one live."""
    first = Pattern(branches=(Branch(leaves_at=leaves_at, gamma=0.1, until=20),))
    second = Pattern(branches=(Branch(leaves_at=22, gamma=0.1, until=24),))
    for seed in range(10):
        world = World([first, second], seed)
        late = world.open(1)
        world.run()
        world.now += 2 * LEASE_LIMIT_SECONDS
        late.begin()
        check(world)
        assert late.view.steps_repeated == repeated


@given(patterns=st.lists(patterns, min_size=2, max_size=2), seed=st.integers(0, 10**6))
@settings(max_examples=examples(40))
def test_what_two_drivers_train_twice_is_reported(patterns: list[Pattern], seed: int) -> None:
    check(World(patterns, seed))


@given(patterns=st.lists(patterns, min_size=4, max_size=4), seed=st.integers(0, 10**6))
@settings(max_examples=examples(15))
def test_what_four_drivers_train_twice_is_reported(patterns: list[Pattern], seed: int) -> None:
    check(World(patterns, seed))

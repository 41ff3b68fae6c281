"""Save requests of other drivers are found by value, whatever their sequences."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from dasktune.driver.shared_stages import RequestedSaves
from dasktune.sequences import Constant, MultiStep, Piecewise, Sequence

HORIZON = 12
PATHS: st.SearchStrategy[Sequence] = st.one_of(
    st.sampled_from([Constant(0.5), Constant(0.25)]),
    st.integers(1, HORIZON - 1).map(lambda at: MultiStep(0.5, [at], gamma=0.5)),
    st.integers(1, HORIZON - 1).map(lambda at: Piecewise([0.5, 0.25], boundaries=[at])),
)


def shared(one: Sequence, other: Sequence) -> int:
    """Return how many first steps two paths have in common."""
    same = (one(step) == other(step) for step in range(HORIZON))
    return next((step for step, alike in enumerate(same) if not alike), HORIZON)


@given(
    others=st.lists(st.tuples(PATHS, st.sets(st.integers(1, HORIZON), min_size=1)), max_size=5),
    mine=PATHS,
    start=st.integers(0, HORIZON - 1),
    length=st.integers(1, HORIZON),
)
def test_states_are_requested_at_ends_and_last_branches(
    others: list[tuple[Sequence, set[int]]], mine: Sequence, start: int, length: int
) -> None:
    stop = min(HORIZON, start + length)
    requested = RequestedSaves()
    for path, ends in others:
        requested.add("a1", {"lr": path}, ends)
    found = requested.on_way("a1", {"lr": mine}, start, stop)
    ends_on_way = {
        end for path, ends in others for end in ends if end <= shared(path, mine) and end < stop
    }
    leaves = {min(shared(path, mine), max(ends)) for path, ends in others}
    assert set(found) >= {step for step in ends_on_way | leaves if start < step < stop}
    cuts = {shared(one, two) for one, _ in others for two, _ in others}
    allowed = ends_on_way | leaves | cuts
    assert set(found) <= {step for step in allowed if start < step < stop}
    assert list(found) == sorted(found)


def test_on_way_ignores_other_roots_sequences_and_past_steps() -> None:
    requested = RequestedSaves()
    requested.add("a1", {"lr": Constant(0.5)}, [3])
    assert requested.on_way("a1", {"lr": Constant(0.5)}, 0, 9) == (3,)
    assert requested.on_way("b2", {"lr": Constant(0.5)}, 0, 9) == ()
    assert requested.on_way("a1", {"rate": Constant(0.5)}, 0, 9) == ()
    assert requested.on_way("a1", {"lr": Constant(0.5)}, 3, 9) == ()

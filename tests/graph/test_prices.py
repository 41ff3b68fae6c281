"""Prices of classes, next to the linear program whose dual they solve."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from scipy.optimize import linprog

from dasktune.graph.frontier import Profile
from dasktune.graph.prices import GRAIN, makespan, prices_of, profile_of


def least_makespan(backlog: dict[Profile, float], slots: list[int]) -> float:
    """Return the value of the linear program: shares of each profile, and the makespan."""
    count, kinds = len(backlog), len(slots)
    load, whole = np.zeros((kinds, count * kinds + 1)), np.zeros((count, count * kinds + 1))
    for row, (profile, seconds) in enumerate(backlog.items()):
        for kind, log in enumerate(profile):
            load[kind, row * kinds + kind] = seconds * math.exp(GRAIN * log)
            whole[row, row * kinds + kind] = 1.0
    load[:, -1] = [-each for each in slots]
    cost = [*[0.0] * (count * kinds), 1.0]
    found = linprog(cost, A_ub=load, b_ub=np.zeros(kinds), A_eq=whole, b_eq=np.ones(count))
    return float(found.fun)


@given(st.data())
def test_prices_are_the_dual_of_the_least_makespan(data: st.DataObject) -> None:
    slots = data.draw(st.lists(st.integers(1, 12), min_size=2, max_size=4))
    profiles = st.tuples(*[st.integers(-25, 25) for _ in slots])
    backlog = data.draw(st.dictionaries(profiles, st.floats(1.0, 1000.0), min_size=1, max_size=20))
    least = least_makespan(backlog, slots)
    found = makespan(backlog, slots, prices_of(backlog, slots))
    assert 0.9 * least <= found <= least * (1 + 1e-6)


def test_prices_of_no_work_are_equal() -> None:
    assert prices_of({}, [1, 2]) == (0.0, 0.0)
    assert makespan({}, [1, 2], (0.0, 0.0)) == 0.0


def test_price_is_higher_where_all_work_is_faster() -> None:
    slow, fast = prices_of({(0, -10): 5.0, (0, -20): 5.0}, [4, 4])
    assert slow < fast


def test_profile_is_relative_to_the_mean() -> None:
    assert profile_of([2.0, 2.0 * math.e], 2.0) == (0, round(1 / GRAIN))
    assert profile_of([200.0, 200.0 * math.e], 200.0) == (0, round(1 / GRAIN))
    with pytest.raises(ValueError, match="math domain"):
        profile_of([0.0], 1.0)

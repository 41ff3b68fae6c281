import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dasktune.trainer.proof.differences import leaf_digest, state_differences

NAN = float("nan")
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.binary(max_size=5)
)
states = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=10,
)


def reasons(expected, found, **arguments):
    return {d.path: d.reason for d in state_differences(expected, found, **arguments)}


@given(states)
def test_equal_states_have_no_differences(state):
    assert reasons({"a": state}, {"a": state}) == {}


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (1, 1.0),
        (1, True),
        (0.0, -0.0),
        ("a", b"a"),
        (None, 0),
        ([], ()),
        ({}, []),
        ({1}, {2}),
        (np.float32(1), np.float64(1)),
        (np.arange(2), torch.arange(2)),
        (np.arange(2), np.arange(2.0)),
        (np.arange(2), np.arange(2)[None]),
        (np.zeros(1), -np.zeros(1)),
        (torch.ones(2, dtype=torch.bfloat16), torch.ones(2)),
        (torch.ones(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.float64)),
        (np.array([1, NAN]), np.array([NAN, 1])),
    ],
)
def test_each_kind_of_difference_is_named(one, two):
    assert list(reasons({"a": one}, {"a": two})) == ["state['a']"]
    assert leaf_digest(one) != leaf_digest(two)


def test_array_of_objects_counts_by_its_type():
    names = np.array(["a", None], dtype=object)
    assert leaf_digest(names) == leaf_digest(np.array([1, 2], dtype=object))
    assert leaf_digest(names) != leaf_digest(names[:1])


def test_nan_equals_itself():
    assert reasons([NAN, np.array([NAN, 1])], [NAN, np.array([NAN, 1])]) == {}


def test_differences_list_missing_then_new_values():
    expected = {"z": [1, {"y": np.zeros(3)}], "a": 2, "gone": "x"}
    found = {"a": 3, "z": [1, {"y": np.array([0, 5, -2.0])}], "new": 1}
    assert list(reasons(expected, found).items()) == [
        ("state['z'][1]['y']", "2 of 3 numbers differ, by at most 5"),
        ("state['a']", "must be 2, got 3"),
        ("state['gone']", "is missing; it was 'x'"),
        ("state['new']", "was not there before; got 1"),
    ]


def test_the_tolerance_is_relative_to_the_largest_number():
    expected, found = np.array([100.0, 0.0]), np.array([100.0, 0.05])
    assert reasons(expected, found, tolerance=1e-3) == {}
    assert reasons(expected, found, tolerance=1e-4) != {}
    assert reasons(1.0, 1.0005, tolerance=1e-3) == {}
    assert reasons(1.0, 1.0015, tolerance=1e-3) != {}


@pytest.mark.parametrize("odd", [NAN, math.inf, -math.inf])
def test_no_tolerance_lets_a_missing_number_pass(odd):
    assert reasons(np.array([1.0, 2.0]), np.array([1.0, odd]), tolerance=0.5) != {}
    assert reasons(np.array([1.0, odd]), np.array([1.0, 2.0]), tolerance=0.5) != {}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (np.arange(4), "array([0, 1, 2, 3])"),
        (np.arange(5), "ndarray int64 (5,)"),
        ("x" * 58, repr("x" * 58)),
        ("x" * 59, repr("x" * 59)[:57] + "..."),
    ],
)
def test_small_values_are_shown_and_large_ones_described(value, shown):
    found = reasons({"a": value, "b": 0}, {"b": 0})
    assert found == {"state['a']": f"is missing; it was {shown}"}

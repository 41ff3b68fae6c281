"""State keys: equal exactly when the trainer saw the same values at every step."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dasktune.errors import InternalError
from dasktune.graph.keys import BLOCK_STEPS, Chain, encode_value, named_key, root_key, runs
from dasktune.sequences import (
    Constant,
    Cosine,
    Cyclic,
    Exponential,
    Linear,
    MultiStep,
    Piecewise,
    Sequence,
    WarmRestarts,
    Warmup,
)
from dasktune.types import Step, Value
from tests.effort import examples

ROOT = root_key("code", 0)
STEPS = 12

VALUES = st.sampled_from([0, 0.0, -0.0, 1, 1.0, True, False, None, "", "1", 0.5, 64])
CUTS = st.lists(st.integers(1, STEPS - 1), unique=True, max_size=3).map(sorted)


@st.composite
def piecewise(draw: st.DrawFn) -> Sequence:
    at = draw(CUTS)
    return Piecewise(draw(st.lists(VALUES, min_size=len(at) + 1, max_size=len(at) + 1)), at)


PARTS = st.one_of(
    st.builds(Constant, VALUES),
    piecewise(),
    st.builds(lambda at: MultiStep(1.0, at, gamma=1.0), CUTS),
    st.builds(lambda at: MultiStep(1.0, at, gamma=0.5), CUTS),
    st.sampled_from(
        [
            Exponential(1.0, gamma=1.0),
            Exponential(1.0, gamma=0.5),
            Linear(1.0, 0.0, 30),
            Cosine(1.0, 30, 1.0),
            Cyclic(0.0, 1.0, 2),
            Warmup(2, 1.0) >> Constant(1.0),
            Piecewise([0.5, 1.0], [1]),
        ]
    ),
)


@st.composite
def sequences(draw: st.DrawFn) -> Sequence:
    found = draw(PARTS)
    for _ in range(draw(st.integers(0, 2))):
        found = found[: draw(st.integers(1, 4))] >> draw(PARTS)
    return found


def chain(step: Step, root: str = ROOT, **functions: Sequence) -> Chain:
    return Chain(root).advance(functions, 0, step)


def seen(values: list[Value]) -> list[tuple[type, Value]]:
    return [(type(value), value) for value in values]


@given(sequences(), sequences())
def test_keys_are_equal_exactly_as_long_as_all_values_were(a: Sequence, b: Sequence) -> None:
    for step in range(STEPS + 1):
        alike = seen(a.values(0, step)) == seen(b.values(0, step))
        assert (chain(step, lr=a).key == chain(step, lr=b).key) is alike


@given(sequences(), sequences(), st.lists(st.integers(0, STEPS), max_size=4))
def test_a_chain_advanced_in_pieces_is_the_chain(a: Sequence, b: Sequence, cuts: list[int]) -> None:
    both = {"a": a, "b": b}
    found, at = Chain(ROOT), 0
    for cut in [*sorted(cuts), STEPS]:
        found, at = found.advance(both, at, cut), cut
    assert found.key == chain(STEPS, a=a, b=b).key


@given(sequences())
def test_one_step_at_a_time_is_the_same(a: Sequence) -> None:
    found = Chain(ROOT)
    for _, values in ((s, v) for s in range(STEPS) for _, v in runs({"a": a}, s, s + 1)):
        found = found.extend(values, 1)
    assert found == chain(STEPS, a=a)


@given(sequences(), st.integers(0, STEPS), st.lists(st.integers(1, 10), max_size=4), st.booleans())
def test_many_keys_at_once_are_those_of_each(
    a: Sequence, start: int, further: list[int], goes_on: bool
) -> None:
    found = chain(start, lr=a)
    values = found.values if goes_on and start else b"others"
    expected = [found.extend(values, steps).key for steps in further]
    assert list(found.keys(values, further)) == expected


PINNED: dict[str, tuple[dict[str, Sequence], tuple[str, str, str]]] = {
    "exponential": (
        {"lr": Exponential(0.1, gamma=0.9999), "width": Constant(64)},
        (
            "cefdaa8eb5248dc05ccb2d997d3b33b1",
            "006cacca69df295e783febb6a0dcb3ab",
            "a419fb007bd663829c3ebf14657d128d",
        ),
    ),
    "linear and cosine": (
        {"lr": Linear(1.0, 0.0, period=3000), "momentum": Cosine(0.9, period=2500, final=0.1)},
        (
            "c7609af655e4346571da23f60c09cd6d",
            "e8730d7953f543d9d2b6709f1a4ac812",
            "2d0e100794d68a0cadaf76249a3d9a6e",
        ),
    ),
    "restarts": (
        {"lr": WarmRestarts(0.5, period=700, final=0.01), "name": Constant("adam")},
        (
            "e52678194330b239f025ba953955727f",
            "7816e4d5c83e17e5a9335eb7881285cf",
            "980c1e8437aaa273be0b52c74bfe6dd9",
        ),
    ),
    "cyclic and pieces": (
        {
            "lr": Cyclic(0.001, 0.1, half_period=300),
            "batch": Piecewise([16, 32, True, None], [5, 1024, 1500]),
        },
        (
            "8b798f2045276057f49c00fffbde3b4f",
            "9f6676cbd78b271ad3b1c9ba4c1f4bdd",
            "72f7f11be37bac803e53af57c1dc11f0",
        ),
    ),
    "joined": (
        {"lr": Warmup(1100, 0.1) >> Exponential(0.1, gamma=0.999)[50:][:900] >> Constant(0.01)},
        (
            "9dadf4c9b55e741d9175fd1eb352a973",
            "34e0d7c1347c2e34e517838237ba5d04",
            "9b7a0fc7b4401f8cc3b17640dcedc179",
        ),
    ),
    "equal neighbours": (
        {"lr": Exponential(0.5, gamma=1.0), "x": MultiStep(8, [1023, 1025], gamma=2)},
        (
            "9eaf7b7a070a18d7138d46a241fff228",
            "a8ec1722e3e49572df7a713c451c2883",
            "a158cf35c9b86e1712af2decdbbef806",
        ),
    ),
    "from zero": (
        {"lr": Exponential(0.0, gamma=-0.5)},
        (
            "2d49c9efa22f50980e6bb9a9d7a468e2",
            "65cf504c4ef8c4b92c1c858887f2d0b9",
            "b7732b92a44a1ecfb95b8e6ae370dbe2",
        ),
    ),
}
"""Keys after 1, 1,025 and 2,200 steps: they are in stores and databases, and must never change."""


@pytest.mark.parametrize("name", PINNED)
def test_keys_of_long_curves_are_pinned(name: str) -> None:
    functions, pinned = PINNED[name]
    start = Chain(root_key("pinned", 0))
    assert tuple(start.advance(functions, 0, steps).key for steps in (1, 1025, 2200)) == pinned


def one_by_one(functions: dict[str, Sequence], start: Chain, first: Step, stop: Step) -> Chain:
    """Return the position at `stop` as the definition of keys has it."""
    for step in range(first, stop):
        parts = (
            encode_value(name) + encode_value(functions[name](step)) for name in sorted(functions)
        )
        start = start.extend(b"".join(parts), 1)
    return start


@settings(max_examples=examples(20))
@given(sequences(), sequences(), st.integers(0, 3), st.integers(-2, 3))
def test_long_ways_are_as_steps_one_by_one(a: Sequence, b: Sequence, first: int, more: int) -> None:
    stop = first + BLOCK_STEPS + more
    both = {"a": a, "b": b} if a.end is b.end is None else {"b": Exponential(1.0, gamma=0.99)}
    assert Chain(ROOT).advance(both, first, stop) == one_by_one(both, Chain(ROOT), first, stop)


def test_a_position_is_part_of_the_key() -> None:
    found = {chain(step, lr=Constant(0.1)).key for step in range(100)}
    assert len(found) == 100


@pytest.mark.parametrize(
    ("a", "b", "shared"),
    [
        (MultiStep(0.1, [90], gamma=0.1), Constant(0.1), 90),
        (Exponential(0.1, gamma=0.95), Constant(0.1), 1),
        (Exponential(0.1, gamma=0.95), MultiStep(0.1, [90], gamma=0.1), 1),
        (Warmup(5, 0.1) >> Constant(0.1), Warmup(5, 0.1) >> MultiStep(0.1, [7], 0.1), 12),
        (Constant(-0.0), Constant(0.0), 120),
        (Constant(1), Constant(1.0), 0),
        (Constant(1), Constant(True), 0),
        (Constant("None"), Constant(None), 0),
    ],
)
def test_families_share_what_is_equal(a: Sequence, b: Sequence, shared: Step) -> None:
    same = [step for step in range(121) if chain(step, lr=a).key == chain(step, lr=b).key]
    assert same == list(range(shared + 1))


def test_names_and_their_number_count_but_not_their_order() -> None:
    one, two = Constant(1), Constant(2)
    assert chain(3, a=one, b=two).key == chain(3, b=two, a=one).key
    assert len({chain(3, **given).key for given in ({}, {"a": one}, {"b": one})}) == 3
    assert chain(3, a=one, b=two).key != chain(3, a=two, b=one).key


@given(st.lists(VALUES, min_size=2, max_size=2))
def test_values_have_the_same_bytes_exactly_if_they_are_the_same(pair: list[Value]) -> None:
    first, second = pair
    alike = type(first) is type(second) and first == second
    assert (encode_value(first) == encode_value(second)) is alike


@given(st.lists(VALUES | st.text(max_size=2) | st.integers(), max_size=3), st.data())
def test_bytes_of_values_in_a_row_can_be_told_apart(row: list[Value], data: st.DataObject) -> None:
    other = data.draw(st.lists(VALUES | st.text(max_size=2) | st.integers(), max_size=3))
    joined = b"".join(map(encode_value, row)) == b"".join(map(encode_value, other))
    assert joined is (seen(row) == seen(other))


def test_a_float_is_its_eight_bytes() -> None:
    assert encode_value(0.1) == b"f" + struct.pack(">d", 0.1)
    assert encode_value(0.1) != encode_value(np.nextafter(0.1, 1).item())


def test_what_no_trainer_is_given_has_no_bytes() -> None:
    with pytest.raises(InternalError, match="must be int, float"):
        encode_value([1])  # type: ignore[arg-type]


def changes(stop: Step, **functions: Sequence) -> int:
    return sum(mark.changes for mark in Chain(ROOT).marks(functions, 0, stop))


def test_a_constant_costs_one_hash_however_long() -> None:
    assert changes(10**9, lr=Constant(0.1), batch=Constant(64)) == 1
    milestones = [10**8, 10**8 + 1]
    assert changes(10**9, lr=MultiStep(0.1, milestones, gamma=0.1)) < 2 * BLOCK_STEPS


def test_keys_are_what_they_always_were() -> None:
    """Stored states are found by these: a change makes all of them unknown."""
    mixed = {
        "lr": Warmup(2, 0.1) >> Exponential(0.1, gamma=0.5),
        "batch": Piecewise([64, 128], boundaries=[3]),
        "name": Constant("adam"),
        "nesterov": Constant(True),
        "decay": Constant(None),
    }
    assert root_key("code", 0) == "d6ab8942d289c0edaaf39e4860db5ac0"
    assert root_key("code", 1) == "4b76bd8ff1e9ef4784d2f5992bad2ad5"
    assert chain(100, lr=Constant(0.1)).key == "6e4b482c17534661f63b8a28c4770939"
    assert [chain(step, **mixed).key for step in (1, 4)] == [
        "81e61d6c00ea443271058a3b6488ffd1",
        "77c31287d257d359225e597ccc4b79a9",
    ]


def test_keys_without_facts_are_those_of_before() -> None:
    chain = Chain(root_key("abc", 0)).extend(b"values", 7)
    assert chain.named({}) is chain
    assert named_key(chain.key, {}) == chain.key


def test_facts_count_from_their_position_on() -> None:
    chain = Chain(root_key("abc", 0)).extend(b"values", 7)
    facts: list[dict[str, Value]] = [
        {"class": "cuda A100"},
        {"class": "cuda H100"},
        {"devices": 2},
        {"devices": "2"},
        {"class": "cuda A100", "devices": 2},
    ]
    keys = {chain.named(each).extend(b"values", 3).key for each in facts}
    assert len(keys | {chain.extend(b"values", 3).key}) == len(facts) + 1
    assert chain.named({"b": 1, "a": 2}) == chain.named({"a": 2, "b": 1})
    assert named_key(chain.key, {"class": "a"}) == "6a44e58e6e6f2de695ecc64174bec6f0"


def test_fingerprint_and_seed_cannot_be_mixed_up() -> None:
    given = [("a", 1), ("a:1", 1), ("a:1:1", 1), ("", 11), ("1", 1), ("a", 11), ("a", -1)]
    assert len({root_key(fingerprint, seed) for fingerprint, seed in given}) == len(given)

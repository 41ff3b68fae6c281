"""Sequences: their values, their algebra, their documents, and where two of them part."""

from __future__ import annotations

import json
import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasktune import sequences
from dasktune.errors import ConfigurationError
from dasktune.sequences import (
    FAMILIES,
    Constant,
    Cosine,
    Cyclic,
    Ended,
    Exponential,
    Joined,
    Linear,
    MultiStep,
    Piecewise,
    Sequence,
    WarmRestarts,
    Warmup,
    as_sequence,
    first_difference,
    sequence_from_json,
)
from dasktune.types import Value
from tests.sequences.drawing import alike, bits, cut_and_joined, horizon

NUMBERS = st.sampled_from([0.0, 0.1, 0.5, 1.0, -0.1, 1e-3]) | st.floats(-1e6, 1e6)
PLAIN = st.sampled_from([0, 1, 1.0, 0.0, True, False, None, "adam", "", 64, 0.1]) | NUMBERS
PERIODS = st.integers(1, 6)
STEPS = st.lists(st.integers(1, 12), unique=True, max_size=4).map(sorted)


@st.composite
def piecewise(draw: st.DrawFn) -> Piecewise:
    steps = draw(STEPS)
    count = len(steps) + 1
    return Piecewise(draw(st.lists(PLAIN, min_size=count, max_size=count)), boundaries=steps)


FAMILY_MEMBERS = st.one_of(
    st.builds(Constant, PLAIN),
    piecewise(),
    st.builds(MultiStep, NUMBERS | st.integers(0, 9), STEPS, st.sampled_from([0.1, 0.5, 1, 2])),
    st.builds(Linear, NUMBERS, NUMBERS, PERIODS),
    st.builds(Exponential, NUMBERS, st.sampled_from([0.95, 0.5, 1.0, -1.0])),
    st.builds(Cosine, NUMBERS, PERIODS, NUMBERS),
    st.builds(WarmRestarts, NUMBERS, PERIODS, NUMBERS),
    st.builds(Cyclic, NUMBERS, NUMBERS, PERIODS),
    st.builds(Warmup, PERIODS, NUMBERS),
)


@st.composite
def joined(draw: st.DrawFn) -> Sequence:
    """Any sequence: up to four pieces, some ended early."""
    found = draw(FAMILY_MEMBERS)
    for _ in range(draw(st.integers(0, 3))):
        cut = draw(st.integers(1, found.end if found.end is not None else 8))
        if found.end is None or draw(st.booleans()):
            found = found[:cut]
        found = found >> draw(FAMILY_MEMBERS)
    return found


ANY = joined() | cut_and_joined()


@pytest.mark.parametrize(
    ("sequence", "values"),
    [
        (Constant("adam"), ["adam"] * 4),
        (Piecewise([64, 128], boundaries=[2]), [64, 64, 128, 128]),
        (Piecewise(["sgd", None, True], [1, 2]), ["sgd", None, True, True]),
        (
            MultiStep(0.1, milestones=[1, 2], gamma=0.1),
            [0.1, 0.1 * 0.1, 0.1 * 0.1**2, 0.1 * 0.1**2],
        ),
        (MultiStep(64, milestones=[1, 2], gamma=0.5), [64, 32, 16, 16]),
        (MultiStep(3, milestones=[2], gamma=0.5), [3.0, 3.0, 1.5, 1.5]),
        (MultiStep(64, [], 2), [64] * 4),
        (Linear(0.3, 0.1, period=4), [0.3 * (1 - t / 4) + 0.1 * (t / 4) for t in range(4)]),
        (Exponential(0.1, gamma=0.95), [0.1 * 0.95**t for t in range(4)]),
        (Exponential(2, gamma=2), [2.0, 4.0, 8.0, 16.0]),
        (
            Cosine(0.3, 4, final=0.1),
            [
                0.3 * ((1 + math.cos(math.pi * t / 4)) / 2)
                + 0.1 * (1 - (1 + math.cos(math.pi * t / 4)) / 2)
                for t in range(4)
            ],
        ),
        (WarmRestarts(0.3, 2), Cosine(0.3, 2).values(0, 2) * 2),
        (Cyclic(0.5, 1.0, half_period=2), [0.5, 0.75, 1.0, 0.75]),
        (Warmup(4, 0.1), [0.1 * 1 / 4, 0.1 * 2 / 4, 0.1 * 3 / 4, 0.1 * 4 / 4]),
        (Warmup(2, 1.0) >> 64, [0.5, 1.0, 64, 64]),
        (Warmup(2, 1.0) >> Exponential(8.0, 0.5)[:1] >> Constant(7), [0.5, 1.0, 8.0, 7]),
    ],
)
def test_values_of_each_family(sequence: Sequence, values: list[Value]) -> None:
    assert bits(sequence.values(0, 4)) == bits(values)


def test_first_values_are_exact() -> None:
    assert Linear(0.3, 0.1, period=7)(0) == 0.3
    assert Cosine(0.3, 7, final=0.1)(0) == 0.3
    assert Cyclic(0.3, 0.7, half_period=3).values(0, 7)[::3] == [0.3, 0.7, 0.3]


@given(joined(), st.integers(0, 30), st.integers(0, 30))
def test_many_values_equal_calls_bit_for_bit(sequence: Sequence, start: int, length: int) -> None:
    stop = horizon(sequence, start + length)
    assert bits(sequence.values(start, stop)) == bits([sequence(t) for t in range(start, stop)])


@given(joined())
def test_constant_until_is_safe_and_moves_on(sequence: Sequence) -> None:
    stop = horizon(sequence)
    for step in range(stop):
        change = sequence.constant_until(step)
        assert change is None or change > step
        assert change is not None or sequence.end is None
        assert change is None or sequence.end is None or change <= sequence.end
        until = stop if change is None else min(stop, change)
        assert all(alike(sequence(step), sequence(later)) for later in range(step, until))


@given(joined(), joined())
def test_joining_counts_each_part_from_its_own_start(a: Sequence, b: Sequence) -> None:
    if a.end is None:
        with pytest.raises(ConfigurationError, match="end"):
            a >> b
        return
    whole = a >> b
    assert bits(whole.values(0, a.end)) == bits(a.values(0, a.end))
    stop = horizon(b)
    assert bits(whole.values(a.end, a.end + stop)) == bits(b.values(0, stop))
    assert whole.end == (None if b.end is None else a.end + b.end)
    assert not any(isinstance(piece, Joined) for piece in whole.leaves())


@given(joined(), st.data())
def test_a_cut_keeps_the_values_and_only_them(sequence: Sequence, data: st.DataObject) -> None:
    n = data.draw(st.integers(1, horizon(sequence)))
    cut = sequence[:n]
    assert cut.end == n
    assert bits(cut.values(0, n)) == bits(sequence.values(0, n))
    assert cut[:n] == cut
    assert isinstance(cut, Joined) == (len(cut.leaves()) > 1)
    with pytest.raises(ConfigurationError, match="end"):
        cut(n)
    with pytest.raises(ConfigurationError, match="end"):
        cut.values(n - 1, n + 1)
    with pytest.raises(ConfigurationError, match=f"<= {n}"):
        cut[: n + 1]


@given(ANY)
def test_documents_texts_and_pickles_come_back_as_they_were(sequence: Sequence) -> None:
    document = json.loads(json.dumps(sequence.to_json(), allow_nan=False))
    names = {name: getattr(sequences, name) for name in sequences.__all__}
    for copy in (
        sequence_from_json(document),
        eval(repr(sequence), names),
        pickle.loads(pickle.dumps(sequence)),
    ):
        assert copy == sequence
        assert hash(copy) == hash(sequence)
        assert repr(copy) == repr(sequence)
        stop = horizon(sequence)
        assert bits(copy.values(0, stop)) == bits(sequence.values(0, stop))


@given(ANY, ANY, st.integers(0, 20), st.integers(0, 30))
def test_first_difference_is_the_naive_one(a: Sequence, b: Sequence, start: int, to: int) -> None:
    stop = min(horizon(a, to), horizon(b, to))
    naive = next((t for t in range(start, stop) if not alike(a(t), b(t))), max(start, stop))
    assert first_difference(a, b, start, stop) == naive
    assert first_difference(b, a, start, stop) == naive


@given(joined(), joined(), joined(), st.integers(1, 8), st.integers(0, 20))
def test_first_difference_of_sequences_that_share_a_beginning(
    trunk: Sequence, a: Sequence, b: Sequence, at: int, start: int
) -> None:
    trunk = trunk[: min(at, horizon(trunk))]
    a, b = trunk >> a, trunk >> b
    stop = min(horizon(a), horizon(b))
    naive = next((t for t in range(start, stop) if not alike(a(t), b(t))), max(start, stop))
    assert first_difference(a, b, start, stop) == naive


def test_first_difference_compares_values_of_different_families() -> None:
    assert first_difference(Constant(0.1), MultiStep(0.1, [90], gamma=0.1), 0, 120) == 90
    assert first_difference(Constant(0.1), Exponential(0.1, gamma=0.95), 0, 120) == 1
    assert first_difference(Constant(1), Constant(1.0), 0, 9) == 0
    assert first_difference(Constant(1), Constant(True), 0, 9) == 0
    assert first_difference(Constant(0.0), Constant(-0.0), 0, 9) == 9
    tail = Exponential(0.1, gamma=0.95)
    assert first_difference(tail[:4] >> 1.0, tail[:6] >> 1.0, 0, 9) == 4


def test_first_difference_minds_where_a_part_began() -> None:
    early, late = Constant(1.0)[:1], Constant(1.0)[:3]
    falling, cycle = Exponential(1.0, gamma=0.5), Cyclic(0.0, 1.0, half_period=1)
    assert first_difference(early >> falling, late >> falling, 5, 9) == 5
    assert first_difference(early >> cycle, late >> cycle, 5, 9) == 9


def test_first_difference_does_not_compute_what_is_written_alike() -> None:
    calls = 0

    class Counted(Exponential):
        __slots__ = ()

        def formula(self, step: int) -> float:
            nonlocal calls
            calls += 1
            return super().formula(step)

    a, b = Counted(0.1, 0.95)[:1000] >> 1.0, Counted(0.1, 0.95)[:1000] >> 2.0
    calls = 0
    assert first_difference(a, b, 0, 2000) == 1000
    assert calls == 0


@given(joined())
def test_boundaries_are_sorted_and_hold_every_joint(sequence: Sequence) -> None:
    stop = horizon(sequence)
    found = sequence.boundaries(0, stop)
    assert list(found) == sorted(set(found))
    assert all(0 < step < stop for step in found)
    if isinstance(sequence, Joined):
        assert {step for step in sequence.starts if 0 < step < stop} <= set(found)
    for start in range(stop):
        assert sequence.boundaries(start, stop) == tuple(step for step in found if step > start)
        assert sequence.boundaries(0, start) == tuple(step for step in found if step < start)


def test_boundaries_are_the_changes_of_pieces_and_the_joints() -> None:
    joined = Warmup(5, 0.1) >> MultiStep(0.1, [4, 9], gamma=0.1)[:7] >> Exponential(0.1, 0.9)
    assert joined.boundaries(0, 30) == (5, 9, 12)
    assert joined.boundaries(5, 12) == (9,)
    assert WarmRestarts(0.1, 3).boundaries(0, 30) == ()


def test_equality_is_strict_about_types_and_blind_to_spelling() -> None:
    assert Constant(1) != Constant(1.0)
    assert Constant(1) != Constant(True)
    assert Constant(0.0) == Constant(-0.0)
    assert Constant(np.float64(0.5)) == Constant(0.5)
    assert Exponential(1, gamma=2) == Exponential(1.0, gamma=2.0)
    assert MultiStep(0.1, [3], 0.1) == MultiStep(init=0.1, milestones=(3,), gamma=0.1)
    assert (Warmup(2, 0.1) >> Warmup(2, 0.2)) >> 1 == Warmup(2, 0.1) >> (Warmup(2, 0.2) >> 1)
    assert Warmup(2, 0.1)[:2] == Warmup(2, 0.1)
    assert len({Constant(1), Constant(1.0), Constant(True), Constant(1)}) == 3


@pytest.mark.parametrize(
    ("sequence", "text"),
    [
        (
            Warmup(5, 0.1) >> Exponential(0.1, gamma=0.95),
            "Warmup(5, 0.1) >> Exponential(0.1, gamma=0.95)",
        ),
        (MultiStep(0.1, (30, 45), 0.1), "MultiStep(0.1, milestones=[30, 45], gamma=0.1)"),
        (Piecewise((64, 128), (20,)), "Piecewise([64, 128], boundaries=[20])"),
        (Constant("adam")[:3] >> "sgd", "Constant('adam')[:3] >> Constant('sgd')"),
        (Cyclic(0.1, 0.2, 20), "Cyclic(0.1, 0.2, half_period=20)"),
    ],
)
def test_the_text_is_what_one_would_write(sequence: Sequence, text: str) -> None:
    assert repr(sequence) == text


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Constant(math.nan), "finite"),
        (lambda: Constant([1]), "int, float, bool, str or None, got"),
        (lambda: as_sequence(object()), "int, float, bool, str or None, got"),
        (lambda: MultiStep(0.1, [45, 30], 0.1), r"strictly increasing, got \[45, 30\]"),
        (lambda: MultiStep(0.1, [0, 30], 0.1), ">= 1, got 0"),
        (lambda: MultiStep(0.1, [1.5], 0.1), "must be an int, got 1.5"),
        (lambda: MultiStep(0.1, 30, 0.1), "must be a list of steps, got 30"),
        (lambda: MultiStep(1.0, [3, 5], 1e200), "overflows at step 5"),
        (lambda: Piecewise([64], [20]), "1 values and 1 boundaries"),
        (lambda: Piecewise([64, math.inf], [20]), r"values\[1\]: .* finite, got inf"),
        (lambda: Piecewise([1, 2, 3], [5, 5]), r"got \[5, 5\]"),
        (lambda: Piecewise("abc", [5, 6]), "1 values and 2 boundaries"),
        (lambda: Linear(0.1, 0.0, period=0), "period must be >= 1, got 0"),
        (lambda: Exponential("a", gamma=True), "init must be a finite number, got 'a'"),
        (lambda: Cosine(0.1, 2.5), "period must be an int, got 2.5"),
        (lambda: Warmup(True, 0.1), "n must be an int, got True"),
        (lambda: Exponential(10**400, 1), "init must fit into a float"),
        (lambda: Constant(1) >> Constant(2), "end it first"),
        (lambda: Constant(1)[3], "seq"),
        (lambda: Constant(1)[1:3], "seq"),
        (lambda: Constant(1)[:0], "n of seq.* must be >= 1, got 0"),
        (lambda: Constant(1)(-1), "step must be >= 0, got -1"),
        (lambda: Constant(1)(1.0), "step must be an int, got 1.0"),
        (lambda: Constant(1)(True), "step must be an int, got True"),
        (lambda: Warmup(5, 0.1)(5), "step must be < 5"),
        (lambda: Exponential(1.0, 10.0)(400), r"Exponential\(1.0, gamma=10.0\) .*at step 400"),
        (lambda: Exponential(1.0, 10.0)[:401], "overflows at step 400"),
        (lambda: Warmup(10, 1e308)(8), "overflows at step 8"),
        (lambda: first_difference(Warmup(5, 0.1), Constant(1), 0, 6), "stop must be <= 5"),
        (lambda: Ended(Warmup(5, 0.1)[:3], 2), "only a family member"),
        (lambda: Constant("adam").sparkline(5), "only numbers"),
        (lambda: sequence_from_json({"family": "Wave"}), "unknown sequence family 'Wave'; known:"),
        (lambda: sequence_from_json({"family": "Warmup", "m": 1}), "n is missing"),
        (lambda: sequence_from_json({"family": "Warmup", "m": 1}), "'m'; known: n, target"),
        (lambda: sequence_from_json({"family": "Joined", "pieces": []}), "list of sequences"),
        (lambda: sequence_from_json([]), "JSON object"),
    ],
)
def test_what_makes_no_sense_is_refused_and_named(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        MultiStep("a", milestones=[3, 2], gamma=math.inf)  # type: ignore[arg-type]
    assert len(caught.value.problems) == 3


def test_every_family_is_in_the_registry() -> None:
    members = {item for item in vars(sequences).values() if isinstance(item, type)} - {
        Sequence,
        Joined,
        Ended,
    }
    assert set(FAMILIES.values()) == members


def test_a_sparkline_shows_rise_and_fall() -> None:
    assert Cyclic(0.0, 1.0, half_period=7).sparkline(15) == "▁▂▃▄▅▆▇█▇▆▅▄▃▂▁"
    assert len(Exponential(0.1, 0.95).sparkline(500, width=40)) == 40
    assert Constant(3).sparkline(4) == "▁▁▁▁"
    assert (Constant(-1e308)[:1] >> 1e308).sparkline(2) == "▁█"

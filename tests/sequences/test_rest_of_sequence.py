"""The rest of a sequence after its first steps: ``seq[n:]``."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasktune.errors import ConfigurationError
from dasktune.graph.cost import cost_of
from dasktune.sequences import (
    Constant,
    Cosine,
    Exponential,
    Joined,
    Sequence,
    Warmup,
    first_difference,
    sequence_from_json,
)
from tests.sequences.drawing import bits, cut_and_joined, horizon


@given(cut_and_joined(), st.data())
def test_the_rest_begins_that_many_steps_later(sequence: Sequence, data: st.DataObject) -> None:
    stop = horizon(sequence)
    n = data.draw(st.integers(0, stop - 1))
    rest = sequence[n:]
    assert bits(rest.values(0, stop - n)) == bits(sequence.values(n, stop))
    assert rest.end == (None if sequence.end is None else sequence.end - n)
    whole = tuple(step - n for step in sequence.boundaries(n, stop))
    assert rest.boundaries(0, stop - n) == whole
    for step in range(stop - n):
        change, later = rest.constant_until(step), sequence.constant_until(step + n)
        assert change == (None if later is None else later - n)


@given(cut_and_joined(), st.data())
def test_the_two_parts_of_a_sequence_are_the_sequence(
    sequence: Sequence, data: st.DataObject
) -> None:
    stop = horizon(sequence)
    n = data.draw(st.integers(1, max(stop - 1, 1)))
    if n >= stop:
        return
    again = sequence[:n] >> sequence[n:]
    assert bits(again.values(0, stop)) == bits(sequence.values(0, stop))
    assert again.end == sequence.end
    assert first_difference(again, sequence, 0, stop) == stop
    assert not any(isinstance(piece, Joined) for piece in again.leaves())


@given(cut_and_joined(), st.data())
def test_cuts_at_both_sides_may_come_in_any_order(sequence: Sequence, data: st.DataObject) -> None:
    stop = data.draw(st.integers(1, horizon(sequence)))
    start = data.draw(st.integers(0, stop - 1))
    middle = data.draw(st.integers(0, start))
    assert sequence[start:][: stop - start] == sequence[:stop][start:]
    assert sequence[middle:][start - middle :] == sequence[start:]


@given(cut_and_joined(), cut_and_joined(), st.data())
def test_trials_that_part_after_a_cut_share_all_before_it(
    old: Sequence, new: Sequence, data: st.DataObject
) -> None:
    n = data.draw(st.integers(1, horizon(old)))
    stop = n + horizon(new)
    child = old[:n] >> new
    again = child[:n] >> child[n:]
    cost = cost_of([({"x": child}, stop), ({"x": again}, stop)], workers=1)
    assert cost.steps_unique == stop


def test_cut_parts_are_compared_without_computing_values() -> None:
    calls = 0

    class Counted(Exponential):
        __slots__ = ()

        def formula(self, step: int) -> float:
            nonlocal calls
            calls += 1
            return super().formula(step)

    whole = Counted(0.1, 0.95)
    parts = whole[:300] >> whole[300:][:300] >> whole[600:]
    calls = 0
    assert first_difference(whole, parts, 0, 2000) == 2000
    assert first_difference(parts, whole[:1000] >> 1.0, 0, 2000) == 1000
    assert calls <= 2


@pytest.mark.parametrize(
    ("sequence", "text"),
    [
        (Exponential(0.1, gamma=0.95)[3:], "Exponential(0.1, gamma=0.95)[3:]"),
        (Exponential(0.1, gamma=0.95)[3:][2:], "Exponential(0.1, gamma=0.95)[5:]"),
        (Exponential(0.1, gamma=0.95)[:7][3:], "Exponential(0.1, gamma=0.95)[3:][:4]"),
        (Constant(64)[3:], "Constant(64)"),
        (Constant(64)[:9][3:], "Constant(64)[:6]"),
        ((Warmup(2, 0.1) >> Cosine(0.1, 6))[1:], "Warmup(2, 0.1)[1:] >> Cosine(0.1, 6)"),
        ((Warmup(2, 0.1) >> Constant(0.1))[2:], "Constant(0.1)"),
        (Warmup(4, 0.1)[1:][:3], "Warmup(4, 0.1)[1:]"),
        (Warmup(4, 0.1)[0:], "Warmup(4, 0.1)"),
    ],
)
def test_the_text_is_what_one_would_write(sequence: Sequence, text: str) -> None:
    # `Cosine` writes the names of all but its first argument.
    assert repr(sequence) == text.replace("Cosine(0.1, 6)", "Cosine(0.1, period=6, final=0.0)")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Warmup(5, 0.1)[5:], r"n of seq\[n:\] must be < 5, where it ends, got 5"),
        (lambda: (Warmup(5, 0.1) >> Warmup(2, 0.1))[7:], "must be < 7"),
        (lambda: Constant(1)[-1:], r"n of seq\[n:\] must be >= 1, got -1"),
        (lambda: Constant(1)[1.5:], "must be an int, got 1.5"),
        (lambda: Constant(1)[1:3], r"seq\[:n\] or seq\[n:\], got"),
        (lambda: Constant(1)[::2], r"seq\[:n\] or seq\[n:\], got"),
        (lambda: Warmup(5, 0.1)[2:](3), r"step must be < 3, the end of Warmup\(5, 0.1\)\[2:\]"),
        (lambda: Exponential(1.0, 10.0)[401:], "overflows at step 401"),
        (lambda: Exponential(1.0, 10.0)[9:](392), r"gamma=10.0\)\[9:\] overflows at step 392"),
        (lambda: sequence_from_json({"family": "Rest"}), "Rest: sequence is missing"),
    ],
)
def test_what_makes_no_sense_is_refused_and_named(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(ConfigurationError, match=message):
        make()

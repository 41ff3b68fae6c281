"""Sequences that are drawn, and how the tests compare values."""

from __future__ import annotations

from hypothesis import strategies as st

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
from dasktune.types import Value

MEMBERS = st.sampled_from(
    [
        Constant(64),
        Constant("adam"),
        Piecewise([1, 2.0, "x"], [2, 5]),
        MultiStep(0.1, [3, 4, 9], gamma=0.1),
        Linear(0.1, 0.9, period=7),
        Exponential(0.1, gamma=0.95),
        Cosine(0.1, period=6),
        WarmRestarts(0.1, period=3),
        Cyclic(0.0, 1.0, half_period=2),
        Warmup(5, 0.1),
    ]
)


@st.composite
def cut_and_joined(draw: st.DrawFn) -> Sequence:
    """Any sequence: up to three pieces, some of them cut at either side."""
    sequence = draw(cut())
    for _ in range(draw(st.integers(0, 2))):
        if sequence.end is None:
            sequence = sequence[: draw(st.integers(1, 8))]
        sequence = sequence >> draw(cut())
    return sequence


@st.composite
def cut(draw: st.DrawFn) -> Sequence:
    sequence = draw(MEMBERS)
    if draw(st.booleans()):
        sequence = sequence[draw(st.integers(0, horizon(sequence, 8) - 1)) :]
    if draw(st.booleans()):
        sequence = sequence[: draw(st.integers(1, horizon(sequence, 8)))]
    return sequence


def horizon(sequence: Sequence, at_most: int = 24) -> int:
    return at_most if sequence.end is None else min(at_most, sequence.end)


def bits(values: list[Value]) -> list[str]:
    return [repr(value) for value in values]


def alike(first: Value, second: Value) -> bool:
    return type(first) is type(second) and first == second

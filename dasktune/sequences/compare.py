"""The first difference of two sequences, which merging computes for many pairs."""

from __future__ import annotations

from dasktune.errors import ConfigurationError
from dasktune.sequences.values import same
from dasktune.types import Step, ValueFunction


def first_difference(a: ValueFunction, b: ValueFunction, start: Step, stop: Step) -> Step:
    """Return the first step in ``[start, stop)`` at which `a` and `b` differ, else `stop`.

    They differ where their values are unequal or of different type; ``-0.0`` equals ``0.0``.
    Equal formulas are equal without computing values, and a run in which both are constant
    costs one comparison. Only two different formulas with equal values are compared step by step.

    Raises
    ------
    ConfigurationError
        If one of them ends before `stop`, or a value overflows.

    Examples
    --------
    >>> from dasktune.sequences import Constant, Exponential, MultiStep
    >>> first_difference(Constant(0.1), MultiStep(0.1, [90], gamma=0.1), 0, 120)
    90
    >>> first_difference(Constant(0.1), Exponential(0.1, gamma=0.95), 0, 120)
    1
    """
    for sequence in (a, b):
        if sequence.end is not None and sequence.end < stop:
            raise ConfigurationError(
                f"stop must be <= {sequence.end}, the end of {sequence!r}, got {stop}"
            )
    if a == b:
        return max(start, stop)
    step = start
    while step < stop:
        first, first_origin, first_end = a.leaf_at(step)
        second, second_origin, second_end = b.leaf_at(step)
        limit = min(end for end in (first_end, second_end, stop) if end is not None)
        if first_origin != second_origin or first != second:
            parting = _first_unequal((first, first_origin), (second, second_origin), step, limit)
            if parting < limit:
                return parting
        step = limit
    return step


def _first_unequal(
    left: tuple[ValueFunction, Step], right: tuple[ValueFunction, Step], step: Step, limit: Step
) -> Step:
    """Return the first step at which two parts, given with their starts, differ; else `limit`."""
    (first, first_origin), (second, second_origin) = left, right
    while step < limit:
        if not same(first(step - first_origin), second(step - second_origin)):
            return step
        after = limit
        for leaf, origin in (left, right):
            change = leaf.constant_until(step - origin)
            after = after if change is None else min(after, origin + change)
        # Up to the first change of either, both keep the values that were just compared.
        step = after
    return limit

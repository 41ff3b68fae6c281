"""The plan of a resume check: how far it trains in one go, and where it resumes.

A check costs its user time, so it is small: `SPLITS` are 2, 3 and 5, which have no common
divisor, so that whatever a trainer does every second, third or later step is resumed in its midst
at least once. The first resumption goes on to the end, and a hyper-parameter changes in it: a
change that comes later in the configuration is moved there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dasktune.sequences import Sequence as ValueFunction
from dasktune.sequences import as_sequence
from dasktune.sequences.values import same
from dasktune.types import Step, Value

SPLITS: tuple[Step, ...] = (2, 3, 5)
"""Steps after which a check resumes; no number above 1 divides two of them."""

LONGEST: Step = 7
"""Steps in one go, unless an epoch ends later."""

AFTER_SPLIT: Step = 3
"""Steps after the only resumption, if no number is given."""

SHORTEST: Step = 2
"""Steps in one go of the smallest check: 1 before the resumption, and 1 after it."""

WINDOW: Step = 2
"""Steps that a resumption trains, except for the first, which goes on to the end."""

_MOST_LOOKS = 1_000
"""Steps at which a change of a hyper-parameter is looked for."""

_FURTHEST: Step = 2**40
"""The last step at which it is looked for in a configuration that never ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A resumption: from the state after `split` steps to `stop` steps."""

    split: Step
    stop: Step

    @property
    def steps(self) -> Step:
        """Number of steps that it trains."""
        return self.stop - self.split


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckPlan:
    """The steps of a check.

    Parameters
    ----------
    total
        Steps in one go.
    spans
        The resumptions, the longest first. The last is trained once more without evaluating.
    values
        Hyper-parameters at every step that the check may train.
    change
        The first step after the first split at which a value changes; None without one.
    moved_from
        The step of that change in the configuration, if it was moved; None otherwise.
    """

    total: Step
    spans: tuple[Span, ...]
    values: Sequence[Mapping[str, Value]]
    change: Step | None = None
    moved_from: Step | None = None

    @property
    def cost(self) -> Step:
        """Number of steps that the check trains, without those up to an epoch's end."""
        return cost_of(self.total, self.spans)


def cost_of(total: Step, spans: Sequence[Span]) -> Step:
    """Return the number of steps that a check trains: in one go, resumed, and silently again."""
    return total + sum(span.steps for span in spans) + spans[-1].steps


def spans_within(total: Step) -> tuple[Span, ...]:
    """Return the resumptions of a check that trains `total` steps in one go.

    Examples
    --------
    >>> [(span.split, span.stop) for span in spans_within(7)]
    [(2, 7), (3, 5), (5, 7)]
    >>> [(span.split, span.stop) for span in spans_within(2)]
    [(1, 2)]
    """
    first, *others = [split for split in SPLITS if split < total] or [1]
    windows = [Span(split=split, stop=min(split + WINDOW, total)) for split in others]
    return Span(split=first, stop=total), *windows


def total_for(steps: Step | None, horizon: Step | None) -> Step:
    """Return the most steps in one go whose check trains at most `steps`, or the fewest.

    Parameters
    ----------
    steps
        Most steps that the check may train in all; None sets no limit.
    horizon
        Last step of the configuration; None if it never ends.

    Examples
    --------
    >>> total_for(None, None), total_for(12, None), total_for(None, 4), total_for(1, None)
    (7, 5, 4, 2)
    """
    longest = LONGEST if horizon is None else min(LONGEST, horizon)
    for total in range(longest, SHORTEST, -1):
        if steps is None or cost_of(total, spans_within(total)) <= steps:
            return total
    return SHORTEST


def plan_check(functions: Mapping[str, ValueFunction], total: Step, *, reach: Step) -> CheckPlan:
    """Return the plan of a check; a change of value that comes too late is moved into it.

    Parameters
    ----------
    functions
        The hyper-parameters by name.
    total
        Steps in one go.
    reach
        The last step that the check may train to, if an epoch ends later than `total`.
    """
    spans, end = spans_within(total), end_of(functions)
    at, last = spans[0].split + 1, _FURTHEST if end is None else end
    reach = min(reach, last)
    change = next(_changes(functions, at, last), None)
    if change is None or change < total or at >= total:
        inside = change if change is not None and change < total else None
        values = values_at(functions, range(reach))
        return CheckPlan(total=total, spans=spans, values=values, change=inside)
    late = range(change, change + reach - at)
    values = values_at(functions, [*range(at), *(min(step, last - 1) for step in late)])
    return CheckPlan(total=total, spans=spans, values=values, change=at, moved_from=change)


def plan_one(functions: Mapping[str, ValueFunction], split: Step, total: Step) -> CheckPlan:
    """Return the plan of a check that resumes once, after `split` of `total` steps."""
    return CheckPlan(
        total=total,
        spans=(Span(split=split, stop=total),),
        values=values_at(functions, range(total)),
        change=next(_changes(functions, split, total), None),
    )


def first_change(hp: Mapping[str, object], stop: Step) -> Step | None:
    """Return the first step before `stop` at which a value changes, or None."""
    return next(_changes({name: until(each, stop) for name, each in hp.items()}, 1, stop), None)


def change_or_end(hp: Mapping[str, object], stop: Step) -> Step:
    """Return the first step before `stop` at which a value changes; `stop` if none does."""
    change = first_change(hp, stop)
    return stop if change is None else change


def end_of(functions: Mapping[str, ValueFunction]) -> Step | None:
    """Return the step at which the first of the hyper-parameters ends; None if all are endless."""
    ends = [function.end for function in functions.values() if function.end is not None]
    return min(ends) if ends else None


def until(function: object, stop: Step) -> ValueFunction:
    """Return a hyper-parameter that ends after `stop` steps at the latest."""
    sequence = as_sequence(function)
    return sequence if sequence.end is not None and sequence.end <= stop else sequence[:stop]


def _changes(functions: Mapping[str, ValueFunction], start: Step, stop: Step) -> Iterator[Step]:
    """Yield the steps from `start` on, below `stop`, at which a value changes."""
    step = start
    for _ in range(_MOST_LOOKS):
        if step >= stop:
            return
        if any(not same(each(step - 1), each(step)) for each in functions.values()):
            yield step
        following = [each.constant_until(step) for each in functions.values()]
        step = max(step + 1, min((each for each in following if each is not None), default=stop))


def values_at(
    functions: Mapping[str, ValueFunction], steps: Iterable[Step]
) -> list[Mapping[str, Value]]:
    """Return the hyper-parameters at these steps."""
    return [{name: function(step) for name, function in functions.items()} for step in steps]

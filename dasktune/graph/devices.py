"""The number of devices that train a trial, as a sequence that its state keys name.

Where gradients are the mean of those of several devices, the last bits depend on their number. So
a state that k > 1 devices have trained is another state than that of one device, and its key says
so: the number of devices stands among the hyper-parameters of a trial under a name of its own. With
one device it adds nothing to a key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from dasktune.sequences import Constant, Piecewise
from dasktune.types import Sequences, Step, Value, ValueFunction

DEVICES = "dasktune:devices"
"""The name of the number of devices among the sequences of a trial."""

Periods = Sequence[tuple[Step, int]]
"""Numbers of devices, each with the step from which on it holds, in order; the first at step 0."""

Function = TypeVar("Function", bound=ValueFunction)

_ONE = Constant(1)


def with_devices(sequences: Sequences, periods: Periods) -> Sequences:
    """Return sequences with the number of devices among them; the same ones for one device.

    Examples
    --------
    >>> made = with_devices({"lr": Constant(0.1)}, [(0, 1), (20, 2)])
    >>> devices_at(made, 19), devices_at(made, 20), list(without_devices(made))
    (1, 2, ['lr'])
    """
    if all(devices == 1 for _, devices in periods):
        return sequences
    numbers = [devices for _, devices in periods]
    changes = [step for step, _ in periods[1:]]
    function = Piecewise(numbers, boundaries=changes) if changes else Constant(numbers[0])
    return {**sequences, DEVICES: function}


def before(periods: Periods, step: Step) -> tuple[tuple[Step, int], ...]:
    """Return the periods of the steps up to `step`.

    Examples
    --------
    >>> before([(0, 1), (20, 2), (30, 4)], 30)
    ((0, 1), (20, 2))
    """
    return tuple((start, number) for start, number in periods if start < step)


def with_change(periods: Periods, step: Step, devices: int) -> tuple[tuple[Step, int], ...]:
    """Return the periods with another number of devices from a step on.

    Examples
    --------
    >>> with_change([(0, 1), (20, 2)], 30, 4), with_change([(0, 1), (20, 2)], 20, 1)
    (((0, 1), (20, 2), (30, 4)), ((0, 1),))
    """
    kept = before(periods, step)
    if kept and kept[-1][1] == devices:
        return kept
    return (*kept, (step, devices))


def with_part(
    periods: Periods, others: Periods, start: Step, stop: Step
) -> tuple[tuple[Step, int], ...]:
    """Return the periods with those of other ones between two steps; the last of them stays.

    Examples
    --------
    >>> with_part([(0, 1), (5, 2)], [(0, 1), (4, 8), (20, 4), (30, 2)], 10, 30)
    ((0, 1), (5, 2), (10, 8), (20, 4))
    """
    made = tuple(periods)
    for step, devices in others:
        if step < stop:
            made = with_change(made, max(step, start), devices)
    return made


def devices_text(periods: Periods) -> str:
    """Return the numbers of devices in words.

    Examples
    --------
    >>> devices_text([(0, 1), (20, 2), (40, 8)])
    '1, 2 from step 20, 8 from step 40'
    """
    texts = (f"{number} from step {step}" if step else str(number) for step, number in periods)
    return ", ".join(texts)


def without_devices(sequences: Mapping[str, Function]) -> dict[str, Function]:
    """Return the hyper-parameters alone, which the trainer gets."""
    return {name: function for name, function in sequences.items() if name != DEVICES}


def values_at(sequences: Sequences, step: Step) -> dict[str, Value]:
    """Return the hyper-parameters at a step, without the number of devices."""
    return {name: function(step) for name, function in sequences.items() if name != DEVICES}


def devices_of(sequences: Sequences) -> ValueFunction:
    """Return the number of devices as a function of the step."""
    return sequences.get(DEVICES, _ONE)


def devices_at(sequences: Sequences, step: Step) -> int:
    """Return the number of devices that train the step after `step` steps."""
    return int(devices_of(sequences)(step) or 1)


def spans(sequences: Sequences, start: Step, stop: Step) -> Iterator[tuple[Step, Sequences]]:
    """Yield ``(until, named)`` for consecutive spans in [start, stop) of one number of devices.

    `named` are the sequences whose values a state key names there: one device is not named.
    """
    if DEVICES not in sequences:
        if start < stop:
            yield stop, sequences
        return
    alone = without_devices(sequences)
    step = start
    while step < stop:
        devices = devices_at(sequences, step)
        change = devices_of(sequences).constant_until(step)
        until = stop if change is None else min(change, stop)
        yield until, alone if devices == 1 else {**alone, DEVICES: Constant(devices)}
        step = until

"""Times of steps, and of all else, on a simulated worker."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol

from dasktune._numbers import make_plain, real_of
from dasktune.errors import refuse
from dasktune.types import Step


class Pace(Protocol):
    """The times of the steps of one configuration."""

    @property
    def least(self) -> float:
        """Seconds of the fastest step."""

    def between(self, first: Step, last: Step) -> float:
        """Return the seconds from the state after `first` steps to that after `last`."""

    def slower(self, factor: float) -> Pace:
        """Return the pace with every step `factor` times as long."""


@dataclass(frozen=True, slots=True)
class EvenPace:
    """The pace of steps that all take equally long.

    Parameters
    ----------
    least
        Seconds of a step.
    """

    least: float

    def between(self, first: Step, last: Step) -> float:
        """Return the seconds from the state after `first` steps to that after `last`."""
        return (last - first) * self.least

    def slower(self, factor: float) -> EvenPace:
        """Return the pace with every step `factor` times as long."""
        return EvenPace(self.least * factor)


@dataclass(frozen=True, slots=True)
class MeasuredPace:
    """The pace of steps with measured times.

    Parameters
    ----------
    elapsed
        Total seconds of the first 0, 1, 2, ... steps.
    least
        Seconds of the fastest step, `factor` included.
    """

    elapsed: Sequence[float]
    least: float
    factor: float = 1.0

    def between(self, first: Step, last: Step) -> float:
        """Return the seconds from the state after `first` steps to that after `last`."""
        return (self.elapsed[last] - self.elapsed[first]) * self.factor

    def slower(self, factor: float) -> MeasuredPace:
        """Return the pace with every step `factor` times as long."""
        return MeasuredPace(self.elapsed, self.least * factor, self.factor * factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """Mean seconds of all that takes time beside the steps.

    Parameters
    ----------
    begin
        From the beginning of a run until its workers have their first stages.
    build
        To build a trainer for a stage that begins at step 0.
    load
        To build a trainer and load a state into it, if the worker does not hold it.
    save
        By which saving a state delays training.
    report
        From the end of a step whose state is saved until the tuner gets the report; the state is
        durable by then.
    handover
        From the end of a stage until the next one begins on its worker.
    """

    begin: float = 0.0
    build: float = 0.0
    load: float = 0.0
    save: float = 0.0
    report: float = 0.0
    handover: float = 0.0

    def __post_init__(self) -> None:
        refuse(
            f"overheads: {name} must be a number >= 0, got {seconds!r}"
            for name, seconds in self.to_json().items()
            if not 0 <= real_of(seconds) < math.inf
        )
        make_plain(self, *self.to_json())

    @property
    def start(self) -> float:
        """Seconds until the first step of a run begins."""
        return self.begin + self.handover + self.build

    def to_json(self) -> dict[str, float]:
        """Return the seconds by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

"""What steps, and all that is not a step, take on a simulated worker."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol

from dasktune.errors import refuse
from dasktune.types import Step


class Pace(Protocol):
    """What the steps of one configuration take."""

    @property
    def least(self) -> float:
        """Seconds that no step takes less than."""

    def between(self, first: Step, last: Step) -> float:
        """Return the seconds from the state after `first` steps to that after `last`."""

    def slower(self, factor: float) -> Pace:
        """Return the pace at which every step takes so many times as long."""


@dataclass(frozen=True, slots=True)
class EvenPace:
    """Every step takes as long.

    Parameters
    ----------
    least
        How long, in seconds.
    """

    least: float

    def between(self, first: Step, last: Step) -> float:
        """Return the seconds from the state after `first` steps to that after `last`."""
        return (last - first) * self.least

    def slower(self, factor: float) -> EvenPace:
        """Return the pace at which every step takes so many times as long."""
        return EvenPace(self.least * factor)


@dataclass(frozen=True, slots=True)
class MeasuredPace:
    """Each step takes what was measured of it.

    Parameters
    ----------
    elapsed
        Seconds that the first 0, 1, 2, ... steps took in all.
    least
        What the fastest of them took.
    factor
        How many times as long they take here.
    """

    elapsed: Sequence[float]
    least: float
    factor: float = 1.0

    def between(self, first: Step, last: Step) -> float:
        """Return the seconds from the state after `first` steps to that after `last`."""
        return (self.elapsed[last] - self.elapsed[first]) * self.factor

    def slower(self, factor: float) -> MeasuredPace:
        """Return the pace at which every step takes so many times as long."""
        return MeasuredPace(self.elapsed, self.least * factor, self.factor * factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """What takes time beside the steps: seconds, each a mean.

    Parameters
    ----------
    begin
        From the beginning of a run until its workers have their first stages.
    build
        To build a trainer for a stage that begins at step 0.
    load
        To build one and load a state into it, where the worker does not hold it still.
    save
        For which saving a state holds training up.
    report
        From the end of a step whose state is saved until the tuner is told: the state is
        durable by then, and training has gone on.
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
            if not isinstance(seconds, int | float) or not 0 <= seconds < math.inf
        )

    @property
    def start(self) -> float:
        """Seconds until the first step of a run begins."""
        return self.begin + self.handover + self.build

    def to_json(self) -> dict[str, float]:
        """Return the seconds by name."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

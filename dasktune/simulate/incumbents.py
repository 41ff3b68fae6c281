"""The incumbents of a simulation: the best known value at each moment, and the steps so far."""

from __future__ import annotations

import math
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dasktune.simulate.jobs import SimulatedJob
from dasktune.types import Direction, Objective, Step


class Incumbent(NamedTuple):
    """A value that was better than all values known before it.

    Parameters
    ----------
    seconds
        Virtual time at which it became known.
    steps
        Steps that all workers together had trained by then, repeated ones included.
    value
        Value of the metric.
    """

    seconds: float
    steps: int
    value: float


class Incumbents:
    """Collects the values of all jobs, and finds the incumbents at the end.

    Jobs run at the same time and report a stage at a time, so values do not arrive in order of
    time.
    """

    def __init__(self, objective: Objective) -> None:
        (direction,) = objective.directions
        self._sign = -1.0 if direction is Direction.MAXIMIZE else 1.0
        self._better: list[tuple[float, float, float]] = []
        self._best = (math.inf, math.inf)
        """Time and loss of the best value so far."""
        self._spans: list[tuple[float, float, int]] = []
        self._jobs: list[SimulatedJob] = []

    def loss_of(self, value: float) -> float:
        """Return a value as a loss: smaller is better, infinite if it is not finite."""
        return self._sign * value if math.isfinite(value) else math.inf

    def take(self, job: SimulatedJob, values: dict[Step, float]) -> None:
        """Add the values of a job by step, in order."""
        best = math.inf
        for step, value in values.items():
            loss = self.loss_of(value)
            if loss < best:
                best = loss
                self._add(job.time_of(step), loss, value)

    def _add(self, seconds: float, loss: float, value: float) -> None:
        """Add a value unless one as good was known as early."""
        known_at, least = self._best
        if known_at <= seconds and least <= loss:
            return
        self._better.append((seconds, loss, value))
        if loss < least:
            self._best = seconds, loss

    def count(self, job: SimulatedJob, steps: int, now: float) -> None:
        """Add the total steps of a job that is over."""
        self._spans.append((job.launched, now, steps))
        self._jobs.append(job)

    def in_order(self) -> list[Incumbent]:
        """Return the incumbents in order of time."""
        best = math.inf
        incumbents: list[Incumbent] = []
        for seconds, loss, value in sorted(self._better):
            if loss < best:
                best = loss
                trained = self._trained_by(seconds)
                # Of several values at the same moment only the best is an incumbent.
                if incumbents and incumbents[-1].seconds == seconds:
                    incumbents.pop()
                incumbents.append(Incumbent(seconds, trained, value))
        return incumbents

    def _trained_by(self, now: float) -> int:
        """Return how many whole steps all jobs had trained by `now`."""
        launched, ended, steps = self._spans_of_all
        under_way = np.flatnonzero((launched <= now) & (now < ended))
        done = int(steps[ended <= now].sum())
        return done + sum(self._jobs[at].steps_by(now) for at in under_way)

    @cached_property
    def _spans_of_all(self) -> NDArray[np.float64]:
        return np.array(self._spans).reshape(-1, 3).T

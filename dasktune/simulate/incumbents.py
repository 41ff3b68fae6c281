"""The incumbents of a simulation: the best known value at each moment, and the steps so far."""

from __future__ import annotations

import math
from typing import NamedTuple

from dasktune.simulate.jobs import SimulatedJob
from dasktune.types import Direction, Objective, Step

_FEW = 64
"""Jobs that are over are forgotten only when there are more than this many."""


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
    """Collects the values of all jobs, and finds the incumbents.

    Those that no later value can change are found during the run: so jobs that are over can be
    forgotten.

    Jobs run at the same time and report a stage at a time, so values do not arrive in order of
    time.
    """

    def __init__(self, objective: Objective) -> None:
        (direction,) = objective.directions
        self._sign = -1.0 if direction is Direction.MAXIMIZE else 1.0
        self._better: list[tuple[float, float, float]] = []
        self._best = (math.inf, math.inf)
        """Time and loss of the best value so far."""
        self._least = math.inf
        """Loss of the newest of `_incumbents`, infinite at first."""
        self._incumbents: list[Incumbent] = []
        """The incumbents that no value still to come can change."""
        self._running: dict[str, SimulatedJob] = {}
        self._over: list[tuple[SimulatedJob, float, int]] = []
        """Jobs that are over, with their ends and total steps."""
        self._trained = 0
        """Steps of jobs that were over before any value that may still come."""
        self._most_over = _FEW

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

    def begin(self, job: SimulatedJob) -> None:
        """Add a job that begins."""
        self._running[job.order.attempt] = job

    def end(self, job: SimulatedJob, steps: int, now: float) -> None:
        """Add the total steps of a job that is over."""
        del self._running[job.order.attempt]
        self._over.append((job, now, steps))
        if len(self._over) > self._most_over:
            first = next(iter(self._running.values()), None)
            self._settle(now if first is None else first.launched)
            self._most_over = 2 * len(self._over) + _FEW

    def in_order(self) -> list[Incumbent]:
        """Return the incumbents in order of time, once all jobs are over."""
        self._settle(math.inf)
        return self._incumbents

    def _settle(self, until: float) -> None:
        """Find the incumbents before a time, and forget the jobs that were over by then.

        All values that still come are of that time or later.
        """
        for seconds, loss, value in sorted(each for each in self._better if each[0] < until):
            if loss < self._least:
                self._least = loss
                trained = self._trained_by(seconds)
                # Of several values at the same moment only the best is an incumbent.
                if self._incumbents and self._incumbents[-1].seconds == seconds:
                    self._incumbents.pop()
                self._incumbents.append(Incumbent(seconds, trained, value))
        self._better = [each for each in self._better if each[0] >= until]
        self._trained += sum(steps for _, ended, steps in self._over if ended <= until)
        self._over = [each for each in self._over if each[1] > until]

    def _trained_by(self, now: float) -> int:
        """Return how many whole steps all jobs had trained by `now`."""
        return self._trained + sum(
            steps if ended <= now else job.steps_by(now)
            for job, ended, steps in self._over
            if job.launched <= now
        )

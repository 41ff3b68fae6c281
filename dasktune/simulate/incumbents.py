"""The best value known at every moment of a simulation, and the steps trained until then."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dasktune.simulate.jobs import Job
from dasktune.types import Direction, Objective, Step


class Incumbent(NamedTuple):
    """A value that was better than all those known before it.

    Parameters
    ----------
    seconds
        Virtual time at which it was known.
    steps
        Steps that all workers together had trained by then, repeated ones included.
    value
        Of the metric.
    """

    seconds: float
    steps: int
    value: float


class Incumbents:
    """Takes the values of each job as they become known; says at the end which were best.

    Jobs run at the same time and tell their values a stage at a time, so values do not come
    in the order of time.
    """

    def __init__(self, objective: Objective) -> None:
        (direction,) = objective.directions
        self._sign = -1.0 if direction is Direction.MAXIMIZE else 1.0
        self._better: list[tuple[float, float, float]] = []
        self._spans: list[tuple[float, float, int]] = []

    def loss_of(self, value: float) -> float:
        """Return a value as a loss: smaller is better, infinite if it is not finite."""
        return self._sign * value if math.isfinite(value) else math.inf

    def take(self, job: Job, values: dict[Step, float]) -> None:
        """Take in values of a job by step, in order."""
        best = math.inf
        for step, value in values.items():
            loss = self.loss_of(value)
            if loss < best:
                best = loss
                self._better.append((job.time_of(step), loss, value))

    def count(self, job: Job, steps: int) -> None:
        """Take in that a job has trained so many steps in all, and trains no more."""
        self._spans.append((job.launched, job.pace, steps))

    def in_order(self) -> list[Incumbent]:
        """Return the values that were better than all before them, in the order of time."""
        launched, pace, steps = np.array(self._spans).reshape(-1, 3).T
        best = math.inf
        found: list[Incumbent] = []
        for seconds, loss, value in sorted(self._better):
            if loss < best:
                best = loss
                trained = _trained_by(seconds, launched, pace, steps)
                # Of what was known at the same moment only the best is an incumbent.
                if found and found[-1].seconds == seconds:
                    found.pop()
                found.append(Incumbent(seconds, trained, value))
        return found


def _trained_by(
    now: float,
    launched: NDArray[np.float64],
    pace: NDArray[np.float64],
    steps: NDArray[np.float64],
) -> int:
    """Return how many whole steps jobs have trained by `now`, as `Job.position` counts."""
    done = np.full_like(steps, math.inf)
    np.divide(now - launched, pace, out=done, where=pace > 0)
    done = np.floor(done, out=done)
    timed = pace > 0
    done[timed] += launched[timed] + (done[timed] + 1) * pace[timed] <= now
    done[timed] -= launched[timed] + done[timed] * pace[timed] > now
    done[launched > now] = 0
    return int(np.clip(done, 0, steps).sum())

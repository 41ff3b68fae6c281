"""The budget of a simulation: the use of its jobs, and the moment at which a limit is reached."""

from __future__ import annotations

import math
from collections.abc import Iterator

from dasktune._engine.limits import Limits, Used
from dasktune.simulate.jobs import SimulatedJob
from dasktune.types import Objective

ROUNDING = 1e-12
"""Relative rounding error of a sum of times."""


class SimulatedBudget:
    """Counts what jobs use, and finds the moment at which a limit is reached.

    Attributes
    ----------
    worker_seconds, steps
        Use of the jobs that are over.
    wanted
        The target as a loss, if there is a target.
    """

    def __init__(self, limits: Limits, objective: Objective) -> None:
        self.worker_seconds = 0.0
        self.steps = 0
        target = limits.target
        self.wanted = (
            None if target is None else objective.losses({objective.metrics[0]: target})[0]
        )
        self._limits = limits
        self._objective = objective
        self._jobs: dict[str, SimulatedJob] = {}
        self._rate = 0.0
        self._offset = 0.0

    @property
    def bounds_time(self) -> bool:
        """Whether a limit ends the run even if all jobs are dropped."""
        return self._limits.seconds is not None or self._limits.worker_seconds is not None

    def begin(self, job: SimulatedJob) -> None:
        """Count a job that begins."""
        self._jobs[job.order.attempt] = job
        self._weigh(job, 1)

    def end(self, job: SimulatedJob, now: float) -> None:
        """Count the use of a job that is over."""
        del self._jobs[job.order.attempt]
        self._weigh(job, -1)
        self.worker_seconds += job.workers * (now - job.launched)
        self.steps += job.steps_by(now)

    def is_target(self, loss: float) -> bool:
        """Whether a loss is as good as the target."""
        return self.wanted is not None and loss <= self.wanted

    def met(self, loss: float) -> str | None:
        """Return the target in words if a loss reaches it, else None."""
        used = Used(best_loss=loss)
        return self._limits.reached(used, self._objective) if self.is_target(loss) else None

    def spent_before(self, at: float, now: float) -> tuple[float, str | None] | None:
        """Return the moment before `at` at which a limit is reached, and the limit, or None."""
        moments = [
            *self._by_seconds(),
            *self._by_worker_seconds(now),
            *self._by_steps(at, now),
        ]
        moment, used = min(moments, key=lambda pair: pair[0], default=(math.inf, Used()))
        if moment >= at - ROUNDING * max(1.0, at):
            return None
        return max(now, moment), self._limits.reached(used, self._objective)

    def _weigh(self, job: SimulatedJob, sign: int) -> None:
        """Add a job to the linear upper bound of the number of steps, or remove it."""
        if least := job.pace.least:
            self._rate += sign / least
            self._offset += sign * job.launched / least
        else:
            self._offset -= sign * (job.order.stop - job.first)

    def _by_seconds(self) -> Iterator[tuple[float, Used]]:
        seconds = self._limits.seconds
        if seconds is not None:
            yield seconds, Used(seconds=seconds)

    def _by_worker_seconds(self, now: float) -> Iterator[tuple[float, Used]]:
        seconds = self._limits.worker_seconds
        if seconds is None:
            return
        jobs = self._jobs.values()
        running = sum(job.workers * (now - job.launched) for job in jobs)
        left, used = seconds - self.worker_seconds - running, Used(worker_seconds=seconds)
        if left <= 0:
            yield now, used
        elif self._jobs:
            yield now + left / sum(job.workers for job in jobs), used

    def _by_steps(self, at: float, now: float) -> Iterator[tuple[float, Used]]:
        limit = self._limits.steps
        # Counting whole steps visits every job: only if the limit may be near.
        if limit is None or self.steps + self._rate * at - self._offset < limit - 1:
            return
        jobs = self._jobs.values()
        left = limit - self.steps - sum(job.steps_by(now) for job in jobs)
        if left <= 0:
            yield now, Used(steps=limit - left)
            return
        ends = [
            job.time_of(step)
            for job in jobs
            for start in [job.position(now)]
            for step in range(start + 1, min(job.position(at), start + left) + 1)
        ]
        if len(ends) >= left:
            yield sorted(ends)[left - 1], Used(steps=limit)

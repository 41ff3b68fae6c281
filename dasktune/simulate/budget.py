"""When a limit is reached on a virtual clock: to the moment, between two events too."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from dasktune.limits import Limits, Used
from dasktune.simulate.jobs import Job
from dasktune.types import Objective

ROUNDING = 1e-12
"""Part of a time that sums of floats may be off by."""


class Budget:
    """Finds the moment at which a limit is reached.

    Parameters
    ----------
    limits
        How much may be used.
    objective
        What the study optimises.
    """

    def __init__(self, limits: Limits, objective: Objective) -> None:
        self._limits = limits
        self._objective = objective
        target = limits.target
        self.wanted = (
            None if target is None else objective.losses({objective.metrics[0]: target})[0]
        )
        """The loss that is the target; None if there is none."""

    @property
    def bounds_time(self) -> bool:
        """Whether a run must end even if nothing ever gets done."""
        return self._limits.seconds is not None or self._limits.worker_seconds is not None

    def is_target(self, loss: float) -> bool:
        """Whether a loss is as good as the target."""
        return self.wanted is not None and loss <= self.wanted

    def met(self, loss: float) -> str | None:
        """Return in words that a loss is as good as the target; None if it is not."""
        used = Used(best_loss=loss)
        return self._limits.reached(used, self._objective) if self.is_target(loss) else None

    def spent_before(
        self, at: float, now: float, jobs: Collection[Job], spent: Used
    ) -> tuple[float, str | None] | None:
        """Return when a limit is reached before `at`, and which; None if none is.

        Parameters
        ----------
        at
            When the next thing happens.
        now
            When the last one did.
        jobs
            What runs in between.
        spent
            What jobs that are over have used.
        """
        moments = [
            *self._by_seconds(),
            *self._by_worker_seconds(now, jobs, spent),
            *self._by_steps(at, now, jobs, spent),
        ]
        moment, used = min(moments, key=lambda one: one[0], default=(math.inf, Used()))
        if moment >= at - ROUNDING * max(1.0, at):
            return None
        return max(now, moment), self._limits.reached(used, self._objective)

    def _by_seconds(self) -> Iterable[tuple[float, Used]]:
        seconds = self._limits.seconds
        if seconds is not None:
            yield seconds, Used(seconds=seconds)

    def _by_worker_seconds(
        self, now: float, jobs: Collection[Job], spent: Used
    ) -> Iterable[tuple[float, Used]]:
        seconds = self._limits.worker_seconds
        if seconds is not None:
            left = seconds - spent.worker_seconds - sum(now - job.launched for job in jobs)
            used = Used(worker_seconds=seconds)
            if left <= 0:
                yield now, used
            elif jobs:
                yield now + left / len(jobs), used

    def _by_steps(
        self, at: float, now: float, jobs: Collection[Job], spent: Used
    ) -> Iterable[tuple[float, Used]]:
        limit = self._limits.steps
        if limit is None:
            return
        left = limit - spent.steps - sum(job.steps_by(now) for job in jobs)
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

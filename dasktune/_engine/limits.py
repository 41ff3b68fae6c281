"""Limits: when a run of a tuner ends although the tuner has not."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

from dasktune._engine.alike import AlikeFailures
from dasktune._engine.timeouts import WAITS
from dasktune._numbers import make_plain, real_of
from dasktune.errors import refuse, shown
from dasktune.types import Metrics, Objective

ALIKE_FAILURES = 10
"""Trials that fail alike before any has reported, after which a run ends unless told otherwise."""

ALIKE = "all that ended,"
"""Begins the words for such failures."""

STOPPED = "stopped by"
"""Begins the words for a run that somebody stopped from elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """The time and steps that a tuner has used so far, over all of its runs, and its best loss."""

    seconds: float = 0.0
    """Wall time, or virtual time."""
    worker_seconds: float = 0.0
    """Time that workers spent on its stages."""
    steps: int = 0
    """Steps that were trained, repeated ones included."""
    best_loss: float = math.inf
    """The best loss of any step."""
    proof_seconds: float = 0.0
    """Time that workers spent on the proofs of resumes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a tuner; at a limit the stages save and end, and a larger limit goes on.

    Each counts over all runs of the same tuner, so that running an interrupted study again
    does not start its time anew. None is no limit.

    Parameters
    ----------
    target
        Enough: a value of the metric, in the study's direction, that any step of any trial
        may reach.
    seconds
        Wall time.
    worker_seconds
        Time that workers spend on stages: of each of those that train one together.
    steps
        Steps trained. No stage begins after the limit. Those that train then stop at their next
        step when they hear of it, usually within 0.1 s: quick steps go far beyond the limit.
    alike_failures
        Trials that failed alike (the same exception at the same line of your code) in this run,
        before any trial has reported or failed otherwise.

    Raises
    ------
    ConfigurationError
        If one is not a number above 0, or the target is not finite.

    Examples
    --------
    >>> Limits(steps=100).reached(Used(steps=100), Objective.single("loss", "minimize"))
    '100 of 100 steps were trained'
    """

    target: float | None = None
    seconds: float | None = None
    worker_seconds: float | None = None
    steps: int | None = None
    alike_failures: int | None = ALIKE_FAILURES

    def __post_init__(self) -> None:
        problems = []
        for limit in fields(self):
            name, given = limit.name, getattr(self, limit.name)
            is_target, number = name == "target", real_of(given)
            if given is None or (math.isfinite(number) if is_target else number > 0):
                continue
            wanted = "finite number" if is_target else "number > 0"
            problems.append(f"Limits: {name} must be a {wanted}, got {shown(given)}")
        refuse(problems)
        make_plain(self, *(limit.name for limit in fields(self)))

    def reached(self, used: Used, objective: Objective) -> str | None:
        """Return the limit that was reached, in words, or None."""
        name = objective.metrics[0]
        if self.target is not None:
            (wanted,) = objective.losses(dict.fromkeys(objective.metrics, self.target))[:1]
            if used.best_loss <= wanted:
                return f"{name} reached its target {self.target:g}"
        if self.seconds is not None and used.seconds >= self.seconds:
            return f"{self.seconds:g} s have passed"
        if self.worker_seconds is not None and used.worker_seconds >= self.worker_seconds:
            return f"{self.worker_seconds:g} worker seconds were used"
        if self.steps is not None and used.steps >= self.steps:
            return f"{used.steps:,} of {self.steps:,} steps were trained"
        return None


class Meter:
    """Counts the time and steps that a run uses, and says when a limit is reached.

    `before` is what earlier runs of the same tuner have used. Every `save_seconds`, `save` receives
    what this run has used: little of it is forgotten if the process is killed.
    """

    def __init__(
        self,
        limits: Limits,
        objective: Objective,
        before: Used,
        save: Callable[[Used], None] = lambda used: None,
        *,
        save_seconds: float = WAITS.save_seconds,
    ) -> None:
        self._limits = limits
        self._objective = objective
        self._before = before
        self._save = save
        self._save_seconds = save_seconds
        self._saved_at = 0.0
        self.of_this_run = Used()
        self.stopped_by: str | None = None
        """Who asked the run to stop from elsewhere, in words; None if nobody did."""
        self._failures = AlikeFailures()

    def count(
        self, *, seconds: float, worker_seconds: float, steps: int, proof_seconds: float = 0.0
    ) -> None:
        """Set the time and steps that this run has used so far."""
        self.of_this_run = replace(
            self.of_this_run,
            seconds=seconds,
            worker_seconds=worker_seconds,
            steps=steps,
            proof_seconds=proof_seconds,
        )
        if seconds - self._saved_at >= self._save_seconds:
            self._saved_at = seconds
            self.save()

    def save(self) -> None:
        """Save what this run has used so far."""
        self._save(self.of_this_run)

    def fail(self, message: str, traceback: str) -> None:
        """Count the failure of a trial."""
        self._failures.add(message, traceback)

    def see(self, metrics: Metrics) -> None:
        """Update the best loss with the metrics of any step, if they hold the study's metrics."""
        self._failures.reported()
        if all(name in metrics for name in self._objective.metrics):
            loss = min(self.of_this_run.best_loss, self._objective.losses(metrics)[0])
            self.of_this_run = replace(self.of_this_run, best_loss=loss)

    def reached(self) -> str | None:
        """Return the limit that was reached, in words, or None."""
        if self.stopped_by is not None:
            return f"{STOPPED} {self.stopped_by}"
        most = self._limits.alike_failures
        if most is not None and self._failures.count >= most:
            return f"{ALIKE} {self._failures.count} trials, failed alike: {self._failures.place}"
        before, now = self._before, self.of_this_run
        used = Used(
            seconds=before.seconds + now.seconds,
            worker_seconds=before.worker_seconds + now.worker_seconds,
            steps=before.steps + now.steps,
            best_loss=min(before.best_loss, now.best_loss),
        )
        return self._limits.reached(used, self._objective)

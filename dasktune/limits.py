"""Limits: when a run of a tuner ends although the tuner has not."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dasktune.errors import refuse
from dasktune.types import Objective


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """What a tuner has used so far, over all of its runs.

    Parameters
    ----------
    seconds
        Wall time, or virtual time.
    worker_seconds
        Time that workers spent on its stages.
    steps
        Steps that were trained, repeated ones included.
    best_loss
        The best loss that was seen at any step.
    """

    seconds: float = 0.0
    worker_seconds: float = 0.0
    steps: int = 0
    best_loss: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a tuner may use; what runs then is saved, and a larger limit goes on.

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
        Time that workers spend on stages.
    steps
        Steps trained.

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

    def __post_init__(self) -> None:
        amounts = {
            "seconds": self.seconds,
            "worker_seconds": self.worker_seconds,
            "steps": self.steps,
        }
        problems = [
            f"Limits: {name} must be a number > 0, got {value!r}"
            for name, value in amounts.items()
            if value is not None and not (_is_number(value) and value > 0)
        ]
        if self.target is not None and not (_is_number(self.target) and math.isfinite(self.target)):
            problems.append(f"Limits: target must be a finite number, got {self.target!r}")
        refuse(problems)

    def reached(self, used: Used, objective: Objective) -> str | None:
        """Return which limit was reached, in words; None if there is none."""
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


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

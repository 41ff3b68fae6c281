"""What a simulation gives back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dasktune.graph.plan import SearchPlan
from dasktune.summary import Summary, summarise
from dasktune.trials import Trial, TrialRecord, best_of
from dasktune.types import Direction, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """One thing that happened on a simulated worker.

    Parameters
    ----------
    at
        Virtual seconds since the start.
    kind
        ``started``, ``saved`` or ``ended``.
    worker, attempt
        Where, and which attempt.
    step
        Steps trained so far.
    """

    at: float
    kind: str
    worker: str
    attempt: str
    step: Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """A study that was simulated.

    Attributes
    ----------
    trials
        As a study's.
    events
        What happened on the workers, in order of time.
    seconds
        Virtual time from the start to the last event.
    """

    trials: list[Trial]
    events: list[Happening]
    seconds: float
    plan: SearchPlan
    records: Mapping[int, TrialRecord]
    direction: Direction
    steps_executed: int
    steps_repeated: int
    worker_seconds: float

    @property
    def best_trial(self) -> Trial | None:
        """The trial with the best finite value; None if there is none."""
        return best_of(self.trials, self.direction)

    def summary(self) -> Summary:
        """Return the same figures as a study's, in virtual seconds."""
        best = self.best_trial
        return summarise(
            self.plan,
            self.records,
            steps_executed=self.steps_executed,
            steps_repeated=self.steps_repeated,
            wall_seconds=self.seconds,
            worker_seconds=self.worker_seconds,
            best_value=None if best is None else best.value,
        )

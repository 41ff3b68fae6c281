"""The result of `dasktune.simulate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from dasktune._engine.trials import Trial, TrialRecord, best_of, trial_of
from dasktune._results.summary import Summary, models_of, summarise
from dasktune.algos.forest.ranks import ModelWeight
from dasktune.graph.plan import SearchPlan
from dasktune.simulate.incumbents import Incumbent
from dasktune.types import Direction, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """An event on a simulated worker.

    Parameters
    ----------
    at
        Virtual seconds since the start.
    kind
        ``started``, ``saved``, ``ended`` or ``dropped``.
    worker, attempt
        Names of the worker and of the attempt.
    step
        Steps trained so far.
    """

    at: float
    kind: str
    worker: str
    attempt: str
    step: Step


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """A simulated study.

    Attributes
    ----------
    events
        The events on the workers, in order of time.
    seconds
        Virtual time from the start to the last event, or to the limit.
    limit
        The limit that ended it, in words; None if the tuner ended.
    incumbents
        The best values in order of time: each is better than all values known before, at any
        step of any trial, running jobs included.
    completed
        Virtual times at which trials were reported at their `max_steps`, in order.
    busy_seconds
        Virtual time for which the workers of each class were busy; the class of all is empty
        if they are of one class.
    models
        The models of the tuner's forest with their weights; empty without a forest.
    plan
        The search plan of its trials.
    records
        By trial: its sequences, reports and state, as the engine has them.
    direction
        Whether larger or smaller values are better.
    steps_executed, steps_repeated
        Steps that were trained, repeated ones included; and the repeated ones.
    worker_seconds
        Virtual time for which workers were busy, over all workers.
    """

    events: list[Happening]
    seconds: float
    limit: str | None
    incumbents: list[Incumbent]
    completed: list[float]
    plan: SearchPlan
    records: Mapping[int, TrialRecord]
    direction: Direction
    steps_executed: int
    steps_repeated: int
    worker_seconds: float
    busy_seconds: Mapping[str, float] = field(default_factory=dict)
    models: Sequence[ModelWeight] = ()

    @cached_property
    def trials(self) -> list[Trial]:
        """The trials, as of a study."""
        return [trial_of(self.plan, record) for record in self.records.values()]

    @property
    def best_trial(self) -> Trial | None:
        """The trial with the best finite value, or None."""
        best = best_of(self.records.values(), self.direction)
        return None if best is None else trial_of(self.plan, best)

    def reached(self, target: float) -> Incumbent | None:
        """Return the first incumbent as good as `target`, or None."""
        return next((each for each in self.incumbents if not self._misses(each, target)), None)

    def time_to(self, target: float) -> float | None:
        """Return the virtual seconds until a value as good as `target` was known, or None."""
        incumbent = self.reached(target)
        return None if incumbent is None else incumbent.seconds

    def steps_to(self, target: float) -> int | None:
        """Return the steps trained by all workers until then, or None."""
        incumbent = self.reached(target)
        return None if incumbent is None else incumbent.steps

    def summary(self) -> Summary:
        """Return the same figures as a study's, in virtual seconds."""
        best = self.best_trial
        figures = summarise(
            self.plan,
            self.records,
            steps_executed=self.steps_executed,
            steps_repeated=self.steps_repeated,
            wall_seconds=self.seconds,
            worker_seconds=self.worker_seconds,
            best_value=None if best is None else best.value,
        )
        return {**figures, "models": models_of(self.models)}

    def _misses(self, incumbent: Incumbent, target: float) -> bool:
        return self.direction.better(target, incumbent.value)

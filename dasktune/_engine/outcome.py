"""The outcome of the engine: orders for a runner, and the records to make durable before."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

from dasktune._engine.trials import TrialRecord
from dasktune._engine.tuner_records import NewRecord
from dasktune.algos.curves.curve import Question
from dasktune.algos.forest.priority import PriorityQuestion
from dasktune.errors import refuse
from dasktune.graph.events import RunStage, SavePoint, StopStage
from dasktune.types import Assess, Report, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPrediction:
    """Compute the prediction of a trial beside the training, and tell `Engine.predicted` of it."""

    trial: int
    question: Question

    @property
    def subject(self) -> int:
        """The trial, for `Engine.predicted`."""
        return self.trial

    def __str__(self) -> str:
        return f"trial {self.trial} cannot be predicted"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAssessment:
    """Compute the priority of a model beside the training, and tell `Engine.predicted` of it.

    The number of the model is that in the forest of the tuner's sampler.
    """

    model: int
    question: PriorityQuestion

    @property
    def subject(self) -> Assess:
        """The model, for `Engine.predicted`."""
        return Assess(model=self.model)

    def __str__(self) -> str:
        return f"the priority of model {self.model} cannot be computed"


AskOrder = RunPrediction | RunAssessment
"""One question that is answered beside the training; as text: that it has no answer."""

Order = RunStage | StopStage | SavePoint | AskOrder
"""One order that a runner carries out."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The work for the runner: make `records` and `trials` durable, then carry out `orders`.

    `reports` are those that the tuner received, with the study's numbers of trials; `warnings`
    are sentences for the log. `refusal` is why the run must end once all this is durable.
    """

    orders: tuple[Order, ...]
    records: tuple[NewRecord, ...]
    trials: tuple[TrialRecord, ...]
    reports: tuple[Report, ...] = ()
    warnings: tuple[str, ...] = ()
    refusal: str = ""

    def refuse(self) -> None:
        """Raise a `ConfigurationError` if the run must end."""
        refuse([self.refusal] if self.refusal else ())


def with_save_points(orders: list[Order]) -> list[Order]:
    """Put save-points into the stages that start in the same turn: none can come too late."""
    starting = {order.attempt for order in orders if isinstance(order, RunStage)}
    points: dict[str, set[Step]] = defaultdict(set)
    kept: list[Order] = []
    for order in orders:
        if isinstance(order, SavePoint) and order.attempt in starting:
            points[order.attempt].add(order.step)
        else:
            kept.append(order)
    return [
        replace(order, saves=tuple(sorted({*order.saves, *points[order.attempt]})))
        if isinstance(order, RunStage) and order.attempt in points
        else order
        for order in kept
    ]

"""The ends of trials that `keep` names, as far as workers must know when a stage begins.

A state from which no registered trial goes on is not stored if storing it costs more than training
it again. The last states of a study's best trials are always stored: a worker receives the limit
of the best trials when its stage is sent. Later this limit can only get stricter, so the last state
of each final best trial was stored.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable

from dasktune._driver.retention.value import winners
from dasktune._engine.trials import TrialRecord
from dasktune.graph.events import RunStage
from dasktune.storage.retention import Keep
from dasktune.trainer.check_switch import is_on
from dasktune.types import Direction, Objective, TrialState

SWITCH = "DASKTUNE_OMIT"
"""The environment variable: ``on``, which is the default, or ``off``: every end is stored."""


class KeptEnds:
    """The best trials that have ended, and the values beyond which another one is kept.

    With several objectives, and if all trials are kept, every end is stored.
    """

    def __init__(self, keep: Keep, objective: Objective, trials: Iterable[TrialRecord]) -> None:
        is_open = keep.best is not None and len(objective.metrics) == 1 and is_on(SWITCH)
        self._count = keep.best if is_open else None
        self._keep, self._objective = keep, objective
        self._best: list[tuple[float, int]] = []
        """The loss and the number of each of the best trials, the best first."""
        if is_open:
            self.add(trials)

    def add(self, trials: Iterable[TrialRecord]) -> None:
        """Take trials as they are now; those that may still change do not count."""
        if not self._count:
            return
        ended = (trial for trial in trials if trial.state is TrialState.COMPLETE)
        for trial in winners(ended, self._objective, self._keep):
            (loss,) = self._objective.losses(trial.metrics(self._objective))
            self._best = [entry for entry in self._best if entry[1] != trial.number]
            insort(self._best, (loss, trial.number))
            del self._best[self._count :]

    def omits(self, order: RunStage) -> tuple[str, float, float] | None:
        """Return `StageSpec.omits` of an order; None if its last state must be stored."""
        if self._count is None or not order.is_last or len(self._best) < self._count:
            return None
        (metric,), (direction,) = self._objective.metrics, self._objective.directions
        if not self._best:
            return metric, -math.inf, math.inf
        loss, number = self._best[-1]
        # Of equal trials the first one is the better.
        if min(order.node.requests, default=0) < number:
            loss = math.nextafter(loss, math.inf)
        if direction is Direction.MAXIMIZE:
            return metric, -math.inf, -loss
        return metric, loss, math.inf

"""A large study as a driver leaves it, written in the time of a simulation.

The real engine runs on simulated workers; a study's own recorder writes what a run on a cluster
would have written. No states are stored.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulated import runner_of
from trainers import Nothing

import dasktune as dt
from dasktune._engine.engine import Engine
from dasktune._engine.outcome import Outcome
from dasktune.algos.base import Tuner
from dasktune.graph.events import Event, RunStage, Saved, TrainingEnded
from dasktune.simulate.jobs import Mishaps
from dasktune.types import Step

TOGETHER = 500
"""Events whose records are written together: a run writes what 0.1 s bring."""


def open_study(folder: Path) -> dt.Study:
    """Return the study in a folder, as a user's script would open it."""
    return dt.create_study(
        Nothing,
        name="large",
        storage=folder / "store",
        metric="value",
        direction="minimize",
        load_if_exists=True,
    )


def write_study(folder: Path, tuner: Tuner, *, report_every: Step, workers: int) -> None:
    """Run a study to its end on simulated workers."""
    study = open_study(folder)
    engine = _Recorded(study)
    runner_of(
        engine,
        lambda sequences, kind: 1.0,
        workers,
        curve=_loss,
        mishaps=Mishaps(straggling=0.5, drop=0.0, seed=0),
        report_every=report_every,
    ).run(tuner)
    engine.flush()
    study.close()


def _loss(values: Mapping[str, Any], step: Step) -> float:
    """Return a metric that falls, from what a trial's hyper-parameters are."""
    return 9973 * sum(map(float, values.values())) % 1 + 1 / step


class _Recorded:
    """An engine whose outcomes are written as a runner does."""

    def __init__(self, study: dt.Study) -> None:
        self.engine: Engine = study._optimizer.engine()
        self._recorder = study.parts.memory.recorder()
        self._events = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def begin(self, tuner: Tuner, **options: Any) -> Outcome:
        return self._written(self.engine.begin(tuner, **options))

    def ask(self, capacity: int, now: float) -> Outcome:
        return self._written(self.engine.ask(capacity, now))

    def handle(self, event: Event, now: float) -> Outcome:
        match event:
            case Saved():
                node = self.engine.view.attempts[event.attempt].leaf
                reports = [(step, node.key_at(step), report) for step, report in event.reports]
                self._recorder.metrics(node, reports)
            case TrainingEnded():
                self._recorder.ended(
                    event.attempt, time.time(), status=event.status, step=event.step, repeated=0
                )
                self._recorder.settled(event.attempt)
        return self._written(self.engine.handle(event, now))

    def flush(self) -> None:
        """Write what was gathered."""
        self._recorder.flush()

    def _written(self, outcome: Outcome) -> Outcome:
        self._recorder.outcome(outcome)
        self._events += 1
        if self._events % TOGETHER == 0:
            self.flush()
        for order in outcome.orders:
            if isinstance(order, RunStage):
                self._recorder.launched(order, order.node.key_at(order.stop))
                self._recorder.started(order.attempt, time.time())
        return outcome

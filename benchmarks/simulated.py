"""Simulated runs of the real engine, in which a benchmark decides about workers and dispatcher."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dasktune._engine.engine import Engine
from dasktune._engine.limits import Limits
from dasktune.graph.attempts import DispatchOptions
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.keys import root_key
from dasktune.graph.save_policy import SavePolicy
from dasktune.simulate.jobs import Mishaps
from dasktune.simulate.runner import Conditions, SimulatedRunner
from dasktune.traces.timing import EvenPace
from dasktune.types import Objective, Sequences

StepSeconds = Callable[[Sequences, str], float]
"""Gives the seconds of a step of a trial on a class of workers."""


def engine_of(
    name: str, kind: type[Dispatcher] = Dispatcher, *, prefix: str = "a", **parts: Any
) -> Engine:
    """Return the engine of a study without trials, whose dispatcher is of a kind."""
    options = DispatchOptions(saves=SavePolicy(at_changes=False), attempt_prefix=prefix)
    dispatcher = kind(root_key(name, 0), options, **parts)
    return Engine(dispatcher, objective=Objective.single("value", "minimize"), trials={})


def runner_of(
    engine: Any, step_seconds: StepSeconds, workers: int | Mapping[str, int], **conditions: Any
) -> SimulatedRunner:
    """Return a runner of simulated workers, without mishaps if `conditions` have none."""

    def pace(sequences: Sequences, start: int, stop: int, kind: str) -> EvenPace:
        return EvenPace(step_seconds(sequences, kind))

    given = {"curve": lambda values, step: 1 / step, "mishaps": Mishaps(), **conditions}
    return SimulatedRunner(engine, Conditions(pace=pace, **given), workers=workers, limits=Limits())

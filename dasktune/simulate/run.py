"""The function `simulate`: a tuner on a virtual clock, with curves in place of training."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from functools import partial

from dasktune._engine.engine import Engine
from dasktune._engine.limits import Limits
from dasktune._engine.scaling import Scale
from dasktune._numbers import real_of, whole_of
from dasktune.algos.base import Tuner, max_steps_problem
from dasktune.algos.curves.curve import Prediction, Question
from dasktune.errors import ConfigurationError, refuse, shown
from dasktune.graph.attempts import LOOKAHEAD_SECONDS, DispatchOptions
from dasktune.graph.devices import devices_at, values_at
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.keys import root_key
from dasktune.graph.speeds import Speeds
from dasktune.needs import (
    NO_NEEDS,
    Amounts,
    GivenNeeds,
    Needs,
    NeedsFunction,
    needs_from,
    needs_problems,
)
from dasktune.simulate.jobs import Mishaps
from dasktune.simulate.pool import (
    StagePace,
    StepSeconds,
    Values,
    at_speeds,
    call_problems,
    offer_problems,
    pool_problems,
    scale_problems,
    speed_problems,
    step_seconds,
)
from dasktune.simulate.result import Simulation
from dasktune.simulate.runner import Conditions, SimulatedRunner
from dasktune.simulate.shared_pace import Together, together_problems
from dasktune.space import contradictions
from dasktune.traces.classes import pool_on
from dasktune.traces.timing import EvenPace, Overheads
from dasktune.traces.trace import Trace
from dasktune.types import Direction, Objective, Sequences, Step, Value

Curves = Callable[[Values, Step], float] | Trace | str | os.PathLike[str]
"""The curves in place of training: a function, or a trace, or its file.

A function gets the hyper-parameters at the last of `step` steps, and `step`.
"""


def simulate(
    tuner: Tuner,
    curves: Curves,
    *,
    workers: int | Mapping[str, int] = 1,
    offers: Mapping[str, Amounts] | None = None,
    needs: GivenNeeds | NeedsFunction | None = None,
    together: Together | None = None,
    scale: Scale | None = None,
    metric: str | None = None,
    direction: str | Direction | None = None,
    seconds_per_step: float | StepSeconds | None = None,
    speeds: Mapping[str, float] | None = None,
    report_every: Step = 1,
    merge: bool = True,
    resume: bool = True,
    straggling: float = 0.0,
    drop: float = 0.0,
    seed: int = 0,
    limits: Limits | None = None,
    prediction_seconds: float = 0.0,
    answer: Callable[[Question], Prediction] = Question.answer,
) -> Simulation:
    """Run a tuner without training, on a virtual clock.

    The engine of live runs decides; only the workers are simulated. Equal arguments give equal
    simulations.

    Parameters
    ----------
    tuner
        The tuner to run.
    curves
        ``f(values, step) -> float``: the metric after `step` steps, given the
        hyper-parameters at the last of them. Or a `Trace` or the path of one, for tuners on
        its `Trace.space`.
    workers
        Number of simulated workers, or the numbers of workers by the name of their class:
        ``{"fast": 2, "slow": 4}``. On a trace with several classes, whose times count, these
        must be classes of the trace.
    offers
        The amounts and tags that the workers of a class have, by class:
        ``{"fast": {"GPU": 1, "tags": ["a100"]}}``. Classes that are left out have none.
    needs
        As for `dasktune.create_study`: amounts and tags, alternatives of these, or a function
        of the hyper-parameters at step 0.
    together
        Simulates devices on which several trials may train together: the steps a second of a
        device with 1, 2, 3, ... of them, as multiples of those of one alone, such as
        ``(1.0, 1.7, 2.1)``; or this by class. Then `workers` counts devices. How many train
        together is learned as in live runs; memory is never full.
    scale
        As for `dasktune.create_study`: trials may be trained on several workers at once. It must
        come with a `seconds_per_step` that has a parameter `devices`.
    metric, direction
        As for `dasktune.create_study`. None takes those of the trace, or its only metric; else
        ``value`` and ``minimize``.
    seconds_per_step
        Expected virtual seconds of a step, or a function of the hyper-parameters at the first
        step of a stage. The function also gets the name of the worker's class if it needs a
        second argument or has a parameter `kind`: ``lambda values, kind: ...``; and the number
        of devices that train the stage together if it has a parameter `devices`. None takes the
        measured times of a trace, overheads included, or 1.
    speeds
        Speeds by class: on a class with a speed of 0.25, each step takes 4 times these seconds.
        Classes that are left out have the speed 1.
    report_every
        The metric is measured after every so many steps, and where a state is saved.
    merge
        Whether trials share the steps that they have in common.
    resume
        Whether stages start from saved states. False simulates tools without checkpoints: a
        trial that continues after a pause, or on another worker, is trained again from
        step 0.
    straggling
        Standard deviation of z, drawn for every stage: it takes ``1 + |z|`` times its expected
        time.
    drop
        Probability that a stage is dropped in any second of its expected time. Its worker is
        free at once, and the stage is repeated from its last saved state or, without `resume`,
        from step 0. Drops never count as failures of a trial.
    seed
        Seed of stragglers and drops; the tuner has its own seed.
    limits
        Ends the run at the moment a limit is reached: the complete steps of running stages
        count and are saved, and the tuner gets no more events.
    prediction_seconds
        Virtual seconds that a prediction takes; training goes on meanwhile.
    answer
        Computes a prediction; give your own to reuse those of earlier simulations.

    Raises
    ------
    ConfigurationError
        If arguments are invalid, or a trace is shorter than the trials: all problems at once.
        During the run, if a stage is practically always dropped without a limit on time, or a
        tuner such as PBT changes the configuration of a trial on a trace.
    ClusterError
        If no worker meets the needs of all stages, or of a trial that the tuner begins at once.
        For a later trial: when only trials with such needs are left.
    StorageError
        If the trace's file cannot be read.

    Examples
    --------
    >>> import dasktune as dt
    >>> tuner = dt.algos.Grid(dt.Space(lr=[0.1, 0.2]), max_steps=10)
    >>> found = dt.simulate(tuner, lambda values, step: values["lr"] / step, workers=2)
    >>> found.seconds, found.best_trial.params
    (10.0, {'lr': 0.1})
    >>> found.time_to(0.02), found.steps_to(0.02)
    (5.0, 10)

    At most 10 worker seconds:

    >>> tuner = dt.algos.Grid(dt.Space(lr=[0.1, 0.2]), max_steps=10)
    >>> limits = Limits(worker_seconds=10)
    >>> found = dt.simulate(
    ...     tuner, lambda values, step: values["lr"] / step, workers=2, limits=limits
    ... )
    >>> found.seconds, found.limit
    (5.0, '10 worker seconds were used')

    Workers of two classes:

    >>> tuner = dt.algos.Grid(dt.Space(lr=[0.1, 0.2]), max_steps=10)
    >>> found = dt.simulate(
    ...     tuner,
    ...     lambda values, step: values["lr"] / step,
    ...     workers={"fast": 1, "slow": 1},
    ...     seconds_per_step=lambda values, kind: 1.0 if kind == "fast" else 1.5,
    ... )
    >>> found.seconds, found.busy_seconds
    (13.5, {'fast': 13.0, 'slow': 10.5})

    One device that trains 1.8 times as many steps a second with two trials together:

    >>> tuner = dt.algos.Grid(dt.Space(lr=[0.1 * n for n in range(1, 101)]), max_steps=10)
    >>> curve = lambda values, step: values["lr"] / step
    >>> dt.simulate(tuner, curve).seconds
    1000.0
    >>> again = dt.algos.Grid(dt.Space(lr=[0.1 * n for n in range(1, 101)]), max_steps=10)
    >>> dt.simulate(again, curve, together=(1.0, 1.8, 1.8)).seconds < 650
    True

    The last trials on up to 4 workers together, which train 3.2 times as fast as one:

    >>> seconds = {1: 1.0, 2: 0.55, 4: 0.31}
    >>> space = dt.Space(lr=dt.Float(0.0, 1.0))
    >>> tuner = dt.algos.SHA(space, trials=4, max_steps=16, min_steps=4)
    >>> found = dt.simulate(
    ...     tuner,
    ...     lambda values, step: values["lr"] / step,
    ...     workers=4,
    ...     scale=dt.Scale(max=4),
    ...     seconds_per_step=lambda values, devices: seconds[devices],
    ... )
    >>> found.seconds, found.best_trial.devices
    (7.72, ((0, 1), (4, 4)))

    References
    ----------
    Li et al., "A System for Massively Parallel Hyperparameter Tuning", appendix A.1
    (stragglers and drops; its jobs are those of ``merge=False, resume=False``). Rasley et
    al., "HyperDrive", section 7 (recorded curves).
    """
    if isinstance(curves, str | os.PathLike):
        curves = Trace.load(curves)
    objective = objective_on(curves, metric, direction)
    refuse(
        [
            *_problems(curves, workers, seconds_per_step, report_every, limits),
            *_mishap_problems(straggling, drop, seed),
            *_delay_problems(prediction_seconds),
            *_trace_problems(curves, tuner),
            *_class_problems(curves, workers, seconds_per_step),
            *offer_problems(offers, workers),
            *speed_problems(speeds, workers),
            *together_problems(together, workers),
            *scale_problems(scale, seconds_per_step),
            *_trace_time_problems(curves, together, seconds_per_step),
            *([] if callable(needs) else needs_problems(needs)),
        ]
    )
    conditions = Conditions(
        curve=curves.curve(objective.metrics[0]) if isinstance(curves, Trace) else curves,
        pace=at_speeds(_pace(seconds_per_step, curves), speeds or {}),
        overheads=_overheads(seconds_per_step, curves),
        mishaps=Mishaps(straggling=real_of(straggling), drop=real_of(drop), seed=int(seed)),
        report_every=int(report_every),
        resume=resume,
        check=curves.check if isinstance(curves, Trace) else lambda sequences: None,
        # The next devices are chosen by how fast a stage is that has not ended yet.
        tells_progress=None if scale is None else True,
        prediction_seconds=real_of(prediction_seconds),
        answer=answer,
    )
    # If reports take time, the next stage is chosen before the report, as in live runs.
    lookahead = LOOKAHEAD_SECONDS if conditions.overheads.report else 0.0
    options = DispatchOptions(
        merge=merge,
        lookahead_seconds=lookahead,
        load_seconds=conditions.overheads.load,
        needs=NO_NEEDS if callable(needs) else Needs.of(needs),
    )
    if tuner.searched_space is not None:
        refuse(contradictions(tuner.searched_space, options.needs))
    engine = Engine(
        Dispatcher(root_key("simulated", 0), options, speeds=Speeds(_known(curves))),
        objective=objective,
        trials={},
        needs_of=partial(needs_from, needs) if callable(needs) else None,
        scale=scale,
    )
    runner = SimulatedRunner(
        engine,
        conditions,
        workers=workers,
        limits=limits or Limits(),
        offers=offers,
        together=together,
    )
    runner.run(tuner)
    return _result(runner)


def objective_on(
    curves: object, metric: str | None, direction: str | Direction | None
) -> Objective:
    """Return the objective on curves: as given, or that of the trace, or ``value``."""
    if isinstance(curves, Trace):
        return curves.objective(metric, direction)
    return Objective.single(metric or "value", direction or Direction.MINIMIZE)


def _result(runner: SimulatedRunner) -> Simulation:
    engine = runner.engine
    plan = engine.view.plan
    return Simulation(
        events=runner.happenings,
        seconds=runner.now,
        limit=runner.limit,
        incumbents=runner.incumbents.in_order(),
        completed=runner.completed,
        plan=plan,
        records=engine.trials,
        direction=engine.objective.directions[0],
        steps_executed=runner.budget.steps,
        steps_repeated=engine.view.steps_repeated + runner.steps_again,
        worker_seconds=runner.budget.worker_seconds,
        busy_seconds=runner.busy_seconds,
        models=engine.model_weights,
    )


def _pace(given: float | StepSeconds | None, curves: object) -> StagePace:
    """Return a function that gives a stage's pace from sequences, start, stop and class."""
    if given is None and isinstance(curves, Trace):
        return lambda sequences, start, stop, kind: curves.pace(sequences, stop, kind)
    if callable(given):
        seconds = step_seconds(given)
        return lambda sequences, start, stop, kind: EvenPace(
            _checked(seconds(values_at(sequences, start), kind, devices_at(sequences, start)))
        )
    even = EvenPace(1.0 if given is None else real_of(given))
    return lambda sequences, start, stop, kind: even


def _checked(seconds: object) -> float:
    if 0 <= (number := real_of(seconds)) < math.inf:
        return number
    raise ConfigurationError(f"seconds_per_step must return a number >= 0, got {shown(seconds)}")


def _known(curves: object) -> Callable[[Sequences, Step], Mapping[str, Value]] | None:
    """Return the function that gives the hyper-parameters of a trace at a step, if any."""
    return curves.hyper_parameters if isinstance(curves, Trace) else None


def _overheads(given: object, curves: object) -> Overheads:
    """Return the overheads of a trace, if its own times count."""
    return curves.overheads if given is None and isinstance(curves, Trace) else Overheads()


def _problems(
    curves: object, workers: object, seconds: object, report_every: object, limits: object
) -> list[str]:
    problems = pool_problems(workers)
    if not callable(curves) and not isinstance(curves, Trace):
        problems.append(
            f"curves must be a function of (values, step), a Trace or its path, got {curves!r}"
        )
    is_time = 0 <= real_of(seconds) < math.inf
    if not is_time and not callable(seconds) and seconds is not None:
        problems.append(f"seconds_per_step must be >= 0 or a function, got {seconds!r}")
    if callable(seconds):
        problems += call_problems(seconds)
    if whole_of(report_every) is None:
        problems.append(f"report_every must be an int >= 1, got {report_every!r}")
    if limits is not None and not isinstance(limits, Limits):
        problems.append(f"limits must be dasktune.Limits, got {limits!r}")
    return problems


def _mishap_problems(straggling: object, drop: object, seed: object) -> list[str]:
    problems = []
    if not 0 <= real_of(straggling) < math.inf:
        problems.append(f"straggling must be a number >= 0, got {straggling!r}")
    if not 0 <= real_of(drop) < 1:
        problems.append(f"drop must be a probability >= 0 and < 1, got {drop!r}")
    if whole_of(seed, least=0, most=None) is None:
        problems.append(f"seed must be an int >= 0, got {seed!r}")
    return problems


def _delay_problems(seconds: object) -> list[str]:
    if 0 <= real_of(seconds) < math.inf:
        return []
    return [f"prediction_seconds must be a number >= 0, got {seconds!r}"]


def _trace_problems(curves: object, tuner: Tuner) -> list[str]:
    if not isinstance(tuner, Tuner):
        return [f"tuner must be one of dasktune.algos, got {shown(tuner)}"]
    if (problem := max_steps_problem(tuner)) is not None:
        return [problem]
    if isinstance(curves, Trace) and tuner.max_steps > curves.steps:
        return [f"max_steps must be <= {curves.steps}, the trace's steps, got {tuner.max_steps}"]
    return []


def _class_problems(curves: object, workers: object, seconds: object) -> list[str]:
    """Return the classes of workers for which a trace, whose seconds count, has no seconds."""
    if seconds is None and isinstance(curves, Trace):
        return pool_on(curves.classes, workers)
    return []


def _trace_time_problems(curves: object, together: object, seconds: object) -> list[str]:
    if together is not None and isinstance(curves, Trace) and seconds is None:
        return ["together must come with seconds_per_step: a trace's times are of trials alone"]
    return []

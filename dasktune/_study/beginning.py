"""The beginning of a run: a tuner's place, engine and inputs, its meter, and the workers' plan."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from uuid import uuid4

from dasktune._driver.history import TunerPlace
from dasktune._driver.refused_resumes import AloneRule
from dasktune._driver.run import inputs_of, seen_by_workers
from dasktune._driver.speed_keeper import SpeedKeeper
from dasktune._driver.transfer import given_trials
from dasktune._engine.engine import Engine
from dasktune._engine.limits import Meter, Used
from dasktune._engine.timeouts import Timeouts
from dasktune._study.additions import queued_points
from dasktune._study.memory import StudyMemory
from dasktune._study.parts import StudyParts
from dasktune._study.run_options import RunOptions
from dasktune._worker.job import JobPlan, this_process
from dasktune.algos.base import Tuner
from dasktune.graph.kept_speeds import NOTHING_KEPT, KeptMeasurements
from dasktune.trainer.code import pack
from dasktune.trainer.fingerprint.read_files import code_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """A run that begins: its name, its tuner's place, what it may use, and what it knows."""

    run: str
    place: TunerPlace
    meter: Meter
    keeper: SpeedKeeper
    kept: KeptMeasurements = NOTHING_KEPT


def place_in(memory: StudyMemory, tuner: Tuner) -> TunerPlace:
    """Return the place of a tuner, with a copy of it: the caller's stays as it is."""
    return memory.history.place_of(copy.deepcopy(tuner))


def new_run(parts: StudyParts, options: RunOptions, place: TunerPlace) -> Beginning:
    """Return a new run of a tuner, which has used nothing yet."""
    results, run = parts.results, f"{parts.name}-{uuid4().hex[:8]}"
    limits, waits = options.limits, options.timeouts.waits

    def note(used: Used) -> None:
        results.history.note(
            "run",
            run=run,
            place=place.number,
            wall_seconds=used.seconds,
            worker_seconds=used.worker_seconds,
            steps=used.steps,
            proof_seconds=used.proof_seconds,
        )

    before = results.used(place.number, with_best=limits.target is not None)
    meter = Meter(limits, results.objective, before, note, save_seconds=waits.save_seconds)
    keeper = SpeedKeeper(results.database, results.row.spec["fingerprint"])
    return Beginning(run=run, place=place, meter=meter, keeper=keeper)


def take_over(memory: StudyMemory, tuner: Tuner, beginning: Beginning) -> Beginning:
    """Begin a run: from now on, an earlier driver that still runs elsewhere cannot write."""
    place, kept = beginning.place, beginning.keeper.recall()
    while not memory.history.begin(beginning.run, place.number, kept):
        memory.catch_up()
        place = place_in(memory, tuner)
    return replace(beginning, place=place, kept=kept)


def engine_of(parts: StudyParts, alone: AloneRule) -> Engine:
    """Return a new engine of a study; from now on the trials of a rule are trained alone."""
    memory, config = parts.memory, parts.config
    return Engine(
        memory.dispatcher(),
        objective=parts.results.objective,
        trials=memory.records,
        fails_on_nan=config.on_nan == "fail",
        trains_alone=alone.is_all,
        lone_lineages=alone.lineages,
        needs_of=config.needs_of(),
        devices_of=config.devices_of(),
        scale=config.scale,
    )


def inputs_in(parts: StudyParts, tuner: Tuner, transfer: str | None = None) -> dict[str, object]:
    """Return the inputs that a tuner begins with in a study."""
    memory = parts.memory
    given = () if transfer is None else given_trials(memory.database, memory.row, tuner)
    queued = queued_points(memory.history)
    return inputs_of(tuner, parts.results.objective, memory.records.values(), queued, given)


def job_plan(
    parts: StudyParts, run: str, timeouts: Timeouts, *, is_compared: bool, proves: bool = True
) -> JobPlan:
    """Return the plan that workers get at the beginning of a run.

    With `is_compared` they compare the fingerprint of their code with the study's; `proves` says
    whether resumes prove themselves.
    """
    config, memory = parts.config, parts.memory
    options, code = memory.options, pack(config.known_trainer)
    # After packing: a cell may have run since the beginning of the run.
    parts.code.refuse_change()
    return JobPlan(
        run=run,
        code=code,
        config=dict(config.config or {}),
        seed=parts.results.seed,
        store=seen_by_workers(memory.store.url),
        report_every=config.report_every,
        needs=options.needs,
        needs_process=getattr(config.known_trainer, "requires_process", False),
        saves_by_time=options.saves.every is None,
        proves=proves,
        is_apart=not options.merge,
        is_exact=config.reuse == "exact",
        step_seconds=timeouts.step_seconds,
        driver=this_process(),
        fingerprint=memory.row.spec["fingerprint"] if is_compared or config.read_files else "",
        code_folder=code_folder(config.known_trainer),
    )

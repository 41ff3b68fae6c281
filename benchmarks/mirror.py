"""The cost of mirroring a study to Optuna: of the driver, and of the whole run, with SQLite."""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from figures import Figure, main
from trainers import compute, loops_for

from dasktune.engine.trials import TrialRecord
from dasktune.mirror import Mirror, optuna_study
from dasktune.space import Float, Int, Space
from dasktune.types import Objective, TrialState

TRIALS, REPORTS = 1_000, 100
SHORT_TRIALS, SHORT_REPORTS = 20, 20
WORKERS = 2
STEP_SECONDS = 0.001
MESSAGE = 10
"""Reports in one message of a worker."""

ROUNDS = 2
SHARE = 1.05
LOSS = Objective.single("loss", "minimize")
SPACE = Space(
    lr=Float(1e-4, 1.0, log=True),
    momentum=Float(0.0, 1.0),
    batch=Int(16, 256),
    kind=["sgd", "adam"],
)


@dataclass(frozen=True, slots=True)
class Ran:
    """One run: seconds in all, and of these in `update` and `close`; CPU of driver and workers."""

    seconds: float
    updating: float
    closing: float
    writing: float
    updates: int
    cpu: float
    worker_cpu: float


def measure(short: bool) -> list[Figure]:
    """Train without, with and without a mirror, on processes that compute; then only write."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    trials, reports = (SHORT_TRIALS, SHORT_REPORTS) if short else (TRIALS, REPORTS)
    loops = loops_for(STEP_SECONDS)
    rounds = [_round(trials, reports, loops) for _ in range(1 if short else ROUNDS)]
    before, last, after = rounds[-1]
    size = f"{trials:,} trials x {reports} reports"
    walls = [[ran.seconds for ran in each] for each in rounds]
    return [
        _ratio(
            f"wall time with a mirror over that without, {size}",
            walls,
            f"{WORKERS} workers compute {STEP_SECONDS * 1e3:g} ms a step; "
            "opening and closing included; "
            f"{last.seconds:.0f} s between {before.seconds:.0f} and {after.seconds:.0f} s",
        ),
        _ratio(
            "CPU time of driver and workers, the same",
            [[ran.cpu + ran.worker_cpu for ran in each] for each in rounds],
            f"the driver's {last.cpu:.2f} s between {before.cpu:.2f} and {after.cpu:.2f} s",
        ),
        Figure(
            name="wall time of two runs without a mirror, one over the other",
            value=max(max(wall[0], wall[2]) / min(wall[0], wall[2]) for wall in walls),
            unit="x",
            note="what other programs on this machine do: the ratios above are no finer",
        ),
        Figure(
            name="driver's time to hand in a message of reports",
            value=last.updating / last.updates * 1e6,
            unit="us",
            note=f"{last.updates:,} messages of {MESSAGE} reports, while the thread writes",
        ),
        Figure(name="time to close the mirror", value=last.closing, unit="s"),
        Figure(
            name="time the thread wrote",
            value=last.writing,
            unit="s",
            note="as it came, while the workers computed",
        ),
        *_only_writing(trials, reports),
    ]


def _round(trials: int, reports: int, loops: int) -> tuple[Ran, Ran, Ran]:
    """Return a run with a mirror between two without."""
    return (
        _run(trials, reports, loops, is_mirrored=False),
        _run(trials, reports, loops),
        _run(trials, reports, loops, is_mirrored=False),
    )


def _ratio(name: str, rounds: list[list[float]], note: str) -> Figure:
    """Return the median over rounds of the middle one over the mean of the two beside it."""
    ratios = [2 * mirrored / (before + after) for before, mirrored, after in rounds]
    every = ", ".join(f"{ratio:.3f}" for ratio in ratios)
    value = statistics.median(ratios)
    return Figure(name=name, value=value, unit="x", at_most=SHARE, note=f"{note}; each {every}")


def _run(trials: int, reports: int, loops: int, *, is_mirrored: bool = True) -> Ran:
    """Train on processes; hand what they report to a mirror, if there is one."""
    context = multiprocessing.get_context("spawn")
    messages: SimpleQueue[Any] = context.SimpleQueue()
    start = context.Barrier(WORKERS + 1)
    workers = [
        context.Process(
            target=_work, args=(messages, start, range(each, trials, WORKERS), reports, loops)
        )
        for each in range(WORKERS)
    ]
    records = [_record(number, reports) for number in range(trials)]
    for worker in workers:
        worker.start()
    start.wait()
    with tempfile.TemporaryDirectory() as folder:
        began, cpu = time.perf_counter(), time.process_time()
        mirror = Mirror(Path(folder) / "mirror.db", "study", LOSS) if is_mirrored else None
        if mirror is not None:
            mirror.update((record, {}) for record in records)
        updating, updates = 0.0, 0
        worker_cpu, left = 0.0, WORKERS
        while left:
            number, news = messages.get()
            if number is None:
                worker_cpu, left = worker_cpu + news, left - 1
                continue
            losses: dict[int, dict[str, float]] = news
            record, step = records[number], max(losses)
            if step == reports:
                record.state, record.steps = TrialState.COMPLETE, step
                record.values = (losses[step]["loss"],)
            if mirror is not None:
                before = time.perf_counter()
                mirror.update([(record, losses)])
                updating += time.perf_counter() - before
                updates += 1
        ended = time.perf_counter()
        if mirror is not None:
            mirror.close()
            if mirror.is_broken:
                raise RuntimeError("the mirror must not fail")
        done = time.perf_counter()
        cpu = time.process_time() - cpu
    for worker in workers:
        worker.join()
    writing = 0.0 if mirror is None else mirror.seconds
    return Ran(done - began, updating, done - ended, writing, updates, cpu, worker_cpu)


def _work(messages: SimpleQueue[Any], start: Any, trials: range, reports: int, loops: int) -> None:
    """Compute every step of some trials, and report in messages, as a worker does."""
    start.wait()
    began = time.process_time()
    for number in trials:
        losses = {}
        for step in range(1, reports + 1):
            compute(loops)
            losses[step] = {"loss": 1 / step}
            if len(losses) == MESSAGE or step == reports:
                messages.put((number, losses))
                losses = {}
    messages.put((None, time.process_time() - began))


def _record(number: int, reports: int) -> TrialRecord:
    configuration = SPACE.sample(np.random.default_rng(number))
    return TrialRecord(
        number=number,
        tuner=0,
        local=number,
        params=configuration.params,
        sequences=configuration.sequences,
        max_steps=reports,
        state=TrialState.RUNNING,
        until=reports,
        point=configuration.point,
        domains=configuration.domains,
    )


def _only_writing(trials: int, reports: int) -> list[Figure]:
    """Return the cost of a report that is written at the end, here and by Optuna itself."""
    losses = {step: {"loss": 1 / step} for step in range(1, reports + 1)}
    seen = []
    for number in range(trials):
        record = _record(number, reports)
        record.state, record.steps, record.values = TrialState.COMPLETE, reports, (1 / reports,)
        seen.append((record, losses))
    with tempfile.TemporaryDirectory() as folder:
        mirror = Mirror(Path(folder) / "mirror.db", "study", LOSS, interval=1e6)
        began = time.process_time()
        mirror.update(seen)
        mirror.close()
        ours = (time.process_time() - began) / trials
        few = optuna_study("study", LOSS, seen[:10]).trials
        storage = optuna.storages.RDBStorage(f"sqlite:///{folder}/optuna.db")
        study = optuna.create_study(storage=storage)
        began = time.process_time()
        study.add_trials(few)
        by_optuna = (time.process_time() - began) / len(few)
        storage.engine.dispose()
    name = f"CPU time of writing a trial of {reports} reports"
    return [
        Figure(
            name=name,
            value=ours * 1e3,
            unit="ms",
            note=f"{trials:,}, which took {mirror.seconds:.2f} s",
        ),
        Figure(
            name=f"{name}, Optuna's own way", value=by_optuna * 1e3, unit="ms", note="add_trial"
        ),
    ]


if __name__ == "__main__":
    sys.exit(main("mirror", measure))

"""The cost of decisions: ASHA's per trial, POP's per boundary, MedianStopping's per event.

For MedianStopping, a whole simulation (tuner, engine and dispatcher) runs next to one of random
search. An event is a start, a save or an end of a stage on a worker; reports do not count.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable

import numpy as np
from figures import Figure, main

import dasktune as dt
from dasktune.types import Decision, Extend, Now, Report

FEW, MANY = 100, 10_000
SHORT_MANY = 1_000
REPEATS = 7
GROWTH, MEMORY = 2.0, 1024
POP_ROUNDS, POP_MS = 8, 50.0
MAX_STEPS = 256
STOPPING_STEPS, STOPPING_WORKERS, STOPPING = 100, 8, 2.0
"""Steps and workers of MedianStopping's trials, and its bound over random search."""

SPACE = dt.Space(
    lr=dt.Float(1e-4, 1.0, log=True),
    momentum=dt.Float(0.0, 1.0),
    batch_size=dt.Int(16, 256),
    optimizer=["sgd", "adam"],
)
"""Four hyper-parameters of the usual kinds."""

OPTIONS = dt.Space(one=dt.Choice(range(1_000)))
"""One of a thousand, as the space of recorded curves is."""

Tell = Callable[[Report], list[Decision]]


def measure(short: bool) -> list[Figure]:
    """Report trials in random order, with random losses; draw trials of two spaces."""
    many, repeats = (SHORT_MANY, 3) if short else (MANY, REPEATS)
    pairs = [
        (_per_report(FEW, many // FEW, seed), _per_report(many, 1, seed)) for seed in range(repeats)
    ]
    few, much = (statistics.median(costs) for costs in zip(*pairs, strict=True))
    return [
        Figure(
            name=f"time of a report, {FEW:,} trials",
            value=few,
            unit="us",
            note=f"ASHA, brackets 0, 1 and 2, R {MAX_STEPS}; median of {repeats}",
        ),
        Figure(
            name=f"time of a report, {many:,} trials",
            value=much,
            unit="us",
            note=f"{1e6 / much:,.0f} reports a second on one core",
        ),
        Figure(
            name=f"time of a report, {many:,} trials over {FEW:,}",
            value=statistics.median(second / first for first, second in pairs),
            unit="x",
            at_most=GROWTH,
            note=f"median of {repeats} ratios of runs next to each other",
        ),
        _memory(many),
        _per_boundary(FEW, 1 if short else POP_ROUNDS),
        _median_stopping(1 if short else repeats),
        _per_trial("four hyper-parameters", SPACE, many, repeats),
        _per_trial("one of 1,000 options", OPTIONS, FEW if short else SHORT_MANY, 3),
    ]


def _tuner(space: dt.Space, trials: int) -> dt.algos.ASHA:
    return dt.algos.ASHA(space, trials=trials, max_steps=MAX_STEPS)


def _per_report(trials: int, studies: int, seed: int) -> float:
    """Return the mean microseconds of a report in `studies` of so many trials."""
    spent: list[float] = []
    for number in range(studies):
        tuner = _tuner(SPACE, trials)
        jobs = _extends(tuner.ask(1))

        def timed(report: Report, tuner: dt.algos.ASHA = tuner) -> list[Decision]:
            began = time.perf_counter()
            decisions = tuner.tell(report)
            spent.append(time.perf_counter() - began)
            return decisions

        gc.collect()
        report_all(jobs, timed, seed=(seed, number))
    return statistics.mean(spent) * 1e6


def report_all(jobs: list[Extend], tell: Tell, *, seed: tuple[int, ...]) -> int:
    """Report jobs in random order until none follows; return how many there were."""
    rng = np.random.default_rng(seed)
    reported = 0
    while jobs:
        at = int(rng.integers(len(jobs)))
        jobs[at], jobs[-1] = jobs[-1], jobs[at]
        job, loss = jobs.pop(), float(rng.random())
        report = Report(trial=job.trial, step=job.until, metrics={"loss": loss}, losses=(loss,))
        jobs += _extends(tell(report))
        reported += 1
    return reported


def _extends(decisions: list[Decision]) -> list[Extend]:
    return [decision for decision in decisions if isinstance(decision, Extend)]


def _memory(trials: int) -> Figure:
    """Return the memory that a tuner keeps for a report."""
    tuner = _tuner(SPACE, trials)
    jobs = _extends(tuner.ask(1))
    gc.collect()
    tracemalloc.start()
    reported = report_all(jobs, tuner.tell, seed=(0,))
    gc.collect()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return Figure(
        name=f"memory kept of a report, {trials:,} trials",
        value=kept / reported,
        unit="bytes",
        at_most=MEMORY,
        note=f"{reported:,} reports",
    )


def _per_boundary(trials: int, rounds: int) -> Figure:
    """Return the driver's work at a boundary of POP: all but the prediction itself."""
    tuner = dt.algos.POP(
        SPACE,
        target=0.9,
        within="8h",
        trials=trials,
        max_steps=100,
        every=10,
        bounds=(0, 1),
        least=0.0,
    )
    tuner.prepare({"directions": ["maximize"]})
    tuner.ask(8)
    rng = np.random.default_rng(0)
    rates = rng.uniform(0.005, 0.02, trials)
    spent = []
    for boundary in range(1, rounds + 1):
        for trial in map(int, rng.permutation(trials)):
            between = tuple(
                (step, (-float(1 - np.exp(-rates[trial] * step)),))
                for step in range(10 * boundary - 9, 10 * boundary + 1)
            )
            seconds = 100.0 * boundary + trial
            now = Now(seconds=seconds, step_seconds=1.0, workers=8, between=between[:-1])
            step, losses = between[-1]
            report = Report(trial=trial, step=step, metrics={}, losses=losses, now=now)
            began = time.perf_counter()
            tuner.tell(report)
            question = tuner.question(trial)
            taken = time.perf_counter() - began
            answer = question.answer()
            began = time.perf_counter()
            tuner.tell_prediction(trial, answer)
            spent.append((taken + time.perf_counter() - began) * 1e3)
    return Figure(
        name=f"time of a boundary of POP, {trials} active trials",
        value=float(np.percentile(spent, 95)),
        unit="ms",
        at_most=POP_MS,
        note=f"95th percentile of {len(spent)}, median {statistics.median(spent):.1f} ms; the "
        "prediction itself is made on workers",
    )


def _median_stopping(repeats: int) -> Figure:
    """Return the CPU time of an event of MedianStopping over random search's, in turns."""
    options = {"trials": FEW, "max_steps": STOPPING_STEPS}
    tuners = (dt.algos.Random, dt.algos.MedianStopping)
    _per_event(dt.algos.Random(SPACE, **options))  # warms up
    pairs = [[_per_event(tuner(SPACE, **options)) for tuner in tuners] for _ in range(repeats)]
    ratios = sorted(median / plain for plain, median in pairs)
    plain, median = (statistics.median(costs) for costs in zip(*pairs, strict=True))
    return Figure(
        name=f"CPU of an event, MedianStopping over Random, {FEW} simulated trials",
        value=statistics.median(ratios),
        unit="x",
        at_most=STOPPING,
        note=f"median of {repeats}, {ratios[0]:.2f} to {ratios[-1]:.2f}; {median:.0f} us and "
        f"{plain:.0f} us",
    )


def _per_event(tuner: dt.algos.Tuner) -> float:
    """Return the CPU microseconds of an event in a simulated study whose losses fall."""
    gc.collect()
    began = time.process_time()
    ran = dt.simulate(
        tuner,
        lambda values, step: float(values["lr"]) / step,
        workers=STOPPING_WORKERS,
        report_every=1,
    )
    return (time.process_time() - began) / len(ran.events) * 1e6


def _per_trial(what: str, space: dt.Space, trials: int, repeats: int) -> Figure:
    """Return the cost of drawing a trial and registering it."""
    costs = []
    for _ in range(repeats):
        tuner = _tuner(space, trials)
        gc.collect()
        began = time.process_time()
        tuner.ask(1)
        costs.append((time.process_time() - began) / trials * 1e6)
    return Figure(
        name=f"time to draw a trial, {what}",
        value=statistics.median(costs),
        unit="us",
        note=f"{trials:,} trials at the first question; median of {repeats}",
    )


if __name__ == "__main__":
    sys.exit(main("decisions", measure))

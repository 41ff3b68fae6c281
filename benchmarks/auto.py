"""Auto on recorded curves, next to the tuners that are given more: steps to a target, by source.

All tuners see the same configurations in the same order, and may train as many steps as
`TRAININGS` full trainings have. Targets are those of `targets`, fixed beforehand; a run that
misses its target counts with all of its budget. `WORKERS` workers, no times: a step costs a step.

The form of `Auto` was chosen on every second task of the sources in `CHOSEN_ON`, from the first:
the figures are of the tasks between them, and of the sources that chose nothing.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path

import numpy as np
import targets
from figures import Figure, main
from targets import METRIC, NamedTrace, shuffled

import dasktune as dt
from dasktune._engine.limits import Limits
from dasktune.algos.base import Tuner
from dasktune.algos.samplers import GivenSource
from dasktune.simulate import Trace

TRAININGS = 20
"""The budget of a run: the steps of so many full trainings."""

ORDERS, SHORT_ORDERS = 25, 2
TRIALS = 200
"""The most configurations of a run: as many as the budget begins with a first rung of 1/1024."""

WORKERS = 4

CHOSEN_ON = ("lcbench", "rl", "taskset")
"""The sources of which every second task chose the form of `Auto`, and is left out here."""

TIMED_SHARE = 0.1
"""Of the runs of a workload that reach its target here.

Few runs of AlgoPerf reach the target of their workload, all near their end: 20 full trainings hold
such a run in about half of the orders, and no tuner could be told from another.
"""

RESAMPLES = 1_000
SOURCES = ("algoperf", "lcbench", "own", "rl", "taskset")


def _halving(brackets: object, trace: Trace, sampler: GivenSource) -> Tuner:
    return dt.algos.ASHA(
        trace.space(),
        trials=sampler.most or TRIALS,
        max_steps=trace.steps,
        brackets=brackets,  # type: ignore[arg-type]
        sampler=sampler,
    )


def _auto(trace: Trace, sampler: GivenSource) -> Tuner:
    budget = TRAININGS * trace.steps
    return dt.algos.Auto(trace.space(), budget=budget, max_steps=trace.steps, sampler=sampler)


def _all(kind: Callable[..., Tuner], trace: Trace, sampler: GivenSource) -> Tuner:
    trials = sampler.most or TRIALS
    return kind(trace.space(), trials=trials, max_steps=trace.steps, sampler=sampler)


TUNERS: Mapping[str, Callable[[Trace, GivenSource], Tuner]] = {
    "Auto": _auto,
    "ASHA": partial(_halving, "standard"),
    "ASHA, three brackets": partial(_halving, (0, 1, 2)),
    "ASHA, one bracket": partial(_halving, (0,)),
    "AsyncHyperband": partial(_all, dt.algos.AsyncHyperband),
    "MedianStopping": partial(_all, dt.algos.MedianStopping),
    "Random": partial(_all, dt.algos.Random),
}

OWN = ("ASHA, three brackets", "ASHA, one bracket", "AsyncHyperband", "MedianStopping")

Shares = Mapping[str, Sequence[float | None]]
"""By tuner and order: steps to the target over the budget; None where it was missed."""


def measure(short: bool, data: Path) -> list[Figure]:
    """Run every tuner on every task, in every order."""
    orders = SHORT_ORDERS if short else ORDERS
    tasks = list(_unseen(targets.load(data, SOURCES, timed_share=TIMED_SHARE), short))
    with multiprocessing.get_context("spawn").Pool(len(os.sched_getaffinity(0))) as pool:
        played = pool.map(partial(play, orders), tasks, chunksize=1)
    by_source: dict[str, list[Shares]] = {}
    for task, shares in zip(tasks, played, strict=True):
        by_source.setdefault(_source_of(task), []).append(shares)
    return [figure for name, some in by_source.items() for figure in _figures(name, some)]


def _unseen(tasks: Sequence[NamedTrace], short: bool) -> Iterator[NamedTrace]:
    """Yield the tasks that chose nothing; one of each source if it is to be short."""
    for source, some in groupby(tasks, _source_of):
        of_source = list(some)
        if source in CHOSEN_ON and len(of_source) > 1:
            of_source = of_source[1::2]
        yield from of_source[:1] if short else of_source


def _source_of(task: NamedTrace) -> str:
    return task.name.split()[0]


def play(orders: int, task: NamedTrace) -> dict[str, list[float | None]]:
    """Return the shares of the budget in which each tuner reaches a task's target."""
    return {
        name: [_share(task, make, order) for order in range(orders)]
        for name, make in TUNERS.items()
    }


def _share(
    task: NamedTrace, make: Callable[[Trace, GivenSource], Tuner], order: int
) -> float | None:
    trace, budget = task.trace, TRAININGS * task.trace.steps
    every = shuffled(trace.space(), order)
    some = GivenSource(every.known(min(TRIALS, every.most or TRIALS)), "shuffled")
    ran = dt.simulate(
        make(trace, some),
        trace,
        metric=METRIC,
        direction=task.direction,
        workers=WORKERS,
        seconds_per_step=1.0,
        merge=False,
        limits=Limits(steps=budget, target=task.target),
    )
    reached = ran.reached(task.target)
    return None if reached is None else min(1.0, reached.steps / budget)


# -------------------------------------------------------------------------- the figures


def _of_orders(tasks: Sequence[Shares], tuner: str, orders: Sequence[int]) -> float:
    """Return the mean over tasks of the median share over orders."""
    return statistics.fmean(
        statistics.median(1.0 if shares[tuner][at] is None else shares[tuner][at] for at in orders)  # type: ignore[type-var]
        for shares in tasks
    )


def _figures(source: str, tasks: Sequence[Shares]) -> list[Figure]:
    count = len(tasks[0]["Auto"])
    rng = np.random.default_rng(0)
    drawn = [rng.integers(count, size=count).tolist() for _ in range(RESAMPLES)]
    figures = []
    for tuner in tasks[0]:
        whole, low, high = _interval(partial(_of_orders, tasks, tuner), count, drawn)
        reached = [share is not None for shares in tasks for share in shares[tuner]]
        figures.append(
            Figure(
                name=f"{source}: {tuner}'s steps to the target, of the budget",
                value=whole,
                unit="x",
                note=f"95% interval {low:.3f} to {high:.3f}; {statistics.fmean(reached):.0%} of "
                f"{len(reached)} runs reach it; {len(tasks)} tasks",
            )
        )

    def over(some: Sequence[str], orders: Sequence[int]) -> float:
        least = min(_of_orders(tasks, tuner, orders) for tuner in some)
        return _of_orders(tasks, "Auto", orders) / least

    compared = {"ASHA": ("ASHA",), "the best of four": OWN, "Random": ("Random",)}
    for words, some in compared.items():
        whole, low, high = _interval(partial(over, some), count, drawn)
        figures.append(
            Figure(
                name=f"{source}: Auto's steps over those of {words}",
                value=whole,
                unit="x",
                note=f"95% interval {low:.2f} to {high:.2f}",
            )
        )
    return figures


def _interval(
    statistic: Callable[[Sequence[int]], float], count: int, drawn: Sequence[Sequence[int]]
) -> tuple[float, float, float]:
    """Return a statistic of all orders, and its 95% interval over orders drawn anew."""
    low, high = np.percentile([statistic(orders) for orders in drawn], [2.5, 97.5])
    return statistic(range(count)), float(low), float(high)


if __name__ == "__main__":
    data = {"type": Path, "required": True, "help": "folder of recorded curves"}
    sys.exit(main("auto", measure, data=data))

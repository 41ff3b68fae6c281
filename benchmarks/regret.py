"""Regret on recorded curves: ASHA and asynchronous Hyperband against random search."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import traces
from figures import Figure, main
from given import shuffled
from numpy.typing import NDArray

import dasktune as dt
from dasktune.algos.base import Tuner
from dasktune.algos.samplers import GivenSource
from dasktune.engine.limits import Limits
from dasktune.simulate import Simulation, Trace
from dasktune.types import Direction

TRAININGS = 20
"""The budget of a run: the steps of so many full trainings."""

REPEATS, SHORT_REPEATS = 50, 3
RESAMPLES, SHORT_RESAMPLES = 2_000, 50
STEPS_SHARE = 0.4

TASKSET, LCBENCH, OWN = "taskset_imdb_dev.npz", "lcbench_surrogate_dev.npz", "own_mlp_mnist.npz"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """Recorded curves, and what is to be optimised on them.

    Parameters
    ----------
    trace
        The curves.
    metric, direction
        What tuners see; it was measured on validation data.
    losses, test_losses
        ``(configurations, steps)``: the metric, and the same quality on test data, as losses;
        infinite what is not finite.
    """

    trace: Trace
    metric: str
    direction: Direction
    losses: NDArray[Any]
    test_losses: NDArray[Any]

    @classmethod
    def of(cls, trace: Trace, metric: str, test: str, direction: Direction) -> Table:
        """Return the table of two metrics of a trace."""
        sign = -1.0 if direction is Direction.MAXIMIZE else 1.0
        losses, test_losses = (
            np.where(np.isfinite(each), sign * each, np.inf)
            for name in (metric, test)
            for each in [trace.values[:, :, trace.metrics.index(name)].astype(float)]
        )
        return cls(
            trace=trace,
            metric=metric,
            direction=direction,
            losses=losses,
            test_losses=test_losses,
        )

    @property
    def budget(self) -> int:
        """Steps that a run may train."""
        return TRAININGS * self.trace.steps

    def regret(self, loss: float) -> float:
        """Return how bad a loss is: 0 is the best configuration's best, 1 the median one's."""
        return _between(loss, self.losses.min(axis=1))

    def test_regret(self, configuration: int, step: int) -> float:
        """Return the same for the test loss where it was the incumbent.

        That of each configuration is the one after the step with its best validation loss.
        """
        at = self.losses.argmin(axis=1)
        each = self.test_losses[np.arange(len(at)), at]
        return _between(self.test_losses[configuration, step], each)


def _between(loss: float, losses: NDArray[Any]) -> float:
    best, usual = losses.min(), float(np.median(losses))
    return float((loss - best) / (usual - best))


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How a tuner did on a table within the budget.

    Parameters
    ----------
    regret, test_regret
        Of the incumbent at the end.
    steps, losses
        Of the incumbents in the order of time: steps trained until then, and losses.
    """

    regret: float
    test_regret: float
    steps: tuple[int, ...]
    losses: tuple[float, ...]

    def steps_to(self, loss: float, otherwise: int) -> int:
        """Return the steps until a loss as small was known."""
        reached = zip(self.steps, self.losses, strict=True)
        return next((steps for steps, each in reached if each <= loss), otherwise)


def _asha(trace: Trace, sampler: GivenSource) -> Tuner:
    trials = len(trace.configurations)
    return dt.algos.ASHA(
        trace.space(), trials=trials, max_steps=trace.steps, brackets=[0], sampler=sampler
    )


def _standard(trace: Trace, sampler: GivenSource) -> Tuner:
    trials = len(trace.configurations)
    return dt.algos.ASHA(trace.space(), trials=trials, max_steps=trace.steps, sampler=sampler)


def _async_hyperband(trace: Trace, sampler: GivenSource) -> Tuner:
    trials = len(trace.configurations)
    return dt.algos.AsyncHyperband(
        trace.space(), trials=trials, max_steps=trace.steps, sampler=sampler
    )


def _random(trace: Trace, sampler: GivenSource) -> Tuner:
    return dt.algos.Random(trace.space(), trials=TRAININGS, max_steps=trace.steps, sampler=sampler)


TUNERS: Mapping[str, Callable[[Trace, GivenSource], Tuner]] = {
    "ASHA": _asha,
    "ASHA, three brackets": _standard,
    "AsyncHyperband": _async_hyperband,
    "Random": _random,
}

Runs = Mapping[str, Sequence[Run]]
"""The runs of each tuner on one table."""


def measure(short: bool, data: Path | None = None) -> list[Figure]:
    """Run every tuner on every table, with every seed, for the same number of steps."""
    folder = _checked(data)
    repeats, resamples = (SHORT_REPEATS, SHORT_RESAMPLES) if short else (REPEATS, RESAMPLES)
    names = table_names(folder)
    tasks = [(folder, name, seed) for name in names for seed in range(repeats)]
    with multiprocessing.get_context("spawn").Pool(len(os.sched_getaffinity(0))) as pool:
        played = pool.starmap(play, tasks, chunksize=repeats)
    every: dict[str, Runs] = {}
    for place, name in enumerate(names):
        some = played[place * repeats : (place + 1) * repeats]
        every[name] = {kind: [each[kind] for each in some] for kind in TUNERS}
    budgets = {name: table(folder, name).budget for name in names}
    return [
        *(_of_table(name, every[name], budgets[name]) for name in names),
        _speed("ASHA", every, budgets, resamples, STEPS_SHARE),
        _speed("ASHA, three brackets", every, budgets, resamples, None),
        _speed("AsyncHyperband", every, budgets, resamples, None),
        *(_regrets(kind, every, resamples) for kind in TUNERS if kind != "Random"),
    ]


def _checked(data: Path | None) -> Path:
    """Return the folder of the curves; end the program if it lacks some."""
    needed = (TASKSET, LCBENCH, OWN)
    if data is None or not all((data / name).is_file() for name in needed):
        sys.stderr.write(f"regret.py needs --data, a folder with {', '.join(needed)}\n")
        raise SystemExit(2)
    return data


def table_names(folder: Path) -> list[str]:
    """Return the names that `table` accepts."""
    with (
        np.load(folder / TASKSET, allow_pickle=False) as taskset,
        np.load(folder / LCBENCH, allow_pickle=False) as lcbench,
    ):
        return [
            *(f"taskset {task}" for task in range(len(taskset["tasks"]))),
            *(f"lcbench {task}" for task in range(len(lcbench["tasks"]))),
            "own_mlp",
        ]


@cache
def table(folder: Path, name: str) -> Table:
    """Return a table by its name."""
    kind, _, task = name.partition(" ")
    match kind:
        case "taskset":
            recorded = traces.taskset(folder, int(task))
            return Table.of(recorded, "valid_loss", "test_loss", Direction.MINIMIZE)
        case "lcbench":
            recorded = traces.lcbench(folder, int(task))
            return Table.of(recorded, "val_accuracy", "test_balanced_accuracy", Direction.MAXIMIZE)
    return Table.of(traces.own_mlp(folder), "val_accuracy", "test_accuracy", Direction.MAXIMIZE)


def play(folder: Path, name: str, seed: int) -> dict[str, Run]:
    """Return how each tuner does on a table; all try the same configurations in order."""
    asked = table(folder, name)
    return {kind: _run(asked, make, seed) for kind, make in TUNERS.items()}


def _run(asked: Table, make: Callable[[Trace, GivenSource], Tuner], seed: int) -> Run:
    trace = asked.trace
    ran = dt.simulate(
        make(trace, shuffled(trace.space(), seed)),
        trace,
        metric=asked.metric,
        direction=asked.direction,
        seconds_per_step=1.0,
        limits=Limits(steps=asked.budget),
    )
    configuration, step = _incumbent(asked, ran)
    sign = -1.0 if asked.direction is Direction.MAXIMIZE else 1.0
    return Run(
        regret=asked.regret(asked.losses[configuration, step]),
        test_regret=asked.test_regret(configuration, step),
        steps=tuple(each.steps for each in ran.incumbents),
        losses=tuple(sign * incumbent.value for incumbent in ran.incumbents),
    )


def _incumbent(asked: Table, ran: Simulation) -> tuple[int, int]:
    """Return the row and the column of the best loss among all that was trained."""
    seen = np.full_like(asked.losses, np.inf)
    for trial in ran.trials:
        row = int(trial.params["configuration"])
        seen[row, : trial.steps] = asked.losses[row, : trial.steps]
    best = int(seen.argmin())
    return best // seen.shape[1], best % seen.shape[1]


# -------------------------------------------------------------------------- the figures


def _share(kind: str, runs: Runs, budget: int, picked: Sequence[int]) -> float:
    """Return the steps in which half the runs reach random search's usual end, over the budget.

    The usual end is the median of its final values, so half of its own runs take longer.
    """
    target = statistics.median(runs["Random"][at].losses[-1] for at in picked)
    return statistics.median(runs[kind][at].steps_to(target, budget) for at in picked) / budget


def _of_table(name: str, runs: Runs, budget: int) -> Figure:
    whole = range(len(runs["ASHA"]))
    notes = [
        f"{kind} {statistics.mean(each.regret for each in of_kind):.3f} "
        f"({statistics.mean(each.test_regret for each in of_kind):.3f})"
        for kind, of_kind in runs.items()
    ]
    return Figure(
        name=f"ASHA's steps to random's final value, over random's, {name}",
        value=_share("ASHA", runs, budget, whole),
        unit="x",
        note=f"regret (on test data): {', '.join(notes)}",
    )


def _speed(
    kind: str,
    every: Mapping[str, Runs],
    budgets: Mapping[str, int],
    resamples: int,
    bound: float | None,
) -> Figure:
    def median(picked: Sequence[int]) -> float:
        return statistics.median(
            _share(kind, runs, budgets[name], picked) for name, runs in every.items()
        )

    whole, low, high = _bootstrapped(median, every, resamples)
    return Figure(
        name=f"{kind}'s steps to random's final value, over random's, median",
        value=whole,
        unit="x",
        at_most=bound,
        note=f"95% interval {low:.3f} to {high:.3f}; {1 / whole:.1f} times as fast; 1 if it "
        f"takes longer than the {TRAININGS} full trainings of random search",
    )


def _regrets(kind: str, every: Mapping[str, Runs], resamples: int) -> Figure:
    def ratio(picked: Sequence[int]) -> float:
        own, randoms = (
            statistics.mean(runs[who][at].regret for runs in every.values() for at in picked)
            for who in (kind, "Random")
        )
        return own / randoms

    tests = [
        statistics.mean(run.test_regret for runs in every.values() for run in runs[who])
        for who in (kind, "Random")
    ]
    whole, low, high = _bootstrapped(ratio, every, resamples)
    return Figure(
        name=f"{kind}'s mean regret over random's",
        value=whole,
        unit="x",
        at_most=1.0,
        note=f"95% interval {low:.3f} to {high:.3f}; on test data {tests[0] / tests[1]:.3f}; "
        f"{len(every)} tables, after {TRAININGS} full trainings, 1 worker",
    )


def _bootstrapped(
    statistic: Callable[[Sequence[int]], float], every: Mapping[str, Runs], resamples: int
) -> tuple[float, float, float]:
    """Return a statistic of all repeats, and its 95% interval over repeats drawn anew.

    References
    ----------
    Efron, "Bootstrap Methods: Another Look at the Jackknife" (1979): the percentile interval.
    """
    repeats = len(next(iter(every.values()))["Random"])
    rng = np.random.default_rng(0)
    drawn = [statistic(rng.integers(repeats, size=repeats).tolist()) for _ in range(resamples)]
    low, high = np.percentile(drawn, [2.5, 97.5])
    return statistic(range(repeats)), float(low), float(high)


if __name__ == "__main__":
    sys.exit(main("regret", measure, data="folder of recorded curves, which it needs"))

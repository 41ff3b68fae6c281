"""The setting of SHADHO in simulation: support vector machines on workers of 4, 8 and 16 cores.

Four kernels are trained one against the rest, 10 machines for each configuration. So 4, 8 and 16
cores train them in 3, 2 and 1 waves. Seconds and losses were measured (`svc_times.py`), and the
seconds are scaled to 50,000 images by the measured exponent of each kernel.

What is possible follows from arithmetic. In this setting all kernels gain equally from cores: a
class is for all of them faster by the same factor. Then the 150 workers train a fixed amount of
work each second, whatever they train, and no placement changes the number of tasks an hour, but
for the last tasks. A linear program says the same, and is the bound here. In a second setting,
which is ours and not the paper's, kernels scale unlike: there, placement matters.

References
----------
Kinnison et al., "SHADHO: Massively Scalable Hardware-Aware Distributed Hyperparameter
Optimization", section 5.1 and table 1.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from figures import Figure, main
from hardware import Blind, Unknown
from scipy.optimize import linprog
from svc_times import KERNELS, MEASURED, space

import dasktune as dt
from dasktune.engine.engine import Engine
from dasktune.engine.limits import Limits
from dasktune.graph.attempts import DispatchOptions
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.events import Instruction
from dasktune.graph.keys import root_key
from dasktune.graph.save_policy import SavePolicy
from dasktune.simulate.jobs import Mishaps
from dasktune.simulate.runner import Conditions, SimulatedRunner
from dasktune.traces.timing import EvenPace
from dasktune.types import Objective, Sequences

CORES = {"4 cores": 4, "8 cores": 8, "16 cores": 16}
MACHINES = 10
IMAGES = 50_000
WORKERS, SHORT_WORKERS = 50, 2
"""Of each class."""

TRIALS, SHORT_TRIALS = 750, 60
SEEDS, SHORT_SEEDS = 48, 2
FAILED = 1.0
"""The loss of a configuration that cannot be trained."""

PAPER = 2.0
"""Tasks an hour of SHADHO over first come, first served, in the paper."""

SETTINGS = {
    "waves alike": dict.fromkeys(KERNELS, 16),
    "kernels scale unlike (not the paper's)": {"linear": 16, "rbf": 4, "sigmoid": 16, "poly": 4},
}
"""The cores that a kernel can use, by setting."""

RULES = {
    "first come": "the same trials; classes ignored, no speeds",
    "placement without ranks": "the same trials; speeds learned during the run",
    "forest and placement": "speeds learned during the run, ranks of models",
    "models in turn, first come": "other trials: both heuristics off, classes ignored",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The seconds and the loss of a configuration.

    Parameters
    ----------
    seconds
        Of one of its machines on one core.
    loss
        Share of errors.
    """

    seconds: float
    loss: float


class Measured:
    """The measured configurations; any other is like the nearest one of its kernel.

    Parameters
    ----------
    path
        A document of `svc_times.py`.
    """

    def __init__(self, path: Path = MEASURED) -> None:
        document = json.loads(path.read_text())
        self.origin: dict[str, Any] = document["origin"]
        self.exponents: dict[str, float] = document["exponents"]
        self._tasks: dict[str, list[Task]] = defaultdict(list)
        points: dict[str, list[list[float]]] = defaultdict(list)
        for row in document["rows"]:
            kernel = row["kernel"]
            scale = (IMAGES / self.origin["images"][0]) ** self.exponents[kernel]
            loss = FAILED if row["loss"] is None else row["loss"]
            self._tasks[kernel].append(Task(seconds=row["seconds"] * scale, loss=loss))
            points[kernel].append(_place(row))
        self._points = {kernel: np.array(each) for kernel, each in points.items()}

    @cached_property
    def best(self) -> float:
        """The least loss of all."""
        return min(task.loss for tasks in self._tasks.values() for task in tasks)

    def task(self, values: Mapping[str, Any]) -> Task:
        """Return the task of a configuration."""
        kernel = values["kernel"]
        distances = ((self._points[kernel] - _place(values)) ** 2).sum(axis=1)
        return self._tasks[kernel][int(distances.argmin())]

    def mean_seconds(self, kernel: str) -> float:
        """Return the mean seconds of a machine of a kernel."""
        return statistics.fmean(task.seconds for task in self._tasks[kernel])


def _place(values: Mapping[str, Any]) -> list[float]:
    """Return the hyper-parameters in a unit cube; those that a kernel lacks are 0."""
    return [
        math.log(values["C"] / 0.001) / math.log(15.0 / 0.001),
        values.get("gamma", 0.0) / 1000.0,
        values.get("r", 0.0) / 2000.0,
        (values.get("degree", 1) - 1) / 14.0,
    ]


def values_of(sequences: Sequences) -> dict[str, Any]:
    """Return the hyper-parameters of a trial."""
    return {name: sequence(0) for name, sequence in sequences.items()}


def waves(kind: str, most_cores: int) -> int:
    """Return in how many waves a class trains the machines of a configuration."""
    return math.ceil(MACHINES / min(CORES[kind], most_cores))


class WithoutRanks(Dispatcher):
    """A dispatcher that does not learn the ranks of models."""

    def register(self, *args: Any, **options: Any) -> list[Instruction]:
        """Make a trial known without its rank."""
        return super().register(*args, **{**options, "model_rank": None})


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A search on a pool.

    Parameters
    ----------
    measured
        Seconds and losses.
    cores
        The cores that each kernel can use.
    workers
        Number of workers of each class.
    trials, seed
        Number of trials, and the seed that draws them.
    """

    measured: Measured
    cores: Mapping[str, int]
    workers: int
    trials: int
    seed: int

    def seconds(self, sequences: Sequences, kind: str) -> float:
        """Return the seconds of a trial on a class."""
        values = values_of(sequences)
        return self.measured.task(values).seconds * waves(kind, self.cores[values["kernel"]])

    def run(self, rule: str) -> Run:
        """Return the run of the case under a rule."""
        options, root = DispatchOptions(saves=SavePolicy(at_changes=False)), root_key("shadho", 0)
        match rule:
            case "placement without ranks":
                dispatcher: Dispatcher = WithoutRanks(root, options)
            case "forest and placement":
                dispatcher = Dispatcher(root, options)
            case _:
                dispatcher = Blind(root, options, speeds=Unknown())
        forest = dt.Forest(complexity=rule != "models in turn, first come", priority=False)
        tuner = dt.algos.Random(
            space(), trials=self.trials, max_steps=1, seed=self.seed, sampler=forest
        )
        engine = Engine(dispatcher, objective=Objective.single("loss", "minimize"), trials={})
        conditions = Conditions(
            curve=lambda values, step: self.measured.task(values).loss,
            pace=lambda sequences, start, stop, kind: EvenPace(self.seconds(sequences, kind)),
            mishaps=Mishaps(),
            report_every=1,
        )
        pool = dict.fromkeys(CORES, self.workers)
        runner = SimulatedRunner(engine, conditions, workers=pool, limits=Limits())
        runner.run(tuner)
        reached = (
            each.seconds
            for each in runner.incumbents.in_order()
            if each.value <= self.measured.best
        )
        first = next(reached, None)
        return Run(
            tasks_an_hour=3600 * self.trials / runner.now,
            seconds_to_best=runner.now if first is None else first,
            has_best=first is not None,
            bound=3600 * self.trials / self._least_seconds(engine),
        )

    def _least_seconds(self, engine: Engine) -> float:
        """Return the least makespan of the trials: by the linear program, or of the longest.

        Variables are the share of each kernel's work on each class, and the makespan. All trials
        of a kernel are faster by the same factor on a class, so kernels are enough.
        """
        work: dict[str, float] = defaultdict(float)
        longest = 0.0
        for trial in engine.trials.values():
            values = values_of(trial.sequences)
            task = self.measured.task(values)
            work[values["kernel"]] += task.seconds
            fewest = min(waves(kind, self.cores[values["kernel"]]) for kind in CORES)
            longest = max(longest, task.seconds * fewest)
        return max(least_seconds(work, self.cores, self.workers), longest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The figures of a run.

    Parameters
    ----------
    tasks_an_hour
        Trials by the hours until the last has ended.
    seconds_to_best
        Virtual time until the least measured loss is known, or to the end.
    has_best
        Whether it became known.
    bound
        The most tasks an hour that any plan for the same trials has.
    """

    tasks_an_hour: float
    seconds_to_best: float
    has_best: bool
    bound: float


def least_seconds(work: Mapping[str, float], cores: Mapping[str, int], workers: int) -> float:
    """Return the least makespan of work that can be divided, by a linear program.

    Variables are the share of each kernel's work on each class, and the makespan.

    Parameters
    ----------
    work
        Seconds of one wave, by kernel.
    cores
        The cores that each kernel can use.
    workers
        Number of workers of each class.
    """
    kernels, kinds = list(work), list(CORES)
    count = len(kernels) * len(kinds)
    load, shares = np.zeros((len(kinds), count + 1)), np.zeros((len(kernels), count + 1))
    for row, kernel in enumerate(kernels):
        for column, kind in enumerate(kinds):
            at = row * len(kinds) + column
            load[column, at] = work[kernel] * waves(kind, cores[kernel])
            shares[row, at] = 1.0
    load[:, -1] = -workers
    solution = linprog(
        [*[0.0] * count, 1.0],
        A_ub=load,
        b_ub=np.zeros(len(kinds)),
        A_eq=shares,
        b_eq=np.ones(len(kernels)),
    )
    return float(solution.fun)


def endless_gain(measured: Measured, cores: Mapping[str, int]) -> float:
    """Return the rate of the best plan over that of first come, in a search without an end.

    First come gives each class the mix of kernels that the forest draws.
    """
    tuner = dt.algos.Random(space(), trials=1, max_steps=1, sampler=dt.Forest(priority=False))
    mix = {model.name.removeprefix("kernel="): model.weight for model in tuner.model_weights}
    work = {kernel: weight * measured.mean_seconds(kernel) for kernel, weight in mix.items()}
    rate = sum(
        1 / sum(seconds * waves(kind, cores[kernel]) for kernel, seconds in work.items())
        for kind in CORES
    )
    return 1 / (least_seconds(work, cores, 1) * rate)


def measure(short: bool, times: Path | None) -> list[Figure]:
    """Simulate the search in both settings, by each rule."""
    measured = Measured(times or MEASURED)
    figures = [
        Figure(
            name=f"exponent of the seconds by images, {kernel}",
            value=exponent,
            note=f"{measured.mean_seconds(kernel):,.0f} s a machine with {IMAGES:,} images, mean",
        )
        for kernel, exponent in measured.exponents.items()
    ]
    for setting, cores in SETTINGS.items():
        figures += _figures(setting, cores, measured, short)
    return figures


def _figures(
    setting: str, cores: Mapping[str, int], measured: Measured, short: bool
) -> list[Figure]:
    """Return the figures of a setting."""
    workers, trials = (SHORT_WORKERS, SHORT_TRIALS) if short else (WORKERS, TRIALS)
    seeds = range(SHORT_SEEDS if short else SEEDS)
    runs = {
        rule: [
            Case(measured=measured, cores=cores, workers=workers, trials=trials, seed=seed).run(
                rule
            )
            for seed in seeds
        ]
        for rule in RULES
    }
    base = runs["first come"]
    possible = [run.bound / run.tasks_an_hour for run in base]
    figures = [
        Figure(
            name=f"tasks an hour of the best plan over first come, without an end, {setting}",
            value=endless_gain(measured, cores),
            unit="x",
            note="linear program; what placement can gain in a search that never ends",
        ),
        Figure(
            name=f"tasks an hour of the best plan over first come, {setting}",
            value=statistics.fmean(possible),
            unit="x",
            note=f"linear program, {_range(possible)}; most of it while the last tasks run",
        ),
    ]
    for rule, each in runs.items():
        tasks = [run.tasks_an_hour for run in each]
        hours = [run.seconds_to_best / 3600 for run in each]
        low, median, high = np.quantile(hours, [0.25, 0.5, 0.75])
        reached = sum(run.has_best for run in each)
        figures += [
            Figure(
                name=f"tasks an hour, {rule}, {setting}",
                value=statistics.fmean(tasks),
                note=f"{RULES[rule]}; {_range(tasks)}",
            ),
            Figure(
                name=f"hours to the best loss, median, {rule}, {setting}",
                value=float(median),
                unit="h",
                note=f"loss {measured.best:g} in {reached} of {len(each)} runs; "
                f"quartiles {low:.3g} and {high:.3g}",
            ),
        ]
        if rule != "first come":
            gains = [
                run.tasks_an_hour / first.tasks_an_hour
                for run, first in zip(each, base, strict=True)
            ]
            figures.append(
                Figure(
                    name=f"tasks an hour over first come, {rule}, {setting}",
                    value=statistics.fmean(gains),
                    unit="x",
                    note=f"{_range(gains)}; the paper has {PAPER:g}x for SHADHO",
                )
            )
    return figures


def _range(values: list[float]) -> str:
    deviation = statistics.pstdev(values)
    return f"{min(values):.4g} to {max(values):.4g}, deviation {deviation:.3g}, {len(values)} runs"


if __name__ == "__main__":
    sys.exit(
        main("shadho", measure, times="measurements of svc_times.py; those of ours if left out")
    )

"""Makespan on pools of unlike GPUs, next to a linear program that knows everything.

All runs are simulated, with times that others measured on real GPUs. A step of each model is the
work of a minute on a P100. Stages may go to any class, as in a study with `portable=True`.
"""

from __future__ import annotations

import csv
import gzip
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from figures import Figure, main
from scipy.optimize import linprog
from simulated import engine_of, runner_of

import dasktune as dt
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.events import Event, Instruction, WorkerJoined, WorkersJoined
from dasktune.graph.kept_speeds import KeptSpeed
from dasktune.graph.keys import root_key
from dasktune.graph.plan import Node, SearchPlan
from dasktune.graph.speeds import Speeds
from dasktune.sequences import Constant
from dasktune.space import Branch
from dasktune.types import Sequences, Step

Times = Mapping[str, Mapping[str, float]]
"""Seconds of a step, by model and class."""

STEP_SECONDS = 60.0
"""Of each model on the class `COMMON`."""

COMMON = "p100"
STEPS = 10
POOLS = (
    {"k80": 4, "p100": 4, "v100": 4},
    {"k80": 8, "p100": 4, "v100": 2},
    {"k80": 2, "p100": 4, "v100": 8},
    {"k80": 12, "v100": 4},
)
"""Workers join class by class in this order with even seeds, and in the other with odd ones."""

FAMILIES = ("CycleGAN", "LM 20", "Recommendation 2048", "ResNet-18 64", "ResNet-50 64", "A3C")
TRANSFORMER = "Transformer 64"
MIXES = {
    "26 models": (),
    "7 families": (*FAMILIES, TRANSFORMER),
    "2 models": ("Recommendation 2048", "ResNet-50 64"),
}
"""Models by the name of the mix; none for all."""

TUNERS = ("random", "asha")
TRIALS, SHORT_TRIALS = 400, 40
SEEDS, SHORT_SEEDS = range(4), range(1)
UNSEEN_SEEDS = range(200, 204)
"""Seeds that were not used to choose anything in the package."""

OTHER_SEED = 100
"""Added to a seed, that of the study whose speeds are kept."""

RULES = {
    "first come": "classes ignored, no speeds",
    "learned": "speeds learned during the run",
    "second study": "speeds kept from a study with another seed",
    "known": "all speeds known before the run",
}
MOST = {"learned": 1.3, "second study": 1.1, "known": 1.1}
"""Bounds of the mean ratio, by rule."""


def times_of(path: Path) -> dict[str, dict[str, float]]:
    """Return the seconds of a step by model and class, measured on one GPU."""
    speeds: dict[str, dict[str, float]] = defaultdict(dict)
    with gzip.open(path, "rt") as file:
        for row in csv.DictReader(file):
            if (row["num_gpus"], row["consolidated"]) == ("1", "1") and float(row["steps_per_sec"]):
                name = f"{row['job']} {row['batch_size']}".strip()
                speeds[name][row["gpu"]] = float(row["steps_per_sec"])
    return {
        name: {kind: STEP_SECONDS * each[COMMON] / speed for kind, speed in each.items()}
        for name, each in speeds.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A study: seconds of a step of its models, workers by class, tuner, trials, and seed.

    The tuner ``random`` trains every trial in full, ``asha`` at rungs.
    """

    times: Times
    pool: Mapping[str, int]
    tuner: str
    trials: int
    seed: int

    def make(self) -> dt.algos.Tuner:
        """Return the tuner."""
        space = dt.Space(model=dt.Choice(list(self._models())), lr=dt.Float(0.0, 1.0))
        if self.tuner == "asha":
            return dt.algos.ASHA(
                space, trials=self.trials, max_steps=STEPS - 1, min_steps=1, eta=3, seed=self.seed
            )
        return dt.algos.Random(space, trials=self.trials, max_steps=STEPS, seed=self.seed)

    def _models(self) -> Iterator[Branch]:
        """Yield the models as branches, each with its batch sizes."""
        sizes: dict[str, list[int]] = defaultdict(list)
        for name in self.times:
            model, _, size = name.partition(" ")
            sizes[model] += [int(size)] if size else []
        for model, each in sizes.items():
            yield Branch(model, dt.Space(batch_size=each) if each else dt.Space(batch_size=0))


def model_of(sequences: Sequences) -> str:
    """Return the name of a trial's model."""
    size = sequences["batch_size"](0)
    return f"{sequences['model'](0)} {size}" if size else str(sequences["model"](0))


class Blind(Dispatcher):
    """A dispatcher that takes all workers for one class."""

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Handle an event without the class of a worker."""
        if isinstance(event, WorkerJoined):
            event = replace(event, kind="")
        if isinstance(event, WorkersJoined):
            workers = tuple(replace(worker, kind="") for worker in event.workers)
            event = WorkersJoined(workers=workers)
        return super().handle(event, now)


class Unknown(Speeds):
    """Speeds that are never learned: what was asked for first goes first."""

    def observe(self, node: Node, *, steps: int, seconds: float, kind: str = "") -> bool:
        """Ignore a measurement."""
        return False


def known(times: Times) -> Speeds:
    """Return speeds that were all measured before."""
    speeds, plan = Speeds(), SearchPlan(root_key("known", 0))
    for number, (model, each) in enumerate(times.items()):
        name, _, size = model.partition(" ")
        sequences = {"model": Constant(name), "batch_size": Constant(int(size or 0))}
        plan.register(number, sequences, 1)
        for kind, seconds in each.items():
            speeds.observe(plan.paths[number].leaf, steps=1, seconds=seconds, kind=kind)
    return speeds


def kept_by(case: Case) -> Speeds:
    """Return speeds that begin with those of a study with another seed, as a database has them."""
    _, _, first = run(replace(case, seed=case.seed + OTHER_SEED), "learned")
    documents = json.loads(json.dumps([speed.to_json() for speed in first.kept]))
    speeds = Speeds()
    speeds.recall(map(KeptSpeed.from_json, documents))
    return speeds


def run(case: Case, rule: str) -> tuple[float, Mapping[str, int], Speeds]:
    """Return the makespan of a case under a rule, the steps trained of each model, and speeds."""
    match rule:
        case "first come":
            speeds: Speeds = Unknown()
        case "learned":
            speeds = Speeds()
        case "second study":
            speeds = kept_by(case)
        case _:
            speeds = known(case.times)
    kind = Blind if rule == "first come" else Dispatcher
    engine = engine_of("hardware", kind, speeds=speeds)
    runner = runner_of(
        engine,
        lambda sequences, kind: case.times[model_of(sequences)][kind],
        case.pool,
        curve=lambda values, step: values["lr"] + 1 / step,
        report_every=STEPS,
    )
    runner.run(case.make())
    steps: dict[str, int] = defaultdict(int)
    for node in engine.view.plan:
        steps[model_of(node.sequences)] += node.reached - node.start
    return runner.now, steps, speeds


def bound(case: Case, steps: Mapping[str, int]) -> float:
    """Return the least makespan of these steps by the linear program, and the longest trial."""
    work = {
        model: {kind: count * case.times[model][kind] for kind in case.pool}
        for model, count in steps.items()
        if count
    }
    longest: Step = STEPS if case.tuner == "random" else 1
    path = max(min(case.times[model][kind] for kind in case.pool) for model in work) * longest
    return max(least_seconds(work, case.pool), path)


def least_seconds(work: Times, pool: Mapping[str, int]) -> float:
    """Return the least makespan of work that can be divided, in seconds by model and class.

    Variables are the share of each model's work on each class, and the makespan.
    """
    models, kinds = list(work), list(pool)
    count = len(models) * len(kinds)
    load = np.zeros((len(kinds), count + 1))
    shares = np.zeros((len(models), count + 1))
    for row, model in enumerate(models):
        for column, kind in enumerate(kinds):
            at = row * len(kinds) + column
            load[column, at] = work[model][kind]
            shares[row, at] = 1.0
    load[:, -1] = [-pool[kind] for kind in kinds]
    solution = linprog(
        [*[0.0] * count, 1.0],
        A_ub=load,
        b_ub=np.zeros(len(kinds)),
        A_eq=shares,
        b_eq=np.ones(len(models)),
    )
    return float(solution.fun)


def measure(short: bool, data: Path) -> list[Figure]:
    """Simulate studies of each mix on each pool, by each rule, with unseen seeds as well."""
    times = times_of(data)
    mixes = {mix: {name: times[name] for name in names or times} for mix, names in MIXES.items()}
    samples = {"": SHORT_SEEDS} if short else {"": SEEDS, ", unseen seeds": UNSEEN_SEEDS}
    return [
        _figure(f"{tuner} search of {mix}{of}, {rule}", cases(models, tuner, seeds, short), rule)
        for of, seeds in samples.items()
        for tuner in TUNERS
        for mix, models in mixes.items()
        for rule in RULES
        if tuner == "random" or rule != "second study"
    ]


def cases(times: Times, tuner: str, seeds: Iterable[int], short: bool) -> Iterator[Case]:
    """Yield a study of these models for each pool and seed."""
    trials = SHORT_TRIALS if short else TRIALS
    for pool in POOLS:
        for seed in seeds:
            ordered = dict(reversed(pool.items())) if seed % 2 else pool
            yield Case(times=times, pool=ordered, tuner=tuner, trials=trials, seed=seed)


def _figure(name: str, studies: Iterable[Case], rule: str) -> Figure:
    """Return the mean makespan over the bound, of all studies."""
    ratios = []
    for case in studies:
        seconds, steps, _ = run(case, rule)
        ratios.append(seconds / bound(case, steps))
    return Figure(
        name=f"makespan over the bound, {name}",
        value=statistics.fmean(ratios),
        unit="x",
        at_most=MOST.get(rule),
        note=f"{RULES[rule]}; {min(ratios):.2f} to {max(ratios):.2f} in {len(ratios)} runs",
    )


if __name__ == "__main__":
    data = {"type": Path, "required": True, "help": "gavel_throughputs.csv.gz"}
    sys.exit(main("hardware", measure, data=data))

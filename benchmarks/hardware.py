"""Makespan on pools of unlike GPUs, next to a linear program that knows everything."""

from __future__ import annotations

import csv
import gzip
import json
import random
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from figures import Figure, main
from scipy.optimize import linprog

import dasktune as dt
from dasktune.engine.engine import Engine
from dasktune.engine.limits import Limits
from dasktune.graph.attempts import DispatchOptions
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.events import Event, Instruction, WorkerJoined, WorkersJoined
from dasktune.graph.kept_speeds import KeptSpeed
from dasktune.graph.keys import root_key
from dasktune.graph.plan import Node, SearchPlan
from dasktune.graph.save_policy import SavePolicy
from dasktune.graph.speeds import Speeds
from dasktune.sequences import Constant
from dasktune.simulate.jobs import Mishaps
from dasktune.simulate.runner import Conditions, SimulatedRunner
from dasktune.space import Branch
from dasktune.traces.timing import EvenPace
from dasktune.types import Objective, Sequences, Step

Times = Mapping[str, Mapping[str, float]]
"""Seconds of a step, by model and class."""

STEP_SECONDS = 60.0
"""A step of each model is the work of a minute on the class `COMMON`."""

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

ALONE = {"v100": 12}
"""A pool of one class, on which nothing but the tuner's own waiting is left over the bound."""

TIMM_POOLS = (
    {"cpu_i9_10940x": 24, "rtx3090": 4, "rtx4090": 2},
    {"cpu_i9_10940x": 8, "rtx3090": 8, "rtx4090": 2},
    {"cpu_i9_10940x": 32, "rtx4090": 2},
    {"rtx3090": 6, "rtx4090": 6},
)
TIMM_COMMON = "rtx3090"
TIMM_MODELS = 26
"""Vision models of a study; each seed draws others."""

TUNERS = ("random", "asha")
TRIALS, SHORT_TRIALS = 400, 40
SEEDS, SHORT_SEEDS = range(4), range(1)
UNSEEN = 200
"""Seeds from here on were not used to choose anything in the package."""

RULES = {
    "first come": "classes ignored, no speeds",
    "one class": "classes ignored, the longest path first",
    "learned": "speeds learned during the run",
    "second study": "speeds kept from a study with another seed",
    "known": "all speeds known before the run",
}
UNSEEN_RULES = ("first come", "learned", "second study", "known")
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


def timm_times(path: Path) -> dict[str, dict[str, float]]:
    """Return the seconds of a step of vision models that were measured on all three classes.

    A step is a batch of inference: training was measured on one class alone.
    """
    speeds: dict[str, dict[str, float]] = defaultdict(dict)
    with gzip.open(path, "rt") as file:
        for row in csv.DictReader(file):
            if row["mode"] == "infer":
                name = f"{row['model']}@{row['img_size']}"
                speeds[name][row["hardware"]] = float(row["samples_per_sec"])
    kinds = set(TIMM_POOLS[0])
    return {
        name: {kind: STEP_SECONDS * each[TIMM_COMMON] / speed for kind, speed in each.items()}
        for name, each in speeds.items()
        if each.keys() == kinds
    }


def drawn(times: Times, seed: int) -> Times:
    """Return the models of a study of vision models."""
    names = random.Random(seed).sample(sorted(times), TIMM_MODELS)
    return {name: times[name] for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A study: its models, its workers, and its trials.

    Parameters
    ----------
    times
        Seconds of a step of its models.
    pool
        Number of workers by class.
    tuner
        ``random`` trains every trial in full, ``asha`` at rungs.
    trials
        Number of trials.
    seed
        Seed of the models that are drawn.
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
    _, _, first = run(replace(case, seed=case.seed + UNSEEN // 2), "learned")
    documents = json.loads(json.dumps([speed.to_json() for speed in first.kept]))
    speeds = Speeds()
    speeds.recall(map(KeptSpeed.from_json, documents))
    return speeds


def run(case: Case, rule: str) -> tuple[float, Mapping[str, int], Speeds]:
    """Return the makespan of a case under a rule, the steps trained of each model, and speeds."""
    options = DispatchOptions(saves=SavePolicy(at_changes=False))
    root = root_key("hardware", 0)
    match rule:
        case "first come":
            dispatcher: Dispatcher = Blind(root, options, speeds=Unknown())
        case "one class":
            dispatcher = Blind(root, options)
        case "learned":
            dispatcher = Dispatcher(root, options)
        case "second study":
            dispatcher = Dispatcher(root, options, speeds=kept_by(case))
        case _:
            dispatcher = Dispatcher(root, options, speeds=known(case.times))
    engine = Engine(dispatcher, objective=Objective.single("value", "minimize"), trials={})
    conditions = Conditions(
        curve=lambda values, step: float(str(values["lr"])) + 1 / step,
        pace=lambda sequences, start, stop, kind: EvenPace(case.times[model_of(sequences)][kind]),
        mishaps=Mishaps(),
        report_every=STEPS,
    )
    runner = SimulatedRunner(engine, conditions, workers=case.pool, limits=Limits())
    runner.run(case.make())
    steps: dict[str, int] = defaultdict(int)
    for node in engine.view.plan:
        steps[model_of(node.sequences)] += node.reached - node.start
    return runner.now, steps, dispatcher.speeds


def bound(case: Case, steps: Mapping[str, int]) -> float:
    """Return the least makespan of these steps by the linear program, and the longest trial.

    Variables are the share of each model's steps on each class, and the makespan.
    """
    models, kinds = [model for model in steps if steps[model]], list(case.pool)
    count = len(models) * len(kinds)
    load = np.zeros((len(kinds), count + 1))
    shares = np.zeros((len(models), count + 1))
    for row, model in enumerate(models):
        for column, kind in enumerate(kinds):
            at = row * len(kinds) + column
            load[column, at] = steps[model] * case.times[model][kind]
            shares[row, at] = 1.0
    load[:, -1] = [-workers for workers in case.pool.values()]
    solution = linprog(
        [*[0.0] * count, 1.0],
        A_ub=load,
        b_ub=np.zeros(len(kinds)),
        A_eq=shares,
        b_eq=np.ones(len(models)),
    )
    longest: Step = STEPS if case.tuner == "random" else 1
    path = max(min(case.times[model][kind] for kind in kinds) for model in models) * longest
    return max(float(solution.fun), path)


def measure(short: bool, data: Path | None, timm: Path | None) -> list[Figure]:
    """Simulate studies of each mix on each pool, by each rule; then those of unseen samples."""
    if data is None:
        raise SystemExit("hardware.py: --data must be the path of gavel_throughputs.csv.gz")
    times = times_of(data)
    mixes = {mix: {name: times[name] for name in names or times} for mix, names in MIXES.items()}
    seeds = SHORT_SEEDS if short else SEEDS
    figures = [
        _figure(f"{tuner} search of {mix}, {rule}", list(cases(models, tuner, seeds, short)), rule)
        for tuner in TUNERS
        for mix, models in mixes.items()
        for rule in RULES
        if tuner == "random" or rule != "second study"
    ]
    figures += [
        _figure(
            f"{tuner} search of {mix}, one class",
            list(_alone(models, tuner, seeds, short)),
            "known",
        )
        for tuner in TUNERS
        for mix, models in mixes.items()
    ]
    samples = {
        f"{tuner} search of {mix}, unseen seeds": _unseen(models, tuner)
        for tuner in (() if short else TUNERS)
        for mix, models in mixes.items()
    }
    if timm is not None:
        vision = _vision(timm_times(timm), seeds, short)
        samples[f"random search of {TIMM_MODELS} unseen vision models"] = vision
    return figures + [
        _figure(f"{sample}, {rule}", studies, rule)
        for sample, studies in samples.items()
        for rule in UNSEEN_RULES
        if studies[0].tuner == "random" or rule != "second study"
    ]


def _alone(times: Times, tuner: str, seeds: Iterable[int], short: bool) -> Iterator[Case]:
    """Yield studies on workers of one class, where there is no choice between classes."""
    (kind,) = ALONE
    return cases({each: {kind: times[each][kind]} for each in times}, tuner, seeds, short, [ALONE])


def _unseen(times: Times, tuner: str) -> list[Case]:
    """Return studies of seeds by which nothing was chosen."""
    return list(cases(times, tuner, [UNSEEN + seed for seed in SEEDS], short=False))


def _vision(times: Times, seeds: Iterable[int], short: bool) -> list[Case]:
    """Return studies of models by which nothing was chosen."""
    return [
        case
        for seed in (UNSEEN + seed for seed in seeds)
        for case in cases(drawn(times, seed), "random", [seed], short, TIMM_POOLS)
    ]


def cases(
    times: Times,
    tuner: str,
    seeds: Iterable[int],
    short: bool,
    pools: Iterable[dict[str, int]] = POOLS,
) -> Iterator[Case]:
    """Yield a study of these models for each pool and seed."""
    trials = SHORT_TRIALS if short else TRIALS
    for pool in pools:
        for seed in seeds:
            ordered = dict(reversed(pool.items())) if seed % 2 else pool
            yield Case(times=times, pool=ordered, tuner=tuner, trials=trials, seed=seed)


def _figure(name: str, studies: Sequence[Case], rule: str) -> Figure:
    """Return the mean makespan over the bound, of all studies."""
    ratios = []
    for case in studies:
        seconds, steps, _ = run(case, rule)
        ratios.append(seconds / bound(case, steps))
    is_bounded = "vision" not in name
    return Figure(
        name=f"makespan over the bound, {name}",
        value=statistics.fmean(ratios),
        unit="x",
        at_most=MOST.get(rule) if is_bounded else None,
        note=f"{RULES[rule]}; {min(ratios):.2f} to {max(ratios):.2f} in {len(ratios)} runs",
    )


if __name__ == "__main__":
    sys.exit(
        main(
            "hardware",
            measure,
            data="gavel_throughputs.csv.gz, the measured steps a second",
            timm="timm_speed_dev.csv.gz, vision models on other classes; left out without it",
        )
    )

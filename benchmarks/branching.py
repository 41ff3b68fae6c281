"""Steps to a target: search that branches late, next to TPE on the same tree and without one.

Each sampler proposes one trial after the other, for a tuner that trains all in full. A search
ends with the first trial whose last value is as good as the target; one that does not get
there counts with the steps of all its trials. Steps are counted as a stage tree trains them, each
once; *without merging* each trial counts in full. The targets are fixed before: a share
(`--share`) of the table's trials reaches them, or of `RANDOM` random ones of a seed that no search
has.

===========  ==================================================================
task         what is searched
===========  ==================================================================
table        the 108 recorded trials of `own_stage_mnist.npz`, by their three schedules
surrogate    a Gaussian process, fitted to three in four of the recorded trials that learn, over
             continuous rates and drops; its error on the others is printed
digits       schedules of a small network on scikit-learn's digits, really trained
===========  ==================================================================
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import optuna
from figures import Figure, machine, publish
from numpy.typing import NDArray
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

import dasktune as dt
from dasktune.algos.branching.price import Prices
from dasktune.algos.sources import source_of
from dasktune.sequences import Constant, MultiStep, Piecewise
from dasktune.sequences import Sequence as ValueSequence
from dasktune.types import Sequences

Array = NDArray[Any]

SHARE: Final = 0.04
"""Share of the trials that reach a target if not told otherwise, as in `targets`."""

RANDOM: Final = 300
"""Random trials from which the target of a space without a table follows."""

SEEDS, FEW_SEEDS = 25, 2
FIRST: Final = 200
"""The first seed that is measured: seeds below it were for the choice of constants."""
RESAMPLES: Final = 2000
"""Of the seeds, for intervals."""

FILE: Final = "own_stage_mnist.npz"
NAMES: Final = ("lr", "momentum", "batch")

SAMPLERS: Final[Mapping[str, Callable[[], Any]]] = {
    "Branching": dt.samplers.Branching,
    "Branching, prices ignored": lambda: dt.samplers.Branching(explore=1),
    "TPE": optuna.samplers.TPESampler,
}
TREE, ALONE = "TPE", "TPE without merging"
BOUNDS: Final = {TREE: 0.5, ALONE: 1 / 3}
"""Of Branching's median steps over another's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A space with the last value of each trial; larger is better.

    Parameters
    ----------
    name
        Of the task.
    space
        Its space.
    value
        Gives the last value.
    steps
        Of a trial.
    trials
        Most trials of a search.
    target
        Enough.
    """

    name: str
    space: dt.Space
    value: Callable[[Sequences], float]
    steps: int
    trials: int
    target: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The steps that a search of one seed has trained until the target, or to its end.

    Parameters
    ----------
    merged, alone
        Steps, each once; and those of all trials in full.
    trials
        Number of trials.
    reached
        Whether it has reached the target.
    """

    merged: int
    alone: int
    trials: int
    reached: bool


def search(task: Task, sampler: object, seed: int) -> Search:
    """Return the steps of one search."""
    source = source_of(task.space, sampler, seed)
    source.expect(1)
    prices = Prices()
    trained = 0
    for trial in range(task.trials):
        configuration = source.accept(trial, source.propose(trial))
        trained += prices.price(configuration.sequences, task.steps)
        prices.store(trial, configuration.sequences, task.steps)
        value = task.value(configuration.sequences)
        if value >= task.target:
            alone = (trial + 1) * task.steps
            return Search(merged=trained, alone=alone, trials=trial + 1, reached=True)
        source.observe(trial, task.steps, (-value if math.isfinite(value) else math.inf,))
    budget = task.trials * task.steps
    return Search(merged=budget, alone=budget, trials=task.trials, reached=False)


# ------------------------------------------------------------------- the recorded trials


class Recorded:
    """The recorded trials, and a surrogate that interpolates them.

    Parameters
    ----------
    folder
        Of recorded curves.
    """

    steps = 30

    def __init__(self, folder: Path) -> None:
        with np.load(folder / FILE, allow_pickle=False) as arrays:
            lines = bytes(arrays["configs_jsonl"]).decode().splitlines()
            self.values = np.nan_to_num(arrays["curves"][:, -1, 0].astype(float))
        self.rows = [
            {name: _piecewise(configuration[name]) for name in NAMES}
            for configuration in map(json.loads, lines)
        ]

    def table(self, share: float) -> Task:
        """Return the task whose trials are the recorded ones."""
        known = {
            self._key(row): float(value) for row, value in zip(self.rows, self.values, strict=True)
        }
        options = {name: list(dict.fromkeys(row[name] for row in self.rows)) for name in NAMES}
        return Task(
            name="table",
            space=dt.Space(options),
            value=lambda sequences: known[self._key(sequences)],
            steps=self.steps,
            trials=len(known),
            target=_target(self.values, share),
        )

    def surrogate(self, share: float) -> tuple[Task, list[Figure]]:
        """Return the task on the surrogate, and its errors on trials that it has not seen.

        Trials that begin with a rate of 0.3 do not learn; between that and 0.1 nothing is known.
        So the space ends at 0.1.
        """
        learns = np.flatnonzero(self.values > 0.5)
        features = np.array([_features(self.rows[place]) for place in learns])
        errors = np.log(1 - self.values[learns])
        order = np.random.default_rng(0).permutation(len(learns))
        seen, unseen = np.split(order, [3 * len(order) // 4])
        model = _process().fit(features[seen], errors[seen])
        true, predicted = (1 - np.exp(y) for y in (errors, model.predict(features)))
        plain = np.abs(np.median(true[seen]) - true[unseen]).mean()
        figures = [
            Figure(
                name="surrogate: mean error on unseen trials",
                value=float(np.abs(predicted - true)[unseen].mean()),
                note=f"{len(unseen)} trials; with the median of the seen ones {plain:.4f}",
            )
        ]
        space = dt.Space(
            lr=dt.Family(
                _stepped,
                init=dt.Float(0.03, 0.1, log=True),
                first=dt.Float(0.1, 1.0, log=True),
                second=dt.Float(0.1, 1.0, log=True),
            ),
            momentum=[0.9, Piecewise([0.9, 0.5], boundaries=[15])],
            batch=[64, Piecewise([64, 256], boundaries=[20])],
        )

        def value(sequences: Sequences) -> float:
            return float(1 - np.exp(model.predict([_features(sequences)])[0]))

        target = _target([value(each) for each in _drawn(space)], share)
        task = Task(
            name="surrogate", space=space, value=value, steps=self.steps, trials=200, target=target
        )
        return task, figures

    def _key(self, sequences: Sequences) -> tuple[object, ...]:
        return tuple(tuple(sequences[name].values(0, self.steps)) for name in NAMES)


def _piecewise(values: Sequence[float]) -> ValueSequence:
    changes = [step for step in range(1, len(values)) if values[step] != values[step - 1]]
    if not changes:
        return Constant(values[0])
    return Piecewise([values[0], *(values[step] for step in changes)], boundaries=changes)


def _stepped(init: float, first: float, second: float) -> ValueSequence:
    return Piecewise([init, init * first, init * first * second], boundaries=[10, 20])


def _features(sequences: Sequences) -> list[float]:
    """Return logarithms of the rates in the three thirds, and the last momentum and batch."""
    numbers = {name: [float(sequences[name](step) or 0) for step in (5, 15, 25)] for name in NAMES}
    return [
        *np.log10(numbers["lr"]),
        numbers["momentum"][-1],
        math.log2(numbers["batch"][-1]),
    ]


def _process() -> Any:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, WhiteKernel

    kernel = RBF([0.5] * 5, (0.1, 10.0)) + WhiteKernel(0.1, (1e-3, 1.0))
    return GaussianProcessRegressor(kernel, normalize_y=True, random_state=0)


def _drawn(space: dt.Space) -> Iterator[Sequences]:
    """Yield random trials; a seed that no search has decides."""
    rng = np.random.default_rng(SEEDS)
    return (space.sample(rng).sequences for _ in range(RANDOM))


def _target(values: Sequence[float] | Array, share: float) -> float:
    """Return the value that a share of the trials reaches."""
    return float(np.sort(values)[-max(1, round(share * len(values)))])


# ------------------------------------------------------------------- digits


class Digits:
    """A network with 32 units on scikit-learn's digits, trained with momentum.

    Its value is the negative log-likelihood loss on every fifth image, which is held out.
    """

    steps = 24

    @cached_property
    def images(self) -> tuple[Array, Array, Array]:
        """The images, their classes, and which are held out."""
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        return (x / 16).astype(np.float32), y, np.arange(len(x)) % 5 == 0

    def task(self, share: float) -> Task:
        """Return the task: when and how far the rate drops, momentum, and size of batches."""
        space = dt.Space(
            lr=dt.Family(
                MultiStep,
                init=dt.Float(0.01, 2.0, log=True),
                milestones=[[8], [12], [16], [20], [12, 18], [16, 20]],
                gamma=dt.Float(0.03, 0.6, log=True),
            ),
            momentum=[
                0.0,
                0.9,
                Piecewise([0.0, 0.9], boundaries=[12]),
                Piecewise([0.9, 0.0], boundaries=[12]),
                Piecewise([0.9, 0.5], boundaries=[18]),
            ],
            batch_size=[
                16,
                64,
                Piecewise([16, 64], boundaries=[16]),
                Piecewise([64, 256], boundaries=[12]),
                Piecewise([64, 16], boundaries=[20]),
            ],
        )
        known: dict[str, float] = {}

        def value(sequences: Sequences) -> float:
            key = repr(sorted(sequences.items()))
            if key not in known:
                known[key] = self.trained(sequences)
            return known[key]

        target = _target([value(each) for each in _drawn(space)], share)
        return Task(
            name="digits", space=space, value=value, steps=self.steps, trials=200, target=target
        )

    def trained(self, sequences: Sequences) -> float:
        """Return the negative loss after training; minus infinity if it has diverged."""
        x, y, held_out = self.images
        images, classes = x[~held_out], np.eye(10, dtype=np.float32)[y[~held_out]]
        rng = np.random.default_rng(0)
        weights = [rng.normal(size=(64, 32)) / 8, np.zeros(32)]
        weights += [rng.normal(size=(32, 10)) / math.sqrt(32), np.zeros(10)]
        weights = [each.astype(np.float32) for each in weights]
        speeds = [np.zeros_like(each) for each in weights]
        with np.errstate(all="ignore"):
            for step in range(self.steps):
                hp: dict[str, Any] = {name: of(step) for name, of in sequences.items()}
                order = rng.permutation(len(images))
                for batch in np.split(order, range(hp["batch_size"], len(order), hp["batch_size"])):
                    gradients = _gradients(weights, images[batch], classes[batch])
                    for weight, speed, gradient in zip(weights, speeds, gradients, strict=True):
                        speed *= hp["momentum"]
                        speed += gradient
                        weight -= hp["lr"] * speed
            scores = _scores(_hidden(x[held_out], weights), weights)
            likely = scores[np.arange(len(scores)), y[held_out]] - np.log(np.exp(scores).sum(1))
            value = float(likely.mean())
        return value if math.isfinite(value) else -math.inf


def _hidden(images: Array, weights: list[Array]) -> Array:
    hidden: Array = np.maximum(images @ weights[0] + weights[1], 0)
    return hidden


def _scores(hidden: Array, weights: list[Array]) -> Array:
    scores: Array = hidden @ weights[2] + weights[3]
    scores -= scores.max(1, keepdims=True)
    return scores


def _gradients(weights: list[Array], images: Array, classes: Array) -> list[Array]:
    hidden = _hidden(images, weights)
    shares = np.exp(_scores(hidden, weights))
    above = (shares / shares.sum(1, keepdims=True) - classes) / len(images)
    below = (above @ weights[2].T) * (hidden > 0)
    return [images.T @ below, below.sum(0), hidden.T @ above, above.sum(0)]


# ------------------------------------------------------------------- figures


def measure(task: Task, seeds: int) -> dict[str, list[Search]]:
    """Return the searches of each sampler, one for each seed."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    searches: dict[str, list[Search]] = {name: [] for name in SAMPLERS}
    for seed in range(FIRST, FIRST + seeds):
        for name, sampler in SAMPLERS.items():
            searches[name].append(search(task, sampler(), seed))
        steps = ", ".join(f"{name} {every[-1].merged}" for name, every in searches.items())
        sys.stderr.write(f"{task.name}, seed {seed}: {steps} steps\n")
    return searches


def figures(task: Task, searches: Mapping[str, list[Search]]) -> Iterator[Figure]:
    """Yield the ratios of medians, with intervals over resampled seeds."""
    branching = np.array([each.merged for each in searches["Branching"]])
    for name in (TREE, ALONE):
        steps = [each.merged if name == TREE else each.alone for each in searches["TPE"]]
        ratio, low, high = _ratio(branching, np.array(steps))
        yield Figure(
            name=f"{task.name}: Branching's median steps over those of {name}",
            value=ratio,
            unit="x",
            at_most=BOUNDS[name],
            note=f"{low:.2f} to {high:.2f} in 95% of {RESAMPLES:,} resamples of the seeds",
        )


def _ratio(ours: Array, theirs: Array) -> tuple[float, float, float]:
    rng = np.random.default_rng(0)
    picks = rng.integers(len(ours), size=(RESAMPLES, 2, len(ours)))
    ratios = np.median(ours[picks[:, 0]], axis=1) / np.median(theirs[picks[:, 1]], axis=1)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(np.median(ours) / np.median(theirs)), float(low), float(high)


def table(of: Sequence[tuple[Task, Mapping[str, list[Search]]]]) -> Table:
    """Return the steps as a table for a terminal."""
    made = Table(title="steps to the target, medians over seeds", box=SIMPLE)
    for name in ("task", "target", "sampler"):
        made.add_column(name)
    for name in ("merged", "without merging", "trials", "reached"):
        made.add_column(name, justify="right")
    for task, searches in of:
        for name, every in searches.items():
            made.add_row(
                *(task.name, f"{task.target:.4f}", name),
                f"{statistics.median(each.merged for each in every):,.0f}",
                f"{statistics.median(each.alone for each in every):,.0f}",
                f"{statistics.median(each.trials for each in every):,.0f}",
                f"{sum(each.reached for each in every)}/{len(every)}",
            )
    return made


def main() -> int:
    """Return 1 if a bound was missed, 2 if there are no recorded trials, else 0."""
    options = _parser().parse_args()
    seeds = options.seeds or (FEW_SEEDS if options.short else SEEDS)
    made: list[Figure] = []
    tasks: list[Task] = []
    if options.data is not None and not (options.data / FILE).is_file():
        sys.stderr.write(f"branching.py: --data must be a folder with {FILE}\n")
        return 2
    if options.data is not None:
        recorded = Recorded(options.data)
        if "table" in options.tasks:
            tasks.append(recorded.table(options.share))
        if "surrogate" in options.tasks:
            task, errors = recorded.surrogate(options.share)
            tasks.append(task)
            made += errors
    if "digits" in options.tasks:
        tasks.append(Digits().task(options.share))
    measured = [(task, measure(task, seeds)) for task in tasks]
    for task, searches in measured:
        made += figures(task, searches)
    Console(width=100).print(table(measured))
    more = {
        "machine": machine(),
        "seeds": seeds,
        "share": options.share,
        "tasks": [
            {
                "task": task.name,
                "target": task.target,
                "searches": {name: [asdict(s) for s in every] for name, every in searches.items()},
            }
            for task, searches in measured
        ],
    }
    return publish("branching", made, short=options.short, path=options.json, more=more)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="branching.py")
    every = ("table", "surrogate", "digits")
    parser.add_argument("--data", type=Path, help=f"folder with {FILE}; without it: digits only")
    parser.add_argument("--tasks", nargs="+", choices=every, default=every)
    parser.add_argument("--seeds", type=int, help=f"searches of each sampler; {SEEDS} if not given")
    parser.add_argument("--share", type=float, default=SHARE, help="of trials that reach a target")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    parser.add_argument("--short", action="store_true", help="try it on few seeds")
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""Steps to a target: search that branches late, next to TPE on the same tree and without one.

Each sampler proposes one trial after the other, for a tuner that trains all in full. Two tuners
pause trials: `FreezeThaw`, and `ASHA` with TPE. A search ends with the first trial whose last value
is as good as the target; one that does not get there counts with the steps of all its trials.
Steps are counted as a stage tree trains them, each once; *without merging* each trial counts in
full. The targets are fixed before: a share (`--share`) of the table's trials reaches them, or of
`RANDOM` random ones of a seed that no search has.

===========  ==================================================================
task         what is searched
===========  ==================================================================
table        the 108 recorded trials of `own_stage_mnist.npz`, by their three schedules
surrogate    a Gaussian process, fitted to three in four of the recorded trials that learn, over
             continuous rates and drops; its error on the others is printed
digits       schedules of a small network on scikit-learn's digits, really trained
===========  ==================================================================

The rules of `FreezeThaw` were chosen on the tasks of ``--choosing``, with the seeds from 0 on:
networks on breast cancer, on drawn clusters, and on the classes of a drawn polynomial.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import islice, product
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
from dasktune.sequences import Constant, Exponential, MultiStep, Piecewise
from dasktune.sequences import Sequence as ValueSequence
from dasktune.types import Extend, Finish, Register, Report, Sequences, Step

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
TUNERS: Final[Mapping[str, Callable[[Task, int], dt.algos.Tuner]]] = {
    "FreezeThaw": lambda task, seed: dt.algos.FreezeThaw(
        task.space, budget=task.trials * task.steps, max_steps=task.steps, seed=seed
    ),
    "ASHA with TPE": lambda task, seed: dt.algos.ASHA(
        task.space,
        trials=task.trials,
        max_steps=task.steps,
        brackets="aggressive",
        sampler=optuna.samplers.TPESampler(seed=seed),
    ),
}
OURS: Final = ("Branching", "FreezeThaw")
TREE, ALONE, PAUSED = "TPE", "TPE without merging", "ASHA with TPE"
BOUNDS: Final = {TREE: 0.5, ALONE: 1 / 3}
"""Of the median steps of ours over another's."""


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
        Gives the value after a number of steps.
    steps
        Of a trial.
    trials
        Most trials of a search.
    target
        Enough.
    """

    name: str
    space: dt.Space
    value: Callable[[Sequences, Step], float]
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
        value = task.value(configuration.sequences, task.steps)
        if value >= task.target:
            alone = (trial + 1) * task.steps
            return Search(merged=trained, alone=alone, trials=trial + 1, reached=True)
        source.observe(trial, task.steps, (-value if math.isfinite(value) else math.inf,))
    budget = task.trials * task.steps
    return Search(merged=budget, alone=budget, trials=task.trials, reached=False)


def search_by(task: Task, tuner: dt.algos.Tuner) -> Search:
    """Return the steps of one search by a tuner that pauses trials, on one worker."""
    prices = Prices()
    sequences: dict[int, Sequences] = {}
    waiting: dict[int, Extend] = {}
    alone: dict[int, Step] = {}
    trained, budget = 0, task.trials * task.steps
    tuner.prepare({})
    decisions = tuner.ask(1)
    while trained < budget and not any(isinstance(each, Finish) for each in decisions):
        sequences |= {
            each.trial: each.sequences for each in decisions if isinstance(each, Register)
        }
        waiting |= {each.trial: each for each in decisions if isinstance(each, Extend)}
        if not waiting:
            break
        trial = max(waiting, key=lambda number: (waiting[number].priority, -number))
        until = waiting.pop(trial).until
        trained += prices.price(sequences[trial], until)
        prices.store(trial, sequences[trial], until)
        alone[trial] = until
        value = task.value(sequences[trial], until)
        if until == task.steps and value >= task.target:
            steps = sum(alone.values())
            return Search(merged=trained, alone=steps, trials=len(alone), reached=True)
        losses = (-value if math.isfinite(value) else math.inf,)
        decisions = tuner.tell(Report(trial=trial, step=until, metrics={}, losses=losses))
        decisions += [] if waiting or decisions else tuner.ask(1)
    return Search(merged=budget, alone=budget, trials=len(alone), reached=False)


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
            self.curves = np.nan_to_num(arrays["curves"][:, :, 0].astype(float))
        self.values = self.curves[:, -1]
        self.rows = [
            {name: _piecewise(configuration[name]) for name in NAMES}
            for configuration in map(json.loads, lines)
        ]

    def table(self, share: float) -> Task:
        """Return the task whose trials are the recorded ones."""
        known = {
            self._key(row): curve.tolist()
            for row, curve in zip(self.rows, self.curves, strict=True)
        }
        options = {name: list(dict.fromkeys(row[name] for row in self.rows)) for name in NAMES}
        return Task(
            name="table",
            space=dt.Space(options),
            value=lambda sequences, step: known[self._key(sequences)][step - 1],
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
        order = np.random.default_rng(0).permutation(len(learns))
        seen, unseen = np.split(order, [3 * len(order) // 4])

        @cache
        def model(step: Step) -> Any:
            """Return the process of the values after a step."""
            features = [_features(self.rows[place], step) for place in learns[seen]]
            return _process().fit(features, np.log(1 - self.curves[learns[seen], step - 1]))

        def value(sequences: Sequences, step: Step) -> float:
            return float(1 - np.exp(model(step).predict([_features(sequences, step)])[0]))

        true = self.values[learns]
        predicted = np.array([value(self.rows[place], self.steps) for place in learns])
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

        target = _target([value(each, self.steps) for each in _drawn(space)], share)
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


def _features(sequences: Sequences, step: Step) -> list[float]:
    """Return logarithms of the rates in the three thirds, and the last momentum and batch.

    Of a third that has not begun the rate is the last one: only steps before `step` count.
    """
    last = step - 1
    rates = [float(sequences["lr"](min(place, last)) or 0) for place in (5, 15, 25)]
    momentum, batch = (float(sequences[name](last) or 0) for name in NAMES[1:])
    return [*np.log10(rates), momentum, math.log2(batch)]


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


# ------------------------------------------------------------------- trained networks


class Network:
    """A network with one hidden layer, trained with momentum.

    Its value is the negative log-likelihood loss on every n-th row, which is held out.

    Parameters
    ----------
    rows, classes
        The data.
    hidden
        Units of the hidden layer.
    steps
        Epochs of a trial.
    every
        Which rows are held out.
    """

    def __init__(
        self, rows: Array, classes: Array, *, hidden: int, steps: Step, every: int
    ) -> None:
        self.rows, self.classes = rows.astype(np.float32), classes
        self.hidden, self.steps = hidden, steps
        self.held_out = np.arange(len(rows)) % every == 0
        self._known: dict[str, tuple[list[float], Iterator[float]]] = {}

    def task(self, name: str, space: dt.Space, share: float, trials: int = 200) -> Task:
        """Return the task of a space."""
        target = _target([self.value(each, self.steps) for each in _drawn(space)], share)
        return Task(
            name=name,
            space=space,
            value=self.value,
            steps=self.steps,
            trials=trials,
            target=target,
        )

    def value(self, sequences: Sequences, step: Step) -> float:
        """Return the value after a step of a trial."""
        key = repr(sorted(sequences.items()))
        if key not in self._known:
            self._known[key] = [], self.trained(sequences)
        values, training = self._known[key]
        values += islice(training, max(0, step - len(values)))
        return values[step - 1]

    def trained(self, sequences: Sequences) -> Iterator[float]:
        """Yield the negative loss after each step; minus infinity if it has diverged."""
        x, y, held_out = self.rows, self.classes, self.held_out
        rows, count = x[~held_out], int(y.max()) + 1
        classes = np.eye(count, dtype=np.float32)[y[~held_out]]
        rng = np.random.default_rng(0)
        inputs, hidden = x.shape[1], self.hidden
        weights = [rng.normal(size=(inputs, hidden)) / math.sqrt(inputs), np.zeros(hidden)]
        weights += [rng.normal(size=(hidden, count)) / math.sqrt(hidden), np.zeros(count)]
        weights = [each.astype(np.float32) for each in weights]
        speeds = [np.zeros_like(each) for each in weights]
        for step in range(self.steps):
            hp: dict[str, Any] = {name: of(step) for name, of in sequences.items()}
            order = rng.permutation(len(rows))
            with np.errstate(all="ignore"):
                for batch in np.split(order, range(hp["batch_size"], len(order), hp["batch_size"])):
                    gradients = _gradients(weights, rows[batch], classes[batch])
                    for weight, speed, gradient in zip(weights, speeds, gradients, strict=True):
                        speed *= hp["momentum"]
                        speed += gradient + hp.get("decay", 0.0) * weight
                        weight -= hp["lr"] * speed
                scores = _scores(_hidden(x[held_out], weights), weights)
                likely = scores[np.arange(len(scores)), y[held_out]] - np.log(np.exp(scores).sum(1))
                value = float(likely.mean())
            yield value if math.isfinite(value) else -math.inf


def digits(share: float) -> Task:
    """Return the task: when and how far the rate drops, momentum, and size of batches."""
    from sklearn.datasets import load_digits

    images, classes = load_digits(return_X_y=True)
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
    network = Network(images / 16, classes, hidden=32, steps=24, every=5)
    return network.task("digits", space, share)


# ------------------------------------------------------------------- tasks for choices


def cancer(share: float) -> Task:
    """Return the task of breast cancer: rates that drop at any step, or decay."""
    from sklearn.datasets import load_breast_cancer

    rows, classes = load_breast_cancer(return_X_y=True)
    rate = dt.Float(0.003, 1.0, log=True)
    space = dt.Space(
        lr=[
            dt.Family(_cut, init=rate, at=dt.Int(4, 18), gamma=dt.Float(0.02, 0.8, log=True)),
            dt.Family(Exponential, init=rate, gamma=dt.Float(0.7, 1.0)),
        ],
        momentum=[
            0.0,
            0.5,
            0.9,
            Piecewise([0.9, 0.5], boundaries=[12]),
            Piecewise([0.5, 0.9], boundaries=[8]),
        ],
        batch_size=[
            8,
            32,
            Piecewise([8, 32], boundaries=[15]),
            Piecewise([32, 128], boundaries=[10]),
        ],
    )
    network = Network(_standardised(rows), classes, hidden=16, steps=20, every=4)
    return network.task("cancer", space, share)


def clusters(share: float) -> Task:
    """Return the task of drawn clusters: two drops at fixed steps, and weight decay."""
    from sklearn.datasets import make_classification

    rows, classes = make_classification(
        *(900, 12),
        n_informative=8,
        n_classes=5,
        n_clusters_per_class=3,
        flip_y=0.05,
        class_sep=1.3,
        random_state=3,
    )
    space = dt.Space(
        lr=dt.Family(
            _twice,
            init=dt.Float(0.01, 1.0, log=True),
            first=dt.Float(0.1, 1.0, log=True),
            second=dt.Float(0.1, 1.0, log=True),
        ),
        momentum=[0.0, 0.9, Piecewise([0.9, 0.5], boundaries=[25])],
        decay=[
            0.0,
            0.001,
            0.01,
            Piecewise([0.0, 0.01], boundaries=[20]),
            Piecewise([0.01, 0.0], boundaries=[30]),
        ],
        batch_size=[16, 64, Piecewise([16, 64], boundaries=[30])],
    )
    network = Network(_standardised(rows), classes, hidden=48, steps=40, every=4)
    return network.task("clusters", space, share)


def polynomial(share: float) -> Task:
    """Return the task of a drawn polynomial: a grid of 144 trials, four trunks of the rate."""
    rng = np.random.default_rng(5)
    x = rng.uniform(-2, 2, size=(900, 5))
    sums = np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.5 * x[:, 3] ** 2 - x[:, 4]
    sums += 0.3 * rng.normal(size=len(x))
    space = dt.Space(
        lr=[
            rate
            for init in (0.02, 0.07, 0.2, 0.7)
            for rate in (
                Constant(init),
                *(MultiStep(init, [at], gamma=gamma) for at in (8, 16) for gamma in (0.1, 0.3)),
                MultiStep(init, [8, 16], gamma=0.3),
            )
        ],
        momentum=[0.5, 0.9, Piecewise([0.9, 0.5], boundaries=[12])],
        batch_size=[16, Piecewise([16, 64], boundaries=[18])],
    )
    classes = np.digitize(sums, np.quantile(sums, [0.25, 0.5, 0.75]))
    network = Network(x, classes, hidden=24, steps=24, every=4)
    return network.task("polynomial", space, share, trials=144)


CHOOSING: Final = (polynomial, clusters, cancer)


def _standardised(rows: Array) -> Array:
    standardised: Array = (rows - rows.mean(0)) / rows.std(0)
    return standardised


def _cut(init: float, at: int, gamma: float) -> ValueSequence:
    return Piecewise([init, init * gamma], boundaries=[at])


def _twice(init: float, first: float, second: float) -> ValueSequence:
    return Piecewise([init, init * first, init * first * second], boundaries=[20, 30])


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


def measure(task: Task, seeds: range) -> dict[str, list[Search]]:
    """Return the searches of each sampler and tuner, one for each seed."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    searches: dict[str, list[Search]] = {name: [] for name in (*SAMPLERS, *TUNERS)}
    for seed in seeds:
        for name, sampler in SAMPLERS.items():
            searches[name].append(search(task, sampler(), seed))
        for name, tuner in TUNERS.items():
            searches[name].append(search_by(task, tuner(task, seed)))
        steps = ", ".join(f"{name} {every[-1].merged}" for name, every in searches.items())
        sys.stderr.write(f"{task.name}, seed {seed}: {steps} steps\n")
    return searches


def figures(task: Task, searches: Mapping[str, list[Search]]) -> Iterator[Figure]:
    """Yield the ratios of medians, with intervals over resampled seeds."""
    rivals = {
        TREE: [each.merged for each in searches["TPE"]],
        ALONE: [each.alone for each in searches["TPE"]],
        PAUSED: [each.merged for each in searches[PAUSED]],
    }
    for ours, (name, steps) in product(OURS, rivals.items()):
        ratio, low, high = _ratio(
            np.array([each.merged for each in searches[ours]]), np.array(steps)
        )
        yield Figure(
            name=f"{task.name}: {ours}'s median steps over those of {name}",
            value=ratio,
            unit="x",
            at_most=BOUNDS.get(name),
            note=f"{low:.2f} to {high:.2f} in 95% of {RESAMPLES:,} resamples of the seeds",
        )


def _ratio(ours: Array, rivals: Array) -> tuple[float, float, float]:
    rng = np.random.default_rng(0)
    picks = rng.integers(len(ours), size=(RESAMPLES, 2, len(ours)))
    ratios = np.median(ours[picks[:, 0]], axis=1) / np.median(rivals[picks[:, 1]], axis=1)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(np.median(ours) / np.median(rivals)), float(low), float(high)


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
    if options.choosing:
        tasks += [make(options.share) for make in CHOOSING]
    elif options.data is not None:
        recorded = Recorded(options.data)
        if "table" in options.tasks:
            tasks.append(recorded.table(options.share))
        if "surrogate" in options.tasks:
            task, errors = recorded.surrogate(options.share)
            tasks.append(task)
            made += errors
    if "digits" in options.tasks and not options.choosing:
        tasks.append(digits(options.share))
    first = 0 if options.choosing else FIRST
    measured = [(task, measure(task, range(first, first + seeds))) for task in tasks]
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
    parser.add_argument("--choosing", action="store_true", help="the tasks and seeds for choices")
    parser.add_argument("--seeds", type=int, help=f"searches of each sampler; {SEEDS} if not given")
    parser.add_argument("--share", type=float, default=SHARE, help="of trials that reach a target")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    parser.add_argument("--short", action="store_true", help="try it on few seeds")
    return parser


if __name__ == "__main__":
    sys.exit(main())

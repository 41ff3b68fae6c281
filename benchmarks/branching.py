"""Steps to a target: search that branches late, next to TPE on the same tree and without one.

Each sampler proposes one trial after the other, for a tuner that trains all in full. Two tuners
pause trials: `FreezeThaw`, and `ASHA` with TPE. A search ends with the first trial whose last value
is as good as the target; one that does not get there counts with the steps of all its trials.
Steps are counted as a stage tree trains them, each once; *without merging* each trial counts in
full. The targets are fixed before: a share of the table's trials reaches them, or of `RANDOM`
random ones of a seed that no search has.

===========  ==================================================================
task         what is searched
===========  ==================================================================
table        the 108 recorded trials of `own_stage_mnist.npz`, by their three schedules
surrogate    a Gaussian process, fitted to three in four of the recorded trials that learn, over
             continuous rates and drops; its error on the others is printed
digits       schedules of a small network on scikit-learn's digits, really trained
===========  ==================================================================

Constants of the package were chosen on other tasks, and with seeds below `FIRST`.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice, product
from pathlib import Path
from typing import Any, Final

import numpy as np
import optuna
from figures import Figure, main
from numpy.typing import NDArray

import dasktune as dt
from dasktune.algos.branching.price import Prices
from dasktune.errors import ConfigurationError
from dasktune.sequences import Constant, MultiStep, Piecewise
from dasktune.sequences import Sequence as ValueSequence
from dasktune.types import Extend, Finish, Register, Report, Sequences, Step

Array = NDArray[Any]

SHARE: Final = 0.04
"""Share of the trials that reach a target, as in `targets`."""

RANDOM: Final = 300
"""Random trials from which the target of a space without a table follows."""

SEEDS, FEW_SEEDS = 25, 2
FIRST: Final = 200
"""The first seed that is measured."""
RESAMPLES: Final = 2000
"""Of the seeds, for intervals."""

FILE: Final = "own_stage_mnist.npz"
NAMES: Final = ("lr", "momentum", "batch")

OURS: Final = ("Branching", "FreezeThaw")
TREE, ALONE, PAUSED = "TPE", "TPE without merging", "ASHA with TPE"
BOUNDS: Final = {TREE: 0.5, ALONE: 1 / 3}
"""Of the median steps of ours over another's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A space, the value of a trial after a step (larger is better), and the target.

    A trial has so many `steps`, a search at most so many `trials`.
    """

    name: str
    space: dt.Space
    value: Callable[[Sequences, Step], float]
    steps: int
    trials: int
    target: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The steps that a search has trained until the target or its end: each once, and in full."""

    merged: int
    alone: int
    trials: int
    reached: bool


def search(task: Task, tuner: dt.algos.Tuner) -> Search:
    """Return the steps of one search by a tuner, on one worker."""
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
    """The recorded trials of a folder, and a surrogate that interpolates them."""

    steps = 30

    def __init__(self, folder: Path) -> None:
        if not (folder / FILE).is_file():
            raise ConfigurationError(f"--data must be a folder with {FILE}, got {str(folder)!r}")
        with np.load(folder / FILE, allow_pickle=False) as arrays:
            lines = bytes(arrays["configs_jsonl"]).decode().splitlines()
            self.curves = np.nan_to_num(arrays["curves"][:, :, 0].astype(float))
        self.values = self.curves[:, -1]
        self.rows = [
            {name: _piecewise(configuration[name]) for name in NAMES}
            for configuration in map(json.loads, lines)
        ]

    def table(self) -> Task:
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
            target=_target(self.values),
        )

    def surrogate(self) -> tuple[Task, Figure]:
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
        figure = Figure(
            name="surrogate: mean error on unseen trials",
            value=float(np.abs(predicted - true)[unseen].mean()),
            note=f"{len(unseen)} trials; with the median of the seen ones {plain:.4f}",
        )
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
        target = _target([value(each, self.steps) for each in _drawn(space)])
        task = Task(
            name="surrogate", space=space, value=value, steps=self.steps, trials=200, target=target
        )
        return task, figure

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


def _target(values: Sequence[float] | Array) -> float:
    """Return the value that the share of the trials reaches."""
    return float(np.sort(values)[-max(1, round(SHARE * len(values)))])


# ------------------------------------------------------------------- trained networks


class Network:
    """A network with one hidden layer, trained with momentum on scikit-learn's digits.

    Its value is the negative log-likelihood loss on every fifth row, which is held out.
    """

    hidden = 32
    steps = 24

    def __init__(self) -> None:
        from sklearn.datasets import load_digits

        images, self.classes = load_digits(return_X_y=True)
        self.rows = (images / 16).astype(np.float32)
        self.held_out = np.arange(len(self.rows)) % 5 == 0
        self._known: dict[str, tuple[list[float], Iterator[float]]] = {}

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
                        speed += gradient
                        weight -= hp["lr"] * speed
                scores = _scores(_hidden(x[held_out], weights), weights)
                likely = scores[np.arange(len(scores)), y[held_out]] - np.log(np.exp(scores).sum(1))
                value = float(likely.mean())
            yield value if math.isfinite(value) else -math.inf


def digits() -> Task:
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
    network = Network()
    return Task(
        name="digits",
        space=space,
        value=network.value,
        steps=network.steps,
        trials=200,
        target=_target([network.value(each, network.steps) for each in _drawn(space)]),
    )


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


SAMPLERS: Final[Mapping[str, Callable[[], Any]]] = {
    "Branching": dt.samplers.Branching,
    "Branching, prices ignored": lambda: dt.samplers.Branching(explore=1),
    "TPE": optuna.samplers.TPESampler,
}


def _in_full(make: Callable[[], Any], task: Task, seed: int) -> dt.algos.Tuner:
    """Return a tuner that trains all proposals of a sampler in full."""
    return dt.algos.Random(
        task.space, trials=task.trials, max_steps=task.steps, sampler=make(), seed=seed
    )


TUNERS: Final[Mapping[str, Callable[[Task, int], dt.algos.Tuner]]] = {
    **{name: partial(_in_full, make) for name, make in SAMPLERS.items()},
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


def measure(short: bool, data: Path | None = None) -> Iterator[Figure]:
    """Yield the figures of each task."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    tasks = []
    if data is not None:
        recorded = Recorded(data)
        surrogate, error = recorded.surrogate()
        tasks = [recorded.table(), surrogate]
        yield error
    for task in [*tasks, digits()]:
        yield from _figures(task, _searches(task, FEW_SEEDS if short else SEEDS))


def _searches(task: Task, seeds: int) -> dict[str, list[Search]]:
    """Return the searches of each tuner, one for each seed."""
    searches: dict[str, list[Search]] = {name: [] for name in TUNERS}
    for seed in range(FIRST, FIRST + seeds):
        for name, tuner in TUNERS.items():
            searches[name].append(search(task, tuner(task, seed)))
        steps = ", ".join(f"{name} {every[-1].merged}" for name, every in searches.items())
        sys.stderr.write(f"{task.name}, seed {seed}: {steps} steps\n")
    return searches


def _figures(task: Task, searches: Mapping[str, list[Search]]) -> Iterator[Figure]:
    """Yield the medians of the steps, and their ratios with intervals over resampled seeds."""
    for name, every in searches.items():
        yield Figure(
            name=f"{task.name}: {name}'s steps to the target",
            value=statistics.median(each.merged for each in every),
            unit="steps",
            note=f"median; without merging {statistics.median(each.alone for each in every):,.0f}; "
            f"{statistics.median(each.trials for each in every):,.0f} trials; "
            f"{sum(each.reached for each in every)} of {len(every)} searches reach it",
        )
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


if __name__ == "__main__":
    data = {"type": Path, "help": f"folder with {FILE}; without it: digits only"}
    sys.exit(main("branching", measure, data=data))

"""Measured seconds per step, by model and class of workers, learned while stages run."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from dasktune.graph.devices import DEVICES, devices_at, without_devices
from dasktune.graph.frontier import Profile
from dasktune.graph.kept_speeds import KeptSpeed, Model
from dasktune.graph.plan import Node
from dasktune.graph.prices import profile_of
from dasktune.types import Sequences, Step, Value

_MEMORY_STEPS = 10_000.0
_CHANGE = 0.1
_SPREAD = 0.5
"""Standard deviation of the logarithms of ratios, before any was measured."""

_KEPT_STEPS = 1.0
"""What earlier runs measured of a model on a class counts as so many steps."""

_GROWTH = 4
"""With several classes, lengths are reviewed when measurements have grown by a quarter."""


def model_of(values: Mapping[str, Value]) -> Model:
    """Return the model of a configuration: its hyper-parameters that are not floats, sorted.

    Examples
    --------
    >>> model_of({"width": 8, "lr": 0.1, "kind": "deep"})
    (('kind', 'deep'), ('width', 8))
    """
    return tuple(sorted(pair for pair in values.items() if not isinstance(pair[1], float)))


class Mean:
    """Seconds and steps that were measured, of which the older fade."""

    __slots__ = ("seconds", "steps")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.steps = 0.0

    def add(self, steps: float, seconds: float, *, memory: float = math.inf) -> None:
        """Add a measurement; older ones fade once there are more than `memory` steps."""
        fade = min(1.0, memory / (self.steps + 1.0))
        self.seconds = self.seconds * fade + seconds
        self.steps = self.steps * fade + steps

    @property
    def per_step(self) -> float:
        """The mean seconds of a step."""
        return self.seconds / self.steps


class Estimates(NamedTuple):
    """The seconds of a step of a model by class, and the doubts; see `Speeds.doubt`.

    Both are in the order of the slots.
    """

    seconds: tuple[float, ...]
    doubts: tuple[float, ...]


class Average(NamedTuple):
    """The seconds of a step on an average slot, and the profile of a model."""

    seconds: float
    profile: Profile


class Factors:
    """How much longer a step takes on one class than on another.

    The factor is the geometric mean of the ratios of models that were measured on both classes.
    For each hyper-parameter value of a model it is taken over those with the same value, as if
    the mean of all models were one more of them; then the mean over its values. So batch sizes
    of one network tell more of each other than of another network.

    Parameters
    ----------
    spread
        Standard deviation of the logarithms of ratios, before any was measured.
    """

    def __init__(self, spread: float = _SPREAD) -> None:
        self._before = spread
        self._logs: dict[tuple[str, str], dict[Model, float]] = defaultdict(dict)
        self._sums: dict[tuple[str, str, object], tuple[float, int]] = {}
        self._squares: dict[tuple[str, str], float] = defaultdict(float)

    def learn(self, model: Model, kind: str, seconds: Mapping[str, float]) -> None:
        """Take the ratios of a model that was just measured on a class to its other classes.

        Parameters
        ----------
        seconds
            The seconds of a step of the model, by class.
        """
        for other, per_step in seconds.items():
            if other != kind:
                log = math.log(seconds[kind] / per_step)
                self.set(other, kind, model, log)
                self.set(kind, other, model, -log)

    def log_between(self, kind: str, other: str, model: Model) -> float:
        """Return the logarithm of a step's seconds on `other` over those on `kind`."""
        if kind == other:
            return 0.0
        total, count = self._sums.get((kind, other, None), (0.0, 0))
        if not count:
            return 0.0
        mean, logs = total / count, 0.0
        for pair in model:
            total, count = self._sums.get((kind, other, pair), (0.0, 0))
            logs += (total + mean) / (count + 1)
        return logs / len(model) if model else mean

    def spread(self, kind: str, other: str) -> float:
        """Return the standard deviation of the logarithms of the ratios, as far as is known."""
        total, count = self._sums.get((kind, other, None), (0.0, 0))
        squares = self._squares.get((kind, other), 0.0)
        apart = max(0.0, squares - total**2 / count) if count else 0.0
        return math.sqrt((apart + self._before**2) / (count + 1))

    def set(self, kind: str, other: str, model: Model, log: float) -> None:
        """Replace the logarithm of a model's ratio: its seconds on `other` over those on `kind`."""
        logs = self._logs[kind, other]
        before = logs.get(model, 0.0)
        is_new, change = model not in logs, log - before
        logs[model] = log
        self._squares[kind, other] += log**2 - before**2
        for pair in (None, *model):
            total, count = self._sums.get((kind, other, pair), (0.0, 0))
            self._sums[kind, other, pair] = total + change, count + is_new


class EarlierRuns:
    """Seconds of a step as earlier runs measured them, corrected by how classes have changed.

    The change of a class is the factor between those seconds and the ones of this run, over the
    models that were measured in both. One model that has not changed counts among them from the
    beginning.
    """

    def __init__(self) -> None:
        self._seconds: dict[Model, dict[str, float]] = {}
        self._changes = Factors(_CHANGE)

    def __contains__(self, model: object) -> bool:
        return model in self._seconds

    def take(self, speed: KeptSpeed) -> Mapping[str, float]:
        """Take a speed; return the seconds of a step of its model by class."""
        seconds = self._seconds.setdefault(speed.model, {})
        seconds[speed.kind] = speed.per_step
        self._changes.set(_before(speed.kind), speed.kind, (), 0.0)
        return seconds

    def seconds(self, model: Model) -> dict[str, float]:
        """Return the seconds of a step of a model by class, as they should be now."""
        change = self._changes.log_between
        return {
            kind: seconds * math.exp(change(_before(kind), kind, model))
            for kind, seconds in self._seconds.get(model, {}).items()
        }

    def doubt(self, kind: str) -> float:
        """Return the standard deviation of the changes of a class, in logarithms."""
        return self._changes.spread(_before(kind), kind)

    def compare(self, model: Model, kind: str, seconds: float) -> None:
        """Note the seconds of a step in this run."""
        earlier = self._seconds.get(model, {}).get(kind)
        if earlier is not None:
            self._changes.set(_before(kind), kind, model, math.log(seconds / earlier))


def _before(kind: str) -> str:
    """Return the name of a class as it was in earlier runs."""
    return f"{kind} before"


class Speeds:
    """Mean seconds per step by model and class; estimates where nothing was measured.

    Models are told apart by what is not a float (batch size, architecture, optimizer): a
    learning rate does not change what a step costs. Older measurements fade once a model has
    seen 10,000 steps on a class.

    A model that was measured on other classes only is estimated from those and the factor of
    its class, in the geometric mean; a model that was never measured from the mean of all
    models, each brought to the same class by its factor.

    What earlier runs have measured (`recall`) is the estimate until this run has measured the same,
    and weighs as much as one step then. If a class has changed since, its first measurements
    correct the estimates of all models on it.

    Parameters
    ----------
    values_at
        Gives the hyper-parameters at a step; None for those of the sequences themselves. On
        recorded curves a trial is but the number of what was recorded.

    Attributes
    ----------
    slots
        Number of slots by class.
    is_settled
        Whether whole stages were measured, in this run or an earlier one: the first steps of a
        stage that runs give a guess.
    moved
        How many times the mean of a model on a class was new, or a tenth away from what it was when
        it was last counted.
    """

    def __init__(
        self, values_at: Callable[[Sequences, Step], Mapping[str, Value]] | None = None
    ) -> None:
        self._values_at = values_at or _values_at
        self._measured: dict[Model, dict[str, Mean]] = {}
        self._models: dict[Node, Model] = {}
        self._same_models: dict[Model, Model] = {}
        """Each model once: most nodes share theirs."""
        self._all: dict[str, Mean] = {}
        self._factors = Factors()
        self._unlearned: dict[tuple[Model, str], None] = {}
        """The measured models and classes of which the factors do not know yet."""
        self._earlier = EarlierRuns()
        self._tried: set[tuple[Model, str]] = set()
        self._averages: dict[Model, Average] = {}
        self._estimates: dict[Model, Estimates] = {}
        self._guesses: dict[Model, Estimates] = {}
        """Those that rest on measurements of other models, too."""
        self.slots: dict[str, int] = {}
        self._seen = 0
        self._review_at = 1
        self._used: dict[tuple[Model, str], float] = {}
        self.is_settled = False
        self.moved = 0
        self._counted: dict[tuple[Model, str], float] = {}
        """The means as they were when they were last counted in `moved`."""

    def recall(self, speeds: Iterable[KeptSpeed]) -> None:
        """Forget what was measured, and begin with what earlier runs have measured."""
        self._measured, self._all, self._tried = {}, {}, set()
        self._factors, self._earlier = Factors(), EarlierRuns()
        self._unlearned.clear()
        self._averages.clear()
        self._estimates.clear()
        self._guesses.clear()
        self._seen, self._review_at, self._used = 0, 1, {}
        self._counted.clear()
        for speed in speeds:
            seconds = self._earlier.take(speed)
            mean = self._all.setdefault(speed.kind, Mean())
            mean.add(_KEPT_STEPS, _KEPT_STEPS * speed.per_step)
            self._factors.learn(speed.model, speed.kind, seconds)
        self.is_settled = bool(self._all)

    @property
    def kept(self) -> list[KeptSpeed]:
        """The speeds that this run has measured, for later runs."""
        return [
            KeptSpeed(model=model, kind=kind, seconds=mean.seconds, steps=mean.steps)
            for model, measured in self._measured.items()
            for kind, mean in measured.items()
        ]

    def seconds_per_step(self, node: Node, kind: str | None = None) -> float:
        """Return the estimate for a node; 1.0 while nothing has been measured.

        Parameters
        ----------
        kind
            The class of the worker; None for an average slot: the slots of all classes, each
            busy with this model, train so many steps a second. A length of paths must not
            depend on where a stage will run, which is decided later and by these lengths.
            Between two reviews this mean stays the same, so that lengths can be compared.
        """
        if not self._all:
            return 1.0
        if kind is None and len(self.slots) > 1:
            return self._average(self.model_of(node)).seconds
        if kind is None:
            kind = next(iter(self.slots or self._all))
        return self._estimate(self.model_of(node), kind)

    def by_class(self, node: Node) -> Estimates:
        """Return the estimates for a node on each class."""
        return self._by_class(self.model_of(node))

    def profile(self, node: Node) -> Profile:
        """Return how fast the classes may be for a node; empty where all slots are of one class."""
        return self._average(self.model_of(node)).profile if len(self.slots) > 1 else ()

    @property
    def measurements(self) -> int:
        """Number of measurements in this run."""
        return self._seen

    @property
    def is_known(self) -> bool:
        """Whether anything has been measured."""
        return bool(self._all)

    def doubt(self, node: Node, kind: str) -> float:
        """Return how much faster than estimated a class may be for a node, in logarithms.

        That is a standard deviation of the ratios that the estimate is made of; 0 where the
        model was measured, or is being tried, or where nothing is known of it at all. By this
        doubt each pair of model and class is tried once, if it may be the best one.
        """
        return self._doubt(self.model_of(node), kind)

    def _doubt(self, model: Model, kind: str) -> float:
        if kind in self._measured.get(model, ()) or (model, kind) in self._tried:
            return 0.0
        known = self._known(model)
        if kind in known:
            return self._earlier.doubt(kind)
        return min((self._ratios().spread(other, kind) for other in known), default=0.0)

    def began(self, node: Node, kind: str) -> None:
        """Note that a model is being tried on a class."""
        if len(self.slots) < 2:
            return
        model = self.model_of(node)
        if kind not in self._measured.get(model, ()):
            self._tried.add((model, kind))
            self._averages.pop(model, None)
            self._guesses.pop(model, None)

    def set_slots(self, slots: Mapping[str, int]) -> bool:
        """Set how many slots there are of each class; return whether profiles have changed.

        They have when a class has come or gone, if that leaves or left several; and lengths with
        them, if anything has been measured.
        """
        # In one order: profiles have no names, and outlive the workers that made the order.
        before, self.slots = self.slots, dict(sorted(slots.items()))
        self._averages.clear()
        self._estimates.clear()
        self._guesses.clear()
        return before.keys() != slots.keys() and max(len(before), len(slots)) > 1

    def observe(self, node: Node, *, steps: int, seconds: float, kind: str = "") -> bool:
        """Add a measurement; return whether lengths should be recomputed from the estimates.

        That is so the first time, and later when the number of measurements has doubled (with
        several classes, grown by a quarter: there is more to learn) and an estimate moved by
        more than a tenth: rarely, so that what it costs to reweigh everything is small beside
        the events themselves.
        """
        if steps <= 0 or seconds <= 0:
            return False
        model = self.model_of(node)
        measured = self._measured.setdefault(model, {})
        mean = measured.get(kind) or self._begin(model, kind)
        mean.add(steps, seconds, memory=_MEMORY_STEPS)
        if abs(mean.per_step - self._counted.get((model, kind), 0.0)) > _CHANGE * mean.per_step:
            self._counted[model, kind] = mean.per_step
            self.moved += 1
        self._all.setdefault(kind, Mean()).add(steps, seconds)
        self._earlier.compare(model, kind, seconds / steps)
        if len(self._all) > 1:
            self._unlearned[model, kind] = None
        self._averages.pop(model, None)
        self._estimates.pop(model, None)
        self._guesses.clear()
        self._seen += 1
        if self._seen < self._review_at:
            return False
        growth = self._seen if len(self._all) == 1 else 1 + self._seen // _GROWTH
        self._review_at = self._seen + growth
        return self._has_moved()

    def _begin(self, model: Model, kind: str) -> Mean:
        """Return the mean of a model on a class before it is measured in this run."""
        earlier = self._earlier.seconds(model).get(kind)
        mean = self._measured[model][kind] = Mean()
        if earlier is not None:
            mean.add(_KEPT_STEPS, _KEPT_STEPS * earlier)
        return mean

    def _ratios(self) -> Factors:
        """Return the factors with all that was measured.

        Measurements are frequent and questions few: there is none once each model was measured on
        each class.
        """
        for model, kind in self._unlearned:
            self._factors.learn(model, kind, self._known(model))
        self._unlearned.clear()
        return self._factors

    def _known(self, model: Model) -> dict[str, float]:
        """Return the seconds of a step of a model on the classes that it was measured on."""
        measured = self._measured.get(model, {})
        now = {kind: mean.per_step for kind, mean in measured.items()}
        return self._earlier.seconds(model) | now if model in self._earlier else now

    def _average(self, model: Model) -> Average:
        """Return the mean over slots, and the profile, of a model."""
        average = self._averages.get(model)
        if average is None:
            seconds, doubts = self._by_class(model)
            counts = self.slots.values()
            mean = sum(counts) / sum(
                count / each for count, each in zip(counts, seconds, strict=True)
            )
            hopes = [each * math.exp(-doubt) for each, doubt in zip(seconds, doubts, strict=True)]
            average = self._averages[model] = Average(mean, profile_of(hopes, mean))
        return average

    def _by_class(self, model: Model) -> Estimates:
        """Return the seconds of a step, and the doubts, of a model."""
        estimates = self._estimates.get(model) or self._guesses.get(model)
        if estimates is None:
            is_measured = self.slots.keys() <= self._measured.get(model, {}).keys()
            kept = self._estimates if is_measured else self._guesses
            estimates = kept[model] = Estimates(
                tuple(self._estimate(model, kind) for kind in self.slots),
                tuple(self._doubt(model, kind) for kind in self.slots),
            )
        return estimates

    def _has_moved(self) -> bool:
        now = {
            (model, kind): mean.per_step
            for model, measured in self._measured.items()
            for kind, mean in measured.items()
        }
        moved = any(
            abs(value - self._used.get(each, 0.0)) > _CHANGE * value for each, value in now.items()
        )
        self._used = now
        self._averages.clear()
        return moved

    def _estimate(self, model: Model, kind: str) -> float:
        measured = self._measured.get(model)
        mean = None if measured is None else measured.get(kind)
        if mean is not None:
            return mean.seconds / mean.steps
        known = self._known(model)
        if not known:
            return self._guess(model, kind)
        if kind in known:
            return known[kind]
        logs = [
            math.log(seconds) + self._ratios().log_between(other, kind, model)
            for other, seconds in known.items()
        ]
        return math.exp(sum(logs) / len(logs))

    def _guess(self, model: Model, kind: str) -> float:
        """Return the estimate for a model that was never measured."""
        if not self._all:
            return 1.0
        seconds = sum(
            mean.seconds * math.exp(self._ratios().log_between(other, kind, model))
            for other, mean in self._all.items()
        )
        return seconds / sum(mean.steps for mean in self._all.values())

    def model_of(self, node: Node) -> Model:
        """Return the model of a node."""
        model = self._models.get(node)
        if model is None:
            devices = devices_at(node.sequences, node.start)
            model = self._model_at(node.sequences, node.start, devices)
            model = self._models[node] = self._same_models.setdefault(model, model)
        return model

    def _model_at(self, sequences: Sequences, step: Step, devices: int) -> Model:
        """Return the model of a configuration on several devices, which is another than on one."""
        values = self._values_at(without_devices(sequences), step)
        return model_of(values if devices == 1 else {**values, DEVICES: devices})

    def speedups(
        self, sequences: Sequences, step: Step, numbers: Iterable[int]
    ) -> dict[int, float]:
        """Return how many times the steps of one device several devices train in a second.

        Parameters
        ----------
        sequences, step
            The configuration, and the step at which its values count.
        numbers
            Numbers of devices > 1; those that were not measured are left out.

        Returns
        -------
        dict
            The mean over the classes on which a number was measured; empty if one device was not
            measured, else also 1 for one device.
        """
        alone = self._model_at(sequences, step, 1)
        if not self._known(alone):
            return {}
        speedups = {1: 1.0}
        for devices in numbers:
            known = self._known(self._model_at(sequences, step, devices))
            logs = [
                math.log(self._estimate(alone, kind) / seconds) for kind, seconds in known.items()
            ]
            if logs:
                speedups[devices] = math.exp(sum(logs) / len(logs))
        return speedups


def _values_at(sequences: Sequences, step: Step) -> Mapping[str, Value]:
    return {name: function(step) for name, function in sequences.items()}

"""Measured seconds per step, by model and class of workers, learned while stages run."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping

from dasktune.graph.plan import Node
from dasktune.types import Sequences, Step, Value

Model = tuple[tuple[str, object], ...]
"""Hyper-parameters that are not floats, with their values: what decides a step's cost."""

_MEMORY_STEPS = 10_000.0
_CHANGE = 0.1
_GROWTH = 4
"""With several classes, lengths are reviewed when measurements have grown by a quarter."""


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


class Factors:
    """How much longer a step takes on one class than on another, over all models.

    The factor from one class to another is the geometric mean of the ratios of the models that
    were measured on both; 1 where there is no such model.
    """

    def __init__(self) -> None:
        self._logs: dict[tuple[str, str], dict[Model, float]] = defaultdict(dict)
        self._sums: dict[tuple[str, str], float] = defaultdict(float)

    def learn(self, model: Model, kind: str, measured: Mapping[str, Mean]) -> None:
        """Take the ratios of a model that was just measured on a class to its other classes."""
        for other, mean in measured.items():
            if other != kind:
                log = math.log(measured[kind].per_step / mean.per_step)
                self._set(other, kind, model, log)
                self._set(kind, other, model, -log)

    def between(self, kind: str, other: str) -> float:
        """Return the seconds of a step on `other`, as a multiple of those on `kind`."""
        logs = self._logs.get((kind, other))
        return math.exp(self._sums[kind, other] / len(logs)) if logs else 1.0

    def _set(self, kind: str, other: str, model: Model, log: float) -> None:
        logs = self._logs[kind, other]
        self._sums[kind, other] += log - logs.get(model, 0.0)
        logs[model] = log


class Speeds:
    """Mean seconds per step by model and class; estimates where nothing was measured.

    Models are told apart by what is not a float (batch size, architecture, optimizer): a
    learning rate does not change what a step costs. Older measurements fade once a model has
    seen 10,000 steps on a class.

    A model that was measured on other classes only is estimated from those and the factor of
    its class, in the geometric mean; a model that was never measured from the mean of all
    models, each brought to the same class by its factor.

    Parameters
    ----------
    values_at
        Gives the hyper-parameters at a step; None for those of the sequences themselves. On
        recorded curves a trial is but the number of what was recorded.
    """

    def __init__(
        self, values_at: Callable[[Sequences, Step], Mapping[str, Value]] | None = None
    ) -> None:
        self._values_at = values_at or _values_at
        self._measured: dict[Model, dict[str, Mean]] = {}
        self._models: dict[Node, Model] = {}
        self._all: dict[str, Mean] = {}
        self._factors = Factors()
        self._slots: dict[str, int] = {}
        self._seen = 0
        self._review_at = 1
        self._used: dict[tuple[Model, str], float] = {}

    def seconds_per_step(self, node: Node, kind: str | None = None) -> float:
        """Return the estimate for a node; 1.0 while nothing has been measured.

        Parameters
        ----------
        kind
            The class of the worker; None for an average slot: the slots of all classes, each
            busy with this model, train so many steps a second. A length of paths must not
            depend on where a stage will run, which is decided later and by these lengths.
        """
        if not self._all:
            return 1.0
        model = self._model_of(node)
        if kind is not None:
            return self._estimate(model, kind)
        if len(self._slots) < 2:
            return self._estimate(model, next(iter(self._slots or self._all)))
        steps = sum(count / self._estimate(model, each) for each, count in self._slots.items())
        return sum(self._slots.values()) / steps

    @property
    def is_known(self) -> bool:
        """Whether anything has been measured."""
        return bool(self._all)

    def set_slots(self, slots: Mapping[str, int]) -> bool:
        """Set how many slots there are of each class; return whether lengths should follow.

        They should when a class has come or gone, if that leaves or left several.
        """
        before, self._slots = self._slots, dict(slots)
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
        model = self._model_of(node)
        measured = self._measured.setdefault(model, {})
        measured.setdefault(kind, Mean()).add(steps, seconds, memory=_MEMORY_STEPS)
        self._all.setdefault(kind, Mean()).add(steps, seconds)
        self._factors.learn(model, kind, measured)
        self._seen += 1
        if self._seen < self._review_at:
            return False
        growth = self._seen if len(self._all) == 1 else 1 + self._seen // _GROWTH
        self._review_at = self._seen + growth
        return self._has_moved()

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
        return moved

    def _estimate(self, model: Model, kind: str) -> float:
        measured = self._measured.get(model)
        if measured is None:
            seconds = sum(
                mean.seconds * self._factors.between(other, kind)
                for other, mean in self._all.items()
            )
            return seconds / sum(mean.steps for mean in self._all.values())
        if kind in measured:
            return measured[kind].per_step
        logs = [
            math.log(mean.per_step * self._factors.between(other, kind))
            for other, mean in measured.items()
        ]
        return math.exp(sum(logs) / len(logs))

    def _model_of(self, node: Node) -> Model:
        model = self._models.get(node)
        if model is None:
            values = self._values_at(node.sequences, node.start).items()
            model = tuple(sorted(pair for pair in values if not isinstance(pair[1], float)))
            self._models[node] = model
        return model


def _values_at(sequences: Sequences, step: Step) -> Mapping[str, Value]:
    return {name: function(step) for name, function in sequences.items()}

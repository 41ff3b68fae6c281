"""Recorded seconds on several compute classes: measured, or brought from another class.

A step was measured on one class. On another class it takes so many times as long as

1. the mean step of its configuration did, if both classes ran steps of that configuration;
2. the mean step of its model did, if both classes ran steps of that model: of all
   configurations whose hyper-parameters, floats aside, are equal;
3. the models did that both classes ran (`dasktune.graph.speeds.Factors`).

Where no model was run by both classes, nothing tells them apart: they count as equally fast.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasktune.errors import unknown
from dasktune.graph.kept_speeds import Model
from dasktune.graph.speeds import Factors, Mean

UNKNOWN = -1
"""In place of the number of a class: the class is not known."""

Floats = NDArray[np.floating[Any]]
Integers = NDArray[np.integer[Any]]


class ClassSeconds:
    """The seconds of all steps of a trace, on each of its classes.

    Parameters
    ----------
    seconds
        ``(configurations, steps)``: the measured seconds; NaN where missing.
    kinds
        The number of the class that measured each of them, or `UNKNOWN`.
    classes
        The names of the classes, by number.
    """

    def __init__(
        self, seconds: Floats, kinds: Integers, classes: Sequence[str], models: Sequence[Model]
    ) -> None:
        self._seconds, self._kinds = seconds, kinds
        self._classes, self._models = classes, models
        of_class = [np.isfinite(seconds) & (kinds == number) for number in range(len(classes))]
        self._counts = np.stack([each.sum(axis=1) for each in of_class], axis=1)
        self._totals = np.stack(
            [np.where(each, seconds, 0.0).sum(axis=1) for each in of_class], axis=1
        )

    def on(self, name: str) -> Floats:
        """Return the seconds on a class; NaN where no class measured a step."""
        wanted = self._classes.index(name)
        ratios = np.ones((len(self._models), len(self._classes)))
        for number in range(len(self._models)):
            for kind in range(len(self._classes)):
                if kind != wanted and self._counts[number, kind]:
                    ratios[number, kind] = self._ratio(number, kind, wanted)
        taken = np.take_along_axis(ratios, np.maximum(self._kinds, 0), axis=1)
        brought: Floats = self._seconds * np.where(self._kinds == UNKNOWN, 1.0, taken)
        return brought

    def _ratio(self, number: int, kind: int, wanted: int) -> float:
        """Return a step's seconds on the class `wanted` over those on the class `kind`."""
        model, names = self._models[number], self._classes
        own = _means(names, self._totals[number], self._counts[number])
        for means in (own, self._measured[model]):
            if names[kind] in means and names[wanted] in means:
                return means[names[wanted]].per_step / means[names[kind]].per_step
        return math.exp(self._factors.log_between(names[kind], names[wanted], model))

    @cached_property
    def _measured(self) -> Mapping[Model, Mapping[str, Mean]]:
        """The means of each model on the classes that ran it."""
        measured = {}
        for model in dict.fromkeys(self._models):
            rows = [number for number, each in enumerate(self._models) if each == model]
            totals, counts = self._totals[rows].sum(axis=0), self._counts[rows].sum(axis=0)
            measured[model] = _means(self._classes, totals, counts)
        return measured

    @cached_property
    def _factors(self) -> Factors:
        factors = Factors()
        for model, means in self._measured.items():
            seconds = {name: mean.per_step for name, mean in means.items()}
            for name in means:
                factors.learn(model, name, seconds)
        return factors


def _means(names: Sequence[str], totals: Floats, counts: Integers) -> dict[str, Mean]:
    """Return the means of the classes for which there is one that is not 0."""
    means = {}
    for name, seconds, steps in zip(names, totals.tolist(), counts.tolist(), strict=True):
        if seconds > 0:
            means[name] = Mean()
            means[name].add(steps, seconds)
    return means


def class_problems(
    classes: tuple[str, ...], kinds: Integers | None, shape: tuple[int, ...]
) -> list[str]:
    """Return the reasons why a trace cannot have these classes."""
    if kinds is None:
        return ["kinds must be there for a trace with classes"] if classes else []
    problems = []
    if len(classes) < 2 or len(set(classes)) < len(classes) or not all(classes):
        problems.append(
            f"classes must be none, or 2 or more different names, got {', '.join(classes) or '-'}"
        )
    if kinds.shape != shape or kinds.dtype.kind not in "iu":
        problems.append(f"kinds must be an int for each of {shape}, got {kinds.shape}")
    elif ((kinds < UNKNOWN) | (kinds >= len(classes))).any():
        problems.append(f"kinds must be {UNKNOWN} to {len(classes) - 1}, the numbers of classes")
    return problems


def pool_on(classes: tuple[str, ...], workers: object) -> list[str]:
    """Return the problems of workers by class whose seconds a trace of these classes gives."""
    if not classes or not isinstance(workers, Mapping):
        return []
    return [unknown("class", name, classes) for name in workers if name not in classes]

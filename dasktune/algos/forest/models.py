"""Models: the options that tell one tree of a space from another.

A space is a tree. An *exclusive* choice takes one of several subtrees, an *optional* one takes a
subtree or leaves it out. The product of these choices is the forest: each of its trees is a
*model*, and all of them have the hyper-parameters outside the choices [1].

References
----------
[1] Kinnison et al., "SHADHO: Massively Scalable Hardware-Aware Distributed Hyperparameter
Optimization", section 4.1 and figure 2.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Final

import numpy as np

from dasktune.errors import ConfigurationError, refuse, unknown
from dasktune.space import (
    Branch,
    Choice,
    Chooser,
    Configuration,
    Domain,
    Drawing,
    Family,
    Float,
    Int,
    Space,
)
from dasktune.space.define_by_run import AnySpace, DefinedByRun
from dasktune.space.drawing import PointChooser
from dasktune.types import Value

MOST_MODELS: Final = 500
"""Most models of a forest: a study that tries each of them a few times has no time for more."""

PROBES: Final = 2 * MOST_MODELS
"""Most random points of a define-by-run space at which its first models are looked for."""

_QUIET: Final = 100
"""As many points in a row without a new model end this."""

_SHOWN = 6

Domains = Mapping[str, Mapping[str, object]]
"""The domain of each coordinate, as in `dasktune.space.Configuration`."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model of a forest.

    Parameters
    ----------
    options
        ``(coordinate, label)`` of each choice on its path, in the order of the space.

    Examples
    --------
    >>> str(Model((("kernel", "poly"), ("scaled", True))))
    'kernel=poly, scaled=true'
    """

    options: tuple[tuple[str, Value], ...]

    def __str__(self) -> str:
        return ", ".join(f"{name}={_text(label)}" for name, label in self.options) or "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Splitting:
    """The rule that says which choices of a space tell models apart.

    Parameters
    ----------
    choices
        Coordinates of choices. None takes every choice of a `dasktune.Space` with an option
        that is a domain, such as a `dasktune.Branch` or a `dasktune.Family`, and every
        categorical suggestion of a define-by-run space.
    """

    choices: frozenset[str] | None = None

    def splits(self, name: str, domain: Choice, *, by_run: bool) -> bool:
        """Return whether the choice at a coordinate tells models apart."""
        if self.choices is not None:
            return name in self.choices
        return by_run or any(isinstance(option, Domain) for option in domain.options)

    def pick(
        self, space: AnySpace, chooser: Chooser, model: Model | None = None
    ) -> tuple[Configuration, Model]:
        """Return the configuration that a chooser chooses, and its model.

        Parameters
        ----------
        space
            The whole space.
        chooser
            Chooses the coordinates.
        model
            Takes its options in place of the chooser's, where they exist.
        """
        walking = _Walking(self, chooser, model, by_run=isinstance(space, DefinedByRun))
        configuration = space.pick(walking)
        return configuration, Model(tuple(walking.path.items()))

    def at(
        self, space: AnySpace, point: Mapping[str, Value], otherwise: Chooser | None
    ) -> tuple[Configuration, Model]:
        """Return the configuration at a point, as `dasktune.Space.at` does, and its model."""
        following = PointChooser(point, otherwise)
        configuration, model = self.pick(space, following)
        if not configuration.problem:
            following.check(configuration.point)
        return configuration, model


class _Walking:
    """Chooses the options of a model, leaves the rest to another chooser, and notes the path."""

    def __init__(
        self, rule: Splitting, chooser: Chooser, model: Model | None, *, by_run: bool
    ) -> None:
        self._rule, self._chooser, self._by_run = rule, chooser, by_run
        self._fixed = dict(model.options) if model else {}
        self.path: dict[str, Value] = {}

    def number(self, name: str, domain: Float | Int) -> float | int:
        return self._chooser.number(name, domain)

    def option(self, name: str, domain: Choice) -> int:
        if not self._rule.splits(name, domain, by_run=self._by_run):
            return self._chooser.option(name, domain)
        if name in self._fixed and self._fixed[name] in domain.labels:
            position = domain.labels.index(self._fixed[name])
        else:
            position = self._chooser.option(name, domain)
        self.path[name] = domain.labels[position]
        return position


class ModelSpace:
    """The space of one model: the whole space without the choices that tell models apart.

    Parameters
    ----------
    space
        The whole space.
    model
        Its options are taken; they are no coordinates here.
    rule
        The rule by which the space was split.
    """

    def __init__(self, space: AnySpace, model: Model, rule: Splitting) -> None:
        self._space, self._model, self._rule = space, model, rule

    def pick(self, chooser: Chooser) -> Configuration:
        """Return the configuration with the coordinates that `chooser` chooses."""
        configuration, _ = self._rule.pick(self._space, chooser, self._model)
        return without(configuration, self._model)

    def at(self, point: Mapping[str, Value], otherwise: Chooser | None = None) -> Configuration:
        """Return the configuration at a point, as `dasktune.Space.at` does."""
        following = PointChooser(point, otherwise)
        configuration = self.pick(following)
        if not configuration.problem:
            following.check(configuration.point)
        return configuration


def without(configuration: Configuration, model: Model) -> Configuration:
    """Return a configuration without the coordinates that its model decides."""
    fixed = dict(model.options)
    point = {name: value for name, value in configuration.point.items() if name not in fixed}
    domains = {name: configuration.domains[name] for name in point}
    return replace(configuration, point=point, domains=domains)


def models_of(space: AnySpace, rule: Splitting, seed: int = 0) -> dict[Model, Domains]:
    """Return the models of a space, each with the domains of its coordinates.

    Of a `dasktune.Space` they are all models, in the order of its options. Of a define-by-run
    space they are those at random points, `PROBES` at most: more appear as their paths are seen.

    Parameters
    ----------
    space
        The space to split.
    rule
        Which of its choices tell models apart.
    seed
        Decides the random points.

    Raises
    ------
    ConfigurationError
        If there are more than `MOST_MODELS`; they are counted before any is built. If the
        rule names a choice that the space does not have, or one inside a choice that it does
        not name.

    Examples
    --------
    >>> space = Space(C=Float(0.1, 9), kernel=[Branch("rbf", Space(g=Float(1, 9))), "linear"])
    >>> [(str(model), *domains) for model, domains in models_of(space, Splitting()).items()]
    [('kernel=rbf', 'C', 'kernel.rbf.g'), ('kernel=linear', 'C')]
    """
    rng = np.random.default_rng(seed)
    if isinstance(space, DefinedByRun):
        return _seen(space, rule, rng)
    count = _Count(rule)
    models = prod(count.models(name, domain) for name, domain in space.dimensions)
    refuse(count.problems())
    if models > MOST_MODELS:
        raise ConfigurationError(_too_many(f"{models:,}", count.options))
    return dict(_built(space, rule, rng))


def _built(
    space: Space, rule: Splitting, rng: np.random.Generator
) -> Iterator[tuple[Model, Domains]]:
    """Yield all models of a space; the options of the last choice change fastest."""
    path: list[tuple[int, int]] = []
    while True:
        counting = _Counting(rule, Drawing(rng), [position for position, _ in path])
        configuration, model = rule.pick(space, counting)
        yield model, without(configuration, model).domains
        path = counting.path
        while path and path[-1][0] + 1 == path[-1][1]:
            path.pop()
        if not path:
            return
        path[-1] = path[-1][0] + 1, path[-1][1]


class _Counting:
    """Takes the options of splitting choices by position, the first option after the last."""

    def __init__(self, rule: Splitting, drawing: Drawing, positions: list[int]) -> None:
        self._rule, self._drawing, self._positions = rule, drawing, positions
        self.path: list[tuple[int, int]] = []

    def number(self, name: str, domain: Float | Int) -> float | int:
        return self._drawing.number(name, domain)

    def option(self, name: str, domain: Choice) -> int:
        if not self._rule.splits(name, domain, by_run=False):
            return self._drawing.option(name, domain)
        at = len(self.path)
        position = self._positions[at] if at < len(self._positions) else 0
        self.path.append((position, len(domain.options)))
        return position


def _seen(space: DefinedByRun, rule: Splitting, rng: np.random.Generator) -> dict[Model, Domains]:
    """Return the models at random points of a define-by-run space."""
    models: dict[Model, Domains] = {}
    options: dict[str, int] = {}
    quiet = 0
    for _ in range(PROBES):
        configuration, model = rule.pick(space, Drawing(rng))
        quiet = quiet + 1 if model in models else 0
        if quiet == _QUIET:
            break
        domains = without(configuration, model).domains
        models[model] = {**models.get(model, {}), **domains}
        for name, _ in model.options:
            labels = configuration.domains[name]["options"]
            options[name] = len(labels) if isinstance(labels, list) else 1
        if len(models) > MOST_MODELS:
            raise ConfigurationError(_too_many(f"at least {len(models):,}", options))
    unseen = (rule.choices or frozenset()) - options.keys()
    refuse(unknown("choice", name, options) for name in sorted(unseen))
    return models


class _Count:
    """Counts the models of a space without building them.

    Attributes
    ----------
    options
        The number of options of each splitting choice, by coordinate.
    """

    def __init__(self, rule: Splitting) -> None:
        self._rule = rule
        self.options: dict[str, int] = {}
        self._choices: list[str] = []
        self._hidden: list[tuple[str, str]] = []

    def models(self, name: str, domain: object, inside: str = "") -> int:
        """Return the number of models of the domain at a coordinate.

        `inside` is a choice around it that does not tell models apart.
        """
        match domain:
            case Branch():
                parts = domain.dimensions
            case Family():
                parts = domain.arguments
            case Choice():
                return self._options(name, domain, inside)
            case _:
                parts = ()
        return prod(self.models(f"{name}.{inner}", part, inside) for inner, part in parts)

    def problems(self) -> Iterator[str]:
        """Yield the problems of the choices that the rule names."""
        for name in sorted(self._rule.choices or ()):
            if name not in self._choices:
                yield unknown("choice", name, self._choices)
        for name, around in self._hidden:
            yield f"choices must name {around!r}, too, because {name!r} is inside it"

    def _options(self, name: str, domain: Choice, inside: str) -> int:
        is_free = len(domain.options) > 1
        splits = is_free and self._rule.splits(name, domain, by_run=False)
        if is_free:
            self._choices.append(name)
        if splits:
            self.options[name] = len(domain.options)
            if inside:
                self._hidden.append((name, inside))
        hides = inside or (name if is_free and not splits else "")
        counts = [
            self.models(f"{name}.{label}", option, hides)
            for label, option in zip(domain.labels, domain.options, strict=True)
        ]
        return sum(counts) if splits or not is_free else 1


def _too_many(count: str, options: Mapping[str, int]) -> str:
    largest = sorted(options.items(), key=lambda pair: -pair[1])
    shown = [f"{name!r} ({number} options)" for name, number in largest[:_SHOWN]]
    shown += [f"and {len(largest) - _SHOWN} more"] if len(largest) > _SHOWN else []
    return (
        f"a forest must have at most {MOST_MODELS:,} models, got {count}, by the choices "
        f"{', '.join(shown)}; Forest(choices=[...]) names those that tell models apart"
    )


def _text(label: Value) -> str:
    """Return an option's label as text, its quotes left out where none are needed."""
    if not isinstance(label, str):
        return json.dumps(label)
    try:
        json.loads(label)
    except ValueError:
        return label
    return json.dumps(label)

"""A space: the domains of all hyper-parameters, for grids and samples."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from typing import Final

import numpy as np

from dasktune._lazy import method_of
from dasktune._numbers import number_of
from dasktune.errors import ConfigurationError, name_problems, refuse, shown
from dasktune.needs import GivenNeeds, Needs, needs_problems
from dasktune.sequences import Constant, Sequence, as_sequence
from dasktune.sequences.values import BY_NAME, reads_as_number
from dasktune.space.domains import (
    Choice,
    Chooser,
    Domain,
    Drawing,
    arguments_text,
    listed,
    of_optuna,
    total_size,
)
from dasktune.space.drawing import PointChooser, RecordingChooser
from dasktune.types import Value

MOST_GRID_POINTS: Final = 1_000_000
"""Most points of a grid; a larger grid would fill the memory and is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One point of a space.

    Parameters
    ----------
    params
        The hyper-parameters by name, as tables show them: plain values, or texts of sequences.
    sequences
        The hyper-parameters by name as sequences.
    point, domains
        Chosen value and domain (JSON) of each coordinate of the space; see
        `dasktune.space.Chooser`. Empty in a grid, which has no chooser.
    seed
        Added to the training seed of the study; repeats differ by it.
    problem
        Why it cannot be trained: a function that defines its space has raised. Empty if it can.
    """

    params: Mapping[str, Value]
    sequences: Mapping[str, Sequence]
    point: Mapping[str, Value] = field(default_factory=dict)
    domains: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    seed: int = 0
    problem: str = field(default="", compare=False)

    def objects(self) -> dict[str, Value | Sequence]:
        """Return the hyper-parameters by name: constants as plain values, others as sequences."""
        return {name: _plainly(sequence) for name, sequence in self.sequences.items()}


_NOTHING = Configuration(params={}, sequences={})
"""The configuration of a branch without a space."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Branched:
    """A chosen branch with a configuration of its space."""

    name: Value | Sequence
    inner: Configuration


@dataclass(frozen=True, slots=True)
class Branch(Domain):
    """An option with hyper-parameters, or needs, of its own.

    If it is chosen, the hyper-parameter has the value `name`, and the trial has the
    hyper-parameters of `space`, too. Other trials do not have them.

    Parameters
    ----------
    name
        The value of the hyper-parameter: a plain value or a sequence.
    space
        The further hyper-parameters; None if there are none.
    needs
        What the worker of such a trial must have beside the needs of the study; see
        `dasktune.create_study`. They are no part of the identity of the space.

    Examples
    --------
    >>> space = Space(optimizer=[Branch("sgd", Space(momentum=[0.0, 0.9])), "adam"])
    >>> [dict(point.params) for point in space.configurations()][1:]
    [{'optimizer': 'sgd', 'momentum': 0.9}, {'optimizer': 'adam'}]
    """

    name: Value | Sequence
    space: Space | None = None
    needs: GivenNeeds | None = field(default=None, kw_only=True, compare=False)

    def __post_init__(self) -> None:
        problems = [f"Branch: {problem}" for problem in needs_problems(self.needs)]
        try:
            sequence = as_sequence(self.name)
        except ConfigurationError as error:
            problems += [f"Branch: name: {problem}" for problem in error.problems]
        if not isinstance(self.space, Space | None):
            problems.append(f"Branch: space must be a Space, got {self.space!r}")
        refuse(problems)
        object.__setattr__(self, "name", _plainly(sequence))
        object.__setattr__(self, "needs", None if self.needs is None else Needs.of(self.needs))

    def __repr__(self) -> str:
        parts = [self.name, *(part for part in (self.space, self.needs) if part is not None)]
        return f"Branch({', '.join(map(repr, parts))})"

    @property
    def dimensions(self) -> tuple[tuple[str, Domain], ...]:
        """The further hyper-parameters with their domains."""
        return () if self.space is None else self.space.dimensions

    @property
    def size(self) -> int | None:
        """Number of points of its space."""
        return 1 if self.space is None else self.space.size

    def points(self) -> Iterator[object]:
        """Return one point for each configuration of its space."""
        for inner in [_NOTHING] if self.space is None else self.space.configurations():
            yield _Branched(name=self.name, inner=inner)

    def choose(self, name: str, chooser: Chooser) -> object:
        """Return the point with the chosen configuration of its space."""
        inner = _NOTHING if self.space is None else self.space.chosen(chooser, f"{name}.")
        return _Branched(name=self.name, inner=inner)

    def to_json(self) -> dict[str, object]:
        """Return its identity as a JSON document."""
        name = self.name.to_json() if isinstance(self.name, Sequence) else self.name
        own = {} if self.space is None else {"space": self.space.to_json()}
        return {"domain": "Branch", "name": name, **own}

    def label(self) -> str:
        """Return its name as text; the trainer sees nothing else of the choice."""
        return repr(self.name) if isinstance(self.name, Sequence) else json.dumps(self.name)

    def short(self) -> Value:
        """Return its name."""
        return repr(self.name) if isinstance(self.name, Sequence) else self.name


@dataclass(frozen=True, slots=True, init=False)
class Space:
    """Hyper-parameters and their domains.

    Parameters
    ----------
    given, named
        By name: a plain value or a sequence (a fixed hyper-parameter), a list of options, or a
        domain: `Float`, `Int`, `Choice`, `Family`. Text that reads as a number is refused, except
        in a `Choice`.

    Attributes
    ----------
    dimensions
        The names and domains of the hyper-parameters, without those of branches.
    names
        The names of all hyper-parameters, those of branches included.

    Raises
    ------
    ConfigurationError
        If the space is empty or wrong; the message has all problems.

    Examples
    --------
    >>> from dasktune.sequences import Piecewise
    >>> space = Space(lr=[0.1, 0.2], batch_size=[64, Piecewise([64, 128], boundaries=[20])])
    >>> space.size
    4
    >>> [point.params["batch_size"] for point in space.configurations()][:2]
    [64, 'Piecewise([64, 128], boundaries=[20])']
    """

    dimensions: tuple[tuple[str, Domain], ...]
    names: tuple[str, ...] = field(init=False, compare=False)

    def __init__(self, given: Mapping[str, object] | None = None, /, **named: object) -> None:
        problems: list[str] = []
        dimensions: list[tuple[str, Domain]] = []
        pairs = [*(given or {}).items(), *named.items()]
        for name, value in pairs:
            try:
                dimensions.append((name, _dimension(name, value)))
            except ConfigurationError as error:
                problems += [f"{name}: {problem}" for problem in error.problems]
        names = [inner for name, domain in dimensions for inner in (name, *_inner_names(domain))]
        problems += [
            f"a name may come only once, got {name!r} {names.count(name)} times"
            for name in dict.fromkeys(names)
            if names.count(name) > 1
        ]
        for name in dict.fromkeys(names):
            problems += name_problems("the name of a hyper-parameter", name)
        if not pairs:
            problems.append("a space must have at least one hyper-parameter, got none")
        refuse(problems)
        object.__setattr__(self, "dimensions", tuple(dimensions))
        object.__setattr__(self, "names", tuple(names))

    _repr_html_ = method_of("dasktune.report.notebook:space_html")

    def __repr__(self) -> str:
        return f"Space({arguments_text(self.dimensions)})"

    @property
    def size(self) -> int | None:
        """Number of grid points; None if a domain is continuous."""
        return total_size(domain for _, domain in self.dimensions)

    def configurations(self) -> Iterator[Configuration]:
        """Return every configuration; the last hyper-parameter changes fastest.

        Raises
        ------
        ConfigurationError
            If a domain is continuous or there are more than `MOST_GRID_POINTS`.
        """
        refuse(
            f"{name}: a grid needs a finite number of points, got a continuous domain; "
            f"give it a step or sample it"
            for name, domain in self.dimensions
            if domain.size is None
        )
        if (self.size or 0) > MOST_GRID_POINTS:
            raise ConfigurationError(
                f"a grid must have at most {MOST_GRID_POINTS:,} points, got {self.size:,}"
            )
        return map(_merged, product(*(_entries(name, domain) for name, domain in self.dimensions)))

    def sample(self, rng: np.random.Generator) -> Configuration:
        """Return a random configuration; each coordinate is drawn on its own."""
        return self.pick(Drawing(rng))

    def at(self, point: Mapping[str, Value], otherwise: Chooser | None = None) -> Configuration:
        """Return the configuration at a point.

        Parameters
        ----------
        point
            Values by coordinate, as in `Configuration.point`.
        otherwise
            Chooses the coordinates that `point` lacks; with None it must have all.

        Raises
        ------
        ConfigurationError
            If a coordinate is missing or not of this space, or a value lies outside its
            domain.

        Examples
        --------
        >>> from dasktune.sequences import MultiStep
        >>> from dasktune.space import Family, Float
        >>> space = Space(lr=Family(MultiStep, init=Float(0.1, 0.2), milestones=[9], gamma=0.1))
        >>> space.at({"lr.init": 0.15}).sequences
        {'lr': MultiStep(0.15, milestones=[9], gamma=0.1)}
        """
        following = PointChooser(point, otherwise)
        configuration = self.pick(following)
        following.check(configuration.point)
        return configuration

    def pick(self, chooser: Chooser) -> Configuration:
        """Return the configuration with the coordinates that `chooser` chooses."""
        recorder = RecordingChooser(chooser)
        configuration = self.chosen(recorder)
        point, params = recorder.point, configuration.params
        if _is_same(point, params):
            params = point  # most points are plain values, and a large study has many
        return Configuration(
            params=params,
            sequences=configuration.sequences,
            point=point,
            domains=recorder.domains,
        )

    def chosen(self, chooser: Chooser, prefix: str = "") -> Configuration:
        """Return the chosen configuration without its point, as part of a larger space."""
        return _merged(
            _chosen(name, domain, chooser, prefix + name) for name, domain in self.dimensions
        )

    def to_json(self) -> dict[str, object]:
        """Return a JSON document that identifies the space, the order of its names included."""
        return {"dimensions": [[name, domain.to_json()] for name, domain in self.dimensions]}


def space_problem(given: object, wanted: str) -> str:
    """Return the problem of an argument that is no space, with the line to write."""
    text = shown(given)
    line = text if isinstance(given, Mapping) else "lr=dasktune.Float(low, high), ..."
    return f"space must be {wanted}, got {text}; write dasktune.Space({line})"


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Put the name of a hyper-parameter before each problem of its values."""
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(*(f"{name}: {text}" for text in error.problems)) from error


def _entries(name: str, domain: Domain) -> list[Configuration]:
    with _naming(name):
        return [_entry(name, point) for point in domain.points()]


def _chosen(name: str, domain: Domain, chooser: Chooser, coordinate: str) -> Configuration:
    with _naming(name):
        return _entry(name, domain.choose(coordinate, chooser))


def _entry(name: str, point: object) -> Configuration:
    """Return a point of one dimension as a part of a configuration."""
    if isinstance(point, _Branched):
        return Configuration(
            params={**_entry(name, point.name).params, **point.inner.params},
            sequences={name: as_sequence(point.name), **point.inner.sequences},
        )
    sequence = as_sequence(point)
    param = sequence.value if isinstance(sequence, Constant) else repr(sequence)
    return Configuration(params={name: param}, sequences={name: sequence})


def _is_same(point: Mapping[str, Value], params: Mapping[str, Value]) -> bool:
    """Whether two mappings hold the same objects in the same order."""
    same = (point.get(name) is value for name, value in params.items())
    return [*point] == [*params] and all(same)


def _plainly(sequence: Sequence) -> Value | Sequence:
    """Return a constant as its plain value, and other sequences as they are."""
    return sequence.value if isinstance(sequence, Constant) else sequence


def _merged(entries: Iterable[Configuration]) -> Configuration:
    params: dict[str, Value] = {}
    sequences: dict[str, Sequence] = {}
    for entry in entries:
        params.update(entry.params)
        sequences.update(entry.sequences)
    return Configuration(params=params, sequences=sequences)


def _dimension(name: object, value: object) -> Domain:
    if type(name) is not str or not name:
        raise ConfigurationError(f"a name must be a string that is not empty, got {name!r}")
    if isinstance(value, tuple) and len(value) == 2:
        low, high = map(number_of, value)
        if low is not None and high is not None:
            raise ConfigurationError(
                f"a tuple of two numbers may be a range or two choices, got {value!r}; write "
                f"dasktune.Float({low!r}, {high!r}) or [{low!r}, {high!r}]"
            )
    value = of_optuna(value)
    given = [] if isinstance(value, Domain) else listed(value)
    domain = value if isinstance(value, Domain) else Choice(given)
    options = domain.options if isinstance(domain, Choice) else ()
    if domain is not value:
        refuse(_texts_of_numbers(options))
    refuse(
        f"an option must be a plain value, a sequence or a domain, got {shown(text)}; give "
        f"{BY_NAME} in the trainer"
        for option, text in zip(options, given or options, strict=True)
        if isinstance(option, tuple)
    )
    return domain


def _texts_of_numbers(options: Iterable[object]) -> Iterator[str]:
    """Yield the problem of options that are text and read as numbers."""
    texts = [option for option in options if reads_as_number(option)]
    if texts:
        numbers = ", ".join(str(text).strip() for text in texts)
        yield (
            f"a number must not be text, got {', '.join(map(repr, texts))}; write {numbers}, or "
            f"dasktune.Choice({[*options]!r}) if text is meant"
        )


def _inner_names(domain: Domain) -> list[str]:
    """Return the names in the branches of a domain; alternatives may share names."""
    if isinstance(domain, Branch):
        return [] if domain.space is None else list(domain.space.names)
    options = domain.options if isinstance(domain, Choice) else ()
    inner = (_inner_names(option) for option in options if isinstance(option, Domain))
    return list(dict.fromkeys(name for names in inner for name in names))

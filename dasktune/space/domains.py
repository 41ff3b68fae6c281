"""Domains: the possible values of a hyper-parameter, or of an argument of a family."""

from __future__ import annotations

import inspect
import json
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from typing import Any, Final, Protocol

import numpy as np

from dasktune._numbers import number_of
from dasktune.errors import ConfigurationError
from dasktune.sequences import Constant, Sequence, as_sequence
from dasktune.sequences.values import Arguments, plain
from dasktune.types import Value

RANGE: Final = "dasktune.Float(low, high) or dasktune.Int(low, high)"
"""How a range is written, for errors."""

MOST_POINTS: Final = 2**62
"""Most points of a domain; one random 64-bit number can select from so many."""


class Chooser(Protocol):
    """Chooses the coordinates of a space one by one: at random, by a sampler, or by a point.

    A coordinate is a free number or a choice between options. Its name is the path to it:
    ``lr``, ``lr.gamma`` for an argument of a family, ``optimizer.sgd.momentum`` for a
    hyper-parameter of the option ``sgd`` of ``optimizer``.
    """

    def number(self, name: str, domain: Float | Int) -> float | int:
        """Return a point of `domain`."""

    def option(self, name: str, domain: Choice) -> int:
        """Return the position of an option of `domain`."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """A chooser that draws at random.

    Parameters
    ----------
    rng
        The generator that it draws from.
    """

    rng: np.random.Generator

    def number(self, name: str, domain: Float | Int) -> float | int:
        """Return a random point."""
        return domain.draw(self.rng)

    def option(self, name: str, domain: Choice) -> int:
        """Return a random option's position, all equally likely."""
        return int(self.rng.integers(len(domain.options)))


class Domain(ABC):
    """The possible values of a hyper-parameter, or of an argument of a family."""

    __slots__ = ()

    @property
    @abstractmethod
    def size(self) -> int | None:
        """Number of points; None if there are infinitely many."""

    @abstractmethod
    def points(self) -> Iterator[object]:
        """Return every point in order; only if there is a `size`."""

    @abstractmethod
    def choose(self, name: str, chooser: Chooser) -> object:
        """Return the point that `chooser` chooses; names of coordinates begin with `name`."""

    def draw(self, rng: np.random.Generator) -> object:
        """Return a random point; each coordinate is drawn on its own."""
        return self.choose("", Drawing(rng))

    @abstractmethod
    def to_json(self) -> dict[str, object]:
        """Return its identity as a JSON document."""

    def label(self) -> str:
        """Return a text that differs between the options of a choice."""
        return json.dumps(self.to_json())

    def short(self) -> Value:
        """Return its short name as an option; two options may have the same."""
        return self.label()


@dataclass(frozen=True, slots=True)
class Float(Domain):
    """The floats from `low` to `high`, both included.

    Parameters
    ----------
    low, high
        Bounds.
    log
        Sample uniformly in the logarithm; needs ``low > 0`` and no `step`.
    step
        Only ``low``, ``low + step``, ... up to `high`, computed in decimal, so that 0.3 is
        written 0.3.

    Attributes
    ----------
    document
        The domain as a JSON document. All trials share it: do not change it.

    Examples
    --------
    >>> list(Float(0.1, 0.3, step=0.1).points())
    [0.1, 0.2, 0.3]
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None
    document: Mapping[str, object] = field(init=False, compare=False, repr=False, hash=False)

    def __post_init__(self) -> None:
        check = Arguments("Float")
        object.__setattr__(self, "low", check.real("low", self.low))
        object.__setattr__(self, "high", check.real("high", self.high))
        if self.step is not None:
            object.__setattr__(self, "step", check.real("step", self.step))
        if not check.problems:
            _check_bounds(check, self, unstepped=None)
        check.refuse()
        document = {"domain": "Float", "low": self.low, "high": self.high}
        document |= {"log": self.log, "step": self.step}
        object.__setattr__(self, "document", document)

    @property
    def size(self) -> int | None:
        """Number of points between the bounds; None for a continuous range."""
        if self.step is None:
            return 1 if self.low == self.high else None
        return int((_exact(self.high) - _exact(self.low)) / _exact(self.step)) + 1

    def points(self) -> Iterator[float]:
        """Return every point, ascending."""
        return map(self._point, range(self.size or 0))

    def choose(self, name: str, chooser: Chooser) -> float:
        """Return the chosen point; a domain of one point is no coordinate."""
        return self.low if self.size == 1 else float(chooser.number(name, self))

    def draw(self, rng: np.random.Generator) -> float:
        """Return a random point."""
        if self.size is not None:
            return self._point(int(rng.integers(self.size)))
        if self.log:
            drawn = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
        else:
            w = rng.random()
            drawn = self.low * (1 - w) + self.high * w
        return min(max(drawn, self.low), self.high)

    def nearest(self, value: float) -> float:
        """Return the point that is closest to `value`."""
        value = min(max(float(value), self.low), self.high)
        if self.size is None:
            return value
        return self._point(min(self._position(value), self.size - 1))

    def __contains__(self, value: object) -> bool:
        value = number_of(value)
        if value is None:
            return False
        if not self.low <= value <= self.high:
            return False
        return self.step is None or self._point(self._position(value)) == value

    def __repr__(self) -> str:
        return _range_text(self, step=None)

    def short(self) -> str:
        """Return its bounds."""
        return f"Float({self.low}, {self.high})"

    def to_json(self) -> dict[str, object]:
        """Return its identity as a JSON document."""
        return {**self.document}

    def _position(self, value: float) -> int:
        return round((_exact(value) - _exact(self.low)) / _exact(self.step or 1.0))

    def _point(self, index: int) -> float:
        return float(_exact(self.low) + index * _exact(self.step or 0.0))


@dataclass(frozen=True, slots=True)
class Int(Domain):
    """The integers ``low``, ``low + step``, ... up to `high`, which is included if reached.

    Parameters
    ----------
    low, high
        Bounds.
    log
        Sample uniformly in the logarithm; needs ``low >= 1`` and ``step = 1``.
    step
        Distance from one point to the next.

    Attributes
    ----------
    document
        The domain as a JSON document. All trials share it: do not change it.

    Examples
    --------
    >>> list(Int(32, 128, step=32).points())
    [32, 64, 96, 128]
    """

    low: int
    high: int
    log: bool = False
    step: int = 1
    document: Mapping[str, object] = field(init=False, compare=False, repr=False, hash=False)

    def __post_init__(self) -> None:
        check = Arguments("Int")
        least = -MOST_POINTS
        object.__setattr__(self, "low", check.whole("low", self.low, at_least=least, at_most=None))
        object.__setattr__(
            self, "high", check.whole("high", self.high, at_least=least, at_most=None)
        )
        object.__setattr__(self, "step", check.whole("step", self.step, at_most=None))
        if not check.problems:
            _check_bounds(check, self, unstepped=1)
        check.refuse()
        document = {"domain": "Int", "low": self.low, "high": self.high}
        document |= {"log": self.log, "step": self.step}
        object.__setattr__(self, "document", document)

    @property
    def size(self) -> int:
        """Number of points."""
        return (self.high - self.low) // self.step + 1

    def points(self) -> Iterator[int]:
        """Return every point, ascending."""
        return iter(range(self.low, self.high + 1, self.step))

    def choose(self, name: str, chooser: Chooser) -> int:
        """Return the chosen point; a domain of one point is no coordinate."""
        return self.low if self.size == 1 else int(chooser.number(name, self))

    def draw(self, rng: np.random.Generator) -> int:
        """Return a random point."""
        if not self.log:
            return self.low + self.step * int(rng.integers(self.size))
        # Half a unit on both sides gives the outer integers their share.
        drawn = math.exp(rng.uniform(math.log(self.low - 0.5), math.log(self.high + 0.5)))
        return min(max(round(drawn), self.low), self.high)

    def nearest(self, value: float) -> int:
        """Return the point that is closest to `value`."""
        beyond = min(max(round(value), self.low), self.high) - self.low
        return self.low + self.step * min((beyond + self.step // 2) // self.step, self.size - 1)

    def __contains__(self, value: object) -> bool:
        value = number_of(value)
        if not isinstance(value, int):
            return False
        if not self.low <= value <= self.high:
            return False
        return (value - self.low) % self.step == 0

    def __repr__(self) -> str:
        return _range_text(self, step=1)

    def short(self) -> str:
        """Return its bounds."""
        return f"Int({self.low}, {self.high})"

    def to_json(self) -> dict[str, object]:
        """Return its identity as a JSON document."""
        return {**self.document}


@dataclass(frozen=True, slots=True, init=False)
class Choice(Domain):
    """One of several options, equally likely when sampled.

    Parameters
    ----------
    options
        Plain values, sequences, branches and other domains, all different. Lists, too, for an
        argument of a family.

    Attributes
    ----------
    labels
        A sampler's name for each option: a plain value itself, otherwise a text.
    document
        The labels as a JSON document.
    """

    options: tuple[object, ...]
    labels: tuple[Value, ...] = field(init=False, compare=False, repr=False)
    document: Mapping[str, object] = field(init=False, compare=False, repr=False, hash=False)

    def __init__(self, options: Iterable[object]) -> None:
        check = Arguments("Choice")
        items = listed(options)
        checked: list[object] = []
        for position, option in enumerate(items):
            try:
                checked.append(_option(option))
            except ConfigurationError as error:
                check.add(f"options[{position}]: {error}")
        texts = [_label(option) for option in checked]
        for text, times in Counter(texts).items():
            if times > 1:
                check.add(f"an option may come only once, got {text} {times} times")
        if not items:
            check.add("there must be at least one option, got none")
        check.refuse()
        object.__setattr__(self, "options", tuple(checked))
        labels = _labels(checked)
        object.__setattr__(self, "labels", labels)
        object.__setattr__(self, "document", {"domain": "Choice", "options": list(labels)})

    @property
    def size(self) -> int | None:
        """Number of points of all the options together."""
        sizes = [option.size if isinstance(option, Domain) else 1 for option in self.options]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def points(self) -> Iterator[object]:
        """Return the points of each option in turn."""
        for option in self.options:
            if isinstance(option, Domain):
                yield from option.points()
            else:
                yield option

    def choose(self, name: str, chooser: Chooser) -> object:
        """Return the chosen option's chosen point; a single option is no coordinate."""
        position = chooser.option(name, self) if len(self.options) > 1 else 0
        option = self.options[position]
        if not isinstance(option, Domain):
            return option
        return option.choose(f"{name}.{self.labels[position]}", chooser)

    def __repr__(self) -> str:
        return f"Choice({list(self.options)!r})"

    def to_json(self) -> dict[str, object]:
        """Return its identity as a JSON document."""
        return {"domain": "Choice", "options": [_document(option) for option in self.options]}


@dataclass(frozen=True, slots=True, init=False)
class Family(Domain):
    """Sequences of one family with arguments from domains.

    Parameters
    ----------
    family
        A family of sequences, or a function that returns one from such arguments:
        ``def warmed(lr): return Warmup(5, lr) >> Exponential(lr, gamma=0.95)``. Its name
        identifies it, so it must have a unique name.
    arguments
        For each argument a value, a domain, or a list of choices. An argument that is a
        list itself, like `milestones`, takes one list, or a list of lists to choose from.

    Examples
    --------
    >>> from dasktune.sequences import MultiStep
    >>> steps = Family(MultiStep, init=[0.1, 0.2], milestones=[30, 45], gamma=0.1)
    >>> list(steps.points())[1]
    MultiStep(0.2, milestones=[30, 45], gamma=0.1)
    """

    family: Callable[..., Sequence]
    arguments: tuple[tuple[str, Domain], ...]

    def __init__(self, family: Callable[..., Sequence], **arguments: object) -> None:
        name = _family_name(family)
        check = Arguments(f"Family({name})")
        try:
            inspect.signature(family).bind(**arguments)
        except TypeError as error:
            check.add(f"{error}, got {', '.join(arguments) or 'none'}")
        listed: frozenset[str] = getattr(family, "listed", frozenset())
        domains: list[tuple[str, Domain]] = []
        for argument, value in arguments.items():
            try:
                domains.append((argument, _argument(value, is_list=argument in listed)))
            except ConfigurationError as error:
                check.add(f"{argument}: {error}")
        check.refuse()
        object.__setattr__(self, "family", family)
        object.__setattr__(self, "arguments", tuple(domains))

    @property
    def size(self) -> int | None:
        """Number of combinations of the arguments."""
        return total_size(domain for _, domain in self.arguments)

    def points(self) -> Iterator[Sequence]:
        """Return every combination; the last argument changes fastest."""
        for taken in product(*(domain.points() for _, domain in self.arguments)):
            yield self._make(taken)

    def choose(self, name: str, chooser: Chooser) -> Sequence:
        """Return the sequence with the chosen arguments."""
        return self._make(
            domain.choose(f"{name}.{argument}", chooser) for argument, domain in self.arguments
        )

    def __repr__(self) -> str:
        name = _family_name(self.family).rpartition(".")[2]
        return f"Family({', '.join(filter(None, (name, arguments_text(self.arguments))))})"

    def short(self) -> str:
        """Return the family's name."""
        return _family_name(self.family).rpartition(".")[2]

    def to_json(self) -> dict[str, object]:
        """Return its identity as a JSON document."""
        return {
            "domain": "Family",
            "family": _family_name(self.family),
            "arguments": [[name, domain.to_json()] for name, domain in self.arguments],
        }

    def _make(self, taken: Iterable[object]) -> Sequence:
        names = (name for name, _ in self.arguments)
        made = self.family(**dict(zip(names, taken, strict=True)))
        if not isinstance(made, Sequence):
            raise ConfigurationError(
                f"{_family_name(self.family)} must return a sequence, got {made!r}"
            )
        return made


def arguments_text(named: Iterable[tuple[str, Domain]]) -> str:
    """Return domains by name as in a call."""
    # A name that is no identifier can only be given in a mapping.
    return ", ".join(
        f"{name if name.isidentifier() else repr(name)}={domain_text(domain)}"
        for name, domain in named
    )


def domain_text(domain: Domain) -> str:
    """Return a domain as users write it: choices as a list, and a single choice as itself."""
    if not isinstance(domain, Choice):
        return repr(domain)
    return repr(domain.options[0] if len(domain.options) == 1 else list(domain.options))


def _range_text(domain: Float | Int, *, step: int | None) -> str:
    log = ", log=True" if domain.log else ""
    steps = "" if domain.step == step else f", step={domain.step!r}"
    return f"{type(domain).__name__}({domain.low!r}, {domain.high!r}{log}{steps})"


def total_size(domains: Iterable[Domain]) -> int | None:
    """Return the number of combinations; None if one domain is continuous."""
    total = 1
    for domain in domains:
        if domain.size is None:
            return None
        total *= domain.size
    return total


def listed(value: object) -> list[object]:
    """Return the items of a list of choices, and any other value as the only choice."""
    if isinstance(value, Mapping | Set | bytes):
        raise ConfigurationError(f"choices must be a list, got {value!r}; a range is {RANGE}")
    if isinstance(value, Iterable) and not isinstance(value, str) and _is_long(value):
        return list(value)
    return [value]


def _is_long(value: object) -> bool:
    # A zero-dimensional array has `__iter__`, but is a scalar.
    return getattr(value, "shape", None) != ()


def of_optuna(value: Any) -> object:
    """Return the domain of one of Optuna's distributions; anything else as it is."""
    if not type(value).__module__.startswith("optuna.distributions"):
        return value
    match type(value).__name__:
        case "FloatDistribution":
            return Float(value.low, value.high, log=value.log, step=value.step)
        case "IntDistribution":
            return Int(value.low, value.high, log=value.log, step=value.step)
        case "CategoricalDistribution":
            return Choice(value.choices)
    return value


def _argument(value: object, *, is_list: bool) -> Domain:
    value = of_optuna(value)
    if isinstance(value, Domain):
        return value
    choices = listed(value)
    if is_list and not all(isinstance(option, list | tuple) for option in choices):
        return Choice([tuple(choices)])
    return Choice(choices)


def _option(option: object) -> object:
    option = of_optuna(option)
    if isinstance(option, Domain):
        return option
    if isinstance(option, list | tuple):
        return tuple(plain(item) for item in option)
    try:
        sequence = as_sequence(option)
    except ConfigurationError as error:
        if isinstance(option, str) or number_of(option) is not None:  # NaN, infinite, surrogates
            raise
        raise ConfigurationError(f"{error}; a range is {RANGE}") from None
    return sequence.value if isinstance(sequence, Constant) else sequence


def _document(option: object) -> object:
    return option.to_json() if isinstance(option, Domain | Sequence) else option


def _label(option: object) -> str:
    if isinstance(option, Domain):
        return option.label()
    return repr(option) if isinstance(option, Sequence) else json.dumps(option)


def _labels(options: Iterable[object]) -> tuple[Value, ...]:
    """Return a sampler's name for each option: a plain value itself, otherwise a text."""
    labels: list[Value] = []
    taken: set[Value] = set()
    for option in options:
        label = _short(option)
        # For a sampler 1, 1.0 and True are one option, as they are in a set.
        labels.append(_label(option) if label in taken else label)
        taken.add(labels[-1])
    return tuple(labels)


def _short(option: object) -> Value:
    """Return the short name of an option; two options may have the same."""
    if isinstance(option, Domain):
        return option.short()
    return repr(option) if isinstance(option, Sequence | tuple) else plain(option)


def _family_name(family: object) -> str:
    if isinstance(family, type) and issubclass(family, Sequence):
        return family.__name__
    name = getattr(family, "__qualname__", "<")
    if not callable(family) or "<" in name:
        raise ConfigurationError(
            f"a family must be a family of sequences or a named function, got {family!r}"
        )
    return f"{family.__module__}.{name}"


def _check_bounds(check: Arguments, domain: Float | Int, *, unstepped: int | None) -> None:
    low, high, step = domain.low, domain.high, domain.step
    if low > high:
        check.add(f"low must be <= high, got {low} and {high}")
    if type(domain.log) is not bool:
        check.add(f"log must be True or False, got {domain.log!r}")
    if step is not None and step <= 0:
        check.add(f"step must be > 0, got {step}")
    if domain.log and low <= 0:
        check.add(f"low must be > 0 with log, got {low}")
    if domain.log and step != unstepped:
        check.add(f"step must be {unstepped} with log, got {step}")
    if not check.problems and (domain.size or 0) > MOST_POINTS:
        check.add(f"there must be at most 2**62 points, got {domain.size}")


def _exact(number: float) -> Fraction:
    """Return the exact value of the decimal text of a number."""
    return Fraction(repr(number))

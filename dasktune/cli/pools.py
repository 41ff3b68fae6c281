"""Options on workers that are not started: their numbers, amounts, tags and speeds by class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dasktune.errors import ConfigurationError, refuse, shown
from dasktune.needs import TAGS

if TYPE_CHECKING:
    from dasktune._study.config import StudyConfig
    from dasktune.algos.base import Tuner

Pool = int | Mapping[str, int]
"""A number of workers, or their numbers by class."""

MOST_WORKERS = 1_000_000
"""Most workers of a class: a number with a few digits too many would fill the memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """The workers of a command that starts none."""

    workers: Annotated[
        list[str] | None,
        typer.Option(
            metavar="N|CLASS=N",
            help="Number of workers; or, once for each class of workers, fast=2.",
        ),
    ] = None
    offers: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CLASS:NAME=VALUE...",
            help="Amounts and tags of a class for needs, such as fast:GPU=1:tags=a100,lab3. "
            "May be repeated.",
        ),
    ] = None

    def pools(self, default: int) -> list[Pool]:
        """Return the numbers of workers, each once; or one pool of several classes.

        Raises
        ------
        ConfigurationError
            If a number is none, or classes come beside plain numbers: all problems at once.
        """
        from dasktune.simulate.pool import pool_problems

        texts = self.workers or [str(default)]
        refuse(_problems_of(texts))
        by_class = {name: int(count) for name, count in map(_pair, texts) if name is not None}
        refuse(pool_problems(by_class) if by_class else ())
        return [by_class] if by_class else list(dict.fromkeys(map(int, texts)))

    def offers_of(self, pool: Pool) -> dict[str, dict[str, Any]] | None:
        """Return the amounts and tags of workers by class, not checked; None without any.

        Raises
        ------
        ConfigurationError
            If a class comes twice, or there are none.
        """
        classes = pool if isinstance(pool, Mapping) else ()
        pairs = [_named(text, classes) for text in self.offers or ()]
        refuse(_repeated("--offers", (name for name, _ in pairs)))
        refuse(_without_classes("--offers", pairs, pool))
        return {name: dict(_items(rest)) for name, rest in pairs} or None


def size_of(pool: Pool) -> int:
    """Return the number of workers of a pool."""
    return sum(pool.values()) if isinstance(pool, Mapping) else pool


def pool_text(classes: Mapping[str, int]) -> str:
    """Return the numbers of workers by class in words.

    Examples
    --------
    >>> pool_text({"fast": 2, "slow": 4})
    '6 workers (2 x fast, 4 x slow)'
    """
    from dasktune._words import counted

    each = ", ".join(f"{number:,} x {name}" for name, number in classes.items())
    return f"{counted(size_of(classes), 'worker')} ({each})"


def speeds_of(texts: Iterable[str], pool: Pool) -> dict[str, float] | None:
    """Return the speeds of classes by name, from ``CLASS=SPEED``, not checked; None without any.

    Raises
    ------
    ConfigurationError
        If a class comes twice, or there are none.

    Examples
    --------
    >>> speeds_of(["slow=0.25"], {"fast": 2, "slow": 4})
    {'slow': 0.25}
    """
    pairs = [text.rpartition("=") for text in texts]
    refuse(f"--speed must be as in slow=0.25, got {each[2]!r}" for each in pairs if not each[1])
    refuse(_repeated("--speed", (name for name, _, _ in pairs)))
    refuse(_without_classes("--speed", pairs, pool))
    return {name: _number(value) for name, _, value in pairs} or None


def configured(file: Path, settings: Sequence[str]) -> tuple[StudyConfig, Tuner]:
    """Return the configuration of a file's study, and its tuner; no study is created.

    Raises
    ------
    ConfigurationError
        If the file creates no study.
    """
    from dasktune._study.create import config_of
    from dasktune.cli.study_file import load

    loaded = cache(partial(load, file, settings))
    config = config_of(lambda: loaded().study())
    if config is None:
        raise ConfigurationError(f"{file} must call create_study, or nothing says what it trains")
    return config, loaded().tuner()


def _problems_of(texts: Sequence[str]) -> Iterator[str]:
    """Yield what is wrong with the values of ``--workers``."""
    pairs = list(map(_pair, texts))
    for (_, number), text in zip(pairs, texts, strict=True):
        if not (number.isascii() and number.isdecimal() and 1 <= _number(number) <= MOST_WORKERS):
            yield (
                f"--workers must be a number from 1 to {MOST_WORKERS:,}, or such a number by "
                f"class as in fast=2, got {shown(text)}"
            )
    names = [name for name, _ in pairs if name is not None]
    if 0 < len(names) < len(pairs):
        yield "--workers must be numbers alone, or numbers by class alone, got both"
    yield from _repeated("--workers", names)


def _repeated(option: str, names: Iterable[str]) -> Iterator[str]:
    """Yield the classes that come more than once in an option."""
    for name, times in Counter(names).items():
        if times > 1:
            yield f"{option} must name a class once, got {name!r} {times} times"


def _without_classes(option: str, given: Sequence[object], pool: Pool) -> Iterator[str]:
    """Yield that an option by class has no classes, if so."""
    if given and not isinstance(pool, Mapping):
        yield f"{option} must come with classes of workers, as in --workers fast=2"


def _pair(text: str) -> tuple[str | None, str]:
    """Return the class, if any, and the number of workers: names of classes may have a ``=``."""
    name, equals, count = text.rpartition("=")
    return (name if equals else None), count


def _number(text: str) -> Any:
    """Return the number that a text is, or the text."""
    try:
        return float(text)
    except ValueError:
        return text


def _named(text: str, classes: Iterable[str]) -> tuple[str, str]:
    """Return the class that begins a text, and the rest: names of classes may have a colon."""
    names = [name for name in classes if f"{text}:".startswith(f"{name}:")]
    name = max(names, key=len, default=text.partition(":")[0])
    return name, text[len(name) :]


def _items(text: str) -> Iterator[tuple[str, Any]]:
    """Yield the amounts and tags of ``:NAME=VALUE:...``."""
    for item in text.split(":")[1:]:
        name, _, value = item.partition("=")
        yield name, value.split(",") if name == TAGS else _number(value)

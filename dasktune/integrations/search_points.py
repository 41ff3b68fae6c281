"""The configurations of a search of scikit-learn: a whole grid, or different draws."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from dasktune.errors import ConfigurationError, refuse, shown
from dasktune.sequences import as_sequence
from dasktune.space import Choice, Configuration, Space

DRAWS: Final = 10
"""Configurations of a search that is given no number of them."""

Points = tuple[Space, tuple[Configuration, ...] | None]
"""A space, and the configurations that are drawn before the search; None if it draws them."""


def given_space(space: Any, param_grid: Any, param_distributions: Any) -> Any:
    """Return the one argument that describes the configurations."""
    named = {
        "space": space,
        "param_grid": param_grid,
        "param_distributions": param_distributions,
    }
    given = [value for value in named.values() if value is not None]
    if len(given) != 1:
        raise ConfigurationError(
            f"exactly one of {', '.join(named)} must be given, got {len(given)} of them"
        )
    if not isinstance(given[0], Mapping | Space):
        raise ConfigurationError(
            "the parameters must be a mapping of names to lists, distributions or domains, or a "
            f"dasktune.Space, got {shown(given[0])}; make one search for each of several grids"
        )
    return given[0]


def points_of(given: Mapping[str, Any] | Space, count: int | None, seed: int) -> Points:
    """Return the space of a search, and its configurations, of which none comes twice.

    Parameters
    ----------
    given
        A space; or lists, domains, and distributions such as those of ``scipy.stats``, by name.
    count
        Number of draws. None is `DRAWS`.
    seed
        Decides the draws.
    """
    frozen = {} if isinstance(given, Space) else _distributions(given)
    rest = given if isinstance(given, Space) else _space_of(given, frozen)
    most = DRAWS if count is None else count
    if not frozen and rest is not None:
        if rest.size is None:
            return rest, None
        if rest.size <= most:
            return rest, tuple(rest.configurations())
        return rest, _different(_sampled(rest, seed), most)
    drawn = _different(_drawn(rest, frozen, seed), most)
    columns = {name: [each.sequences[name] for each in drawn] for name in frozen}
    own = {name: Choice(list(dict.fromkeys(column))) for name, column in columns.items()}
    return Space({**({} if rest is None else dict(rest.dimensions)), **own}), drawn


def whole_grid(given: Mapping[str, Any] | Space) -> Points:
    """Return the space of a grid, and all its configurations."""
    frozen = {} if isinstance(given, Space) else _distributions(given)
    refuse(f"param_grid must have lists, got a distribution for {name!r}" for name in frozen)
    space = given if isinstance(given, Space) else _space(given)
    return space, tuple(space.configurations())


def _distributions(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are drawn by their own ``rvs``, as those of ``scipy.stats``."""
    return {name: value for name, value in given.items() if callable(getattr(value, "rvs", None))}


def _space_of(given: Mapping[str, Any], frozen: Mapping[str, Any]) -> Space | None:
    rest = {name: value for name, value in given.items() if name not in frozen}
    return _space(rest) if rest or not frozen else None


def _space(dimensions: Mapping[str, Any]) -> Space:
    """Return a space whose errors speak of the estimator, since a search has no other trainer."""
    try:
        return Space(dimensions)
    except ConfigurationError as error:
        where = "in a subclass of the estimator"
        problems = (problem.replace("in the trainer", where) for problem in error.problems)
        raise ConfigurationError(*problems) from None


def _sampled(space: Space, seed: int) -> Iterator[Configuration]:
    generator = np.random.default_rng(seed)
    while True:
        yield space.sample(generator)


def _drawn(rest: Space | None, frozen: Mapping[str, Any], seed: int) -> Iterator[Configuration]:
    """Yield draws of distributions, with draws of the rest of the space."""
    legacy = np.random.RandomState(seed % 2**32)  # scipy and scikit-learn take no other one
    others = None if rest is None else _sampled(rest, seed)
    while True:
        own = {name: as_sequence(value.rvs(random_state=legacy)) for name, value in frozen.items()}
        values = {name: sequence(0) for name, sequence in own.items()}
        if others is None:
            yield Configuration(params=values, sequences=own)
            continue
        other = next(others)
        yield Configuration(params={**other.params, **values}, sequences={**other.sequences, **own})


def _different(draws: Iterator[Configuration], most: int) -> tuple[Configuration, ...]:
    """Return draws of which none comes twice; fewer where nothing new comes for a long time."""
    known: dict[str, Configuration] = {}
    in_vain = 0
    while len(known) < most and in_vain < 1_000 + 100 * most:
        draw = next(draws)
        before = len(known)
        known.setdefault(repr(sorted(draw.params.items())), draw)
        in_vain = 0 if len(known) > before else in_vain + 1
    return tuple(known.values())

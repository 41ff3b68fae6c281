"""The needs that a function of the user gives the configurations of a study, tried beforehand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from dasktune.algos.base import Tuner
from dasktune.errors import ConfigurationError, shown
from dasktune.needs import GivenNeeds, Needs, NeedsFunction
from dasktune.space import Space
from dasktune.study.preview import needs_of_configurations
from dasktune.types import Sequences

SAMPLES = 200
"""Configurations that are drawn from a space: a branch of one in 50 is missed in 2% of cases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedNeeds:
    """The needs of some configurations of a study.

    Parameters
    ----------
    tried
        The configurations in words, such as ``200 configurations drawn from the space``; empty if
        none is known.
    needs
        Different needs of theirs, each with the values of the first configuration that has them.
    problems
        Why the function gives others no needs: the first problem.
    """

    tried: str = ""
    needs: tuple[tuple[Needs, str], ...] = ()
    problems: tuple[str, ...] = ()


def try_needs(needs: GivenNeeds | NeedsFunction | None, tuner: Tuner | None) -> TriedNeeds | None:
    """Return the needs of a tuner's configurations if a function gives them; otherwise None.

    Parameters
    ----------
    needs
        As for `dasktune.create_study`.
    tuner
        Has the configurations, or the space to draw them from; None if it is not known.
    """
    if not callable(needs):
        return None
    tried, configurations, space = _configurations(tuner)
    by_needs: dict[Needs, str] = {}
    problems: dict[str, None] = {}
    for sequences in configurations:
        try:
            (own,) = needs_of_configurations([sequences], space, needs)
        except ConfigurationError as error:
            problems.setdefault(str(error))
        else:
            by_needs.setdefault(own, shown(_values(sequences)))
    return TriedNeeds(
        tried=tried, needs=tuple(by_needs.items()), problems=tuple(list(problems)[:1])
    )


def _configurations(
    tuner: Tuner | None,
) -> tuple[str, Iterable[Sequences], Space | None]:
    """Return a tuner's configurations in words, each of them, and their space."""
    space = None if tuner is None else tuner.searched_space
    known = None if tuner is None else tuner.configurations
    if known is not None:
        sequences = [each.sequences for each in known]
        return f"the {len(sequences):,} configurations of the tuner", sequences, space
    if space is None:
        return "", (), None
    rng = np.random.default_rng(0)
    drawn = [space.sample(rng).sequences for _ in range(SAMPLES)]
    return f"{SAMPLES} configurations drawn from the space", drawn, space


def _values(sequences: Sequences) -> Mapping[str, object]:
    return {name: each(0) for name, each in sequences.items()}

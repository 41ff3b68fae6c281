"""The needs that a function of the user gives the configurations of a study, tried beforehand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dasktune.algos.base import Tuner
from dasktune.errors import ConfigurationError, shown
from dasktune.needs import GivenNeeds, Needs, NeedsFunction
from dasktune.study.preview import needs_of_configurations

SAMPLES = 200
"""Configurations that are drawn from a space: a branch of one in 50 is missed in 2% of cases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedNeeds:
    """The needs of some configurations of a study.

    `tried` are the configurations in words, empty if none is known; `needs` are their different
    needs, each with the values of the first configuration that has them; `problem` is the first
    reason why the function gives a configuration no needs.
    """

    tried: str = ""
    needs: tuple[tuple[Needs, str], ...] = ()
    problem: str = ""


def try_needs(needs: GivenNeeds | NeedsFunction | None, tuner: Tuner | None) -> TriedNeeds | None:
    """Return the needs of a tuner's configurations if a function gives them; otherwise None."""
    if not callable(needs):
        return None
    space = None if tuner is None else tuner.searched_space
    known = None if tuner is None else tuner.configurations
    if known is not None:
        words = f"the {len(known):,} configurations of the tuner"
        configurations = [each.sequences for each in known]
    elif space is not None:
        words, rng = f"{SAMPLES} configurations drawn from the space", np.random.default_rng(0)
        configurations = [space.sample(rng).sequences for _ in range(SAMPLES)]
    else:
        return TriedNeeds()
    by_needs: dict[Needs, str] = {}
    problem = ""
    for sequences in configurations:
        try:
            (own,) = needs_of_configurations([sequences], space, needs)
        except ConfigurationError as error:
            problem = problem or str(error)
        else:
            values = {name: sequence(0) for name, sequence in sequences.items()}
            by_needs.setdefault(own, shown(values))
    return TriedNeeds(tried=words, needs=tuple(by_needs.items()), problem=problem)

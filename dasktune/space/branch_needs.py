"""The needs of the branches of a space, of one configuration and beside those of a study."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product

from dasktune.errors import ConfigurationError
from dasktune.needs import Needs, all_of
from dasktune.sequences import Sequence, as_sequence
from dasktune.space.domains import Choice, Domain
from dasktune.space.space import Branch, Space
from dasktune.types import Sequences

THE_STUDY = "the study"
"""The name of the needs of a study beside those of branches, such as ``model=deep``."""

Parts = dict[str, Needs]
"""Needs by the branch that has them."""


def needs_of_branches(space: Space, sequences: Sequences) -> Parts:
    """Return the needs of the branches that a configuration has at step 0.

    Parameters
    ----------
    space
        The space of the configuration.
    sequences
        The hyper-parameters by name.
    """
    parts: Parts = {}
    for name, domain in space.dimensions:
        branches = [branch for branch in _branches(domain) if name in sequences]
        chosen = [branch for branch in branches if as_sequence(branch.name) == sequences[name]]
        # A tuner that changes hyper-parameters in mid-trial joins plain values to a sequence.
        plain = [branch for branch in branches if not isinstance(branch.name, Sequence)]
        chosen = chosen or [branch for branch in plain if branch.name == sequences[name](0)]
        for branch in chosen[:1]:
            parts |= _own(name, branch)
            if branch.space is not None:
                parts |= needs_of_branches(branch.space, sequences)
    return parts


def with_branches(study: Needs, space: Space, sequences: Sequences) -> Needs:
    """Return the needs of a configuration: those of the study, and of its branches.

    Raises
    ------
    ConfigurationError
        If they contradict each other; the message names both.
    """
    parts = needs_of_branches(space, sequences)
    return all_of({THE_STUDY: study, **parts}) if parts else study


def contradictions(space: Space, study: Needs) -> Iterator[str]:
    """Yield the contradictions between the needs of a study and of the branches of a space.

    Parameters
    ----------
    space
        The space.
    study
        The needs of every stage.
    """
    problems: dict[str, None] = {}
    for parts in _together(space):
        try:
            all_of({THE_STUDY: study, **parts})
        except ConfigurationError as error:
            problems.update(dict.fromkeys(error.problems))
    yield from problems


def _together(space: Space) -> Iterator[Parts]:
    """Yield the needs of branches inside each other, and of two branches side by side."""
    chains = [list(_chains(name, domain)) for name, domain in space.dimensions]
    for several in chains:
        yield from several
    for several, others in combinations(chains, 2):
        for parts, beside in product(several, others):
            if parts and beside:
                yield {**parts, **beside}


def _chains(name: str, domain: Domain) -> Iterator[Parts]:
    """Yield the needs of each branch of a dimension, and of the branches inside it."""
    for branch in _branches(domain):
        own = _own(name, branch)
        yield own
        if branch.space is not None:
            yield from ({**own, **inner} for inner in _together(branch.space))


def _own(name: str, branch: Branch) -> Parts:
    """Return the needs of one branch of a hyper-parameter, if it has any."""
    return {} if branch.needs is None else {f"{name}={branch.short()}": Needs.of(branch.needs)}


def _branches(domain: Domain) -> Iterator[Branch]:
    """Yield the branches among the options of a hyper-parameter."""
    if isinstance(domain, Branch):
        yield domain
    for option in domain.options if isinstance(domain, Choice) else ():
        if isinstance(option, Domain):
            yield from _branches(option)

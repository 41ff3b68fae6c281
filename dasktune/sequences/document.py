"""Sequences from their JSON documents."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from functools import reduce
from operator import rshift
from typing import Final

from dasktune.errors import ConfigurationError, refuse, unknown
from dasktune.sequences.core import Constant, Sequence
from dasktune.sequences.families import (
    Cosine,
    Cyclic,
    Exponential,
    Linear,
    MultiStep,
    Piecewise,
    WarmRestarts,
    Warmup,
)

FAMILIES: Final[Mapping[str, type[Sequence]]] = {
    family.__name__: family
    for family in (
        Constant,
        Cosine,
        Cyclic,
        Exponential,
        Linear,
        MultiStep,
        Piecewise,
        Warmup,
        WarmRestarts,
    )
}
"""The families by name."""


def sequence_from_json(document: object) -> Sequence:
    """Return the sequence of a document that `Sequence.to_json` made.

    Raises
    ------
    ConfigurationError
        If the family or an argument is unknown, an argument is missing, or a value is refused.

    Examples
    --------
    >>> sequence_from_json({"family": "Piecewise", "values": [64, 128], "boundaries": [20]})
    Piecewise([64, 128], boundaries=[20])
    """
    if not isinstance(document, Mapping):
        raise ConfigurationError(f"a sequence must be a JSON object, got {document!r}")
    arguments = {str(name): value for name, value in document.items() if name != "family"}
    match document.get("family"):
        case "Joined":
            _need("Joined", arguments, ("pieces",))
            return reduce(rshift, map(sequence_from_json, _listed(arguments["pieces"])))
        case "Ended":
            _need("Ended", arguments, ("sequence", "stop"))
            return sequence_from_json(arguments["sequence"])[: arguments["stop"]]
        case "Rest":
            _need("Rest", arguments, ("sequence", "start"))
            return sequence_from_json(arguments["sequence"])[arguments["start"] :]
        case family:
            return _member(str(family), arguments)


def _member(name: str, arguments: Mapping[str, object]) -> Sequence:
    if name not in FAMILIES:
        raise ConfigurationError(
            unknown("sequence family", name, [*FAMILIES, "Ended", "Joined", "Rest"])
        )
    try:
        return FAMILIES[name](**arguments)
    except TypeError:
        # Only now: a study of 100,000 trials has hundreds of thousands of sequences.
        _need(name, arguments, *_parameters(FAMILIES[name]))
        raise


def _parameters(family: type[Sequence]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the required parameters of a family, and those of the optional ones."""
    parameters = inspect.signature(family).parameters.values()
    required = (item.name for item in parameters if item.default is item.empty)
    optional = (item.name for item in parameters if item.default is not item.empty)
    return tuple(required), tuple(optional)


def _need(
    family: str,
    arguments: Mapping[str, object],
    required: Iterable[str],
    optional: Iterable[str] = (),
) -> None:
    known = [*required, *optional]
    refuse(
        [f"{family}: {name} is missing" for name in required if name not in arguments]
        + [unknown(f"argument of {family}", name, known) for name in arguments if name not in known]
    )


def _listed(pieces: object) -> list[object]:
    if not isinstance(pieces, list | tuple) or not pieces:
        raise ConfigurationError(f"Joined: pieces must be a list of sequences, got {pieces!r}")
    return list(pieces)

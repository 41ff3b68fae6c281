"""The parts of a sampler: the generators and samplers in it, and its identity.

Samplers are objects of other packages. One thing is assumed of them: that their parts are
in their attributes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from functools import partial
from hashlib import blake2b
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

_NAMED = (type, FunctionType, BuiltinFunctionType, MethodType, np.ufunc)
_LAZY = "LazyRandomState"
"""Optuna's class for a generator that is created at its first use."""

Randomness = np.random.RandomState | np.random.Generator


def parts(thing: object) -> Iterator[object]:
    """Return an object and the objects in it, each once, in a fixed order."""
    seen: set[int] = set()
    waiting = [thing]
    while waiting:
        part = waiting.pop()
        if id(part) not in seen:
            seen.add(id(part))
            yield part
            waiting.extend(reversed(_inside(part)))


def generators(thing: object) -> list[Randomness]:
    """Return the generators of random numbers in an object; lazy ones are created now."""
    candidates = (
        part.rng if type(part).__name__ == _LAZY and hasattr(part, "rng") else part
        for part in parts(thing)
    )
    distinct = {id(part): part for part in candidates if isinstance(part, Randomness)}
    return list(distinct.values())


def reseed(rngs: Iterable[Randomness], *entropy: int) -> None:
    """Seed each generator anew: its earlier use has no influence any more."""
    for place, rng in enumerate(rngs):
        sequence = np.random.SeedSequence((*entropy, place))
        if isinstance(rng, np.random.RandomState):
            rng.seed(sequence.generate_state(8))
        else:
            rng.bit_generator.state = type(rng.bit_generator)(sequence).state


def own_seed(seed: object) -> bool:
    """Return whether the sampler drew this seed itself, because the user gave none."""
    return isinstance(seed, int) and seed >= 2**32


def identity_of(thing: object) -> object:
    """Return the identity of an object, which is equal for equal arguments, as JSON.

    It has class and attributes; functions by name; a generator by its given seed, or None. It
    is the same in every process with the same code.
    """
    return json.loads(json.dumps(_document(thing, ()), sort_keys=True))


def digest_of(document: object) -> int:
    """Return a number that is equal for equal JSON documents."""
    text = json.dumps(document, sort_keys=True).encode()
    return int.from_bytes(blake2b(text, digest_size=16).digest(), "big")


def name_of(thing: Any) -> str:
    """Return the qualified name of a class or function."""
    if isinstance(thing, np.ufunc):  # these have neither a module nor a qualified name
        return f"numpy.{thing.__name__}"
    return f"{thing.__module__}.{thing.__qualname__}"


def _inside(thing: object) -> list[object]:
    match thing:
        case str() | bytes() | np.ndarray() | np.random.RandomState() | np.random.Generator():
            return []
        case Mapping():
            return list(thing.values())
        case list() | tuple():
            return list(thing)
        case ModuleType() | Enum():
            return []
    return [] if isinstance(thing, _NAMED) else list(getattr(thing, "__dict__", {}).values())


def _document(thing: object, around: tuple[int, ...]) -> object:
    if id(thing) in around:
        return "..."
    within = (*around, id(thing))
    match thing:
        case Enum():
            return f"{name_of(type(thing))}.{thing.name}"
        case None | bool() | int() | str():
            return thing
        case float():
            return thing if math.isfinite(thing) else repr(thing)
        case np.generic() | np.ndarray():
            return _document(thing.tolist(), within)
        case list() | tuple():
            return [_document(item, within) for item in thing]
        case set() | frozenset():
            return sorted(json.dumps(_document(item, within)) for item in thing)
        case Mapping():
            return {str(key): _document(value, within) for key, value in thing.items()}
        case np.random.RandomState() | np.random.Generator():
            return _seed_of(thing)
        case partial():
            inner = (thing.func, thing.args, thing.keywords)
            return {"partial": _document(inner, within)}
    if isinstance(thing, _NAMED):
        return name_of(thing)
    return {"class": name_of(type(thing)), **_attributes(thing, within)}


def _attributes(thing: object, within: tuple[int, ...]) -> dict[str, object]:
    return {
        name: None if name == "_seed" and own_seed(value) else _document(value, within)
        for name, value in getattr(thing, "__dict__", {}).items()
    }


def _seed_of(rng: Randomness) -> int | None:
    """Return the given seed of a generator that was never used."""
    if isinstance(rng, np.random.Generator):
        entropy = getattr(rng.bit_generator.seed_seq, "entropy", None)
        return entropy if isinstance(entropy, int) and not own_seed(entropy) else None
    state = rng.get_state(legacy=False)
    if not isinstance(state, dict) or state["bit_generator"] != "MT19937":
        return None
    key = state["state"]["key"]
    # A seed of 32 bits is the first word of its state.
    fresh = np.random.RandomState(int(key[0])).get_state(legacy=False)
    same = isinstance(fresh, dict) and fresh["state"]["pos"] == state["state"]["pos"]
    return int(key[0]) if same and np.array_equal(fresh["state"]["key"], key) else None


def settle_seeds(thing: object, seed: int) -> None:
    """Replace seeds that parts drew for themselves by the seed of the user."""
    for part in parts(thing):
        attributes = getattr(part, "__dict__", {})
        if own_seed(attributes.get("_seed")):
            attributes["_seed"] = seed

"""What a sampler is made of: the generators and samplers in it, and what identifies it.

Samplers are other people's objects. All that is assumed of them is that they keep what they
are made of in their attributes.
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
"""Optuna's class for a generator that is made when it is first used."""

Randomness = np.random.RandomState | np.random.Generator


def parts(thing: object) -> Iterator[object]:
    """Return an object and the objects it is made of, each once, in a fixed order."""
    seen: set[int] = set()
    waiting = [thing]
    while waiting:
        one = waiting.pop()
        if id(one) not in seen:
            seen.add(id(one))
            yield one
            waiting.extend(reversed(_inside(one)))


def generators(thing: object) -> list[Randomness]:
    """Return the generators of random numbers in an object; lazy ones are made now."""
    found = (
        one.rng if type(one).__name__ == _LAZY and hasattr(one, "rng") else one
        for one in parts(thing)
    )
    distinct = {id(one): one for one in found if isinstance(one, Randomness)}
    return list(distinct.values())


def reseed(rngs: Iterable[Randomness], *entropy: int) -> None:
    """Seed each generator anew; what it was used for before has no influence any more."""
    for place, rng in enumerate(rngs):
        sequence = np.random.SeedSequence((*entropy, place))
        if isinstance(rng, np.random.RandomState):
            rng.seed(sequence.generate_state(8))
        else:
            rng.bit_generator.state = type(rng.bit_generator)(sequence).state


def own_seed(seed: object) -> bool:
    """Return whether a seed was drawn by the sampler itself, for want of one from the user."""
    return isinstance(seed, int) and seed >= 2**32


def identity_of(thing: object) -> object:
    """Return what is equal for two objects that were made alike, as JSON.

    Class and attributes; functions by name; a generator by the seed that it was given, None
    if it was given none. It is the same in every process, as long as the code is.
    """
    return json.loads(json.dumps(_document(thing, ()), sort_keys=True))


def digest_of(document: object) -> int:
    """Return a number that is equal for equal JSON documents."""
    text = json.dumps(document, sort_keys=True).encode()
    return int.from_bytes(blake2b(text, digest_size=16).digest(), "big")


def name_of(thing: Any) -> str:
    """Return the qualified name of a class or function."""
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
            return [_document(one, within) for one in thing]
        case set() | frozenset():
            return sorted(json.dumps(_document(one, within)) for one in thing)
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
    """Return the seed of a generator that was given one and not used since."""
    if isinstance(rng, np.random.Generator):
        entropy = getattr(rng.bit_generator.seed_seq, "entropy", None)
        return entropy if isinstance(entropy, int) and not own_seed(entropy) else None
    state = rng.get_state(legacy=False)
    if not isinstance(state, dict) or state["bit_generator"] != "MT19937":
        return None
    key = state["state"]["key"]
    # A seed of 32 bits is the first word of the state that it makes.
    fresh = np.random.RandomState(int(key[0])).get_state(legacy=False)
    same = isinstance(fresh, dict) and fresh["state"]["pos"] == state["state"]["pos"]
    return int(key[0]) if same and np.array_equal(fresh["state"]["key"], key) else None


def settle_seeds(thing: object, seed: int) -> None:
    """Give the user's seed to those parts that drew one for themselves."""
    for one in parts(thing):
        attributes = getattr(one, "__dict__", {})
        if own_seed(attributes.get("_seed")):
            attributes["_seed"] = seed

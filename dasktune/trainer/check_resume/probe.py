"""Digests of everything that a trainer could depend on, inside and outside its state.

If a resumed trainer has the same state and continues differently, its state lacks something. To
name it, `probe` digests everything in reach when a state is saved and again after it was loaded
in another process: attributes of the trainer, the global variables that its code reads, the
defaults of its functions, and the global random generators.
"""

from __future__ import annotations

import operator
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import count, islice
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from dasktune.trainer.base import OWN
from dasktune.trainer.check_resume.differences import (
    as_array,
    leaf_digest,
    leaves,
    measures_of,
)
from dasktune.trainer.fingerprint.installed import is_installed, is_installed_name
from dasktune.trainer.generators import generator_state, global_states, is_generator
from dasktune.trainer.slots import slots

GENERATOR = "global random generator"
"""End of the paths of the global generators."""

_DRAWS = "generator "
"""Begins the digests of all random generators."""

_MAX_DEPTH = 8
_MAX_LEAVES = 50_000
_OPAQUE = (FunctionType, BuiltinFunctionType, MethodType, ModuleType, CodeType, type)
_MACHINERY = frozenset(
    {"_io", "_queue", "_thread", "_weakref", "asyncio", "concurrent", "fsspec", "io", "logging"}
    | {"multiprocessing", "queue", "threading", "weakref"}
)
"""Modules whose objects carry no result: threads, locks, files, file systems and loggers."""

_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic)
_GENERATORS = {"python": "Python's", "numpy": "NumPy's", "torch": "torch's", "cuda": "CUDA's"}


def probe(trainer: Any, device: str) -> dict[str, str]:
    """Return digests of everything that a trainer could depend on, by path.

    The function draws no numbers, calls no methods of the trainer and changes nothing. Objects
    of unknown types are opened attribute by attribute. Deeply nested values, and values beyond
    50,000, are left out.
    """
    digests = generator_digests(device)
    for path, leaf in _everything(trainer):
        digests[path] = str(leaf) if isinstance(leaf, _Digest) else leaf_digest(leaf)
    return digests


def numbers(trainer: Any) -> dict[str, list[float]]:
    """Return measures of all floating-point numbers that `probe` digests, by path.

    Two values whose measures are close differ by rounding only, for a check that allows
    rounding.
    """
    return {
        path: measures
        for path, leaf in _everything(trainer)
        if not isinstance(leaf, _Digest) and (measures := measures_of(leaf)) is not None
    }


class _Digest(str):
    """The digest of a part that has no value to compare, such as a generator."""


def _everything(trainer: Any) -> Iterator[tuple[str, Any]]:
    """Yield path and value, or digest, of every part that a trainer could depend on."""
    roots: dict[str, Any] = {
        f"trainer.{name}": value
        for name, value in vars(trainer).items()
        if not name.startswith(OWN)
    }
    roots |= _class_attributes(type(trainer))
    roots |= {f"global {name}": value for name, value in global_variables(type(trainer)).items()}
    for function in functions_of(type(trainer)):
        roots |= _of_function(function)
    seen: set[int] = {id(trainer)}
    inner = (item for path, value in roots.items() for item in _leaves(value, path, seen, 0))
    yield from islice(inner, _MAX_LEAVES)


def generator_digests(device: str) -> dict[str, str]:
    """Return digests of the global random generators by name."""
    return {
        f"{_GENERATORS[name]} {GENERATOR}": _DRAWS + _whole(state)
        for name, state in global_states(device).items()
    }


def unused_generators(before: Mapping[str, str], after: Mapping[str, str]) -> frozenset[str]:
    """Return the paths of the generators from which nothing was drawn between two probes."""
    return frozenset(
        path
        for path, digest in after.items()
        if digest.startswith(_DRAWS) and before.get(path) == digest
    )


def global_variables(trainer_class: type) -> dict[str, Any]:
    """Return the global variables that a trainer's code reads, by name.

    The search follows functions and classes outside installed packages. Of modules outside
    installed packages it returns the variables that the code names, such as ``shared.count``.
    """
    variables: dict[str, Any] = {}
    for function in functions_of(trainer_class):
        names = _names(function.__code__)
        for name in names & function.__globals__.keys():
            value = function.__globals__[name]
            if isinstance(value, ModuleType) and not is_installed(value):
                inner = {f"{name}.{part}": vars(value)[part] for part in names & vars(value).keys()}
                variables |= {
                    path: each for path, each in inner.items() if not isinstance(each, _OPAQUE)
                }
            elif not isinstance(value, _OPAQUE):
                variables[name] = value
    return variables


def functions_of(trainer_class: type) -> list[FunctionType]:
    """Return the functions that a trainer's code can call, outside installed packages."""
    functions: list[FunctionType] = []
    seen: set[int] = set()
    waiting: list[Any] = [trainer_class]
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or not _is_ours(thing):
            continue
        seen.add(id(thing))
        if isinstance(thing, type):
            waiting += [*thing.__bases__, *(_function(item) for item in vars(thing).values())]
            continue
        functions.append(thing)
        named = (thing.__globals__.get(name) for name in _names(thing.__code__))
        waiting += [value for value in named if isinstance(value, (FunctionType, type))]
        waiting += [value for value in _enclosed(thing).values() if isinstance(value, FunctionType)]
    return functions


def _of_function(function: FunctionType) -> dict[str, Any]:
    """Return the values that a function keeps between calls: defaults, closure, attributes."""
    name = function.__qualname__
    defaults = function.__defaults__ or ()
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    kept = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
    kept |= function.__kwdefaults__ or {}
    values = {f"default {each} of {name}": value for each, value in kept.items()}
    values |= {f"variable {each} of {name}": value for each, value in _enclosed(function).items()}
    values |= {f"{name}.{each}": value for each, value in vars(function).items()}
    return {path: value for path, value in values.items() if not isinstance(value, _OPAQUE)}


def _enclosed(function: FunctionType) -> dict[str, Any]:
    values = {}
    cells = function.__closure__ or ()
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        with suppress(ValueError):  # an empty cell
            values[name] = cell.cell_contents
    return values


def _leaves(value: Any, path: str, seen: set[int], depth: int) -> Iterator[tuple[str, Any]]:
    """Yield path and value, or digest, of every part of a value."""
    if isinstance(value, _PLAIN):
        yield path, value
        return
    if isinstance(value, FunctionType) and _is_ours(value) and id(value) not in seen:
        seen.add(id(value))
        for place, item in _of_function(value).items():
            yield from _leaves(item, place, seen, depth + 1)
        return
    is_opaque = isinstance(value, _OPAQUE) or _is_machinery(value)
    if is_opaque or id(value) in seen or depth > _MAX_DEPTH:
        return
    seen.add(id(value))
    if as_array(value) is not None:
        yield path, value
    elif is_generator(value):
        yield path, _Digest(_DRAWS + _whole(generator_state(value)))
    elif isinstance(value, count):
        yield path, repr(value)
    elif isinstance(value, Iterator):
        yield f"{path} (an iterator)", _Digest(operator.length_hint(value, -1))
    else:
        for place, item in _parts(value, path):
            yield from _leaves(item, place, seen, depth + 1)


def _parts(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield path and value of the direct parts of a container or object."""
    if isinstance(value, Mapping):
        keys = [key if isinstance(key, _PLAIN) else index for index, key in enumerate(value)]
        yield f"len({path})", len(value)
        for key, item in zip(keys, value.values(), strict=True):
            yield f"{path}[{key!r}]", item
    elif isinstance(value, (list, tuple, deque)):
        yield f"len({path})", len(value)
        for index, item in enumerate(value):
            yield f"{path}[{index}]", item
    elif isinstance(value, (set, frozenset)):
        # The text of other objects shows their address.
        yield path, repr(sorted(repr(x) if isinstance(x, _PLAIN) else _home(x) for x in value))
    elif _has_library_state(value):
        # Names such as "fc.weight" are clearer than the attributes behind them, and a library
        # knows which of its attributes are only caches.
        yield from _parts_of_state(value, path)
    else:
        names = [*getattr(value, "__dict__", ()), *slots(type(value))]
        for name in names:
            yield f"{path}.{name}", getattr(value, name, None)


def _has_library_state(value: Any) -> bool:
    """Return whether a library defines the state of an object, by its `state_dict`."""
    if not all(callable(getattr(value, name, None)) for name in ("state_dict", "load_state_dict")):
        return False
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, (torch.nn.Module, torch.optim.Optimizer)):
        return True
    name = _home(value)
    return name == "dasktune" or (bool(name) and is_installed_name(name))


def _is_machinery(value: Any) -> bool:
    """Return whether a value is of a class of `_MACHINERY`, or of a library's class below one."""
    kind = type(value)
    kinds = (kind,) if _is_ours(kind) else kind.__mro__
    return any((each.__module__ or "").partition(".")[0] in _MACHINERY for each in kinds)


def _home(value: Any) -> str:
    """Return the top-level module of a value's class."""
    return (type(value).__module__ or "").partition(".")[0]


def _parts_of_state(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    for place, item in leaves(_state_of(value), ""):
        yield f"{path}{place}", item
    torch = sys.modules.get("torch")
    if torch is None:
        return
    if isinstance(value, torch.nn.Module):
        for name, part in value.named_modules():
            yield f"{path}{'.' if name else ''}{name}.training", part.training
        for name, parameter in value.named_parameters():
            yield f"{path}[{name!r}].grad", parameter.grad


def _state_of(value: Any) -> Any:
    if "torch" in sys.modules:
        # Else this would import torch between two probes, and its generator would differ.
        from dasktune.trainer import attributes

        if attributes.is_prepared(value):
            return attributes.state_of(value)
    return value.state_dict()


def _class_attributes(trainer_class: type) -> dict[str, Any]:
    return {
        f"{base.__name__}.{name}": value
        for base in trainer_class.__mro__
        if _is_ours(base)
        for name, value in vars(base).items()
        if not name.startswith(("__", OWN))
        and _function(value) is None
        and not isinstance(value, _OPAQUE)
    }


def _is_ours(thing: Any) -> bool:
    if not isinstance(thing, (FunctionType, type)):
        return False
    name = thing.__module__ or ""
    if name.partition(".")[0] in ("builtins", "dasktune"):
        return False
    module = sys.modules.get(name)
    return module is None or not is_installed(module)


def _function(member: Any) -> FunctionType | None:
    """Return the function behind a method, class method, static method or property."""
    inner = getattr(member, "__func__", getattr(member, "fget", member))
    return inner if isinstance(inner, FunctionType) else None


def _names(code: CodeType) -> set[str]:
    inner = (_names(item) for item in code.co_consts if isinstance(item, CodeType))
    return set(code.co_names).union(*inner)


def _whole(state: Any) -> str:
    return leaf_digest([leaf_digest(item) for _, item in leaves(state, "")])

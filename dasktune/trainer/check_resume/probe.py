"""Digests of everything that a trainer could depend on, inside and outside its state.

If a resumed trainer has the same state and continues differently, its state lacks something. To
name it, `probe` digests everything in reach when a state is saved and again after it was loaded
in another process: attributes of the trainer, the global variables that its code reads, and the
global random generators.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from dasktune.trainer.check_resume.differences import as_array, leaf_digest, leaves
from dasktune.trainer.fingerprint.installed import is_installed
from dasktune.trainer.generators import generator_state, global_states, is_generator

GENERATOR = "global random generator"
"""End of the paths of the global generators."""

_MAX_DEPTH = 8
_MAX_LEAVES = 50_000
_OPAQUE = (FunctionType, BuiltinFunctionType, MethodType, ModuleType, CodeType, type)
_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic)
_GENERATORS = {"python": "Python's", "numpy": "NumPy's", "torch": "torch's", "cuda": "CUDA's"}


def probe(trainer: Any, device: str) -> dict[str, str]:
    """Return digests of everything that a trainer could depend on, by path.

    The function draws no numbers, calls no methods of the trainer and changes nothing. Objects
    of unknown types are opened attribute by attribute. Deeply nested values, and values beyond
    50,000, are left out.
    """
    digests = generator_digests(device)
    roots: dict[str, Any] = {f"trainer.{name}": value for name, value in vars(trainer).items()}
    roots |= _class_attributes(type(trainer))
    roots |= {f"global {name}": value for name, value in global_variables(type(trainer)).items()}
    seen: set[int] = {id(trainer)}
    inner = (item for path, value in roots.items() for item in _digests(value, path, seen, 0))
    digests.update(islice(inner, _MAX_LEAVES))
    return digests


def generator_digests(device: str) -> dict[str, str]:
    """Return digests of the global random generators by name."""
    return {
        f"{_GENERATORS[name]} {GENERATOR}": _whole(state)
        for name, state in global_states(device).items()
    }


def global_variables(trainer_class: type) -> dict[str, Any]:
    """Return the global variables that a trainer's code reads, by name.

    The search follows functions and classes outside installed packages.
    """
    variables: dict[str, Any] = {}
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
        for name in _names(thing.__code__):
            value = thing.__globals__.get(name)
            if isinstance(value, (FunctionType, type)):
                waiting.append(value)
            elif name in thing.__globals__ and not isinstance(value, _OPAQUE):
                variables[name] = value
    return variables


def _digests(value: Any, path: str, seen: set[int], depth: int) -> Iterator[tuple[str, str]]:
    """Yield path and digest of every part of a value."""
    if isinstance(value, _PLAIN):
        yield path, leaf_digest(value)
        return
    if isinstance(value, _OPAQUE) or id(value) in seen or depth > _MAX_DEPTH:
        return
    seen.add(id(value))
    if as_array(value) is not None:
        yield path, leaf_digest(value)
    elif is_generator(value):
        yield path, _whole(generator_state(value))
    elif isinstance(value, Iterator):
        yield f"{path} (an iterator)", str(operator.length_hint(value, -1))
    else:
        for place, item in _parts(value, path):
            yield from _digests(item, place, seen, depth + 1)


def _parts(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield path and value of the direct parts of a container or object."""
    if isinstance(value, Mapping):
        keys = [key if isinstance(key, _PLAIN) else index for index, key in enumerate(value)]
        yield f"len({path})", len(value)
        for key, item in zip(keys, value.values(), strict=True):
            yield f"{path}[{key!r}]", item
    elif isinstance(value, (list, tuple)):
        yield f"len({path})", len(value)
        for index, item in enumerate(value):
            yield f"{path}[{index}]", item
    elif isinstance(value, (set, frozenset)):
        yield path, repr(sorted(map(repr, value)))
    elif _is_torch_state(value):
        # Names such as "fc.weight" are clearer than the attributes behind them.
        yield from _torch_parts(value, path)
    else:
        names = [*getattr(value, "__dict__", ()), *_slots(type(value))]
        for name in names:
            yield f"{path}.{name}", getattr(value, name, None)


def _is_torch_state(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, (torch.nn.Module, torch.optim.Optimizer))


def _torch_parts(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    for place, item in leaves(value.state_dict(), ""):
        yield f"{path}{place}", item
    torch = sys.modules["torch"]
    if isinstance(value, torch.nn.Module):
        for name, part in value.named_modules():
            yield f"{path}{'.' if name else ''}{name}.training", part.training
        for name, parameter in value.named_parameters():
            yield f"{path}[{name!r}].grad", parameter.grad


def _slots(kind: type) -> list[str]:
    slots = [getattr(base, "__slots__", ()) for base in kind.__mro__]
    names = [name for group in slots for name in ([group] if isinstance(group, str) else group)]
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _class_attributes(trainer_class: type) -> dict[str, Any]:
    return {
        f"{base.__name__}.{name}": value
        for base in trainer_class.__mro__
        if _is_ours(base)
        for name, value in vars(base).items()
        if not name.startswith("__") and _function(value) is None and not isinstance(value, _OPAQUE)
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

"""Guards: the objects that a fingerprint has read, compared within microseconds.

A study computes its fingerprint again each time that it is used. A full computation takes
milliseconds, so the first one notes what it has read: the objects of names, the code of
functions, the members of classes, the items of containers. As long as all of them are the same
objects, the fingerprint is the same. Where one differs, a full computation decides.
"""

from __future__ import annotations

from abc import get_cache_token
from array import array
from collections import deque
from collections.abc import Callable, Mapping
from operator import is_
from types import CellType, FunctionType, MemberDescriptorType
from typing import Any

import numpy as np

from dasktune.errors import ConfigurationError
from dasktune.trainer.fingerprint.data import data_digest, is_torch

_MISSING = object()


class Guards:
    """The objects and contents that a computation has read."""

    def __init__(self) -> None:
        self._names: dict[tuple[int, str], tuple[Mapping[str, Any], str, Any]] = {}
        self._cells: dict[int, tuple[CellType, Any]] = {}
        self._functions: dict[int, tuple[FunctionType, tuple[Any, ...]]] = {}
        self._dicts: dict[int, tuple[Mapping[Any, Any], list[Any], list[Any]]] = {}
        self._lists: dict[int, tuple[Any, list[Any]]] = {}
        self._contents: dict[int, tuple[Any, Callable[[Any], Any], Any]] = {}
        self._token = get_cache_token()
        """Changes with each class that is registered with an abstract class."""

    def name(self, namespace: Mapping[str, Any], name: str) -> None:
        """Note the object of a name, or that there is none."""
        key = (id(namespace), name)
        if key not in self._names:
            self._names[key] = (namespace, name, namespace.get(name, _MISSING))

    def function(self, function: FunctionType) -> None:
        """Note the code, the defaults, the attributes and the closure of a function."""
        if id(function) in self._functions:
            return
        self._functions[id(function)] = (function, _state_of(function))
        self.members(function.__dict__)
        if function.__kwdefaults__:
            self.members(function.__kwdefaults__)
        for cell in function.__closure__ or ():
            self._cells[id(cell)] = (cell, _content_of(cell))

    def members(self, members: Mapping[Any, Any]) -> None:
        """Note the items of a mapping, or the members of a class or of an object."""
        if id(members) not in self._dicts:
            self._dicts[id(members)] = (members, list(members), list(members.values()))

    def class_(self, kind: type) -> None:
        """Note the members of a class."""
        if id(kind) not in self._contents:
            # Reading a proxy makes a new object: the class itself is kept.
            self._contents[id(kind)] = (kind, _members_of, _Same(_members_of(kind)))

    def value(self, thing: Any) -> None:
        """Note the content of a value that may be changed in place."""
        if isinstance(thing, dict):
            self.members(thing)
        elif isinstance(thing, Mapping):
            self._contents.setdefault(id(thing), (thing, _items_of, _Same(_items_of(thing))))
        elif isinstance(thing, (list, deque)):
            self._lists.setdefault(id(thing), (thing, list(thing)))
        elif isinstance(thing, (set, bytearray, array, np.ndarray)) or is_torch(thing, "Tensor"):
            if id(thing) not in self._contents:
                self._contents[id(thing)] = (thing, _content, _content(thing))
        else:
            if isinstance(own := getattr(thing, "__dict__", None), dict):
                self.members(own)
            if any("__slots__" in vars(kind) for kind in type(thing).__mro__):
                self._contents.setdefault(id(thing), (thing, _slots_of, _Same(_slots_of(thing))))

    def result(self, read: Callable[[], Any]) -> None:
        """Note what a function returns, such as the value of an attribute."""
        result = _result_of(read)
        was = result if isinstance(result, str) else _Same(result)
        self._contents[id(read)] = (read, _result_of, was)

    def hold(self) -> bool:
        """Return whether all that was read is as it was."""
        try:
            return self._hold()
        except RuntimeError:  # a thread of the user changes a container at this moment
            return False

    def _hold(self) -> bool:
        return (
            self._token == get_cache_token()
            and all(space.get(name, _MISSING) is was for space, name, was in self._names.values())
            and all(_is_same(_state_of(f), was) for f, was in self._functions.values())
            and all(_content_of(cell) is was for cell, was in self._cells.values())
            and all(
                _is_same(now, keys) and _is_same(now.values(), values)
                for now, keys, values in self._dicts.values()
            )
            and all(_is_same(now, items) for now, items in self._lists.values())
            and all(was == describe(now) for now, describe, was in self._contents.values())
        )


class _Same:
    """Members that equal others only if they are the same objects."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, members: list[Any]) -> None:
        self._members = members

    def __eq__(self, other: object) -> bool:
        return isinstance(other, list) and _is_same(other, self._members)


def _is_same(now: Any, before: Any) -> bool:
    return len(now) == len(before) and all(map(is_, now, before))


def _state_of(function: FunctionType) -> tuple[Any, ...]:
    return function.__code__, function.__defaults__, function.__kwdefaults__


def _members_of(kind: type) -> list[Any]:
    members = vars(kind)
    return [*members, *members.values(), kind.__bases__, type(kind)]


def _result_of(read: Callable[[], Any]) -> str | list[Any]:
    value = read()
    return repr(value) if isinstance(value, bool | int | float | str) else [value]


def _items_of(mapping: Mapping[Any, Any]) -> list[Any]:
    return [*mapping, *mapping.values()]


def _slots_of(thing: Any) -> list[Any]:
    """Return the values of the slots that hold one, with their descriptors."""
    slots = [
        slot
        for kind in type(thing).__mro__
        for slot in vars(kind).values()
        if isinstance(slot, MemberDescriptorType)
    ]
    return [*slots, *(getattr(thing, slot.__name__, _MISSING) for slot in slots)]


def _content_of(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _MISSING


def _content(thing: Any) -> Any:
    if isinstance(thing, set):
        return frozenset((type(item), item) for item in thing)
    if isinstance(thing, np.ndarray) and thing.dtype.hasobject:
        return thing.shape, [(id(item), item) for item in thing.ravel().tolist()]
    if isinstance(thing, np.ndarray):
        return data_digest(np.asarray(thing))
    if is_torch(thing, "Tensor"):
        try:
            return data_digest(thing.detach()), thing.requires_grad
        except ConfigurationError:  # sparse, quantized, or without content: a gap in any case
            return None
    return bytes(thing) if isinstance(thing, bytearray) else (thing.typecode, thing.tobytes())

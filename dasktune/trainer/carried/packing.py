"""Values as nodes of a state, with the identity of the objects in them.

A scalar, an array or a tensor stands for itself. Each other node is a dict. Its key is the kind of
the value, or one of these:

``kept``
    Path of an object that was there when the loop began; its new contents stand beside it.
``original``
    Path of such an object with the contents that it had.
``place``
    A part of `Run.state`, or of a tracked object.
``again``
    Number of an object that was packed before, in the order of their beginnings.
``unbound``
    A variable without a value.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from dasktune.trainer.carried.kinds import (
    ARRAYS,
    FACTORIES,
    MAPPINGS,
    SETS,
    kind_of,
    parts,
)
from dasktune.trainer.carried.originals import Originals, Path
from dasktune.trainer.carried.places import SavedParts, memory_of
from dasktune.trainer.optional_torch import torch

UNBOUND = {"unbound": True}
"""The node of a variable without a value."""


class UnpackableError(Exception):
    """A value that no state can hold.

    Parameters
    ----------
    value
        The value, which may be a part of the variable's.
    reason
        The end of a sentence that begins with the variable.
    """

    def __init__(self, value: Any, reason: str) -> None:
        super().__init__(reason)
        self.value, self.reason = value, reason


class Packer:
    """Turns the values of variables into nodes.

    Parameters
    ----------
    type_named
        Returns the class of a name where the function can see it, or None.
    users_at
        Returns the arrays and tensors in all variables that use the memory at an address.
    is_on_cpu
        Whether the training is on the CPU; if not, each tensor that is notes it.
    """

    def __init__(
        self,
        originals: Originals,
        places: SavedParts,
        *,
        type_named: Callable[[str], type | None],
        users_at: Callable[[int], Collection[Any]],
        is_on_cpu: bool,
    ) -> None:
        self._originals, self._places = originals, places
        self._type_named, self._is_on_cpu = type_named, is_on_cpu
        self._users_at = users_at
        self._numbers: dict[int, int] = {}
        self._held: list[Any] = []
        """The packed objects, held so that no other object gets the id of one."""
        self._memory: dict[int, Any] = {}

    def node(self, value: Any) -> Any:
        """Return the node of a value.

        Raises
        ------
        UnpackableError
            If no state can hold it.
        """
        kind = kind_of(value)
        if kind == "scalar":
            return value
        if (place := self._places.of(value)) is not None:
            return {"place": list(place)}
        path = self._originals.path_of(value)
        if path is not None and not self._originals.is_changed(path, value, self._places):
            return {"original": list(path)}
        if id(value) in self._numbers:
            return {"again": self._numbers[id(value)]}
        self._refuse(value, kind, path)
        self._numbers[id(value)] = len(self._held)
        self._held.append(value)
        content = self._content(value, kind)
        if path is not None:
            return {"kept": list(path), kind: content}
        is_bare = kind in ("array", "tensor") and not isinstance(content, dict)
        return content if is_bare else {kind: content}

    def _refuse(self, value: Any, kind: str, path: Path | None) -> None:
        if kind == "other" or (kind == "object" and path is None):
            raise UnpackableError(value, f"is a {type(value).__name__}, which cannot be saved")
        if (address := memory_of(value)) is None or path is not None:
            return
        if (place := self._places.memory.get(address)) is not None:
            name = f"run.state[{place[1]!r}]" if place[0] == "state" else f"the tracked {place[1]}"
            raise UnpackableError(value, f"uses the memory of {name}, and changes with it")
        if self._memory.setdefault(address, value) is value:
            return
        if not are_apart(self._users_at(address)):
            raise UnpackableError(value, "uses the memory of another variable")

    def _content(self, value: Any, kind: str) -> Any:
        if kind in ARRAYS:
            return self._array(value)
        if kind == "bytearray":
            return bytes(value)
        if kind in SETS:
            return {*map(self._member, value)}
        if kind in MAPPINGS:
            pairs = [[self.node(key), self.node(part)] for key, part in parts(value, kind)]
            return self._mapping(value, kind, pairs)
        items = [self.node(part) for _, part in parts(value, kind)]
        match kind:
            case "object":
                names = (name for name, _ in parts(value, kind))
                return [[name, item] for name, item in zip(names, items, strict=True)]
            case "deque":
                return {"maxlen": value.maxlen, "items": items}
            case "named":
                return {"class": self._class_name(value), "items": items}
        return items

    def _array(self, value: Any) -> Any:
        """Return an array or tensor, with the order of its axes in memory and its place."""
        content = value if kind_of(value) == "array" else value.detach()
        extra: dict[str, Any] = {}
        if (axes := order_of_axes(content)) is not None:
            is_array = isinstance(content, np.ndarray)
            content = content.transpose(axes) if is_array else content.permute(axes)
            extra["axes"] = axes
        if not self._is_on_cpu and kind_of(value) != "array" and value.device.type == "cpu":
            extra["on_host"] = True
        return {"data": content, **extra} if extra else content

    def _mapping(self, value: Any, kind: str, pairs: list[Any]) -> Any:
        if kind == "ordered":
            return {"metadata": self.node(getattr(value, "_metadata", None)), "items": pairs}
        if kind != "defaultdict":
            return pairs
        factory = value.default_factory
        name = None if factory is None else getattr(factory, "__name__", "")
        if factory is not None and FACTORIES.get(str(name)) is not factory:
            name = "kept"
            if self._originals.path_of(value) is None:
                raise UnpackableError(value, "is a defaultdict with a function of its own")
        return {"factory": name, "items": pairs}

    def _member(self, value: Any) -> Any:
        if kind_of(value) != "scalar" and not isinstance(value, tuple):
            raise UnpackableError(
                value, f"has a {type(value).__name__} in a set, which cannot be saved"
            )
        return value

    def _class_name(self, value: Any) -> str:
        name = type(value).__name__
        if self._type_named(name) is not type(value):
            raise UnpackableError(value, f"is a {name}, a class that the function does not name")
        return name


def order_of_axes(value: Any) -> list[int] | None:
    """Return the axes by their distances in memory; None for the usual order, and for a part.

    Sums over an array follow this order, and so do their last bits.
    """
    is_array = isinstance(value, np.ndarray)
    if not is_array and value.layout != torch.strided:
        return None
    strides = value.strides if is_array else value.stride()
    axes = sorted(range(value.ndim), key=lambda axis: -abs(strides[axis]))
    ordered = value.transpose(axes) if is_array else value.permute(axes)
    if _is_dense(value) or not _is_dense(ordered):
        return None
    return axes


def are_apart(values: Collection[Any]) -> bool:
    """Return whether a change of one of these arrays and tensors leaves all others alone."""
    if not all(kind_of(value) in ("array", "tensor") and _is_dense(value) for value in values):
        return False
    spans = sorted(_span(value) for value in values if _span(value)[0] < _span(value)[1])
    return all(end <= start for (_, end), (start, _) in pairwise(spans))


def _span(value: Any) -> tuple[int, int]:
    """Return the addresses of a dense array's first byte, and of that behind its last."""
    is_array = isinstance(value, np.ndarray)
    first = value.__array_interface__["data"][0] if is_array else value.data_ptr()
    return first, first + value.nbytes


def _is_dense(value: Any) -> bool:
    is_array = isinstance(value, np.ndarray)
    return bool(value.flags.c_contiguous if is_array else value.is_contiguous())


def is_unbound(node: Any) -> bool:
    """Return whether a node is that of a variable without a value."""
    return isinstance(node, dict) and "unbound" in node


def paths_in(node: Any) -> Iterator[Path]:
    """Yield the paths of the objects made before the loop that a node needs."""
    waiting = [node]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield from (tuple(part[key]) for key in ("kept", "original") if key in part)
            waiting.extend(part.values())
        elif isinstance(part, list):
            waiting.extend(item for item in part if isinstance(item, (dict, list)))

"""The kinds of values that a state can hold, and the parts of each."""

from __future__ import annotations

import marshal
from argparse import Namespace
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator
from enum import Enum
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from dasktune.storage.tensors import digest_of
from dasktune.trainer import attributes
from dasktune.trainer.carried.frames import is_own
from dasktune.trainer.optional_torch import torch

SCALARS: frozenset[type] = frozenset({bool, int, float, complex, str, bytes, type(None)})
"""Types that a state holds as they are."""

SEQUENCES = frozenset({"list", "tuple", "deque", "named"})
MAPPINGS = frozenset({"dict", "ordered", "counter", "defaultdict"})
SETS = frozenset({"set", "frozenset"})
ARRAYS = frozenset({"array", "tensor", "graph", "leaf", "parameter"})
"""Arrays of NumPy, and tensors: computed with a graph, leaves of one, parameters, and others."""

FACTORIES = {kind.__name__: kind for kind in (int, float, bool, str, list, dict, set, tuple)}
"""Default values of a defaultdict that a state can name."""

_KINDS: dict[type, str] = {
    **dict.fromkeys(SCALARS, "scalar"),
    list: "list",
    tuple: "tuple",
    deque: "deque",
    dict: "dict",
    OrderedDict: "ordered",
    Counter: "counter",
    defaultdict: "defaultdict",
    set: "set",
    frozenset: "frozenset",
    bytearray: "bytearray",
}
_NAMESPACES = (SimpleNamespace, Namespace)
_HEAP_TYPE = 1 << 9
"""Flag of classes that Python code has made (``Py_TPFLAGS_HEAPTYPE``)."""


def kind_of(value: Any) -> str:
    """Return the kind of a value; ``"other"`` if no state can hold it."""
    kind = type(value)
    if (known := _KINDS.get(kind)) is not None:
        return known
    if isinstance(value, np.generic):
        return "other" if value.dtype.hasobject else "scalar"
    if kind is np.ndarray:
        return "other" if value.dtype.hasobject else "array"
    if kind is torch.nn.Parameter:
        return "parameter"
    if kind is torch.Tensor:
        if not value.requires_grad:
            return "tensor"
        return "leaf" if value.is_leaf else "graph"
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return "named"
    if kind is torch.Size:
        return "scalar"
    if kind in _NAMESPACES:
        return "object"
    return "object" if _is_plain_class(kind) and not attributes.is_object(value) else "other"


def _is_plain_class(kind: type) -> bool:
    """Return whether a class is the user's own, and its attributes are all that it holds."""
    if issubclass(kind, (type, FunctionType, ModuleType, Iterator)) or not is_own(kind.__module__):
        return False
    return all(each is object or each.__flags__ & _HEAP_TYPE for each in kind.__mro__)


def parts(value: Any, kind: str) -> Iterator[tuple[Any, Any]]:
    """Yield the parts of a value: index, key or name, and the part."""
    if kind in SEQUENCES:
        yield from enumerate(value)
    elif kind in MAPPINGS:
        yield from value.items()
    elif kind == "object":
        yield from attributes.members(value)


def inner_parts(value: Any, kind: str) -> Iterator[tuple[Any, Any]]:
    """Yield the parts of a value that are not scalars; quick for a long list of numbers."""
    if kind not in ("list", "tuple") or not {*map(type, value)} <= SCALARS:
        for key, part in parts(value, kind):
            if kind_of(part) != "scalar":
                yield key, part


def outline(value: Any, kind: str) -> object:
    """Return the contents of a value as a token, without its parts that are not scalars."""
    if kind == "scalar":
        return _token(value)
    if kind == "list" and {*map(type, value)} <= SCALARS:
        return len(value), digest_of(marshal.dumps(value, 2))
    if kind in SETS:
        return digest_of("\n".join(sorted(map(_token, value))).encode())
    if kind == "bytearray":
        return bytes(value)
    if kind in SEQUENCES | MAPPINGS or kind == "object":
        texts = (f"{_token(key)}: {_token_of_part(part)}" for key, part in parts(value, kind))
        return digest_of("\n".join(texts).encode())
    return None


def _token_of_part(value: Any) -> str:
    """Return the token of a scalar, and of another part its type alone."""
    return _token(value) if kind_of(value) == "scalar" else type(value).__qualname__


def _token(value: Any) -> str:
    kind = type(value)
    if kind in SCALARS or isinstance(value, Enum):
        return f"{kind.__name__} {value!r}"
    if isinstance(value, np.generic):
        return f"{kind.__name__} {value.dtype} {value.tobytes().hex()}"
    if kind is tuple:
        return f"({', '.join(map(_token, value))})"
    if kind is frozenset:
        return f"{{{', '.join(sorted(map(_token, value)))}}}"
    return kind.__qualname__


def is_plain_key(value: Any) -> bool:
    """Return whether a state can name a part by this key."""
    if type(value) is tuple:
        return all(map(is_plain_key, value))
    return type(value) in SCALARS or isinstance(value, np.generic)

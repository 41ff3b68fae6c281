"""The content of options that users give to a framework: equal for equal options.

Fingerprints cover values, functions and classes, and know nothing of what an object of an installed
package was made with. `content_of` takes such objects apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np

from dasktune.trainer.fingerprint.data import is_torch

_WHOLE = (
    *(bool, int, float, complex, str, bytes, type(None), np.generic, np.ndarray, Enum, PurePath),
    *(type, FunctionType, BuiltinFunctionType, ModuleType),
)
"""Types of values that fingerprints cover."""


def content_of(option: Any) -> Any:
    """Return the values, functions and classes of which an option is made.

    An object counts by what `copy.deepcopy` takes over: its ``__reduce_ex__`` says so. A file
    system, for example, leaves out the number of its process. An object that cannot be copied is
    returned as it is.

    Examples
    --------
    >>> content_of({"precision": "bf16", "window": slice(1)})
    (('precision', 'bf16'), ('window', (<class 'slice'>, (None, 1, None))))
    """
    return _content(option, {})


def _content(option: Any, seen: dict[int, tuple[int, Any]]) -> Any:
    if isinstance(option, _WHOLE) or is_torch(option, "Tensor", "dtype", "device"):
        return option
    if id(option) in seen:
        return f"object {seen[id(option)][0]} again"
    # Objects are kept alive, so that each id stays unique: some are made only for this.
    seen[id(option)] = (len(seen), option)
    if isinstance(option, Mapping):
        return tuple((_content(key, seen), _content(value, seen)) for key, value in option.items())
    if isinstance(option, (list, tuple)):
        return tuple(_content(each, seen) for each in option)
    if isinstance(option, (set, frozenset)):
        return tuple(sorted((_content(each, seen) for each in option), key=repr))
    try:
        made = option.__reduce_ex__(4)
    except Exception:  # noqa: BLE001 - of any library: locks, files, connections
        return option
    if isinstance(made, str):
        return type(option), made
    call, arguments, *rest = made
    items = [tuple(each) if isinstance(each, Iterator) else each for each in rest]
    return tuple(_content(each, seen) for each in (call, arguments, *items))

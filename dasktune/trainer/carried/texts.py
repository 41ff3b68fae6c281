"""Values as short texts: equal for equal contents, in each process."""

from __future__ import annotations

from enum import Enum
from itertools import islice
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np

from dasktune.storage.tensors import digest_of
from dasktune.trainer.carried.kinds import (
    ARRAYS,
    MAPPINGS,
    SCALARS,
    SEQUENCES,
    SETS,
    kind_of,
    parts,
)
from dasktune.trainer.carried.places import SavedParts
from dasktune.trainer.optional_torch import torch

_MOST_LETTERS = 60
"""Letters of a text; those of a longer one are digested."""

_MOST_LEVELS = 8
_MOST_ITEMS = 1000
"""Items of a list that are compared with each other."""


def text_of(value: Any, places: SavedParts) -> str:
    """Return the contents of a value as a text; of what cannot be read, its type."""
    text = _text(value, places, 0)
    if len(text) <= _MOST_LETTERS:
        return text
    return f"{text[:_MOST_LETTERS]}... ({digest_of(text.encode(errors='replace'))[:16]})"


def are_distinct(values: Any, places: SavedParts) -> bool:
    """Return whether a container has no item twice, as far as the contents can be read."""
    if isinstance(values, (range, dict, set, frozenset)):
        return True
    if type(values) not in (list, tuple):
        return False
    texts = [text_of(item, places) for item in islice(values, _MOST_ITEMS)]
    return len({*texts}) == len(values)


def _text(value: Any, places: SavedParts, level: int) -> str:
    kind = kind_of(value)
    if kind != "scalar" and (place := places.of(value)) is not None:
        return f"<{' '.join(map(str, place))}>"
    if level > _MOST_LEVELS:
        return "..."
    name = type(value).__qualname__
    if kind == "scalar":
        return _scalar(value)
    if kind in ARRAYS:
        return f"{name} {tuple(value.shape)} {value.dtype} {_digest(value)}"
    if kind in SEQUENCES:
        items = [_text(item, places, level + 1) for _, item in parts(value, kind)]
        inner = ", ".join(items)
        return (
            f"[{inner}]"
            if kind == "list"
            else f"({inner})"
            if kind == "tuple"
            else f"{name}({inner})"
        )
    if kind in SETS:
        return f"{{{', '.join(sorted(_text(item, places, level + 1) for item in value))}}}"
    if kind in MAPPINGS or kind == "object":
        pairs = parts(value, kind)
        inner = ", ".join(
            f"{_text(key, places, level + 1)}: {_text(item, places, level + 1)}"
            for key, item in pairs
        )
        return f"{{{inner}}}" if kind == "dict" else f"{name}({inner})"
    if kind == "bytearray":
        return repr(value)
    if isinstance(value, Enum):
        return str(value)
    if isinstance(value, (type, FunctionType, BuiltinFunctionType)):
        return f"{value.__module__}.{value.__qualname__}"
    return name


def _scalar(value: Any) -> str:
    if type(value) in SCALARS:
        return repr(value)
    content = value.item() if isinstance(value, np.generic) else value
    return f"{type(value).__name__}({content!r})"


def _digest(value: Any) -> str:
    """Return a digest of the numbers of an array; empty if they cannot be read."""
    if kind_of(value) == "array":
        return digest_of(value.tobytes())[:16]
    try:
        dense = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        return digest_of(dense.view(-1).view(torch.uint8).numpy().tobytes())[:16]
    except (AttributeError, NotImplementedError, RuntimeError, TypeError):
        return ""

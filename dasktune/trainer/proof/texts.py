"""Texts of parts, equal for equal values: short ones show the value, others are digests."""

from __future__ import annotations

import functools
import marshal
import sys
from array import array
from datetime import datetime
from itertools import count
from typing import Any

import numpy as np

from dasktune.storage.tensors import digest_of
from dasktune.trainer.proof.differences import leaf_digest
from dasktune.trainer.proof.reached_code import is_ours

_SCALAR_TYPES = frozenset({bool, int, float, complex, str, bytes, type(None)})


PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic)


MAX_NAMED = 16
"""Items of a container of plain values that have a path each; a larger one has one in all."""


CONTAINERS = (list, tuple, dict, set, frozenset)


MAX_DEPTH = 12


class PartText(str):
    """The text of a part that has no value to compare by itself, such as a generator."""


UNSEEN = "unseen "
"""Begins the texts of objects that nobody can look into."""


class Unseen(PartText):
    """The text of an object that nobody can look into."""


class TimeText(PartText):
    """The text of a date and time, with its epoch seconds."""

    seconds: float


_NO_ARRAYS = _SCALAR_TYPES | {list, tuple, dict, set, frozenset, PartText}
"""Types that are asked most often."""


_LONG = 2**16
"""Letters or bytes from which on a text is not written out for its digest."""


def text_of(value: Any) -> str:
    """Return a text that is equal for equal values: short ones as they are, others by a digest."""
    if isinstance(value, PartText):
        kind = value.partition(" ")[0]
        return str(value) if len(value) <= 40 else f"{kind} {digest_of(value.encode())}"
    if isinstance(value, (str, bytes)) and len(value) > _LONG:
        content = value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
        return f"{type(value).__name__} {digest_of(content)}"
    if isinstance(value, np.generic):
        text = f"{value.dtype.str} {value.item()!r}"
    elif isinstance(value, PLAIN):
        text = f"{type(value).__name__} {value!r}"
    elif (numbers := as_numpy(value)) is not None:
        return f"{form_of(value)} {digest_of(_bytes_of(numbers))}"
    else:
        text = f"{type(value).__qualname__} {leaf_digest(value)}"
    if len(text) <= 40:
        return text
    return f"{type(value).__name__} {digest_of(text.encode('utf-8', 'surrogatepass'))}"


def form_of(value: Any) -> str:
    """Return kind, type and shape of an array."""
    form = f"{type(value).__name__} {_name_of_type(value.dtype)} {tuple(value.shape)}"
    axes = order_of(value)
    return f"{form} with axes {axes} in memory" if axes else form


_name_of_type = functools.lru_cache(maxsize=256)(str)


def order_of(value: Any) -> str:
    """Return the axes of an array by their distances in memory; empty for the usual order.

    Sums follow this order, and so do their last bits.
    """
    if value.ndim < 2 or not hasattr(value, "strides" if hasattr(value, "flags") else "stride"):
        return ""
    is_of_numpy = isinstance(value, np.ndarray)
    if value.flags.c_contiguous if is_of_numpy else value.is_contiguous():
        return ""
    strides = value.strides if is_of_numpy else value.stride()
    axes = sorted(range(value.ndim), key=lambda axis: -abs(strides[axis]))
    ordered = value.transpose(axes) if is_of_numpy else value.permute(axes)
    is_dense = ordered.flags.c_contiguous if is_of_numpy else ordered.is_contiguous()
    return " ".join(map(str, axes)) if is_dense else ""


def memory_of(value: Any) -> int | None:
    """Return a number for the memory that an array uses, or is a part of; None of other values."""
    if isinstance(value, np.ndarray):
        while isinstance(value.base, np.ndarray):
            value = value.base
        return int(value.__array_interface__["data"][0])
    torch = loaded_torch()
    if torch is not None and isinstance(value, torch.Tensor):
        try:
            return value.untyped_storage().data_ptr() or None
        except (NotImplementedError, RuntimeError):  # sparse tensors and others
            return None
    return None


def span_of(value: Any) -> tuple[int, int] | None:
    """Return where an array begins and ends in memory; None if it has gaps, or a graph."""
    if isinstance(value, np.ndarray):
        first = int(value.__array_interface__["data"][0])
        return (first, first + value.nbytes) if value.flags.c_contiguous else None
    if value.requires_grad or not value.is_contiguous():
        return None
    return value.data_ptr(), value.data_ptr() + value.nbytes


def _bytes_of(numbers: np.ndarray[Any, Any]) -> Any:
    return np.ascontiguousarray(numbers).reshape(-1).view(np.uint8).data


def loaded_torch() -> Any:
    """Return torch; None before its import."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "Tensor") else None


def is_array(value: Any) -> bool:
    """Return whether a value is an array of numbers: of NumPy, torch, or another package."""
    kind = type(value)
    if kind in _NO_ARRAYS:
        return False
    if isinstance(value, np.ndarray):
        return not value.dtype.hasobject
    torch = loaded_torch()
    if torch is not None and isinstance(value, torch.Tensor):
        return value.layout is torch.strided and not value.is_meta
    if home_of(value) == "pandas":
        return False  # its parts are arrays
    # A JAX or CuPy array.
    is_array_like = hasattr(kind, "__array__") and hasattr(kind, "dtype") and not is_ours(kind)
    return is_array_like and isinstance(value.dtype, np.dtype)  # keys of JAX have another


def is_usual_array(value: Any) -> bool:
    """Return whether a value is an array of NumPy or a tensor of torch, and of no other class."""
    kind = type(value)
    if kind is np.ndarray:
        return not value.dtype.hasobject
    torch = loaded_torch()
    return torch is not None and kind in (torch.Tensor, torch.nn.Parameter) and is_array(value)


def as_numpy(value: Any) -> np.ndarray[Any, Any] | None:
    """Return an array as one of NumPy with the same bytes; None for other values."""
    if not is_array(value):
        return None
    torch = loaded_torch()
    if torch is not None and isinstance(value, torch.Tensor):
        tensor = value.detach()
        if tensor.is_quantized:
            tensor = tensor.int_repr()
        tensor = tensor.cpu().resolve_conj().resolve_neg()
        try:
            return tensor.numpy()  # type: ignore[no-any-return]
        except TypeError:  # NumPy has no bfloat16 and no 8-bit floats
            return tensor.contiguous().view(torch.uint8).numpy()  # type: ignore[no-any-return]
    return np.asarray(value)


def text_at_once(value: Any) -> PartText | None:
    """Return the text of a value that needs no path for each of its parts; None for others."""
    kind = type(value)
    if isinstance(value, (bytearray, array, memoryview)):
        return PartText(f"{kind.__name__} {digest_of(bytes(value))}")
    is_c_data = any(base.__module__ == "_ctypes" for base in kind.__mro__)
    if is_c_data and not kind.__name__.endswith("_p") and not callable(value):
        return PartText(f"{kind.__name__} {bytes(value)!r}")  # a pointer is of the process
    if kind in CONTAINERS and len(value) > MAX_NAMED and _has_scalars_alone(value):
        return PartText(f"{kind.__name__} {digest_of(marshal.dumps(value, 2))}")
    if isinstance(value, (set, frozenset)):
        # The text of other objects shows their address.
        items = sorted(repr(x) if isinstance(x, PLAIN) else home_of(x) for x in value)
        return PartText(f"{kind.__name__} {items!r}")
    if isinstance(value, count):
        return PartText(repr(value))
    if isinstance(value, datetime):
        text = TimeText(f"{kind.__name__} {value!r}")
        text.seconds = value.timestamp()
        return text
    # Python 3.13 has paths in the module `pathlib._local`.
    is_text = home_of(value) in ("decimal", "fractions", "datetime", "pathlib", "uuid", "re")
    if is_text or kind in (range, slice):
        return PartText(f"{kind.__name__} {value!r}")
    if isinstance(value, np.dtype):
        return PartText(repr(value))
    return None


def _has_scalars_alone(value: Any, depth: int = 0) -> bool:
    """Return whether a container holds numbers and texts, or lists and tuples of these."""
    items = [*value, *value.values()] if isinstance(value, dict) else value
    kinds = {*map(type, items)} - _SCALAR_TYPES
    if not kinds <= {list, tuple} or (kinds and depth == MAX_DEPTH):
        return False
    return not kinds or all(
        _has_scalars_alone(item, depth + 1) for item in items if type(item) in (list, tuple)
    )


def home_of(value: Any) -> str:
    """Return the top-level module of a value's class."""
    return (type(value).__module__ or "").partition(".")[0]

"""Arrays in proofs: large ones that are read in part, and those that lie in the state."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dasktune.storage.tensors import digest_of
from dasktune.trainer.proof.texts import as_numpy, form_of, is_array, order_of, text_of

LARGE = 2**24
"""Bytes from which on an array that did not seem to change is read in part."""


class StateArrays:
    """The arrays of a state, to find the number of one.

    A state has the trainer's own arrays, or views of all of their memory.
    """

    def __init__(self, arrays: list[Any]) -> None:
        self._arrays = arrays
        self._by_id = {id(array): index for index, array in enumerate(arrays)}
        self._by_memory: dict[tuple[object, ...], int] | None = None

    def of(self, value: Any) -> int | None:
        """Return the number of an array in the state; None of another array."""
        index = self._by_id.get(id(value))
        if index is not None:
            return index
        if self._by_memory is None:
            self._by_memory = {
                memory: index
                for index, array in enumerate(self._arrays)
                if (memory := _memory(array))
            }
        memory = _memory(value) if self._by_memory else None
        return None if memory is None else self._by_memory.get(memory)


@dataclass(slots=True)
class _Large:
    """A large array at the last look: the array, its memory and text, and digests of its chunks."""

    array: weakref.ref[Any]
    memory: tuple[object, ...]
    text: str
    chunks: list[str]
    turn: int = 0


_LARGE_ARRAYS: dict[int, _Large] = {}
"""By the id of the array; other threads may look at others at the same time."""


def text_of_any(value: Any) -> str:
    """Return the text of a part; see `text_of_large`."""
    is_large = is_array(value) and value.nbytes >= LARGE
    return text_of_large(value) if is_large else text_of(value)


def text_of_large(value: Any, *, is_copied: bool = False) -> str:
    """Return the text of a large array; one that does not seem to change is read in part.

    Another chunk of it is read at each look. If that has changed, or the array is copied, all is
    read.

    Parameters
    ----------
    is_copied
        Whether a state may have a copy of it, so that a resumed trainer has all of it as it is now.
    """
    memory, numbers = _memory(value), as_numpy(value)
    if numbers is None or memory is None:
        return text_of(value)
    flat = np.ascontiguousarray(numbers).reshape(-1).view(np.uint8)
    count = -(-flat.nbytes // LARGE)

    def chunk(index: int) -> str:
        return digest_of(flat[index * LARGE : (index + 1) * LARGE].data)

    known = _LARGE_ARRAYS.get(id(value))
    if known is not None and known.array() is value and known.memory == memory and not is_copied:
        known.turn = (known.turn + 1) % count
        if chunk(known.turn) == known.chunks[known.turn]:
            return known.text
    chunks = [chunk(index) for index in range(count)]
    text = f"{form_of(value)} {digest_of(' '.join(chunks).encode())}"
    for other in [key for key, each in _LARGE_ARRAYS.copy().items() if each.array() is None]:
        _LARGE_ARRAYS.pop(other, None)
    _LARGE_ARRAYS[id(value)] = _Large(weakref.ref(value), memory, text, chunks)
    return text


def arrays_of(state: Mapping[str, Any]) -> list[Any]:
    """Return the arrays of a state in their order."""
    arrays: list[Any] = []
    waiting: list[Any] = [state]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            waiting.extend(reversed([*value.values()]))
        elif isinstance(value, (list, tuple)):
            waiting.extend(reversed(value))
        elif is_array(value):
            arrays.append(value)
    return arrays


def _memory(value: Any) -> tuple[object, ...] | None:
    """Return a key that two views of the same memory share; None for an unknown memory."""
    if isinstance(value, np.ndarray):
        if not value.nbytes:
            return None
        place = value.__array_interface__["data"][0]
        return place, value.shape, value.strides, value.dtype.str
    if hasattr(value, "data_ptr") and value.numel():
        itemsize = value.element_size()
        strides = tuple(stride * itemsize for stride in value.stride())
        kind = _NUMPY_NAMES.get(str(value.dtype), str(value.dtype))
        return value.data_ptr(), tuple(value.shape), strides, kind
    return None


_NUMPY_NAMES = {
    f"torch.{name}": np.dtype(name).str
    for name in (
        "float64",
        "float32",
        "float16",
        "int64",
        "int32",
        "int16",
        "int8",
        "uint8",
        "bool",
    )
}


def array_difference(value: Any, arrays: list[Any], index: int, order: str) -> str | None:
    """Return why a part does not hold what the state holds of it, in words; None if it does."""
    if not is_array(value) or index >= len(arrays):
        return "is not loaded from the state, which has it"
    if order_of(value) != order:
        return "lies in memory with another order of its axes: the last bits of sums will differ"
    if _are_same(value, arrays[index]):
        return None
    live, saved = as_numpy(value), as_numpy(arrays[index])
    if live is None or saved is None or live.shape != saved.shape or live.dtype != saved.dtype:
        return f"is of {form_of(value)} after loading, and the state has {form_of(arrays[index])}"
    if _have_same_bytes(live, saved):
        return None
    unequal = int((live != saved).sum()) if live.dtype.kind in "fciub" else live.size
    return f"is not loaded from the state, which has it: {unequal} of {live.size} numbers differ"


def _are_same(value: Any, saved: Any) -> bool:
    """Return whether two small arrays of NumPy are the same; quick, as there may be thousands."""
    return value is saved or (
        (type(value) is np.ndarray is type(saved))
        and value.nbytes < _SMALL
        and value.dtype == saved.dtype
        and value.shape == saved.shape
        and value.tobytes() == saved.tobytes()
    )


_SMALL = 2**16


def _have_same_bytes(live: np.ndarray[Any, Any], saved: np.ndarray[Any, Any]) -> bool:
    """Return whether two arrays of one form hold the same bytes."""
    if live.__array_interface__["data"][0] == saved.__array_interface__["data"][0]:
        return True
    first, other = (np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in (live, saved))
    starts = range(0, first.nbytes, LARGE)
    return all(
        np.array_equal(first[start : start + LARGE], other[start : start + LARGE])
        for start in starts
    )

"""Differences between two states, found bit for bit or within a tolerance."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dasktune.storage.tensors import digest_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One difference between two states.

    Parameters
    ----------
    path
        Its place, such as ``state['optimizer']['lr']``.
    reason
        What must hold, and the value instead.
    """

    path: str
    reason: str

    @property
    def is_of_a_cache(self) -> bool:
        """Whether a cache may differ so: by what it has, and not by another value of a key."""
        return not (self.path.endswith("]") and "after loading, and was" in self.reason)

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


def state_differences(
    expected: object, found: object, *, path: str = "state", tolerance: float = 0.0
) -> Iterator[Difference]:
    """Yield the differences of two states in the order of the expected state.

    Types count: 1, 1.0 and True are three values. NaN equals the same NaN, and 0.0
    differs from -0.0.

    Parameters
    ----------
    expected, found
        Nested dicts, lists and tuples of numbers, strings, arrays and tensors.
    path
        Name of the whole state.
    tolerance
        Largest difference of a number, relative to the largest number of its array.

    Examples
    --------
    >>> first, second = {"lr": 0.1, "w": np.zeros(3)}, {"lr": 0.1, "w": np.array([0, 0, 2.0])}
    >>> print(*state_differences(first, second))
    state['w']: 1 of 3 numbers differ, by at most 2
    """
    before, after = dict(leaves(expected, path)), dict(leaves(found, path))
    for place, value in before.items():
        if place not in after:
            yield Difference(path=place, reason=f"is missing; it was {_short(value)}")
        elif reason := _reason(value, after[place], tolerance):
            yield Difference(path=place, reason=reason)
    for place in after.keys() - before.keys():
        yield Difference(path=place, reason=f"was not there before; got {_short(after[place])}")


def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield path and value of every leaf of a nested value."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from leaves(item, f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple)) and value:
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}[{index}]")
    else:
        yield path, value


def leaf_digest(value: Any) -> str:
    """Return a digest of type and value of a leaf; of an unknown type, the type alone."""
    array = as_array(value)
    if array is not None and array.dtype.hasobject:
        head, content = f"{_form(value)} ", b""
    elif array is not None:
        # Millions of bytes, and often: no copy of them, and a fast digest.
        head = f"{_form(value)} "
        content = digest_of(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).encode()
    elif isinstance(value, float):
        head, content = "float ", struct.pack("<d", value)
    elif isinstance(value, (set, frozenset)):
        head, content = "set ", repr(sorted(map(repr, value))).encode()
    elif value is None or isinstance(
        value, (bool, int, complex, str, bytes, list, tuple, Mapping, np.generic)
    ):
        head, content = f"{type(value).__name__} ", repr(value).encode("utf-8", "surrogatepass")
    else:
        head, content = f"{type(value).__module__}.{type(value).__qualname__}", b""
    return digest_of(head.encode() + content)


def as_array(value: Any) -> np.ndarray[Any, Any] | None:
    """Return an array or tensor as an array of equal values; None for other types."""
    if isinstance(value, np.ndarray):
        return value
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return None
    tensor = value.detach().cpu()
    # NumPy has no bfloat16 and no 8-bit floats.
    known = tensor.dtype in (torch.float64, torch.float32, torch.float16, torch.bool)
    if not known and tensor.dtype.is_floating_point:
        return tensor.double().numpy()  # type: ignore[no-any-return]
    return tensor.numpy()  # type: ignore[no-any-return]


def _reason(expected: Any, found: Any, tolerance: float) -> str | None:
    """Return the difference of two leaves as a sentence, or None."""
    before, after = as_array(expected), as_array(found)
    if before is not None and after is not None:
        if _form(expected) != _form(found):
            return f"must be {_form(expected)}, got {_form(found)}"
        return _number_reason(before, after, tolerance)
    if leaf_digest(expected) == leaf_digest(found):
        return None
    if isinstance(expected, float) and isinstance(found, float):
        reason = _number_reason(np.array(expected), np.array(found), tolerance)
        if reason is None:
            return None
    return f"must be {_short(expected)}, got {_short(found)}"


def _number_reason(
    before: np.ndarray[Any, Any], after: np.ndarray[Any, Any], tolerance: float
) -> str | None:
    if before.tobytes() == after.tobytes():
        return None
    unequal = ~((before == after) | ((before != before) & (after != after)))
    count, size = int(unequal.sum()), before.size
    if before.dtype.kind not in "fciub" or not count:
        return f"{count} of {size} entries differ" if count else "differs in the sign of zeros"
    with np.errstate(invalid="ignore"):
        distances = np.abs(before[unequal].astype(complex) - after[unequal].astype(complex))
    largest = float(distances.max())
    scale = float(np.abs(before[np.isfinite(before)]).max(initial=0))
    if largest <= tolerance * scale:  # false for NaN and infinite distances
        return None
    return f"{count} of {size} numbers differ, by at most {largest:.3g}"


def _form(array: Any) -> str:
    """Return kind, type and shape of an array or tensor."""
    return f"{type(array).__name__} {array.dtype} {tuple(array.shape)}"


def _short(value: object) -> str:
    array = as_array(value)
    if array is not None and array.size > 4:
        return _form(value)
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."

"""Whether two states are the same, bit for bit, and where they are not."""

from __future__ import annotations

import hashlib
import struct
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that is not as it should be.

    Parameters
    ----------
    path
        What it is, such as ``state['optimizer']['lr']``.
    reason
        What must hold and what came.
    """

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


def state_differences(
    expected: object, found: object, *, path: str = "state", tolerance: float = 0.0
) -> Iterator[Difference]:
    """Yield where two states differ, in the order of the expected one.

    Types count: 1, 1.0 and True are three values. NaN equals the same NaN, and 0.0
    differs from -0.0.

    Parameters
    ----------
    expected, found
        Nested dicts, lists and tuples of numbers, strings, arrays and tensors.
    path
        What the whole is called.
    tolerance
        Largest difference of a number, relative to the largest number of its array.

    Examples
    --------
    >>> one, two = {"lr": 0.1, "w": np.zeros(3)}, {"lr": 0.1, "w": np.array([0, 0, 2.0])}
    >>> print(*state_differences(one, two))
    state['w']: 1 of 3 numbers differ, by at most 2
    """
    ours, theirs = dict(leaves(expected, path)), dict(leaves(found, path))
    for place, value in ours.items():
        if place not in theirs:
            yield Difference(path=place, reason=f"is missing; it was {_short(value)}")
        elif reason := _reason(value, theirs[place], tolerance):
            yield Difference(path=place, reason=reason)
    for place in theirs.keys() - ours.keys():
        yield Difference(path=place, reason=f"was not there before; got {_short(theirs[place])}")


def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield what a nested value holds, with the path to each."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from leaves(item, f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple)) and value:
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}[{index}]")
    else:
        yield path, value


def leaf_digest(value: Any) -> str:
    """Return a digest of type and value of what `leaves` yields.

    Objects of unknown types are told apart by their type alone.
    """
    array = as_array(value)
    if array is not None:
        head = f"{_form(value)} "
        content = np.ascontiguousarray(array).tobytes()
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
    return hashlib.blake2b(head.encode() + content, digest_size=12).hexdigest()


def as_array(value: Any) -> np.ndarray[Any, Any] | None:
    """Return an array or tensor as an array of the same bytes; None for anything else."""
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
    """Return in what two leaves differ, if they do."""
    ours, theirs = as_array(expected), as_array(found)
    if ours is not None and theirs is not None:
        if _form(expected) != _form(found):
            return f"must be {_form(expected)}, got {_form(found)}"
        return _number_reason(ours, theirs, tolerance)
    if leaf_digest(expected) == leaf_digest(found):
        return None
    if isinstance(expected, float) and isinstance(found, float):
        reason = _number_reason(np.array(expected), np.array(found), tolerance)
        if reason is None:
            return None
    return f"must be {_short(expected)}, got {_short(found)}"


def _number_reason(
    ours: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any], tolerance: float
) -> str | None:
    if ours.tobytes() == theirs.tobytes():
        return None
    unequal = ~((ours == theirs) | ((ours != ours) & (theirs != theirs)))
    count = int(unequal.sum())
    if ours.dtype.kind not in "fciub" or not count:
        return f"{count} of {ours.size} entries differ" if count else "differs in the sign of zeros"
    with np.errstate(invalid="ignore"):
        distances = np.abs(ours[unequal].astype(complex) - theirs[unequal].astype(complex))
    largest, scale = float(distances.max()), float(np.abs(ours[np.isfinite(ours)]).max(initial=0))
    if largest <= tolerance * scale:  # never so if either is infinite or no number
        return None
    return f"{count} of {ours.size} numbers differ, by at most {largest:.3g}"


def _form(array: Any) -> str:
    """Return kind, type and shape of an array or tensor."""
    return f"{type(array).__name__} {array.dtype} {tuple(array.shape)}"


def _short(value: object) -> str:
    array = as_array(value)
    if array is not None and array.size > 4:
        return _form(value)
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."

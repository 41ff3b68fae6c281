"""The contents of values in memory, by which a later change shows.

A tensor counts the changes that torch makes. It does not count those made behind its back:
``tensor.data.mul_()``, ``tensor.numpy()[:] += 1``, a C extension that writes into its memory. So
the contents alone decide. They are read in chunks, and a comparison ends at the first chunk that
differs: a value that changes at each step costs one chunk.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np

from dasktune.storage.tensors import digest_of
from dasktune.trainer.optional_torch import torch

CHUNK_BYTES = 2**24
"""Bytes that are read at a time; so many are copied at most, from a GPU or a strided view."""

_SPARSE_PARTS = {
    "torch.sparse_coo": ("_indices", "_values"),
    "torch.sparse_csr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_bsr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_csc": ("ccol_indices", "row_indices", "values"),
    "torch.sparse_bsc": ("ccol_indices", "row_indices", "values"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentStamp:
    """A record of the contents of a value, to compare them later.

    Examples
    --------
    >>> value = {"mean": torch.zeros(2), "names": {"a"}}
    >>> contents = ContentStamp.of(value)
    >>> contents.are_those_of(value)
    True
    >>> _ = value["mean"].numpy().fill(1)
    >>> contents.are_those_of(value)
    False
    """

    tokens: tuple[object, ...]

    @classmethod
    def of(cls, value: Any) -> ContentStamp:
        """Return the contents of numbers, strings, arrays, tensors and containers of them."""
        return cls(tokens=tuple(_tokens(value)))

    def are_those_of(self, value: Any) -> bool:
        """Return whether a value has these contents; reads up to the first difference."""
        return all(before == now for before, now in zip_longest(self.tokens, _tokens(value)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReadOnly:
    """A part of memory that this process cannot write to, so its place vouches for its contents.

    Parameters
    ----------
    owner
        The object that owns the memory. It is held, so no other object can take its address.
    """

    owner: object
    address: int

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _ReadOnly)
            and self.owner is other.owner
            and self.address == other.address
        )

    __hash__ = None  # type: ignore[assignment]


def _tokens(value: Any) -> Iterator[object]:
    """Yield what tells a value from another one, forms before contents."""
    kind = type(value)
    if isinstance(value, torch.Tensor):
        yield kind, value.dtype, tuple(value.shape), value.requires_grad
        yield from _tensor_tokens(value.detach())
    elif isinstance(value, np.ndarray):
        yield kind, value.dtype, value.shape
        yield from _array_tokens(value)
    elif isinstance(value, (list, tuple)):
        yield kind, len(value)
        for item in value:
            yield from _tokens(item)
    elif isinstance(value, dict):
        yield kind, len(value)
        for key, item in value.items():
            yield type(key), repr(key)
            yield from _tokens(item)
    elif isinstance(value, (set, frozenset)):
        # The order of a set is not part of its contents.
        yield kind, sorted(f"{type(item).__name__} {item!r}" for item in value)
    else:
        yield kind, repr(value)


def _array_tokens(array: np.ndarray[Any, Any]) -> Iterator[object]:
    if owner := _read_only_owner(array):
        yield _ReadOnly(owner=owner, address=array.__array_interface__["data"][0]), array.strides
        return
    if not array.nbytes:
        return
    flat = array.reshape(-1) if array.flags.c_contiguous else array
    for rows in _row_ranges(len(flat), array.nbytes):
        chunk = np.ascontiguousarray(flat[rows])
        yield digest_of(chunk.reshape(-1).view(np.uint8).data)


def _tensor_tokens(tensor: torch.Tensor) -> Iterator[object]:
    try:
        if parts := _parts(tensor):
            for part in parts:
                yield from _tokens(part)
        elif not tensor.is_meta and tensor.numel():
            yield from _strided_tokens(tensor)
    except (AttributeError, NotImplementedError, RuntimeError, TypeError):
        # Nobody knows whether contents that cannot be read have changed: equal to none.
        yield object()


def _strided_tokens(tensor: torch.Tensor) -> Iterator[object]:
    # A tensor without axes is contiguous, so there is an axis in both cases.
    flat = tensor.view(-1) if tensor.is_contiguous() else tensor
    for rows in _row_ranges(len(flat), tensor.numel() * tensor.itemsize):
        chunk = flat[rows].cpu().resolve_conj().resolve_neg().contiguous()
        yield digest_of(chunk.view(-1).view(torch.uint8).numpy().data)


def _parts(tensor: torch.Tensor) -> list[Any]:
    """Return the dense parts of a tensor that is none itself."""
    if hasattr(tensor, "__tensor_flatten__"):
        return [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
    if tensor.is_quantized:
        return [tensor.dequantize()]
    return [getattr(tensor, name)() for name in _SPARSE_PARTS.get(str(tensor.layout), ())]


def _row_ranges(rows: int, nbytes: int) -> Iterator[slice]:
    """Yield ranges of rows of at most `CHUNK_BYTES`, or of one row."""
    size = max(1, CHUNK_BYTES * rows // nbytes)
    for start in range(0, rows, size):
        yield slice(start, start + size)


def _read_only_owner(array: np.ndarray[Any, Any]) -> object | None:
    """Return the owner of an array's memory if nothing in this process can write to it.

    That is a file mapped read-only, or a bytes object. The flag ``writeable`` of an array alone
    says little: whoever owns the memory may write to it.
    """
    owner: Any = array
    while isinstance(owner, np.ndarray):
        if owner.flags.writeable:
            return None
        owner = owner.base
    if isinstance(owner, memoryview):
        owner = owner.obj
    is_constant = isinstance(owner, bytes) or (
        isinstance(owner, mmap.mmap) and memoryview(owner).readonly
    )
    return owner if is_constant else None

"""Memory for bytes: where tensors may lie in it, and where it comes from."""

from __future__ import annotations

import mmap

import numpy as np
from numpy.typing import NDArray

Buffer = NDArray[np.uint8]
"""One-dimensional bytes."""

ALIGNMENT = 64
"""Tensors lie at multiples of this: kernels may round differently where they do not."""


_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_POPULATE", 0)
"""Memory of this process alone, and all pages at once where the system can."""


def empty(nbytes: int) -> Buffer:
    """Return fresh bytes of any content; the first one lies at a multiple of `ALIGNMENT`.

    Examples
    --------
    >>> is_aligned(empty(100))
    True
    """
    memory = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -address(memory) % ALIGNMENT
    return memory[start : start + nbytes]


def in_pages(nbytes: int) -> Buffer:
    """Return fresh bytes like `empty`, in pages of the usual size.

    NumPy asks for huge ones. A virtual machine may have given those back to its host, and then
    waits for each to come again, which takes several times as long as reading a file.

    Examples
    --------
    >>> is_aligned(in_pages(100))
    True
    """
    return np.frombuffer(mmap.mmap(-1, nbytes, flags=_FLAGS), np.uint8) if nbytes else empty(0)


def is_aligned(data: Buffer) -> bool:
    """Say whether the first byte lies at a multiple of `ALIGNMENT`."""
    return address(data) % ALIGNMENT == 0


def address(data: Buffer) -> int:
    """Return where the first byte lies."""
    return int(data.__array_interface__["data"][0])

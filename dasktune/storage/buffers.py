"""Memory for the bytes of tensors: allocation and alignment."""

from __future__ import annotations

import mmap

import numpy as np
from numpy.typing import NDArray

Buffer = NDArray[np.uint8]
"""One-dimensional bytes."""

ALIGNMENT = 64
"""Tensors lie at multiples of this: at other addresses kernels may round differently."""

PAGE = 4096
"""Disks read whole blocks of memory of this size, or of a divisor of it, without a copy."""

_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_POPULATE", 0)
"""Private memory, all pages at once if the system can."""


def empty(nbytes: int) -> Buffer:
    """Return fresh bytes of any content; the first one lies at a multiple of `PAGE`.

    Examples
    --------
    >>> is_aligned(empty(100))
    True
    """
    memory = np.empty(nbytes + PAGE, np.uint8)
    start = -address(memory) % PAGE
    return memory[start : start + nbytes]


def in_pages(nbytes: int) -> Buffer:
    """Return fresh bytes like `empty`, in pages of the usual size.

    NumPy asks for huge pages. A virtual machine may have returned those to its host; getting
    them again takes several times as long as reading a file.

    Examples
    --------
    >>> is_aligned(in_pages(100))
    True
    """
    return np.frombuffer(mmap.mmap(-1, nbytes, flags=_FLAGS), np.uint8) if nbytes else empty(0)


def is_aligned(data: Buffer) -> bool:
    """Return whether the first byte lies at a multiple of `ALIGNMENT`."""
    return address(data) % ALIGNMENT == 0


def address(data: Buffer) -> int:
    """Return the address of the first byte."""
    return int(data.__array_interface__["data"][0])

"""The values of sequences that change at every step, evaluated once for all trials of a plan.

Values are kept packed, 8 bytes a step, in blocks of consecutive steps; the blocks that were made
first are dropped where there are too many of them, and evaluated again when they are needed.
"""

from __future__ import annotations

import struct
from typing import cast

from dasktune.types import Step, Value, ValueFunction

MOST_NBYTES = 128 * 2**20
"""Bytes of packed values that are kept: those of 16.7 million steps."""

_Block = tuple[ValueFunction, Step, Step]
"""A curve, its first step, and the step after its last one."""


class ValueCache:
    """Packed values of curves, for one thread.

    Parameters
    ----------
    most_nbytes
        Bytes that are kept.

    Attributes
    ----------
    evaluated
        Number of values that were computed so far.
    nbytes
        Bytes that are kept now.
    """

    def __init__(self, most_nbytes: int = MOST_NBYTES) -> None:
        self.evaluated = 0
        self.nbytes = 0
        self._most_nbytes = most_nbytes
        self._blocks: dict[_Block, bytes] = {}

    def values(self, function: ValueFunction, start: Step, stop: Step) -> bytes | list[Value]:
        """Return the values at steps: packed if all of them are floats, else as they are.

        Parameters
        ----------
        start, stop
            The first step, and the step after the last.

        Raises
        ------
        ConfigurationError
            If a value overflows.
        """
        leaf, origin, end = function.leaf_at(start)
        block = None if end is not None and end < stop else (leaf, start - origin, stop - origin)
        if block is not None and (known := self._blocks.get(block)) is not None:
            return known
        values = function.values(start, stop)
        self.evaluated += len(values)
        if {*map(type, values)} != {float}:
            return values
        packed = pack(cast(list[float], values))
        if block is not None and len(packed) <= self._most_nbytes:
            self._blocks[block] = packed
            self.nbytes += len(packed)
            while self.nbytes > self._most_nbytes:
                self.nbytes -= len(self._blocks.pop(next(iter(self._blocks))))
        return packed


def pack(values: list[float]) -> bytes:
    """Return the canonical bytes of floats, 8 for each; -0.0 is 0.0."""
    if 0.0 in values:
        values = [value + 0.0 for value in values]
    return struct.pack(f">{len(values)}d", *values)


def unpack(packed: bytes) -> tuple[bytes, ...]:
    """Return the bytes of each value.

    Examples
    --------
    >>> [value.hex() for value in unpack(pack([-0.0, 2.0]))]
    ['0000000000000000', '4000000000000000']
    """
    return struct.unpack("8s" * (len(packed) // 8), packed)

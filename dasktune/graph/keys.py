"""State keys: a state is named by the values that made it.

``key(0) = H(fingerprint, seed)`` and ``key(t) = H(key(s), values, t - s)``, where ``s``
starts the maximal run of equal values that holds step ``t - 1``. A constant therefore
costs one hash however long it lasts, and two trials have the same key at ``t`` exactly
when the trainer saw the same values at every step before ``t``.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import repeat
from operator import itemgetter
from typing import cast

from dasktune.errors import InternalError
from dasktune.types import Sequences, Step, Value

DIGEST_NBYTES = 16
_PACK_FLOAT = struct.Struct(">d").pack
_PACK_LENGTH = struct.Struct(">Q").pack

BLOCK_STEPS = 1024
"""Most steps that are evaluated together where values change at every step."""


def root_key(fingerprint: str, seed: int) -> str:
    """Return ``key(0)``: the state before any step, from code, config, data and seed.

    Examples
    --------
    >>> root_key("abc", 0) == root_key("abc", 1)
    False
    """
    text = f"{len(fingerprint)}:{fingerprint}:{seed}".encode()
    return blake2b(text, digest_size=DIGEST_NBYTES).hexdigest()


def encode_value(value: Value) -> bytes:
    """Return the canonical bytes of one value.

    int, float and bool are distinct, a float is its 8 bytes, and -0.0 is 0.0.
    """
    match value:
        case bool():
            return b"b1" if value else b"b0"
        case float():
            return b"f" + _PACK_FLOAT(value + 0.0)
        case int():
            text = b"%d" % value
            return b"i" + _PACK_LENGTH(len(text)) + text
        case str():
            text = value.encode()
            return b"s" + _PACK_LENGTH(len(text)) + text
        case None:
            return b"n"
        case _:
            raise InternalError(f"a value must be int, float, bool, str or None, got {value!r}")


def encode_at(sequences: Sequences, step: Step) -> bytes:
    """Return the canonical bytes of all values that the trainer sees at one step."""
    return next(runs(sequences, step, step + 1))[1]


def runs(sequences: Sequences, start: Step, stop: Step) -> Iterator[tuple[Step, bytes]]:
    """Yield ``(until, values)`` for consecutive spans of constant values in [start, stop).

    Neighbouring spans may hold equal values: `Chain.extend` joins them.
    """
    step = start
    for until, rows in _blocks(sequences, start, stop):
        if len(rows) == 1:
            yield until, rows[0]
        else:
            yield from zip(range(step + 1, until + 1), rows, strict=True)
        step = until


def _blocks(sequences: Sequences, start: Step, stop: Step) -> Iterator[tuple[Step, list[bytes]]]:
    """Yield ``(until, rows)``: the values at each step of a block, or the values of all of it."""
    ordered = sorted(sequences.items())
    names = [encode_value(name) for name, _ in ordered]
    functions = [function for _, function in ordered]
    parts = list(names)
    ends = [start] * len(functions)
    step = start
    while step < stop:
        for index, function in enumerate(functions):
            if ends[index] <= step:
                parts[index] = names[index] + encode_value(function(step))
                until = function.constant_until(step)
                ends[index] = stop if until is None else until
        until = min(*ends, stop) if ends else stop
        if step + 1 < until or until == stop:
            yield until, [b"".join(parts)]
        else:
            until = min(stop, step + BLOCK_STEPS, *(end for end in ends if end > step + 1))
            columns = [
                repeat(part) if end > step + 1 else _encoded(name, function.values(step, until))
                for part, end, name, function in zip(parts, ends, names, functions, strict=True)
            ]
            # One of them is no `repeat`, and ends.
            yield until, list(map(b"".join, zip(*columns, strict=False)))
            ends = [max(end, until) for end in ends]
        step = until


def _encoded(name: bytes, values: list[Value]) -> list[bytes]:
    """Return the canonical bytes of a name and each of its values."""
    if {*map(type, values)} == {float}:  # in half of the time
        name += b"f"
        return [name + _PACK_FLOAT(cast(float, value) + 0.0) for value in values]
    return [name + encode_value(value) for value in values]


@dataclass(frozen=True, slots=True)
class Chain:
    """A position in the chain of keys: the key where the present run began, and the run.

    Parameters
    ----------
    base
        Key (hex) at the start of the run of equal values.
    values
        Canonical bytes of the run's values; empty before the first step.
    length
        Steps of the run so far.
    """

    base: str
    values: bytes = b""
    length: int = 0

    @property
    def key(self) -> str:
        """The state key (hex) at this position."""
        if self.length == 0:
            return self.base
        body = bytes.fromhex(self.base) + _PACK_LENGTH(self.length) + self.values
        return blake2b(body, digest_size=DIGEST_NBYTES).hexdigest()

    def extend(self, values: bytes, steps: int) -> Chain:
        """Return the position `steps` further, with these values at each of them."""
        if steps == 0:
            return self
        if values == self.values:
            return Chain(self.base, values, self.length + steps)
        return Chain(self.key, values, steps)

    def keys(self, values: bytes, further: Iterable[int]) -> Iterator[str]:
        """Yield the key so many steps further, at least one, with these values at each of them.

        That is ``extend(values, steps).key`` for each, in a quarter of the time.
        """
        run = self.extend(values, 1)
        base, before = bytes.fromhex(run.base), run.length - 1
        for steps in further:
            body = base + _PACK_LENGTH(before + steps) + values
            yield blake2b(body, digest_size=DIGEST_NBYTES).hexdigest()

    def advance(self, sequences: Sequences, start: Step, stop: Step) -> Chain:
        """Return the position at `stop`, this one being the position at `start`."""
        end = self
        for _, position in self.positions(sequences, start, stop):
            end = position
        return end

    def positions(
        self, sequences: Sequences, start: Step, stop: Step
    ) -> Iterator[tuple[Step, Chain]]:
        """Yield ``(step, position)`` on the way from `start` to `stop`, and there.

        Values change at most `BLOCK_STEPS` times from one to the next.
        """
        chain, step = self, start
        for until, rows in _blocks(sequences, start, stop):
            chain = chain.extend(rows[0], until - step) if len(rows) == 1 else chain._through(rows)
            yield until, chain
            step = until

    def _through(self, rows: Iterable[bytes]) -> Chain:
        """Return the position after one step with each of these values.

        That is `extend` for each, in a third of the time.
        """
        base, values, length = bytes.fromhex(self.base), self.values, self.length
        single = _PACK_LENGTH(1)
        for row in rows:
            if row == values:
                length += 1
                continue
            if length:
                body = base + (single if length == 1 else _PACK_LENGTH(length)) + values
                base = blake2b(body, digest_size=DIGEST_NBYTES).digest()
            values, length = row, 1
        return Chain(base.hex(), values, length)


class Positions:
    """Positions inside one edge of a plan, so that no long curve is hashed twice.

    It keeps one position in `BLOCK_STEPS` changes, and the last result: the next position that
    is asked for is often near to it.

    Parameters
    ----------
    start
        The first step of the edge.
    marks
        Known steps with their positions, ascending.
    """

    __slots__ = ("_last", "_marks", "_start")

    def __init__(self, start: Step, marks: Iterable[tuple[Step, Chain]] = ()) -> None:
        self._start = start
        self._marks = list(marks)
        """Ascending, at least `BLOCK_STEPS` steps apart."""
        self._last: tuple[Step, Chain] | None = None

    def nearest(self, step: Step) -> tuple[Step, Chain] | None:
        """Return the last known step up to `step`, and its position."""
        index = bisect_right(self._marks, step, key=itemgetter(0))
        mark, last = self._marks[index - 1] if index else None, self._last
        if last is None or last[0] > step or (mark is not None and mark[0] > last[0]):
            return mark
        return last

    def advance(self, chain: Chain, sequences: Sequences, start: Step, stop: Step) -> Chain:
        """Return the position at `stop`, and keep it and some on the way.

        Parameters
        ----------
        chain, start
            The nearest known position, and its step.
        """
        after = (self._marks[-1][0] if self._marks else self._start) + BLOCK_STEPS
        end = chain
        for step, end in chain.positions(sequences, start, stop):
            if step >= after:
                self._marks.append((step, end))
                after = step + BLOCK_STEPS
        self._last = stop, end
        return end

    def split(self, step: Step) -> tuple[Positions, Positions]:
        """Return the positions up to a step, and those after it."""
        index = bisect_right(self._marks, step, key=itemgetter(0))
        return Positions(self._start, self._marks[:index]), Positions(step, self._marks[index:])

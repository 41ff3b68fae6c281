"""State keys: a state is named by the values that made it.

``key(0) = H(fingerprint, seed)`` and ``key(t) = H(key(s), values, t - s)``, where ``s``
starts the maximal run of equal values that holds step ``t - 1``. A constant therefore
costs one hash however long it lasts, and two trials have the same key at ``t`` exactly
when the trainer saw the same values at every step before ``t``. Where several devices train
together, their number is one of the values (`dasktune.graph.devices`).
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from itertools import repeat
from operator import itemgetter, ne
from typing import NamedTuple

from dasktune.errors import InternalError
from dasktune.graph.devices import spans
from dasktune.graph.value_cache import ValueCache, unpack
from dasktune.types import Sequences, Step, Value

DIGEST_NBYTES = 16
_PACK_FLOAT = struct.Struct(">d").pack
_PACK_LENGTH = struct.Struct(">Q").pack

BLOCK_STEPS = 1024
"""Most steps that are evaluated together where values change at every step."""

_NOT_KEPT = ValueCache(0)  # it keeps nothing, so threads may share it
_ONE_STEP = _PACK_LENGTH(1)


def root_key(fingerprint: str, seed: int) -> str:
    """Return ``key(0)``: the state before any step, from code, config, data and seed.

    Examples
    --------
    >>> root_key("abc", 0) == root_key("abc", 1)
    False
    """
    text = f"{len(fingerprint)}:{fingerprint}:{seed}".encode()
    return blake2b(text, digest_size=DIGEST_NBYTES).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class SeededRoots:
    """The states before any step by training seed: `seed` is the one to which others are added."""

    fingerprint: str
    seed: int = 0

    def key(self, added: int) -> str:
        """Return the key of the state of the seed that is larger by a number."""
        return root_key(self.fingerprint, self.seed + added)


def named_key(key: str, facts: Mapping[str, Value]) -> str:
    """Return the key of a state for whose training further facts count; `key` without facts.

    A fact is something that the trainer does not see among the values and that changes what it
    gives, such as the numeric class of its workers. Keys that name no fact stay as they are.

    Examples
    --------
    >>> key = root_key("abc", 0)
    >>> named_key(key, {}) == key
    True
    >>> named_key(key, {"class": "cuda A100"}) == named_key(key, {"class": "cuda H100"})
    False
    """
    if not facts:
        return key
    named = (encode_value(name) + encode_value(value) for name, value in sorted(facts.items()))
    body = b"".join([b"facts", encode_value(key), *named])
    return blake2b(body, digest_size=DIGEST_NBYTES).hexdigest()


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
    for until, rows in _blocks(sequences, start, stop, _NOT_KEPT):
        if len(rows) == 1:
            yield until, rows[0]
        else:
            yield from zip(range(step + 1, until + 1), rows, strict=True)
        step = until


def _blocks(
    sequences: Sequences, start: Step, stop: Step, value_cache: ValueCache, lead: bytes = b""
) -> Iterator[tuple[Step, list[bytes]]]:
    """Yield ``(until, rows)``: the values at each step of a block, or the values of all of it.

    Blocks of values that change end at multiples of `BLOCK_STEPS`, or where a part ends: so trials
    that share a curve have most of their blocks in common. `lead` is put before the values of a
    single step.
    """
    for until, named in spans(sequences, start, stop):
        yield from _blocks_of(named, start, until, value_cache, lead)
        start = until


def _blocks_of(
    sequences: Sequences, start: Step, stop: Step, value_cache: ValueCache, lead: bytes
) -> Iterator[tuple[Step, list[bytes]]]:
    """Yield the blocks of `_blocks` where the number of devices stays the same."""
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
            yield until, [b"".join(parts) if step + 1 < until else lead + b"".join(parts)]
        else:
            most = (step // BLOCK_STEPS + 1) * BLOCK_STEPS
            until = min(stop, most, *(end for end in ends if end > step + 1))
            columns: dict[int, Iterable[bytes]] = {}
            for index, end in enumerate(ends):
                if end <= step + 1:
                    values = value_cache.values(functions[index], step, until)
                    parts[index], columns[index] = _encoded(names[index], values)
            yield until, _rows(lead, parts, columns)
            ends = [max(end, until) for end in ends]
        step = until


def _encoded(name: bytes, values: bytes | list[Value]) -> tuple[bytes, Iterable[bytes]]:
    """Return the canonical bytes with which all values of a name begin, and the rest of each."""
    if isinstance(values, bytes):
        return name + b"f", unpack(values)
    return name, map(encode_value, values)


def _rows(lead: bytes, parts: list[bytes], columns: Mapping[int, Iterable[bytes]]) -> list[bytes]:
    """Return the parts joined, with a value of each column after the part of its number."""
    if len(columns) == 1:
        [(index, column)] = columns.items()
        before, after = lead + b"".join(parts[: index + 1]), b"".join(parts[index + 1 :])
        return (
            [before + value + after for value in column]
            if after
            else [before + value for value in column]
        )
    pieces = [
        map(part.__add__, columns[index]) if index in columns else repeat(part)
        for index, part in enumerate(parts)
    ]
    # A `repeat` has no end.
    return list(map(b"".join, zip(repeat(lead), *pieces, strict=False)))


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

    def named(self, facts: Mapping[str, Value]) -> Chain:
        """Return the position from which on facts count (`named_key`), before its first step."""
        return Chain(named_key(self.key, facts)) if facts else self

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

    def advance(
        self, sequences: Sequences, start: Step, stop: Step, value_cache: ValueCache = _NOT_KEPT
    ) -> Chain:
        """Return the position at `stop`, this one being the position at `start`."""
        end = self
        for mark in self.marks(sequences, start, stop, value_cache):
            end = mark.chain
        return end

    def marks(
        self, sequences: Sequences, start: Step, stop: Step, value_cache: ValueCache = _NOT_KEPT
    ) -> Iterator[Mark]:
        """Yield the positions on the way from `start` to `stop`, and there.

        Values change at most `BLOCK_STEPS` times from one to the next.

        Parameters
        ----------
        sequences
            The values at each step.
        start, stop
            The step of this position, and the last one.
        """
        chain, step = self, start
        for until, rows in _blocks(sequences, start, stop, value_cache, _ONE_STEP):
            if len(rows) == 1 and step + 1 < until:
                chain = chain.extend(rows[0], until - step)
            else:
                chain = chain._through(rows)
            yield Mark(until, chain, len(rows))
            step = until

    def _through(self, rows: list[bytes]) -> Chain:
        """Return the position after one step with each of these values.

        That is `extend` for each, in a third of the time.

        Parameters
        ----------
        rows
            The length 1, packed, and the canonical bytes of the values of each step.
        """
        first = self.extend(rows[0][len(_ONE_STEP) :], 1)
        if not all(map(ne, rows, rows[1:])):
            for row in rows[1:]:
                first = first.extend(row[len(_ONE_STEP) :], 1)
            return first
        # To copy an empty hash is faster than to make one: there are no arguments to parse.
        base, new = bytes.fromhex(first.base), blake2b(digest_size=DIGEST_NBYTES).copy
        before = _PACK_LENGTH(first.length) + first.values
        for row in rows[1:]:
            run = new()
            run.update(base)
            run.update(before)
            base, before = run.digest(), row
        return Chain(base.hex(), before[len(_ONE_STEP) :], first.length if len(rows) == 1 else 1)


class Mark(NamedTuple):
    """A known position in the chain of keys.

    Parameters
    ----------
    step
        Its step.
    changes
        Number of changes of values, at most, since the mark before: each costs one hash.
    """

    step: Step
    chain: Chain
    changes: int = 0


class Positions:
    """Positions inside one edge of a plan, so that no long curve is hashed twice.

    It keeps one position in `BLOCK_STEPS` changes, and the last result: the next position that
    is asked for is often near to it.

    Parameters
    ----------
    start
        The first step of the edge.
    marks
        Known positions, ascending.
    """

    __slots__ = ("_last", "_marks", "_start")

    def __init__(self, start: Step, marks: Iterable[Mark] = ()) -> None:
        self._start = start
        self._marks = list(marks)
        """Ascending, at least `BLOCK_STEPS` steps apart."""
        self._last: Mark | None = None

    def nearest(self, step: Step) -> Mark | None:
        """Return the last known position up to `step`."""
        index = bisect_right(self._marks, step, key=itemgetter(0))
        mark, last = self._marks[index - 1] if index else None, self._last
        if last is None or last.step > step or (mark is not None and mark.step > last.step):
            return mark
        return last

    def add(self, mark: Mark) -> None:
        """Keep a position: for good if it lies far enough behind all others."""
        before = self._marks[-1].step if self._marks else self._start
        if mark.step >= before + BLOCK_STEPS:
            self._marks.append(mark)
        self._last = mark

    def split(self, step: Step) -> tuple[Positions, Positions]:
        """Return the positions up to a step, and those after it."""
        index = bisect_right(self._marks, step, key=itemgetter(0))
        return Positions(self._start, self._marks[:index]), Positions(step, self._marks[index:])

"""State keys: a state is named by the values that made it.

``key(0) = H(fingerprint, seed)`` and ``key(t) = H(key(s), values, t - s)``, where ``s``
starts the maximal run of equal values that holds step ``t - 1``. A constant therefore
costs one hash however long it lasts, and two trials have the same key at ``t`` exactly
when the trainer saw the same values at every step before ``t``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b

from dasktune.errors import InternalError
from dasktune.types import Sequences, Step, Value

DIGEST_NBYTES = 16
_PACK_FLOAT = struct.Struct(">d").pack
_PACK_LENGTH = struct.Struct(">Q").pack


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
        step = min(ends, default=stop)
        step = min(step, stop)
        yield step, b"".join(parts)


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
        chain, step = self, start
        for until, values in runs(sequences, start, stop):
            chain = chain.extend(values, until - step)
            step = until
        return chain

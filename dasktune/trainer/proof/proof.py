"""The proof of a resume: what the trainer that saved a state held beside it.

With each state the trainer that made it leaves a text for everything in its reach, by path. Whoever
loads the state compares before the first step. No training is needed to find what a state lacks,
at whatever step, in whatever branch.

A part that lies in the state is not written down: its place in the state is. Then the loaded
trainer must hold there what the state holds: large tensors are compared once, when they are loaded.

Two processes build the same trainer from the same values, so a part that has not changed since
`build` is compared, too: a build that draws without a seed makes another trainer each time. Texts
that have not changed since (paths, names of hosts and devices), and numbers that tell the time or
the process, belong to the process and not to the training.
"""

from __future__ import annotations

import json
import os
import threading
import time
import weakref
import zlib
from base64 import b85decode, b85encode
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dasktune.storage.tensors import digest_of
from dasktune.trainer.proof import reach
from dasktune.trainer.proof.differences import Difference, leaves
from dasktune.trainer.proof.reach import (
    GENERATOR,
    SETTING,
    VARIABLE,
    PartText,
    Reach,
    TimeText,
    as_numpy,
    text_of,
)

Proof = Mapping[str, str]
"""Texts by path. Each begins with a letter that tells where the part comes from."""

_BUILT, _CHANGED, _IN_STATE = "=", "~", "@"
"""Unchanged since `build`; changed since; the number of an array of the state follows."""

MOST_NAMED = 8
"""Differences that are named."""

_LARGE = 2**24
"""Bytes from which on an array that did not seem to change is read in part."""

_TEXTS = ("str ", "bytes ", "PosixPath ", "WindowsPath ", "PurePosixPath ")
_TIME, _PROCESS = "a time", "a number of the process"
"""Texts of parts that belong to the process; a time decides no result."""


@dataclass(slots=True, kw_only=True)
class Witness:
    """Writes down what a trainer holds, and compares; made directly after `build`.

    Parameters
    ----------
    trainer, device
        The trainer, and where it trains.
    environment
        The variables of the process before `build`.
    began
        The clocks of the process before `build`; see `clocks`.
    has_generators
        Whether the global random generators count: nobody else in the process draws from them.

    Attributes
    ----------
    seconds
        Time that this has taken.
    left_out
        By path, the parts that nobody can look into, and why.
    gradients
        By path, the ids of the parameters whose gradients were found to differ.
    """

    trainer: Any
    device: str
    environment: Mapping[str, str]
    began: tuple[float, ...]
    has_generators: bool = True
    seconds: float = 0.0
    left_out: dict[str, str] = field(default_factory=dict)
    gradients: dict[str, int] = field(default_factory=dict)
    _built: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        trainer: Any,
        device: str,
        environment: Mapping[str, str],
        began: tuple[float, ...],
        *,
        has_generators: bool = True,
    ) -> Witness:
        """Return the witness of a trainer that was just built."""
        witness = cls(
            trainer=trainer,
            device=device,
            environment=environment,
            began=began,
            has_generators=has_generators,
        )
        with _Timed(witness):
            witness._built = {path: witness._text(value) for path, value in witness._parts()}
        return witness

    def proof(self, state: Mapping[str, Any]) -> dict[str, str]:
        """Return the texts of everything in reach, for a state that was taken just now."""
        with _Timed(self):
            arrays = _arrays_of(state)
            places = {
                memory: index for index, array in enumerate(arrays) if (memory := _memory(array))
            }
            forms = {reach.form_of(array) for array in arrays}
            texts: dict[str, str] = {}
            for path, value in self._parts():
                memory = _memory(value) if reach.is_array(value) else None
                index = None if memory is None else places.get(memory)
                if index is not None:
                    texts[path] = f"{_IN_STATE}{index}"
                    continue
                text = self._text(value, forms)
                texts[path] = f"{_BUILT if self._built.get(path) == text else _CHANGED}{text}"
        return texts

    def differences(self, proof: Proof, arrays: list[Any]) -> list[Difference]:
        """Return the differences from the trainer that saved the state which this one has loaded.

        Parameters
        ----------
        proof
            What that one has left.
        arrays
            The arrays of the state, as `arrays_of` returned them before the state was loaded.
        """
        differences: list[Difference] = []
        with _Timed(self):
            parts = dict(self._parts())
            for path in sorted(dict.fromkeys([*proof, *parts]), key=_suspicion):
                reason = self._difference(path, proof.get(path), parts, arrays)
                if reason is None:
                    continue
                differences.append(Difference(path=path, reason=reason))
                if path.endswith(".grad"):
                    self.gradients[path] = id(parts.get(path.removesuffix(".grad")))
        return differences

    def differences_of_build(self, built: Mapping[str, str]) -> list[Difference]:
        """Return the differences from what `build` has made in another process."""
        return [
            Difference(
                path=path,
                reason=f"is {_shown(now)} after one build and {_shown(was)} after another: seed it "
                "from the trainer's seed",
            )
            for path, now in self._built.items()
            if (was := built.get(path, now)) != now
            and not now.startswith(_TEXTS)
            and not path.startswith((SETTING, VARIABLE))
        ]

    @property
    def built(self) -> dict[str, str]:
        """The texts of all parts after `build`."""
        return dict(self._built)

    def _difference(
        self, path: str, saved: str | None, parts: Mapping[str, Any], arrays: list[Any]
    ) -> str | None:
        """Return why a part is not what it was, in words; None if it is."""
        is_new = saved is None or (path not in parts and saved[0] == _BUILT)
        if is_new and (path.endswith(GENERATOR) or path.startswith(SETTING)):
            return None  # one of the processes may have loaded torch, and the other one not
        if saved is None:
            text = self._text(parts[path])
            if path.startswith(VARIABLE):
                return f"is {_shown(text)}, and was not set when the state was saved"
            return f"is {_shown(text)}, and was not there when the state was saved"
        if path not in parts:
            was = "" if saved[0] == _IN_STATE else f"; it was {_shown(saved[1:])}"
            return f"is missing after loading{was}"
        if saved[0] == _IN_STATE:
            return _array_difference(parts[path], arrays, int(saved[1:]))
        now = self._text(parts[path])
        if now == saved[1:]:
            return None
        if saved[1:] == _TIME:
            return None
        is_built = saved[0] == _BUILT and self._built.get(path) == now
        if is_built and (now.startswith(_TEXTS) or path.startswith(SETTING)):
            return None
        if saved[0] == _BUILT and path.endswith(GENERATOR):
            return None  # nothing was drawn from it since build
        shown, was = _shown(now), _shown(saved[1:])
        if is_built:
            return f"is {shown}, and was {was}: each build gives another one"
        if shown == was:  # digests of two things of one form
            form = shown.removeprefix("another ")
            what = "" if form == "value" else f" ({form})"
            return f"is not what it was when the state was saved{what}"
        return f"is {shown} after loading, and was {was} when the state was saved"

    def _parts(self) -> Iterator[tuple[str, Any]]:
        reached = Reach(self.trainer, self.device, has_generators=self.has_generators)
        yield from reached.leaves()
        yield from reach.settings().items()
        texts = reach.code_of(type(self.trainer)).texts
        for name, value in os.environ.items():
            # Packages set variables of their own.
            if self.environment.get(name) != value and name in texts:
                yield f"{VARIABLE}[{name!r}]", value
        self.left_out |= reached.left_out

    def _text(self, value: Any, forms: Collection[str] = ()) -> str:
        """Return the text of a part; `forms` are those of the arrays in its state."""
        if isinstance(value, (int, float, PartText)) and (own := self._of_the_process(value)):
            return own
        return text_of_any(value, is_copied=reach.is_array(value) and reach.form_of(value) in forms)

    def _of_the_process(self, value: float | PartText) -> str | None:
        """Return the text of a time since `build`, or of a number of the process."""
        if isinstance(value, PartText):
            return _TIME if isinstance(value, TimeText) and self._is_time(value.seconds) else None
        if isinstance(value, int):
            if value in (os.getpid(), threading.get_ident(), os.getppid()) and value > 1:
                return _PROCESS
            return _TIME if value > 10**12 and self._is_time(value / 1e9) else None
        return _TIME if self._is_time(value) and not value.is_integer() else None

    def _is_time(self, value: float) -> bool:
        return any(begin <= value <= end for begin, end in zip(self.began, clocks(), strict=True))


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


def text_of_any(value: Any, *, is_copied: bool = False) -> str:
    """Return the text of a part; a large array that does not seem to change is read in part.

    Another chunk of it is read at each look. If that has changed, or the array is copied, all is
    read.

    Parameters
    ----------
    is_copied
        Whether a state may have a copy of it, so that a resumed trainer has all of it as it is now.
    """
    if not reach.is_array(value) or value.nbytes < _LARGE:
        return text_of(value)
    memory, numbers = _memory(value), as_numpy(value)
    if numbers is None or memory is None:
        return text_of(value)
    flat = np.ascontiguousarray(numbers).reshape(-1).view(np.uint8)
    count = -(-flat.nbytes // _LARGE)

    def chunk(index: int) -> str:
        return digest_of(flat[index * _LARGE : (index + 1) * _LARGE].data)

    known = _LARGE_ARRAYS.get(id(value))
    if known is not None and known.array() is value and known.memory == memory and not is_copied:
        known.turn = (known.turn + 1) % count
        if chunk(known.turn) == known.chunks[known.turn]:
            return known.text
    chunks = [chunk(index) for index in range(count)]
    text = f"{reach.form_of(value)} {digest_of(' '.join(chunks).encode())}"
    for other in [key for key, each in _LARGE_ARRAYS.copy().items() if each.array() is None]:
        _LARGE_ARRAYS.pop(other, None)
    _LARGE_ARRAYS[id(value)] = _Large(weakref.ref(value), memory, text, chunks)
    return text


class _Timed:
    """Adds the time of its block to a witness."""

    def __init__(self, witness: Witness) -> None:
        self._witness, self._began = witness, time.perf_counter()

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._witness.seconds += time.perf_counter() - self._began


def arrays_of(state: Mapping[str, Any]) -> list[Any]:
    """Return the arrays of a state in their order."""
    return _arrays_of(state)


def packed(proof: Proof) -> str:
    """Return a proof as a short text for the commit of its state."""
    content = json.dumps(list(proof.items()), separators=(",", ":")).encode()
    return b85encode(zlib.compress(content, 1)).decode()


def unpacked(text: str) -> dict[str, str]:
    """Return the proof that `packed` has packed.

    Raises
    ------
    ValueError
        If the text is none of these.
    """
    try:
        whole = zlib.decompressobj()
        content = whole.decompress(b85decode(text), _MOST_BYTES)
        pairs: Any = json.loads(content) if whole.eof else [[None]]
        if all(type(part) is str for pair in pairs for part in pair):
            return dict(pairs)
    except (TypeError, ValueError, zlib.error) as error:
        raise ValueError(f"the proof cannot be read: {error}") from error
    raise ValueError("the proof must hold texts, and end")


_MOST_BYTES = 2**26


def _arrays_of(state: Mapping[str, Any]) -> list[Any]:
    return [value for _, value in leaves(state, "") if reach.is_array(value)]


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


def _array_difference(value: Any, arrays: list[Any], index: int) -> str | None:
    """Return why a part does not hold what the state holds of it, in words; None if it does."""
    if not reach.is_array(value) or index >= len(arrays):
        return "is not loaded from the state, which has it"
    live, saved = as_numpy(value), as_numpy(arrays[index])
    if live is None or saved is None or live.shape != saved.shape or live.dtype != saved.dtype:
        return (
            f"is of {reach.form_of(value)} after loading, and the state has "
            f"{reach.form_of(arrays[index])}"
        )
    if _are_same(live, saved):
        return None
    unequal = int((live != saved).sum()) if live.dtype.kind in "fciub" else live.size
    return f"is not loaded from the state, which has it: {unequal} of {live.size} numbers differ"


def _are_same(live: np.ndarray[Any, Any], saved: np.ndarray[Any, Any]) -> bool:
    """Return whether two arrays of one form hold the same bytes."""
    if live.__array_interface__["data"][0] == saved.__array_interface__["data"][0]:
        return True
    first, other = (np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in (live, saved))
    starts = range(0, first.nbytes, _LARGE)
    return all(
        np.array_equal(first[start : start + _LARGE], other[start : start + _LARGE])
        for start in starts
    )


def clocks() -> tuple[float, ...]:
    """Return the time of day, and that of the clock that never goes back, in seconds."""
    return time.time(), time.perf_counter()


def _suspicion(path: str) -> int:
    """Return the rank of a suspect: lengths and gradients last, since others say more."""
    if path.endswith(".grad"):
        return 4
    if path.startswith("len("):
        return 3
    if path.endswith(GENERATOR) or path.startswith((SETTING, VARIABLE)):
        return 2
    return 0 if path.startswith("trainer.") else 1


def _shown(text: str) -> str:
    """Return a text for a message: ``float 0.5`` as the number, a digest by its type alone."""
    kind, _, value = text.partition(" ")
    if kind in ("int", "float", "bool", "str", "NoneType", "complex", "bytes") and value:
        return value if len(value) != 32 or kind not in ("str", "bytes") else f"another {kind}"
    form, _, digest = text.rpartition(" ")
    if digest.isalnum() and len(digest) == 32:
        return f"another {form or 'value'}"
    return text

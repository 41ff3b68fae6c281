"""Leases between drivers that share a store: which driver trains which steps.

A lease is a file under the state key that the first of its steps makes; the driver that creates
the file trains the steps. It is advice, not a lock: two drivers that cannot see each other, or
whose clocks disagree, train the same steps twice, and the first commit stands. So nothing here
must be durable, and create-if-absent is all that the store must offer.

A lease stays after its steps are trained, and then lists the states saved on the way. Beside
leases, drivers write save requests (`SaveRequest`), so that other drivers save the states where
configurations part.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from dasktune.engine.timeouts import LEASE_LIMIT_SECONDS
from dasktune.sequences import sequence_from_json
from dasktune.storage import layout
from dasktune.storage.files.base import Files
from dasktune.types import Sequences, Step

MOST_ENDS = 100
"""Steps in one save request; no tuner needs more."""

_FORMAT, _VERSION = "dasktune-lease", 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A range of steps that a driver trains, or has trained.

    Parameters
    ----------
    key
        The state key that the first of the steps makes.
    root
        The state key at step 0.
    study
        Unique name of the study: its next driver takes over the leases of the last one.
    holder
        Unique name of the driver's run.
    sequences
        JSON documents of the hyper-parameters by name.
    start, stop
        The steps, the last one excluded.
    step
        The last step that the driver knows to be trained.
    saved
        Steps on the way whose states are in the store.
    expires
        Time at which the lease ends unless it is renewed (epoch seconds).
    is_done
        Whether the training has ended.
    of
        The key of the whole lease, if this one is a part of another: a part is on the step
        after a saved state and ends with the whole. Empty for a whole lease.
    """

    key: str
    root: str
    study: str
    holder: str
    sequences: Mapping[str, Mapping[str, Any]]
    start: Step
    stop: Step
    step: Step
    expires: float
    saved: tuple[Step, ...] = ()
    is_done: bool = False
    of: str = ""

    def is_held(self, now: float) -> bool:
        """Return whether a driver trains these steps."""
        return not self.is_done and now < self.expires <= now + LEASE_LIMIT_SECONDS

    def part(self, key: str) -> Lease:
        """Return the part of this lease on the step that makes another key."""
        return replace(self, key=key, of=self.key, sequences={}, saved=())

    def to_bytes(self) -> bytes:
        """Return the lease as the content of a file."""
        return json.dumps({"format": _FORMAT, "version": _VERSION, **asdict(self)}).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Lease | None:
        """Return the lease in a file, or None for invalid content."""
        try:
            document = json.loads(content)
            known = (document.pop("format"), document.pop("version")) == (_FORMAT, _VERSION)
            lease = cls(**{**document, "saved": tuple(document["saved"])})
            numbers = [lease.start, lease.stop, lease.step, *lease.saved]
            names = [lease.key, lease.root, lease.study, lease.holder, lease.of]
            is_whole = (
                known
                and all(type(number) is int and number >= 0 for number in numbers)
                and all(type(name) is str for name in names)
                and isinstance(lease.sequences, dict)
                and type(lease.expires) is float
                and math.isfinite(lease.expires)
                and not layout.problems_of(key=lease.key, of=lease.of or lease.key)
            )
        except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
            return None
        return lease if is_whole else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveRequest:
    """A request of a driver that others save states of a configuration.

    Parameters
    ----------
    sequences
        The configuration.
    ends
        The steps whose states are requested.
    """

    sequences: Sequences
    ends: tuple[Step, ...]


class Leases:
    """The leases and save requests in a store."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def take(self, lease: Lease, now: float, *, heed_saved: bool = True) -> Lease | None:
        """Take a lease; return None, or the other lease that prevents it.

        Parameters
        ----------
        lease
            The lease.
        now
            Epoch seconds.
        heed_saved
            Whether an ended lease that lists saved states prevents it, too: the caller must
            look at those states first.
        """
        content, path = lease.to_bytes(), layout.lease_path(lease.root, lease.key)
        if self._files.create(path, content, durable=False):
            return None
        there = self._files.read("", [path])[0]
        other = self.read(lease.root, [lease.key])[0]
        if there is None or other is None or other.study == lease.study:
            # A study has one driver at a time, which takes over the leases of the last one.
            self._files.replace(path, content)
            return None
        if other.is_held(now) or (heed_saved and other.saved):
            return other
        self._files.remove_same(path, there.tobytes())
        if self._files.create(path, content, durable=False):
            return None
        return self.read(lease.root, [lease.key])[0]

    def write(self, lease: Lease) -> None:
        """Write a held lease again, with its progress."""
        self._files.replace(layout.lease_path(lease.root, lease.key), lease.to_bytes())

    def read(self, root: str, keys: Sequence[str]) -> list[Lease | None]:
        """Return the lease of each key, or None; for a part, the whole lease."""
        leases = self._read(root, keys)
        parts = [lease.of for lease in leases if lease is not None and lease.of]
        wholes = dict(zip(parts, self._read(root, parts), strict=True)) if parts else {}
        return [wholes[lease.of] if lease and lease.of else lease for lease in leases]

    def all(self, root: str) -> Iterator[tuple[str, float]]:
        """Yield path and time of the last write of each lease and save request below a root."""
        for folder in (layout.lease_folder(root), layout.save_request_folder(root)):
            for entry in self._files.entries(folder):
                yield entry.path, entry.modified

    def remove(self, paths: Sequence[str]) -> None:
        """Remove leases and save requests."""
        self._files.remove_files(paths)

    def request_saves(
        self, root: str, holder: str, number: int, requests: Sequence[SaveRequest]
    ) -> str:
        """Write save requests into a new file of this driver; return its path."""
        document = [
            {
                "sequences": {name: value.to_json() for name, value in request.sequences.items()},
                "ends": request.ends,
            }
            for request in requests
        ]
        path = f"{layout.save_request_folder(root)}/{holder}-{number}"
        self._files.replace(path, json.dumps(document).encode())
        return path

    def save_requests(self, root: str, known: set[str]) -> Iterator[SaveRequest]:
        """Yield the requests in files whose paths are not in `known`, and add those paths."""
        paths = [entry.path for entry in self._files.entries(layout.save_request_folder(root))]
        new = [path for path in paths if path not in known]
        known.update(new)
        for content in self._files.read("", new) if new else ():
            yield from _requests_in(b"" if content is None else content.tobytes())

    def _read(self, root: str, keys: Sequence[str]) -> list[Lease | None]:
        """Return the lease of each key; a lease that names another place is invalid."""
        contents = self._files.read("", [layout.lease_path(root, key) for key in keys])
        leases = [
            None if content is None else Lease.from_bytes(content.tobytes()) for content in contents
        ]
        return [
            lease if lease is not None and (lease.root, lease.key) == (root, key) else None
            for key, lease in zip(keys, leases, strict=True)
        ]


def _requests_in(content: bytes) -> list[SaveRequest]:
    """Return the requests in a file; none if it is invalid, because anyone may have written it."""
    try:
        return [
            SaveRequest(
                sequences={
                    str(name): sequence_from_json(value)
                    for name, value in request["sequences"].items()
                },
                ends=_ends_in(request["ends"]),
            )
            for request in json.loads(content)
        ]
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return []


def _ends_in(steps: Sequence[object]) -> tuple[Step, ...]:
    ends = tuple(step for step in steps if type(step) is int and step >= 1)
    if not ends or len(ends) < len(steps) or len(ends) > MOST_ENDS:
        raise ValueError(f"ends must be 1 to {MOST_ENDS} steps >= 1")
    return ends

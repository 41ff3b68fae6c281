"""Leases: which driver trains which steps, told to all who share a store.

A lease lies under the state key that the first of its steps makes; whoever creates that file
trains them. It is advice, not a lock: two drivers that cannot see each other, or whose clocks
disagree, train the same steps twice, and the first commit stands. So nothing here need be
durable, and no more than a create-if-absent is asked of the store.

A lease stays when its steps are trained, and then tells what was saved on the way. Beside the
leases, drivers tell each other what they will want (`SaveRequest`), so that states are saved where
others part.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from dasktune.sequences import sequence_from_json
from dasktune.storage import layout
from dasktune.storage.files.base import Files
from dasktune.types import Sequences, Step

FURTHEST_SECONDS = 600.0
"""A lease that ends later than in so many seconds is none: nobody takes one for so long."""

MOST_ENDS = 100
"""Steps of one configuration whose states a driver may want: no tuner asks for so many."""

_FORMAT, _VERSION = "dasktune-lease", 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Steps that a driver trains, or has trained.

    Parameters
    ----------
    key
        The state key that the first of them makes.
    root
        The state key before any step.
    study
        Names the study among all: its next driver may take over what the last one held.
    holder
        Names the driver's run.
    sequences
        JSON documents of the hyper-parameters by name.
    start, stop
        Steps.
    step
        How far its driver has heard that it came.
    saved
        Steps on the way whose states are in the store.
    expires
        When it ends unless it is renewed (epoch seconds).
    is_done
        Whether nobody trains these steps any more.
    of
        The key of the lease that this one is part of: it holds the step after a state that
        was saved on the way, and ends with that lease. Empty if it is no part.
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
        """Whether someone trains these steps."""
        return not self.is_done and now < self.expires <= now + FURTHEST_SECONDS

    def part(self, key: str) -> Lease:
        """Return the lease on the step that makes another key on the same way."""
        return replace(self, key=key, of=self.key, sequences={}, saved=())

    def to_bytes(self) -> bytes:
        """Return it as the content of a file."""
        return json.dumps({"format": _FORMAT, "version": _VERSION, **asdict(self)}).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Lease | None:
        """Return the lease that a file holds; None if it holds none that is understood."""
        try:
            document = json.loads(content)
            known = (document.pop("format"), document.pop("version")) == (_FORMAT, _VERSION)
            lease = cls(**{**document, "saved": tuple(document["saved"])})
            numbers = [lease.start, lease.stop, lease.step, *lease.saved]
            names = [lease.key, lease.root, lease.study, lease.holder, lease.of]
            is_whole = (
                known
                and all(type(one) is int and one >= 0 for one in numbers)
                and all(type(one) is str for one in names)
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
    """A configuration that a driver wants states of.

    Parameters
    ----------
    sequences
        By name.
    ends
        The steps whose states it wants.
    """

    sequences: Sequences
    ends: tuple[Step, ...]


class Leases:
    """The leases in a store, and what drivers say that they will want.

    Parameters
    ----------
    files
        The store's files.
    """

    def __init__(self, files: Files) -> None:
        self._files = files

    def take(self, lease: Lease, now: float, *, heed_saved: bool = True) -> Lease | None:
        """Take a lease; return None, or the one that stands in the way.

        Parameters
        ----------
        lease
            The lease.
        now
            Epoch seconds.
        heed_saved
            Whether also one that is not held any more stands in the way if it tells of
            states: they are to be looked at first.
        """
        content, path = lease.to_bytes(), layout.lease_path(lease.root, lease.key)
        if self._files.create(path, content, durable=False):
            return None
        there = self._files.read("", [path])[0]
        found = self.read(lease.root, [lease.key])[0]
        if there is None or found is None or found.study == lease.study:
            # Its study has one driver at a time: what the last one held is this one's.
            self._files.replace(path, content)
            return None
        if found.is_held(now) or (heed_saved and found.saved):
            return found
        self._files.remove_same(path, there.tobytes())
        if self._files.create(path, content, durable=False):
            return None
        return self.read(lease.root, [lease.key])[0]

    def write(self, lease: Lease) -> None:
        """Write a lease that is held, anew."""
        self._files.replace(layout.lease_path(lease.root, lease.key), lease.to_bytes())

    def read(self, root: str, keys: Sequence[str]) -> list[Lease | None]:
        """Return leases by key; for a part of a lease, the lease; None where there is none."""
        found = self._read(root, keys)
        parts = [lease.of for lease in found if lease is not None and lease.of]
        wholes = dict(zip(parts, self._read(root, parts), strict=True)) if parts else {}
        return [wholes[one.of] if one is not None and one.of else one for one in found]

    def all(self, root: str) -> Iterator[tuple[str, float]]:
        """Return path and time of the last change of each lease and wish below a root."""
        for folder in (layout.lease_folder(root), layout.save_request_folder(root)):
            for entry in self._files.entries(folder):
                yield entry.path, entry.modified

    def remove(self, paths: Sequence[str]) -> None:
        """Remove leases and wishes."""
        self._files.remove_files(paths)

    def request_saves(
        self, root: str, holder: str, number: int, paths: Sequence[SaveRequest]
    ) -> str:
        """Tell others what this driver will want; return the path of the file that says it."""
        document = [
            {
                "sequences": {name: one.to_json() for name, one in path.sequences.items()},
                "ends": path.ends,
            }
            for path in paths
        ]
        where = f"{layout.save_request_folder(root)}/{holder}-{number}"
        self._files.replace(where, json.dumps(document).encode())
        return where

    def save_requests(self, root: str, known: set[str]) -> Iterator[SaveRequest]:
        """Return what others want, from the files that are not `known`; these are known then."""
        paths = [entry.path for entry in self._files.entries(layout.save_request_folder(root))]
        new = [path for path in paths if path not in known]
        known.update(new)
        for content in self._files.read("", new) if new else ():
            yield from _paths_in(b"" if content is None else content.tobytes())

    def _read(self, root: str, keys: Sequence[str]) -> list[Lease | None]:
        """Return what lies under keys; what names another place than its own is no lease."""
        contents = self._files.read("", [layout.lease_path(root, key) for key in keys])
        leases = [None if one is None else Lease.from_bytes(one.tobytes()) for one in contents]
        return [
            lease if lease is not None and (lease.root, lease.key) == (root, key) else None
            for key, lease in zip(keys, leases, strict=True)
        ]


def _paths_in(content: bytes) -> Iterator[SaveRequest]:
    """Yield the paths that a file tells of; none if it cannot be read: it may be anyone's."""
    try:
        found = [
            SaveRequest(
                sequences={
                    str(name): sequence_from_json(one) for name, one in path["sequences"].items()
                },
                ends=_ends_in(path["ends"]),
            )
            for path in json.loads(content)
        ]
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return
    yield from found


def _ends_in(steps: Sequence[object]) -> tuple[Step, ...]:
    """Return steps that a driver may want.

    Raises
    ------
    ValueError
        If they cannot be, or if there are too many of them.
    """
    found = tuple(step for step in steps if type(step) is int and step >= 1)
    if not found or len(found) < len(steps) or len(found) > MOST_ENDS:
        raise ValueError(f"ends must be 1 to {MOST_ENDS} steps >= 1")
    return found

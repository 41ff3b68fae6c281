"""Leases between drivers that share a store: which driver trains which steps.

Each driver has one file with its leases (`HeldLeases`), and renews it as a whole: the ranges of
steps that its workers train, those that it asks for, and the latest that ended. A lease is
advice, not a lock: two drivers that cannot see each other, or whose clocks disagree, train the same
steps twice, and the first commit stands. So nothing here must be durable.

A second file of a driver has its save requests (`SaveRequest`): other drivers save the states where
configurations part.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from dasktune._engine.timeouts import LEASE_LIMIT_SECONDS
from dasktune.sequences import sequence_from_json
from dasktune.storage import layout
from dasktune.storage.files.base import Files, Unreadable
from dasktune.types import Sequences, Step

logger = logging.getLogger(__name__)

MOST_ENDS = 100
"""Steps in one save request; no tuner needs more."""

INVALID = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What the content of a file may cause that anyone may have written."""

LeaseMark = tuple[object, ...]
"""What tells leases apart: `Lease.name`, or `Lease.mark`."""

_FORMAT, _VERSION = "dasktune-held-leases", 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A range of steps of a path that a driver trains, asks for, or has trained.

    Parameters
    ----------
    key
        The state key that the first of the steps makes.
    first
        The state key that step 1 of the path makes: paths that differ there share nothing.
    sequences
        The path: the sequences of the hyper-parameters by name.
    start, stop
        The steps, the last one excluded.
    step
        The last step that the driver knows to be trained.
    saved
        Steps on the way whose states are in the store.
    saves
        Steps on the way whose states the driver is going to save.
    is_asked
        Whether the driver waits for an answer, and trains nothing yet.
    is_done
        Whether the training has ended.
    """

    holder: str
    key: str
    first: str
    sequences: Sequences
    start: Step
    stop: Step
    step: Step
    saved: tuple[Step, ...] = ()
    saves: tuple[Step, ...] = ()
    is_asked: bool = False
    is_done: bool = False

    @property
    def name(self) -> LeaseMark:
        """Its driver and its key: those of the same steps, however far they have come."""
        return self.holder, self.key

    @property
    def mark(self) -> LeaseMark:
        """Its name and its progress: an ended lease differs in it from all others."""
        return self.holder, self.key, self.step, self.saved, self.is_done

    @property
    def end(self) -> Step:
        """The step up to which its driver trains, or has trained."""
        return self.step if self.is_done else self.stop

    def misses(self, step: Step) -> bool:
        """Return whether its driver is past a step, and does not save the state there."""
        return self.step >= step and step not in (self.stop, *self.saved, *self.saves)

    def ended(self) -> Lease:
        """Return this lease after its training has ended."""
        return replace(self, is_done=True, is_asked=False)

    def to_json(self) -> dict[str, Any]:
        """Return the lease as a JSON document."""
        document = {name: getattr(self, name) for name in self.__slots__}
        return {**document, "sequences": _to_json(self.sequences)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Lease:
        """Return the lease in a document; raise one of `INVALID` if it is none."""
        steps = {name: tuple(document[name]) for name in ("saved", "saves")}
        lease = cls(**{**document, **steps, "sequences": _from_json(document["sequences"])})
        numbers = (lease.start, lease.stop, lease.step, *lease.saved, *lease.saves)
        is_whole = (
            all(type(number) is int and number >= 0 for number in numbers)
            and all(type(flag) is bool for flag in (lease.is_asked, lease.is_done))
            and type(lease.holder) is str
            and not layout.problems_of(key=lease.key, first=lease.first)
        )
        if not is_whole:
            raise ValueError("the document is no lease")
        return lease


@dataclass(frozen=True, kw_only=True)
class HeldLeases:
    """All leases of one driver, as they are in its file.

    Parameters
    ----------
    study
        Unique name of its study: the next driver of the study takes over its leases.
    expires
        Time at which all of them end unless they are renewed (epoch seconds, by the store's clock).
    leases
        The leases, those that have ended first.
    sees
        Names of the other drivers that it knows to run. For them it lists all its leases.
    requests
        The number of save requests that it has written so far.
    """

    holder: str
    study: str
    expires: float
    leases: tuple[Lease, ...] = ()
    sees: tuple[str, ...] = ()
    requests: int = 0

    @cached_property
    def by_key(self) -> Mapping[str, Lease]:
        """The leases by key; one that runs takes the place of an ended one."""
        return {lease.key: lease for lease in self.leases}

    def is_live(self, now: float) -> bool:
        """Return whether the driver has renewed its leases lately."""
        return now < self.expires <= now + LEASE_LIMIT_SECONDS

    def has_expired(self, now: float) -> bool:
        """Return whether the driver has ceased to renew its leases."""
        return self.expires <= now


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveRequest:
    """A request of a driver that others save states of a configuration.

    Parameters
    ----------
    root
        The state key at step 0.
    ends
        The steps whose states are requested.
    """

    root: str
    sequences: Sequences
    ends: tuple[Step, ...]


class Leases:
    """The leases and save requests in a store.

    A driver of thousands of leases writes its file whenever it takes one more, and each of the
    others reads it then. Each lease is a line of its own, and a line that has not changed is
    neither made nor parsed again.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        # By the lease's `id`, which no other object has while the lease is in here.
        self._lines: dict[int, tuple[Lease, bytes]] = {}
        self._parsed: dict[bytes, Lease] = {}
        self._refused: set[str] = set()

    def hold(self, held: HeldLeases) -> None:
        """Write, and so renew, all leases of a driver."""
        self._lines = {
            id(lease): self._lines.get(id(lease)) or (lease, json.dumps(lease.to_json()).encode())
            for lease in held.leases
        }
        names = ("holder", "study", "expires", "sees", "requests")
        own = {name: getattr(held, name) for name in names}
        head = json.dumps({"format": _FORMAT, "version": _VERSION, **own, "leases": []}).encode()
        lines = b",\n".join([line for _, line in self._lines.values()])
        content = b"%b\n%b\n]}" % (head.removesuffix(b"]}"), lines)
        self._files.replace(layout.driver_path(held.holder), content)

    def leave(self, *holders: str) -> None:
        """Remove the files of drivers that have ended."""
        paths = [*map(layout.driver_path, holders), *map(layout.save_request_path, holders)]
        self._files.remove_files(paths)

    def holders(self) -> list[str]:
        """Return the names of all drivers that have a file, whether they live or not."""
        paths = (entry.path for entry in self._files.entries(layout.DRIVERS))
        return [
            path.removeprefix(f"{layout.DRIVERS}/")
            for path in paths
            if not layout.is_unfinished(path)
        ]

    def drivers(self, holders: Sequence[str]) -> list[HeldLeases]:
        """Return the leases of each of these drivers that has written any, many at a time."""
        if not holders:
            return []
        contents = self._files.read("", [layout.driver_path(holder) for holder in holders])
        parsed, drivers = self._parsed, []
        self._parsed = {}
        for holder, content in zip(holders, contents, strict=True):
            if content is None:
                continue
            if isinstance(content, Unreadable):
                self._warn(holder)
                continue
            try:
                drivers.append(self._driver_in(holder, content.tobytes(), parsed))
            except INVALID:
                self._warn(holder)
        return drivers

    def _driver_in(self, holder: str, content: bytes, parsed: Mapping[bytes, Lease]) -> HeldLeases:
        """Return the leases in a driver's file.

        An odd lease makes the file invalid: no driver writes it, so none would answer a newcomer.
        """
        head, _, rest = content.partition(b"\n")
        document = json.loads(head + b"]}")
        lines = [line for line in rest.removesuffix(b"\n]}").split(b",\n") if line]
        leases = {line: parsed.get(line) or Lease.from_json(json.loads(line)) for line in lines}
        study, expires, requests = (document[name] for name in ("study", "expires", "requests"))
        sees = tuple(document["sees"])
        is_whole = (
            (document["format"], document["version"]) == (_FORMAT, _VERSION)
            and {document["holder"], *(lease.holder for lease in leases.values())} == {holder}
            and all(type(name) is str for name in (study, *sees))
            and type(expires) is float
            and math.isfinite(expires)
            and type(requests) is int
        )
        if not is_whole:
            raise ValueError("the file is none of a driver")
        self._parsed.update(leases)
        return HeldLeases(
            holder=holder,
            study=study,
            expires=expires,
            leases=tuple(leases.values()),
            sees=sees,
            requests=requests,
        )

    def _warn(self, holder: str) -> None:
        """Log once that the file of a driver is not used."""
        if holder not in self._refused:
            self._refused.add(holder)
            logger.warning(
                "leases in %r are ignored: the file is corrupt, or of another version",
                layout.driver_path(holder),
            )

    def request_saves(self, holder: str, total: int, requests: Sequence[SaveRequest]) -> None:
        """Write the latest save requests of a driver, which has made `total` so far."""
        texts = [
            {"root": each.root, "sequences": _to_json(each.sequences), "ends": each.ends}
            for each in requests
        ]
        content = json.dumps({"total": total, "requests": texts}).encode()
        self._files.replace(layout.save_request_path(holder), content)

    def save_requests(self, holder: str, seen: int) -> list[SaveRequest]:
        """Return the save requests of a driver that follow the first `seen` ones.

        Anyone may have written the file: invalid requests are left out.
        """
        content = self._files.read("", [layout.save_request_path(holder)])[0]
        if content is None or isinstance(content, Unreadable):
            return []
        try:
            document = json.loads(content.tobytes())
            first = document["total"] - len(document["requests"])
            texts = document["requests"][max(0, seen - first) :]
        except INVALID:
            return []
        return [request for request in map(_request_in, texts) if request is not None]


def _request_in(text: Any) -> SaveRequest | None:
    try:
        ends = tuple(step for step in text["ends"] if type(step) is int and step >= 1)
        if not 1 <= len(ends) <= MOST_ENDS or len(ends) < len(text["ends"]):
            return None
        sequences = _from_json(text["sequences"])
        return SaveRequest(root=str(text["root"]), sequences=sequences, ends=ends)
    except INVALID:
        return None


def _to_json(sequences: Sequences) -> dict[str, Any]:
    return {name: sequence.to_json() for name, sequence in sequences.items()}


def _from_json(document: Mapping[str, Any]) -> Sequences:
    return {str(name): sequence_from_json(value) for name, value in document.items()}

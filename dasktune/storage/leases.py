"""Leases between drivers that share a store: which driver trains which steps.

A lease is a file under the state key that the first of its steps makes; the driver that creates
the file trains the steps. All leases that a driver holds stand once more in one object of that
driver (`HeldLeases`), which it renews as a whole: the number of leases costs no requests, and
other drivers see which ranges of steps are in training. A lease is advice, not a lock: two drivers
that cannot see each other, or whose clocks disagree, train the same steps twice, and the first
commit stands. So nothing here must be durable, and create-if-absent is all that the store must
offer.

A lease stays after its steps are trained, and then lists the states saved on the way. Beside
leases, drivers write save requests (`SaveRequest`), so that other drivers save the states where
configurations part.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from dasktune.engine.timeouts import LEASE_LIMIT_SECONDS
from dasktune.sequences import sequence_from_json
from dasktune.storage import layout
from dasktune.storage.buffers import Buffer
from dasktune.storage.files.base import Files
from dasktune.types import Sequences, Step

logger = logging.getLogger(__name__)

LeaseMark = tuple[str, str, Step, tuple[Step, ...]]
"""What tells an ended lease from another, and from what it was before: see `Lease.mark`."""

LeaseName = tuple[str, str]
"""The driver and the key of a lease."""

MOST_ENDS = 100
"""Steps in one save request; no tuner needs more."""

_FORMAT, _HELD_FORMAT, _VERSION = "dasktune-lease", "dasktune-held-leases", 1


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
    saves
        Steps on the way whose states the driver is going to save.
    expires
        Time at which the lease ends unless it is renewed (epoch seconds, by the store's clock).
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
    saves: tuple[Step, ...] = ()
    is_done: bool = False
    of: str = ""

    @property
    def mark(self) -> LeaseMark:
        """Its driver, its key, and how far it has come."""
        return self.holder, self.key, self.step, self.saved

    def is_held(self, now: float) -> bool:
        """Return whether a driver trains these steps."""
        return not self.is_done and now < self.expires <= now + LEASE_LIMIT_SECONDS

    def misses(self, step: Step) -> bool:
        """Return whether its driver is past a step, and does not save the state there."""
        return self.step >= step and step not in (self.stop, *self.saved, *self.saves)

    def renewed(self, other: Lease | None) -> Lease:
        """Return this lease with the end and the progress in its driver's object, if later."""
        if other is None or other.holder != self.holder:
            return self
        if other.is_done:
            return other  # its file is about to say so
        expires, step = max(self.expires, other.expires), max(self.step, other.step)
        saves = tuple(sorted({*self.saves, *other.saves}))
        return replace(self, expires=expires, step=step, saves=saves)

    def ended(self) -> Lease:
        """Return this lease after its training has ended."""
        return replace(self, is_done=True)

    def part(self, key: str) -> Lease:
        """Return the part of this lease on the step that makes another key."""
        return replace(self, key=key, of=self.key, sequences={}, saved=())

    def to_bytes(self) -> bytes:
        """Return the lease as the content of a file."""
        return json.dumps(self.to_json()).encode()

    def to_json(self) -> dict[str, Any]:
        """Return the lease as a JSON document."""
        values = {name: getattr(self, name) for name in _LEASE_FIELDS}
        return {"format": _FORMAT, "version": _VERSION, **values}

    @classmethod
    def from_bytes(cls, content: bytes) -> Lease | None:
        """Return the lease in a file, or None for invalid content."""
        try:
            return cls.from_json(json.loads(content))
        except (RecursionError, ValueError):
            return None

    @classmethod
    def from_json(cls, document: Any) -> Lease | None:
        """Return the lease in a JSON document, or None for an invalid one."""
        try:
            document = dict(document)
            known = (document.pop("format"), document.pop("version")) == (_FORMAT, _VERSION)
            saves = tuple(document.get("saves", ()))
            lease = cls(**{**document, "saved": tuple(document["saved"]), "saves": saves})
            numbers = [lease.start, lease.stop, lease.step, *lease.saved, *lease.saves]
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


_LEASE_FIELDS = tuple(field.name for field in fields(Lease))


@dataclass(frozen=True, kw_only=True)
class HeldLeases:
    """All leases that one driver holds, in one object.

    Parameters
    ----------
    holder
        Unique name of the driver's run.
    study
        Unique name of its study.
    expires
        Time at which all of them end unless they are renewed (epoch seconds).
    leases
        The leases; each expires with the object.
    sees
        Names of the other drivers that it knows to run: only for them it writes lease files.
    lists_ended
        Whether an object of its own lists the leases that ended before the driver saw any other.
    """

    holder: str
    study: str
    expires: float
    leases: tuple[Lease, ...] = ()
    sees: tuple[str, ...] = ()
    lists_ended: bool = False

    @cached_property
    def by_key(self) -> Mapping[str, Lease]:
        """The leases by key, as they are in the object: `ending` gives their end."""
        return {lease.key: lease for lease in self.leases}

    def is_live(self, now: float) -> bool:
        """Return whether the driver has renewed its leases lately."""
        return now < self.expires <= now + LEASE_LIMIT_SECONDS

    def has_ended_lately(self, now: float) -> bool:
        """Return whether the driver has ceased to renew its leases, a short time ago."""
        return self.expires <= now < self.expires + LEASE_LIMIT_SECONDS

    def ending(self, lease: Lease) -> Lease:
        """Return one of its leases, which ends with the object."""
        return replace(lease, expires=self.expires)

    def held(self) -> Iterator[Lease]:
        """Yield the leases, which end with the object."""
        return map(self.ending, self.leases)


class HeldLeasesCodec:
    """Encodes and decodes objects of drivers, of each lease only what has changed.

    A driver of thousands of leases writes its object whenever it takes one more, and each of the
    others reads it then. In the JSON document each lease is a line of its own, so that the line of
    a lease that has not changed is used again.
    """

    def __init__(self) -> None:
        # By the lease's `id`, which no other object has while the lease is in here.
        self._lines: dict[int, tuple[Lease, bytes]] = {}
        self._decoded: dict[str, tuple[bytes, Mapping[bytes, Lease | None], HeldLeases]] = {}

    def encode(self, held: HeldLeases) -> bytes:
        """Return the content of the object of this process's driver."""
        lines = {
            id(lease): self._lines.get(id(lease)) or (lease, lease.to_bytes())
            for lease in held.leases
        }
        self._lines = lines
        own = {"holder": held.holder, "study": held.study, "expires": held.expires}
        head = {"format": _HELD_FORMAT, "version": _VERSION, **own, "sees": held.sees}
        if held.lists_ended:
            head["lists_ended"] = True
        text = json.dumps({**head, "leases": []}).encode().removesuffix(b"]}")
        return b"%b\n%b\n]}" % (text, b",\n".join([line for _, line in lines.values()]))

    def decode(self, holder: str, content: bytes) -> HeldLeases | None:
        """Return the leases in a driver's object, or None for invalid content.

        One invalid lease is enough: no driver writes it, so nobody there answers a newcomer.
        """
        before = self._decoded.get(holder)
        if before is not None and before[0] == content:
            return before[2]
        known = {} if before is None else before[1]
        try:
            document, lines = _lines_in(content)
            leases = {
                line: known[line] if line in known else Lease.from_bytes(line) for line in lines
            }
            held = _held_in(document, tuple(leases.values()))
        except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
            return None
        if held is None or held.holder != holder:
            return None
        self._decoded[holder] = content, leases, held
        return held

    def forget_all_but(self, holders: Collection[str]) -> None:
        """Forget the objects of all other drivers."""
        self._decoded = {name: self._decoded[name] for name in holders if name in self._decoded}


def _lines_in(content: bytes) -> tuple[Any, list[bytes]]:
    """Return the document of an object without its leases, and the line of each lease."""
    head, is_in_lines, rest = content.partition(b"\n")
    if is_in_lines:
        lines = rest.removesuffix(b"\n]}").split(b",\n")
        return json.loads(head + b"]}"), [line for line in lines if line]
    document = json.loads(content)  # written before leases had lines
    return document, [json.dumps(lease).encode() for lease in document["leases"]]


def _held_in(document: Any, leases: Collection[Lease | None]) -> HeldLeases | None:
    known = (document["format"], document["version"]) == (_HELD_FORMAT, _VERSION)
    holder, study = document["holder"], document["study"]
    expires, sees = document["expires"], tuple(document["sees"])
    is_whole = (
        known
        and all(type(name) is str for name in (holder, study, *sees))
        and type(expires) is float
        and math.isfinite(expires)
    )
    own = [lease for lease in leases if lease is not None and lease.holder == holder]
    if not is_whole or len(own) < len(leases):
        return None
    return HeldLeases(
        holder=holder,
        study=study,
        expires=expires,
        leases=tuple(own),
        sees=sees,
        lists_ended=document.get("lists_ended") is True,
    )


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
        self._codec = HeldLeasesCodec()
        self._refused: set[str] = set()

    def take(
        self, lease: Lease, now: float, *, heeded: Collection[LeaseMark | LeaseName] | None = ()
    ) -> Lease | None:
        """Take a lease; return None, or the other lease that prevents it.

        Parameters
        ----------
        lease
            The lease.
        now
            Epoch seconds.
        heeded
            Marks of the ended leases, and names of the others, that the caller knows. Any other
            one of which steps were trained prevents it, too: the caller must look at its states
            first. None heeds no ended lease.
        """
        content, path = lease.to_bytes(), layout.lease_path(lease.root, lease.key)
        if self._files.create(path, content, durable=False):
            return None
        there = self._files.read("", [path])[0]
        parsed = self._parsed(lease.root, [lease.key], [there])
        other = self._with_progress(lease.root, parsed)[0]
        if there is None or other is None or other.study == lease.study:
            # A study has one driver at a time, which takes over the leases of the last one.
            self._files.replace(path, content)
            return None
        is_news = heeded is not None and other.mark not in heeded
        if other.is_held(now) or (is_news and (other.saved or other.step > other.start)):
            return other
        self._files.remove_same(path, there.tobytes())
        if self._files.create(path, content, durable=False):
            return None
        return self.read(lease.root, [lease.key])[0]

    def write(self, lease: Lease) -> None:
        """Write a held lease again, with its progress."""
        self._files.replace(layout.lease_path(lease.root, lease.key), lease.to_bytes())

    def read(self, root: str, keys: Sequence[str]) -> list[Lease | None]:
        """Return the lease of each key as its driver renewed it last, or None.

        For a part it is the whole lease.
        """
        return self._with_progress(root, self._read(root, keys))

    def _with_progress(self, root: str, leases: list[Lease | None]) -> list[Lease | None]:
        """Return leases as their drivers renewed them last, parts replaced by the wholes."""
        parts = [lease.of for lease in leases if lease is not None and lease.of]
        wholes = dict(zip(parts, self._read(root, parts), strict=True)) if parts else {}
        leases = [wholes[lease.of] if lease and lease.of else lease for lease in leases]
        open_leases = [lease for lease in leases if lease is not None and not lease.is_done]
        holders = sorted({lease.holder for lease in open_leases})
        drivers = {driver.holder: driver for driver in self.drivers(holders)}
        return [
            _as_renewed(lease, drivers.get(lease.holder)) if lease and not lease.is_done else lease
            for lease in leases
        ]

    def hold(self, held: HeldLeases) -> None:
        """Write, and so renew, all leases that a driver holds."""
        self._files.replace(layout.driver_path(held.holder), self._codec.encode(held))

    def list_ended(self, held: HeldLeases) -> None:
        """Write the leases of a driver that ended while it was alone, all in one object."""
        content = HeldLeasesCodec().encode(held)
        self._files.replace(layout.ended_path(held.holder), content)

    def ended(self, holders: Sequence[str]) -> dict[str, tuple[Lease, ...]]:
        """Return the leases that ended while these drivers were alone, by driver."""
        contents = self._files.read("", [layout.ended_path(holder) for holder in holders])
        listed = {
            holder: HeldLeasesCodec().decode(holder, content.tobytes())
            for holder, content in zip(holders, contents, strict=True)
            if content is not None
        }
        return {
            holder: tuple(lease.ended() for lease in held.leases)
            for holder, held in listed.items()
            if held is not None
        }

    def leave(self, *drivers: HeldLeases) -> None:
        """Remove the objects of drivers that have ended."""
        # A driver may have died after it had written the second object, and before the first
        # one said so. The second one goes first: it is found by the first one only.
        holders = [driver.holder for driver in drivers]
        paths = [*map(layout.ended_path, holders), *map(layout.driver_path, holders)]
        self._files.remove_files(paths)

    def holders(self) -> list[str]:
        """Return the names of all drivers that have an object, whether they live or not."""
        paths = (entry.path for entry in self._files.entries(layout.DRIVERS))
        holders = [
            path.removeprefix(f"{layout.DRIVERS}/")
            for path in paths
            if not layout.is_unfinished(path)
        ]
        self._codec.forget_all_but(holders)
        return holders

    def drivers(self, holders: Sequence[str]) -> list[HeldLeases]:
        """Return the leases of each of these drivers that has written any, many at a time."""
        if not holders:
            return []
        contents = self._files.read("", [layout.driver_path(holder) for holder in holders])
        drivers = []
        for holder, content in zip(holders, contents, strict=True):
            driver = None if content is None else self._codec.decode(holder, content.tobytes())
            if driver is not None:
                drivers.append(driver)
            elif content is not None:
                self._warn(holder)
        return drivers

    def _warn(self, holder: str) -> None:
        """Log once that the object of a driver is not used."""
        if holder not in self._refused:
            self._refused.add(holder)
            logger.warning(
                "leases in %r are ignored: the file is corrupt, or of another version",
                layout.driver_path(holder),
            )

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
        """Write save requests into a file of this driver, over older ones; return its path."""
        document = [
            {
                "sequences": {name: value.to_json() for name, value in request.sequences.items()},
                "ends": request.ends,
            }
            for request in requests
        ]
        path = layout.save_request_path(root, holder, number)
        self._files.replace(path, json.dumps(document).encode())
        return path

    def save_requests(
        self, root: str, known: dict[str, tuple[int, int]], *, own: str = ""
    ) -> Iterator[SaveRequest]:
        """Yield the requests of other drivers that are new since the last call.

        Parameters
        ----------
        root
            The state key at step 0.
        known
            Size of each file, and number of requests read from it: files only grow. Updated.
        own
            The driver whose own requests are left out.
        """
        grown = {
            entry.path: entry.nbytes
            for entry in self._files.entries(layout.save_request_folder(root))
            if known.get(entry.path, (-1, 0))[0] != entry.nbytes
            and not (own and entry.path.rpartition("/")[2].startswith(f"{own}-"))
        }
        contents = self._files.read("", list(grown)) if grown else []
        for (path, nbytes), content in zip(grown.items(), contents, strict=True):
            requests = _requests_in(b"" if content is None else content.tobytes())
            seen = known.get(path, (-1, 0))[1]
            known[path] = (nbytes, max(seen, len(requests)))
            yield from requests[seen:]

    def _read(self, root: str, keys: Sequence[str]) -> list[Lease | None]:
        """Return the lease of each key as its file has it."""
        paths = [layout.lease_path(root, key) for key in keys]
        return self._parsed(root, keys, self._files.read("", paths))

    def _parsed(
        self, root: str, keys: Sequence[str], contents: Sequence[Buffer | None]
    ) -> list[Lease | None]:
        """Return the lease in each file; a lease that names another place is invalid."""
        leases = [
            None if content is None else Lease.from_bytes(content.tobytes()) for content in contents
        ]
        return [
            lease if lease is not None and (lease.root, lease.key) == (root, key) else None
            for key, lease in zip(keys, leases, strict=True)
        ]


def _as_renewed(lease: Lease, driver: HeldLeases | None) -> Lease:
    """Return the lease in a file as the object of its driver has it, if that is later."""
    held = None if driver is None else driver.by_key.get(lease.key)
    if driver is None or held is None or held.root != lease.root:
        return lease
    return lease.renewed(driver.ending(held))


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

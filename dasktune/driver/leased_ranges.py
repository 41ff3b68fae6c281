"""The steps that other drivers lease, by path: a start looks at those on its own path only."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from dasktune.errors import ConfigurationError
from dasktune.graph.keys import encode_at
from dasktune.graph.plan import shared_until
from dasktune.sequences import sequence_from_json
from dasktune.storage.leases import HeldLeases, Lease, LeaseMark, LeaseName
from dasktune.types import Sequences, Step

MOST_ENDED = 10_000
"""Ended leases that are remembered, each in about 1 kB: of one driver, and of all that ended."""

_INVALID = (ConfigurationError, LookupError, RecursionError, TypeError, ValueError)
"""What a lease may cause that anyone may have written."""

_Ways = dict[tuple[str, bytes], dict[Step, dict[bytes, dict[int, "_Filed"]]]]
"""Leases by root and values at step 0, then by start, then by the values there, then by `id`."""


class LeasedRanges:
    """Finds leases of other drivers on a path, however many leases they hold.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from dasktune.sequences import Constant, MultiStep
    >>> trunk, branch = Constant(0.1), MultiStep(0.1, [30], gamma=0.1)
    >>> names = {"root": "a1f0", "study": "s", "holder": "h", "step": 0, "expires": 60.0}
    >>> sequences = {"lr": trunk.to_json()}
    >>> there = Lease(key="b2", sequences=sequences, start=0, stop=80, **names)
    >>> driver = HeldLeases(holder="h", study="s", expires=60.0, leases=(there,))
    >>> ranges = LeasedRanges()
    >>> inside = replace(there, key="c3", sequences={"lr": branch.to_json()}, start=20)
    >>> ranges.around(inside, [driver], now=0.0) == there
    True
    >>> ranges.around(replace(inside, start=30), [driver], now=0.0) is None
    True
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._drivers: dict[str, _Ranges] = {}

    def around(
        self,
        lease: Lease,
        drivers: Iterable[HeldLeases],
        *,
        now: float,
        heeded: Collection[LeaseMark | LeaseName] = (),
    ) -> Lease | None:
        """Return the lease of others in whose steps a lease begins, else the next on its way.

        Parameters
        ----------
        lease
            The lease.
        drivers
            The other drivers. The leases of one that ended have ended, too.
        now
            Epoch seconds.
        heeded
            Marks of ended leases, and names of others, that are left out.
        """
        path = _path_of(lease.sequences)
        if path is None:
            return None
        near: list[Lease] = []
        # One thread brings the ranges up to date and looks: none that read earlier comes between.
        with self._lock:
            for driver in drivers:
                is_live = driver.is_live(now)
                if is_live or driver.expires <= now:
                    for other in self._of(driver).around(lease, path, heeded, is_live):
                        near.append(driver.ending(other) if is_live else other.ended())
        return min(near, key=lambda other: max(other.start - lease.start, 0), default=None)

    def prepare(
        self, drivers: Iterable[HeldLeases], departed: Iterable[HeldLeases] = ()
    ) -> tuple[HeldLeases, ...]:
        """Take over the leases of these drivers, so that no start waits for it; forget others.

        Parameters
        ----------
        drivers
            Those that run.
        departed
            Those that ended, the latest last.

        Returns
        -------
        tuple of HeldLeases
            The departed drivers that are remembered: as many as have `MOST_ENDED` leases together.
        """
        with self._lock:
            ranges = {driver.holder: self._of(driver) for driver in drivers}
            remembered: list[HeldLeases] = []
            room = MOST_ENDED
            for driver in reversed(tuple(departed)):
                there = self._of(driver)
                room -= len(there)
                if room < 0:
                    break
                if len(there):
                    remembered.append(driver)
                    ranges[driver.holder] = there
            self._drivers = ranges
        return tuple(reversed(remembered))

    def remember(self, driver: HeldLeases, ended: Iterable[Lease]) -> None:
        """Remember further leases of a driver, which have ended."""
        with self._lock:
            self._of(driver).remember(ended)

    def _of(self, driver: HeldLeases) -> _Ranges:
        ranges = self._drivers.get(driver.holder)
        if ranges is None:
            ranges = self._drivers[driver.holder] = _Ranges()
        ranges.update(driver)
        return ranges


@dataclass(frozen=True, slots=True)
class _Filed:
    """A lease with its path, and where it is filed: its root and first values, where it begins."""

    lease: Lease
    path: Sequences
    way: tuple[str, bytes]
    values: bytes


class _Ranges:
    """The leases of one driver, filed so that a path meets few that are not on it.

    A driver lists an ended lease for a short time only. Who was there before it ended does not find
    its states otherwise: the store was listed before, and its file is below a key further on.
    """

    def __init__(self) -> None:
        self._driver: HeldLeases | None = None
        self._listed: set[int] = set()
        self._ended: deque[int] = deque()
        self._filed: dict[int, _Filed] = {}
        self._ways: _Ways = {}

    def __len__(self) -> int:
        """Return the number of leases."""
        return len(self._filed)

    def update(self, driver: HeldLeases) -> None:
        """Take over the leases of a newer object; each that has not changed is the same one."""
        if driver is self._driver:
            return
        leases = {id(lease): lease for lease in driver.leases}
        # The leases of the driver's last object are kept until here, so that no `id` is used twice.
        for number in self._listed - leases.keys():
            filed = self._filed.get(number)
            if filed is not None and filed.lease.is_done:
                self._ended.append(number)
            elif filed is not None:
                self._remove(number)
        for number in leases.keys() - self._listed:
            self._file(number, leases[number])
        self._driver, self._listed = driver, set(leases)
        self._forget_oldest()

    def remember(self, ended: Iterable[Lease]) -> None:
        """Take over further leases, which have ended."""
        for lease in ended:
            self._file(id(lease), lease)
            if id(lease) in self._filed:
                self._ended.append(id(lease))
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        while len(self._ended) > MOST_ENDED:
            self._remove(self._ended.popleft())

    def _file(self, number: int, lease: Lease) -> None:
        path = _path_of(lease.sequences)
        if path is None:
            return
        with suppress(*_INVALID):
            way = lease.root, encode_at(path, 0)
            filed = _Filed(lease, path, way, encode_at(path, lease.start))
            self._filed[number] = filed
            starting = self._ways.setdefault(way, {}).setdefault(lease.start, {})
            starting.setdefault(filed.values, {})[number] = filed

    def _remove(self, number: int) -> None:
        filed = self._filed.pop(number)
        starts = self._ways[filed.way]
        starting = starts[filed.lease.start]
        del starting[filed.values][number]
        # What is empty goes, too.
        if not starting[filed.values]:
            del starting[filed.values]
        if not starting:
            del starts[filed.lease.start]
        if not starts:
            del self._ways[filed.way]

    def around(
        self,
        lease: Lease,
        path: Sequences,
        heeded: Collection[LeaseMark | LeaseName],
        is_live: bool,
    ) -> Iterator[Lease]:
        """Yield the first lease that a lease on a path begins in, or runs into, if there is one."""
        with suppress(*_INVALID):
            for filed in self._near(lease, path):
                other = filed.lease
                is_done = other.is_done or not is_live
                end = other.step if is_done else other.stop
                if (
                    max(lease.start, other.start) < min(lease.stop, end)
                    and (other.holder, other.key) not in heeded
                    and not (is_done and other.mark in heeded)
                    and _overlap(lease.start, path, filed)
                ):
                    yield other
                    return

    def _near(self, lease: Lease, path: Sequences) -> Iterator[_Filed]:
        """Yield the leases whose paths may be that of a lease, from the earliest start on."""
        starts = self._ways.get((lease.root, encode_at(path, 0)), {})
        for start in sorted(starts):
            if start >= lease.stop:
                return
            starting = starts[start]
            if start <= lease.start:
                yield from starting.get(encode_at(path, start), {}).values()
            else:
                yield from (filed for there in starting.values() for filed in there.values())


def _overlap(start: Step, path: Sequences, other: _Filed) -> bool:
    """Return whether one of two leases begins on the path of the other, inside its steps."""
    begins = other.lease.start
    common = shared_until(path, other.path, 0, max(start, begins) + 1)
    # Where the other one begins later, its first state alone saves steps.
    return common > start and common >= begins


def _path_of(sequences: Mapping[str, Mapping[str, Any]]) -> Sequences | None:
    """Return the sequences of a lease; None for invalid ones: anyone may have written it."""
    try:
        return {name: sequence_from_json(value) for name, value in sequences.items()}
    except _INVALID:
        return None

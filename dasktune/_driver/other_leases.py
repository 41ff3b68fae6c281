"""The leases of other drivers, and the rule that says which of them is in the way. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from itertools import chain

from dasktune._engine.timeouts import LEASE_MEET_SECONDS
from dasktune.graph.plan import shared_until
from dasktune.storage.leases import INVALID, HeldLeases, Lease, LeaseMark

MOST_REMEMBERED = 10_000
"""Most ended leases of others that are remembered, each in about 1 kB."""

Heeded = Collection[LeaseMark]
"""Leases to leave out: marks of ended ones whose states are known here, and names of others that
are not waited for any more."""


def in_the_way(lease: Lease, others: Iterable[Lease], heeded: Heeded = ()) -> Lease | None:
    """Return the lease of others that has the first step of a lease, else the next one on its way.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from dasktune.sequences import Constant, MultiStep
    >>> trunk, branch = {"lr": Constant(0.1)}, {"lr": MultiStep(0.1, [30], gamma=0.1)}
    >>> there = Lease(
    ...     holder="h", key="b2", first="a1", sequences=trunk, start=0, stop=80, step=0
    ... )
    >>> inside = replace(there, holder="own", key="c3", sequences=branch, start=20)
    >>> in_the_way(inside, [there]) == there
    True
    >>> in_the_way(replace(inside, start=30), [there]) is None
    True
    """
    near = (
        other
        for other in others
        if other.first == lease.first
        and max(lease.start, other.start) < min(lease.stop, other.end)
        and other.name not in heeded
        and other.mark not in heeded
        and _meet(lease, other)
    )
    return min(near, key=lambda other: max(other.start - lease.start, 0), default=None)


def _meet(lease: Lease, other: Lease) -> bool:
    """Return whether one of two leases begins on the path of the other."""
    with suppress(*INVALID):
        limit = max(lease.start, other.start) + 1
        common = shared_until(lease.sequences, other.sequences, 0, limit)
        # Where the other one begins later, its first state alone saves steps.
        return common > lease.start and common >= other.start
    return False


class OtherLeases:
    """The leases of the other drivers of a store, as they were read last.

    A driver lists its latest ended leases only. This driver may have listed the store
    before the last states of such a lease were saved. So it remembers the lease: it would not learn
    of these states, nor of steps without states, in another way. For the same reason it remembers,
    once, the leases of a driver that ended long ago, as long as there is a file. Leases of other
    drivers of the same study are left out: they are of earlier runs.
    """

    def __init__(self, holder: str, study: str) -> None:
        self._holder = holder
        self._study = study
        self._live: dict[str, HeldLeases] = {}
        self._unmet: dict[str, float] = {}
        self._ended: dict[LeaseMark, Lease] = {}
        self._expired: dict[str, HeldLeases] = {}

    @property
    def live(self) -> Collection[HeldLeases]:
        """The other drivers that run."""
        return self._live.values()

    def read(self, drivers: Iterable[HeldLeases], now: float) -> None:
        """Store what was read of all drivers."""
        others = {each.holder: each for each in drivers if each.study != self._study}
        live = {name: each for name, each in others.items() if each.is_live(now)}
        expired = {name: each for name, each in others.items() if each.has_expired(now)}
        gone = {name: each for name, each in self._live.items() if name not in live} | expired
        for driver in sorted(gone.values(), key=lambda each: each.expires):
            # Its leases are many, and its file may be there for a day.
            if self._expired.get(driver.holder) != driver:
                self._remember(lease.ended() for lease in driver.leases)
        for driver in live.values():
            self._remember(lease for lease in driver.leases if lease.is_done)
        self._live, self._expired = live, expired
        unmet = (name for name, each in live.items() if self._holder not in each.sees)
        self._unmet = {name: self._unmet.get(name, now) for name in unmet}

    def _remember(self, ended: Iterable[Lease]) -> None:
        self._ended |= {lease.name: lease for lease in ended if lease.step > lease.start}
        while len(self._ended) > MOST_REMEMBERED:
            del self._ended[next(iter(self._ended))]

    def may_answer(self, now: float) -> bool:
        """Return whether each other driver lists all its leases: it says that it sees this one.

        One that does not say so within a while counts as dead.
        """
        return not any(0 <= now - since < LEASE_MEET_SECONDS for since in self._unmet.values())

    def in_the_way(
        self, lease: Lease, heeded: Heeded, now: float, *, but_later: bool = False
    ) -> Lease | None:
        """Return the nearest lease that is in the way; of equally near ones, a running one.

        `but_later` leaves out what drivers of later names only ask for: they give way.
        """
        running = (
            other
            for driver in self.live
            if driver.is_live(now)
            for other in driver.leases
            if not other.is_done
            and not (but_later and other.is_asked and self._holder < driver.holder)
        )
        return in_the_way(lease, chain(running, self._ended.values()), heeded)

    def current(self, lease: Lease, now: float) -> Lease:
        """Return a lease as its driver has it now; it has ended if its driver lists it no more."""
        driver = self._live.get(lease.holder)
        if driver is not None and driver.is_live(now) and lease.key in driver.by_key:
            return driver.by_key[lease.key]
        last = self._ended.get(lease.name)
        return last if last is not None and last.step >= lease.step else lease.ended()

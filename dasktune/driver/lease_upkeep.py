"""Looking after leases, again and again: those that are held, and those that are watched.

No question of the driver waits for any of this.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial

from dasktune.driver.lease_messages import LeaseChanged, LeaseMessage, SavesRequested
from dasktune.driver.lease_requests import SaveRequests
from dasktune.driver.lease_threads import StorePresence, Threads
from dasktune.driver.own_leases import OwnLeases
from dasktune.engine.timeouts import LEASE_POLL_SECONDS
from dasktune.storage.leases import Lease, Leases

POLL_SHARE = 0.02
"""Share of the time that reading others' save requests may take."""


class LeaseUpkeep:
    """Renews the leases of a driver, and reports what others do with theirs.

    Parameters
    ----------
    leases
        The leases in the store.
    own
        The leases of the driver.
    requests
        Its save requests.
    roots
        The roots below which it has taken leases; grows.
    put
        Takes the messages.
    is_alive
        Whether the driver's loop is alive: leases are renewed only while it is.
    threads, presence, clock
        As for `OwnLeases`.
    """

    def __init__(
        self,
        leases: Leases,
        own: OwnLeases,
        requests: SaveRequests,
        *,
        roots: Collection[str],
        put: Callable[[LeaseMessage], None],
        is_alive: Callable[[], bool],
        threads: Threads,
        presence: StorePresence,
        clock: Callable[[], float],
    ) -> None:
        self._leases = leases
        self._own = own
        self._requests = requests
        self._roots = roots
        self._put = put
        self._is_alive = is_alive
        self._threads = threads
        self._presence = presence
        self._clock = clock
        self._lock = threading.Lock()
        self._watched: dict[str, Lease] = {}
        self._looking = threads.lock()  # one thread looks at a time
        self._poll_seconds = LEASE_POLL_SECONDS[0]

    def watch(self, attempt: str, other: Lease) -> None:
        """Watch the lease of another driver."""
        with self._lock:
            self._watched[attempt] = other

    def ignore(self, attempt: str) -> None:
        """Watch the lease of another driver no longer."""
        with self._lock:
            self._watched.pop(attempt, None)

    def look(self) -> float:
        """Look after everything once; return the seconds until the next time."""
        # What others must find is written before this driver says that it sees them.
        looks = (
            self._find_others,
            self._own.write_first_files,
            self._write_requests,
            self._renew,
            self._watch,
            self.listen,
        )
        with self._looking:
            for look in looks:
                self._presence.safely(look)
        return self._poll_seconds

    def listen(self) -> None:
        """Read the save requests of other drivers, and measure how long that takes."""
        self._presence.check()
        began = self._threads.monotonic()
        paths = self._requests.read(sorted(self._roots))
        least, longest = LEASE_POLL_SECONDS
        took = self._threads.monotonic() - began
        self._poll_seconds = min(longest, max(least, took / POLL_SHARE))
        if paths:
            self._put(SavesRequested(paths=paths))

    def _find_others(self) -> None:
        if self._roots:
            self._presence.check()
            self._own.find_others()

    def _write_requests(self) -> None:
        self._presence.check()
        if self._own.is_shared:
            self._requests.write(list(self._roots))

    def _renew(self) -> None:
        if self._roots and self._is_alive():
            self._own.renew()

    def _watch(self) -> None:
        """Report the changes of the leases that are watched."""
        by_root: dict[str, dict[str, Lease]] = {}
        with self._lock:
            for attempt, lease in self._watched.items():
                by_root.setdefault(lease.root, {})[attempt] = lease
        for root, watched in by_root.items():
            self._presence.safely(partial(self._look_at, root, watched))

    def _look_at(self, root: str, watched: Mapping[str, Lease]) -> None:
        # While the store does not answer, the leases stay as they were until they expire.
        leases: list[Lease | None] = list(watched.values())
        try:
            self._presence.check()
            leases = self._leases.read(root, [lease.key for lease in watched.values()])
        finally:
            for attempt, lease in zip(watched, leases, strict=True):
                self._compare(attempt, watched[attempt], lease)

    def _compare(self, attempt: str, before: Lease, lease: Lease | None) -> None:
        """Report a lease that has changed since it was read last."""
        change: Lease | None = None
        if lease is not None and lease.holder == before.holder:
            # Also where a clock is set back until it is heard: nobody looks again.
            is_held = lease.is_held(self._clock())
            change = lease if is_held else replace(lease, is_done=True)
        with self._lock:
            if attempt not in self._watched:
                return
            if change is None or change.is_done:
                del self._watched[attempt]
            else:
                self._watched[attempt] = change
        is_new = change is None or (change.saved, change.step) != (before.saved, before.step)
        if is_new or (change and change.is_done):
            self._put(LeaseChanged(attempt=attempt, lease=change))

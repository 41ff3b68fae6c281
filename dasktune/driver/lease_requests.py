"""Save requests between drivers: those of this driver are written, those of others are read."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from dasktune.driver.lease_threads import Threads
from dasktune.storage import layout
from dasktune.storage.leases import Leases, SaveRequest

MOST_REQUESTS = 1000
"""Save requests in one file; a whole file is written for each new request."""


class SaveRequests:
    """The save requests of one driver, and what it has read of those of others.

    Parameters
    ----------
    leases
        The save requests in the store.
    holder
        The driver's name.
    on_written
        Called with the path of each file that is written.
    threads
        Where requests are made.
    """

    def __init__(
        self, leases: Leases, holder: str, on_written: Callable[[str], None], threads: Threads
    ) -> None:
        self._leases = leases
        self._holder = holder
        self._on_written = on_written
        self._lock = threading.Lock()
        self._writing = threads.lock()  # each file is written by one thread at a time
        self._wanted: dict[str, list[SaveRequest]] = {}
        self._written: dict[str, list[SaveRequest]] = defaultdict(list)
        self._files: dict[str, int] = defaultdict(int)
        self._known: dict[str, tuple[int, int]] = {}

    def want(self, root: str, requests: Iterable[SaveRequest]) -> None:
        """Add requests for states below a root, to be written later."""
        with self._lock:
            self._wanted.setdefault(root, []).extend(requests)

    def write(self, roots: Iterable[str]) -> None:
        """Write the requests for states below these roots."""
        for root in sorted(roots):
            with self._lock:
                wanted = self._wanted.pop(root, [])
            if wanted:
                with self._writing:
                    path = self._write(root, wanted)
                self._on_written(path)

    def _write(self, root: str, wanted: Sequence[SaveRequest]) -> str:
        """Write requests into the driver's file, or into the next one if that is full.

        Two files stay: who looks at least once while one file fills up misses nothing, and the
        listing is short however many trials there are.
        """
        number, written = self._files[root], self._written[root]
        if written and len(written) + len(wanted) > MOST_REQUESTS:
            number += 1
            self._files[root] = number
            written.clear()
            if number > 1:
                self._leases.remove([layout.save_request_path(root, self._holder, number - 2)])
        written += wanted
        return self._leases.request_saves(root, self._holder, number, written)

    def read(self, roots: Iterable[str]) -> tuple[tuple[str, SaveRequest], ...]:
        """Return the requests of other drivers that are new since the last call."""
        return tuple(
            (root, request)
            for root in roots
            for request in self._leases.save_requests(root, self._known, own=self._holder)
        )

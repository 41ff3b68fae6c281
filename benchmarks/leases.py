"""Leases: how long a stage waits for its lease beside another driver with thousands of leases.

The store is one in memory; each request takes 30 ms, as on an object store.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from statistics import median, quantiles
from typing import cast

import numpy as np
from figures import Figure, main

from dasktune.driver.lease_messages import LeaseMessage
from dasktune.driver.leases import Leasing
from dasktune.sequences import Constant
from dasktune.storage.buffers import Buffer
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.files.base import Entry, Files

LEASES, SHORT_LEASES = 3000, 200
STARTS, SHORT_STARTS = 200, 20
REQUEST_SECONDS = 0.03
LONGEST_SECONDS = 0.2
ROOT = "ab" * 16


class SlowFiles:
    """Files in memory, whose requests take a while once they are slow."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}
        self.seconds = 0.0
        self.requests = 0
        self._lock = threading.Lock()

    def _request(self) -> None:
        time.sleep(self.seconds)
        self.requests += 1

    def create(self, path: str, content: bytes, *, durable: bool = True) -> bool:
        """Write a file if it is absent."""
        self._request()
        with self._lock:
            return self.contents.setdefault(path, content) is content

    def replace(self, path: str, content: bytes) -> None:
        """Write a file."""
        self._request()
        self.contents[path] = content

    def read(self, folder: str, names: Sequence[str]) -> list[Buffer | None]:
        """Return the content of files, None for a missing one."""
        self._request()
        contents = [self.contents.get(name) for name in names]
        return [None if each is None else np.frombuffer(each, np.uint8) for each in contents]

    def entries(self, folder: str) -> Iterator[Entry]:
        """Return the files in a folder."""
        self._request()
        with self._lock:
            there = [path for path in self.contents if path.startswith(f"{folder}/")]
        return iter([Entry(path=path, nbytes=1, modified=0.0) for path in there])

    def remove_files(self, paths: Iterable[str]) -> None:
        """Remove files."""
        self._request()
        for path in paths:
            self.contents.pop(path, None)


class Driver:
    """The leases of one driver."""

    def __init__(self, name: str, files: SlowFiles) -> None:
        self._name, self._files = name, files
        self._inbox: queue.SimpleQueue[LeaseMessage] = queue.SimpleQueue()
        self._count, self._ended = 0, 0
        store = cast(CheckpointStore, None)  # no state is looked up
        self.leasing = Leasing(store, name, self._inbox.put, files=cast(Files, files))

    def ask(self, count: int) -> None:
        """Take so many leases at once."""
        for _ in range(count):
            self._ask()
        for _ in range(count):
            self._inbox.get(timeout=600)

    def seconds_of_start(self) -> float:
        """Return how long one more start waits for its lease."""
        began = time.perf_counter()
        self._ask()
        self._inbox.get(timeout=600)
        return time.perf_counter() - began

    def end_a_stage(self) -> None:
        """Release the lease that was taken first: stages end as often as they start."""
        self._ended += 1
        self.leasing.release(self._key(self._ended), 100)

    def _key(self, number: int) -> str:
        return f"{self._name}{number:030x}"

    def _ask(self) -> None:
        self._count += 1
        self.leasing.beat()
        lease = self.leasing.lease(
            key=self._key(self._count),
            root=ROOT,
            sequences={"lr": Constant(float(self._count) + len(self._name))},
            start=0,
            stop=100,
        )
        self.leasing.ask(lease.key, lease)


def measure(short: bool) -> list[Figure]:
    """Measure starts of a driver with many leases, and of one beside it with few."""
    leases, starts = (SHORT_LEASES, SHORT_STARTS) if short else (LEASES, STARTS)
    files = SlowFiles()
    many, few = Driver("aa", files), Driver("bb", files)
    few.ask(1)  # it takes one, and ends one, at a time
    many.ask(leases)
    many.leasing.flush()
    few.leasing.flush()
    files.seconds = REQUEST_SECONDS
    figures = [
        figure
        for name, driver in ((f"with {leases:,} leases", many), (f"beside {leases:,}", few))
        for figure in _figures(name, driver, files, starts, is_timed=not short)
    ]
    files.seconds = 0.0
    for driver in (few, many):
        driver.leasing.close()
    return figures


def _figures(
    name: str, driver: Driver, files: SlowFiles, starts: int, *, is_timed: bool
) -> list[Figure]:
    requests, cpu = files.requests, time.process_time()
    seconds = []
    for _ in range(starts):
        seconds.append(driver.seconds_of_start())
        driver.end_a_stage()
    cpu, requests = time.process_time() - cpu, files.requests - requests
    return [
        Figure(
            name=f"a start waits for its lease, driver {name}, 99th percentile",
            value=quantiles(seconds, n=100)[98],
            unit="s",
            at_most=LONGEST_SECONDS if is_timed else None,
            note=f"median {median(seconds) * 1e3:.0f} ms, longest {max(seconds) * 1e3:.0f} ms; "
            f"{starts} starts one after the other, {REQUEST_SECONDS * 1e3:.0f} ms a request, of "
            f"which there were {requests / starts:.1f} a start with all upkeep; "
            f"{cpu / starts * 1e3:.1f} ms of CPU a start",
        ),
    ]


if __name__ == "__main__":
    sys.exit(main("leases", measure))

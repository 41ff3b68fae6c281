"""The threads that make the requests for a driver's leases, also while the store fails.

Questions, on which the start of a stage waits, have threads of their own: however many leases
are to be written again, no question waits for a free thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from functools import partial
from typing import Protocol

from dasktune.engine.timeouts import LEASE_POLL_SECONDS, LEASE_STORE_SECONDS
from dasktune.errors import StorageError
from dasktune.storage.files.retry import Patience

logger = logging.getLogger(__name__)

PATIENCE = Patience(seconds=LEASE_STORE_SECONDS, request=LEASE_STORE_SECONDS)
"""How long the store is tried: training goes on without a lease that cannot be written soon."""

QUESTIONS, WRITES = 128, 32
"""Questions that are answered at a time, and leases that are written at a time.

Most of its time a question waits for requests that it shares with others, so that there are more
of them than requests at a time.
"""

Work = Callable[[], None]
"""A job that makes requests to the store."""


class Threads(Protocol):
    """Where the jobs of a driver's leases are done."""

    def do(self, key: str, work: Work, *, is_question: bool = True) -> Future[None]:
        """Do a job after those that were given before it about the same key.

        Parameters
        ----------
        key
            Names what the job is about.
        work
            The job; it raises nothing.
        is_question
            Whether the driver waits for its answer.
        """

    def in_turn(self, work: Work) -> None:
        """Do a job after all others that were given here."""

    def lock(self) -> AbstractContextManager[object]:
        """Return a lock that a job may hold during requests."""

    def repeat(self, work: Callable[[], float]) -> None:
        """Do a job again and again; it returns the seconds until the next time."""

    def wake(self) -> None:
        """Begin the next repetition at once."""

    def wait(self, job: Future[None]) -> None:
        """Wait for a job in the thread of another job; raise what it raised."""

    def settle(self) -> None:
        """Wait until all jobs that were given by `do` are done."""

    def pause(self, seconds: float) -> None:
        """Wait in the thread of a job."""

    def monotonic(self) -> float:
        """Return seconds that only grow."""

    def stop(self) -> None:
        """End the repetition."""

    def close(self) -> None:
        """End all threads."""


class LeaseThreads:
    """Threads of this process; see `Threads`."""

    def __init__(self) -> None:
        self._questions, self._upkeep, self._turns = (
            ThreadPoolExecutor(most, thread_name_prefix=f"dasktune-{name}")
            for most, name in ((QUESTIONS, "leases"), (WRITES, "lease-upkeep"), (1, "lease-object"))
        )
        self._lock = threading.Lock()
        self._jobs: dict[str, Future[None]] = {}
        self._is_stopped, self._wake = False, threading.Event()
        self._thread: threading.Thread | None = None

    def do(self, key: str, work: Work, *, is_question: bool = True) -> Future[None]:
        """Do a job after those that were given before it about the same key."""
        pool = self._questions if is_question else self._upkeep
        with self._lock:
            job = pool.submit(_in_order, self._jobs.get(key), work)
            self._jobs[key] = job
        job.add_done_callback(partial(self._forget, key))
        return job

    def _forget(self, key: str, job: Future[None]) -> None:
        with self._lock:
            if self._jobs.get(key) is job:
                del self._jobs[key]

    def in_turn(self, work: Work) -> None:
        """Do a job after all others that were given here."""
        self._turns.submit(work)

    def lock(self) -> AbstractContextManager[object]:
        """Return a lock that a job may hold during requests."""
        return threading.Lock()

    def repeat(self, work: Callable[[], float]) -> None:
        """Do a job again and again; it returns the seconds until the next time."""
        name = "dasktune-leasing"
        self._thread = threading.Thread(target=self._repeat, args=[work], name=name, daemon=True)
        self._thread.start()

    def _repeat(self, work: Callable[[], float]) -> None:
        seconds = LEASE_POLL_SECONDS[0]
        while not self._is_stopped:
            self._wake.wait(seconds)
            self._wake.clear()
            seconds = work()

    def wake(self) -> None:
        """Begin the next repetition at once."""
        self._wake.set()

    def wait(self, job: Future[None]) -> None:
        """Wait for a job in the thread of another job; raise what it raised."""
        job.result()

    def settle(self) -> None:
        """Wait until all jobs that were given by `do` are done."""
        with self._lock:
            jobs = list(self._jobs.values())
        wait(jobs)

    def pause(self, seconds: float) -> None:
        """Wait in the thread of a job."""
        time.sleep(seconds)

    def monotonic(self) -> float:
        """Return seconds that only grow."""
        return time.monotonic()

    def stop(self) -> None:
        """End the repetition."""
        self._is_stopped = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        """End all threads."""
        for pool in (self._questions, self._upkeep, self._turns):
            pool.shutdown()


def _in_order(before: Future[None] | None, work: Work) -> None:
    if before is not None:
        wait([before])  # of all jobs that are not done, the first one given waits for none
    work()


class StoreAwayError(Exception):
    """The store failed a moment ago, so it is not tried now."""


class StorePresence:
    """Knows whether the store has just failed: each try may take as long as the patience.

    Parameters
    ----------
    clock
        Gives epoch seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failed_at = -PATIENCE.seconds
        self._has_failed = False

    def check(self) -> None:
        """Raise `StoreAwayError` if the store has just failed."""
        if 0 <= self._clock() - self._failed_at < PATIENCE.seconds:
            raise StoreAwayError

    def safely(self, work: Work) -> None:
        """Do a job; log its first failure, and ignore all."""
        try:
            work()
        except StoreAwayError:
            pass
        # The driver waits for answers: whatever a store may do, the threads go on.
        except Exception as error:  # noqa: BLE001
            if isinstance(error, OSError | StorageError):
                self._failed_at = self._clock()
            if not self._has_failed:
                self._has_failed = True
                logger.warning(
                    "leases cannot be used, so that other drivers may train the same: %s", error
                )

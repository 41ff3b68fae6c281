"""The leases of a driver: it leases the steps that it trains, and watches leases of others.

All of it goes through files in the store, in a thread of its own: the driver's loop asks and
goes on, and receives the answers as messages. A failure is logged once and then ignored:
without leases drivers train the same steps twice, and nothing worse happens.
"""

from __future__ import annotations

import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from uuid import uuid4

from dasktune.engine.timeouts import (
    LEASE_POLL_SECONDS,
    LEASE_STORE_SECONDS,
    STALE_SECONDS,
    WAITS,
    Waits,
)
from dasktune.errors import StorageError
from dasktune.storage import layout
from dasktune.storage.checkpoints import CheckpointStore, Commit
from dasktune.storage.files.objects import open_files
from dasktune.storage.files.retry import Patience
from dasktune.storage.leases import Lease, Leases, SaveRequest
from dasktune.types import Sequences, Step

logger = logging.getLogger(__name__)

PATIENCE = Patience(seconds=LEASE_STORE_SECONDS, request=LEASE_STORE_SECONDS)
"""How long the store is tried: training goes on without a lease that cannot be written soon."""

POLL_SHARE = 0.02
"""Share of the time that these readings may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseAnswered:
    """The answer to `Leasing.ask`: `other` is the lease that stands in the way, if any."""

    attempt: str
    other: Lease | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseChanged:
    """The lease of another driver that is watched has changed; it is gone if None."""

    attempt: str
    lease: Lease | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitsFound:
    """The answer to `Leasing.look_up`: the commits that are in the store, by step."""

    attempt: str
    commits: Mapping[Step, Commit]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavesRequested:
    """Other drivers ask for states below the roots that this one has taken leases of."""

    paths: tuple[tuple[str, SaveRequest], ...]


LeaseMessage = LeaseAnswered | LeaseChanged | CommitsFound | SavesRequested
"""What the thread of the leases says to the driver's loop."""


@dataclass(slots=True)
class _Held:
    """A lease of this driver, and what has happened since it was written."""

    lease: Lease
    part: str = ""
    is_dirty: bool = False


class _AwayError(Exception):
    """The store failed a moment ago, so it is not tried now."""


class Leasing:
    """The leases of one run.

    Parameters
    ----------
    store
        Shared with the other drivers.
    study
        Names the study among all.
    put
        Takes the messages; called from the thread of the leases.
    clock
        Gives epoch seconds.
    waits
        How long a lease lasts, and how often it is renewed.
    """

    def __init__(
        self,
        store: CheckpointStore,
        study: str,
        put: Callable[[LeaseMessage], None],
        *,
        clock: Callable[[], float] = time.time,
        waits: Waits = WAITS,
    ) -> None:
        self._waits = waits
        self.study, self.holder = study, _own_name()
        self._store, self._leases = store, Leases(open_files(store.url, patience=PATIENCE))
        self._put = put
        self._clock = clock
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._held: dict[str, _Held] = {}
        self._watched: dict[str, Lease] = {}
        self._roots: set[str] = set()
        self._requests_known: set[str] = set()
        self._own_paths: set[str] = set()
        self._wanted: dict[str, list[SaveRequest]] = {}
        self._count = 0
        self._alive = clock()
        self._renewed = clock()
        self._poll_seconds = LEASE_POLL_SECONDS[0]
        self._has_failed = False
        self._failed_at = -PATIENCE.seconds
        self._thread = threading.Thread(target=self._work, name="dasktune-leasing", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------ from the driver's loop

    def lease(self, *, key: str, root: str, sequences: Sequences, start: Step, stop: Step) -> Lease:
        """Return a lease on steps, not taken yet."""
        return Lease(
            key=key,
            root=root,
            study=self.study,
            holder=self.holder,
            sequences={name: sequence.to_json() for name, sequence in sequences.items()},
            start=start,
            stop=stop,
            step=start,
            expires=self._clock() + self._waits.lease_seconds,
        )

    def ask(self, attempt: str, lease: Lease, *, heed_saved: bool = True) -> None:
        """Ask for a lease; the answer is a message."""
        self._jobs.put(partial(self._take, attempt, lease, heed_saved))

    def is_over(self, lease: Lease) -> bool:
        """Whether nobody trains the steps of a lease any more."""
        return not lease.is_held(self._clock())

    def beat(self) -> None:
        """Record that the driver's loop is alive: leases are renewed only while it is."""
        self._alive = self._clock()

    def saved(self, attempt: str, step: Step, following: str | None) -> None:
        """Record a state that an attempt has saved.

        Parameters
        ----------
        attempt
            The attempt.
        step
            Step of the state.
        following
            The key after one more step, which is leased before the state is spoken of; None
            if the attempt trains no further.
        """
        self._jobs.put(partial(self._note_saved, attempt, step, following))

    def release(self, attempt: str, step: Step) -> None:
        """Release the lease of an attempt that came to a step and trains no more."""
        self._jobs.put(partial(self._release, attempt, step))

    def watch(self, attempt: str, other: Lease) -> None:
        """Watch the lease of another driver; every change is a message."""
        self._jobs.put(partial(self._watched.__setitem__, attempt, other))

    def ignore(self, attempt: str) -> None:
        """Watch the lease of another driver no longer."""
        self._jobs.put(partial(self._forget, attempt))

    def look_up(self, attempt: str, keys: Mapping[Step, str]) -> None:
        """Ask for the commits of keys by step; the answer is a message."""
        self._jobs.put(partial(self._look_up, attempt, keys))

    def want(self, root: str, paths: Iterable[SaveRequest]) -> None:
        """Ask other drivers for states below a root."""
        self._jobs.put(partial(self._note_wanted, root, list(paths)))

    def close(self) -> None:
        """Release all leases; remove all files if no other driver has any here."""
        self._jobs.put(self._end)
        self._jobs.put(None)
        self._thread.join()

    # ------------------------------------------------------------ the thread

    def _work(self) -> None:
        """Do the jobs, then look after the leases that are held and watched, again and again."""
        while True:
            jobs = self._gathered()
            for job in jobs:
                if job is None:
                    return
                self._safely(job)
            for look in (self._flush, self._write_wanted, self._renew, self._watch, self._listen):
                self._safely(look)

    def _gathered(self) -> list[Callable[[], None] | None]:
        """Wait for jobs as long as may pass between two readings."""
        jobs: list[Callable[[], None] | None] = []
        try:
            jobs.append(self._jobs.get(timeout=self._poll_seconds))
            while True:
                jobs.append(self._jobs.get_nowait())
        except queue.Empty:
            return jobs

    def _safely(self, work: Callable[[], None]) -> None:
        try:
            work()
        except _AwayError:
            pass
        # The driver waits for answers: whatever a store may do, this thread goes on.
        except Exception as error:  # noqa: BLE001
            if isinstance(error, OSError | StorageError):
                self._failed_at = self._clock()
            if not self._has_failed:
                self._has_failed = True
                logger.warning(
                    "leases cannot be used, so that other drivers may train the same: %s", error
                )

    def _check_presence(self) -> None:
        """Raise if the store has just failed: each try may take as long as the patience."""
        if 0 <= self._clock() - self._failed_at < PATIENCE.seconds:
            raise _AwayError

    def _take(self, attempt: str, lease: Lease, heed_saved: bool) -> None:
        other = None
        try:
            self._check_presence()
            self._know(lease.root)
            other = self._leases.take(lease, self._clock(), heed_saved=heed_saved)
        finally:
            if other is None:
                self._held[attempt] = _Held(lease)
                self._own_paths.add(layout.lease_path(lease.root, lease.key))
            self._put(LeaseAnswered(attempt=attempt, other=other))

    def _know(self, root: str) -> None:
        """Read the files of other drivers below a root, before the first lease there is taken."""
        if root in self._roots:
            return
        self._roots.add(root)
        self._write_wanted()
        now = self._clock()
        old = [path for path, when in self._leases.all(root) if 0 < when < now - STALE_SECONDS]
        self._leases.remove(old)
        self._listen()

    def _note_saved(self, attempt: str, step: Step, following: str | None) -> None:
        held = self._held.get(attempt)
        if held is not None:
            saved = tuple(sorted({*held.lease.saved, step}))
            held.lease = replace(held.lease, saved=saved, step=max(held.lease.step, step))
            held.part, held.is_dirty = following or "", True

    def _release(self, attempt: str, step: Step) -> None:
        held = self._held.pop(attempt, None)
        if held is None or any(other.lease.key == held.lease.key for other in self._held.values()):
            return  # the next attempt at the same steps has taken it over
        self._check_presence()
        if not self._is_lost(held.lease):
            step = max(held.lease.step, step)
            self._leases.write(replace(held.lease, is_done=True, step=step))

    def _is_lost(self, lease: Lease) -> bool:
        """Return whether a lease expired, as after a suspension, and is another driver's now."""
        now = self._clock()
        if now < lease.expires:
            return False
        stored = self._leases.read(lease.root, [lease.key])[0]
        return stored is not None and stored.holder != self.holder and stored.is_held(now)

    def _flush(self) -> None:
        """Write which states were saved: the step after each is leased first."""
        self._check_presence()
        for held in self._held.values():
            if not held.is_dirty or self._is_lost(held.lease):
                continue
            held.is_dirty = False
            if held.part:
                part = held.lease.part(held.part)
                if self._leases.take(part, self._clock(), heed_saved=False) is None:
                    self._own_paths.add(layout.lease_path(part.root, part.key))
            self._leases.write(held.lease)

    def _renew(self) -> None:
        now, seconds = self._clock(), self._waits.lease_seconds
        if now - self._renewed < self._waits.renew_seconds or now - self._alive > seconds:
            return
        self._check_presence()
        self._renewed = now
        for held in self._held.values():
            if not self._is_lost(held.lease):
                held.lease = replace(held.lease, expires=now + seconds)
                self._leases.write(held.lease)

    def _forget(self, attempt: str) -> None:
        self._watched.pop(attempt, None)

    def _watch(self) -> None:
        """Report the changes of the leases that are watched."""
        by_root: dict[str, dict[str, Lease]] = {}
        for attempt, lease in self._watched.items():
            by_root.setdefault(lease.root, {})[attempt] = lease
        for root, watched in by_root.items():
            self._safely(partial(self._look_at, root, watched))

    def _look_at(self, root: str, watched: Mapping[str, Lease]) -> None:
        # While the store does not answer, the leases stay as they were until they expire.
        leases: list[Lease | None] = list(watched.values())
        try:
            self._check_presence()
            leases = self._leases.read(root, [lease.key for lease in watched.values()])
        finally:
            for attempt, lease in zip(watched, leases, strict=True):
                self._compare(attempt, watched[attempt], lease)

    def _compare(self, attempt: str, before: Lease, lease: Lease | None) -> None:
        """Report a lease that has changed since it was read last."""
        if lease is None or lease.holder != before.holder:
            del self._watched[attempt]
            self._put(LeaseChanged(attempt=attempt, lease=None))
        elif not lease.is_held(self._clock()):
            del self._watched[attempt]
            # Also where a clock is set back until it is heard: nobody looks again.
            self._put(LeaseChanged(attempt=attempt, lease=replace(lease, is_done=True)))
        else:
            self._watched[attempt] = lease
            if lease.saved != before.saved:
                self._put(LeaseChanged(attempt=attempt, lease=lease))

    def _listen(self) -> None:
        """Read the save requests of other drivers, and measure how long that takes."""
        self._check_presence()
        began = time.monotonic()
        paths = tuple(
            (root, path)
            for root in self._roots
            for path in self._leases.save_requests(root, self._requests_known)
        )
        least, longest = LEASE_POLL_SECONDS
        took = time.monotonic() - began
        self._poll_seconds = min(longest, max(least, took / POLL_SHARE))
        if paths:
            self._put(SavesRequested(paths=paths))

    def _look_up(self, attempt: str, keys: Mapping[Step, str]) -> None:
        commits_by_step: dict[Step, Commit] = {}
        try:
            self._check_presence()
            commits = self._store.commits(keys.values())
            commits_by_step = {step: commits[key] for step, key in keys.items() if key in commits}
        finally:
            self._put(CommitsFound(attempt=attempt, commits=commits_by_step))

    def _write_wanted(self) -> None:
        self._check_presence()
        for root in sorted(self._wanted.keys() & self._roots):
            path = self._leases.request_saves(
                root, self.holder, self._count, self._wanted.pop(root)
            )
            self._count += 1
            self._requests_known.add(path)
            self._own_paths.add(path)

    def _note_wanted(self, root: str, paths: list[SaveRequest]) -> None:
        self._wanted.setdefault(root, []).extend(paths)

    def _end(self) -> None:
        self._check_presence()
        for attempt, held in list(self._held.items()):
            self._release(attempt, held.lease.step)
        for root in self._roots:
            there = {path for path, _ in self._leases.all(root)}
            if there <= self._own_paths:
                self._leases.remove(sorted(there))


def _own_name() -> str:
    """Return a name that no other driver has; it contains the process and the host."""
    return f"{uuid4().hex}-{os.getpid()}-{layout.slug(socket.gethostname())}"

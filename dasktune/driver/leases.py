"""The leases of a driver: it leases the steps that it trains, and watches leases of others.

All of it goes through files in the store, in threads of its own: the driver's loop asks and
goes on, and receives the answers as messages. A failure is logged once and then ignored:
without leases drivers train the same steps twice, and nothing worse happens.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from uuid import uuid4

from dasktune.engine.timeouts import (
    LEASE_MEET_SECONDS,
    LEASE_POLL_SECONDS,
    LEASE_STORE_SECONDS,
    STALE_SECONDS,
    WAITS,
    Waits,
)
from dasktune.errors import ConfigurationError, StorageError
from dasktune.graph.plan import shared_until
from dasktune.sequences import sequence_from_json
from dasktune.storage import layout
from dasktune.storage.checkpoints import CheckpointStore, Commit
from dasktune.storage.files.base import Files
from dasktune.storage.files.objects import open_files
from dasktune.storage.files.retry import Patience
from dasktune.storage.leases import HeldLeases, Lease, Leases, SaveRequest
from dasktune.types import Sequences, Step

logger = logging.getLogger(__name__)

PATIENCE = Patience(seconds=LEASE_STORE_SECONDS, request=LEASE_STORE_SECONDS)
"""How long the store is tried: training goes on without a lease that cannot be written soon."""

THREADS = 32
"""Questions that are answered at a time."""

MOST_REQUESTS = 1000
"""Save requests in one file; a whole file is written for each new request."""

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
    """A lease of this driver, and what has happened since its file was written."""

    lease: Lease
    part: str = ""
    is_dirty: bool = False
    is_lost: bool = False


class _AwayError(Exception):
    """The store failed a moment ago, so it is not tried now."""


class Leasing:
    """The leases of one run.

    Each question is answered in a thread of its own, those about the same key one after the
    other. One more thread looks after the leases that are held and watched, again and again: no
    question waits for that.

    As long as no other driver is seen, every lease is granted without a request, and its file is
    written only once another driver appears. A driver that begins writes its object, and waits
    until each of the others says in its own that it sees it: from then on both write files.

    Parameters
    ----------
    store
        Shared with the other drivers.
    study
        Names the study among all.
    put
        Takes the messages; called from the threads of the leases.
    clock
        Gives epoch seconds.
    waits
        How long a lease lasts, and how often it is renewed.
    files
        The store's files; by default they are opened again, and tried for a short time only.
    """

    def __init__(
        self,
        store: CheckpointStore,
        study: str,
        put: Callable[[LeaseMessage], None],
        *,
        clock: Callable[[], float] = time.time,
        waits: Waits = WAITS,
        files: Files | None = None,
    ) -> None:
        self._waits = waits
        self.study, self.holder = study, _own_name()
        self._store = store
        self._leases = Leases(files or open_files(store.url, patience=PATIENCE))
        self._put = put
        self._clock = clock
        # Guards all that several threads change; never held during a request.
        self._lock = threading.Lock()
        self._held: dict[str, _Held] = {}
        self._taking: dict[str, Lease] = {}
        self._keys: dict[str, str] = {}
        self._jobs: dict[str, Future[None]] = {}
        self._watched: dict[str, Lease] = {}
        self._wanted: dict[str, list[SaveRequest]] = {}
        self._own_paths: set[str] = set()
        self._finished: list[Lease] = []
        self._others: tuple[str, ...] = ()
        self._is_shared = False
        self._announced: Mapping[str, Lease] = {}
        self._announced_to: tuple[str, ...] = ()
        self._expires = clock() + self._waits.lease_seconds
        self._alive = clock()
        self._renewed = clock()
        self._failed_at = -PATIENCE.seconds
        self._has_failed = False
        # Each of these is held during requests: one thread announces, knows a root, or looks.
        self._announcing, self._knowing, self._looking = (threading.Lock() for _ in range(3))
        self._roots: set[str] = set()
        self._requests_known: dict[str, tuple[int, int]] = {}
        self._requested: dict[str, list[SaveRequest]] = defaultdict(list)
        self._request_files: dict[str, int] = defaultdict(int)
        self._poll_seconds = LEASE_POLL_SECONDS[0]
        self._is_closed, self._wake = False, threading.Event()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="dasktune-leases")
        self._thread = threading.Thread(target=self._work, name="dasktune-leasing", daemon=True)
        self._thread.start()

    def lease(
        self,
        *,
        key: str,
        root: str,
        sequences: Sequences,
        start: Step,
        stop: Step,
        saves: Iterable[Step] = (),
    ) -> Lease:
        """Return a lease of this driver on a stage, not yet asked for."""
        return Lease(
            key=key,
            root=root,
            study=self.study,
            holder=self.holder,
            sequences={name: sequence.to_json() for name, sequence in sequences.items()},
            start=start,
            stop=stop,
            step=start,
            saves=tuple(saves),
            expires=self._clock() + self._waits.lease_seconds,
        )

    def ask(self, attempt: str, lease: Lease, *, heed_saved: bool = True) -> None:
        """Ask for a lease; the answer is a message."""
        with self._lock:
            self._keys[attempt] = lease.key
        self._do(attempt, partial(self._take, attempt, lease, heed_saved))

    def is_over(self, lease: Lease) -> bool:
        """Whether nobody trains the steps of a lease any more."""
        return not lease.is_held(self._clock())

    def beat(self) -> None:
        """Record that the driver's loop is alive: leases are renewed only while it is."""
        self._alive = self._clock()

    def reached(self, attempt: str, step: Step) -> None:
        """Record how far an attempt has come."""
        with self._lock:
            held = self._held.get(attempt)
            if held is not None and step > held.lease.step:
                held.lease = replace(held.lease, step=step)

    def plan_saves(self, attempt: str, saves: Iterable[Step]) -> None:
        """Record the steps at which an attempt is going to save its state."""
        with self._lock:
            held = self._held.get(attempt)
            if held is not None:
                held.lease = replace(held.lease, saves=tuple(saves))

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
        self._do(attempt, partial(self._note_saved, attempt, step, following))

    def release(self, attempt: str, step: Step) -> None:
        """Release the lease of an attempt that came to a step and trains no more."""
        self._do(attempt, partial(self._release, attempt, step))

    def watch(self, attempt: str, other: Lease) -> None:
        """Watch the lease of another driver; every change is a message."""
        with self._lock:
            self._watched[attempt] = other

    def ignore(self, attempt: str) -> None:
        """Watch the lease of another driver no longer."""
        with self._lock:
            self._watched.pop(attempt, None)

    def look_up(self, attempt: str, keys: Mapping[Step, str]) -> None:
        """Ask for the commits of keys by step; the answer is a message."""
        self._do(attempt, partial(self._look_up, attempt, keys))

    def want(self, root: str, paths: Iterable[SaveRequest]) -> None:
        """Ask other drivers for states below a root."""
        with self._lock:
            self._wanted.setdefault(root, []).extend(paths)
        self._wake.set()

    def flush(self) -> None:
        """Wait until all that was asked for is done, and then look after the leases once."""
        with self._lock:
            jobs = list(self._jobs.values())
        wait(jobs)
        self._look()

    def close(self) -> None:
        """Release all leases; remove all files if no other driver has any here."""
        self.flush()
        self._is_closed = True
        self._wake.set()
        self._thread.join()
        self._safely(self._end)
        self._pool.shutdown()

    # ------------------------------------------------------------ questions

    def _do(self, attempt: str, work: Callable[[], None]) -> None:
        """Do a job in a thread, after those that were given before it about the same key."""
        with self._lock:
            key = self._keys.get(attempt, attempt)
            before = self._jobs.get(key)
            self._jobs[key] = self._pool.submit(self._in_order, before, work)

    def _in_order(self, before: Future[None] | None, work: Callable[[], None]) -> None:
        if before is not None:
            wait([before])  # it was submitted earlier, so it has begun
        self._safely(work)

    def _safely(self, work: Callable[[], None]) -> None:
        try:
            work()
        except _AwayError:
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

    def _check_presence(self) -> None:
        """Raise if the store has just failed: each try may take as long as the patience."""
        if 0 <= self._clock() - self._failed_at < PATIENCE.seconds:
            raise _AwayError

    def _take(self, attempt: str, lease: Lease, heed_saved: bool) -> None:
        other, inside = None, None
        try:
            self._check_presence()
            self._know(lease.root)
            if not self._hold_alone(attempt, lease):
                other = self._leases.take(lease, self._clock(), heed_saved=heed_saved)
                if other is None:
                    other = inside = self._around(attempt, lease)
        finally:
            with self._lock:
                self._taking.pop(attempt, None)
                if other is None and attempt not in self._held:
                    self._held[attempt] = _Held(lease)
                    self._own_paths.add(layout.lease_path(lease.root, lease.key))
            self._put(LeaseAnswered(attempt=attempt, other=other))
        if inside is not None:
            self._leases.remove([layout.lease_path(lease.root, lease.key)])

    def _hold_alone(self, attempt: str, lease: Lease) -> bool:
        """Hold a lease without a file if no other driver was seen yet; return whether it is."""
        with self._lock:
            if not self._is_shared:
                self._held[attempt] = _Held(lease)
            return not self._is_shared

    def _around(self, attempt: str, lease: Lease) -> Lease | None:
        """Return the lease of another driver in whose steps this lease begins, or None.

        Its own lease is announced first: of two drivers that take leases at the same time, the
        one that reads last sees the other.
        """
        with self._lock:
            others = self._others
            self._taking[attempt] = lease
        if not others:
            return None
        with self._announcing:
            if attempt not in self._announced:
                self._announce()
        now = self._clock()
        for driver in self._leases.drivers(others):
            if driver.study != self.study and driver.is_live(now):
                for other in driver.of_root(lease.root):
                    if _begins_inside(lease, other):
                        return other
        return None

    def _announce(self) -> None:
        """Write, and so renew, all leases that are held or being taken: one request."""
        now = self._clock()
        with self._lock:
            held = {attempt: held.lease for attempt, held in self._held.items() if not held.is_lost}
            leases, others = {**held, **self._taking}, self._others
        expires = now + self._waits.lease_seconds
        self._leases.hold(
            HeldLeases(
                holder=self.holder,
                study=self.study,
                expires=expires,
                leases=(*leases.values(),),
                sees=others,
            )
        )
        with self._lock:
            self._announced = leases
            self._announced_to, self._expires, self._renewed = others, expires, now

    def _know(self, root: str) -> None:
        """Read the files of other drivers below a root, before the first lease there is taken."""
        with self._knowing:
            if root in self._roots:
                return
            if not self._roots:
                with self._announcing:
                    self._announce()
                self._meet()
            self._roots.add(root)
            oldest = self._clock() - STALE_SECONDS
            old = [path for path, when in self._leases.all(root) if 0 < when < oldest]
            self._leases.remove(old)
            self._write_wanted()
            self._listen()

    def _meet(self) -> None:
        """Wait until the other drivers see this one, or have not answered for too long."""
        end = time.monotonic() + LEASE_MEET_SECONDS
        while not self._is_seen() and time.monotonic() < end:
            self._wake.wait(LEASE_POLL_SECONDS[0])

    def _is_seen(self) -> bool:
        """Return whether all other drivers see this one; say in turn which ones it sees."""
        others = self._others_there()
        if self._others != self._announced_to:
            with self._announcing:
                self._announce()
        return all(self.holder in driver.sees for driver in others)

    def _note_saved(self, attempt: str, step: Step, following: str | None) -> None:
        with self._lock:
            held = self._held.get(attempt)
            if held is not None:
                saved = tuple(sorted({*held.lease.saved, step}))
                held.lease = replace(held.lease, saved=saved, step=max(held.lease.step, step))
                held.part, held.is_dirty = following or "", True
        self._wake.set()

    def _release(self, attempt: str, step: Step) -> None:
        with self._lock:
            self._keys.pop(attempt, None)
            held = self._held.pop(attempt, None)
            if held is None or any(
                other.lease.key == held.lease.key for other in self._held.values()
            ):
                return  # the next attempt at the same steps has taken it over
            lease = replace(held.lease, is_done=True, step=max(held.lease.step, step))
            if not self._is_shared:
                self._finished.append(lease)
                return
        self._check_presence()
        if not self._is_lost(held):
            self._leases.write(lease)

    def _is_lost(self, held: _Held) -> bool:
        """Return whether a lease expired, as after a suspension, and is another driver's now."""
        now, lease = self._clock(), held.lease
        if held.is_lost or now < self._expires:
            return held.is_lost
        stored = self._leases.read(lease.root, [lease.key])[0]
        return stored is not None and stored.holder != self.holder and stored.is_held(now)

    def _look_up(self, attempt: str, keys: Mapping[Step, str]) -> None:
        commits_by_step: dict[Step, Commit] = {}
        try:
            self._check_presence()
            commits = self._store.commits(keys.values())
            commits_by_step = {step: commits[key] for step, key in keys.items() if key in commits}
        finally:
            self._put(CommitsFound(attempt=attempt, commits=commits_by_step))

    # ------------------------------------------------------------ looking after leases

    def _work(self) -> None:
        """Look after the leases, again and again."""
        while not self._is_closed:
            self._wake.wait(self._poll_seconds)
            self._wake.clear()
            self._look()

    def _look(self) -> None:
        with self._lock:
            self._jobs = {key: job for key, job in self._jobs.items() if not job.done()}
        # What others must find is written before this driver says that it sees them.
        looks = (self._find_others, self._flush, self._write_wanted, self._renew, self._watch)
        with self._looking:
            for look in (*looks, self._listen):
                self._safely(look)

    def _renew(self) -> None:
        """Renew all leases when it is time, or if other drivers would see how far they are."""
        now = self._clock()
        if not self._roots or now - self._alive > self._waits.lease_seconds:
            return
        with self._lock:
            held = list(self._held.values())
            leases = {
                attempt: each.lease for attempt, each in self._held.items() if not each.is_lost
            }
            is_new = leases != self._announced or self._others != self._announced_to
            shows = self._is_shared and is_new
        if not shows and 0 <= now - self._renewed < self._waits.renew_seconds:
            return
        self._check_presence()
        if now >= self._expires:
            for each in held:
                each.is_lost = self._is_lost(each)
        with self._announcing:
            self._announce()

    def _flush(self) -> None:
        """Write which states were saved: the step after each is leased first."""
        self._check_presence()
        with self._lock:
            if not self._is_shared:
                return
            finished, self._finished = self._finished, []
            dirty = [(held, held.lease, held.part) for held in self._held.values() if held.is_dirty]
            for held, _, _ in dirty:
                held.is_dirty = False
        list(self._pool.map(self._leases.write, finished))
        list(self._pool.map(lambda saved: self._write_saved(*saved), dirty))

    def _write_saved(self, held: _Held, lease: Lease, following: str) -> None:
        if self._is_lost(held):
            return
        if following:
            part = lease.part(following)
            if self._leases.take(part, self._clock(), heed_saved=False) is None:
                with self._lock:
                    self._own_paths.add(layout.lease_path(part.root, part.key))
        with self._lock:
            self._own_paths.add(layout.lease_path(lease.root, lease.key))
            lease = replace(lease, expires=self._expires)
        self._leases.write(lease)

    def _write_wanted(self) -> None:
        self._check_presence()
        for root in sorted(self._roots):
            with self._lock:
                wanted = self._wanted.pop(root, []) if self._is_shared else []
            if wanted:
                self._request(root, wanted)

    def _request(self, root: str, wanted: list[SaveRequest]) -> None:
        """Write save requests: into the driver's file, or into the next one if that is full.

        Two files stay: who looks at least once while one file fills up misses nothing, and the
        listing is short however many trials there are.
        """
        number, requested = self._request_files[root], self._requested[root]
        if requested and len(requested) + len(wanted) > MOST_REQUESTS:
            number += 1
            self._request_files[root] = number
            requested.clear()
            if number > 1:
                self._leases.remove([layout.save_request_path(root, self.holder, number - 2)])
        requested += wanted
        path = self._leases.request_saves(root, self.holder, number, requested)
        with self._lock:
            self._own_paths.add(path)

    def _find_others(self) -> None:
        if self._roots:
            self._check_presence()
            self._others_there()

    def _others_there(self) -> list[HeldLeases]:
        """Return the leases of each other driver that runs.

        The first time that there is one, the files that were not needed before are due.
        """
        names = sorted(set(self._leases.holders()) - {self.holder})
        now = self._clock()
        others = [
            driver
            for driver in self._leases.drivers(names)
            if driver.is_live(now) and driver.study != self.study
        ]
        with self._lock:
            self._others = tuple(driver.holder for driver in others)
            if others and not self._is_shared:
                self._is_shared = True
                for held in self._held.values():
                    held.is_dirty = True
        return others

    def _watch(self) -> None:
        """Report the changes of the leases that are watched."""
        by_root: dict[str, dict[str, Lease]] = {}
        with self._lock:
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

    def _listen(self) -> None:
        """Read the save requests of other drivers, and measure how long that takes."""
        self._check_presence()
        began = time.monotonic()
        paths = tuple(
            (root, path)
            for root in list(self._roots)
            for path in self._leases.save_requests(root, self._requests_known, own=self.holder)
        )
        least, longest = LEASE_POLL_SECONDS
        took = time.monotonic() - began
        self._poll_seconds = min(longest, max(least, took / POLL_SHARE))
        if paths:
            self._put(SavesRequested(paths=paths))

    def _end(self) -> None:
        self._check_presence()
        for attempt, held in list(self._held.items()):
            self._release(attempt, held.lease.step)
        for root in self._roots if self._is_shared else ():
            there = {path for path, _ in self._leases.all(root)}
            if there <= self._own_paths:
                self._leases.remove(sorted(there))
        if self._roots:
            self._leases.leave(self.holder)


def _begins_inside(lease: Lease, other: Lease) -> bool:
    """Return whether a lease begins inside the steps of another lease."""
    if other.is_done or not other.start <= lease.start < other.stop or other.misses(lease.stop):
        return False
    try:
        own_path, other_path = (
            {name: sequence_from_json(document) for name, document in each.sequences.items()}
            for each in (lease, other)
        )
        return shared_until(own_path, other_path, 0, lease.start + 1) > lease.start
    except (ConfigurationError, LookupError, RecursionError, TypeError, ValueError):
        return False  # anyone may have written it


def _own_name() -> str:
    """Return a name that no other driver has; it contains the process and the host."""
    return f"{uuid4().hex}-{os.getpid()}-{layout.slug(socket.gethostname())}"

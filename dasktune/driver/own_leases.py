"""The leases that a driver holds: in memory, in its object in the store, and in their files.

As long as no other driver is seen, a lease has no file. Once one is seen, another object lists all
leases that had ended by then. The object announces all leases to other drivers, and renews them
with one request. Announcements that are asked for while one is under way share the next one, so
that a stage waits for two of them at most. Stages that share an announcement share the reading of
the others' objects that follows it.
"""

from __future__ import annotations

import os
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from uuid import uuid4

from dasktune.driver.lease_threads import StorePresence, Threads
from dasktune.driver.leased_ranges import MOST_ENDED, LeasedRanges
from dasktune.engine.timeouts import (
    LEASE_MEET_SECONDS,
    LEASE_POLL_SECONDS,
    STALE_SECONDS,
    WAITS,
    Waits,
)
from dasktune.storage import layout
from dasktune.storage.leases import HeldLeases, Lease, LeaseMark, LeaseName, Leases
from dasktune.types import Step

Heeded = Collection[LeaseMark | LeaseName]
"""Marks of ended leases whose states are known, and names of leases that are past."""


@dataclass(slots=True)
class _Held:
    """A lease of this driver, and what has happened since its file was written."""

    lease: Lease
    following: str = ""
    is_dirty: bool = False
    is_lost: bool = False


@dataclass(slots=True)
class _Reading:
    """A reading of the objects of other drivers, which began after an announcement."""

    done: Future[None] = field(default_factory=Future)
    drivers: list[HeldLeases] = field(default_factory=list)


class OwnLeases:
    """The leases that one driver holds or takes.

    Parameters
    ----------
    leases
        The leases in the store.
    study
        Names the study among all.
    threads
        Where requests are made that nobody waits for.
    presence
        Knows whether the store answers.
    clock
        Gives epoch seconds.
    waits
        How long a lease lasts, and how often it is renewed.
    holder
        Name of the driver, which no other has; by default a random one.

    Attributes
    ----------
    holder
        The driver's name.
    """

    def __init__(
        self,
        leases: Leases,
        study: str,
        *,
        threads: Threads,
        presence: StorePresence,
        clock: Callable[[], float],
        waits: Waits = WAITS,
        holder: str | None = None,
    ) -> None:
        self.holder = holder or _own_name()
        self._study = study
        self._leases = leases
        self._threads = threads
        self._presence = presence
        self._clock = clock
        self._waits = waits
        # Guards all that several threads change; never held during a request.
        self._lock = threading.Lock()
        self._held: dict[str, _Held] = {}
        self._attempts_at: Counter[str] = Counter()
        self._taking: dict[str, Lease] = {}
        self._finished: deque[Lease] = deque(maxlen=MOST_ENDED)
        self._lists_ended = False
        self._known_ended: set[str] = set()
        self._recent: dict[str, tuple[float, Lease]] = {}
        self._there: tuple[HeldLeases, ...] = ()
        self._departed: tuple[HeldLeases, ...] = ()
        self._ranges = LeasedRanges()
        self._others: tuple[str, ...] = ()
        self._is_shared = False
        self._next: Future[None] | None = None
        self._readings: dict[tuple[Future[None], tuple[str, ...]], _Reading] = {}
        self._announced: Mapping[str, Lease] = {}
        self._announced_to: tuple[str, ...] = ()
        self._expires = clock() + waits.lease_seconds
        self._renewed = clock()
        self._paths: set[str] = set()

    @property
    def is_shared(self) -> bool:
        """Whether another driver was seen: only then leases have files."""
        return self._is_shared

    # ------------------------------------------------------------ taking leases

    def hold_alone(self, attempt: str, lease: Lease) -> bool:
        """Hold a lease without a file if no other driver was seen yet; return whether it is."""
        with self._lock:
            if not self._is_shared:
                self._hold(attempt, lease)
            return not self._is_shared

    def begin(self, attempt: str, lease: Lease) -> Callable[[Heeded], Lease | None]:
        """Announce a lease that is being taken; return a function that finds one around it.

        The function waits for the announcement. Of two drivers that take leases at the same
        time, the one that reads last sees the other.
        """
        with self._lock:
            self._taking[attempt] = lease
            others = self._others
        announcement = self.announce() if others else None

        def around(heeded: Heeded) -> Lease | None:
            if announcement is None:
                return None
            self._threads.wait(announcement)
            drivers = self._read(announcement, others)
            return self._ranges.around(lease, drivers, now=self._clock(), heeded=heeded)

        return around

    def _read(self, announcement: Future[None], others: tuple[str, ...]) -> list[HeldLeases]:
        """Return the leases of others after an announcement: starts that share it read once."""
        with self._lock:
            reading = self._readings.get((announcement, others))
            is_first = reading is None
            if reading is None:
                reading = _Reading()
                self._readings = {(announcement, others): reading}
        if is_first:
            try:
                reading.drivers = self._leases.drivers(others)
                reading.done.set_result(None)
            # It is raised where the reading is waited for.
            except Exception as error:  # noqa: BLE001
                reading.done.set_exception(error)
        self._threads.wait(reading.done)
        return reading.drivers

    @property
    def has_departed(self) -> bool:
        """Whether drivers that ended or died have left leases."""
        return bool(self._departed)

    def around_departed(self, lease: Lease, heeded: Heeded) -> Lease | None:
        """Return the lease around one that a driver left when it ended, or died."""
        departed = self._departed
        return self._ranges.around(lease, departed, now=self._clock(), heeded=heeded)

    def settle(self, attempt: str, lease: Lease, *, is_granted: bool) -> None:
        """Hold a lease that was being taken, if it is granted."""
        with self._lock:
            self._taking.pop(attempt, None)
            if is_granted and attempt not in self._held:
                self._hold(attempt, lease)
                self._paths.add(layout.lease_path(lease.root, lease.key))

    def _hold(self, attempt: str, lease: Lease) -> None:
        self._drop(attempt)
        self._held[attempt] = _Held(lease)
        self._attempts_at[lease.key] += 1

    def _drop(self, attempt: str) -> _Held | None:
        held = self._held.pop(attempt, None)
        if held is not None:
            self._attempts_at[held.lease.key] -= 1
            if not self._attempts_at[held.lease.key]:
                del self._attempts_at[held.lease.key]
        return held

    # ------------------------------------------------------------ what happens to them

    def change(self, attempt: str, change: Callable[[Lease], Lease]) -> None:
        """Change a lease in memory; others learn of it by the next announcement."""
        with self._lock:
            held = self._held.get(attempt)
            if held is not None:
                held.lease = change(held.lease)

    def saved(self, attempt: str, step: Step, following: str | None) -> None:
        """Record a state that is saved, and write it into the file of its lease.

        The step after it, which makes the key `following`, is leased first.
        """
        with self._lock:
            held = self._held.get(attempt)
            if held is None:
                return
            lease = held.lease
            states = tuple(sorted({*lease.saved, step}))
            held.lease = replace(lease, saved=states, step=max(lease.step, step))
            held.following, held.is_dirty = following or "", True
        if self._is_shared:
            self._write_later(held)

    def release_alone(self, attempt: str, step: Step) -> bool:
        """Release a lease without a request; return False if another driver was seen."""
        with self._lock:
            if self._is_shared:
                return False
            held = self._end(attempt, step)
            if held is not None:
                self._finished.append(held.lease)
        return True

    def release(self, attempt: str, step: Step) -> None:
        """Release the lease of an attempt that came to a step."""
        if self.release_alone(attempt, step):
            return
        with self._lock:
            held = self._end(attempt, step)
        if held is None:
            return
        self._presence.check()
        if not self._is_lost(held):
            self._leases.write(held.lease)

    def _end(self, attempt: str, step: Step) -> _Held | None:
        """Take an attempt's lease as done; return it, unless another attempt has it now."""
        held = self._drop(attempt)
        if held is None or held.lease.key in self._attempts_at:
            return None  # the next attempt at the same steps has taken it over
        key = held.lease.key
        held.lease = replace(held.lease, is_done=True, step=max(held.lease.step, step))
        self._recent.pop(key, None)
        self._recent[key] = self._clock(), held.lease
        return held

    def release_all(self) -> None:
        """Release every lease."""
        for attempt, held in list(self._held.items()):
            self.release(attempt, held.lease.step)

    def leave(self, roots: Iterable[str]) -> None:
        """Remove the object, and all files below these roots unless another driver needs them.

        Another driver does if it runs, or has files there. An object with leases that ended
        lately stays: another driver may have looked into the store before their last states
        were there.
        """
        for root in roots if self._is_shared and not self._others else ():
            there = {path for path, _ in self._leases.all(root)}
            if there <= self._paths:
                self._leases.remove(sorted(there))
        now = self._clock()
        recent = self._ended_lately(now)
        last = self._object(now, recent, ())
        if recent:
            self._leases.hold(last)
        else:
            self._leases.leave(last)

    def _ended_lately(self, now: float) -> list[Lease]:
        """Return the leases that have ended, as long as others may not know of their states."""
        since = now - self._waits.lease_seconds
        while self._recent and next(iter(self._recent.values()))[0] < since:
            del self._recent[next(iter(self._recent))]
        recent = self._recent.items()
        return [lease for key, (_, lease) in recent if key not in self._attempts_at]

    def _object(self, expires: float, leases: Iterable[Lease], sees: tuple[str, ...]) -> HeldLeases:
        return HeldLeases(
            holder=self.holder,
            study=self._study,
            expires=expires,
            leases=tuple(leases),
            sees=sees,
            lists_ended=self._lists_ended,
        )

    def note_path(self, path: str) -> None:
        """Record a further file of this driver."""
        with self._lock:
            self._paths.add(path)

    def _is_lost(self, held: _Held) -> bool:
        """Return whether a lease expired, as after a suspension, and is another driver's now."""
        now, lease = self._clock(), held.lease
        if held.is_lost or now < self._expires:
            return held.is_lost
        stored = self._leases.read(lease.root, [lease.key])[0]
        return stored is not None and stored.holder != self.holder and stored.is_held(now)

    # ------------------------------------------------------------ files

    def write_first_files(self) -> None:
        """Write the files that were not needed before another driver was seen.

        All leases that have ended stand in one of them: there may be thousands.
        """
        with self._lock:
            if not self._is_shared:
                return
            dirty = [held for held in self._held.values() if held.is_dirty]
        jobs = [self._write_later(held) for held in dirty]
        if self._finished:
            self._presence.safely(self._write_ended)
        for job in jobs:
            self._threads.wait(job)

    def _write_ended(self) -> None:
        self._presence.check()
        with self._lock:
            done = [lease for lease in self._finished if lease.key not in self._attempts_at]
        if done:
            self._leases.list_ended(self._object(self._clock(), done, ()))
        with self._lock:
            self._lists_ended = bool(done)
            self._finished.clear()

    def _write_later(self, held: _Held) -> Future[None]:
        work = self._guarded(self._write, held)
        return self._threads.do(held.lease.key, work, is_question=False)

    def _guarded(self, work: Callable[..., None], *arguments: object) -> Callable[[], None]:
        return partial(self._presence.safely, partial(work, *arguments))

    def _write(self, held: _Held) -> None:
        """Write which states were saved: the step after the last one is leased first."""
        self._presence.check()
        with self._lock:
            if not held.is_dirty or held.lease.is_done:
                return
            held.is_dirty, lease, following = False, held.lease, held.following
        try:
            if self._is_lost(held):
                return
            if following:
                self._take_part(lease.part(following))
            self._leases.write(replace(lease, expires=self._expires))
            self.note_path(layout.lease_path(lease.root, lease.key))
        except BaseException:
            held.is_dirty = True  # it is written with the next look
            raise

    def _take_part(self, part: Lease) -> None:
        if self._leases.take(part, self._clock(), heeded=None) is None:
            self.note_path(layout.lease_path(part.root, part.key))

    # ------------------------------------------------------------ the object

    def announce(self) -> Future[None]:
        """Write, and so renew, all leases that are held or being taken now: one request."""
        with self._lock:
            announcement, is_under_way = self._next, self._next is not None
            if announcement is None:
                announcement = self._next = Future()
        if not is_under_way:
            self._threads.in_turn(self._announce)
        return announcement

    def _announce(self) -> None:
        now = self._clock()
        with self._lock:
            announcement, self._next = self._next, None
            held = {attempt: held.lease for attempt, held in self._held.items() if not held.is_lost}
            # A driver is met once it can find the leases that have ended.
            leases, others = {**held, **self._taking}, () if self._finished else self._others
            written = (*leases.values(), *self._ended_lately(now))
        if announcement is None:
            return
        expires = now + self._waits.lease_seconds
        try:
            self._presence.check()
            self._leases.hold(self._object(expires, written, others))
        # It is raised where the announcement is waited for.
        except Exception as error:  # noqa: BLE001
            announcement.set_exception(error)
            return
        with self._lock:
            self._announced = leases
            self._announced_to, self._expires, self._renewed = others, expires, now
        announcement.set_result(None)

    def renew(self) -> None:
        """Renew all leases when it is time, or if other drivers would see how far they are."""
        now = self._clock()
        with self._lock:
            held = list(self._held.values())
            leases = {
                attempt: each.lease for attempt, each in self._held.items() if not each.is_lost
            }
            is_new = leases != self._announced or self._others != self._announced_to
            shows = self._is_shared and is_new
        if not shows and 0 <= now - self._renewed < self._waits.renew_seconds:
            return
        self._presence.check()
        if now >= self._expires:
            for each in held:
                each.is_lost = self._is_lost(each)
        self._threads.wait(self.announce())

    # ------------------------------------------------------------ other drivers

    def meet_others(self) -> None:
        """Write the object, and wait until the others see it, or do not answer for too long."""
        self._threads.wait(self.announce())
        end = self._threads.monotonic() + LEASE_MEET_SECONDS
        while not self._is_seen() and self._threads.monotonic() < end:
            self._threads.pause(LEASE_POLL_SECONDS[0])

    def _is_seen(self) -> bool:
        """Return whether all other drivers see this one; say in turn which ones it sees."""
        others = self.find_others()
        if self._others != self._announced_to:
            self._threads.wait(self.announce())
        return all(self.holder in driver.sees for driver in others)

    def find_others(self) -> list[HeldLeases]:
        """Return the leases of each other driver that runs.

        The first time that there is one, the files that were not needed before are due. The
        objects of drivers that ended long ago are removed: otherwise there would be one more after
        each run, to be read by all others at each look.
        """
        now = self._clock()
        there = self._leases.drivers(sorted(set(self._leases.holders()) - {self.holder}))
        drivers = [driver for driver in there if driver.study != self._study]
        others = [driver for driver in drivers if driver.is_live(now)]
        departed = self._now_departed(drivers, now)
        self._read_ended([*others, *departed])
        self._departed = self._ranges.prepare(others, departed)
        self._there = tuple(others)
        with self._lock:
            self._others = tuple(driver.holder for driver in others)
            if others and not self._is_shared:
                self._is_shared = True
                for held in self._held.values():
                    held.is_dirty = True
        stale = [each for each in there if each.expires < now - STALE_SECONDS]
        if stale:
            self._leases.leave(*stale)
        return others

    def _read_ended(self, drivers: Iterable[HeldLeases]) -> None:
        """Read, once, the leases of other drivers that ended while those were alone."""
        new = {
            driver.holder: driver
            for driver in drivers
            if driver.lists_ended and driver.holder not in self._known_ended
        }
        if not new:
            return
        for holder, ended in self._leases.ended(sorted(new)).items():
            self._ranges.remember(new[holder], ended)
        self._known_ended |= new.keys()

    def _now_departed(self, drivers: Iterable[HeldLeases], now: float) -> list[HeldLeases]:
        """Return the drivers that have ended, those that were seen before included.

        What they trained after this driver had looked into the store is known from their leases
        only, also once their objects are old, or removed.
        """
        ended = {driver.holder: driver for driver in drivers if driver.has_ended_lately(now)}
        known = {
            each.holder: each if each.expires <= now else replace(each, expires=now)
            for each in (*self._departed, *self._there)
        }
        live = {driver.holder for driver in drivers if driver.is_live(now)}
        return [each for each in {**known, **ended}.values() if each.holder not in live]


def _own_name() -> str:
    """Return a name that no other driver has; it contains the process and the host."""
    return f"{uuid4().hex}-{os.getpid()}-{layout.slug(socket.gethostname())}"

"""The leases of a driver: it leases the steps that it trains, and waits for those of others.

There is one file a driver. A driver is *alone* if it has seen no other one when it read the files
last: then it takes leases in memory, at once. Beside others it takes a lease in one round:

1. It writes its file. The file has all leases that it holds or asks for, and the names of the
   drivers that it sees.
2. It reads the files of the others. It goes on once each of them lists the name of this driver, or
   has not done so for too long: one that believed to be alone may have taken more than its file
   lists.
3. It takes the lease if none of theirs is in the way. Of two drivers that ask for the same steps,
   at least one sees the other: the one whose name comes later gives way, and the question of the
   other one stays open until the next round.

All rounds but the first are made by one thread, also when nothing is asked for: they renew the
leases, and report what others do with theirs. A failure is logged once and then ignored: without
leases drivers train the same steps twice, and nothing worse happens.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Protocol
from uuid import uuid4

from dasktune._driver.lease_messages import (
    CommitsFound,
    LeaseAnswered,
    LeaseChanged,
    LeaseMessage,
    SavesRequested,
)
from dasktune._driver.other_leases import Heeded, OtherLeases
from dasktune._engine.timeouts import (
    LEASE_MEET_SECONDS,
    LEASE_POLL_SECONDS,
    LEASE_STORE_SECONDS,
    STALE_SECONDS,
    WAITS,
    Waits,
)
from dasktune.storage import layout
from dasktune.storage.checkpoints import CheckpointStore, Commit
from dasktune.storage.files.base import Files
from dasktune.storage.files.clock import store_clock
from dasktune.storage.files.retry import Patience
from dasktune.storage.leases import HeldLeases, Lease, Leases, SaveRequest
from dasktune.types import Sequences, Step

logger = logging.getLogger(__name__)

PATIENCE = Patience(seconds=LEASE_STORE_SECONDS, request=LEASE_STORE_SECONDS)
"""How long the store is tried: training goes on without a lease that cannot be written soon."""

MOST_LISTED = 1000
"""Most ended leases, and most save requests, that the files of a driver list."""

POLL_SHARE = 0.02
"""Share of the time that reading the files of others may take."""


class Rounds(Protocol):
    """The thread of a driver's leases."""

    def repeat(self, work: Callable[[bool], float]) -> None:
        """Do a round again and again; it returns the seconds until the next time.

        Its argument is whether that time has come, or else the thread was woken.
        """

    def wake(self) -> None:
        """Begin the next round at once."""

    def stop(self) -> None:
        """End the thread after the round that is under way."""


class LeaseThread:
    """A thread of this process; see `Rounds`."""

    def __init__(self) -> None:
        self._is_stopped, self._wake = False, threading.Event()
        self._thread: threading.Thread | None = None

    def repeat(self, work: Callable[[bool], float]) -> None:
        """Do a round again and again."""
        name = "dasktune-leases"
        self._thread = threading.Thread(target=self._repeat, args=[work], name=name, daemon=True)
        self._thread.start()

    def _repeat(self, work: Callable[[bool], float]) -> None:
        due = time.monotonic() + LEASE_POLL_SECONDS[0]
        while True:
            self._wake.wait(max(0.0, due - time.monotonic()))
            self._wake.clear()
            if self._is_stopped:
                return
            is_due = time.monotonic() >= due
            try:
                seconds = work(is_due)
            # Without rounds no question would be answered: the run would wait for ever.
            except Exception:
                logger.exception("a round of the leases failed; the next one is tried")
                seconds = LEASE_POLL_SECONDS[1]
            following = time.monotonic() + seconds
            due = following if is_due else min(due, following)

    def wake(self) -> None:
        """Begin the next round at once."""
        self._wake.set()

    def stop(self) -> None:
        """End the thread after the round that is under way."""
        self._is_stopped = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()


class Leasing:
    """The leases of one run of a study; `put` takes messages from the thread of the leases.

    `clock` gives epoch seconds, by default those of the store's clock. By default the store is
    opened again and tried for a short time only, the thread is one of this process, and the driver
    has a random name, `holder`, which no other has.
    """

    def __init__(
        self,
        store: CheckpointStore,
        study: str,
        put: Callable[[LeaseMessage], None],
        *,
        clock: Callable[[], float] | None = None,
        waits: Waits = WAITS,
        files: Files | None = None,
        rounds: Rounds | None = None,
        holder: str | None = None,
    ) -> None:
        if files is None:
            store = CheckpointStore(store.url, PATIENCE)
            files = store.files
        self.holder = holder or _own_name()
        self.study = study
        self._store = store
        self._leases = Leases(files)
        self._put = put
        self._clock = clock or store_clock(files)
        self._waits = waits
        self._rounds = rounds or LeaseThread()
        # Guards all below that two threads use; never held during a request.
        self._lock = threading.Lock()
        self._held: dict[str, Lease] = {}
        self._asked: dict[str, tuple[Lease, Heeded, float]] = {}
        """The open lease requests by attempt, each with its time."""
        self._ended: deque[Lease] = deque(maxlen=MOST_LISTED)
        self._watched: dict[str, Lease] = {}
        self._questions: list[tuple[str, Mapping[Step, str]]] = []
        self._requests: deque[SaveRequest] = deque(maxlen=MOST_LISTED)
        self._requests_made = self._requests_written = 0
        self._others = OtherLeases(self.holder, study)
        self._alive = self._clock()
        # Of the thread alone, after the first round.
        self._has_begun = False
        self._holders: list[str] = []
        self._written = HeldLeases(holder=self.holder, study=study, expires=0.0)
        self._requests_seen: dict[str, int] = {}
        self._failed_at = -PATIENCE.seconds
        self._has_failed = False

    # ------------------------------------------------------------ from the driver's loop

    def lease(
        self,
        *,
        key: str,
        first: str,
        sequences: Sequences,
        start: Step,
        stop: Step,
        saves: Iterable[Step] = (),
    ) -> Lease:
        """Return a lease of this driver, not yet taken; see `Lease`."""
        return Lease(
            holder=self.holder,
            key=key,
            first=first,
            sequences=sequences,
            start=start,
            stop=stop,
            step=start,
            saves=tuple(saves),
        )

    def take(self, attempt: str, lease: Lease, heeded: Heeded = ()) -> LeaseAnswered | None:
        """Take a lease at once, if this driver is alone or the store does not answer.

        Otherwise return None: it must be asked for. A lease without steps is always taken. `heeded`
        are leases to leave out: marks of ended ones whose states are known here, and names of
        others that the driver does not wait for any more.
        """
        if not self._has_begun:
            self._has_begun = True
            self._round()
            self._rounds.repeat(self._round)
        with self._lock:
            if self.is_shared and not self._is_away():
                return None
            return self._decide(attempt, lease, heeded, may_wait=False)

    def ask(self, attempt: str, lease: Lease, heeded: Heeded = ()) -> None:
        """Request a lease, as `take` does; answers are messages, in the order of the requests."""
        with self._lock:
            self._asked[attempt] = lease, heeded, self._clock()
        self._rounds.wake()

    @property
    def is_shared(self) -> bool:
        """Whether another driver was seen."""
        return bool(self._others.live)

    def is_over(self, lease: Lease) -> bool:
        """Return whether no driver trains the steps of a lease any more."""
        return lease.is_done or self._others.current(lease, self._clock()).is_done

    def beat(self) -> None:
        """Record that the driver's loop is alive: leases are renewed only while it is."""
        self._alive = self._clock()

    def reached(self, attempt: str, step: Step) -> None:
        """Record how far an attempt has come."""
        self._change(attempt, lambda lease: replace(lease, step=max(lease.step, step)))

    def plan_saves(self, attempt: str, saves: Iterable[Step]) -> None:
        """Record the steps at which an attempt is going to save its state."""
        steps = tuple(saves)
        self._change(attempt, lambda lease: replace(lease, saves=steps))

    def saved(self, attempt: str, step: Step) -> None:
        """Record a state that an attempt has saved, and show it to others at once."""

        def with_state(lease: Lease) -> Lease:
            saved = tuple(sorted({*lease.saved, step}))
            return replace(lease, saved=saved, step=max(lease.step, step))

        self._change(attempt, with_state)
        self._show()

    def release(self, attempt: str, step: Step) -> None:
        """Release the lease of an attempt that came to a step and trains no more."""
        self.reached(attempt, step)
        with self._lock:
            lease = self._held.pop(attempt, None)
            # The next attempt at the same steps may have taken it over.
            if lease is None or any(each.key == lease.key for each in self._held.values()):
                return
            if lease.step > lease.start:
                self._ended.append(lease.ended())

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
        with self._lock:
            self._questions.append((attempt, keys))
        self._rounds.wake()

    def want(self, requests: Iterable[SaveRequest]) -> None:
        """Ask other drivers for states."""
        with self._lock:
            for request in requests:
                self._requests.append(request)
                self._requests_made += 1
        self._show()

    def close(self) -> None:
        """Release all leases.

        The file stays if it lists ended leases: another driver may have looked into the store
        before their last states were there.
        """
        if not self._has_begun:
            return
        self._rounds.stop()
        for attempt, lease in list(self._held.items()):
            self.release(attempt, lease.step)
        self._safely(self._leave)

    def _change(self, attempt: str, change: Callable[[Lease], Lease]) -> None:
        """Change a lease in memory; others see that after the next round."""
        with self._lock:
            if attempt in self._held:
                self._held[attempt] = change(self._held[attempt])

    def _show(self) -> None:
        if self.is_shared:
            self._rounds.wake()

    # ------------------------------------------------------------ rounds

    def _round(self, is_due: bool = True) -> float:
        """Write and read once, and answer; return the seconds until the next time."""
        began = self._clock()
        with self._lock:
            asked = [*self._asked]
        self._safely(partial(self._exchange, began, is_due))
        self._answer(asked)
        self._answer_look_ups()
        self._compare_watched()
        least, longest = LEASE_POLL_SECONDS
        if self._asked or {each.holder for each in self._others.live} != {*self._written.sees}:
            return least  # others wait to be seen
        return min(longest, max(least, (self._clock() - began) / POLL_SHARE))

    def _exchange(self, now: float, is_due: bool) -> None:
        """Write this driver's files, and read those of the others."""
        if self.is_shared and self._requests_written < self._requests_made:
            with self._lock:
                made, requests = self._requests_made, [*self._requests]
            self._leases.request_saves(self.holder, made, requests)
            self._requests_written = made
        held = self._file(now + self._waits.lease_seconds)
        if self._must_write(held, now):
            self._leases.hold(held)
            self._written = held
        if is_due:
            self._holders = sorted({*self._leases.holders()} - {self.holder})
        drivers = self._leases.drivers(self._holders)
        with self._lock:
            self._others.read(drivers, now)
        stale = [each.holder for each in drivers if each.expires < now - STALE_SECONDS]
        if stale:
            self._leases.leave(*stale)
        self._read_requests()

    def _file(self, expires: float) -> HeldLeases:
        with self._lock:
            asked = [replace(lease, is_asked=True) for lease, *_ in self._asked.values()]
            return HeldLeases(
                holder=self.holder,
                study=self.study,
                expires=expires,
                leases=(*self._ended, *asked, *self._held.values()),
                sees=tuple(each.holder for each in self._others.live),
                requests=self._requests_written,
            )

    def _must_write(self, held: HeldLeases, now: float) -> bool:
        """Whether others wait for this driver's file, or it is time to renew it."""
        if abs(now - self._alive) > self._waits.lease_seconds:
            return False  # the loop may be dead, or the clock was set
        is_new = replace(held, expires=self._written.expires) != self._written
        renewed = self._written.expires - self._waits.lease_seconds
        is_old = not 0 <= now - renewed < self._waits.renew_seconds
        return is_old or (is_new and (self.is_shared or bool(self._written.sees)))

    def _read_requests(self) -> None:
        """Read the save requests of the others that are new."""
        for driver in self._others.live:
            seen = self._requests_seen.get(driver.holder, 0)
            if driver.requests > seen:
                requests = tuple(self._leases.save_requests(driver.holder, seen))
                self._requests_seen[driver.holder] = driver.requests
                if requests:
                    self._put(SavesRequested(requests=requests))

    def _answer(self, asked: Iterable[str]) -> None:
        """Answer the lease requests that are older than the last reading of the others' files."""
        now, is_away = self._clock(), self._is_away()
        with self._lock:
            if self._others.may_answer(now) or is_away:
                for attempt in asked:
                    lease, heeded, since = self._asked[attempt]
                    may_wait = not is_away and 0 <= now - since < LEASE_MEET_SECONDS
                    answer = self._decide(attempt, lease, heeded, may_wait=may_wait)
                    if answer is None:
                        return  # answers are given in order
                    del self._asked[attempt]
                    self._put(answer)

    def _decide(
        self, attempt: str, lease: Lease, heeded: Heeded, *, may_wait: bool
    ) -> LeaseAnswered | None:
        """Return the answer to a lease request; None while another driver still has to give way.

        That driver asks for the same steps. The wait is short: it may be dead, or not reach the
        store.
        """
        now = self._clock()
        other = self._others.in_the_way(lease, heeded, now)
        if other is not None and other.is_asked and self.holder < other.holder:
            if may_wait:
                return None
            other = self._others.in_the_way(lease, heeded, now, but_later=True)
        if other is None and lease.start < lease.stop:
            self._held[attempt] = lease
        return LeaseAnswered(attempt=attempt, other=other)

    def _compare_watched(self) -> None:
        """Report each watched lease that has changed or ended."""
        with self._lock:
            for attempt, before in list(self._watched.items()):
                lease = self._others.current(before, self._clock())
                if lease.mark != before.mark:
                    self._watched[attempt] = lease
                    self._put(LeaseChanged(attempt=attempt, lease=lease))
                if lease.is_done:
                    del self._watched[attempt]

    def _answer_look_ups(self) -> None:
        with self._lock:
            questions, self._questions = self._questions, []
        keys = {key for _, question in questions for key in question.values()}
        commits: dict[str, Commit] = {}
        if keys:
            self._safely(lambda: commits.update(self._store.commits(sorted(keys))))
        for attempt, question in questions:
            there = {step: commits[key] for step, key in question.items() if key in commits}
            self._put(CommitsFound(attempt=attempt, commits=there))

    def _leave(self) -> None:
        last = self._file(self._clock())
        if last.leases:
            self._leases.hold(replace(last, sees=()))
        else:
            self._leases.leave(self.holder)

    def _safely(self, work: Callable[[], None]) -> None:
        """Do a job unless the store has just failed; log the first failure, and raise none."""
        if self._is_away():
            return
        try:
            work()
        # The driver waits for answers: whatever a store may do, the thread goes on.
        except Exception as error:  # noqa: BLE001
            self._failed_at = self._clock()
            if not self._has_failed:
                self._has_failed = True
                logger.warning(
                    "leases cannot be used: other drivers might train the same steps: %s", error
                )

    def _is_away(self) -> bool:
        """Whether the store has just failed: each try may take as long as the patience."""
        return 0 <= self._clock() - self._failed_at < PATIENCE.seconds


def _own_name() -> str:
    """Return a name that no other driver has; it contains the process and the host."""
    return f"{uuid4().hex}-{os.getpid()}-{layout.slug(socket.gethostname())}"

"""The leases of a driver: it leases the steps that it trains, and watches leases of others.

All of it goes through files in the store, in threads of its own: the driver's loop asks and
goes on, and receives the answers as messages. A failure is logged once and then ignored:
without leases drivers train the same steps twice, and nothing worse happens.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial

from dasktune.driver.lease_messages import CommitsFound, LeaseAnswered, LeaseMessage
from dasktune.driver.lease_requests import SaveRequests
from dasktune.driver.lease_threads import PATIENCE, LeaseThreads, StorePresence, Threads
from dasktune.driver.lease_upkeep import LeaseUpkeep
from dasktune.driver.own_leases import OwnLeases
from dasktune.engine.timeouts import STALE_SECONDS, WAITS, Waits
from dasktune.storage import layout
from dasktune.storage.checkpoints import CheckpointStore, Commit
from dasktune.storage.files.base import Files
from dasktune.storage.files.clock import store_clock
from dasktune.storage.files.objects import open_files
from dasktune.storage.leases import Lease, LeaseMark, LeaseName, Leases, SaveRequest
from dasktune.types import Sequences, Step


class Leasing:
    """The leases of one run.

    While this driver has seen no other driver, it grants and releases leases at once, without
    requests and files. When another driver appears, it writes the files. From then on a thread of
    its own answers each question, those about the same key one after the other. One more thread
    renews held leases and reads watched ones, again and again; questions do not wait for it.

    A driver that begins writes its object, and waits until each of the others says in its own that
    it sees it: from then on both write files.

    Parameters
    ----------
    store
        Shared with the other drivers.
    study
        Names the study among all.
    put
        Takes the messages; called from the threads of the leases.
    clock
        Gives epoch seconds; by default those of the store's clock.
    waits
        How long a lease lasts, and how often it is renewed.
    files
        The store's files; by default they are opened again, and tried for a short time only.
    threads
        Where requests are made; by default in threads of this process.
    holder
        Name of this driver, which no other has; by default a random one.
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
        threads: Threads | None = None,
        holder: str | None = None,
    ) -> None:
        self.study = study
        self._lease_seconds = waits.lease_seconds
        self._store = store
        files = files or open_files(store.url, patience=PATIENCE)
        self._leases = Leases(files)
        self._put = put
        clock = self._clock = clock or store_clock(files)
        self._threads = threads or LeaseThreads()
        self._presence = StorePresence(clock)
        self._keys: dict[str, str] = {}
        self._roots: set[str] = set()
        self._known: set[str] = set()
        self._knowing = self._threads.lock()  # one thread learns of a root
        self._alive = clock()
        self._own = OwnLeases(
            self._leases,
            study,
            threads=self._threads,
            presence=self._presence,
            clock=clock,
            waits=waits,
            holder=holder,
        )
        self.holder = self._own.holder
        self._requests = SaveRequests(self._leases, self.holder, self._own.note_path, self._threads)
        self._upkeep = LeaseUpkeep(
            self._leases,
            self._own,
            self._requests,
            roots=self._roots,
            put=put,
            is_alive=lambda: self._clock() - self._alive <= self._lease_seconds,
            threads=self._threads,
            presence=self._presence,
            clock=clock,
        )
        self._threads.repeat(self._upkeep.look)

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
            expires=self._clock() + self._lease_seconds,
        )

    def grant(self, attempt: str, lease: Lease) -> bool:
        """Take a lease at once if that needs no request: no other driver was seen.

        Otherwise return False: it must be asked for.
        """
        is_alone = lease.root in self._known and not self._own.has_departed
        if not (is_alone and self._own.hold_alone(attempt, lease)):
            return False
        self._keys[attempt] = lease.key
        return True

    def ask(
        self, attempt: str, lease: Lease, *, heeded: Collection[LeaseMark | LeaseName] = ()
    ) -> None:
        """Ask for a lease; the answer is a message.

        Parameters
        ----------
        attempt
            The attempt that it is for.
        lease
            The lease.
        heeded
            Marks of ended leases whose states are known, and names of leases that are past.
        """
        self._keys[attempt] = lease.key
        self._do(attempt, partial(self._take, attempt, lease, heeded))

    @property
    def is_shared(self) -> bool:
        """Whether another driver was seen."""
        return self._own.is_shared

    def is_over(self, lease: Lease) -> bool:
        """Whether nobody trains the steps of a lease any more."""
        return not lease.is_held(self._clock())

    def beat(self) -> None:
        """Record that the driver's loop is alive: leases are renewed only while it is."""
        self._alive = self._clock()

    def reached(self, attempt: str, step: Step) -> None:
        """Record how far an attempt has come."""
        self._own.change(attempt, lambda lease: replace(lease, step=max(lease.step, step)))

    def plan_saves(self, attempt: str, saves: Iterable[Step]) -> None:
        """Record the steps at which an attempt is going to save its state."""
        steps = tuple(saves)
        self._own.change(attempt, lambda lease: replace(lease, saves=steps))

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
        self._own.saved(attempt, step, following)

    def release(self, attempt: str, step: Step) -> None:
        """Release the lease of an attempt that came to a step and trains no more."""
        if not self._own.release_alone(attempt, step):
            self._do(attempt, partial(self._own.release, attempt, step))
        self._keys.pop(attempt, None)

    def watch(self, attempt: str, other: Lease) -> None:
        """Watch the lease of another driver; every change is a message."""
        self._upkeep.watch(attempt, other)

    def ignore(self, attempt: str) -> None:
        """Watch the lease of another driver no longer."""
        self._upkeep.ignore(attempt)

    def look_up(self, attempt: str, keys: Mapping[Step, str]) -> None:
        """Ask for the commits of keys by step; the answer is a message."""
        self._do(attempt, partial(self._look_up, attempt, keys))

    def want(self, root: str, paths: Iterable[SaveRequest]) -> None:
        """Ask other drivers for states below a root."""
        self._requests.want(root, paths)
        self._threads.wake()

    def flush(self) -> None:
        """Wait until all that was asked for is done, and then look after the leases once."""
        self._threads.settle()
        self._upkeep.look()

    def close(self) -> None:
        """Release all leases; remove all files if no other driver has any here."""
        self.flush()
        self._threads.stop()
        self._threads.settle()
        self._presence.safely(self._end)
        self._threads.close()

    # ------------------------------------------------------------ questions

    def _do(self, attempt: str, work: Callable[[], None]) -> None:
        key = self._keys.get(attempt, attempt)
        self._threads.do(key, partial(self._presence.safely, work))

    def _take(self, attempt: str, lease: Lease, heeded: Collection[LeaseMark | LeaseName]) -> None:
        other, is_inside = None, False
        try:
            self._presence.check()
            self._know(lease.root)
            other = self._own.around_departed(lease, heeded)
            if other is None and not self._own.hold_alone(attempt, lease):
                other, is_inside = self._take_beside_others(attempt, lease, heeded)
        finally:
            self._own.settle(attempt, lease, is_granted=other is None)
            self._put(LeaseAnswered(attempt=attempt, other=other))
        if is_inside:
            self._leases.remove([layout.lease_path(lease.root, lease.key)])

    def _take_beside_others(
        self, attempt: str, lease: Lease, heeded: Collection[LeaseMark | LeaseName]
    ) -> tuple[Lease | None, bool]:
        """Take a lease; return the lease that prevents it, and whether a file was made in vain.

        The lease is announced while its file is created: three requests in a row at most.
        """
        around_others = self._own.begin(attempt, lease)
        other = self._leases.take(lease, self._clock(), heeded=heeded)
        if other is not None:
            return other, False
        around = around_others(heeded)
        return around, around is not None

    def _know(self, root: str) -> None:
        """Read the files of other drivers below a root, before the first lease there is taken."""
        if root in self._known:
            return
        with self._knowing:
            if root in self._roots:
                return
            if not self._roots:
                self._own.meet_others()
            self._roots.add(root)
            oldest = self._clock() - STALE_SECONDS
            old = [path for path, when in self._leases.all(root) if 0 < when < oldest]
            self._leases.remove(old)
            if self._own.is_shared:
                self._requests.write([root])
            self._upkeep.listen()
            self._known.add(root)

    def _look_up(self, attempt: str, keys: Mapping[Step, str]) -> None:
        commits_by_step: dict[Step, Commit] = {}
        try:
            self._presence.check()
            commits = self._store.commits(keys.values())
            commits_by_step = {step: commits[key] for step, key in keys.items() if key in commits}
        finally:
            self._put(CommitsFound(attempt=attempt, commits=commits_by_step))

    def _end(self) -> None:
        self._presence.check()
        self._own.release_all()
        if self._roots:
            self._own.leave(self._roots)

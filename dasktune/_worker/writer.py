"""The writer of a worker: a thread writes states to the store while training goes on."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dasktune._worker.errors_in_words import sendable
from dasktune._worker.messages import (
    StageEnded,
    StageMessage,
    StateOmitted,
    StateSaved,
    StepMetrics,
    StoreFailed,
)
from dasktune.errors import StorageError, text_of
from dasktune.storage.buffers import Buffer, empty
from dasktune.storage.checkpoints import CheckpointStore, Commit
from dasktune.storage.codec import Snapshot
from dasktune.trainer.proof.proof import packed
from dasktune.types import Step

Emit = Callable[[list[StageMessage]], None]

PENDING_WRITES = 2
"""Snapshots that may wait while one is being written: the next one makes training wait."""

PENDING_BYTES = 2**30
"""Bytes of all snapshots that lie in memory, unless a writer is given another number."""

SPARE_BYTES = 2**29
"""Largest snapshot whose memory is kept for the next one: fresh memory costs another copy."""

MEASURED_SAVES = 3
"""Saves of a writer before it takes the shortest of them for the cost of a save.

One alone may have waited for a disk that was busy. And a study of a few trials, such as one of a
tutorial, stores all of their ends, whatever its workers measure.
"""


@dataclass(slots=True, kw_only=True)
class Ancestry:
    """The last commit of a live trainer, as the writing thread knows it; this holds no trainer.

    The writing thread alone changes it. The thread that trains reads `is_lost`: an old answer costs
    it a step.
    """

    parent: str | None
    """Digest of the last commit."""
    is_lost: bool = False
    """Whether another attempt's different state was committed under one of its keys."""


@dataclass(slots=True, kw_only=True)
class StateWrite:
    """A snapshot on its way to the store, with all that its commit says."""

    ancestry: Ancestry
    snapshot: Snapshot
    attempt: str
    key: str
    step: Step
    reports: list[StepMetrics]
    paces: list[float]
    seconds: float
    began: float
    hold_up: float
    suspended: float | None
    """When training was told to end, or ended (`time.monotonic`); None if it goes on."""
    proof: Mapping[str, str]
    replaces: bool
    """Whether a different state that an earlier attempt committed is replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Omission:
    """A message that a state is not stored, which waits until the states before it are."""

    ancestry: Ancestry
    message: StateOmitted


class StateWriter:
    """Writes states to a store, and reports on them, one after the other in its own thread.

    A snapshot that is larger than `pending_bytes` waits until no other one is in memory.
    """

    def __init__(
        self,
        store: CheckpointStore,
        emit: Emit,
        *,
        environment: Mapping[str, object],
        pending_bytes: int = PENDING_BYTES,
    ) -> None:
        self.store = store
        self._emit = emit
        self._environment = environment
        self._pending_bytes = pending_bytes
        #: Holds the lock of the next three attributes; notified when a state is written.
        self._written = threading.Condition()
        #: The keys of states that are neither stored nor given up. Added by the thread that
        #: trains, removed by the writing thread.
        self._unwritten: set[str] = set()
        #: The bytes of the snapshots that are not written yet; changed as `_unwritten` is.
        self._pending: list[int] = []
        #: Memory for the next snapshot. Put here by the writing thread, taken by the other one.
        self._spare: Buffer | None = None
        #: How many saves there were, and the time of the shortest. The writing thread alone writes
        #: them, the number last: who sees enough saves sees their shortest time.
        self.saves, self.shortest_seconds = 0, math.inf
        self._queue: queue.Queue[StateWrite | _Omission | None] = queue.Queue()
        self.thread = threading.Thread(target=self._write_all, name="dasktune-writer", daemon=True)

    def start(self) -> None:
        """Start the thread; its host calls this once it is whole."""
        self.thread.start()

    # ------------------------------------------------------------ other threads

    @property
    def is_busy(self) -> bool:
        """Whether a state is on its way to the store."""
        return bool(self._unwritten)

    @property
    def save_seconds(self) -> float:
        """The time that a save takes; 0 as long as there were fewer than `MEASURED_SAVES`."""
        return self.shortest_seconds if self.saves >= MEASURED_SAVES else 0.0

    def room_for(self, nbytes: int) -> Buffer:
        """Return memory for a snapshot; waits while too many, or too large ones, are pending."""
        with self._written:
            self._written.wait_for(lambda: self._has_room_for(nbytes))
            spare, self._spare = self._spare, None
        return spare if spare is not None and spare.nbytes == nbytes else empty(nbytes)

    def _has_room_for(self, nbytes: int) -> bool:
        pending = self._pending
        is_little = len(pending) <= PENDING_WRITES and sum(pending) + nbytes <= self._pending_bytes
        return not pending or is_little

    def write(self, write: StateWrite) -> None:
        """Hand a snapshot to the writing thread."""
        with self._written:
            self._unwritten.add(write.key)
            self._pending.append(write.snapshot.nbytes)
        self._queue.put(write)

    def omit(self, ancestry: Ancestry, message: StateOmitted) -> list[StageMessage]:
        """Return the message of an omitted state; an empty list if earlier states come first."""
        with self._written:
            if not self._unwritten:
                return [] if ancestry.is_lost else [message]
            self._unwritten.add(message.key)
        self._queue.put(_Omission(ancestry=ancestry, message=message))
        return []

    def load(self, key: str) -> tuple[Any, Commit]:
        """Return a stored state, and its commit, once it is no longer on its way to the store."""
        with self._written:
            self._written.wait_for(lambda: key not in self._unwritten)
        return self.store.load(key)

    def finish(self, timeout: float) -> None:
        """Wait until all snapshots are in the store."""
        with self._written:
            self._written.wait_for(lambda: not self._unwritten, timeout)

    def close(self, timeout: float) -> None:
        """Write the pending states, and end the thread."""
        self._queue.put(None)
        self.thread.join(timeout)

    # ------------------------------------------------------------ the writing thread

    def _write_all(self) -> None:
        while (write := self._queue.get()) is not None:
            if isinstance(write, _Omission):
                self._report_omission(write)
                continue
            try:
                self._write(write)
            except Exception as error:  # noqa: BLE001 - a dead writer would hold up training
                message = sendable(text_of(error))
                if not isinstance(error, StorageError):
                    message = f"{type(error).__name__}: {message}"
                self._emit([StoreFailed(attempt=write.attempt, message=message)])
            finally:
                key, nbytes = write.key, write.snapshot.nbytes
                spare = write.snapshot.data if nbytes <= SPARE_BYTES else None
                del write  # and with it a large snapshot, before the next one takes its room
                with self._written:
                    self._spare = spare
                    self._unwritten.discard(key)
                    self._pending.remove(nbytes)
                    self._written.notify_all()
                del spare

    def _report_omission(self, omission: _Omission) -> None:
        message = omission.message
        if omission.ancestry.is_lost:
            self._report_loss(message.attempt, message.step)
        else:
            self._emit([message])
        with self._written:
            self._unwritten.discard(message.key)
            self._written.notify_all()

    def _report_loss(self, attempt: str, step: Step) -> None:
        self._emit([StageEnded(attempt=attempt, step=step, status="lost", at=time.time())])

    def _write(self, write: StateWrite) -> None:
        ancestry, attempt = write.ancestry, write.attempt
        if ancestry.is_lost:
            self._report_loss(attempt, write.step)
            return
        commit = self._commit(write)
        if write.replaces and commit.digest != write.snapshot.digest:
            # A trial that always begins at step 0 cannot go on from the state that came first, and
            # would meet it each time.
            self.store.discard(write.key, attempt=commit.attempt)
            commit = self._commit(write)
        ancestry.parent = commit.digest
        # The same bits under another name are no conflict: this trainer holds the state.
        ancestry.is_lost = commit.attempt != attempt and commit.digest != write.snapshot.digest
        reports = write.reports
        if ancestry.is_lost:
            stored = dict(commit.reports)
            reports = [(s, key, stored[s]) for s, key, _ in write.reports if s in stored]
        self._emit(
            [
                StateSaved(
                    attempt=attempt,
                    step=write.step,
                    key=write.key,
                    by=commit.attempt,
                    digest=commit.digest,
                    nbytes=commit.nbytes,
                    seconds=write.seconds,
                    reported=tuple([step for step, _, _ in reports]),  # no call for each
                    replaced=tuple(reports) if ancestry.is_lost else (),
                    paces=() if ancestry.is_lost else tuple(write.paces),
                    differs=ancestry.is_lost,
                    hold_up=write.hold_up,
                    latency=time.monotonic() - write.began,
                    suspend_seconds=None
                    if write.suspended is None
                    else time.monotonic() - write.suspended,
                    snapshot_bytes=write.snapshot.stored_nbytes,
                )
            ]
        )

    def _commit(self, write: StateWrite) -> Commit:
        """Save a snapshot; return the commit of its key, which may be another attempt's."""
        began = time.monotonic()
        commit = self.store.save(
            write.snapshot,
            key=write.key,
            attempt=write.attempt,
            step=write.step,
            parent=write.ancestry.parent,
            reports=[(step, metrics) for step, _, metrics in write.reports],
            environment=self._environment,
            seconds=write.seconds,
            proof=packed(write.proof) if write.proof else "",
        )
        self.shortest_seconds = min(self.shortest_seconds, time.monotonic() - began)
        self.saves += 1
        return commit

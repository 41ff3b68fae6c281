"""The host of stages on a worker: one stage or audit trains at a time, and other threads stop it.

A `StageHost` lives in a worker process as long as a run does, or until the worker closes. It
brings together the trainers (`dasktune._worker.trainers`), the writer of states
(`dasktune._worker.writer`) and the present stage (`dasktune._worker.stage_run`). It knows no Dask:
`dasktune._worker.plugin` connects it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from dasktune._worker.audit import AuditRun
from dasktune._worker.control import Control
from dasktune._worker.errors_in_words import is_out_of_memory, spoils_process, where
from dasktune._worker.job import AuditSpec, Job, StageSpec
from dasktune._worker.messages import AuditEnded, StageEnded
from dasktune._worker.peers import Lenders
from dasktune._worker.printed import Printer
from dasktune._worker.shared_device import free_unused
from dasktune._worker.stage_run import StageRun
from dasktune._worker.step_watch import StepWatch
from dasktune._worker.trainers import Trainers
from dasktune._worker.writer import Emit, StateWriter
from dasktune.errors import InternalError
from dasktune.storage.checkpoints import CheckpointStore

Receipt = TypeVar("Receipt", covariant=True)

PAST_ATTEMPTS = 1000
"""Ended attempts that are remembered, for messages that come too late for them."""


class HostedWork(Protocol[Receipt]):
    """Training that a host carries out, one at a time."""

    def train(self) -> Receipt:
        """Train to the end, or to where it is told to stop."""

    def failure(self, error: BaseException) -> Receipt:
        """Return the receipt of training that raised."""

    def overdue(self, seconds: float, where: str) -> None:
        """Report that a step took longer than so many seconds."""


class StageHost:
    """Trains stages in this process, one at a time.

    `emit` takes lists of messages, from the thread that trains and from the writing thread. `leave`
    is called when this process can train no more, before its failure is reported. Without
    `workers` no other worker can train with this one.
    """

    def __init__(
        self,
        job: Job,
        emit: Emit,
        leave: Callable[[], None] = lambda: None,
        *,
        store: CheckpointStore | None = None,
        writer: StateWriter | None = None,
        workers: Lenders | None = None,
    ) -> None:
        self.job = job
        self._emit = emit
        self._leave = leave
        self._workers = workers
        self._printer = Printer()
        self.writer = writer or StateWriter(
            store or CheckpointStore(job.store), emit, environment=job.environment
        )
        self.watch = StepWatch()
        self.trainers = Trainers(job, self.writer, self.watch, workers)
        self._lock = threading.RLock()
        #: Notified under the lock when a stage or an audit ends.
        self._ended = threading.Condition(self._lock)
        #: The orders to attempts, and the ended ones; any thread, under the lock.
        self._controls: dict[str, Control] = {}
        self._past: dict[str, None] = {}
        #: The attempt that runs. The thread that trains writes it under the lock.
        self._running: str | None = None
        #: Its work, and the thread that trains it. Written by that thread before its first step and
        #: after its last. The event loop reads the work before the step's begin (`give_up`): so a
        #: new step is never taken for a long one of the work before.
        self._work: HostedWork[Any] | None = None
        self._thread = 0
        #: Whether this process, or this host, trains no more; set once, by any thread.
        self._is_spoiled = False
        self._is_closed = False
        self.writer.start()

    @property
    def store(self) -> CheckpointStore:
        """The store of the study's states."""
        return self.writer.store

    @property
    def is_busy(self) -> bool:
        """Whether a stage runs here, or a state is on its way to the store."""
        return self._running is not None or self.writer.is_busy

    # ------------------------------------------------------------ the thread that trains

    def run(self, spec: StageSpec) -> StageEnded:
        """Train one stage; return a receipt. Errors of user code come back as data."""
        stage = StageRun(
            spec,
            self._new_control(spec.attempt),
            job=self.job,
            trainers=self.trainers,
            writer=self.writer,
            watch=self.watch,
            emit=self._emit,
        )
        with self._printer.prints_to(stage.log):
            receipt = self._carry_out(stage, spec.attempt)
        return self.skip(spec) if receipt is None else receipt

    def skip(self, spec: StageSpec) -> StageEnded:
        """Return the receipt of a stage whose predecessor did not get to its end."""
        with self._lock:
            self._forget(spec.attempt)
        receipt = StageEnded(
            attempt=spec.attempt, step=spec.start, status="skipped", at=time.time()
        )
        self._emit([receipt])
        return receipt

    def audit(self, spec: AuditSpec) -> AuditEnded:
        """Train steps again that are trained already, and compare; nothing is saved or sent.

        No stage can go on from the trainer that was kept before: both may have used the
        generators of this process.
        """
        name = spec.stage.attempt
        audit = AuditRun(
            spec,
            self._new_control(name),
            job=self.job,
            trainers=self.trainers,
            writer=self.writer,
            watch=self.watch,
        )
        was_warm = self.trainers.drop()
        began = time.monotonic()
        receipt = self._carry_out(audit, name)
        if receipt is None:
            with self._lock:
                self._forget(name)
            return audit.dropped()
        seconds = time.monotonic() - began
        return replace(receipt, seconds=seconds + audit.start_seconds * was_warm)

    def _new_control(self, attempt: str) -> Control:
        control = self.control(attempt)
        if control is None:
            raise InternalError(f"attempt {attempt} was run here before")
        return control

    def _carry_out(self, work: HostedWork[Receipt], attempt: str) -> Receipt | None:
        """Train in this thread; return the receipt, or None once the host is closed."""
        with self._lock:  # what began before the host was closed is waited for
            if self._is_spoiled or self._is_closed:
                return None
            self._work, self._running = work, attempt
        self._thread = threading.get_ident()
        self.trainers.take_over_thread()
        if self._workers is not None:
            self._workers.reclaim()
        is_full = False
        try:
            return work.train()
        except BaseException as error:  # noqa: BLE001 - SystemExit in user code kills a worker
            self.trainers.drop()
            is_full = is_out_of_memory(error)
            if spoils_process(error):
                self._is_spoiled = True
                self._leave()
            return work.failure(error)
        finally:
            self._work = None
            self.watch.end()
            if is_full:
                free_unused(self.job.device)  # the error, which held the trainer, is gone by now
            with self._lock:
                self._forget(attempt)
                self._running = None
                self._ended.notify_all()

    def _forget(self, attempt: str) -> None:
        self._controls.pop(attempt, None)
        self._past[attempt] = None
        if len(self._past) > PAST_ATTEMPTS:
            del self._past[next(iter(self._past))]

    # ------------------------------------------------------------ other threads

    def control(self, attempt: str) -> Control | None:
        """Return the control of an attempt that runs or will run here; None if it ended."""
        with self._lock:
            if attempt in self._past:
                return None
            return self._controls.setdefault(attempt, Control())

    def abandon(self, attempt: str) -> None:
        """Stop an attempt that nobody waits for any more, and drop its trainer."""
        control = self.control(attempt)
        if control is not None:
            control.is_abandoned = True
            control.stop(None)
            if self._running == attempt:
                self._break_off_audit()
        self.trainers.drop()

    def _break_off_audit(self) -> None:
        """End an audit on several workers within its present step: it saves nothing.

        Else it would wait for minutes if another worker hangs.
        """
        if self._workers is not None and isinstance(self._work, AuditRun):
            self._workers.give_back()

    def give_up(self, seconds: float, *, stood_still: float = 0.0) -> None:
        """Report a step that takes longer than so many seconds; this process trains no more then.

        `stood_still` are the seconds since the last call in which this process did nothing at all.
        """
        work = self._work
        if work is None or not self.watch.is_overdue(seconds, stood_still):
            return
        self._is_spoiled = True
        stack = where(self._thread)
        self._leave()
        work.overdue(seconds, stack)

    def close(self, timeout: float) -> None:
        """End the running stage at its next step, and write the pending states.

        Stages that begin from now on are skipped: what they trained would be lost.
        """
        deadline = time.monotonic() + timeout
        with self._lock:
            self._is_closed = True
            for control in self._controls.values():
                control.stop(None)
            self._break_off_audit()
            self._ended.wait_for(lambda: not self._running, timeout)
        self.trainers.drop()
        self.writer.close(max(0.0, deadline - time.monotonic()))

"""The host of stages on a worker: trains, evaluates and saves them, and reports on them.

A `StageHost` lives in a worker process as long as the study does. It keeps the trainer of
the last stage warm, takes save-points and stops from other threads, and writes states to
the store behind training. It knows no Dask: `dasktune._worker.plugin` connects it.

All its messages go through one function, `emit`, in lists.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextvars import Context, copy_context
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from dasktune._engine.timeouts import (
    LAST_WRITES_SECONDS,
    LOG_SECONDS,
    PROGRESS_FLUSH_SECONDS,
    UNPLANNED_SAVE_SECONDS,
)
from dasktune._worker.audit import AuditRun
from dasktune._worker.clean_process import CleanProcess
from dasktune._worker.control import Control
from dasktune._worker.divided import AnyRun, DividedRun, code_of
from dasktune._worker.errors_in_words import (
    in_words,
    is_out_of_memory,
    sendable,
    spoils_process,
    where,
)
from dasktune._worker.job import AuditSpec, Job, StageSpec
from dasktune._worker.known_files import KnownFiles
from dasktune._worker.messages import (
    AuditEnded,
    ResumeRefused,
    StageEnded,
    StageFailed,
    StageMessage,
    StagePrinted,
    StageProgress,
    StageStarted,
    StageStatus,
    StateMeasured,
    StateOmitted,
    StateSaved,
    StepMetrics,
    StoreFailed,
)
from dasktune._worker.peers import LenderLostError, Lenders
from dasktune._worker.printed import PrintedLines, Printer
from dasktune._worker.rank import RankTraining
from dasktune._worker.shared_device import begin_peak, free_unused, peak_bytes
from dasktune.errors import (
    CorruptCheckpointError,
    InternalError,
    ResumeError,
    StorageError,
)
from dasktune.graph.audits import ALWAYS
from dasktune.graph.devices import devices_at, without_devices
from dasktune.graph.keys import Chain, runs
from dasktune.sequences import Sequence, sequence_from_json
from dasktune.storage.buffers import Buffer, empty
from dasktune.storage.checkpoints import CheckpointStore, Commit
from dasktune.storage.codec import Snapshot, encode
from dasktune.trainer.lifecycle import TrainerRun
from dasktune.trainer.proof.proof import packed, unpacked
from dasktune.trainer.proof.remedies import Next, Proving
from dasktune.types import Step, Value

logger = logging.getLogger(__name__)

Emit = Callable[[list[StageMessage]], None]

Receipt = TypeVar("Receipt", covariant=True)

SAVE_SHARE = 0.02
"""Share of training time that saving between the planned save-points may cost."""

PAST_ATTEMPTS = 1000
"""Ended attempts that are remembered, for messages that come too late for them."""

PENDING_WRITES = 2
"""Snapshots that may wait while one is being written: the next one makes training wait."""

PENDING_BYTES = 2**30
"""Bytes of all snapshots that lie in memory, unless a host is given another number."""

SPARE_BYTES = 2**29
"""Largest snapshot whose memory is kept for the next one: fresh memory costs another copy."""


MEASURED_SAVES = 3
"""Saves of a host before it takes the shortest of them for the cost of a save.

One alone may have waited for a disk that was busy. And a study of a few trials, such as one of a
tutorial, stores all of their ends, whatever its workers measure.
"""

_IN_THREAD = threading.local()
"""Holds a weak reference to the host that was the last to train in a thread, as ``host``."""


class HostedWork(Protocol[Receipt]):
    """Training that a host carries out, one at a time."""

    def train(self) -> Receipt:
        """Train to the end, or to where it is told to stop."""

    def failure(self, error: BaseException) -> Receipt:
        """Return the receipt of training that raised."""

    def overdue(self, seconds: float, where: str) -> None:
        """Report that a step took longer than so many seconds."""


@dataclass(slots=True, kw_only=True)
class Ancestry:
    """The commits of a lineage as the writing thread knows them; it holds no trainer.

    Parameters
    ----------
    parent
        Digest of the last one.
    is_lost
        Whether another attempt's different state was committed under one of the lineage's keys.
    """

    parent: str | None
    is_lost: bool = False


class Lineage:
    """A trainer and the states that were saved from it since it was built or loaded."""

    def __init__(
        self,
        run: AnyRun,
        key: str,
        parent: str | None,
        devices: int = 1,
        lenders: tuple[str, ...] = (),
        context: Context | None = None,
    ) -> None:
        self.run = run
        self.context = context or copy_context()
        """Its context variables: Dask gives each task a context of its own."""
        self.devices = devices
        self.lenders = lenders
        self.loaded_at = run.step
        self.key = key
        self.ancestry = Ancestry(parent=parent)
        self.is_warm = False
        """Whether it was kept from an earlier stage."""
        self.unsaved_seconds = 0.0
        """Time to train it again from the last state that was saved, or loaded, as it was."""
        self._told_seconds = 0.0

    def proof_seconds(self) -> float:
        """Return the time that proofs have taken since the last call."""
        witness = self.run.witness
        total = 0.0 if witness is None else witness.seconds
        since, self._told_seconds = total - self._told_seconds, total
        return since

    def can_go_on(self, key: str, devices: int, lenders: tuple[str, ...]) -> bool:
        """Return whether it holds the state of a key, on such devices of these lenders."""
        if (self.key, self.devices, self.lenders) != (key, devices, lenders):
            return False
        is_whole = not isinstance(self.run, DividedRun) or self.run.is_whole
        return is_whole and not self.ancestry.is_lost


@dataclass(slots=True, kw_only=True)
class _Write:
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


class StageHost:
    """Trains stages in this process, one at a time.

    Parameters
    ----------
    job
        What all stages have in common.
    emit
        Takes lists of messages; called from the training and the writing thread.
    leave
        Called when this process can train no more, before what it failed at is told.
    store
        Where states are; None opens the job's.
    pending_bytes
        Bytes of all snapshots that lie in memory; a larger one lies there alone.
    workers
        The other workers, which may train with this one; None if they cannot.

    Attributes
    ----------
    step_began
        When what the trainer does now began (`time.monotonic`); None while it does nothing.
    """

    def __init__(
        self,
        job: Job,
        emit: Emit,
        leave: Callable[[], None] = lambda: None,
        *,
        store: CheckpointStore | None = None,
        pending_bytes: int = PENDING_BYTES,
        workers: Lenders | None = None,
    ) -> None:
        self.job = job
        self.workers = workers
        self.emit = emit
        self.step_began: float | None = None
        self._still = 0.0, 0.0
        """When the step that was looked at last began, and how long it could not go on."""
        self._leave = leave
        self._printer = Printer()
        self._is_spoiled = False
        self._is_closed = False
        self._stage: HostedWork[Any] | None = None
        self._thread = 0
        self.store = store or CheckpointStore(job.store)
        self._pending_bytes = pending_bytes
        self._warm: Lineage | None = None
        self._controls: dict[str, Control] = {}
        self._past: dict[str, None] = {}
        self._running: str | None = None
        self._is_abandoned = False
        self._lock = threading.RLock()
        self._ended = threading.Condition(self._lock)
        self._written = threading.Condition(self._lock)
        self._unwritten: set[str] = set()
        self._writes: queue.Queue[_Write | _Omission | None] = queue.Queue()
        self._pending: list[int] = []
        """The bytes of the snapshots that are not written yet."""
        self._spare: Buffer | None = None
        self._saves, self._save_seconds = 0, math.inf
        """The number of saves so far, and the time of the shortest."""
        self._resumes = 0
        """Number of trainers that were loaded from a stored state."""
        self._process = CleanProcess(job)
        self.known_files = KnownFiles(job, self.store)
        self._writer = threading.Thread(target=self._write_all, name="dasktune-writer", daemon=True)
        self._writer.start()

    @property
    def is_busy(self) -> bool:
        """Whether a stage runs here, or a state is on its way to the store."""
        return self._running is not None or bool(self._unwritten)

    def control(self, attempt: str) -> Control | None:
        """Return the control of an attempt that runs or will run here; None if it ended."""
        with self._lock:
            if attempt in self._past:
                return None
            return self._controls.setdefault(attempt, Control())

    def abandon(self, attempt: str) -> None:
        """Stop an attempt that nobody waits for any more, and drop its trainer."""
        self._is_abandoned = True
        self._warm = None
        control = self.control(attempt)
        if control is not None:
            control.stop(None)
            if self._running == attempt:
                self._break_off_audit()

    def _break_off_audit(self) -> None:
        """End an audit on several workers within its present step: it saves nothing.

        Else it would wait for minutes if another worker hangs.
        """
        if self.workers is not None and isinstance(self._stage, AuditRun):
            self.workers.give_back()

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
        self._warm = None
        self._writes.put(None)
        self._writer.join(max(0.0, deadline - time.monotonic()))

    def run(self, spec: StageSpec) -> StageEnded:
        """Train one stage; return a receipt. Errors of user code come back as data."""
        stage = _StageRun(self, spec, self._new_control(spec.attempt))
        with self._printer.prints_to(stage.log):
            receipt = self._carry_out(stage, spec.attempt)
        return self.skip(spec) if receipt is None else receipt

    def audit(self, spec: AuditSpec) -> AuditEnded:
        """Train steps again that are trained already, and compare; nothing is saved or sent.

        No stage can go on from the trainer that was kept before: both may have used the
        generators of this process.
        """
        name = spec.stage.attempt
        sequences = _sequences_of(spec.stage)

        def begin(
            step: Step,
            state: Mapping[str, object] | None = None,
            proof: Mapping[str, str] | None = None,
        ) -> AnyRun:
            lenders = tuple(spec.stage.lenders[: devices_at(sequences, step) - 1])
            # It compares the steps; a trainer that cannot resume is found by them.
            proving = self._proving(proof, refuses=False)
            run = self.new_run(spec.stage.seed, sequences, step, state, lenders, proving)
            self.known_files.refuse_changed()  # not a difference of the trainer
            return run

        def load(key: str) -> tuple[Any, Mapping[str, str] | None]:
            state, commit = self.load(key)
            return state, _proof_of(commit)

        audit = AuditRun(
            spec,
            self._new_control(name),
            sequences=sequences,
            job=self.job,
            store=self.store,
            load=load,
            begin=begin,
            on_step=partial(self._note_step, True),
            on_wait=partial(self._note_step, False),
        )
        was_warm, self._warm = self._warm is not None, None
        began = time.monotonic()
        receipt = self._carry_out(audit, name)
        if receipt is None:
            with self._lock:
                self._forget(name)
            return audit.dropped()
        seconds = time.monotonic() - began
        return replace(receipt, seconds=seconds + audit.start_seconds * was_warm)

    def _note_step(self, has_begun: bool) -> None:
        self.step_began = time.monotonic() if has_begun else None

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
            self._stage, self._running, self._is_abandoned = work, attempt, False
        self._thread = threading.get_ident()
        self._take_over_thread()
        if self.workers is not None:
            self.workers.reclaim()
        is_full = False
        try:
            return work.train()
        except BaseException as error:  # noqa: BLE001 - SystemExit in user code kills a worker
            self._warm = None
            is_full = is_out_of_memory(error)
            if spoils_process(error):
                self._is_spoiled = True
                self._leave()
            return work.failure(error)
        finally:
            self._stage = self.step_began = None
            if is_full:
                free_unused(self.job.device)  # the error, which held the trainer, is gone by now
            with self._lock:
                self._forget(attempt)
                self._running = None
                self._ended.notify_all()

    def _take_over_thread(self) -> None:
        """Drop the warm trainer of the host that trained in this thread before.

        Two studies on one worker train in turns. The trainer of one moves the global generators
        of the process, so the warm trainer of the other must be loaded again.
        """
        before = getattr(_IN_THREAD, "host", lambda: None)()
        if before is not None and before is not self:
            before.drop_warm()
        _IN_THREAD.host = weakref.ref(self)

    def drop_warm(self) -> None:
        """Drop the trainer that is kept for the next stage, which then loads a stored state."""
        self._warm = None

    def make_room(self) -> None:
        """Leave the memory of the device to a process that trains with another worker."""
        self.drop_warm()
        free_unused(self.job.device)

    def give_up(self, seconds: float, *, stood_still: float = 0.0) -> None:
        """Report a step that has taken too long; this process trains no more then.

        Parameters
        ----------
        seconds
            How long it is allowed to take.
        stood_still
            Seconds since the last call in which this process did nothing at all.
        """
        stage, began = self._stage, self.step_began
        if stage is None or began is None:
            return
        step, still = self._still
        still = stood_still + (still if step == began else 0.0)
        self._still = began, still
        if time.monotonic() - began - still <= seconds:
            return
        self._is_spoiled = True
        stack = where(self._thread)
        self._leave()
        stage.overdue(seconds, stack)

    def finish_writes(self, timeout: float) -> None:
        """Wait until all snapshots are in the store."""
        with self._written:
            self._written.wait_for(lambda: not self._unwritten, timeout)

    def skip(self, spec: StageSpec) -> StageEnded:
        """Return the receipt of a stage whose predecessor did not get to its end."""
        with self._lock:
            self._forget(spec.attempt)
        receipt = _receipt(spec.attempt, spec.start, "skipped")
        self.emit([receipt])
        return receipt

    def _forget(self, attempt: str) -> None:
        self._controls.pop(attempt, None)
        self._past[attempt] = None
        if len(self._past) > PAST_ATTEMPTS:
            del self._past[next(iter(self._past))]

    def lineage_at(self, spec: StageSpec, sequences: Mapping[str, Sequence]) -> Lineage:
        """Return a trainer that holds the state at the stage's start: the warm one, if it is."""
        key = spec.key
        devices = devices_at(sequences, spec.start)
        warm, self._warm = self._warm, None
        if warm is not None and warm.can_go_on(key, devices, spec.lenders):
            return warm
        del warm  # the memory of a GPU may hold one trainer, but not two
        context = copy_context()
        if spec.start == 0:
            is_alone = spec.is_alone or self.job.is_apart
            run = context.run(
                partial(
                    self.new_run, spec.seed, sequences, 0, lenders=spec.lenders, is_alone=is_alone
                )
            )
            return Lineage(run, key, None, devices, spec.lenders, context)
        state, commit = self.load(key)
        self._resumes += 1
        run = context.run(
            self.new_run,
            spec.seed,
            sequences,
            spec.start,
            state,
            spec.lenders,
            self._proving(_proof_of(commit), "train" if spec.start < spec.stop else "evaluate"),
        )
        return Lineage(run, key, commit.digest, devices, spec.lenders, context)

    def load(self, key: str) -> tuple[Any, Commit]:
        """Return a stored state, and its commit.

        Dask may start another path's stage before the next one of this path: the warm trainer
        is gone then, and the state of the stage before is still on its way to the store.
        """
        with self._written:
            self._written.wait_for(lambda: key not in self._unwritten)
        return self.store.load(key)

    def new_run(
        self,
        seed: int,
        sequences: Mapping[str, Sequence],
        step: Step,
        state: Mapping[str, object] | None = None,
        lenders: tuple[str, ...] = (),
        proving: Proving | None = None,
        *,
        is_alone: bool = False,
    ) -> AnyRun:
        """Return a new trainer that holds the state after `step`; at step 0 there is none.

        Raises
        ------
        ResumeError
            If it is not the trainer that left this proof.
        """
        self.step_began = time.monotonic()
        job, proving = self.job, proving or self._proving()
        values = without_devices(sequences)
        first = {name: sequence(0) for name, sequence in values.items()}
        last = {name: sequence(max(step, 1) - 1) for name, sequence in values.items()}
        devices = devices_at(sequences, step)
        trainer_class = self._process.prepare(first, seed, is_alone=is_alone)
        if devices > 1:
            training = RankTraining(
                code=code_of(job.trainer_class, job.code),
                config=job.config,
                seed=seed,
                device=job.device,
                step=step,
                first_values=first,
                last_values=last,
                state=state,
                proving=proving,
            )
            return DividedRun.begin(training, trainer_class, devices, lenders, self.workers)
        if state is None:
            run = TrainerRun.start(
                trainer_class,
                first,
                config=job.config,
                seed=seed,
                device=job.device,
                proving=proving,
            )
            if self._process.accepts_build():
                return run
            del run
            return self.new_run(seed, sequences, step, lenders=lenders, is_alone=True)
        try:
            return TrainerRun.resume(
                trainer_class,
                step=step,
                first_values=first,
                last_values=last,
                state=state,
                config=job.config,
                seed=seed,
                device=job.device,
                proving=proving,
            )
        except ResumeError:
            if is_alone or not self._process.is_used:
                raise
        # What earlier trials have left here may be the reason.
        return self.new_run(seed, sequences, step, state, lenders, proving, is_alone=True)

    def _proving(
        self,
        proof: Mapping[str, str] | None = None,
        before: Next = "train",
        *,
        refuses: bool = True,
    ) -> Proving | None:
        """Return the terms of the proof of a resume; None for a job without proofs."""
        if not self.job.proves:
            return None
        return Proving(
            owns_process=self.job.is_own_process, proof=proof, before=before, refuses=refuses
        )

    def keep_warm(self, lineage: Lineage) -> None:
        """Keep a trainer for the stage that goes on from its state."""
        lineage.is_warm = True
        if isinstance(lineage.run, DividedRun):
            lineage.run.rest()
        self._warm = None if self._is_abandoned else lineage

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

    def may_omit(self, lineage: Lineage) -> bool:
        """Return whether the last state of a lineage may be left out.

        The first saves of a host are measured, the first resumes of a study are audited against
        their last states, and on a GPU, or on one device in place of several, training again may
        give other bits. Otherwise it depends on what is cheaper: to store, or to train again.
        """
        is_audited = lineage.loaded_at > 0 and self._resumes <= ALWAYS
        gives_other_bits = self.job.device != "cpu" or lineage.devices > 1
        if self._saves < MEASURED_SAVES or is_audited or gives_other_bits:
            return False
        return lineage.unsaved_seconds < self._save_seconds

    def omit(self, ancestry: Ancestry, message: StateOmitted) -> list[StageMessage]:
        """Return the message of an omitted state; an empty list if earlier states come first."""
        with self._lock:
            if not self._unwritten:
                return [] if ancestry.is_lost else [message]
            self._unwritten.add(message.key)
        self._writes.put(_Omission(ancestry=ancestry, message=message))
        return []

    def write(self, write: _Write) -> None:
        """Hand a snapshot to the writing thread."""
        with self._lock:
            self._unwritten.add(write.key)
            self._pending.append(write.snapshot.nbytes)
        self._writes.put(write)

    # ------------------------------------------------------------ the writing thread

    def _write_all(self) -> None:
        while (write := self._writes.get()) is not None:
            if isinstance(write, _Omission):
                self._tell_omitted(write)
                continue
            try:
                self._write(write)
            except Exception as error:  # noqa: BLE001 - a dead writer would hold up training
                message = sendable(str(error))
                if not isinstance(error, StorageError):
                    message = f"{type(error).__name__}: {message}"
                self.emit([StoreFailed(attempt=write.attempt, message=message)])
            finally:
                key, nbytes = write.key, write.snapshot.nbytes
                spare = write.snapshot.data if nbytes <= SPARE_BYTES else None
                del write  # and with it a large snapshot, before the next one takes its room
                with self._lock:
                    self._spare = spare
                    self._unwritten.discard(key)
                    self._pending.remove(nbytes)
                    self._written.notify_all()
                del spare

    def _tell_omitted(self, omission: _Omission) -> None:
        message = omission.message
        if omission.ancestry.is_lost:
            self.emit([_receipt(message.attempt, message.step, "lost")])
        else:
            self.emit([message])
        with self._lock:
            self._unwritten.discard(message.key)
            self._written.notify_all()

    def _write(self, write: _Write) -> None:
        ancestry, attempt = write.ancestry, write.attempt
        if ancestry.is_lost:
            self.emit([_receipt(attempt, write.step, "lost")])
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
        self.emit(
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

    def _commit(self, write: _Write) -> Commit:
        """Save a snapshot; return the commit of its key, which may be another attempt's."""
        began = time.monotonic()
        commit = self.store.save(
            write.snapshot,
            key=write.key,
            attempt=write.attempt,
            step=write.step,
            parent=write.ancestry.parent,
            reports=[(step, metrics) for step, _, metrics in write.reports],
            environment=self.job.environment,
            seconds=write.seconds,
            proof=packed(write.proof) if write.proof else "",
        )
        self._saves += 1
        self._save_seconds = min(self._save_seconds, time.monotonic() - began)
        return commit


class _StageRun:
    """One attempt while it runs."""

    def __init__(self, host: StageHost, spec: StageSpec, control: Control) -> None:
        self.host = host
        self.spec = spec
        self.control = control
        self.step = spec.start
        self.sequences = _sequences_of(spec)
        self.chain = Chain(spec.chain[0], bytes.fromhex(spec.chain[1]), spec.chain[2])
        self.seconds = 0.0
        self._outbox: list[StageMessage] = [StageStarted(attempt=spec.attempt, at=time.time())]
        self._flushed = self._log_sent = time.monotonic()
        self.log = PrintedLines()
        self._unsent: list[StepMetrics] = []
        self._unsaved: list[StepMetrics] = []
        self._paces: list[float] = []
        """What a step took on average up to each of those reports, since the one before."""
        self._measured = spec.start, 0.0
        self._start_seconds: float | None = None
        self._loaded_at: Step | None = None
        self._evaluating = 0.0
        self._saved_at = self._flushed
        self._saved_seconds = 0.0
        self._hold_up = 0.0
        self._is_omitted = False
        self._lineage: Lineage | None = None
        self._has_saved_more = False
        """Whether it saved where its order says nothing of: the driver waits for no such state."""

    def train(self) -> StageEnded:
        """Train from the stage's start to its end, or to where it is told to stop."""
        spec, host = self.spec, self.host
        if self.control.passes(self.step)[1]:
            return self._end("stopped")
        # Before user code has its turn, which may take this process with it: what was lost then
        # must be known.
        self._flush()
        if host.job.shares_device:
            begin_peak(host.job.device)
        began = time.monotonic()
        try:
            lineage = host.lineage_at(spec, self.sequences)
        except CorruptCheckpointError as error:
            # Out of the way, or it would win over the state that is trained again; unless
            # someone has trained it meanwhile.
            host.store.discard(self.chain.key, attempt=error.attempt)
            return self._end("missing")
        except ResumeError as error:
            if is_out_of_memory(error) or spoils_process(error):
                raise
            return self._refused(error)
        host.known_files.refuse_changed()  # what was built has read them by now
        self._saved_at = time.monotonic()
        self._start_seconds = 0.0 if lineage.is_warm else self._saved_at - began
        lineage.unsaved_seconds += self._start_seconds
        self._loaded_at = lineage.loaded_at
        self._lineage = lineage
        return lineage.context.run(self._trained, lineage)

    def _trained(self, lineage: Lineage) -> StageEnded:
        """Train with a trainer that holds the state at the stage's start."""
        spec, host = self.spec, self.host
        if spec.start == spec.stop:
            return self._evaluate_only(lineage)
        status: StageStatus = "trained"
        for values, encoded in self._values():
            began = host.step_began = time.monotonic()
            lineage.run.advance(values)
            trained = time.monotonic()
            self.seconds += trained - began
            lineage.unsaved_seconds += trained - began
            self.chain = self.chain.extend(encoded, 1)
            self.step += 1
            wanted, stopped = self.control.passes(self.step)
            at_end = stopped or self.step == spec.stop
            suspended = (self.control.ordered or trained) if at_end else None
            self._after_step(lineage, wanted or self.step in spec.saves, suspended)
            if lineage.ancestry.is_lost:
                return self._end("superseded")
            if stopped and self.step < spec.stop:
                status = "stopped"
                break
        lineage.key = self.chain.key
        host.keep_warm(lineage)
        return self._end(status)

    def _values(self) -> Iterator[tuple[dict[str, Value], bytes]]:
        """Yield the values of each step, and their canonical bytes."""
        own = without_devices(self.sequences)
        for until, encoded in runs(self.sequences, self.spec.start, self.spec.stop):
            values = {name: sequence(self.step) for name, sequence in own.items()}
            while self.step < until:
                yield values, encoded

    def _after_step(self, lineage: Lineage, must_save: bool, suspended: float | None) -> None:
        """Evaluate, save and send messages where they are due; all are at the stage's end."""
        save = must_save or suspended is not None or self._save_is_due()
        # At the end it is stored all the same if somebody has asked for it since the start.
        may_omit = self.step == self.spec.stop and not must_save
        if save or self.step % self.host.job.report_every == 0:
            self._measure(lineage)
        if save and may_omit and self._is_expendable() and self.host.may_omit(lineage):
            self._omit(lineage)
        elif save:
            self._save(lineage, suspended)
        if time.monotonic() - self._flushed > PROGRESS_FLUSH_SECONDS:
            self._flush()

    def _measure(self, lineage: Lineage) -> None:
        """Evaluate, and note what the steps since the last time took with it."""
        began = time.monotonic()
        report = (self.step, self.chain.key, lineage.run.evaluate())
        self._evaluating += time.monotonic() - began
        self._unsent.append(report)
        self._unsaved.append(report)
        last, before = self._measured
        self._measured = self.step, self.seconds + self._evaluating
        self._paces.append((self._measured[1] - before) / (self.step - last))

    def _save_is_due(self) -> bool:
        if not self.host.job.saves_by_time:
            return False
        age = time.monotonic() - self._saved_at
        return age > max(UNPLANNED_SAVE_SECONDS, self._hold_up / SAVE_SHARE)

    def _is_expendable(self) -> bool:
        """Return whether the state at the end serves only to save its training."""
        if self.spec.omits is None or self._has_saved_more:
            return False
        name, least, greatest = self.spec.omits
        _, _, metrics = self._unsaved[-1]
        value = metrics.get(name)
        return value is not None and (not math.isfinite(value) or least <= value <= greatest)

    def _omit(self, lineage: Lineage) -> None:
        """Report the metrics since the last state, whose states are not stored."""
        self._flush()  # the metrics must come first, and the writing thread may send the message
        message = StateOmitted(
            attempt=self.spec.attempt,
            step=self.step,
            key=self.chain.key,
            reported=tuple([step for step, _, _ in self._unsaved]),
            paces=tuple(self._paces),
        )
        self._is_omitted = True
        self._outbox += self.host.omit(lineage.ancestry, message)

    def _save(self, lineage: Lineage, suspended: float | None) -> None:
        self._flush()
        began = time.monotonic()
        state = lineage.run.state()
        proof = lineage.run.proof(state)
        self.host.step_began = None  # it may have to wait for the store
        snapshot = encode(state, allocate=self.host.room_for)
        del state
        self._saved_at = time.monotonic()
        self._hold_up = self._saved_at - began
        self.host.write(
            _Write(
                ancestry=lineage.ancestry,
                snapshot=snapshot,
                attempt=self.spec.attempt,
                key=self.chain.key,
                step=self.step,
                reports=self._unsaved,
                paces=self._paces,
                seconds=self.seconds - self._saved_seconds,
                began=began,
                hold_up=self._hold_up,
                suspended=suspended,
                proof=proof,
                replaces=self.spec.is_alone,
            )
        )
        self._unsaved, self._paces, self._saved_seconds = [], [], self.seconds
        self._has_saved_more |= self.step not in self.spec.saves
        # Who begins here has to load it.
        lineage.unsaved_seconds = self._start_seconds or 0.0

    def _evaluate_only(self, lineage: Lineage) -> StageEnded:
        """Measure a state that exists: its metrics are all that is missing."""
        key = self.chain.key
        self.host.step_began = time.monotonic()
        report = (self.step, key, lineage.run.evaluate())
        self._unsent.append(report)
        self._flush()
        self._outbox.append(StateMeasured(attempt=self.spec.attempt, step=self.step, key=key))
        self.host.keep_warm(lineage)
        return self._end("trained")

    def _refused(self, error: ResumeError) -> StageEnded:
        """Report a trainer that is not the one that saved the state."""
        message = ResumeRefused(
            attempt=self.spec.attempt,
            step=self.step,
            at=time.time(),
            message=sendable(str(error)),
            traceback=sendable(error.traceback),
            paths=tuple(map(sendable, error.paths)),
        )
        self._outbox.append(message)
        return self._end("lost")

    def overdue(self, seconds: float, where: str) -> None:
        """Report that the trainer has taken longer than so many seconds.

        Parameters
        ----------
        seconds
            How long it was allowed to take.
        where
            The stack of the training thread.
        """
        self.control.stop(None)
        message = (
            f"a step must end within {seconds:g} s, the one after step {self.step} has not "
            "(Timeouts.step_seconds)"
        )
        failed = self._failed({"message": message, "traceback": f"{where}\n{message}"})
        self.host.emit([*self._printed(), failed])

    def failure(self, error: BaseException) -> StageEnded:
        """Return the receipt of a stage whose trainer raised."""
        attempt, words = self.spec.attempt, in_words(error)
        if isinstance(error, LenderLostError):
            logger.warning("attempt %s is lost: %s", attempt, words["message"])
            # An attempt that has ended as lost is heard of no more: its states come first.
            self.host.finish_writes(LAST_WRITES_SECONDS)
            return self._end("lost")
        if isinstance(error, InternalError | StorageError):
            text = sendable(str(error))
            self._outbox.append(StoreFailed(attempt=attempt, message=text))
        self._flush()
        self._outbox += self._printed()
        self._outbox.append(self._failed(words, is_out_of_memory=is_out_of_memory(error)))
        self._flush()
        return _receipt(attempt, self.step, "failed")

    def _failed(self, words: Mapping[str, str], *, is_out_of_memory: bool = False) -> StageFailed:
        return StageFailed(
            attempt=self.spec.attempt,
            step=self.step,
            at=time.time(),
            is_out_of_memory=is_out_of_memory,
            message=words["message"],
            traceback=words["traceback"],
        )

    def _end(self, status: StageStatus) -> StageEnded:
        receipt = StageEnded(
            attempt=self.spec.attempt,
            step=self.step,
            status=status,
            at=time.time(),
            seconds=self.seconds,
            evaluate_seconds=self._evaluating,
            start_seconds=self._start_seconds,
            loaded_at=self._loaded_at,
            peak_bytes=peak_bytes(self.host.job.device) if self.host.job.shares_device else None,
            is_omitted=self._is_omitted,
            proof_seconds=0.0 if self._lineage is None else self._lineage.proof_seconds(),
        )
        self._outbox += self._printed()
        self._flush(receipt)
        return receipt

    def _printed(self) -> list[StageMessage]:
        """Return the message with the log, if the trainer has printed since the last one."""
        self._log_sent = time.monotonic()
        text = self.log.take_news()
        return [] if text is None else [StagePrinted(attempt=self.spec.attempt, text=text)]

    def _progress(self) -> list[StageMessage]:
        """Return the message with the metrics since the last one, if there are any."""
        if not self._unsent:
            return []
        reports, self._unsent = tuple(self._unsent), []
        attempt, seconds = self.spec.attempt, self.seconds + self._evaluating
        return [StageProgress(attempt=attempt, step=self.step, reports=reports, seconds=seconds)]

    def _flush(self, last: StageMessage | None = None) -> None:
        """Send the messages since the last time."""
        if time.monotonic() - self._log_sent > LOG_SECONDS:
            self._outbox += self._printed()
        if self._unsent or self._outbox or last is not None:
            messages = [*self._outbox, *self._progress()]
            self._outbox = []
            if last is not None:
                messages.append(last)
            self.host.emit(messages)
        self._flushed = time.monotonic()


def _proof_of(commit: Commit) -> dict[str, str] | None:
    """Return the proof of a state; None for a state of an earlier version."""
    if not commit.proof:
        return None
    try:
        return unpacked(commit.proof)
    except ValueError as error:
        raise CorruptCheckpointError(f"checkpoint {commit.key}: {error}", commit.attempt) from error


def _sequences_of(spec: StageSpec) -> dict[str, Sequence]:
    return {name: sequence_from_json(text) for name, text in spec.sequences.items()}


def _receipt(attempt: str, step: Step, status: StageStatus) -> StageEnded:
    return StageEnded(attempt=attempt, step=step, status=status, at=time.time())

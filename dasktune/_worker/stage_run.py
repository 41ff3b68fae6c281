"""A stage of a trial on a worker: the steps are trained, evaluated, saved and reported."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping

from dasktune._engine.timeouts import (
    LAST_WRITES_SECONDS,
    LOG_SECONDS,
    PROGRESS_FLUSH_SECONDS,
    UNPLANNED_SAVE_SECONDS,
)
from dasktune._worker.control import Control
from dasktune._worker.errors_in_words import in_words, is_out_of_memory, sendable, spoils_process
from dasktune._worker.job import Job, StageSpec
from dasktune._worker.messages import (
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
    StepMetrics,
    StoreFailed,
)
from dasktune._worker.peers import LenderLostError
from dasktune._worker.printed import PrintedLines
from dasktune._worker.shared_device import begin_peak, peak_bytes
from dasktune._worker.step_watch import StepWatch
from dasktune._worker.trainers import LiveTrainer, Trainers, sequences_of
from dasktune._worker.writer import Emit, StateWrite, StateWriter
from dasktune.errors import CorruptCheckpointError, InternalError, ResumeError, StorageError
from dasktune.graph.audits import ALWAYS
from dasktune.graph.devices import without_devices
from dasktune.graph.keys import Chain, runs
from dasktune.storage.codec import encode
from dasktune.types import Step, Value

logger = logging.getLogger(__name__)

SAVE_SHARE = 0.02
"""Share of training time that saving between the planned save-points may cost."""


class StageRun:
    """One attempt while it runs, in the thread that trains; only `overdue` is for other threads.

    Other threads talk to it through its `Control`.
    """

    def __init__(
        self,
        spec: StageSpec,
        control: Control,
        *,
        job: Job,
        trainers: Trainers,
        writer: StateWriter,
        watch: StepWatch,
        emit: Emit,
    ) -> None:
        self.spec = spec
        self.control = control
        self._job = job
        self._trainers = trainers
        self._writer = writer
        self._watch = watch
        self._emit = emit
        #: Written by the thread that trains; `overdue` reads it for a message.
        self.step = spec.start
        self.sequences = sequences_of(spec)
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
        self._live: LiveTrainer | None = None
        self._has_saved_more = False
        """Whether it saved where its order says nothing of: the driver waits for no such state."""

    def train(self) -> StageEnded:
        """Train from the stage's start to its end, or to where it is told to stop."""
        spec, job = self.spec, self._job
        if self.control.passes(self.step)[1]:
            return self._end("stopped")
        # Before user code has its turn, which may take this process with it: what was lost then
        # must be known.
        self._flush()
        if job.shares_device:
            begin_peak(job.device)
        began = time.monotonic()
        try:
            live = self._trainers.trainer_at(spec, self.sequences)
        except CorruptCheckpointError as error:
            # Out of the way, or it would win over the state that is trained again; unless
            # someone has trained it meanwhile.
            self._trainers.store.discard(self.chain.key, attempt=error.attempt)
            return self._end("missing")
        except ResumeError as error:
            if is_out_of_memory(error) or spoils_process(error):
                raise
            return self._refused(error)
        # What was built has read them by now.
        self._trainers.known_files.refuse_changed(spec.files_known)
        self._saved_at = time.monotonic()
        self._start_seconds = 0.0 if live.is_warm else self._saved_at - began
        live.unsaved_seconds += self._start_seconds
        self._loaded_at = live.loaded_at
        self._live = live
        return live.context.run(self._trained, live)

    def _trained(self, live: LiveTrainer) -> StageEnded:
        """Train with a trainer that holds the state at the stage's start."""
        spec = self.spec
        if spec.start == spec.stop:
            return self._evaluate_only(live)
        status: StageStatus = "trained"
        for values, encoded in self._values():
            began = self._watch.begin()
            live.run.advance(values)
            trained = time.monotonic()
            self.seconds += trained - began
            live.unsaved_seconds += trained - began
            self.chain = self.chain.extend(encoded, 1)
            self.step += 1
            wanted, stopped = self.control.passes(self.step)
            at_end = stopped or self.step == spec.stop
            suspended = (self.control.ordered or trained) if at_end else None
            self._after_step(live, wanted or self.step in spec.saves, suspended)
            if live.ancestry.is_lost:
                return self._end("superseded")
            if stopped and self.step < spec.stop:
                status = "stopped"
                break
        live.key = self.chain.key
        self._keep_warm(live)
        return self._end(status)

    def _keep_warm(self, live: LiveTrainer) -> None:
        """Keep the trainer for the next stage, unless nobody waits for this attempt any more.

        The thread that abandons the attempt says so first, and drops the trainer then. Whichever
        of the two threads comes first, one of them drops it.
        """
        self._trainers.keep(live)
        if self.control.is_abandoned:
            self._trainers.drop()

    def _values(self) -> Iterator[tuple[dict[str, Value], bytes]]:
        """Yield the values of each step, and their canonical bytes."""
        own = without_devices(self.sequences)
        for until, encoded in runs(self.sequences, self.spec.start, self.spec.stop):
            values = {name: sequence(self.step) for name, sequence in own.items()}
            while self.step < until:
                yield values, encoded

    def _after_step(self, live: LiveTrainer, must_save: bool, suspended: float | None) -> None:
        """Evaluate, save and send messages where they are due; all are at the stage's end."""
        save = must_save or suspended is not None or self._save_is_due()
        # At the end it is stored all the same if somebody has asked for it since the start.
        may_omit = self.step == self.spec.stop and not must_save
        if save or self.step % self._job.report_every == 0:
            self._measure(live)
        if save and may_omit and self._is_expendable() and self.may_omit(live):
            self._omit(live)
        elif save:
            self._save(live, suspended)
        if time.monotonic() - self._flushed > PROGRESS_FLUSH_SECONDS:
            self._flush()

    def _measure(self, live: LiveTrainer) -> None:
        """Evaluate, and note what the steps since the last time took with it."""
        began = time.monotonic()
        report = (self.step, self.chain.key, live.run.evaluate())
        self._evaluating += time.monotonic() - began
        self._unsent.append(report)
        self._unsaved.append(report)
        last, before = self._measured
        self._measured = self.step, self.seconds + self._evaluating
        self._paces.append((self._measured[1] - before) / (self.step - last))

    def _save_is_due(self) -> bool:
        if not self._job.saves_by_time:
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

    def may_omit(self, live: LiveTrainer) -> bool:
        """Return whether the last state of a live trainer may be left out.

        The first saves of a host are measured, the first resumes of a study are audited against
        their last states, and on a GPU, or on one device in place of several, training again may
        give other bits. Otherwise it depends on what is cheaper: to store, or to train again.
        """
        is_audited = live.loaded_at > 0 and self._trainers.resumes <= ALWAYS
        gives_other_bits = self._job.device != "cpu" or live.devices > 1
        if is_audited or gives_other_bits:
            return False
        return live.unsaved_seconds < self._writer.save_seconds

    def _omit(self, live: LiveTrainer) -> None:
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
        self._outbox += self._writer.omit(live.ancestry, message)

    def _save(self, live: LiveTrainer, suspended: float | None) -> None:
        self._flush()
        began = time.monotonic()
        state = live.run.state()
        proof = live.run.proof(state)
        self._watch.end()  # it may have to wait for the store
        snapshot = encode(state, allocate=self._writer.room_for)
        del state
        self._saved_at = time.monotonic()
        self._hold_up = self._saved_at - began
        self._writer.write(
            StateWrite(
                ancestry=live.ancestry,
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
        live.unsaved_seconds = self._start_seconds or 0.0

    def _evaluate_only(self, live: LiveTrainer) -> StageEnded:
        """Measure a state that exists: its metrics are all that is missing."""
        key = self.chain.key
        self._watch.begin()
        report = (self.step, key, live.run.evaluate())
        self._unsent.append(report)
        self._flush()
        self._outbox.append(StateMeasured(attempt=self.spec.attempt, step=self.step, key=key))
        self._keep_warm(live)
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
        """Report that the trainer has taken longer than so many seconds; from any thread.

        `where` is the stack of the thread that trains.
        """
        self.control.stop(None)
        message = (
            f"a step must end within {seconds:g} s, the one after step {self.step} has not "
            "(Timeouts.step_seconds)"
        )
        failed = self._failed({"message": message, "traceback": f"{where}\n{message}"})
        self._emit([*self._printed(), failed])

    def failure(self, error: BaseException) -> StageEnded:
        """Return the receipt of a stage whose trainer raised."""
        attempt, words = self.spec.attempt, in_words(error)
        if isinstance(error, LenderLostError):
            logger.warning("attempt %s is lost: %s", attempt, words["message"])
            # An attempt that has ended as lost is heard of no more: its states come first.
            self._writer.finish(LAST_WRITES_SECONDS)
            return self._end("lost")
        if isinstance(error, InternalError | StorageError):
            text = sendable(str(error))
            self._outbox.append(StoreFailed(attempt=attempt, message=text))
        self._flush()
        self._outbox += self._printed()
        self._outbox.append(self._failed(words, is_out_of_memory=is_out_of_memory(error)))
        self._flush()
        return StageEnded(attempt=attempt, step=self.step, status="failed", at=time.time())

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
            peak_bytes=peak_bytes(self._job.device) if self._job.shares_device else None,
            is_omitted=self._is_omitted,
            proof_seconds=0.0 if self._live is None else self._live.proof_seconds(),
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
            self._emit(messages)
        self._flushed = time.monotonic()

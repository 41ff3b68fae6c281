"""The trainers of a worker: built, loaded with a stored state, or kept warm from the last stage."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from contextvars import Context, copy_context
from functools import partial

from dasktune._worker.clean_process import CleanProcess
from dasktune._worker.divided import AnyRun, DividedRun, code_of
from dasktune._worker.job import Job, StageSpec
from dasktune._worker.known_files import KnownFiles
from dasktune._worker.peers import Lenders
from dasktune._worker.rank import RankTraining
from dasktune._worker.shared_device import free_unused
from dasktune._worker.step_watch import StepWatch
from dasktune._worker.writer import Ancestry, StateWriter
from dasktune.errors import CorruptCheckpointError, ResumeError
from dasktune.graph.devices import devices_at, without_devices
from dasktune.sequences import Sequence, sequence_from_json
from dasktune.storage.checkpoints import Commit
from dasktune.trainer.lifecycle import TrainerRun
from dasktune.trainer.proof.proof import unpacked
from dasktune.trainer.proof.remedies import Next, Proving
from dasktune.types import Step

_IN_THREAD = threading.local()
"""Holds a weak reference to the `Trainers` that were the last to train in a thread."""


class LiveTrainer:
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


class Trainers:
    """Builds the trainers of a job, and keeps that of the last stage warm.

    The thread that trains calls its methods, others may call `drop` and `make_room`.
    """

    def __init__(
        self, job: Job, writer: StateWriter, watch: StepWatch, workers: Lenders | None
    ) -> None:
        self.store = writer.store
        self.known_files = KnownFiles(job, self.store)
        #: How many trainers were loaded from a stored state for a stage.
        self.resumes = 0
        self._job = job
        self._writer = writer
        self._watch = watch
        self._workers = workers
        self._process = CleanProcess(job)
        #: The trainer for the next stage. The thread that trains keeps and takes it; any thread may
        #: drop it, that is, write None. It needs no lock: a trainer that is taken just before it is
        #: dropped belongs to a stage that runs, and `StageRun` tells whether it may be kept again.
        self._warm: LiveTrainer | None = None

    def take_over_thread(self) -> None:
        """Drop the warm trainer of the study that trained in this thread before.

        Two studies on one worker train in turns. The trainer of one moves the global generators
        of the process, so the warm trainer of the other must be loaded again.
        """
        before = getattr(_IN_THREAD, "trainers", lambda: None)()
        if before is not None and before is not self:
            before.drop()
        _IN_THREAD.trainers = weakref.ref(self)

    def keep(self, live: LiveTrainer) -> None:
        """Keep a trainer for the stage that goes on from its state."""
        live.is_warm = True
        if isinstance(live.run, DividedRun):
            live.run.rest()
        self._warm = live

    def drop(self) -> bool:
        """Drop the warm trainer: the next stage loads a stored state; return whether it was there.

        Any thread may call this.
        """
        was_warm, self._warm = self._warm is not None, None
        return was_warm

    def make_room(self) -> None:
        """Leave the memory of the device to a process that trains with another worker."""
        self.drop()
        free_unused(self._job.device)

    def trainer_at(self, spec: StageSpec, sequences: Mapping[str, Sequence]) -> LiveTrainer:
        """Return a trainer that holds the state at the stage's start: the warm one, if it is."""
        key = spec.key
        devices = devices_at(sequences, spec.start)
        warm, self._warm = self._warm, None
        if warm is not None and warm.can_go_on(key, devices, spec.lenders):
            return warm
        del warm  # the memory of a GPU may hold one trainer, but not two
        context = copy_context()
        if spec.start == 0:
            is_alone = spec.is_alone or self._job.is_apart
            run = context.run(
                partial(self.new, spec.seed, sequences, 0, lenders=spec.lenders, is_alone=is_alone)
            )
            return LiveTrainer(run, key, None, devices, spec.lenders, context)
        # Dask may start another path's stage before the next one of this path: the warm trainer is
        # gone then, and the state of the stage before is still on its way to the store.
        state, commit = self._writer.load(key)
        self.resumes += 1
        run = context.run(
            self.new,
            spec.seed,
            sequences,
            spec.start,
            state,
            spec.lenders,
            self.proving(proof_of(commit), "train" if spec.start < spec.stop else "evaluate"),
        )
        return LiveTrainer(run, key, commit.digest, devices, spec.lenders, context)

    def new(
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

        Raises a `ResumeError` if it is not the trainer that left this proof.
        """
        self._watch.begin()
        job, proving = self._job, proving or self.proving()
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
            return DividedRun.begin(training, trainer_class, devices, lenders, self._workers)
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
            return self.new(seed, sequences, step, lenders=lenders, is_alone=True)
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
        return self.new(seed, sequences, step, state, lenders, proving, is_alone=True)

    def proving(
        self,
        proof: Mapping[str, str] | None = None,
        before: Next = "train",
        *,
        refuses: bool = True,
    ) -> Proving | None:
        """Return the terms of the proof of a resume; None for a job without proofs."""
        if not self._job.proves:
            return None
        return Proving(
            owns_process=self._job.is_own_process, proof=proof, before=before, refuses=refuses
        )


def proof_of(commit: Commit) -> dict[str, str] | None:
    """Return the proof of a state; None for a state of an earlier version."""
    if not commit.proof:
        return None
    try:
        return unpacked(commit.proof)
    except ValueError as error:
        raise CorruptCheckpointError(f"checkpoint {commit.key}: {error}", commit.attempt) from error


def sequences_of(spec: StageSpec) -> dict[str, Sequence]:
    """Return the sequences of a stage, which travel as text."""
    return {name: sequence_from_json(text) for name, text in spec.sequences.items()}

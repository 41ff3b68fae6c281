"""The states of trials: read from the store, or trained again if they are missing."""

from __future__ import annotations

import logging
import math
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from dasktune._driver.recorder import Recorder
from dasktune._engine.trials import TrialRecord, trial_of
from dasktune._numbers import whole_of
from dasktune._results.results import StudyResults
from dasktune._words import counted
from dasktune.errors import (
    ConfigurationError,
    CorruptCheckpointError,
    DasktuneError,
    ResumeError,
    StorageError,
    TrainerError,
)
from dasktune.graph.plan import Node, SearchPlan
from dasktune.storage.checkpoints import CheckpointStore, Commit, OtherFormatError
from dasktune.storage.codec import Snapshot, decode, encode
from dasktune.trainer.environment import environment
from dasktune.trainer.generators import global_states, restore_global
from dasktune.trainer.isolation import give_own_generator
from dasktune.trainer.lifecycle import TrainerRun
from dasktune.trainer.proof.proof import packed, unpacked
from dasktune.trainer.proof.remedies import Proving
from dasktune.trainer.settings import use_deterministic_algorithms
from dasktune.types import Direction, Step, TrialState, Value

logger = logging.getLogger(__name__)

BEST = "best"
"""Names the step of a trial with the best metric, in the place of its number."""

DEVICE = "cpu"
"""Device on which states are trained again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The arguments of a study that decide its training, beside the trials' sequences.

    A trial's own seed is added to `seed`. `problem` says why this training does not give the states
    of the study; empty if it does.
    """

    trainer: type
    config: Mapping[str, object]
    seed: int
    problem: str = ""


class TrialStates:
    """The states of a study's trials by step, trained again where the store lacks them.

    A recorder writes down those that are saved then; None leaves the store unchanged.
    """

    def __init__(
        self,
        store: CheckpointStore,
        plan: SearchPlan,
        training: Training,
        recorder: Recorder | None,
    ) -> None:
        self._store = store
        self._plan = plan
        self._training = training
        self._recorder = recorder

    def at(self, trial: int, step: Step) -> Any:
        """Return the state of a registered trial after `step` >= 1 steps.

        Raises
        ------
        ConfigurationError
            If the state is not stored, and this training does not give it.
        StorageError
            If the store cannot be read. A failed save is only a warning.
        TrainerError
            If the state had to be trained again, and the trainer failed.
        """
        node = self._plan.node_at(trial, step)
        key = node.key_at(step)
        try:
            return self._store.load(key)[0]
        except (CorruptCheckpointError, OtherFormatError) as error:
            logger.info("trial %d, step %d: %s", trial, step, error)
            snapshot, commit = self._train(trial, node, step)
            winner = self._save(node, key, snapshot, commit, error)
        if winner is not None and winner.digest != snapshot.digest:
            return self._store.load(key)[0]  # one state per key: another process saved first
        return decode(snapshot.document, snapshot.data)

    def trainer(self, trial: int, step: Step) -> Any:
        """Return the user's trainer of a registered trial with its state after `step` >= 1 steps.

        Raises
        ------
        ConfigurationError, StorageError, TrainerError
            As `at`.
        """
        state, node = self.at(trial, step), self._plan.node_at(trial, step)
        proof = self._store.load(node.key_at(step))[1].proof if self._is_stored(node, step) else ""
        with _undisturbed(), _blaming():
            try:
                return self._begin(node, step, state, proof).trainer
            except ResumeError as error:
                logger.warning(
                    "the trainer of trial %d at step %d is not what it was:\n%s", trial, step, error
                )
                return self._begin(node, step, state).trainer

    def _is_stored(self, node: Node, step: Step) -> bool:
        return self._store.commit_of(node.key_at(step)) is not None

    def _train(self, trial: int, node: Node, step: Step) -> tuple[Snapshot, dict[str, Any]]:
        """Train to a step from the nearest state; return the state and its commit's content."""
        if self._training.problem:
            raise ConfigurationError(
                f"the state of trial {trial} at step {step} is not stored, and it cannot be "
                f"trained again: {self._training.problem}"
            )
        start, state, parent, proof = self._nearest(node, step)
        logger.warning(
            "trial %d: the state at step %d is not stored; training %s again, from step %d",
            *(trial, step, counted(step - start, "step"), start),
        )
        with _undisturbed(), _blaming():
            try:
                run = self._begin(node, start, state, proof)
            except ResumeError as error:
                logger.warning("training from step 0, since this one cannot go on:\n%s", error)
                run, start, parent = self._begin(node, 0, None), 0, None
            began = time.perf_counter()
            for at in range(start, step):
                run.advance(_values(node, at))
            seconds = time.perf_counter() - began
            state = run.state()
            left = run.proof(state)
        known = node.metrics.get(step)
        return encode(state), {
            "step": step,
            "parent": parent,
            "reports": () if known is None else ((step, known),),
            "environment": environment(DEVICE),
            "seconds": seconds,
            "proof": packed(left),
        }

    def _begin(self, node: Node, start: Step, state: Any, proof: str = "") -> TrainerRun:
        """Return a trainer that holds the state at a step of a node or above it.

        Raises
        ------
        ResumeError
            If it is another one than that which left this proof.
        """
        given: dict[str, Any] = {
            "config": self._training.config,
            "seed": self._training.seed + self._plan.seed_of(node),
            "device": DEVICE,
            # Others may run in this process at the same time.
            "proving": Proving(owns_process=False, proof=unpacked(proof) if proof else None),
        }
        first = _values(node, 0)
        if start == 0:
            return TrainerRun.start(self._training.trainer, first, **given)
        return TrainerRun.resume(
            self._training.trainer,
            step=start,
            first_values=first,
            last_values=_values(node, start - 1),
            state=state,
            **given,
        )

    def _nearest(self, node: Node, step: Step) -> tuple[Step, Any, str | None, str]:
        """Return step, state, digest and proof of the last state before `step` that can be read."""
        for above in node.up():
            for at in sorted(above.starts, reverse=True):
                if at >= step:
                    continue
                try:
                    state, commit = self._store.load(above.key_at(at))
                except (CorruptCheckpointError, OtherFormatError) as error:
                    logger.info("step %d: %s", at, error)
                else:
                    return at, state, commit.digest, commit.proof
        return 0, None, None, ""

    def _save(
        self,
        node: Node,
        key: str,
        snapshot: Snapshot,
        commit: Mapping[str, Any],
        missing: StorageError,
    ) -> Commit | None:
        """Save a state that was missing; return the commit that counts, or None.

        A user who may only read the store gets the state without a save.
        """
        if self._recorder is None:
            return None
        try:
            if isinstance(missing, CorruptCheckpointError):
                # The corrupt checkpoint is older, so it would win over the new one.
                self._store.discard(key, attempt=missing.attempt)
            attempt = f"again-{uuid4().hex[:16]}"
            winner = self._store.save(snapshot, key=key, attempt=attempt, **commit)
            self._recorder.checkpoint(node, winner)
            self._recorder.flush()
        except StorageError as error:
            logger.warning("the state that was trained again is not saved: %s", error)
            return None
        return winner


def best_step(results: StudyResults, trial: int | None) -> tuple[int, Step]:
    """Return the trial and the step with the best finite metric; the earliest of equal ones.

    Failed trials and trials without a state do not count, unless one of them is the given trial. Of
    several metrics the first counts.

    Raises
    ------
    ConfigurationError
        If the trial has no state (`chosen_step`), or no step has a finite value.
    """
    records = results.records
    if trial is not None:
        chosen_step(records, trial, None)
    counted = [
        record
        for record in records.values()
        if record.was_trained_here and record.state is not TrialState.FAIL
    ]
    losses = {
        (record.number, step): value if results.direction is Direction.MINIMIZE else -value
        for record in (counted if trial is None else [records[trial]])
        for step, value in trial_of(
            results.plan, record, results.metric
        ).intermediate_values.items()
        if step <= record.steps and math.isfinite(value)
    }
    if not losses:
        where = f"study {results.name!r}" if trial is None else f"trial {trial}"
        raise ConfigurationError(f"{where} has no step with a finite {results.metric!r} yet")
    return min(losses, key=lambda place: (losses[place], place[1], place[0]))


def chosen_step(records: Mapping[int, TrialRecord], trial: int, step: Step | str | None) -> Step:
    """Return the given step of a trial, checked; its last step if None.

    Raises
    ------
    ConfigurationError
        If the trial does not exist, or was trained elsewhere, or less far.
    """
    record = records.get(trial)
    if record is None:
        known = f"0 to {max(records)}" if records else "those of the study, which has none yet"
        raise ConfigurationError(f"trial must be one of {known}, got {trial!r}")
    if not record.was_trained_here:
        raise ConfigurationError(f"trial {trial} was added with its result: it has no state here")
    if record.steps < 1:
        raise ConfigurationError(f"trial {trial} has no report yet, and so no state to take")
    if step is None:
        return record.steps
    if (whole := whole_of(step, most=record.steps)) is None:
        raise ConfigurationError(
            f"step of trial {trial} must be 1 to {record.steps}, or {BEST!r}, got {step!r}"
        )
    return whole


def _values(node: Node, step: Step) -> dict[str, Value]:
    """Return the hyper-parameters at a step of a node or above it."""
    return {name: sequence(step) for name, sequence in node.sequences.items()}


@contextmanager
def _blaming() -> Iterator[None]:
    """Raise errors of user code as `TrainerError`."""
    try:
        yield
    except DasktuneError:
        raise
    # A trainer may raise any exception; its author has to fix it.
    except Exception as error:
        message = traceback.format_exception_only(error)[-1].strip()
        raise TrainerError(message, "".join(traceback.format_exception(error))) from error


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Restore the global state that trainers change: generators, torch's threads and options.

    A cluster or client in this process does not disturb the trainer's generators: it has its
    own generator from then on.
    """
    give_own_generator()
    states = global_states()
    torch = sys.modules.get("torch")
    if torch is not None:
        threads, benchmark = torch.get_num_threads(), torch.backends.cudnn.benchmark
        is_exact = torch.are_deterministic_algorithms_enabled()
        warns = torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        yield
    finally:
        restore_global(states)
        if torch is not None:
            torch.set_num_threads(threads)
            use_deterministic_algorithms(is_exact, warns=warns)
            torch.backends.cudnn.benchmark = benchmark

"""An audit on a worker: steps that are trained already, trained again and compared.

It loads a stored state in a new trainer and trains on. Metrics and states on the way must be those
that are stored, bit for bit; on a GPU, within the tolerance of `check_resume`. What was made with
other versions, or on another kind of device, shows nothing about the trainer. It writes nothing.

Workers of another type of CPU, or with another number of threads, may compute other bits. So a
difference is not blamed on the trainer before this worker has trained both ways by itself: once
without a stop, and once with a resume. If these two are the same, this worker cannot be compared
with the one that trained.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dasktune._worker.control import Control
from dasktune._worker.divided import AnyRun, DividedRun
from dasktune._worker.errors_in_words import in_words
from dasktune._worker.job import AuditSpec, Job
from dasktune._worker.messages import AuditEnded, AuditStatus
from dasktune._worker.peers import LenderLostError
from dasktune._worker.step_watch import StepWatch
from dasktune._worker.trainers import Trainers, proof_of, sequences_of
from dasktune._worker.writer import StateWriter
from dasktune.errors import CorruptCheckpointError
from dasktune.graph.devices import devices_at, without_devices
from dasktune.storage.codec import Snapshot, decode, encode
from dasktune.trainer.base import is_harmless
from dasktune.trainer.check_resume.check import tolerance_of
from dasktune.trainer.environment import is_same_environment
from dasktune.trainer.proof.differences import Difference, state_differences
from dasktune.trainer.proof.remedies import harmless_in_state
from dasktune.types import Metrics, Step

MOST_DIFFERENCES = 8
"""Parts of a state that are named."""


class _ToldToEndError(Exception):
    """The audit was told to end."""


@dataclass(slots=True, kw_only=True)
class _Way:
    """The metrics of one trainer of this worker by step, and copies and proofs of some states."""

    metrics: dict[Step, Metrics] = field(default_factory=dict)
    states: dict[Step, Snapshot] = field(default_factory=dict)
    proofs: dict[Step, Mapping[str, str]] = field(default_factory=dict)

    def add_state(self, run: AnyRun) -> None:
        """Add a copy of the state of a trainer, and its proof."""
        state = run.state()
        self.proofs[run.step] = run.proof(state)
        self.states[run.step] = encode(state)


class AuditRun:
    """One audit while it runs."""

    def __init__(
        self,
        spec: AuditSpec,
        control: Control,
        *,
        job: Job,
        trainers: Trainers,
        writer: StateWriter,
        watch: StepWatch,
    ) -> None:
        self._spec, self._control, self._keyed = spec, control, sequences_of(spec.stage)
        self._sequences = without_devices(self._keyed)
        self._environment = job.environment
        self._trainers, self._writer, self._watch = trainers, writer, watch
        self._tolerance = tolerance_of(job.trainer_class, job.device)
        self._harmless = harmless_in_state(job.trainer_class)
        self._end_step = spec.stage.start
        self._steps, self._compared = 0, 0
        self.start_seconds = 0.0
        """Time until the trainer was built and loaded."""
        self._first = _Way()
        self._of_metrics: list[Difference] = []
        self._of_state: list[Difference] = []
        self._of_repetition: list[Difference] = []

    def train(self) -> AuditEnded:
        """Train steps again and compare their states, until two differ or the driver ends it."""
        try:
            self._heed_orders(self._spec.stage.start)
            if self._is_from_elsewhere():
                return self._end("elsewhere")
            return self._trained()
        except _ToldToEndError:
            return self.dropped()

    def _trained(self) -> AuditEnded:
        stage, began = self._spec.stage, time.monotonic()
        try:
            run = self._begun(stage.start, stage.key)
        except CorruptCheckpointError:
            return self._end("missing")
        self.start_seconds = time.monotonic() - began
        while run.step < stage.stop and not self._of_state:
            run = self._advance(run)
            self._end_step = run.step
            self._compare(run)
        if not self._differences:
            return self._end("identical")
        return self._end("differs" if self._is_confirmed() else "incomparable")

    def failure(self, error: BaseException) -> AuditEnded:
        """Return the receipt of an audit whose trainer raised, or whose store cannot be read.

        One that has lost a lender is dropped: that worker may have got a stage.
        """
        if isinstance(error, LenderLostError):
            return self.dropped()
        return self._end("failed", in_words(error)["message"])

    def overdue(self, seconds: float, where: str) -> None:
        """Do nothing: the process ends, and the audit is dropped with it."""

    def dropped(self) -> AuditEnded:
        """Return the receipt of an audit that was told to end."""
        return self._end("dropped")

    # ------------------------------------------------------------ training

    def _begun(self, step: Step, key: str) -> AnyRun:
        """Return a new trainer that holds a stored state; at step 0 it is just built."""
        if step == 0:
            return self._begin(0)
        state, commit = self._writer.load(key)
        return self._begin(step, state, proof_of(commit))

    def _resumed(self, step: Step, way: _Way) -> AnyRun:
        """Return a new trainer that holds a state which this worker made before."""
        return self._begin(step, _decoded(way.states[step]), way.proofs[step])

    def _begin(
        self,
        step: Step,
        state: Mapping[str, object] | None = None,
        proof: Mapping[str, str] | None = None,
    ) -> AnyRun:
        """Return a new trainer that holds the state after a step."""
        stage, trainers = self._spec.stage, self._trainers
        lenders = tuple(stage.lenders[: devices_at(self._keyed, step) - 1])
        # It compares the steps; a trainer that cannot resume is found by them.
        proving = trainers.proving(proof, refuses=False)
        run = trainers.new(stage.seed, self._keyed, step, state, lenders, proving)
        # Not a difference of the trainer.
        trainers.known_files.refuse_changed(stage.files_known)
        return run

    def _advance(self, run: AnyRun) -> AnyRun:
        """Train a step; return the trainer, another one where the number of devices changes."""
        self._heed_orders(run.step)
        self._watch.begin()
        if devices_at(self._keyed, run.step) != (run.devices if isinstance(run, DividedRun) else 1):
            state = run.state()
            run = self._begin(run.step, _decoded(encode(state)), run.proof(state))
        run.advance({name: sequence(run.step) for name, sequence in self._sequences.items()})
        self._steps += 1
        return run

    def _heed_orders(self, step: Step) -> None:
        if self._control.passes(step)[1]:
            raise _ToldToEndError

    # ------------------------------------------------------------ both ways

    def _is_confirmed(self) -> bool:
        """Return whether a resume, or a repetition, changes what this worker computes."""
        for origin, key in self._spec.origins.items():
            splits = [step for step in self._spec.splits if origin < step < self._end_step]
            try:
                run = self._begun(origin, key)
            except CorruptCheckpointError:  # evicted since
                continue
            through = self._way(run, splits)
            if origin == self._spec.stage.start:
                repeated = self._first
            elif self._tolerance:
                repeated = self._way(self._begun(origin, key))
            else:
                repeated = None
            if repeated is not None and self._are_different(through, repeated):
                self._of_repetition += self._hints_of_rounding()
                return True
            if any(self._is_changed_by(split, through) for split in splits):
                return True
        return False

    def _hints_of_rounding(self) -> Iterator[Difference]:
        """Yield the other possible cause where a mere repetition differs on a GPU."""
        if self._tolerance:
            yield Difference(
                path="two trainings from this state",
                reason=f"differ by more than {self._tolerance:g} on this worker, too. If nothing "
                "outside the state is the cause, algorithms of the GPU are, which are not "
                "deterministic: a TorchTrainer with deterministic = True uses none",
            )

    def _is_changed_by(self, split: Step, through: _Way) -> bool:
        """Return whether training with a resume differs from training without one.

        A trainer may depend on a counter outside of it (of its class, of its module) that comes
        round after so many steps. By chance the counter may be where it was at the split. So the
        trainer resumes a second time, when the counter is one step further.
        """
        if self._are_different(through, self._way(self._resumed(split, through))):
            return True
        self._advance(self._resumed(split, through))
        return self._are_different(through, self._way(self._resumed(split, through)))

    def _way(self, run: AnyRun, splits: Collection[Step] = ()) -> _Way:
        """Train to the first difference, and evaluate where the study did.

        A copy of the state is kept at the splits, and at the end.
        """
        way = _Way()
        while run.step < self._end_step:
            run = self._advance(run)
            if run.step in self._spec.metrics or run.step in self._spec.measured:
                way.metrics[run.step] = run.evaluate()
            if run.step in splits or run.step == self._end_step:
                way.add_state(run)
        return way

    def _are_different(self, through: _Way, other: _Way) -> bool:
        """Return whether metrics, or the state at the end if the study stored it, differ."""
        for step in through.metrics.keys() & other.metrics.keys():
            pair = through.metrics[step], other.metrics[step]
            if any(self._differing(*pair, f"metrics[{step}]")):
                return True
        if self._end_step not in self._spec.states or self._end_step not in other.states:
            return False
        first, second = through.states[self._end_step], other.states[self._end_step]
        if first.digest == second.digest:
            return False
        return any(self._differing(_decoded(first), _decoded(second), "state"))

    # ------------------------------------------------------------ what is stored

    def _is_from_elsewhere(self) -> bool:
        """Return whether a state on the way was made in another environment than this one."""
        commits = self._trainers.store.commits(self._spec.states.values()).values()
        return not all(
            is_same_environment(commit.environment, self._environment) for commit in commits
        )

    def _compare(self, run: AnyRun) -> None:
        """Compare what is stored of the present step; of metrics, the first differences stand."""
        metrics = self._spec.metrics.get(run.step)
        if metrics is not None:
            measured = self._first.metrics[run.step] = run.evaluate()
            self._compared += 1
            if not self._of_metrics:
                path = f"metrics[{run.step}]"
                self._of_metrics += self._differing(metrics, measured, path)
        if run.step in self._spec.states:
            self._compare_state(run, self._spec.states[run.step])

    def _compare_state(self, run: AnyRun, key: str) -> None:
        state = run.state()
        snapshot, proof = encode(state), run.proof(state)
        self._watch.end()
        commit = self._trainers.store.commit_of(key)
        if commit is None:  # evicted since
            return
        self._compared += 1
        if commit.digest == snapshot.digest:
            return
        stored, _ = self._trainers.store.load(key)
        self._of_state += self._differing(stored, _decoded(snapshot), "state")
        if self._of_state:
            self._first.states[run.step], self._first.proofs[run.step] = snapshot, proof

    def _differing(self, stored: object, trained: object, path: str) -> Iterator[Difference]:
        differences = state_differences(stored, trained, path=path, tolerance=self._tolerance)
        return (each for each in differences if not is_harmless(each.path, self._harmless))

    @property
    def _differences(self) -> list[Difference]:
        return [*self._of_state[:MOST_DIFFERENCES], *self._of_metrics]

    def _end(self, status: AuditStatus, message: str = "") -> AuditEnded:
        return AuditEnded(
            audit=self._spec.stage.attempt,
            step=self._end_step,
            status=status,
            steps=self._steps,
            compared=self._compared,
            differences=tuple(_as_texts([*self._differences, *self._of_repetition])),
            message=message,
        )


def _decoded(snapshot: Snapshot) -> Any:
    return decode(snapshot.document, snapshot.data)


def _as_texts(differences: Iterable[Difference]) -> Iterator[tuple[str, str]]:
    return ((difference.path, difference.reason) for difference in differences)

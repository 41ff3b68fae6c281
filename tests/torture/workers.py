"""Worker processes as a driver sees them: they train, save and speak, each at its own time.

A worker runs what it is sent in order, one step at a time. It writes states behind training.
What it says comes in order and may be lost; what Dask says of an attempt comes by another
way, before or after. A worker that is *cut off* goes on, and nobody hears it in time.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from dasktune._worker.messages import (
    StageEnded,
    StageFailed,
    StageMessage,
    StageProgress,
    StageStarted,
    StageStatus,
    StateMeasured,
    StateOmitted,
    StateSaved,
    StepMetrics,
)
from dasktune.graph.events import RunStage, SavePoint, StopStage
from dasktune.types import Step
from tests.torture.fleet import ROOM, Machine
from tests.torture.ways import State, Way, metrics_of
from tests.torture.world import Store

Raises = Callable[[State], bool]
"""Whether the trainer raises, or its process dies, where it should get to a state."""

PEAK_BYTES = 40
"""Memory of a device that a stage uses, of 100."""


@dataclass(slots=True)
class Job:
    """A stage that a worker was sent."""

    order: RunStage
    way: Way
    position: Step
    began: bool = False
    unsaved: list[StepMetrics] = field(default_factory=list)
    unsent: list[StepMetrics] = field(default_factory=list)


@dataclass(slots=True)
class Control:
    """The instructions for an attempt, also those that arrive before it."""

    saves: set[Step] = field(default_factory=set)
    stop_at: Step | None = None
    lacks_lender: bool = False


@dataclass(slots=True)
class Write:
    """A state on its way to the store, or the word that it is not stored."""

    attempt: str
    step: Step
    key: str
    state: State
    reports: list[StepMetrics]
    is_omitted: bool = False


class Site(Protocol):
    """The other workers of a study, as one of them sees them."""

    def company(self, worker: Worker) -> int:
        """Return how many others use the device of a worker."""
        ...

    def peer(self, name: str) -> Worker | None:
        """Return a worker that is there."""
        ...


class Worker:
    """One process.

    Parameters
    ----------
    name
        Unique.
    store
        Where it saves.
    raises, dies
        See `Raises`.
    report_every
        Steps between two reports.
    trained
        Counts each step by the state that it makes.
    is_cheap
        Whether to store the state of a key takes longer than to train it again.
    machine, place
        What it has, and its number among the machines of the study.
    site
        Knows the other workers; None if it is alone.
    """

    def __init__(
        self,
        name: str,
        store: Store,
        raises: Raises,
        dies: Raises,
        report_every: int,
        trained: Counter[State] | None = None,
        is_cheap: Callable[[str], bool] = lambda key: False,
        *,
        machine: Machine | None = None,
        place: int = 0,
        site: Site | None = None,
    ) -> None:
        self.name = name
        self.machine = machine or Machine()
        self.place = place
        self._site = site
        self.inbox: list[RunStage | SavePoint | StopStage] = []
        self.jobs: list[Job] = []
        self.outbox: deque[StageMessage] = deque()
        self.receipts: deque[StageEnded] = deque()
        self.late: list[tuple[str, Step]] = []
        self.writes: deque[Write] = deque()
        self.asleep = 0
        self.is_dead = False
        self.is_broken = False
        self.is_full = False
        """Whether Dask has paused it: it begins no stage."""
        self.wrong: str | None = None
        """What it found that must not be, in words."""
        self._store = store
        self._raises = raises
        self._dies = dies
        self._report_every = report_every
        self._is_cheap = is_cheap
        self._trained = Counter[State]() if trained is None else trained
        self._warm: State | None = None
        self._save_is_due = False
        self._past: dict[str, tuple[str, Step]] = {}
        self._controls: dict[str, Control] = {}

    @property
    def is_busy(self) -> bool:
        """Whether it has anything to do or to say."""
        return bool(
            self.inbox or self.jobs or self.writes or self.outbox or self.receipts or self.late
        )

    def take(self, at: int, way: Callable[[RunStage], Way]) -> None:
        """Receive one of the messages in flight to this worker."""
        message = self.inbox.pop(at)
        if isinstance(message, RunStage):
            self.jobs.append(Job(message, way(message), message.start))
            self.jobs.sort(key=lambda job: job.order.order)
            return
        if message.attempt in self._past:
            if isinstance(message, SavePoint):
                self.late.append((message.attempt, message.step))
            return
        control = self._control(message.attempt)
        if isinstance(message, StopStage):
            control.lacks_lender |= bool(message.lost)
            stop = 0 if message.at is None else message.at
            control.stop_at = stop if control.stop_at is None else min(stop, control.stop_at)
            return
        control.saves.add(message.step)
        job = next((one for one in self.jobs if one.order.attempt == message.attempt), None)
        if job is not None and job.began and job.position >= message.step:
            self.late.append((message.attempt, message.step))

    def give_up(self) -> None:
        """Stop the running stage at its next step and start no other."""
        self.inbox.clear()
        self.jobs = [job for job in self.jobs if job.began]
        for job in self.jobs:
            self._control(job.order.attempt).stop_at = 0

    def forget(self, attempt: str) -> None:
        """Receive the cancellation of a stage that had not begun."""
        self._past[attempt] = ("lost", -1)

    def cancel(self, attempt: str) -> None:
        """Receive that Dask shall not run a stage: one that runs ends at its next step."""
        self.inbox = [
            each
            for each in self.inbox
            if not (isinstance(each, RunStage) and each.attempt == attempt)
        ]
        for job in [each for each in self.jobs if each.order.attempt == attempt]:
            if job.began:
                self._control(attempt).stop_at = 0
                return
            self.jobs.remove(job)
        self.forget(attempt)

    def work(self) -> None:
        """Begin a stage, or train one step."""
        job = self._running
        if job is not None:
            self._train(job)
            return
        if self.is_full:
            return
        job = next((one for one in self.jobs if self._may_begin(one.order)), None)
        if job is not None:
            self._begin(job)

    def write(self) -> None:
        """Commit the oldest snapshot, and say so."""
        write = self.writes.popleft()
        if write.is_omitted:
            self.outbox.append(
                StateOmitted(
                    attempt=write.attempt,
                    step=write.step,
                    key=write.key,
                    reported=tuple(step for step, _, _ in write.reports),
                )
            )
            return
        commit = self._store.save(
            write.key,
            write.state,
            attempt=write.attempt,
            step=write.step,
            reports=tuple([(step, metrics) for step, _, metrics in write.reports]),
        )
        self.outbox.append(
            StateSaved(
                attempt=write.attempt,
                step=write.step,
                key=write.key,
                by=commit.attempt,
                digest=commit.digest,
                nbytes=1,
                seconds=0.0,
                reported=tuple(step for step, _, _ in write.reports),
            )
        )

    def speak(self) -> None:
        """Send what was measured since the last time."""
        job = self._running
        if job is not None:
            self._flush(job)

    def save(self) -> None:
        """Save after the next step although nobody asked for it, because it is time to."""
        self._save_is_due = True

    @property
    def is_running(self) -> bool:
        """Whether it executes a stage."""
        return self._running is not None

    @property
    def lenders(self) -> tuple[str, ...]:
        """The workers that train what it trains now."""
        job = self._running
        return () if job is None else job.order.lenders

    @property
    def _running(self) -> Job | None:
        return next((job for job in self.jobs if job.began), None)

    def _may_begin(self, order: RunStage) -> bool:
        return order.after is None or order.after in self._past

    def _control(self, attempt: str) -> Control:
        return self._controls.setdefault(attempt, Control())

    def _begin(self, job: Job) -> None:
        order = job.order
        before = None if order.after is None else self._past[order.after]
        if before is not None and before != ("trained", order.start):
            self._end(job, "skipped")
            return
        job.began = True
        self.outbox.append(StageStarted(attempt=order.attempt, at=0.0))
        if self._control(order.attempt).stop_at is not None and self._is_at_stop(job):
            self._end(job, "stopped")
            return
        start = job.way.state(order.start)
        if order.start and self._warm != start:
            while self.writes:
                self.write()
            key = order.node.key_at(order.start)
            found = self._store.load(key)
            if found is None:
                self._warm = None
                self._end(job, "missing")
                return
            if found != start:
                self.wrong = f"the state under key {key} is another one than that of its values"
        self._warm = start
        if self._site is not None and self._site.company(self) >= ROOM:
            self._fail(job, "the device has no memory left", is_out_of_memory=True)
        elif order.start == order.stop:
            self._evaluate_only(job, start)

    def _is_at_stop(self, job: Job) -> bool:
        stop = self._control(job.order.attempt).stop_at
        return stop is not None and job.position >= stop

    def _evaluate_only(self, job: Job, state: State) -> None:
        attempt, step = job.order.attempt, job.order.stop
        report = (step, job.order.node.key_at(step), metrics_of(state))
        job.unsent.append(report)
        self._flush(job)
        self.outbox.append(StateMeasured(attempt=attempt, step=step, key=report[1]))
        self._end(job, "trained")

    def _has_lenders(self, job: Job) -> bool:
        """Whether the workers are there that train a stage with this one; their states give way."""
        for name in job.order.lenders:
            lender = None if self._site is None else self._site.peer(name)
            if lender is None or lender.is_dead:
                return False
            lender._warm = None
        return True

    def _fail(self, job: Job, message: str, *, is_out_of_memory: bool = False) -> None:
        self._warm = None
        self._flush(job)
        attempt, step = job.order.attempt, job.position
        self.outbox.append(
            StageFailed(
                attempt=attempt,
                step=step,
                at=0.0,
                message=message,
                traceback="",
                is_out_of_memory=is_out_of_memory,
            )
        )
        self._leave(job, "failed")
        self.receipts.append(StageEnded(attempt=attempt, step=step, status="failed", at=0.0))

    def _train(self, job: Job) -> None:
        order = job.order
        control = self._controls.get(order.attempt)
        if control is not None and control.lacks_lender:
            while self.writes:  # its states come first: of a lost attempt no more is heard
                self.write()
            self._warm = None
            self._end(job, "lost")
            return
        if not self._has_lenders(job):
            return  # it waits for the others until it is told that one is gone
        state = job.way.state(job.position + 1)
        if self._dies(state):
            self.is_dead = True
            return
        if self.is_broken or self._raises(state):
            self._fail(job, "boom")
            return
        job.position += 1
        self._trained[state] += 1
        self._warm = state
        stopped = control is not None and self._is_at_stop(job)
        at_end = stopped or job.position == order.stop
        wanted = control is not None and job.position in control.saves
        saves = at_end or wanted or self._save_is_due or job.position in order.saves
        if saves or job.position % self._report_every == 0:
            report = (job.position, order.node.key_at(job.position), metrics_of(state))
            job.unsaved.append(report)
            job.unsent.append(report)
        is_last = order.is_last and job.position == order.stop and not wanted
        omits = is_last and self._is_cheap(order.node.key_at(job.position))
        if saves:
            self._save(job, omits=omits)
        if at_end and omits:
            self._end(job, "trained", is_omitted=True)
        elif at_end:
            self._end(job, "trained" if job.position == order.stop else "stopped")

    def _save(self, job: Job, *, omits: bool) -> None:
        self._flush(job)
        step, key, _ = job.unsaved[-1]
        state = job.way.state(step)
        self.writes.append(Write(job.order.attempt, step, key, state, job.unsaved, omits))
        job.unsaved, self._save_is_due = [], False

    def _flush(self, job: Job) -> None:
        if job.unsent:
            attempt, step, reports = job.order.attempt, job.position, tuple(job.unsent)
            self.outbox.append(
                StageProgress(
                    attempt=attempt, step=step, seconds=self._seconds(job), reports=reports
                )
            )
            job.unsent = []

    def _end(self, job: Job, status: StageStatus, *, is_omitted: bool = False) -> None:
        self._flush(job)
        receipt = StageEnded(
            attempt=job.order.attempt,
            step=job.position,
            status=status,
            at=0.0,
            seconds=self._seconds(job),
            peak_bytes=PEAK_BYTES if self.machine.device else None,
            is_omitted=is_omitted,
        )
        self._leave(job, status)
        self.outbox.append(receipt)
        self.receipts.append(receipt)

    def _seconds(self, job: Job) -> float:
        return (job.position - job.order.start) * self.machine.pace

    def _leave(self, job: Job, status: str) -> None:
        self.jobs.remove(job)
        self._controls.pop(job.order.attempt, None)
        self._past[job.order.attempt] = (status, job.position)

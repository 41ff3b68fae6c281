"""The attempts under way: messages of workers become events; the store is asked for lost ones.

An attempt is under way from its submission until its last state is durable. Some messages of
its worker may be lost: metrics are in the commits, too, and a commit whose message does not
come is looked up. Each look-up is a note to the caller, who answers it later: nothing here waits
for the store. A state whose metrics the store cannot give is not recorded before it can: whoever
opens the study next takes it for one that only the store has, and reads its metrics there.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import assert_never

from dasktune._driver.recorder import Recorder
from dasktune._driver.waiting import trials_of
from dasktune._engine.timeouts import DURABLE_SECONDS, MISSED_SECONDS
from dasktune._worker.messages import (
    ResumeRefused,
    StageEnded,
    StageFailed,
    StageMessage,
    StagePrinted,
    StageProgress,
    StageStarted,
    StateMeasured,
    StateOmitted,
    StateSaved,
    StepMetrics,
    StoreFailed,
)
from dasktune.graph.events import (
    Event,
    Failed,
    Omitted,
    Progress,
    RunStage,
    Saved,
    Started,
    TrainingEnded,
    WorkerGone,
    WorkerLost,
)
from dasktune.graph.plan import Node
from dasktune.graph.view import AttemptView, RunView
from dasktune.logs import KEY_LETTERS, about, trials_text
from dasktune.storage.checkpoints import Commit
from dasktune.types import Metrics, Step, ended_at

logger = logging.getLogger(__name__)

MOST_REACH = 100
"""How many steps beyond what was heard of a worker may have saved whose scheduler is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """An attempt has come to `step`, and measured metrics that are not durable yet."""

    attempt: str
    step: Step
    metrics: tuple[Metrics, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDurable:
    """A state at or above a node is durable; `attempt` made it, or the one that was first.

    Metrics that it covers may be in the store only: then it is not recorded until `StateRecorded`,
    and must stay in the store.
    """

    node: Node
    attempt: str
    commit: Commit
    is_recorded: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRecorded:
    """A durable state of this key is recorded now, with metrics that were read from the store."""

    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLost:
    """An attempt was lost with its worker, or is taken from it: Dask must not run it any more."""

    attempt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUp:
    """A question which states of an attempt are in the store; `Attempts.looked_up` must follow."""

    attempt: str | None
    """The attempt; None for all states that are not recorded yet."""
    keys: tuple[str, ...]
    """The keys of the states."""
    message: StateSaved | StateMeasured | None = None
    """The message of a saved state whose metrics were lost; None if the messages of states were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageRefused:
    """A stage could not go on from a stored state: its trainer is not the one that saved it."""

    node: Node
    """The node whose stage it was."""
    step: Step
    """The step of the state."""
    text: str
    """What differs, in words."""
    paths: tuple[str, ...]
    """The parts that differ."""


Following = Event | Reached | StateDurable | StateRecorded | AttemptLost | LookUp | LineageRefused
"""What follows from a message: events for the engine, and notes for other parts of the driver."""


@dataclass(slots=True)
class _OpenAttempt:
    """An attempt of which something is still to be heard."""

    order: RunStage
    kind: str
    """The compute class of its worker."""
    reports: dict[Step, tuple[str, Metrics]] = field(default_factory=dict)
    ended_at: float | None = None
    """The time of its end, or of the last look-up after that."""
    was_ended_at: float = 0.0
    """The time of its end."""
    held: list[StageMessage] = field(default_factory=list)
    """The messages that wait until the metrics for the first of them are looked up."""
    is_asked: bool = False
    """Whether its states are being looked up."""
    is_omitted: bool = False
    """Whether its last state is not stored: only its messages tell of the metrics there."""


@dataclass(frozen=True, slots=True)
class _End:
    """The end of an attempt that is recorded once the engine has handled its event."""

    attempt: AttemptView
    at: float
    status: str
    message: str = ""


class Attempts:
    """The attempts under way: translates what workers say of them into events.

    Each method returns what follows, in order. The caller gives the events to the engine and then
    calls `settle`: how many steps were repeated, and whether an attempt is done with, is known only
    after that. `now` are seconds since the run began, `at` epoch seconds.
    """

    def __init__(self, view: RunView, recorder: Recorder) -> None:
        self.worker_seconds = 0.0
        """Seconds of workers on stages that ended, each of those that train together."""
        self.proof_seconds = 0.0
        """Seconds that the proofs of resumes have taken on workers."""
        self.latest: tuple[Step, Metrics] | None = None
        """The step and metrics that were heard of last."""
        self.trouble: str | None = None
        """The problem of a worker that could not store a state; None if all went well."""
        self._view = view
        self._recorder = recorder
        self._open: dict[str, _OpenAttempt] = {}
        self._unread: dict[str, tuple[Node, StateSaved]] = {}
        """The states by key that are not recorded, because their metrics are not known."""
        self._asked_at: float | None = None
        self._ends: list[_End] = []
        self._touched: dict[str, bool] = {}
        """The attempts whose events the engine is about to handle, and whether each is lost."""

    def __bool__(self) -> bool:
        """Return whether something is still to be heard."""
        return bool(self._open)

    @property
    def have_ended(self) -> bool:
        """Whether all attempts have ended, though states may not be durable yet."""
        return all(attempt.ended_at is not None for attempt in self._open.values())

    def add(self, order: RunStage, key: str) -> None:
        """Add an attempt that was submitted, and the key that its end will have."""
        attempt = self._view.attempts.get(order.attempt)
        kind = "" if attempt is None else attempt.kind
        self._open[order.attempt] = _OpenAttempt(order, kind)
        self._recorder.launched(order, key, kind)

    def order_of(self, attempt: str) -> RunStage | None:
        """Return the order of an attempt of which no end was heard yet."""
        known = self._open.get(attempt)
        return None if known is None or known.ended_at is not None else known.order

    def abandon(self, worker: str, now: float) -> list[Following]:
        """Return the events and notes for a worker that is gone; `lose` must follow.

        What it said before may still be received until then.
        """
        following = self._release_held(worker, now)
        slot = self._view.slots.get(worker)
        if slot is not None and slot.queue and slot.queue[0].id in self._open:
            # A step that kills its process at once is never heard of: it counts as started, or
            # the stage would be tried for ever.
            following.append(Started(attempt=slot.queue[0].id))
        following += [AttemptLost(attempt=attempt.id) for attempt in self._attempts_on(worker)]
        return [*following, WorkerGone(worker=worker)]

    def take_back(self, resting: Collection[str], *, now: float, at: float) -> list[Following]:
        """Return the events and notes that take stages from workers that do not begin them.

        `resting` workers execute nothing, since Dask has paused them.
        """
        waiting = [
            attempt
            for worker in resting
            for attempt in reversed(self._attempts_on(worker))
            if not attempt.has_begun and self.order_of(attempt.id) is not None
        ]
        following: list[Following] = []
        for attempt in waiting:
            lost = StageEnded(attempt=attempt.id, step=attempt.start, status="lost", at=at)
            following += [AttemptLost(attempt=attempt.id), *self.receive(lost, now)]
        return following

    def likely_saves(self, worker: str, *, goes_far: bool = False) -> list[str]:
        """Return the keys of states that a lost worker may have saved without a message.

        `goes_far`: it may have come far beyond the last step that was heard of.
        """
        reach = MOST_REACH if goes_far else 1
        return [
            key
            for attempt in self._attempts_on(worker)
            if (known := self._open.get(attempt.id)) is not None
            for key in _likely_keys(known.order, attempt, attempt.position + reach).values()
        ]

    def _attempts_on(self, worker: str) -> list[AttemptView]:
        return [attempt for attempt in self._view.attempts.values() if attempt.worker == worker]

    def lose(
        self,
        worker: str,
        commits: Mapping[str, Commit],
        *,
        now: float,
        at: float,
        is_blameless: bool = False,
    ) -> list[Following]:
        """Return the events and notes that follow from the loss of a worker's attempts, at a time.

        `commits` are those of its `likely_saves` that are in the store.
        """
        following = self._release_held(worker, now)
        lost = self._attempts_on(worker)
        for attempt in lost:
            known = self._open.get(attempt.id)
            if known is not None:
                following += self._found(known, attempt, commits)
            if not attempt.ended:
                self.worker_seconds += self._recorder.worker_seconds(attempt.id, at)
        following.append(WorkerLost(worker=worker, is_blameless=is_blameless))
        for attempt in lost:
            self._ends.append(_End(attempt, at, "lost"))
            self._touched[attempt.id] = True
        return following

    def close(self) -> None:
        """Record what has ended and is not in the store: nobody waits for it any more."""
        for attempt_id in self._open:
            attempt = self._view.attempts.get(attempt_id)
            if attempt is not None:
                self._recorder.unsaved(attempt_id, max(attempt.saved, attempt.start))

    def check(self, now: float) -> list[LookUp]:
        """Return the look-ups of states whose messages do not come."""
        questions: list[LookUp] = []
        for attempt_id, known in list(self._open.items()):
            if known.ended_at is None or now - known.ended_at < DURABLE_SECONDS:
                continue
            known.ended_at = now
            attempt = self._view.attempts.get(attempt_id)
            if attempt is None:
                del self._open[attempt_id]
            elif not known.is_asked:
                known.is_asked = True
                keys = _likely_keys(known.order, attempt, attempt.position)
                questions.append(LookUp(attempt=attempt_id, keys=tuple(keys.values())))
        if self._unread and (self._asked_at is None or now - self._asked_at >= DURABLE_SECONDS):
            self._asked_at = now
            questions.append(LookUp(attempt=None, keys=tuple(self._unread)))
        return questions

    def looked_up(
        self, question: LookUp, commits: Mapping[str, Commit], now: float
    ) -> Iterator[Following]:
        """Yield the events and notes that follow from the answer to a look-up.

        `commits` are those of its keys that are in the store and can be read.
        """
        if question.attempt is None:
            yield from self._record_unread(commits)
            return
        known = self._open.get(question.attempt)
        if known is None:
            return
        if question.message is not None:
            yield from self._reports_found(known, question.message, commits, now)
            return
        known.is_asked = False
        attempt = self._view.attempts.get(question.attempt)
        if attempt is not None:
            yield from self._found(known, attempt, commits)
            yield from self._without_end(known, attempt, now)

    def _without_end(
        self, known: _OpenAttempt, attempt: AttemptView, now: float
    ) -> Iterator[TrainingEnded]:
        """Yield the loss of an attempt whose last message was lost, and whose state is not stored.

        Where the state is left out, the message waits until the states before it are stored.
        """
        order, attempts = known.order, self._view.attempts
        waits = order.after in attempts or attempt.saved < max(order.saves, default=-1)
        is_due = known.is_omitted and not waits
        if attempt.id in attempts and (is_due or now - known.was_ended_at >= MISSED_SECONDS):
            logger.info("the last message of attempt %s was lost: trained again", attempt.id)
            self._touched.setdefault(attempt.id, False)
            yield TrainingEnded(attempt=attempt.id, step=order.start, status="lost")

    def _reports_found(
        self,
        known: _OpenAttempt,
        message: StateSaved | StateMeasured,
        commits: Mapping[str, Commit],
        now: float,
    ) -> Iterator[Following]:
        """Handle a message whose metrics were looked up, and those that came after it.

        Metrics that the store cannot give either are left out: a worker evaluates the state
        again, or trains it again if the state is corrupt, too. They are looked up again later.
        """
        if not known.held or known.held[0] is not message:
            return  # its worker was lost meanwhile
        commit, node = commits.get(message.key), known.order.node
        if commit is None:
            logger.warning("the metrics of state %s cannot be read", message.key)
        for step, metrics in () if commit is None else commit.reports:
            known.reports.setdefault(step, (node.key_at(step), metrics))
        held, known.held = known.held[1:], []
        yield from self._handle(known, message, now)
        for later in held:
            yield from self.receive(later, now)

    def _record_unread(self, commits: Mapping[str, Commit]) -> Iterator[StateRecorded]:
        """Record states whose metrics the store could not give before."""
        for key, commit in commits.items():
            if key not in self._unread:
                continue  # another attempt has saved it again meanwhile
            node, message = self._unread.pop(key)
            reports = [(step, node.key_at(step), metrics) for step, metrics in commit.reports]
            self._recorder.metrics(node, reports)
            self._record(node, message)
            yield StateRecorded(key=key)

    def _release_held(self, worker: str, now: float) -> list[Following]:
        """Handle the messages of a worker that wait for metrics, without these metrics."""
        following: list[Following] = []
        for attempt in self._attempts_on(worker):
            known = self._open.get(attempt.id)
            if known is not None:
                held, known.held = known.held, []
                for message in held:
                    following += self._handle(known, message, now)
        return following

    def receive(self, message: StageMessage, now: float) -> list[Following]:
        """Return the events and notes that follow from a message, or a receipt, of a worker."""
        known = self._open.get(message.attempt)
        if known is None:
            return []
        if known.held:
            known.held.append(message)
            return []
        if isinstance(message, StateSaved | StateMeasured) and _lacks_metrics(known, message):
            known.held.append(message)
            return [LookUp(attempt=message.attempt, keys=(message.key,), message=message)]
        return self._handle(known, message, now)

    def _handle(self, known: _OpenAttempt, message: StageMessage, now: float) -> list[Following]:
        """Return the events and notes that follow from a message that need not wait."""
        match message:
            case StageStarted(attempt=attempt, at=at):
                self._recorder.started(attempt, at)
                _log(known.order, logging.INFO, "started")
                return [Started(attempt=attempt)]
            case StageProgress(attempt=attempt, step=step, seconds=seconds):
                for at, key, metrics in message.reports:
                    known.reports[at] = (key, metrics)
                    self.latest = (at, metrics)
                measured = tuple(metrics for _, _, metrics in message.reports)
                ends = [end for metrics in measured if (end := ended_at(metrics)) is not None]
                return [
                    Reached(attempt=attempt, step=step, metrics=measured),
                    Progress(
                        attempt=attempt,
                        step=step,
                        seconds=seconds,
                        trainer_ended_at=min(ends, default=None),
                    ),
                ]
            case StateSaved():
                return self._saved(known, message)
            case StateOmitted():
                return self._omitted(known, message)
            case StateMeasured(attempt=attempt, step=step):
                return [self._durable(known, attempt, step, _take_reports(known, (step,)))]
            case StageEnded():
                return self._ended(known, message, now)
            case StageFailed():
                return self._failed(known, message)
            case ResumeRefused(step=step, message=text, paths=paths):
                _log(known.order, logging.INFO, f"cannot resume after step {step}", step)
                return [LineageRefused(node=known.order.node, step=step, text=text, paths=paths)]
            case StagePrinted(attempt=attempt, text=text):
                self._recorder.printed(attempt, text)
                return []
            case StoreFailed():
                self.trouble = message.message
                return []
            case _:
                assert_never(message)

    def settle(self) -> None:
        """Record the ends that the engine has handled; forget attempts that are done with."""
        for end in self._ends:
            self._recorder.ended(
                end.attempt.id,
                end.at,
                status=end.status,
                step=end.attempt.trained_to,
                repeated=end.attempt.repeated,
                message=end.message,
            )
        self._ends.clear()
        for attempt, is_lost in self._touched.items():
            if is_lost or attempt not in self._view.attempts:
                self._open.pop(attempt, None)
                self._recorder.settled(attempt)
        self._touched.clear()

    def _saved(self, known: _OpenAttempt, message: StateSaved) -> list[Following]:
        """Return the events and notes of a durable state: its metrics are durable with it."""
        attempt, step, node = message.attempt, message.step, known.order.node
        if message.differs:
            logger.warning(
                "attempt %s gave another state at step %d than %s, which was first: training is "
                "not deterministic; the first one stands",
                attempt,
                step,
                message.by,
            )
        is_recorded = not _lacks_metrics(known, message)
        reports = list(message.replaced) or _take_reports(known, message.reported)
        if is_recorded:
            self._unread.pop(message.key, None)
            self._record(node, message)
        else:
            self._unread[message.key] = node, message
        self._recorder.saved(attempt, step)
        if message.suspend_seconds is not None and _is_suspension(known.order, step):
            self._recorder.suspended(attempt, message.suspend_seconds, message.snapshot_bytes)
        paces = dict(zip(message.reported, message.paces, strict=False))
        return [
            StateDurable(
                node=node, attempt=attempt, commit=_commit_of(message), is_recorded=is_recorded
            ),
            self._durable(known, attempt, step, reports, paces),
        ]

    def _omitted(self, known: _OpenAttempt, message: StateOmitted) -> list[Following]:
        """Return the event of a state that is not stored: its metrics are durable without it.

        If some were lost, the message counts as lost, too.
        """
        if not known.reports.keys() >= set(message.reported):
            return []
        reports = _take_reports(known, message.reported)
        paces = dict(zip(message.reported, message.paces, strict=False))
        saved = self._durable(known, message.attempt, message.step, reports, paces)
        return [Omitted(attempt=saved.attempt, step=saved.step, reports=saved.reports)]

    def _record(self, node: Node, message: StateSaved) -> None:
        """Record a state whose metrics are recorded, too."""
        hold_up, latency = message.hold_up, message.latency
        self._recorder.checkpoint(node, _commit_of(message), hold_up=hold_up, latency=latency)

    def _durable(
        self,
        known: _OpenAttempt,
        attempt: str,
        step: Step,
        reports: Collection[StepMetrics],
        paces: Mapping[Step, float] | None = None,
    ) -> Saved:
        """Record the metrics that a durable state at `step` covers; return its event."""
        self._recorder.metrics(known.order.node, reports, paces, known.kind)
        self._touched.setdefault(attempt, False)
        metrics = tuple((at, values) for at, _, values in reports)
        return Saved(attempt=attempt, step=step, reports=metrics)

    def _ended(self, known: _OpenAttempt, message: StageEnded, now: float) -> list[Following]:
        if known.ended_at is None:  # Dask may have told it before
            self.worker_seconds += message.seconds * len(known.order.workers)
            known.was_ended_at = now
        known.ended_at, known.is_omitted = now, message.is_omitted
        attempt = self._view.attempts.get(message.attempt)
        if message.status == "missing" and not (attempt and attempt.uprooted):
            key = known.order.node.key_at(known.order.start)
            logger.warning("state %s is missing or corrupt; it is trained again", key)
            self._recorder.forget(key)
        self.proof_seconds += message.proof_seconds
        if message.start_seconds is not None:
            self._recorder.held(message.attempt, message.start_seconds)
        # Dask alone has told of a stage that failed: the message with the reason was lost.
        status = "lost" if message.status == "failed" else message.status
        _log(known.order, logging.INFO, f"ended ({status})", message.step)
        self._note_end(attempt, message.attempt, message.at, status)
        seconds = message.seconds + message.evaluate_seconds
        return [
            Reached(attempt=message.attempt, step=message.step),
            TrainingEnded(
                attempt=message.attempt,
                step=message.step,
                status=status,
                seconds=seconds,
                load_seconds=(message.start_seconds or 0.0) if known.order.start else 0.0,
                peak_bytes=message.peak_bytes or 0,
            ),
        ]

    def _failed(self, known: _OpenAttempt, message: StageFailed) -> list[Following]:
        text = f"failed after step {message.step}: {message.message}"
        # Other workers may try it again: if they fail, too, the failure of its trials is a warning.
        _log(known.order, logging.INFO, text, message.step)
        attempt = self._view.attempts.get(message.attempt)
        self.worker_seconds += self._recorder.worker_seconds(message.attempt, message.at)
        self._note_end(attempt, message.attempt, message.at, "failed", message.message)
        return [
            # What it trained before it raised is a repeat for whoever tries it again.
            Reached(attempt=message.attempt, step=message.step),
            Failed(
                attempt=message.attempt,
                step=message.step,
                message=message.message,
                traceback=message.traceback,
                is_out_of_memory=message.is_out_of_memory,
            ),
        ]

    def _note_end(
        self, attempt: AttemptView | None, name: str, at: float, status: str, message: str = ""
    ) -> None:
        """Note an end, for `settle` to record."""
        self._touched.setdefault(name, False)
        if attempt is not None:
            self._ends.append(_End(attempt, at, status, message))

    def _found(
        self,
        known: _OpenAttempt,
        attempt: AttemptView,
        commits: Mapping[str, Commit],
    ) -> list[Following]:
        """Return the events and notes of the states of an attempt that are in the store."""
        first = max(attempt.saved, attempt.start) + 1
        following: list[Following] = []
        for commit in sorted(commits.values(), key=lambda commit: commit.step):
            step = commit.step
            is_its = first <= step <= attempt.stop
            if is_its and attempt.node_at(step).key_at(step) == commit.key:
                following += self._saved(known, _saved_message(attempt, step, commit))
        return following


def _commit_of(message: StateSaved) -> Commit:
    """Return the commit of which a message tells, without its metrics."""
    return Commit(
        key=message.key,
        attempt=message.by,
        step=message.step,
        digest=message.digest,
        nbytes=message.nbytes,
        seconds=message.seconds,
    )


def _lacks_metrics(known: _OpenAttempt, message: StateSaved | StateMeasured) -> bool:
    """Return whether the driver still lacks metrics that belong to a message."""
    match message:
        case StateSaved(replaced=replaced, reported=reported):
            return not replaced and not known.reports.keys() >= set(reported)
        case StateMeasured(step=step):
            return step not in known.reports
        case _:
            assert_never(message)


def _take_reports(known: _OpenAttempt, steps: Iterable[Step]) -> list[StepMetrics]:
    """Return the metrics at steps, in this order, that were received; they are forgotten here."""
    return [(step, *known.reports.pop(step)) for step in sorted(steps) if step in known.reports]


def _likely_keys(order: RunStage, attempt: AttemptView, until: Step) -> dict[Step, str]:
    """Return the keys by ascending step at which an attempt is likely to have saved its state.

    It may have come to the step `until`.
    """
    ends = (node.stop for node in attempt.leaf.up())
    likely = {*range(attempt.position, until + 1), attempt.stop, *order.saves, *ends}
    first = max(attempt.saved, attempt.start) + 1
    steps = [step for step in sorted(likely) if first <= step <= attempt.stop]
    return {step: attempt.node_at(step).key_at(step) for step in steps}


def _saved_message(attempt: AttemptView, step: Step, commit: Commit) -> StateSaved:
    """Return the message, which was lost, about a state that the store has."""
    node = attempt.node_at(step)
    return StateSaved(
        attempt=attempt.id,
        step=step,
        key=commit.key,
        by=commit.attempt,
        digest=commit.digest,
        nbytes=commit.nbytes,
        seconds=commit.seconds,
        replaced=tuple((at, node.key_at(at), metrics) for at, metrics in commit.reports),
    )


def _is_suspension(order: RunStage, step: Step) -> bool:
    """Return whether a stage's last state is where a trial is left for now.

    Either it was stopped before its end, or its end is what a trial was asked to come to; at
    others its worker goes on with the next stage of a path.
    """
    return step < order.stop or bool(order.node.requests)


def _log(order: RunStage, level: int, text: str, step: Step | None = None) -> None:
    """Log a line about a stage, with all that tells it apart."""
    if not logger.isEnabledFor(level):
        return
    trials = trials_of(order.node)
    logger.log(
        level,
        "stage of %s, steps %d to %d on %s, %s",
        *(trials_text(trials), order.start, order.stop, order.worker, text),
        extra=about(
            trials=trials,
            stage=order.node.key_at(order.stop)[:KEY_LETTERS],
            start=order.start,
            stop=order.stop,
            step=step,
            attempt=order.attempt,
            worker=order.worker,
        ),
    )

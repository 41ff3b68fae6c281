"""The attempts under way: messages of workers become events; the store is asked for lost ones.

An attempt is under way from its submission until its last state is durable. Some messages of
its worker may be lost: metrics are in the commits, too, and a commit whose message does not
come is looked up.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import assert_never

from dasktune.driver.recorder import Recorder
from dasktune.driver.waiting import trials_of
from dasktune.engine.timeouts import DURABLE_SECONDS
from dasktune.errors import StorageError
from dasktune.graph.events import (
    Event,
    Failed,
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
from dasktune.storage.checkpoints import CheckpointStore, Commit
from dasktune.types import Metrics, Step
from dasktune.worker.messages import (
    StageEnded,
    StageFailed,
    StageMessage,
    StageProgress,
    StageStarted,
    StateMeasured,
    StateSaved,
    StepMetrics,
    StoreFailed,
)

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
    """A state at or above a node is durable; `attempt` made it, or the one that was first."""

    node: Node
    attempt: str
    commit: Commit


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLost:
    """An attempt was lost with its worker: it must not go on elsewhere."""

    attempt: str


Following = Event | Reached | StateDurable | AttemptLost
"""What follows from a message: events for the engine, and notes for other parts of the driver."""


@dataclass(slots=True)
class _OpenAttempt:
    """An attempt of which something is still to be heard."""

    order: RunStage
    reports: dict[Step, tuple[str, Metrics]] = field(default_factory=dict)
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class _End:
    """The end of an attempt that is recorded once the engine has handled its event."""

    attempt: AttemptView
    at: float
    status: str
    message: str = ""


class Attempts:
    """The attempts under way: translates what workers say of them into events.

    Each method returns what follows, in order. The caller gives the events to the engine and
    then calls `settle`: how many steps were repeated, and whether an attempt is done with, is
    known only after that.

    Parameters
    ----------
    view
        The run as the engine has it.
    recorder
        Records states, metrics and ends.
    store
        Where states and metrics are looked up whose messages were lost: it must not wait long,
        since the driver's loop waits for it.

    Attributes
    ----------
    worker_seconds
        Seconds that workers have spent on stages that ended.
    latest
        The step and metrics that were heard of last.
    trouble
        The problem of a worker that could not store a state, in words; None if all went well.
    """

    def __init__(
        self,
        view: RunView,
        recorder: Recorder,
        store: CheckpointStore,
    ) -> None:
        self.worker_seconds = 0.0
        self.latest: tuple[Step, Metrics] | None = None
        self.trouble: str | None = None
        self._view = view
        self._recorder = recorder
        self._store = store
        self._open: dict[str, _OpenAttempt] = {}
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
        self._open[order.attempt] = _OpenAttempt(order)
        self._recorder.launched(order, key)

    def order_of(self, attempt: str) -> RunStage | None:
        """Return the order of an attempt of which no end was heard yet."""
        known = self._open.get(attempt)
        return None if known is None or known.ended_at is not None else known.order

    def abandon(self, worker: str) -> list[Following]:
        """Return the events and notes for a worker that is gone; `lose` must follow.

        What it said before may still be received until then.
        """
        following: list[Following] = []
        slot = self._view.slots.get(worker)
        if slot is not None and slot.queue and slot.queue[0].id in self._open:
            # A step that kills its process at once is never heard of: it counts as started, or
            # the stage would be tried for ever.
            following.append(Started(attempt=slot.queue[0].id))
        following += [AttemptLost(attempt=attempt.id) for attempt in self._attempts_on(worker)]
        return [*following, WorkerGone(worker=worker)]

    def likely_saves(self, worker: str, *, goes_far: bool = False) -> list[str]:
        """Return the keys of states that a lost worker may have saved without a message.

        Parameters
        ----------
        worker
            Its address.
        goes_far
            Whether it may have come far beyond the last step that was heard of.
        """
        reach = MOST_REACH if goes_far else 1
        return [
            key
            for attempt in self._attempts_on(worker)
            if (known := self._open.get(attempt.id)) is not None
            for key in _likely_keys(known.order, attempt, attempt.position + reach).values()
        ]

    def look_up(self, keys: Collection[str]) -> Mapping[str, Commit]:
        """Return the commits of keys that are in the store; any thread may call this.

        There are none if the store does not answer: their states are trained again.
        """
        try:
            return self._store.commits(keys)
        except StorageError as error:
            logger.warning("states of a lost worker could not be looked up: %s", error)
            return {}

    def _attempts_on(self, worker: str) -> list[AttemptView]:
        return [attempt for attempt in self._view.attempts.values() if attempt.worker == worker]

    def lose(
        self, worker: str, commits: Mapping[str, Commit], *, at: float, is_blameless: bool = False
    ) -> list[Following]:
        """Return the events and notes that follow from the loss of a worker's attempts.

        Parameters
        ----------
        worker
            Its address.
        commits
            Those of its `likely_saves` that are in the store.
        at
            Epoch seconds at which it was lost.
        is_blameless
            See `WorkerLost`.
        """
        following: list[Following] = []
        lost = self._attempts_on(worker)
        for attempt in lost:
            known = self._open.get(attempt.id)
            if known is not None:
                following += self._found(known, attempt, commits)
            if not attempt.ended:
                self.worker_seconds += self._recorder.seconds_of(attempt.id, at)
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

    def check(self, now: float) -> list[Following]:
        """Ask the store about states whose messages do not come; return what follows."""
        following: list[Following] = []
        for attempt_id, known in list(self._open.items()):
            if known.ended_at is None or now - known.ended_at < DURABLE_SECONDS:
                continue
            known.ended_at = now
            attempt = self._view.attempts.get(attempt_id)
            if attempt is None:
                del self._open[attempt_id]
                continue
            states = self._look_up_saves(known, attempt, until=attempt.position)
            if states is None:
                break  # the store is away: the others are looked up later, too
            following += states
        return following

    def receive(self, message: StageMessage, now: float) -> list[Following]:
        """Return the events and notes that follow from a message, or a receipt, of a worker."""
        known = self._open.get(message.attempt)
        if known is None:
            return []
        match message:
            case StageStarted(attempt=attempt, at=at):
                self._recorder.started(attempt, at)
                _log(known.order, logging.INFO, "started")
                return [Started(attempt=attempt)]
            case StageProgress(attempt=attempt, step=step):
                for at, key, metrics in message.reports:
                    known.reports[at] = (key, metrics)
                    self.latest = (at, metrics)
                measured = tuple(metrics for _, _, metrics in message.reports)
                return [
                    Reached(attempt=attempt, step=step, metrics=measured),
                    Progress(attempt=attempt, step=step),
                ]
            case StateSaved():
                return self._saved(known, message)
            case StateMeasured(attempt=attempt, key=key, step=step):
                return [self._durable(known, attempt, step, self._reports_of(known, key, (step,)))]
            case StageEnded():
                return self._ended(known, message, now)
            case StageFailed():
                return self._failed(known, message)
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
                step=end.attempt.position,
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
        reports = list(message.replaced)
        if not reports:
            reports = self._reports_of(known, message.key, message.reported)
        commit = Commit(
            key=message.key,
            attempt=message.by,
            step=step,
            digest=message.digest,
            nbytes=message.nbytes,
            seconds=message.seconds,
        )
        hold_up, latency = message.hold_up, message.latency
        self._recorder.checkpoint(node, commit, hold_up=hold_up, latency=latency)
        self._recorder.saved(attempt, step)
        if message.suspend_seconds is not None and _is_suspension(known.order, step):
            self._recorder.suspended(attempt, message.suspend_seconds, message.snapshot_bytes)
        paces = dict(zip(message.reported, message.paces, strict=False))
        return [
            StateDurable(node=node, attempt=attempt, commit=commit),
            self._durable(known, attempt, step, reports, paces),
        ]

    def _durable(
        self,
        known: _OpenAttempt,
        attempt: str,
        step: Step,
        reports: Collection[StepMetrics],
        paces: Mapping[Step, float] | None = None,
    ) -> Saved:
        """Record the metrics that a durable state at `step` covers; return its event."""
        self._recorder.metrics(known.order.node, reports, paces)
        self._touched.setdefault(attempt, False)
        metrics = tuple((at, values) for at, _, values in reports)
        return Saved(attempt=attempt, step=step, reports=metrics)

    def _reports_of(
        self, known: _OpenAttempt, key: str, steps: Iterable[Step]
    ) -> list[StepMetrics]:
        """Return the metrics that a saved state covers; asks the store for what was lost.

        Metrics that the store cannot give either are left out: a worker evaluates the state
        again, or trains it again if the state is corrupt, too.
        """
        reports, missing = [], []
        for step in steps:
            report = known.reports.pop(step, None)
            if report is None:
                missing.append(step)
            else:
                reports.append((step, *report))
        if missing:
            stored = self._stored_reports(key)
            node = known.order.node
            for step in missing:
                if step in stored:
                    reports.append((step, node.key_at(step), stored[step]))
        return sorted(reports, key=lambda report: report[0])

    def _stored_reports(self, key: str) -> dict[Step, Metrics]:
        """Return the metrics in the commit of a key; none if it is corrupt, newer or away."""
        try:
            commit = self._store.commits([key]).get(key)
        except StorageError as error:
            logger.warning("the metrics of state %s cannot be read: %s", key, error)
            return {}
        if commit is None:
            logger.warning("state %s has no commit that can be read", key)
            return {}
        return dict(commit.reports)

    def _ended(self, known: _OpenAttempt, message: StageEnded, now: float) -> list[Following]:
        if known.ended_at is None:  # Dask may have told it before
            self.worker_seconds += message.seconds
        known.ended_at = now
        attempt = self._view.attempts.get(message.attempt)
        if message.status == "missing" and not (attempt and attempt.uprooted):
            key = known.order.node.key_at(known.order.start)
            logger.warning("state %s is missing or corrupt; it is trained again", key)
            self._recorder.forget(key)
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
                attempt=message.attempt, step=message.step, status=status, seconds=seconds
            ),
        ]

    def _failed(self, known: _OpenAttempt, message: StageFailed) -> list[Following]:
        text = f"failed after step {message.step}: {message.message}"
        _log(known.order, logging.WARNING, text, message.step)
        attempt = self._view.attempts.get(message.attempt)
        self.worker_seconds += self._recorder.seconds_of(message.attempt, message.at)
        self._note_end(attempt, message.attempt, message.at, "failed", message.message)
        return [
            Failed(
                attempt=message.attempt,
                step=message.step,
                message=message.message,
                traceback=message.traceback,
            )
        ]

    def _note_end(
        self, attempt: AttemptView | None, name: str, at: float, status: str, message: str = ""
    ) -> None:
        """Note an end, for `settle` to record."""
        self._touched.setdefault(name, False)
        if attempt is not None:
            self._ends.append(_End(attempt, at, status, message))

    def _look_up_saves(
        self, known: _OpenAttempt, attempt: AttemptView, until: Step
    ) -> list[Following] | None:
        """Return the events and notes of the states of an attempt whose messages were lost.

        They are looked for at all steps where they are likely, in order: earlier ones have
        metrics that no later one has. None: the store does not answer.
        """
        keys = _likely_keys(known.order, attempt, until)
        try:
            return self._found(known, attempt, self._store.commits(keys.values()))
        except StorageError:
            return None

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


def _likely_keys(order: RunStage, attempt: AttemptView, until: Step) -> dict[Step, str]:
    """Return the keys by ascending step at which an attempt is likely to have saved its state.

    Parameters
    ----------
    order
        The stage as it was ordered.
    attempt
        Has told of states up to its step `saved`.
    until
        The step that it may have come to.
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

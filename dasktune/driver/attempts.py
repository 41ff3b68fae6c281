"""Attempts under way: what their workers say of them, and what the store knows if they do not.

An attempt is in flight from its submission until its last state is durable. Workers speak of
it in messages, some of which may be lost: metrics are in the commits, too, and a commit that
is not heard of is looked up.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import assert_never

from dasktune.driver.recorder import Recorder
from dasktune.driver.waiting import trials_of
from dasktune.engine.engine import Engine
from dasktune.errors import StorageError
from dasktune.graph.events import (
    Ended,
    Event,
    Failed,
    Progress,
    RunStage,
    Saved,
    Started,
    WorkerLost,
)
from dasktune.graph.plan import Node
from dasktune.graph.view import AttemptView
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

DURABLE_SECONDS = 10.0
"""How long after a stage's end its commit is waited for before the store is asked."""

MOST_REACH = 100
"""How many steps beyond what was heard of a worker may have saved whose scheduler is gone."""


@dataclass(slots=True)
class _Flight:
    """An attempt of which something is still to be heard."""

    order: RunStage
    reports: dict[Step, tuple[str, Metrics]] = field(default_factory=dict)
    ended_at: float | None = None


class Flights:
    """Translates what workers say into events, and has it recorded.

    Parameters
    ----------
    engine
        Is told the events, by `tell`.
    recorder
        Takes note of states, metrics and ends.
    store
        Where states are looked up of which nothing was heard.
    tell
        Tells the engine an event.
    now
        Gives the seconds since the run began.
    see
        Called with metrics as soon as they are heard of, durable or not.
    on_step
        Called with an attempt and how far it has come.
    on_saved
        Called with a node, an attempt, and the commit of its state at or above the node.
    lookups
        The same store, for what can be looked up later as well; `store` if None.

    Attributes
    ----------
    worker_seconds
        What workers have spent on stages that ended.
    latest
        The step and metrics heard of last.
    trouble
        What a worker could not store, in words; None if all went well.
    """

    def __init__(
        self,
        engine: Engine,
        recorder: Recorder,
        store: CheckpointStore,
        *,
        tell: Callable[[Event], None],
        now: Callable[[], float],
        see: Callable[[Metrics], None],
        on_step: Callable[[str, Step], None],
        on_saved: Callable[[Node, str, Commit], None],
        lookups: CheckpointStore | None = None,
    ) -> None:
        self.worker_seconds = 0.0
        self.latest: tuple[Step, Metrics] | None = None
        self.trouble: str | None = None
        self._view = engine.view
        self._recorder = recorder
        self._store = store
        self._lookups = store if lookups is None else lookups
        self._tell = tell
        self._now = now
        self._see = see
        self._on_step = on_step
        self._on_saved = on_saved
        self._flights: dict[str, _Flight] = {}

    def __bool__(self) -> bool:
        """Whether something is still to be heard."""
        return bool(self._flights)

    @property
    def have_ended(self) -> bool:
        """Whether nothing trains any more, though states may not be durable yet."""
        return all(flight.ended_at is not None for flight in self._flights.values())

    def add(self, order: RunStage, key: str) -> None:
        """Take in an attempt that was submitted, and the key that its end will have."""
        self._flights[order.attempt] = _Flight(order)
        self._recorder.launched(order, key)

    def order_of(self, attempt: str) -> RunStage | None:
        """Return the order of an attempt of which no end was heard yet."""
        flight = self._flights.get(attempt)
        return None if flight is None or flight.ended_at is not None else flight.order

    def end(self, attempt: str, receipt: StageEnded) -> None:
        """Take in the end of an attempt as Dask tells it: the message did not come."""
        self._ended(self._flights[attempt], receipt)

    def lose(self, worker: str, *, is_blameless: bool = False) -> list[str]:
        """Take in that a worker is gone; return its attempts, of which nothing more is heard.

        Parameters
        ----------
        worker
            Which.
        is_blameless
            See `WorkerLost`.
        """
        slot = self._view.slots.get(worker)
        if slot is not None and slot.queue and slot.queue[0].id in self._flights:
            # A step that kills its process at once is never heard of: it counts as started, or
            # the stage would be tried for ever.
            self._tell(Started(attempt=slot.queue[0].id))
        lost = [one for one in self._view.attempts.values() if one.worker == worker]
        for attempt in lost:
            flight = self._flights.get(attempt.id)
            if flight is not None:
                reach = MOST_REACH if is_blameless else 1
                self._look_up_saves(flight, attempt, until=attempt.position + reach)
            if not attempt.ended:
                self.worker_seconds += self._recorder.seconds_of(attempt.id, time.time())
        self._tell(WorkerLost(worker=worker, is_blameless=is_blameless))
        for attempt in lost:
            self._record_end(attempt, time.time(), "lost")
            self._recorder.settled(attempt.id)
            self._flights.pop(attempt.id, None)
        return [attempt.id for attempt in lost]

    def close(self) -> None:
        """Take note of what has ended and is not in the store: nobody waits for it any more."""
        for attempt in self._flights:
            found = self._view.attempts.get(attempt)
            if found is not None:
                self._recorder.unsaved(attempt, max(found.saved, found.start))

    def check(self) -> None:
        """Ask the store about states whose durable message does not come."""
        now = self._now()
        for attempt_id, flight in list(self._flights.items()):
            if flight.ended_at is None or now - flight.ended_at < DURABLE_SECONDS:
                continue
            flight.ended_at = now
            attempt = self._view.attempts.get(attempt_id)
            if attempt is None:
                del self._flights[attempt_id]
            elif not self._look_up_saves(flight, attempt, until=attempt.position):
                return  # the store is away: the others are looked up later, too

    def receive(self, message: StageMessage) -> None:
        """Translate one message of a worker."""
        flight = self._flights.get(message.attempt)
        if flight is None:
            return
        match message:
            case StageStarted(attempt=attempt, at=at):
                self._recorder.started(attempt, at)
                _log(flight.order, logging.INFO, "started")
                self._tell(Started(attempt=attempt))
            case StageProgress(attempt=attempt, step=step):
                for at, key, metrics in message.reports:
                    flight.reports[at] = (key, metrics)
                    self.latest = (at, metrics)
                    self._see(metrics)
                self._tell(Progress(attempt=attempt, step=step))
                self._on_step(attempt, step)
            case StateSaved():
                self._saved(flight, message)
            case StateMeasured(key=key, step=step):
                reports = self._reports_of(flight, key, (step,))
                self._durable(flight, message.attempt, step, reports)
            case StageEnded():
                self._ended(flight, message)
            case StageFailed():
                self._failed(flight, message)
            case StoreFailed():
                self.trouble = message.message
            case _:
                assert_never(message)

    def _saved(self, flight: _Flight, message: StateSaved) -> None:
        """Take in a durable state: its metrics are durable with it."""
        attempt, step, node = message.attempt, message.step, flight.order.node
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
            reports = self._reports_of(flight, message.key, message.reported)
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
        if message.suspend_seconds is not None and _is_suspension(flight, step):
            self._recorder.suspended(attempt, message.suspend_seconds, message.snapshot_bytes)
        self._on_saved(node, attempt, commit)
        self._durable(
            flight, attempt, step, reports, dict(zip(message.reported, message.paces, strict=False))
        )

    def _durable(
        self,
        flight: _Flight,
        attempt: str,
        step: Step,
        reports: Collection[StepMetrics],
        paces: Mapping[Step, float] | None = None,
    ) -> None:
        """Have the metrics recorded that a durable state at `step` covers, and tell of them."""
        self._recorder.metrics(flight.order.node, reports, paces)
        metrics = tuple((at, values) for at, _, values in reports)
        self._tell(Saved(attempt=attempt, step=step, reports=metrics))
        self._forget_if_settled(attempt)

    def _reports_of(self, flight: _Flight, key: str, steps: Iterable[Step]) -> list[StepMetrics]:
        """Return the metrics that a saved state covers; asks the store for what was lost."""
        found, missing = [], []
        for step in steps:
            report = flight.reports.pop(step, None)
            if report is None:
                missing.append(step)
            else:
                found.append((step, *report))
        if missing:
            commit = self._store.commit_of(key)
            stored = {} if commit is None else dict(commit.reports)
            node = flight.order.node
            for step in missing:
                if step in stored:
                    found.append((step, node.key_at(step), stored[step]))
        return sorted(found, key=lambda report: report[0])

    def _ended(self, flight: _Flight, message: StageEnded) -> None:
        if flight.ended_at is None:  # Dask may have told it before
            self.worker_seconds += message.seconds
        flight.ended_at = self._now()
        self._on_step(message.attempt, message.step)
        attempt = self._view.attempts.get(message.attempt)
        if message.status == "missing" and not (attempt and attempt.uprooted):
            key = flight.order.node.key_at(flight.order.start)
            logger.warning("state %s is missing or corrupt; it is trained again", key)
            self._recorder.forget(key)
        if message.start_seconds is not None:
            self._recorder.held(message.attempt, message.start_seconds)
        # Dask alone has told of a stage that failed: the message with the reason was lost.
        status = "lost" if message.status == "failed" else message.status
        self._tell(
            Ended(
                attempt=message.attempt,
                step=message.step,
                status=status,
                seconds=message.seconds + message.evaluate_seconds,
            )
        )
        self._record_end(attempt, message.at, status)
        _log(flight.order, logging.INFO, f"ended ({status})", message.step)
        self._forget_if_settled(message.attempt)

    def _failed(self, flight: _Flight, message: StageFailed) -> None:
        text = f"failed after step {message.step}: {message.message}"
        _log(flight.order, logging.WARNING, text, message.step)
        attempt = self._view.attempts.get(message.attempt)
        self.worker_seconds += self._recorder.seconds_of(message.attempt, message.at)
        self._tell(
            Failed(
                attempt=message.attempt,
                step=message.step,
                message=message.message,
                traceback=message.traceback,
            )
        )
        self._record_end(attempt, message.at, "failed", message.message)
        self._forget_if_settled(message.attempt)

    def _record_end(
        self, attempt: AttemptView | None, at: float, status: str, message: str = ""
    ) -> None:
        """Take note of the end of an attempt of which the dispatcher has just been told."""
        if attempt is not None:
            self._recorder.ended(
                attempt.id,
                at,
                status=status,
                step=attempt.position,
                repeated=attempt.repeated,
                message=message,
            )

    def _forget_if_settled(self, attempt: str) -> None:
        if attempt not in self._view.attempts:
            self._flights.pop(attempt, None)
            self._recorder.settled(attempt)

    def _look_up_saves(self, flight: _Flight, attempt: AttemptView, until: Step) -> bool:
        """Take in the states of an attempt that were saved but not heard of, in their order.

        They are looked for where it is likely: earlier ones, too, since each has metrics that
        no later one has.

        Returns
        -------
        bool
            Whether the store has answered.
        """
        ends = (node.stop for node in attempt.leaf.up())
        reached = range(attempt.position, until + 1)
        likely = {*reached, attempt.stop, *flight.order.saves, *ends}
        first = max(attempt.saved, attempt.start) + 1
        steps = [step for step in sorted(likely) if first <= step <= attempt.stop]
        keys = {step: attempt.node_at(step).key_at(step) for step in steps}
        try:
            commits = self._lookups.commits(keys.values())
        except StorageError:
            return False
        for step in steps:
            if keys[step] in commits:
                self._take_in(flight, attempt, step, commits[keys[step]])
        return True

    def _take_in(self, flight: _Flight, attempt: AttemptView, step: Step, commit: Commit) -> None:
        """Take in the state at a step that the store has."""
        node = attempt.node_at(step)
        reports = [(at, node.key_at(at), metrics) for at, metrics in commit.reports]
        message = StateSaved(
            attempt=attempt.id,
            step=step,
            key=commit.key,
            by=commit.attempt,
            digest=commit.digest,
            nbytes=commit.nbytes,
            seconds=commit.seconds,
            replaced=tuple(reports),
        )
        self._saved(flight, message)


def _is_suspension(flight: _Flight, step: Step) -> bool:
    """Return whether a stage's last state is where a trial is left for now.

    Either it was stopped before its end, or its end is what a trial was asked to come to; at
    others its worker goes on with the next stage of a path.
    """
    return step < flight.order.stop or bool(flight.order.node.requests)


def _log(order: RunStage, level: int, said: str, step: Step | None = None) -> None:
    """Log what is heard of a stage, with all that tells it apart."""
    if not logger.isEnabledFor(level):
        return
    trials = trials_of(order.node)
    logger.log(
        level,
        "stage of %s, steps %d to %d on %s, %s",
        *(trials_text(trials), order.start, order.stop, order.worker, said),
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

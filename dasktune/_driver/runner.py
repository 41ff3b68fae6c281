"""The Dask runner: carries out the engine's orders on a cluster, and gives it the events.

Dask does what it is good at: membership of workers, transport, starting a function on a
given worker, a future per stage, the event stream. The queue, placement and retries are
the dispatcher's. One thread, the caller's, runs the loop; Dask's threads only put messages
into its queue.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from typing import TypeVar, assert_never, cast

from distributed import Client

from dasktune._driver.attempts import (
    AttemptLost,
    Attempts,
    LineageRefused,
    LookUp,
    Reached,
    StateDurable,
    StateRecorded,
)
from dasktune._driver.audits import Audits, NoAudits
from dasktune._driver.commit_reader import CommitReader
from dasktune._driver.connection import Connection
from dasktune._driver.demand import RunDemand
from dasktune._driver.fair_share import FairShare
from dasktune._driver.heartbeat import Heartbeat, NoHeartbeat
from dasktune._driver.inbox import AttemptFinished, InboxMessage, TurnMessage, joins_together
from dasktune._driver.lease_messages import (
    CommitsFound,
    LeaseAnswered,
    LeaseChanged,
    LeaseMessage,
    SavesRequested,
)
from dasktune._driver.leases import Leasing
from dasktune._driver.look_ups import LookedUp, LookUps
from dasktune._driver.lost_workers import LookUpEnded, LostWorkers
from dasktune._driver.numerics import NumericClasses
from dasktune._driver.orders import PendingOrders
from dasktune._driver.parts import (
    Answered,
    AskedQuestion,
    Draining,
    Following,
    Launched,
    News,
    Part,
    RunCheck,
    StopRequested,
)
from dasktune._driver.pauses import Pauses
from dasktune._driver.predictions import Predictions
from dasktune._driver.recorder import Recorder
from dasktune._driver.refused_lineages import RefusedLineages
from dasktune._driver.retention.evict import Evictor, NoEvictor
from dasktune._driver.retention.kept_ends import KeptEnds
from dasktune._driver.reuse import CommitsRead, KnownStates
from dasktune._driver.shared_stages import NoSharing, SharedStages
from dasktune._driver.stage_keys import KeysHashed, StageKeys
from dasktune._driver.usage import Usage
from dasktune._driver.waiting import unmet_needs, unmet_needs_text
from dasktune._driver.worker_notes import WorkerNotes
from dasktune._driver.worker_supply import WorkerSupply
from dasktune._engine.engine import Engine
from dasktune._engine.limits import Meter
from dasktune._engine.outcome import Outcome, RunAssessment, RunPrediction
from dasktune._engine.timeouts import (
    DRAIN_SECONDS,
    LOOK_UP_SECONDS,
    LOOP_SECONDS,
    Timeouts,
)
from dasktune._engine.tuner_records import FailureTold
from dasktune._worker.job import JobPlan
from dasktune._worker.messages import LeaveAnnounced, PredictionAnswer, StageMessages
from dasktune.errors import ClusterError, InternalError, StorageError
from dasktune.graph.events import (
    Event,
    Granted,
    RunStage,
    SaveMissed,
    SavePoint,
    StopStage,
    Tick,
    WorkerJoined,
    WorkerLeaving,
    WorkerLost,
    WorkersJoined,
)
from dasktune.logs import about
from dasktune.needs import Offer
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.files.retry import Patience
from dasktune.storage.retention import Keep
from dasktune.types import Metrics, Step

logger = logging.getLogger(__name__)

MOST_MESSAGES = 1000
"""Messages taken in one turn, before records are written and orders carried out."""

LOOK_UP = Patience(seconds=LOOK_UP_SECONDS, request=LOOK_UP_SECONDS)
"""How long the store is tried when states are looked up whose messages were lost."""


Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSnapshot:
    """The figures of a run that a progress display shows, at one turn of the loop."""

    workers: int
    busy: int
    steps_executed: int
    stages_left: int
    seconds: float
    worker_seconds: float
    latest: tuple[Step, Metrics] | None


class DaskRunner:
    """Runs an engine on a Dask cluster until its tuner has ended.

    `study` names the study among all that use its store; None shares nothing with others. `on_turn`
    is called with a `RunSnapshot` at every turn of the loop, `on_safe` with each outcome of the
    engine once its records are durable. Without an `evictor` the store has no budget; without a
    `heartbeat` no run status is written. For `weight` see `dasktune.graph.fair_shares.Claim`.
    """

    def __init__(
        self,
        client: Client,
        engine: Engine,
        plan: JobPlan,
        recorder: Recorder,
        *,
        known_states: KnownStates,
        study: str | None,
        meter: Meter,
        timeouts: Timeouts,
        evictor: Evictor | None = None,
        on_turn: Callable[[RunSnapshot], None] | None = None,
        on_safe: Callable[[Outcome], None] | None = None,
        heartbeat: Heartbeat | None = None,
        audits: Audits | None = None,
        check: RunCheck | None = None,
        weight: float = 1.0,
        classes: NumericClasses,
        keep: Keep,
    ) -> None:
        view = engine.view
        self._engine = engine
        self._plan = plan
        self._recorder = recorder
        self._meter = meter
        self._patience = timeouts.scheduler_seconds
        self._waits = timeouts.waits
        self._on_turn = on_turn
        self._on_safe = on_safe
        self._callback_error: Exception | None = None
        self._inbox: queue.SimpleQueue[InboxMessage] = queue.SimpleQueue()
        self._orders = PendingOrders(recorder)
        self._store = CheckpointStore(plan.store)
        self._stop = threading.Event()
        self._study = study
        self._began = time.monotonic()
        self._is_draining = False
        self._can_save = True
        # Workers, and what they train.
        put = self._inbox.put
        self._cluster = Connection(client, plan, put, timeouts)
        self._classes = classes
        self._has_met = False
        self._leaving: set[str] = set()
        self._attempts = Attempts(view, recorder)
        self._kept_ends = KeptEnds(keep, engine.objective, engine.trials.values())
        self._keys = StageKeys(view.attempts, put)
        self._look_ups = LookUps(CheckpointStore(plan.store, LOOK_UP))
        self._lost = LostWorkers(put)
        # The parts.
        demand = RunDemand(engine)
        self._heartbeat: Heartbeat | NoHeartbeat = heartbeat or NoHeartbeat()
        self._share = FairShare(view, demand, run=plan.run, weight=weight, put=put)
        self._evictor: Evictor | NoEvictor = evictor or NoEvictor()
        self._audits: Audits | NoAudits = audits or NoAudits()
        self._audits.use(self._cluster, self._wake)
        self._check = check or RunCheck()
        self._predictions = Predictions(view.slots)
        self._commits = CommitReader(known_states, put)
        self._refused = RefusedLineages(view.plan)
        self._pauses = Pauses(view, self._cluster, self._attempts)
        self._usage = Usage(view, self._attempts, meter)
        patience = timeouts.patience(asks=False)
        self._at_end: tuple[Part, ...] = (
            self._pauses,
            self._audits,
            WorkerNotes(view),
            WorkerSupply(view, self._cluster, self._lost, demand, patience=patience),
            self._usage,
        )
        """The parts whose turn is at the end of a turn of the loop, in their order."""
        self._others = (demand, self._refused, self._predictions, self._commits, self._evictor)
        """The parts whose turn, if any, has a place of its own in the loop."""
        self._arrange(NoSharing())

    def _arrange(self, sharing: SharedStages | NoSharing) -> None:
        """Set the parts that have their turns whatever the loop waits for, and the list of all."""
        self._sharing = self._share.sharing = self._heartbeat.sharing = sharing
        self._always: tuple[Part, ...] = (sharing, self._heartbeat, self._share, self._check)
        self._parts: tuple[Part, ...] = (*self._others, *self._always, *self._at_end)

    def run(self, begin: Callable[[float, int], Outcome]) -> None:
        """Run until the tuner has ended and nothing is under way.

        `begin` starts or resumes the tuner: (now, number of workers) -> outcome. What `on_safe` or
        a part raises ends the run, as does a `KeyboardInterrupt`: it is raised again once all
        running stages are stopped and saved, or at once if the run had been asked to stop before.
        Raises a `ClusterError` if the workers cannot run the study, and a `StorageError` if a state
        or record cannot be stored.
        """
        try:
            self._evictor.open()
            joined = self._open()
            if self._study is not None:
                leasing = Leasing(self._store, self._study, self._inbox.put, waits=self._waits)
                self._arrange(SharedStages(self._engine.view, leasing, self._recorder))
            if self._stop.is_set():
                return  # asked while the cluster started: nothing has begun
            self._check.use(self._wake)
            self._take_turns(self._check)
            self._meet(joined)
            self._take(begin(self._now(), len(joined)))
            self._refuse_unmet([event.offer for event in joined])
            self._tell(self._share.granted)
            self._let_join(joined)
            self._carry_out()
            while not (self._engine.finished and self._engine.view.is_idle):
                if self._stop.is_set() or self._meter.reached() is not None:
                    self._drain()
                    break
                self._turn()
            else:
                self._finish_audits()
        except (KeyboardInterrupt, Exception) as error:
            self._attempts.trouble, self._can_save = None, not isinstance(error, StorageError)
            # A call of the tuner may have been broken off; what it is not told now, it is told
            # by the next run.
            self._engine.mute(self._now())
            # Who was asked to stop and is interrupted all the same saves nothing more.
            gives_up = isinstance(error, KeyboardInterrupt) and self._stop.is_set()
            if not self._is_draining and not gives_up:
                self._drain()
            raise
        finally:
            self._close()
        if self._callback_error is not None:
            raise self._callback_error

    def _refuse_unmet(self, offers: list[Offer]) -> None:
        """Refuse a study with a trial whose own needs no worker can meet, before anything runs.

        `offers` are those of the workers that are ready. The run waits for workers that have not
        answered yet, and for those that a pool may start.
        """
        unmet, elastic = unmet_needs(self._engine, offers), self._cluster.elastic
        pools = [] if elastic is None else elastic.pools()
        hopeless = {
            needs: trials
            for needs, trials in unmet.items()
            if not any(pool.may_fit(needs) for pool in pools)
        }
        if hopeless and (elastic is not None or self._cluster.workers.has_met_all):
            raise ClusterError(
                unmet_needs_text(hopeless, [*offers, *(pool.offer for pool in pools)])
            )
        if unmet:
            logger.warning("waiting for other workers: %s", unmet_needs_text(unmet, offers))

    def request_stop(self) -> None:
        """Ask `run` to save the running stages and to return; may be called from any thread."""
        self._stop.set()

    # ------------------------------------------------------------------------ loop

    def _turn(self) -> None:
        """Receive messages, let the engine decide, make decisions durable, carry them out."""
        self._take_turns(*self._always)
        if not self._cluster.is_there() and not self._begin_anew():
            return
        for message in self._next_messages():
            self._receive(message)
        if self._attempts.trouble is not None:
            raise StorageError(self._attempts.trouble)
        self._refused.check()
        self._ask_for_more()
        self._take_turns(self._evictor)
        self._carry_out()
        self._cluster.check_futures(self._engine.view.attempts, self._now())
        self._follow(self._attempts.check(self._now()))
        self._take_turns(*self._at_end)
        if self._on_turn is not None:
            self._on_turn(self._snapshot())

    def _take_turns(self, *parts: Part) -> None:
        """Give parts their turns, one after the other."""
        for part in parts:
            self._follow(part.turn(self._now()))

    def _next_messages(self) -> list[TurnMessage]:
        """Wait for messages until something is due; return all that are there."""
        due = self._engine.next_tick(self._now())
        wait = LOOP_SECONDS if due is None else min(LOOP_SECONDS, due - self._now())
        received: list[InboxMessage] = []
        try:
            received.append(self._inbox.get(timeout=max(0.001, wait)))
            while len(received) < MOST_MESSAGES:
                received.append(self._inbox.get_nowait())
        except queue.Empty:
            pass
        return joins_together(received or [Tick()])

    def _receive(self, message: TurnMessage) -> None:
        """Handle one message of any sender."""
        match message:
            case StageMessages():
                for stage_message in message.messages:
                    self._pass_on(stage_message)
                    self._follow(self._attempts.receive(stage_message, self._now()))
            case AttemptFinished():
                self._future_done(message.attempt)
            case SaveMissed() | Granted() | Tick():
                self._tell(message)
            case WorkersJoined():
                known = self._classes.of(message.workers)
                self._meet(known)
                self._let_join(known)
            case WorkerLost():
                self._worker_left(message.worker)
            case LeaveAnnounced(worker=worker):
                logger.info("worker %s leaves", worker, extra=about(worker=worker))
                self._leaving.add(worker)  # may be heard of before it is known to be there
                self._pass_on(message)
                self._tell(WorkerLeaving(worker=worker))
            case LookUpEnded(worker=worker):
                self._forget_worker(worker)
            case LookedUp(question=question, commits=commits):
                answer = commits.result()
                self._follow(self._attempts.looked_up(question, answer, self._now()))
            case KeysHashed():
                for order in self._keys.receive(message):
                    self._follow(self._sharing.start(order))
            case PredictionAnswer() | CommitsRead():
                self._pass_on(message)
            case LeaseAnswered() | LeaseChanged() | CommitsFound() | SavesRequested():
                self._pass_on(message)
            case _:
                assert_never(message)

    def _pass_on(self, news: News) -> None:
        """Give a message or a fact to all parts, and follow each before the next one has it."""
        for part in self._parts:
            self._carry(part.receive(news, self._now()))

    def _follow(self, following: Iterable[Following]) -> None:
        """Carry out all that follows from a message, then settle the attempts that it is about."""
        self._carry(following)
        # Not earlier: a fact among `following` is passed on while the engine does not know yet of
        # the end after it, and the end would be recorded with the steps that it knew before.
        self._attempts.settle()

    def _carry(self, following: Iterable[Following]) -> None:
        """Carry out what follows, in order; facts go to the parts."""
        for item in following:
            match item:
                case RunStage():
                    self._submit(item)
                case SavePoint():
                    self._cluster.messages.control(item.worker, item.attempt, save_at=item.step)
                case Reached():
                    for metrics in item.metrics:
                        self._meter.see(metrics)
                    self._pass_on(item)
                case StateDurable() | StateRecorded() | LineageRefused():
                    self._pass_on(item)
                case AttemptLost():
                    # Dask must not run it anywhere else.
                    self._cluster.submissions.cancel(item.attempt)
                case LookUp():
                    self._look_up(item)
                case AskedQuestion():
                    self._cluster.messages.predict(item.worker, item.number, item.question)
                case Answered():
                    now = self._now()
                    self._take(self._engine.predicted(item.subject, item.answer, now))
                case StopRequested(by=by):
                    logger.warning("asked to stop by %s: saving what runs", by)
                    self._meter.stopped_by = by
                    self._stop.set()
                case _:
                    self._tell(item)

    def _look_up(self, question: LookUp) -> None:
        """Ask the store in a thread; the answer is a message."""
        commits = self._look_ups.ask(question.keys)
        answer = LookedUp(question=question, commits=commits)
        commits.add_done_callback(lambda _: self._inbox.put(answer))

    def _tell(self, event: Event) -> None:
        self._take(self._engine.handle(event, self._now()))

    def _take(self, outcome: Outcome) -> None:
        """Gather an outcome: its records are written before its orders are carried out."""
        self._orders.add(outcome)
        self._kept_ends.add(outcome.trials)
        self._sharing.want(outcome.trials)

    def _carry_out(self) -> None:
        """Carry out what was decided, once it is durable."""
        self._take_turns(self._commits)
        orders = self._orders.take(self._now())
        self._keys.turn()
        self._say_what_is_safe()
        for order in orders:
            match order:
                case RunStage():
                    # Not there any more if its worker was lost in this turn.
                    if order.attempt in self._engine.view.attempts:
                        for known in self._keys.start(order):
                            self._follow(self._sharing.start(known))
                case SavePoint():
                    self._cluster.messages.control(order.worker, order.attempt, save_at=order.step)
                case StopStage():
                    self._cluster.messages.control(
                        order.worker, order.attempt, stop_at=order.at, lost=order.lost
                    )
                case RunPrediction() | RunAssessment():
                    self._predictions.add(order)
        self._take_turns(self._predictions)

    def _say_what_is_safe(self) -> None:
        """Pass on outcomes that are durable; user code may be called by that."""
        for outcome in self._orders.take_safe():
            for warning in outcome.warnings:
                logger.warning("%s", warning)
            for report in outcome.reports:
                self._meter.see(report.metrics)
            untrained = {trial.local for trial in outcome.trials if trial.problem}
            for record in outcome.records:
                if isinstance(record.cause, FailureTold) and record.cause.trial not in untrained:
                    self._meter.fail(record.cause.message, record.cause.traceback)
            if self._on_safe is not None and self._callback_error is None:
                try:
                    self._on_safe(outcome)
                except Exception as error:  # noqa: BLE001 - raised again when all is saved
                    self._callback_error = error
                    self._stop.set()
            outcome.refuse()

    def _ask_for_more(self) -> None:
        """Ask the tuner when workers have nothing to do."""
        view = self._engine.view
        capacity = view.capacity(self._now())
        if self._engine.finished or not capacity:
            return
        self._take(self._engine.ask(capacity, self._now()))
        is_under_way = view.is_under_way or self._engine.predicting
        if self._engine.finished or is_under_way:
            return
        raise InternalError("the tuner has not ended, asks for nothing, and nothing is running")

    # ------------------------------------------------------- what Dask says of attempts

    def _future_done(self, attempt: str) -> None:
        """Handle the end of an attempt in Dask: normally its messages came before."""
        order = self._attempts.order_of(attempt)
        if order is None:
            self._cluster.submissions.take(attempt)
            return
        receipt = self._cluster.receipt_of(order)
        if receipt is None:
            self._worker_left(order.worker)
        elif order.worker in self._engine.view.slots:
            self._follow(self._attempts.receive(receipt, self._now()))

    def _worker_left(self, worker: str, *, is_blameless: bool = False) -> None:
        """Do without a worker at once, and look up what it saved; `_forget_worker` follows."""
        if worker in self._lost:
            return
        if worker in self._leaving:
            logger.info("worker %s has left", worker, extra=about(worker=worker))
        elif worker in self._engine.view.slots:
            logger.warning("worker %s is lost", worker, extra=about(worker=worker))
        self._predictions.lose(worker, is_blameless=is_blameless)
        had_audit = self._audits.lose(worker)
        # One that leaves saves what it trains, at a step that may not have been heard of.
        is_blameless = is_blameless or had_audit or worker in self._leaving
        self._leaving.discard(worker)
        self._follow(self._attempts.abandon(worker, self._now()))
        keys = self._attempts.likely_saves(worker, goes_far=is_blameless)
        self._lost.add(worker, self._look_ups.ask(keys), is_blameless=is_blameless)

    def _forget_worker(self, worker: str) -> None:
        """Handle the loss of a worker whose states were looked up."""
        lost = self._lost.take(worker)
        if lost is None:
            return
        error = lost.commits.exception()
        commits = {} if error is not None else lost.commits.result()
        following = self._attempts.lose(
            worker, commits, now=self._now(), at=lost.at, is_blameless=lost.is_blameless
        )
        self._follow(following)
        if error is not None:
            raise error
        if lost.joined is not None:
            self._let_join([lost.joined])

    def _begin_anew(self) -> bool:
        """Go on with a scheduler that was lost, once it is there again, and with its workers.

        Whatever Dask knew is forgotten: what is durable is in the store. Returns False if the run
        was asked to stop before the scheduler was there.
        """
        if not self._wait_for(self._cluster.renew()):
            return False
        for worker in list(self._engine.view.slots):
            self._worker_left(worker, is_blameless=True)
        self._forget_news()
        joined = self._open(self._patience)
        self._tell(self._share.granted)
        self._let_join(joined)
        return True

    def _forget_news(self) -> None:
        """Drop the messages of the scheduler that was lost: addresses may be other workers' now."""
        received = []
        with suppress(queue.Empty):
            while True:
                received.append(self._inbox.get_nowait())
        own = LeaseMessage | KeysHashed | LookUpEnded | LookedUp | CommitsRead
        for message in received:
            if isinstance(message, own):
                self._inbox.put(message)

    def _open(self, patience: float | None = None) -> list[WorkerJoined]:
        """Get the workers ready; heartbeats go by the client that they were made ready with."""
        joined = self._classes.of(self._wait_for(self._cluster.open(patience)) or [])
        self._heartbeat.use(self._cluster.client)
        self._share.use(self._cluster.client, joined)
        return joined

    def _meet(self, joined: Collection[WorkerJoined]) -> None:
        """Tell the engine the numeric classes of the first workers, before they have a stage.

        They may join after the tuner has begun, if all are slow to answer.
        """
        plain = self._classes.plain
        if plain is not None and not self._has_met:
            self._has_met = True
            present = {event.numerics for event in joined if event.numerics is not None}
            self._engine.meet(plain, present)

    def _finish_audits(self) -> None:
        """Wait for the audits under way, and for those that a study always has."""
        self._audits.finish()
        while True:
            self._take_turns(self._pauses, self._audits)
            is_over = self._stop.is_set() or self._meter.reached() is not None
            if not self._audits.is_under_way or is_over or not self._cluster.is_there():
                return
            self._take_turns(*self._always)
            for message in self._next_messages():
                self._receive(message)
            self._carry_out()
            self._take_turns(self._usage)

    def _wake(self) -> None:
        """Begin the next turn of the loop; called from any thread."""
        self._inbox.put(Tick())

    # ----------------------------------------------------------------------- Dask

    def _submit(self, order: RunStage) -> None:
        if order.worker not in self._engine.view.slots:
            return  # its worker is gone, and so will be the attempt
        seed = self._plan.seed + self._engine.view.plan.seed_of(order.node)
        omits = self._kept_ends.omits(order)
        known = self._check.files_known
        key = self._cluster.submissions.submit(order, seed, omits, files_known=known)
        self._attempts.add(order, key)
        self._pass_on(Launched(order=order))

    def _drain(self) -> None:
        """Stop all stages at their next step and save them; a second ctrl-C ends that, too."""
        self._is_draining = True
        self._pass_on(Draining())
        deadline = self._now() + DRAIN_SECONDS
        if self._recorder.is_broken:
            # What was decided since cannot be recorded, so it must not be done either.
            self._orders.drop()
        self._take(self._engine.drain(self._now()))
        self._carry_out()
        for event in self._keys.give_up():
            self._tell(event)
        while self._attempts and not self._engine.view.is_idle and self._now() < deadline:
            if not self._cluster.is_open:
                return
            self._take_turns(self._heartbeat, self._share)
            if not self._can_save and self._attempts.have_ended:
                return  # what is not durable yet will not be
            for message in self._next_messages():
                self._receive(message)
            self._take_turns(self._evictor)
            self._carry_out()
            self._cluster.check_futures(self._engine.view.attempts, self._now())
            self._follow(self._attempts.check(self._now()))
            self._take_turns(self._pauses)

    def _close(self) -> None:
        try:
            self._audits.close()
            self._attempts.close()
            self._orders.flush()
            self._say_what_is_safe()
            self._take_turns(self._usage)
        finally:
            with ExitStack() as last:  # each is done, whatever becomes of the others
                last.callback(self._close_evictor)
                last.callback(self._engine.dismiss)
                last.callback(self._sharing.close)
                last.callback(self._keys.close)
                last.callback(self._look_ups.close)
                last.callback(self._commits.close)
                last.callback(self._cluster.close)
                last.callback(self._share.close)

    def _close_evictor(self) -> None:
        self._engine.evicted(self._evictor.close())

    def _let_join(self, joined: Iterable[WorkerJoined]) -> None:
        """Handle workers that joined together: all are known before any is given a stage."""
        ready = []
        for event in joined:
            if event.worker in self._lost:
                self._lost.join(event)
                continue
            logger.info("worker %s joined", event.worker, extra=about(worker=event.worker))
            if self._cluster.workers.knows(event.worker):
                ready.append(event)
        if ready:
            self._tell(WorkersJoined(workers=tuple(ready)))
        for event in ready:
            if event.worker in self._leaving:
                self._tell(WorkerLeaving(worker=event.worker))

    def _wait_for(self, steps: Generator[None, None, Result]) -> Result | None:
        """Return the result of steps that wait for scheduler or workers; None if told to stop.

        Leases and heartbeat go on between the steps.
        """
        with closing(steps):
            while True:
                try:
                    next(steps)
                except StopIteration as end:
                    return cast(Result, end.value)
                self._take_turns(*self._always)
                if self._stop.is_set():
                    return None

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _snapshot(self) -> RunSnapshot:
        view = self._engine.view
        return RunSnapshot(
            workers=len(view.slots),
            busy=view.busy_workers,
            steps_executed=view.steps_executed,
            stages_left=view.stages_waiting,
            seconds=self._now(),
            worker_seconds=self._attempts.worker_seconds,
            latest=self._attempts.latest,
        )

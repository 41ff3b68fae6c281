"""A driver: the real engine, dispatcher, tuner, attempts and known states, in a modelled world.

It does what `dasktune.driver.runner.DaskRunner` does in a turn: takes in messages, makes records
durable, carries out orders. It can be cut short between any two of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, cast

from dasktune.algos.base import Tuner
from dasktune.driver.attempts import AttemptLost, Following, Reached, StateDurable
from dasktune.driver.recorder import Recorder
from dasktune.engine.event_log import replay
from dasktune.engine.outcome import Order, Outcome, RunPrediction, with_save_points
from dasktune.graph.attempts import DispatchOptions
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.events import (
    Event,
    Evicted,
    Found,
    Progress,
    RunStage,
    SaveMissed,
    Taken,
    Tick,
    TrainingEnded,
    WorkerJoined,
)
from dasktune.graph.plan import Node
from dasktune.graph.view import RunView
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.database.database import Database
from dasktune.types import Objective, Step
from dasktune.worker.messages import StageEnded, StageMessage
from tests.torture.books import Books, Told, check
from tests.torture.parts import Parts
from tests.torture.ways import ROOT, Ways
from tests.torture.workers import Worker
from tests.torture.world import Ledger, Notes, Store

OBJECTIVE = Objective.single("loss", "minimize")


@dataclass(slots=True)
class World:
    """The parts that all drivers of one study share.

    Attributes
    ----------
    now
        Seconds, by the clock of the driver.
    story
        What went wrong, what the engine was told, and what it ordered.
    """

    make: Callable[[], Tuner]
    options: DispatchOptions
    snapshot_every: int
    parts: Parts
    store: Store = field(default_factory=Store)
    ledger: Ledger = field(default_factory=Ledger)
    ways: Ways = field(default_factory=Ways)
    told: Told = field(default_factory=Told)
    workers: dict[str, Worker] = field(default_factory=dict)
    now: float = 0.0
    drivers: int = 0
    story: list[object] = field(default_factory=list)


@dataclass(slots=True)
class Other:
    """A stage that another driver trains, and how far it has come."""

    order: RunStage
    position: Step


class Driver:
    """One process that runs the study, until it is killed.

    Parameters
    ----------
    world
        Where it lives.
    is_taken
        Whether another driver has leased a stage that this one wants to send.
    """

    def __init__(self, world: World, is_taken: Callable[[RunStage], bool]) -> None:
        self.world = world
        self._is_taken = is_taken
        self.others: dict[str, Other] = {}
        self.questions: list[RunPrediction] = []
        self._receipts: set[str] = set()
        self._refused: set[str] = set()
        self._submitted: dict[str, RunStage] = {}
        self._orders: list[Order] = []
        world.drivers += 1
        self._open()

    def _open(self) -> None:
        world = self.world
        known_states = world.parts.known_states.open(
            cast(Database, world.ledger), cast(CheckpointStore, world.store), ROOT
        )

        def fill(node: Node) -> None:
            known_states.read(dispatcher.plan.root_key_of(node))
            known_states.fill(dispatcher.plan, node)
            self.books.note_new(node)

        options = world.options.with_prefix(f"d{world.drivers}")
        dispatcher = world.parts.dispatcher(ROOT, options, on_new=fill)
        self._known_states, self._dispatcher = known_states, dispatcher
        self.books = Books(RunView(dispatcher), world.ways, world.store.committed)
        trials = world.ledger.copy_of_trials()
        for trial in trials.values():
            dispatcher.register(trial.number, trial.sequences, trial.max_steps, seed=trial.seed)
        self.books.compare_with_store(set(world.store.states.values()))
        self._attach(dispatcher, trials)

    def _attach(self, dispatcher: Dispatcher, trials: dict[int, Any]) -> None:
        """Make all that a run has of its own."""
        world = self.world
        self.engine = world.parts.engine(
            dispatcher, objective=OBJECTIVE, trials=trials, snapshot_every=world.snapshot_every
        )
        self._seconds: dict[str, float] = {}
        self.notes = Notes(world.ledger, dispatcher.plan.root_key_of, self._known_states.take_found)
        self.attempts = world.parts.attempts(
            self.engine.view, cast(Recorder, self.notes), cast(CheckpointStore, world.store)
        )

    def begin(self) -> None:
        """Start the tuner, or go on with it where the log ends."""
        world = self.world
        records = world.ledger.records
        tuner = world.make()
        if records:
            found = replay(world.make(), records, OBJECTIVE)
            check(found.identical, f"replay of the log: {found}")
            outcome = self.engine.resume(tuner, place=0, records=records, now=world.now)
            world.told.compare(self.engine)
        else:
            outcome = self.engine.begin(tuner, place=0, capacity=len(world.workers), now=world.now)
        self._take(outcome)
        for worker in world.workers.values():
            self.tell(WorkerJoined(worker=worker.name))

    @property
    def is_done(self) -> bool:
        """Whether the tuner has ended and nothing is under way."""
        return self.engine.finished and self.engine.view.is_idle

    # ---------------------------------------------------------------------- hearing

    def hear(self, message: StageMessage) -> None:
        """Receive a message from a worker."""
        if isinstance(message, StageEnded):
            self._seconds[message.attempt] = message.seconds
        self._follow(self.attempts.receive(message, self.world.now))

    def hear_receipt(self, receipt: StageEnded) -> None:
        """Receive Dask's notice that an attempt ended."""
        attempt = receipt.attempt
        order = self._submitted.pop(attempt, None)
        if order is None or self.attempts.order_of(attempt) is None:
            return
        self._seconds[attempt] = receipt.seconds
        self._follow(self.attempts.receive(receipt, self.world.now))

    def hear_late(self, attempt: str, step: Step) -> None:
        """Receive the notice that a save-point came too late."""
        self.tell(SaveMissed(attempt=attempt, step=step))

    def lose(self, worker: str, *, is_blameless: bool = False) -> None:
        """Receive the loss of a worker, or of all workers if it is blameless."""
        self._follow(self.attempts.lose(worker, is_blameless=is_blameless))

    def _follow(self, following: Iterable[Following]) -> None:
        """Pass on what follows from a message, as the runner does."""
        for item in following:
            match item:
                case Reached() | StateDurable():
                    pass
                case AttemptLost():
                    self._submitted.pop(item.attempt, None)
                case _:
                    self.tell(item)
        self.attempts.settle()

    def tell(self, event: Event) -> None:
        """Tell the engine, and check what follows."""
        if not isinstance(event, Tick):
            self.world.story.append(event)
        self.books.expect(event)
        self._take(self.engine.handle(event, self.world.now))

    def _take(self, outcome: Outcome) -> None:
        self.notes.outcome(outcome)
        self.world.story.extend(outcome.orders)
        self.world.story.extend(outcome.reports)
        for order in outcome.orders:
            if isinstance(order, RunStage):
                self.books.launched(order)
        self.books.compare(self.engine, outcome)
        self._orders.extend(outcome.orders)

    # ----------------------------------------------------------------------- a turn

    def tick(self) -> None:
        """Give the engine the time; the tuner is asked when workers are idle."""
        self.tell(Tick())
        self._follow(self.attempts.check(self.world.now))
        spent, most = self.attempts.worker_seconds, sum(self._seconds.values())
        check(spent <= most, f"{spent} worker seconds are counted, {most} were spent")

    def ask(self) -> None:
        """Ask the tuner for more if workers have nothing to do."""
        view = self.engine.view
        if not self.engine.finished and view.idle_workers:
            self._take(self.engine.ask(view.idle_workers, self.world.now))
            check(
                self.engine.finished or view.is_under_way or self.engine.predicting,
                "the tuner has not ended, asks for nothing, and nothing is running",
            )

    def flush(self) -> None:
        """Make durable what decisions rest on."""
        if self.notes.holds_decisions:
            self.flush_all()

    def flush_all(self) -> None:
        """Make all durable that was gathered."""
        self.world.told.take(self.notes.flush().records)

    def carry_out(self, most: int | None = None) -> None:
        """Send orders to workers, `most` of them if it is to die then."""
        orders, self._orders = self._orders, []
        for order in with_save_points(orders)[:most]:
            if isinstance(order, RunPrediction):
                self.questions.append(order)
                continue
            worker = self.world.workers.get(order.worker)
            if not isinstance(order, RunStage):
                if worker is not None:
                    worker.inbox.append(order)
            elif order.attempt in self.engine.view.attempts:
                self._start(order)

    def _start(self, order: RunStage) -> None:
        if order.after in self._refused:
            self._refused.add(order.attempt)
            self.tell(TrainingEnded(attempt=order.attempt, step=order.start, status="skipped"))
        elif order.start < order.stop and self._is_taken(order):
            self._refused.add(order.attempt)
            self.others[order.attempt] = Other(order, order.start)
            self.tell(Taken(attempt=order.attempt))
        else:
            self._submitted[order.attempt] = order
            self.attempts.add(order, order.node.key_at(order.stop))
            worker = self.world.workers.get(order.worker)
            if worker is not None:
                worker.inbox.append(order)

    def answer(self, place: int, *, fails: bool = False) -> None:
        """Receive the prediction for one of `questions`, if it can be made."""
        order = self.questions.pop(place)
        prediction = None if fails else order.question.answer()
        self.world.story.append(f"trial {order.trial} is predicted: {prediction}")
        self._take(self.engine.predicted(order.trial, prediction, self.world.now))

    # --------------------------------------------------------------------- what else happens

    def hear_of_other(self, attempt: str, step: Step) -> None:
        """Receive a state that another driver saved."""
        order = self.others[attempt].order
        commit = self.world.store.commit_of(order.node.key_at(step))
        if commit is None or attempt not in self.engine.view.attempts:
            return
        node = order.node
        reports = [(at, node.key_at(at), metrics) for at, metrics in commit.reports]
        self.notes.metrics(node, reports)
        self.notes.checkpoint(node, commit)
        self.tell(Progress(attempt=attempt, step=step))
        self.tell(Found(node=node, step=step, reports=commit.reports))

    def other_ended(self, attempt: str) -> None:
        """Receive the end of another driver's stage, or of that driver."""
        other = self.others.pop(attempt)
        if attempt in self.engine.view.attempts:
            self.tell(Progress(attempt=attempt, step=other.position))
            self.tell(TrainingEnded(attempt=attempt, step=other.order.start, status="lost"))

    def evictable(self) -> list[tuple[Node, Step]]:
        """Return the states that may be evicted from a full store."""
        view = self.engine.view
        needed = {(node.number, step) for node, step in view.needed_states()}
        return [
            (node, step)
            for node in view.plan
            for step in node.checkpoints
            if (node.number, step) not in needed
        ]

    def evict(self, node: Node, step: Step) -> None:
        """Evict a state and tell the engine."""
        self.flush_all()  # its metrics outlive it
        key = node.key_at(step)
        self.world.store.lose(key)
        self.notes.forget(key)
        self.tell(Evicted(node=node, step=step))

    def drain(self) -> None:
        """Stop every stage at its next step, as a limit does."""
        self._take(self.engine.drain(self.world.now))

    def go_on(self) -> None:
        """Run once more in the same process, with the plan as it is."""
        trials = self.engine.trials
        self.attempts.close()
        self.flush_all()
        self.books.dismissed()
        self.engine.dismiss()
        self._orders, self._submitted, self._refused, self.others = [], {}, set(), {}
        self.questions = []
        self._attach(self._dispatcher, trials)
        self.begin()

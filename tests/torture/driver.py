"""A driver made of dasktune's own parts: all but Dask, and the threads, which the world replaces.

It does what `dasktune.driver.runner.DaskRunner` does in a turn: takes in messages, makes records
durable, carries out orders. It can be cut short between any two of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cache

from dasktune.algos.base import Tuner
from dasktune.driver.attempts import AttemptLost, Following, LookUp, Reached, StateDurable
from dasktune.driver.history import History
from dasktune.driver.look_ups import find_commits
from dasktune.driver.retention.evict import Evictor
from dasktune.driver.run import begin_tuner
from dasktune.engine.event_log import Record, replay
from dasktune.engine.outcome import Outcome, RunPrediction
from dasktune.engine.trials import TrialRecord
from dasktune.graph.attempts import DispatchOptions
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.events import (
    Event,
    Evicted,
    Found,
    Progress,
    RunStage,
    Saved,
    SaveMissed,
    Taken,
    Tick,
    TrainingEnded,
    WorkerJoined,
)
from dasktune.graph.plan import Node
from dasktune.graph.view import RunView
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.database import schema
from dasktune.storage.database.database import Database
from dasktune.storage.retention import MOST_BYTES, Keep, Retention
from dasktune.types import Objective, Step
from dasktune.worker.messages import StageEnded, StageMessage
from tests.torture.books import Books, Told, check
from tests.torture.files import FailingFiles, MemoryFiles
from tests.torture.parts import Parts
from tests.torture.threads import QueuedJobs
from tests.torture.ways import ROOT, Ways
from tests.torture.workers import Worker
from tests.torture.world import Store

OBJECTIVE = Objective.single("loss", "minimize")

BEGAN = 1e9
"""Epoch seconds at which a study begins."""

FLUSH_SECONDS = 5.0
"""Longest delay of records without decisions: many events, so that kills lose some of them."""


@cache
def _database() -> Database:
    return Database("sqlite://")


def empty_database() -> Database:
    """Return the database of this process, emptied: opening one takes as long as a study."""
    database = _database()
    with database.connections.engine.begin() as connection:
        for table in schema.metadata.sorted_tables:
            connection.execute(table.delete())
    return database


@dataclass(slots=True)
class World:
    """The parts that all drivers of one study share.

    Store and database are dasktune's own, in memory: what a driver has not written when it is
    killed, the next one does not find.

    Attributes
    ----------
    now
        Seconds, by the clock of the driver.
    epoch
        Epoch seconds.
    budget
        Bytes that the store may have.
    evicts
        Whether drivers keep the store under its budget.
    story
        What went wrong, what the engine was told, and what it ordered.
    """

    make: Callable[[], Tuner]
    options: DispatchOptions
    snapshot_every: int
    parts: Parts
    store: Store = field(init=False)
    database: Database = field(init=False)
    study_id: int = field(init=False)
    ways: Ways = field(default_factory=Ways)
    told: Told = field(default_factory=Told)
    workers: dict[str, Worker] = field(default_factory=dict)
    now: float = 0.0
    epoch: float = BEGAN
    drivers: int = 0
    budget: int = MOST_BYTES
    evicts: bool = False
    story: list[object] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = Store(MemoryFiles(lambda: self.epoch))
        self.database = empty_database()
        study = self.database.create_study("torture", root=ROOT, spec={}, created=BEGAN)
        assert study is not None
        self.study_id = study.id

    def pass_time(self, seconds: float) -> None:
        """Move all clocks on."""
        self.now += seconds
        self.epoch += seconds

    def records(self) -> list[Record]:
        """Return all durable events of the tuner."""
        return list(History(self.database, self.study_id).records_of(0))


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
        self._seconds: dict[str, float] = {}
        world.drivers += 1
        self._open()

    def _open(self) -> None:
        world = self.world
        self._history = world.parts.history(world.database, world.study_id)
        self._history.read_on()
        known_states = world.parts.known_states.open(world.database, world.store.checkpoints, ROOT)

        def fill(node: Node) -> None:
            known_states.read(dispatcher.plan.root_key_of(node))
            known_states.fill(dispatcher.plan, node)
            self.books.note_new(node)

        options = world.options.with_prefix(f"d{world.drivers}")
        dispatcher = world.parts.dispatcher(ROOT, options, on_new=fill)
        self._known_states, self._dispatcher = known_states, dispatcher
        self.books = Books(RunView(dispatcher), world.ways, world.store.committed)
        trials = self._history.trials()
        for trial in trials.values():
            dispatcher.register(trial.number, trial.sequences, trial.max_steps, seed=trial.seed)
        self.books.compare_with_store({state for _, state in world.store.states()})
        self._attach(dispatcher, trials)

    def _attach(self, dispatcher: Dispatcher, trials: dict[int, TrialRecord]) -> None:
        """Make all that a run has of its own."""
        world = self.world
        world.drivers += 1
        self._run = f"run-{world.drivers}"
        self.engine = world.parts.engine(
            dispatcher, objective=OBJECTIVE, trials=trials, snapshot_every=world.snapshot_every
        )
        self._untold: list[Record] = []
        self._events = self._decided = 0
        self.recorder = world.parts.recorder(
            self._history,
            dispatcher.plan,
            self._known_states,
            self._run,
            used_seconds=0.0,
            clock=lambda: world.epoch,
        )
        self._orders = world.parts.orders(self.recorder, FLUSH_SECONDS)
        self.own_files = FailingFiles(world.store.files)
        self._lookups = CheckpointStore("memory://torture", files=self.own_files)
        self.attempts = world.parts.attempts(self.engine.view, self.recorder)
        self.removals = QueuedJobs()
        self.evictor = self._evictor() if world.evicts else None

    def _evictor(self) -> Evictor:
        world = self.world
        return world.parts.evictor(
            world.store.checkpoints,
            world.database,
            Retention(budget=world.budget, keep=Keep(best=1)),
            view=self.engine.view,
            trials=self.engine.trials,
            objective=OBJECTIVE,
            write_down=self.flush_all,
            clock=lambda: world.epoch,
            pool=self.removals,
        )

    def begin(self) -> None:
        """Start the tuner, or go on with it where the log ends."""
        world = self.world
        records = world.records()
        if records:
            found = replay(world.make(), records, OBJECTIVE)
            check(found.identical, f"replay of the log: {found}")
            world.told.compare(self.engine)
        place = self._history.place_of(world.make())
        check(self._history.begin(self._run, place.number), "another driver has begun")
        self._events = self._history.next_number
        if self.evictor is not None:
            self.evictor.open()
        self._take(begin_tuner(self.engine, place, {}, world.now, len(world.workers)))
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

    def abandon(self, worker: str) -> None:
        """Receive that a worker is gone; `lose` follows."""
        self._follow(self.attempts.abandon(worker, self.world.now))

    def lose(self, worker: str, *, is_blameless: bool = False) -> None:
        """Receive the loss of a worker's attempts, or of all workers' if it is blameless."""
        keys = self.attempts.likely_saves(worker, goes_far=is_blameless)
        commits = find_commits(self._lookups, keys)
        now, at = self.world.now, self.world.epoch
        self._follow(self.attempts.lose(worker, commits, now=now, at=at, is_blameless=is_blameless))

    def _follow(self, following: Iterable[Following]) -> None:
        """Pass on what follows from a message, as the runner does; look-ups are answered last."""
        questions: list[LookUp] = []
        for item in following:
            match item:
                case Reached():
                    pass
                case StateDurable():
                    if self.evictor is not None:
                        self.evictor.saved(item.node, item.commit)
                case AttemptLost():
                    self._submitted.pop(item.attempt, None)
                case LookUp():
                    questions.append(item)
                case _:
                    self.tell(item)
        self.attempts.settle()
        for question in questions:
            commits = find_commits(self._lookups, question.keys)
            self._follow(self.attempts.looked_up(question, commits, self.world.now))

    def tell(self, event: Event) -> None:
        """Tell the engine, and check what follows."""
        if not isinstance(event, Tick):
            self.world.story.append(event)
        self.books.expect(event)
        if isinstance(event, Saved):
            self._note_if_gone(event)
        self._take(self.engine.handle(event, self.world.now))

    def _note_if_gone(self, event: Saved) -> None:
        """Note a state that goes, or is gone, since it was evicted before its message came.

        The evictor took it for a state of no known plan, which is old since a clock has jumped.
        """
        attempt = self.engine.view.attempts.get(event.attempt)
        if attempt is not None:
            node = attempt.node_at(event.step)
            key = node.key_at(event.step)
            removing = {} if self.evictor is None else self.evictor._removals
            if not self.world.store.has(key) or any(key == going for going, _ in removing):
                self.books.lost(self.world.ways.of(node).state(event.step))

    def _take(self, outcome: Outcome) -> None:
        self._orders.add(outcome)
        for record in outcome.records:
            self._events += 1
            self._untold.append(record)
            if record.get("decisions", True):
                self._decided = self._events
        self.world.story.extend(outcome.orders)
        self.world.story.extend(outcome.reports)
        for order in outcome.orders:
            if isinstance(order, RunStage):
                self.books.launched(order)
        self.books.compare(self.engine, outcome)

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

    def make_room(self) -> None:
        """Evict states that the store has no room for."""
        if self.evictor is not None:
            for event in self.evictor.turn():
                if isinstance(event, Evicted) and not self.books.is_lost(event):
                    self._check_metrics_of(event)
                self.tell(event)

    def _check_metrics_of(self, event: Evicted) -> None:
        """Check that the metrics of an evicted state are durable: they were in its commit, too."""
        node, database = event.node, self.world.database
        rows = database.known_metrics(self.engine.view.plan.root_key_of(node))
        there = event.step not in node.metrics or node.key_at(event.step) in {
            key for key, _, _ in rows
        }
        check(there, f"{event} comes before its metrics are durable")

    def tighten(self, share: float) -> None:
        """Take room from the store, so that states must go."""
        if self.evictor is not None:
            self.world.budget = max(1, int(share * self.evictor.nbytes))
            room = replace(self.evictor.retention, budget=self.world.budget)
            self.evictor.retention = room
            self.make_room()

    def flush_all(self) -> None:
        """Make all durable that was gathered."""
        self._orders.flush()
        self.note_told()

    def note_told(self) -> int:
        """Note what has become durable: the database is asked. Return the number of events."""
        if not self._untold:
            return self._events
        there = self.world.database.next_event(self.world.study_id)
        told = len(self._untold) - (self._events - there)
        self.world.told.take(self._untold[:told])
        del self._untold[:told]
        return there

    def carry_out(self, most: int | None = None) -> None:
        """Send orders to workers, `most` of them if it is to die then."""
        orders = self._orders.take(self.world.now)
        if orders:
            check(
                self.note_told() >= self._decided,
                f"{orders[0]} is carried out before its decision is durable",
            )
        for order in orders[:most]:
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
        if order.worker not in self.engine.view.slots:
            return
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
        commit = self.world.store.checkpoints.commit_of(order.node.key_at(step))
        if commit is None or attempt not in self.engine.view.attempts:
            return
        self.recorder.found(order.node, commit)
        self.tell(Progress(attempt=attempt, step=step))
        self.tell(Found(node=order.node, step=step, reports=commit.reports))

    def other_ended(self, attempt: str) -> None:
        """Receive the end of another driver's stage, or of that driver."""
        other = self.others.pop(attempt)
        if attempt in self.engine.view.attempts:
            self.tell(Progress(attempt=attempt, step=other.position))
            self.tell(TrainingEnded(attempt=attempt, step=other.order.start, status="lost"))

    def drain(self) -> None:
        """Stop every stage at its next step, as a limit does."""
        self._take(self.engine.drain(self.world.now))

    def go_on(self) -> None:
        """Run once more in the same process, with the plan as it is."""
        trials = self.engine.trials
        self.attempts.close()
        self.flush_all()
        if self.evictor is not None:
            evicted = self.evictor.close()
            for event in evicted:
                self.books.expect(event)
            self.engine.evicted(evicted)
        self.books.dismissed()
        self.engine.dismiss()
        self._submitted, self._refused, self.others = {}, set(), {}
        self.questions = []
        self._attach(self._dispatcher, trials)
        self.begin()

"""A driver made of dasktune's own parts: all but Dask, and the threads, which the world replaces.

It does what `dasktune._driver.runner.DaskRunner` does in a turn: takes in messages, makes records
durable, carries out orders. It can be cut short between any two of these.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from dasktune._driver import attempts as attempting
from dasktune._driver import shared_stages
from dasktune._driver.attempts import AttemptLost, LookUp, Reached, StateDurable, StateRecorded
from dasktune._driver.lease_messages import CommitsFound, LeaseMessage
from dasktune._driver.leases import Leasing
from dasktune._driver.look_ups import find_commits
from dasktune._driver.numerics import NumericClasses, NumericRule
from dasktune._driver.retention.evict import Evictor
from dasktune._driver.run import begin_tuner
from dasktune._driver.shared_stages import NoSharing, SharedStages
from dasktune._engine.event_log import replay
from dasktune._engine.outcome import Outcome, RunPrediction
from dasktune._engine.timeouts import Waits
from dasktune._engine.trials import TrialRecord
from dasktune._engine.tuner_records import NewRecord
from dasktune._worker.messages import StageEnded, StageMessage
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.events import (
    Event,
    Evicted,
    Found,
    Granted,
    Paused,
    RunStage,
    Saved,
    SaveMissed,
    SavePoint,
    StagesHeld,
    StatesRead,
    StopStage,
    Tick,
    WorkerJoined,
    WorkersJoined,
)
from dasktune.graph.plan import Node
from dasktune.graph.view import RunView
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.retention import Keep, Retention
from dasktune.types import Step
from tests.torture.books import Books, check
from tests.torture.files import FailingFiles
from tests.torture.study import OBJECTIVE, Study
from tests.torture.threads import QueuedJobs
from tests.torture.turns import Turns
from tests.torture.ways import ROOT, State
from tests.torture.world import SharedStore

WAITS = Waits(lease_seconds=20.0, renew_seconds=5.0)
"""Leases end sooner than those of users, so that a short study sees them end."""

FLUSH_SECONDS = 5.0
"""Longest delay of records without decisions: many events, so that kills lose some of them."""


class Driver:
    """One process that runs a study, until it is killed.

    Parameters
    ----------
    study
        What it runs, and where.
    """

    def __init__(self, study: Study) -> None:
        self.study = study
        self.world = study.world
        self.questions: list[RunPrediction] = []
        self._receipts: set[str] = set()
        self._submitted: dict[str, RunStage] = {}
        self._seconds: dict[str, float] = {}
        self._together: dict[str, int] = {}
        """The number of workers that train each stage together."""
        self._lent: frozenset[str] | None = None
        self.database = self.world.database_of_driver()
        self._open()

    def _open(self) -> None:
        study, world = self.study, self.world
        self._history = world.parts.history(self.database, study.id)
        self._history.read_on()
        known_states = world.parts.known_states.open(self.database, world.store.checkpoints, ROOT)

        def fill(node: Node) -> None:
            known_states.read(dispatcher.plan.root_key_of(node))
            known_states.fill(dispatcher.plan, node)
            self.books.note_new(node)

        options = study.options.with_prefix(f"d{world.next_number()}")
        dispatcher = world.parts.dispatcher(
            ROOT, options, on_new=fill, may_place=lambda: not known_states.unread
        )
        self._known_states, self._dispatcher = known_states, dispatcher
        self.books = Books(RunView(dispatcher), world.ways, world.store.committed, study.fleet)
        world.books.append(self.books)
        trials = self._history.trials()
        for trial in trials.values():
            dispatcher.register(
                *(trial.number, trial.keyed_sequences, trial.max_steps, trial.seed),
                is_alone=trial.alone is not None,
                numerics=trial.numeric_class,
            )
        states_read = self._read_commits()
        self.books.expect(states_read)
        dispatcher.learn(states_read)
        self.books.compare_with_store({state for _, state in world.store.states()})
        self._attach(dispatcher, trials)

    def _read_commits(self) -> StatesRead:
        """Read the commits of states that trials have met and no database knows."""
        unread = tuple(self._known_states.unread)
        return self._known_states.receive(unread, self._known_states.read_commits(unread))

    def _attach(self, dispatcher: Dispatcher, trials: dict[int, TrialRecord]) -> None:
        """Make all that a run has of its own."""
        study, world, fleet = self.study, self.world, self.study.fleet
        self._run = f"run-{world.next_number()}"
        is_together = not fleet.features.isdisjoint({"gangs", "scale"})
        self.engine = world.parts.engine(
            dispatcher,
            objective=OBJECTIVE,
            trials=trials,
            snapshot_every=study.snapshot_every,
            needs_of=fleet.needs_of if fleet.has_needs else None,
            devices_of=fleet.devices_of if is_together else None,
            scale=fleet.scale,
        )
        rule = NumericRule(portable=False, fingerprint=ROOT)
        self._classes = NumericClasses(
            rule if "numeric" in fleet.features else None, world.store.checkpoints
        )
        self._has_met = False
        self._untold: list[NewRecord] = []
        self._events = self._decided = 0
        self.recorder = world.parts.recorder(
            self._history,
            dispatcher.plan,
            self._known_states,
            self._run,
            used_seconds=0.0,
            clock=study.clock,
        )
        self._orders = world.parts.orders(self.recorder, FLUSH_SECONDS)
        self.turns = Turns()
        self.own_files = FailingFiles(world.store.files, self.turns.before_request)
        self._lookups = CheckpointStore("memory://torture", files=self.own_files)
        self.attempts = world.parts.attempts(self.engine.view, self.recorder)
        self.lease_messages: deque[LeaseMessage] = deque()
        self.leasing: Leasing | None = None
        self.sharing: SharedStages | NoSharing = NoSharing()
        if study.options.merge:
            self.leasing = self._leasing()
            self.sharing = world.parts.sharing(self.engine.view, self.leasing, self.recorder)
        self.removals = QueuedJobs()
        self.evictor = self._evictor() if world.evicts else None

    def _leasing(self) -> Leasing:
        return self.world.parts.leasing(
            self._lookups,
            self.study.name,
            self.lease_messages.append,
            clock=self.study.clock,
            waits=WAITS,
            files=self.own_files,
            rounds=self.turns,
            holder=self._run,
        )

    def _evictor(self) -> Evictor:
        world = self.world
        return world.parts.evictor(
            SharedStore(world.store, self._note_removal),
            self.database,
            Retention(budget=world.budget, keep=Keep(best=1)),
            view=self.engine.view,
            trials=self.engine.trials,
            objective=OBJECTIVE,
            write_down=self.flush_all,
            clock=self.study.clock,
            pool=self.removals,
        )

    def _note_removal(self, state: State) -> None:
        """Note in the books of the other drivers what they receive no event of."""
        for books in self.world.books:
            if books is not self.books:
                books.lost(state)

    def begin(self) -> None:
        """Start the tuner, or go on with it where the log ends."""
        study = self.study
        records = study.records()
        if records:
            found = replay(study.make(), records, OBJECTIVE)
            check(found.identical, f"replay of the log: {found}")
            study.told.compare(self.engine)
        place = self._history.place_of(study.make())
        check(self._history.begin(self._run, place.number), "another driver has begun")
        self._events = self._history.next_number
        if self.evictor is not None:
            self.evictor.open()
        joined = self._joined(study.workers)
        self._meet(joined)
        self._take(begin_tuner(self.engine, place, {}, study.now, len(study.workers)))
        self.tell(Granted(workers=study.granted()))
        self.check()
        self._let_join(joined)

    def check(self) -> None:
        """Hold stages back while the check of the trainer runs."""
        is_held = self.study.now < self.study.checked_at
        if is_held is self.engine.view.is_checked:
            self.tell(StagesHeld(which="resumes" if is_held else "none"))

    def join(self, workers: Iterable[str]) -> None:
        """Handle workers that join together."""
        joined = self._joined(workers)
        self._meet(joined)
        self._let_join(joined)

    def _joined(self, workers: Iterable[str]) -> list[WorkerJoined]:
        """Return the events of workers, with their numeric classes."""
        machines = {worker: self.study.workers[worker].machine for worker in workers}
        return self._classes.of([machine.joined(name) for name, machine in machines.items()])

    def _meet(self, joined: Iterable[WorkerJoined]) -> None:
        """Tell the engine the numeric classes of the first workers."""
        plain = self._classes.plain
        if plain is not None and not self._has_met:
            self._has_met = True
            present = {each.numerics for each in joined if each.numerics is not None}
            self.engine.meet(plain, present)

    def _let_join(self, joined: Iterable[WorkerJoined]) -> None:
        self.tell(WorkersJoined(workers=tuple(joined)))

    def grant(self, workers: frozenset[str] | None) -> None:
        """Receive which workers the study may use, if they are others than before."""
        if workers != self._lent:
            self.tell(Granted(workers=workers))

    def pause(self, paused: frozenset[str], resting: frozenset[str]) -> None:
        """Receive which workers Dask has paused, and which of them execute nothing."""
        paused &= self.engine.view.slots.keys()
        if paused != frozenset(self.engine.view.paused):
            self.tell(Paused(workers=paused))
        now, at = self.study.now, self.study.clock()
        self._follow(self.attempts.take_back(resting, now=now, at=at))

    @property
    def held_leases(self) -> list[str]:
        """The keys of the leases that the driver holds."""
        held = {} if self.leasing is None else self.leasing._held
        return [lease.key for lease in held.values()]

    @property
    def is_done(self) -> bool:
        """Whether the tuner has ended and nothing is under way."""
        return self.engine.finished and self.engine.view.is_idle

    # ---------------------------------------------------------------------- hearing

    def hear(self, message: StageMessage) -> None:
        """Receive a message from a worker."""
        if isinstance(message, StageEnded):
            self._note_seconds(message)
        self._follow(self.attempts.receive(message, self.study.now))

    def hear_receipt(self, receipt: StageEnded) -> None:
        """Receive Dask's notice that an attempt ended."""
        attempt = receipt.attempt
        order = self._submitted.pop(attempt, None)
        if order is None or self.attempts.order_of(attempt) is None:
            return
        self._note_seconds(receipt)
        self._follow(self.attempts.receive(receipt, self.study.now))

    def _note_seconds(self, ended: StageEnded) -> None:
        self._seconds[ended.attempt] = ended.seconds * self._together.get(ended.attempt, 1)

    def hear_late(self, attempt: str, step: Step) -> None:
        """Receive the notice that a save-point came too late."""
        self.tell(SaveMissed(attempt=attempt, step=step))

    def abandon(self, worker: str) -> None:
        """Receive that a worker is gone; `lose` follows."""
        self._follow(self.attempts.abandon(worker, self.study.now))

    def lose(self, worker: str, *, is_blameless: bool = False) -> None:
        """Receive the loss of a worker's attempts, or of all workers' if it is blameless."""
        keys = self.attempts.likely_saves(worker, goes_far=is_blameless)
        commits = find_commits(self._lookups, keys)
        now, at = self.study.now, self.study.clock()
        self._follow(self.attempts.lose(worker, commits, now=now, at=at, is_blameless=is_blameless))

    def _follow(self, following: Iterable[attempting.Following | shared_stages.Following]) -> None:
        """Pass on what follows from a message, as the runner does; look-ups are answered last."""
        questions: list[LookUp] = []
        for item in following:
            match item:
                case RunStage():
                    self._submit(item)
                case SavePoint():
                    self._send(item)
                case Reached():
                    self.sharing.receive(item, self.study.now)
                case StateDurable():
                    if self.evictor is not None:
                        recorded = item.is_recorded
                        self.evictor.saved(item.node, item.commit, is_recorded=recorded)
                    self.sharing.receive(item, self.study.now)
                case StateRecorded():
                    if self.evictor is not None:
                        self.evictor.recorded(item.key)
                case AttemptLost():
                    self._submitted.pop(item.attempt, None)
                    for worker in self.study.workers.values():
                        worker.cancel(item.attempt)
                case LookUp():
                    questions.append(item)
                case _:
                    self.tell(item)
        self.attempts.settle()
        for question in questions:
            commits = find_commits(self._lookups, question.keys)
            self._follow(self.attempts.looked_up(question, commits, self.study.now))

    def tell(self, event: Event) -> None:
        """Tell the engine, and check what follows."""
        if not isinstance(event, Tick):
            self.study.tell(event)
        if isinstance(event, Granted):
            self._lent = event.workers
        self.books.expect(event)
        if isinstance(event, Saved):
            attempt = self.engine.view.attempts.get(event.attempt)
            if attempt is not None:
                self._note_if_gone(attempt.node_at(event.step), event.step)
        elif isinstance(event, Found):
            self._note_if_gone(event.node, event.step)
        self._take(self.engine.handle(event, self.study.now))

    def _note_if_gone(self, below: Node, step: Step) -> None:
        """Note a state on the way to a node that was evicted before its message came.

        The evictor took it for a state of no known plan, which is old since a clock has jumped.
        """
        key = below.key_at(step)
        removing = {} if self.evictor is None else self.evictor._removals
        if not self.world.store.has(key) or any(key == going for going, _ in removing):
            self.books.lost(self.world.ways.of(below).state(step))

    def _take(self, outcome: Outcome) -> None:
        self._orders.add(outcome)
        self.sharing.want(outcome.trials)
        for record in outcome.records:
            self._events += 1
            self._untold.append(record)
            if record.decisions:
                self._decided = self._events
        self.study.tell(*outcome.orders, *outcome.reports)
        for order in outcome.orders:
            if isinstance(order, RunStage):
                self.books.launched(order)
        self.books.compare(self.engine, outcome)

    # ----------------------------------------------------------------------- a turn

    def tick(self) -> None:
        """Give the engine the time; the tuner is asked when workers are idle."""
        self.sharing.turn(self.study.now)
        self.check()
        if self._known_states.unread:
            self.tell(self._read_commits())
        self.tell(Tick())
        self._follow(self.attempts.check(self.study.now))
        spent, most = self.attempts.worker_seconds, sum(self._seconds.values())
        check(spent <= most, f"{spent} worker seconds are counted, {most} were spent")

    def ask(self) -> None:
        """Ask the tuner for more if workers have nothing to do."""
        view = self.engine.view
        if not self.engine.finished and view.idle_workers:
            self._take(self.engine.ask(view.idle_workers, self.study.now))
            check(
                self.engine.finished or view.is_under_way or self.engine.predicting,
                "the tuner has not ended, asks for nothing, and nothing is running",
            )

    def make_room(self) -> None:
        """Evict states that the store has no room for."""
        if self.evictor is not None:
            for event in self.evictor.turn(self.study.now):
                if isinstance(event, Evicted) and not self.books.is_lost(event):
                    self._check_metrics_of(event)
                self.tell(event)

    def _check_metrics_of(self, event: Evicted) -> None:
        """Check that the metrics of an evicted state are durable: they were in its commit, too."""
        node, database = event.node, self.database
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
        there = self.database.next_event(self.study.id)
        told = len(self._untold) - (self._events - there)
        self.study.told.take(self._untold[:told])
        del self._untold[:told]
        return there

    def carry_out(self, most: int | None = None) -> None:
        """Send orders to workers, `most` of them if it is to die then."""
        orders = self._orders.take(self.study.now)
        if orders:
            check(
                self.note_told() >= self._decided,
                f"{orders[0]} is carried out before its decision is durable",
            )
        for order in orders[:most]:
            if isinstance(order, RunPrediction):
                self.questions.append(order)
                continue
            if not isinstance(order, RunStage):
                self._send(order)
            elif order.attempt in self.engine.view.attempts:
                self._follow(self.sharing.start(order))

    def _send(self, order: RunStage | SavePoint | StopStage) -> None:
        worker = self.study.workers.get(order.worker)
        if worker is not None:
            worker.inbox.append(order)

    def _submit(self, order: RunStage) -> None:
        if order.worker not in self.engine.view.slots:
            return
        self.study.tell(f"{order.attempt} runs to {order.stop}")
        self._submitted[order.attempt] = order
        self._together[order.attempt] = len(order.workers)
        self.attempts.add(order, order.node.key_at(order.stop))
        self._send(order)

    def hear_of_leases(self) -> None:
        """Receive a message of the leases, if there is any."""
        if self.lease_messages:
            message = self.lease_messages.popleft()
            self.study.tell(message)
            self._follow(self.sharing.receive(message, self.study.now))
            if isinstance(message, CommitsFound):
                self._check_wait(message.attempt)

    def _check_wait(self, attempt: str) -> None:
        """Check that a stage waits only for a state that the other driver saves or may yet save."""
        assert isinstance(self.sharing, SharedStages)
        waiting = self.sharing._waiting.get(attempt)
        if waiting is not None:
            lease, stop = waiting.lease, waiting.order.stop
            may_come = lease.step < stop or stop in (lease.stop, *lease.saved, *lease.saves)
            check(may_come, f"{attempt} waits for step {stop}, which {lease.holder} did not save")

    def answer(self, place: int, *, fails: bool = False) -> None:
        """Receive the prediction for one of `questions`, if it can be made."""
        order = self.questions.pop(place)
        prediction = None if fails else order.question.answer()
        self.study.tell(f"trial {order.trial} is predicted: {prediction}")
        self._take(self.engine.predicted(order.subject, prediction, self.study.now))

    # --------------------------------------------------------------------- what else happens

    def drain(self) -> None:
        """Stop every stage at its next step, as a limit does."""
        self._take(self.engine.drain(self.study.now))

    def go_on(self) -> None:
        """Run once more in the same process, with the plan as it is."""
        trials = self.engine.trials
        self.close()
        self._submitted = {}
        self.questions = []
        self._attach(self._dispatcher, trials)
        self.begin()

    def close(self) -> None:
        """End the run, as the runner does."""
        self.attempts.close()
        self.flush_all()
        if self.evictor is not None:
            evicted = self.evictor.close()
            for event in evicted:
                self.books.expect(event)
            self.engine.evicted(evicted)
        self.books.dismissed()
        self.engine.dismiss()
        self.sharing.close()

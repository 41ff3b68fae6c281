"""The dispatcher against a model of workers: any legal order of decisions and events.

In the model each worker runs its queue in order, one step at a time. What it says arrives in
order, but when the test wants; states become durable behind training; instructions arrive
late; workers are lost, trainers raise. A state is named by all the values before it, so that
the model knows nothing of keys.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from dasktune.graph.attempts import Attempt, DispatchOptions
from dasktune.graph.devices import DEVICES
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.events import (
    Deliver,
    Event,
    Evicted,
    Failed,
    FailTrial,
    Found,
    Granted,
    Instruction,
    Paused,
    Progress,
    Reports,
    RunStage,
    Saved,
    SaveMissed,
    SavePoint,
    Started,
    StopStage,
    Taken,
    Tick,
    TrainingEnded,
    WorkerGone,
    WorkerJoined,
    WorkerLeaving,
    WorkerLost,
)
from dasktune.graph.frontier import is_ready, start_of
from dasktune.graph.invariants import violations
from dasktune.graph.keys import root_key
from dasktune.graph.plan import Node
from dasktune.graph.save_policy import SavePolicy
from dasktune.graph.view import RunView
from dasktune.sequences import Constant, MultiStep, Piecewise, Sequence, Warmup
from dasktune.types import Sequences, Step, Value
from tests.effort import examples

HORIZON = 12
ALLOWED_LOSSES = 2

State = tuple[tuple[tuple[str, type, Value], ...], ...]
"""The values of each step so far: what made the state."""


def state_of(sequences: Sequences, steps: Step) -> State:
    return tuple(
        tuple(
            (name, type(one(step)), one(step))
            for name, one in sorted(sequences.items())
            if name != DEVICES or one(step) != 1
        )
        for step in range(steps)
    )


def metric_of(state: State) -> dict[str, float]:
    return {"loss": float(hash(state) % 10_007)}


@dataclass
class Lineage:
    """A trainer in memory; `differs` if its states are not what others get."""

    state: State
    differs: bool = False
    is_lost: bool = False


@dataclass
class Write:
    lineage: Lineage
    attempt: str
    state: State
    reports: Reports


@dataclass
class Job:
    order: RunStage
    position: Step
    began: bool = False
    saves: set[Step] = field(default_factory=set)
    stop_at: Step | None = None

    @property
    def id(self) -> str:
        return self.order.attempt


class Store:
    """Durable states and, by state, the metrics that were committed first."""

    def __init__(self) -> None:
        self.states: dict[State, str] = {(): "root"}
        self.poison: set[State] = set()
        self.flaky: set[State] = set()
        self.raised: dict[State, int] = {}


class Worker:
    """One worker process and the messages on their way to and from it."""

    def __init__(self, name: str, store: Store) -> None:
        self.name = name
        self.store = store
        self.queue: deque[Job] = deque()
        self.inbox: deque[Instruction] = deque()
        self.outbox: deque[Event] = deque()
        self.writes: deque[Write] = deque()
        self.warm: Lineage | None = None
        self.unsaved: list[tuple[Step, dict[str, float]]] = []
        self.differs_next = False
        self.receipts: dict[str, tuple[str, Step]] = {}

    # ------------------------------------------------------------------- instructions

    def take(self) -> SaveMissed | None:
        """Carry out the oldest instruction that is under way; return what it answers."""
        match self.inbox.popleft():
            case RunStage() as order:
                self.queue.append(Job(order, order.start))
            case SavePoint() as wish:
                job = self._job(wish.attempt)
                if job is not None:
                    if job.began and job.position >= wish.step:
                        return SaveMissed(attempt=wish.attempt, step=wish.step)
                    job.saves.add(wish.step)
            case StopStage() as wish:
                job = self._job(wish.attempt)
                if job is not None:
                    at = 0 if wish.at is None else wish.at
                    job.stop_at = at if job.stop_at is None else min(at, job.stop_at)
        return None

    def _job(self, attempt: str) -> Job | None:
        return next((job for job in self.queue if job.id == attempt), None)

    # ----------------------------------------------------------------------- training

    @property
    def can_work(self) -> bool:
        return bool(self.queue)

    def work(self) -> None:
        """Do one thing: begin a stage, or train one step of it."""
        job = self.queue[0]
        if not job.began:
            self._begin(job)
        else:
            self._train(job)

    def _begin(self, job: Job) -> None:
        order = job.order
        if order.after is not None and self.receipts.get(order.after) != ("trained", order.start):
            self._end(job, "skipped")
            return
        if job.stop_at is not None and job.position >= job.stop_at:
            self._end(job, "stopped")
            return
        job.began = True
        self.unsaved = []
        self.outbox.append(Started(attempt=job.id))
        start = state_of(order.node.sequences, order.start)
        warm, self.warm = self.warm, None
        if warm is None or warm.state != start or warm.is_lost:
            if start not in self.store.states:
                self._end(job, "missing")
                return
            warm = Lineage(start, differs=self.differs_next)
            self.differs_next = False
        self.warm = warm
        if order.start == order.stop:
            reports = ((order.stop, metric_of(start)),)
            self.outbox.append(Saved(attempt=job.id, step=order.stop, reports=reports))
            self._end(job, "trained")

    def _train(self, job: Job) -> None:
        order, lineage = job.order, self.warm
        assert lineage is not None
        after = state_of(order.node.sequences, job.position + 1)
        if after in self.store.poison or after in self.store.flaky:
            self.store.flaky.discard(after)
            self.store.raised[after] = self.store.raised.get(after, 0) + 1
            self.warm = None
            self.queue.popleft()
            self.receipts[job.id] = ("failed", job.position)
            self.outbox.append(Failed(attempt=job.id, step=job.position, message="boom"))
            return
        job.position += 1
        lineage.state = after
        self.unsaved.append((job.position, metric_of(after)))
        stopped = job.stop_at is not None and job.position >= job.stop_at
        at_end = stopped or job.position == order.stop
        if at_end or job.position in job.saves or job.position in order.saves:
            self.save(job)
        if lineage.is_lost:
            self.warm = None
            self._end(job, "superseded")
        elif at_end:
            self._end(job, "trained" if job.position == order.stop else "stopped")

    def save(self, job: Job) -> None:
        """Snapshot the state; it is written later."""
        assert self.warm is not None
        reports, self.unsaved = tuple(self.unsaved), []
        self.outbox.append(Progress(attempt=job.id, step=job.position))
        self.writes.append(Write(self.warm, job.id, self.warm.state, reports))

    def _end(self, job: Job, status: str) -> None:
        self.queue.popleft()
        self.receipts[job.id] = (status, job.position)
        seconds = float(job.position - job.order.start)
        self.outbox.append(
            TrainingEnded(attempt=job.id, step=job.position, status=status, seconds=seconds)  # type: ignore[arg-type]
        )

    def write(self) -> None:
        """Commit the oldest snapshot; the first commit of a state stands."""
        write = self.writes.popleft()
        step = len(write.state)
        if write.lineage.is_lost:
            self.outbox.append(TrainingEnded(attempt=write.attempt, step=step, status="lost"))
            return
        first = self.store.states.setdefault(write.state, write.attempt)
        write.lineage.is_lost = first != write.attempt and write.lineage.differs
        self.outbox.append(Saved(attempt=write.attempt, step=step, reports=write.reports))

    def lose_unstarted(self) -> None:
        """Drop the queued stages that have not begun, as Dask does when it loses them."""
        while self.queue and not self.queue[-1].began:
            job = self.queue.pop()
            self.receipts[job.id] = ("lost", job.position)
            self.outbox.append(TrainingEnded(attempt=job.id, step=job.position, status="lost"))


SEQUENCES: st.SearchStrategy[Sequence] = st.one_of(
    st.just(Constant(0.5)),
    st.builds(
        lambda at, low: MultiStep(0.5, at, gamma=0.5 if low else 1.0),
        st.lists(st.integers(1, HORIZON - 1), unique=True, min_size=1, max_size=2).map(sorted),
        st.booleans(),
    ),
    st.builds(
        lambda at, value: Piecewise([0.5, value], boundaries=[at]),
        st.integers(1, HORIZON - 1),
        st.sampled_from([0.25, 1.0]),
    ),
    st.just(Warmup(3, 0.5) >> Constant(0.5)),
)


ACTS = st.sampled_from(["work", "work", "work", "obey", "obey", "hear", "write", "speak", "save"])


class DispatcherMachine(RuleBasedStateMachine):
    """Drives a dispatcher and model workers, and checks both after every step."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.workers: dict[str, Worker] = {}
        self.joined = 0
        self.trials: dict[int, Sequences] = {}
        self.asked: dict[int, list[Step]] = {}
        self.late: deque[SaveMissed] = deque()
        self.lost: deque[Worker] = deque()
        self.store = Store()
        self.saved: set[State] = set()
        self.evicted: set[State] = set()
        self.measured: set[State] = set()
        self.trained: set[State] = set()
        self.seen: dict[str, Step] = {}
        self.repeated: dict[str, int] = {}
        self.orders: dict[str, RunStage] = {}
        self.closed: set[str] = set()
        self.leaving: set[str] = set()
        self.lent: frozenset[str] | None = None
        self.paused: frozenset[str] = frozenset()
        self.others: dict[str, RunStage] = {}
        self.began: set[str] = set()
        self.losses = 0
        self.executed_total = self.repeated_total = 0

    @initialize(
        every=st.sampled_from([None, 3]),
        at_changes=st.booleans(),
        lookahead=st.sampled_from([0.0, 2.0]),
        sharing=st.sampled_from(["merged", "merged", "merged", "unmerged", "alone"]),
        workers=st.integers(1, 3),
        trials=st.lists(st.tuples(SEQUENCES, st.integers(1, HORIZON)), min_size=1, max_size=5),
    )
    def start(
        self,
        every: int | None,
        at_changes: bool,
        lookahead: float,
        sharing: str,
        workers: int,
        trials: list[tuple[Sequence, Step]],
    ) -> None:
        self.merge, self.is_alone = sharing == "merged", sharing == "alone"
        self.dispatcher = Dispatcher(
            root_key("machine", 0),
            DispatchOptions(
                saves=SavePolicy(every=every, at_changes=at_changes),
                lookahead_seconds=lookahead,
                merge=sharing != "unmerged",
                losses_allowed=ALLOWED_LOSSES,
            ),
        )
        for lr, steps in trials:
            self.register(lr, steps, True)
        for _ in range(workers):
            self.join()

    # ---------------------------------------------------------------------- decisions

    @rule(lr=SEQUENCES, steps=st.integers(1, HORIZON), ask=st.booleans())
    def register(self, lr: Sequence, steps: Step, ask: bool) -> None:
        trial = len(self.trials)
        self.trials[trial] = self.sequences_with(lr)
        if not self.merge:
            # Each trial has states of its own: tell them apart in the model, too.
            self.trials[trial] = {**self.trials[trial], "own": Constant(trial)}
        instructions = self.dispatcher.register(
            trial, self.trials[trial], steps, is_alone=self.is_alone
        )
        self.carry_out(instructions)
        if ask:
            self.ask_for(trial, steps, 0.0)

    def sequences_with(self, lr: Sequence) -> Sequences:
        """Return the sequences of a trial."""
        return {"lr": lr}

    @precondition(lambda self: self.trials)
    @rule(
        data=st.data(),
        until=st.integers(1, HORIZON),
        priority=st.sampled_from([0.0, 0.0, 1.0]),
        reports=st.sets(st.integers(1, HORIZON), max_size=3),
    )
    def extend(self, data: st.DataObject, until: Step, priority: float, reports: set[Step]) -> None:
        trial = data.draw(st.sampled_from(sorted(self.trials)))
        until = max(until, *self.asked.get(trial, [0]))
        self.ask_for(trial, until, priority, sorted(step for step in reports if step < until))

    def ask_for(
        self, trial: int, until: Step, priority: float, reports: Iterable[Step] = ()
    ) -> None:
        self.asked[trial] = [*reports, until]
        self.carry_out(self.dispatcher.extend(trial, until, priority, self.now, tuple(reports)))

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        trial = data.draw(st.sampled_from(sorted(self.asked)))
        del self.asked[trial]
        self.carry_out(self.dispatcher.stop(trial, self.now))

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), priority=st.sampled_from([0.0, 1.0, 2.0]))
    def rank(self, data: st.DataObject, priority: float) -> None:
        trial = data.draw(st.sampled_from(sorted(self.asked)))
        self.carry_out(self.dispatcher.rank(trial, priority))

    # ------------------------------------------------------------------------ workers

    @precondition(lambda self: len(self.workers) < 4)
    @rule()
    def join(self) -> None:
        name = f"w{self.joined}"
        self.joined += 1
        self.workers[name] = Worker(name, self.store)
        self.tell(WorkerJoined(worker=name, kind=self.kind_of(name), gpu=self.gpu_of(name)))

    def kind_of(self, worker: str) -> str:
        """Return the class of a worker."""
        return ""

    def gpu_of(self, worker: str) -> str:
        """Return the GPU of a worker."""
        return ""

    @precondition(lambda self: self.workers)
    @rule(acts=st.lists(st.tuples(st.integers(0, 3), ACTS), min_size=1, max_size=10))
    def act(self, acts: list[tuple[int, str]]) -> None:
        """Do the given acts of workers, in any order."""
        names = sorted(self.workers)
        for at, what in acts:
            getattr(self, what)(self.workers[names[at % len(names)]])

    @precondition(lambda self: self.workers)
    @rule(acts=st.lists(st.tuples(st.integers(0, 3), ACTS), min_size=5, max_size=15))
    def act_long(self, acts: list[tuple[int, str]]) -> None:
        """Once more, so that few runs are left in which workers do nothing."""
        self.act(acts)

    def work(self, worker: Worker) -> None:
        for _ in range(2):
            if worker.queue:
                worker.work()

    def speak(self, worker: Worker) -> None:
        if worker.queue and worker.queue[0].began:
            job = worker.queue[0]
            worker.outbox.append(Progress(attempt=job.id, step=job.position))

    def save(self, worker: Worker) -> None:
        """Save the running stage's state without a request, as a worker does from time to time."""
        if worker.queue and worker.queue[0].began and worker.unsaved:
            worker.save(worker.queue[0])

    def write(self, worker: Worker) -> None:
        if worker.writes:
            worker.write()

    def hear(self, worker: Worker) -> None:
        for _ in range(min(3, len(worker.outbox))):
            self.tell(worker.outbox.popleft())

    def obey(self, worker: Worker) -> None:
        while worker.inbox:
            if answer := worker.take():
                self.late.append(answer)

    @precondition(lambda self: self.late)
    @rule()
    def hear_late(self) -> None:
        self.tell(self.late.popleft())

    @precondition(lambda self: len(self.workers) > 1)
    @rule(data=st.data(), hear_last=st.booleans(), writes_go_on=st.booleans())
    def lose(self, data: st.DataObject, hear_last: bool, writes_go_on: bool) -> None:
        """Lose a worker; behind a partition it may go on writing."""
        worker = self.workers[data.draw(st.sampled_from(sorted(self.workers)))]
        while writes_go_on and worker.writes:
            worker.write()
        while hear_last and worker.outbox:
            self.tell(worker.outbox.popleft())
        del self.workers[worker.name]
        self.lost.append(worker)
        self.tell(WorkerGone(worker=worker.name))

    @precondition(lambda self: self.lost)
    @rule(hears=st.booleans())
    def look_up(self, hears: bool) -> None:
        """Hear the last words of a worker that is gone, and of the loss of its stages."""
        worker = self.lost.popleft()
        while hears and worker.outbox:
            self.tell(worker.outbox.popleft())
        self.tell(WorkerLost(worker=worker.name))

    @precondition(lambda self: self.workers.keys() - self.leaving)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """Announce that a worker will leave; it may stay all the same."""
        name = data.draw(st.sampled_from(sorted(self.workers.keys() - self.leaving)))
        self.leaving.add(name)
        self.tell(WorkerLeaving(worker=name))

    @rule(workers=st.none() | st.frozensets(st.sampled_from([f"w{n}" for n in range(6)])))
    def lend(self, workers: frozenset[str] | None) -> None:
        """Other studies take workers, or give them back."""
        self.lent = workers
        self.tell(Granted(workers=workers))
        for attempt in self.dispatcher.attempts.values():
            has_worker = attempt.worker and not attempt.ended
            is_withheld = any(map(self.is_withheld, attempt.workers))
            assert not has_worker or attempt.stopping or not is_withheld

    @rule(workers=st.frozensets(st.sampled_from([f"w{n}" for n in range(6)]), max_size=2))
    def pause(self, workers: frozenset[str]) -> None:
        """Pause some workers, and no others: what they have not begun is lost."""
        self.paused = workers
        self.tell(Paused(workers=workers))
        for name in sorted(workers & self.workers.keys()):
            self.workers[name].lose_unstarted()

    def is_withheld(self, worker: str) -> bool:
        return self.lent is not None and worker not in self.lent

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), differs=st.booleans())
    def go_wrong(self, data: st.DataObject, differs: bool) -> None:
        """Drop the stages that a worker has not begun, or give its next trainer other states."""
        worker = self.workers[data.draw(st.sampled_from(sorted(self.workers)))]
        if differs:
            worker.differs_next = True
        else:
            worker.lose_unstarted()

    @precondition(lambda self: self.trials)
    @rule(data=st.data(), step=st.integers(1, HORIZON), again=st.booleans())
    def break_step(self, data: st.DataObject, step: Step, again: bool) -> None:
        """Make the trainer raise in one step, once or always."""
        trial = data.draw(st.sampled_from(sorted(self.trials)))
        state = state_of(self.trials[trial], step)
        (self.store.poison if again else self.store.flaky).add(state)

    @precondition(lambda self: len(self.store.states) > 1)
    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        """Remove a state from the store without an event."""
        state = data.draw(st.sampled_from([state for state in self.store.states if state]))
        del self.store.states[state]
        self.evicted.add(state)

    @precondition(lambda self: self.dispatcher.plan is not None and self.saved)
    @rule(data=st.data())
    def evict_and_say_so(self, data: st.DataObject) -> None:
        """Evict a state that no stage is about to load, and send the event."""
        held = [(node, step) for node in self.dispatcher.plan for step in node.checkpoints]
        starts = {(node.number, step) for node, step in self.dispatcher.open.starts}
        free = [(node, step) for node, step in held if (node.number, step) not in starts]
        if free:
            node, step = data.draw(st.sampled_from(free))
            state = state_of(node.sequences, step)
            self.store.states.pop(state, None)
            self.evicted.add(state)
            self.tell(Evicted(node=node, step=step))

    # ------------------------------------------------------------------ other drivers

    def unsent(self) -> list[RunStage]:
        return [
            one
            for worker in self.workers.values()
            for one in worker.inbox
            if isinstance(one, RunStage) and one.start < one.stop
        ]

    @precondition(lambda self: self.merge and self.unsent())
    @rule(data=st.data())
    def be_taken(self, data: st.DataObject) -> None:
        """Give an unsent stage to another driver; skip the stages that follow it."""
        order = data.draw(st.sampled_from(self.unsent()))
        worker = self.workers[order.worker]
        kept = [one for one in worker.inbox if one.attempt != order.attempt]  # type: ignore[union-attr]
        following = [
            one for one in kept if isinstance(one, RunStage) and one.after == order.attempt
        ]
        gone = {one.attempt for one in following}
        worker.inbox = deque(one for one in kept if one.attempt not in gone)  # type: ignore[union-attr]
        if order.attempt in self.dispatcher.attempts:
            self.others[order.attempt] = order
            self.tell(Taken(attempt=order.attempt))
        for one in following:
            self.tell(TrainingEnded(attempt=one.attempt, step=one.start, status="skipped"))

    @precondition(lambda self: self.others)
    @rule(data=st.data())
    def others_save(self, data: st.DataObject) -> None:
        order = self.others[data.draw(st.sampled_from(sorted(self.others)))]
        step = data.draw(st.integers(order.start + 1, order.stop))
        state = state_of(order.node.sequences, step)
        self.store.states.setdefault(state, "another driver")
        self.tell(Progress(attempt=order.attempt, step=step))
        self.tell(Found(node=order.node, step=step, reports=((step, metric_of(state)),)))

    @precondition(lambda self: self.others)
    @rule(data=st.data())
    def others_end(self, data: st.DataObject) -> None:
        """End a stage of another driver at any of its steps."""
        order = self.others.pop(data.draw(st.sampled_from(sorted(self.others))))
        step = data.draw(st.integers(order.start, order.stop))
        self.tell(Progress(attempt=order.attempt, step=step))
        self.tell(TrainingEnded(attempt=order.attempt, step=order.start, status="lost"))

    @rule(seconds=st.sampled_from([0.0, 1.0, 5.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.tell(Tick())

    # -------------------------------------------------------------------------- model

    def tell(self, event: Event) -> None:
        self.expect(event)
        self.carry_out(self.dispatcher.handle(event, self.now))

    def expect(self, event: Event) -> None:
        """Keep the model's own books of an event that the dispatcher takes in."""
        if isinstance(event, WorkerLost):
            for attempt in list(self.dispatcher.attempts.values()):
                if attempt.worker == event.worker:
                    was_seen = attempt.id in self.began or self.seen[attempt.id] > attempt.start
                    if was_seen and attempt.id not in self.closed:
                        self.losses += 1
                    self.close(attempt.id)
            return
        if isinstance(event, Found):
            self.saved.add(state_of(event.node.sequences, event.step))
            self.measured |= {state_of(event.node.sequences, step) for step, _ in event.reports}
            steps = range(1, event.step + 1)
            self.trained |= {state_of(event.node.sequences, step) for step in steps}
            return
        if isinstance(event, Evicted):
            self.saved.discard(state_of(event.node.sequences, event.step))
            return
        if (
            isinstance(event, WorkerGone | WorkerJoined | WorkerLeaving | Granted | Paused | Tick)
            or event.attempt not in self.dispatcher.attempts
        ):
            return
        worker = self.dispatcher.attempts[event.attempt].worker
        if isinstance(event, SaveMissed) and worker not in self.workers:
            return
        order = self.orders[event.attempt]
        if isinstance(event, TrainingEnded) and event.status == "missing":
            state = state_of(order.node.sequences, order.start)
            # What is carried on from may also turn out to be lost behind the stage before.
            assert state in self.evicted or order.after is not None, f"{order} starts from nothing"
            if not self.dispatcher.attempts[event.attempt].uprooted:
                self.saved.discard(state)
        if isinstance(event, Saved):
            self.saved.add(state_of(order.node.sequences, event.step))
            for step, _ in event.reports:
                self.measured.add(state_of(order.node.sequences, step))
        if isinstance(event, Progress | Saved | SaveMissed | TrainingEnded | Failed):
            for step in range(self.seen[event.attempt] + 1, event.step + 1):
                state = state_of(order.node.sequences, step)
                self.repeated[event.attempt] += state in self.trained
                self.trained.add(state)
                self.seen[event.attempt] = step
        if isinstance(event, Started):
            self.began.add(event.attempt)
        if isinstance(event, TrainingEnded | Failed | Taken):
            self.close(event.attempt)

    def close(self, attempt: str) -> None:
        if attempt not in self.closed:
            self.closed.add(attempt)
            self.executed_total += self.seen[attempt] - self.orders[attempt].start
            self.repeated_total += self.repeated[attempt]

    def carry_out(self, instructions: list[Instruction]) -> None:
        for one in instructions:
            match one:
                case Deliver():
                    self.delivered(one)
                case FailTrial():
                    self.failed(one)
                case RunStage():
                    self.launched(one)
                    self.workers[one.worker].inbox.append(one)
                case _:
                    assert one.worker in self.workers, f"{one} goes to a worker that is gone"
                    self.workers[one.worker].inbox.append(one)

    def delivered(self, one: Deliver) -> None:
        report = one.report
        assert self.asked[report.trial].pop(0) == report.step, "in the order of steps"
        if not self.asked[report.trial]:
            del self.asked[report.trial]
        state = state_of(self.trials[report.trial], report.step)
        assert report.metrics == metric_of(state)
        assert state in self.measured

    def failed(self, one: FailTrial) -> None:
        until = self.asked.pop(one.trial)[-1]
        assert one.step < until, f"{one} does not need the step after {one.step}"
        state = state_of(self.trials[one.trial], one.step + 1)
        if "was lost" in one.message:
            assert self.losses > ALLOWED_LOSSES
            return
        assert self.store.raised.get(state, 0) >= 2, f"{one}, which did not fail twice"

    def launched(self, order: RunStage) -> None:
        """Check that no state is trained that exists or that another attempt will make."""
        sequences = order.node.sequences
        for worker in (order.worker, *order.lenders):
            assert worker not in self.leaving | self.paused
            assert not self.is_withheld(worker)
        self.orders[order.attempt] = order
        self.seen[order.attempt], self.repeated[order.attempt] = order.start, 0
        made = {state_of(sequences, step) for step in range(order.start + 1, order.stop + 1)}
        if self.is_alone:
            assert (order.start, order.after) == (0, None), f"{order} begins from a state"
            assert not made <= self.measured, f"{order} trains what is known"
            return
        assert not made & self.saved, f"{order} trains what is durable"
        if order.start == order.stop:
            assert state_of(sequences, order.stop) in self.saved - self.measured
        mine = self.dispatcher.attempts[order.attempt]
        for other in self.dispatcher.attempts.values():
            if other is not mine and not other.ended and not other.stopping:
                assert not made & self.ahead_of(other), f"{order} trains what {other} will"

    def ahead_of(self, attempt: Attempt) -> set[State]:
        sequences = attempt.node.sequences
        return {state_of(sequences, s) for s in range(attempt.position + 1, attempt.stop + 1)}

    # --------------------------------------------------------------------- invariants

    @invariant()
    def nothing_is_violated(self) -> None:
        assert [*violations(self.dispatcher)] == []

    @invariant()
    def requests_are_those_asked_for(self) -> None:
        wanted = self.dispatcher.wanted
        assert {t: [n.stop for n in nodes] for t, nodes in wanted.items()} == self.asked

    @invariant()
    def what_was_saved_is_found(self) -> None:
        known = {
            state_of(node.sequences, step)
            for node in self.dispatcher.plan
            for step in node.checkpoints
        }
        assert known == self.saved

    @invariant()
    def idle_workers_are_those_that_may_have_stages(self) -> None:
        idle = {name for name, slot in self.dispatcher.slots.items() if not slot.queue}
        usable = {name for name in idle - self.leaving - self.paused if not self.is_withheld(name)}
        assert len(usable - self.aside) == self.dispatcher.idle_workers

    @property
    def aside(self) -> set[str]:
        return {one.worker for one in RunView(self.dispatcher).aside}

    @invariant()
    def a_worker_is_left_that_is_not_put_aside(self) -> None:
        slots = self.dispatcher.slots.keys() - self.leaving
        assert not slots or slots - self.aside

    @invariant()
    def no_worker_waits_while_there_is_work(self) -> None:
        frontier = self.dispatcher.frontier
        slots = {
            name: slot
            for name, slot in self.dispatcher.slots.items()
            if name not in self.leaving | self.paused and not self.is_withheld(name)
        }
        for worker in (name for name, slot in slots.items() if not slot.queue):
            is_alone = len(slots) == 1
            for node in frontier.ready():
                raised_here = worker in frontier.work(node).raised_on
                assert worker in self.aside or (raised_here and not is_alone), f"{node} waits"

    @invariant()
    def the_counts_are_the_models(self) -> None:
        assert self.dispatcher.open.steps_executed == self.executed_total
        assert self.dispatcher.open.steps_repeated == self.repeated_total

    @invariant()
    def the_best_is_the_longest_of_the_highest_priority(self) -> None:
        dispatcher = self.dispatcher
        weights: dict[Node, tuple[float, float]] = {}
        active = [node for node in dispatcher.plan if dispatcher.frontier.work(node).active]
        for node in sorted(active, key=lambda node: -node.start):
            self.weigh(node, weights)
        ready = [weights[node] for node in active if is_ready(node)]
        best = dispatcher.frontier.best_ready()
        assert (None if best is None else weights[best]) == max(ready, default=None)

    def weigh(self, node: Node, weights: dict[Node, tuple[float, float]]) -> None:
        """Weigh a node by its requests and by the best child that starts from its end."""
        start = start_of(node)
        priority, length = max(node.requests.values(), default=-1.0), float(node.stop - start)
        if node.stop not in node.checkpoints:
            children = [
                weights[child]
                for child in node.children.values()
                if child in weights and start_of(child) == child.start
            ]
            if children:
                below = max(children)
                priority, length = max(priority, below[0]), length + below[1]
        weights[node] = priority, length

    # ----------------------------------------------------------------------- the end

    def teardown(self) -> None:
        """Run everything to its end, and check that every request is answered."""
        if not hasattr(self, "dispatcher"):
            return
        if not self.workers.keys() - self.leaving:
            self.join()
        self.lend(None)
        self.pause(frozenset())
        for _ in range(2000):
            if not self.go_on():
                break
        assert self.asked == {}
        assert self.dispatcher.is_idle
        assert len(self.dispatcher.frontier.tree()) == 0
        self.the_counts_are_the_models()
        self.what_was_saved_is_found()

    def go_on(self) -> bool:
        """Do everything that can be done now; return whether there was anything."""
        moved = bool(self.others or self.lost)
        while self.lost:
            self.tell(WorkerLost(worker=self.lost.popleft().name))
        for order in self.others.values():
            self.tell(TrainingEnded(attempt=order.attempt, step=order.start, status="lost"))
        self.others.clear()
        while self.late:
            moved = True
            self.tell(self.late.popleft())
        for worker in list(self.workers.values()):
            moved = moved or bool(worker.inbox or worker.queue or worker.writes or worker.outbox)
            while worker.inbox:
                if answer := worker.take():
                    self.late.append(answer)
            if worker.queue:
                worker.work()
            if worker.writes:
                worker.write()
            while worker.outbox:
                self.tell(worker.outbox.popleft())
        return moved


DispatcherMachine.TestCase.settings = settings(
    max_examples=examples(100),
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestDispatcher = DispatcherMachine.TestCase


class ClassesMachine(DispatcherMachine):
    """The same with workers of two classes: the second takes three times as long for a step."""

    def kind_of(self, worker: str) -> str:
        return ("new", "old")[int(worker[1:]) % 2]

    def tell(self, event: Event) -> None:
        if isinstance(event, TrainingEnded) and event.attempt in self.dispatcher.attempts:
            worker = self.dispatcher.attempts[event.attempt].worker
            if worker and self.kind_of(worker) == "old":
                event = replace(event, seconds=3 * event.seconds)
        super().tell(event)

    def no_worker_waits_while_there_is_work(self) -> None:
        """Not checked: a stage may wait for a faster worker (`tests.graph.test_market`)."""

    def the_best_is_the_longest_of_the_highest_priority(self) -> None:
        """Not checked: a length is in seconds here, as far as speeds are known."""


OF_VARIANTS = settings(DispatcherMachine.TestCase.settings, max_examples=examples(60))
"""Machines that change a part of the dispatcher's: each tries the rest as well."""

ClassesMachine.TestCase.settings = OF_VARIANTS
TestDispatcherOfClasses = ClassesMachine.TestCase

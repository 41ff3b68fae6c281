"""Several drivers on one store, simulated: their leases and dispatchers are the real ones.

One thread runs all. A job of a driver's leases is a greenlet that stops before each request to
the store, and a schedule drawn by a seed decides what goes on: a job up to its next request, a
worker by one step, or a driver by one message. So every order of requests may happen, and each
order happens again with its seed.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from dasktune._driver.lease_messages import LeaseMessage
from dasktune._driver.leases import Leasing
from dasktune._driver.recorder import Recorder
from dasktune._driver.shared_stages import SharedStages
from dasktune._engine.trials import TrialRecord
from dasktune.graph.attempts import DispatchOptions
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.events import (
    Deliver,
    Event,
    FailTrial,
    Progress,
    RunStage,
    Saved,
    SaveMissed,
    SavePoint,
    Started,
    StopStage,
    TrainingEnded,
    WorkerJoined,
)
from dasktune.graph.plan import Node
from dasktune.graph.save_policy import SavePolicy
from dasktune.graph.view import RunView
from dasktune.sequences import MultiStep
from dasktune.storage.buffers import Buffer
from dasktune.storage.checkpoints import CheckpointStore, Commit
from dasktune.storage.files.base import NO_BOUNDS, Entry, Parts, Unreadable
from dasktune.types import Metrics, Step
from tests.torture.turns import Turns
from tests.torture.ways import ROOT, State, Ways, metrics_of

SECONDS = 0.003
"""Simulated time of one action."""

MOST_ACTIONS = 200_000
"""Within how many actions all drivers must end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A trial that leaves the common path at a step, unless it ends before."""

    leaves_at: Step
    gamma: float
    until: Step

    @property
    def sequences(self) -> dict[str, Any]:
        return {"lr": MultiStep(0.5, milestones=[self.leaves_at], gamma=self.gamma)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """The trials of one driver, and when it arrives."""

    branches: tuple[Branch, ...]
    workers: int = 1
    saves_every: int | None = None
    arrives_after: int = 0


class MemoryFiles:
    """Files in memory, each operation one request: `before` is called first."""

    def __init__(self, contents: dict[str, bytes], before: Callable[[], None]) -> None:
        self._contents = contents
        self._before = before

    def write(self, folder: str, files: Mapping[str, Parts]) -> None:
        raise NotImplementedError

    def create(self, path: str, content: bytes, *, durable: bool = True) -> bool:
        self._before()
        return self._contents.setdefault(path, content) is content

    def replace(self, path: str, content: bytes) -> None:
        self._before()
        self._contents[path] = content

    def read(
        self, folder: str, names: Sequence[str], *, most: Mapping[str, int] = NO_BOUNDS
    ) -> list[Buffer | Unreadable | None]:
        self._before()
        contents = [self._contents.get(f"{folder}/{name}".lstrip("/")) for name in names]
        return [None if found is None else np.frombuffer(found, np.uint8) for found in contents]

    def remove(self, path: str) -> None:
        raise NotImplementedError

    def remove_files(self, paths: Iterable[str]) -> None:
        self._before()
        for path in paths:
            self._contents.pop(path, None)

    def remove_same(self, path: str, content: bytes | Unreadable) -> bool:
        self._before()
        if self._contents.get(path) != content:
            return False
        del self._contents[path]
        return True

    def removes_conditionally(self) -> bool:
        return True

    def entries(self, folder: str) -> Iterator[Entry]:
        self._before()
        there = [path for path in self._contents if path.startswith(f"{folder}/")]
        return iter(
            [Entry(path=path, nbytes=len(self._contents[path]), modified=0.0) for path in there]
        )


class States:
    """In the place of a driver's checkpoint store: the states that all drivers have saved."""

    url = "memory://"

    def __init__(self, commits: dict[str, Commit], before: Callable[[], None]) -> None:
        self._commits = commits
        self._before = before

    def commits(self, keys: Iterable[str]) -> dict[str, Commit]:
        self._before()
        return {key: self._commits[key] for key in keys if key in self._commits}


class Worker:
    """A worker that trains the stages it was sent, and tells its driver."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.jobs: list[RunStage] = []
        self.outbox: deque[Event] = deque()
        self._position: Step | None = None
        self._reports: list[tuple[Step, Metrics]] = []
        self._past: dict[str, tuple[str, Step]] = {}
        self._saves: dict[str, set[Step]] = {}
        self._stops: dict[str, Step] = {}

    def receive(self, order: RunStage | SavePoint | StopStage) -> None:
        match order:
            case RunStage():
                self.jobs.append(order)
                self.jobs.sort(key=lambda job: job.order)
            case SavePoint():
                is_past = order.attempt in self._past or (
                    self._position is not None
                    and self.jobs[0].attempt == order.attempt
                    and self._position >= order.step
                )
                if is_past:
                    self.outbox.append(SaveMissed(attempt=order.attempt, step=order.step))
                else:
                    self._saves.setdefault(order.attempt, set()).add(order.step)
            case StopStage():
                self._stops[order.attempt] = order.at or 0

    def work(self) -> None:
        """Begin a stage, or train one step."""
        if self._position is None:
            may_begin = (job for job in self.jobs if job.after is None or job.after in self._past)
            order = next(may_begin, None)
            if order is not None:
                self.jobs.remove(order)
                self.jobs.insert(0, order)
                self._begin(order)
            return
        order = self.jobs[0]
        if self._position >= min(order.stop, self._stops.get(order.attempt, order.stop)):
            if self._reports:
                self._save(order)
            self._end("stopped" if self._position < order.stop else "trained")
        else:
            self._train(order)

    def _begin(self, order: RunStage) -> None:
        self._position, self._reports = order.start, []
        if order.after is not None and self._past[order.after] != ("trained", order.start):
            self._end("skipped")
        elif (
            order.start
            and order.after is None
            and self._key(order, order.start) not in (self._world.commits)
        ):
            self._end("missing")
        else:
            self.outbox.append(Started(attempt=order.attempt))
            if order.start == order.stop:
                self._report(order)
                self._tell_saved(order)

    def _train(self, order: RunStage) -> None:
        assert self._position is not None
        self._position += 1
        self._world.trained[self._state(order)] += 1
        self._report(order)
        self.outbox.append(Progress(attempt=order.attempt, step=self._position))
        saves = {*order.saves, *self._saves.get(order.attempt, ()), order.stop}
        if self._position in saves or self._position >= self._stops.get(order.attempt, order.stop):
            self._save(order)

    def _report(self, order: RunStage) -> None:
        assert self._position is not None
        self._reports.append((self._position, metrics_of(self._state(order))))

    def _save(self, order: RunStage) -> None:
        assert self._position is not None
        key = self._key(order, self._position)
        commit = Commit(
            key=key,
            attempt=order.attempt,
            step=self._position,
            digest=f"{self._state(order):x}",
            nbytes=1,
            reports=tuple(self._reports),
        )
        self._world.commits.setdefault(key, commit)
        for step, metrics in self._reports:
            self._world.metrics[self._key(order, step)] = metrics
        self._tell_saved(order)

    def _tell_saved(self, order: RunStage) -> None:
        assert self._position is not None
        reports, self._reports = tuple(self._reports), []
        self.outbox.append(Saved(attempt=order.attempt, step=self._position, reports=reports))

    def _end(self, status: Any) -> None:
        assert self._position is not None
        order, step = self.jobs.pop(0), self._position
        self._position = None
        self._past[order.attempt] = status, step
        self.outbox.append(TrainingEnded(attempt=order.attempt, step=step, status=status))

    def _state(self, order: RunStage) -> State:
        assert self._position is not None
        return self._world.ways.of(order.node).state(self._position)

    @staticmethod
    def _key(order: RunStage, step: Step) -> str:
        return order.node.key_at(step)


class Driver:
    """A driver: a dispatcher, the stages that it shares, and its leases."""

    def __init__(self, world: World, name: str, pattern: Pattern) -> None:
        self._world = world
        self.reports: dict[tuple[int, Step], Metrics] = {}
        # What it reads before it takes part: a listing of the store, and the common database.
        self._known, self._known_metrics = set(world.commits), dict(world.metrics)
        options = DispatchOptions(
            attempt_prefix=name, saves=SavePolicy(every=pattern.saves_every, at_changes=False)
        )
        self.dispatcher = Dispatcher(ROOT, options, on_new=self._fill)
        self.view = RunView(self.dispatcher)
        self.turns = Turns()
        self.inbox: deque[LeaseMessage] = deque()
        before = self.turns.before_request
        self._leasing = Leasing(
            cast(CheckpointStore, States(world.commits, before)),
            name,
            self.inbox.append,
            clock=lambda: world.now,
            files=MemoryFiles(world.files, before),
            rounds=self.turns,
            holder=name,
        )
        self.sharing = SharedStages(self.view, self._leasing, cast(Recorder, self))
        self.workers = {f"{name}-{at}": Worker(world) for at in range(pattern.workers)}
        self.branches = pattern.branches
        self.has_begun = self.is_ending = self._is_closed = self.is_gone = False

    def begin(self) -> None:
        """Ask for all trials, once the workers are there."""
        self.has_begun = True
        for number, branch in enumerate(self.branches):
            self._follow(self.dispatcher.register(number, branch.sequences, branch.until))
        for number, branch in enumerate(self.branches):
            self._follow(self.dispatcher.extend(number, branch.until, 0.0, 0.0))
        self.sharing.want(
            cast(
                TrialRecord,
                _Wanting(number=number, keyed_sequences=branch.sequences, until=branch.until),
            )
            for number, branch in enumerate(self.branches)
        )
        for worker in self.workers:
            self._tell(WorkerJoined(worker=worker))

    def _fill(self, node: Node) -> None:
        for step in range(node.start + 1, node.stop + 1):
            key, learn = node.key_at(step), self.dispatcher.plan.learn
            learn(node, step, is_stored=key in self._known, metrics=self._known_metrics.get(key))

    def found(self, node: Node, commit: Commit) -> None:
        """Take a commit of another driver, as a recorder does."""

    # ------------------------------------------------------------ actions

    @property
    def is_done(self) -> bool:
        return not self.view.is_under_way

    def act(self, rng: random.Random) -> None:
        """Do one thing of all that go on in a driver."""
        if self.is_ending:
            self._end(rng)
            return
        match rng.choices(("request", "hear", "work", "listen"), (7, 3, 2, 3))[0]:
            case "request":
                self.turns.look()
                self.turns.go_on(rng.randrange(1000))
            case "hear":
                self._turn()
                if self.inbox:
                    self._share(self.sharing.receive(self.inbox.popleft(), 0.0))
            case "work":
                rng.choice(list(self.workers.values())).work()
            case _:
                worker = rng.choice(list(self.workers.values()))
                if worker.outbox:
                    self._hear(worker.outbox.popleft())
        if self.is_done and not any(worker.jobs for worker in self.workers.values()):
            self._turn()
            self.is_ending = True

    def _end(self, rng: random.Random) -> None:
        """Close the leases, once nobody looks after them any more."""
        self.turns.go_on(rng.randrange(1000))
        if not self.turns.is_busy:
            self.is_gone = self._is_closed
            if not self._is_closed:
                self._is_closed = True
                self.turns.do(self.sharing.close)

    def _turn(self) -> None:
        self.sharing.turn(0.0)

    def _hear(self, event: Event) -> None:
        self._tell(event)
        match event:
            case Progress():
                self.sharing.reached(event.attempt, event.step)
            case Saved():
                self.sharing.saved(event.attempt, event.step)
            case _:
                pass

    def _tell(self, event: Event) -> None:
        self._world.story.append((self._leasing.study, event))
        self._follow(self.dispatcher.handle(event, self._world.now))

    def _follow(self, orders: Iterable[object]) -> None:
        for order in orders:
            self._world.story.append((self._leasing.study, order))
            match order:
                case RunStage():
                    if order.attempt in self.view.attempts:
                        self._share(self.sharing.start(order))
                case SavePoint() | StopStage():
                    self.workers[order.worker].receive(order)
                case Deliver(report=report):
                    self.reports[report.trial, report.step] = report.metrics
                case FailTrial():
                    raise AssertionError(order)

    def _share(self, following: Iterable[object]) -> None:
        for item in following:
            match item:
                case RunStage() | SavePoint():
                    self._world.story.append((self._leasing.study, "shared", item))
                    self.workers[item.worker].receive(item)
                case _:
                    self._tell(cast(Event, item))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanting:
    """As much of a trial as save requests are made of."""

    @dataclass(frozen=True, slots=True)
    class State:
        is_finished: bool = False

    number: int
    keyed_sequences: Mapping[str, Any]
    until: Step
    state: State = State()

    @property
    def max_steps(self) -> Step:
        return self.until


@dataclass(slots=True)
class World:
    """All drivers, what they have trained, and the store."""

    patterns: Sequence[Pattern]
    seed: int
    files: dict[str, bytes] = field(default_factory=dict)
    commits: dict[str, Commit] = field(default_factory=dict)
    metrics: dict[str, Metrics] = field(default_factory=dict)
    trained: Counter[State] = field(default_factory=Counter)
    ways: Ways = field(default_factory=Ways)
    drivers: dict[int, Driver] = field(default_factory=dict)
    story: list[object] = field(default_factory=list)
    now: float = 1000.0

    def open(self, number: int) -> Driver:
        """Return the driver of a pattern, which has listed the store and has no workers yet."""
        driver = self.drivers[number] = Driver(self, f"d{number}", self.patterns[number])
        return driver

    def run(self) -> None:
        """Run until all drivers that have begun have ended."""
        rng = random.Random(self.seed)
        for action in range(MOST_ACTIONS):
            self.now += SECONDS
            for number, pattern in enumerate(self.patterns):
                if number not in self.drivers and action >= pattern.arrives_after:
                    self.open(number).begin()
            begun = [driver for driver in self.drivers.values() if driver.has_begun]
            there = [driver for driver in begun if not driver.is_gone]
            if not there and len(self.drivers) == len(self.patterns):
                return
            if there:
                rng.choice(there).act(rng)
        raise AssertionError(f"drivers do not end: {self.story[-20:]}")

    @property
    def reported_repeats(self) -> int:
        """Steps that drivers say were trained before."""
        return sum(driver.view.steps_repeated for driver in self.drivers.values())

    def wrong_reports(self) -> list[object]:
        """Return the trials whose last report differs from that of the trial alone."""
        return [
            (name, number, branch)
            for name, driver in self.drivers.items()
            for number, branch in enumerate(driver.branches)
            if driver.reports.get((number, branch.until))
            != metrics_of(self.ways.along(branch.sequences, ROOT).state(branch.until))
        ]

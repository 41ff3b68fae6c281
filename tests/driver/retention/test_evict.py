"""The evictor: a store stays under its budget, and nothing goes that is needed."""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextlib import closing
from dataclasses import fields, replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dasktune as dt
from dasktune._driver.retention.evict import Evictor
from dasktune._engine.engine import Engine
from dasktune._engine.limits import Limits
from dasktune._engine.outcome import Order, Outcome
from dasktune._engine.timeouts import STORE_LISTING_SECONDS
from dasktune._engine.trials import TrialRecord
from dasktune.algos.base import Tuner
from dasktune.errors import CorruptCheckpointError, StorageError
from dasktune.graph.attempts import DispatchOptions
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.events import (
    Event,
    Evicted,
    Progress,
    RunStage,
    Saved,
    StoreCrowded,
    WorkerJoined,
)
from dasktune.graph.keys import Chain, root_key
from dasktune.graph.plan import Node
from dasktune.graph.save_policy import SavePolicy
from dasktune.graph.view import RunView
from dasktune.sequences import Constant, MultiStep, Piecewise, Sequence
from dasktune.simulate.jobs import Mishaps
from dasktune.simulate.runner import Conditions, SimulatedRunner
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.codec import encode
from dasktune.storage.database.database import Batch, Database
from dasktune.storage.database.rows import CheckpointRow
from dasktune.storage.retention import Keep, Retention
from dasktune.traces.timing import EvenPace
from dasktune.types import Objective, Step, TrialState
from tests.holding import wait_until
from tests.storage.power_cut import AtOnce
from tests.torture.threads import QueuedJobs

FLOATS = 1000
NBYTES = 8 * FLOATS
LOSS = Objective.single("loss", "minimize")
STATE = encode({"weight": np.zeros(FLOATS)})
WHOLE = 13_000
"""More than a state takes in a store, commit and all, and less than 1.3 times as much."""


@pytest.fixture
def database() -> Iterator[Database]:
    opened = Database("sqlite://")
    yield opened
    opened.close()


class Scene:
    """A plan, a store with real states, and a evictor, without anything that trains."""

    def __init__(self, database: Database, *, store: CheckpointStore | None = None) -> None:
        self.store = store or CheckpointStore(f"memory://{uuid4().hex}")
        self.database = database
        self.now = 1e9
        self.kept: frozenset[str] = frozenset()
        self.trials: dict[int, TrialRecord] = {}
        self.there_when_written_down: list[set[str]] = []
        options = DispatchOptions(attempt_prefix="a", saves=SavePolicy(at_changes=False))
        self.dispatcher = Dispatcher(root_key("scene", 0), options)

    def trial(self, sequence: Sequence, max_steps: Step = 40, **known: Any) -> int:
        """Register a trial."""
        number = len(self.trials)
        self.trials[number] = TrialRecord(
            number=number,
            tuner=0,
            local=number,
            params={},
            sequences={"lr": sequence},
            max_steps=max_steps,
            **known,
        )
        self.dispatcher.register(number, {"lr": sequence}, max_steps)
        return number

    def end(self, trial: int, value: float, state: TrialState = TrialState.COMPLETE) -> None:
        """Set a trial to its last step, with this value and state."""
        record = self.trials[trial]
        record.steps, record.values, record.state = record.max_steps, (value,), state

    def evictor(self, budget: int, keep: str = "none", *, pool: Executor | None = None) -> Evictor:
        """Return an open evictor."""
        made = Evictor(
            self.store,
            self.database,
            Retention(budget=budget, keep=Keep.parse(keep)),
            view=RunView(self.dispatcher),
            trials=self.trials,
            objective=LOSS,
            kept_elsewhere=lambda: self.kept,
            write_down=lambda: self.there_when_written_down.append(self.keys),
            clock=lambda: self.now,
            pool=pool,
        )
        made.open()
        return made

    def save(self, trial: int, step: Step, evictor: Evictor | None = None, by: str = "0-aa") -> str:
        """Store a state of a trial; return its key."""
        self.now += 10
        node = self.dispatcher.plan.node_at(trial, step)
        key = node.key_at(step)
        commit = self.store.save(STATE, key=key, attempt=by, step=step, seconds=1.0)
        node.checkpoints.add(step)
        if evictor is not None:
            evictor.saved(node, commit)
        return key

    def tell(self, events: Iterable[Evicted | StoreCrowded]) -> list[tuple[Node, Step]]:
        """Give the dispatcher the events; return where evicted states lay."""
        gone = []
        for event in events:
            self.dispatcher.handle(event, 0.0)
            if isinstance(event, Evicted):
                gone.append((event.node.holder(event.step), event.step))
        return gone

    @property
    def keys(self) -> set[str]:
        return set(self.store.keys())


def let_age(folder: Path, seconds: float) -> None:
    """Make all files of a store older, by the store's clock."""
    for path in folder.glob("checkpoints/**/*"):
        at = path.stat().st_mtime - seconds
        os.utime(path, (at, at))


def turn(at: Step, value: float = 1.0) -> Sequence:
    """Return a sequence that parts from `Constant(0.5)` at a step."""
    return Piecewise([0.5, value], boundaries=[at])


def test_end_of_a_trial_is_evicted_before_a_needed_branch_point(database: Database) -> None:
    scene = Scene(database)
    first, second = scene.trial(Constant(0.5)), scene.trial(turn(20))
    evictor = scene.evictor(WHOLE * 5 // 2)
    branch = scene.save(first, 20, evictor)
    assert evictor.turn(0.0) == []
    scene.end(first, 0.1)
    end = scene.save(first, 40, evictor)
    scene.trials[second].state, scene.trials[second].until = TrialState.RUNNING, 40
    third = scene.trial(Constant(0.9), state=TrialState.RUNNING)
    other = scene.save(third, 20, evictor)
    gone = scene.tell(evictor.turn(0.0))
    evictor.close()
    assert gone == [(scene.dispatcher.plan.node_at(first, 40), 40)]
    assert scene.keys == {branch, other}
    assert end not in scene.keys


def test_places_of_listed_states_are_hashed_by_the_pool(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene, jobs, hashed = Scene(database), QueuedJobs(), Counter[Chain]()
    trial = scene.trial(Constant(0.5))
    evictor = scene.evictor(WHOLE * 5 // 2, pool=jobs)
    keys = [scene.save(trial, step) for step in (10, 20, 30)]
    advance = Chain.advance

    def counted(chain: Chain, *arguments: Any) -> Chain:
        hashed[chain] += 1
        return advance(chain, *arguments)

    monkeypatch.setattr(Chain, "advance", counted)
    scene.now += STORE_LISTING_SECONDS[1] + 1
    assert evictor.turn(0.0) == []
    jobs.do(0)
    assert evictor.turn(0.0) == [], "nothing is chosen before all places are known"
    assert evictor.turn(0.0) == []
    assert not hashed
    assert evictor.is_busy
    jobs.do(0)
    assert sum(hashed.values()) == len(keys)
    (gone,) = scene.tell(evictor.turn(0.0))
    assert gone[0] is scene.dispatcher.plan.node_at(trial, gone[1])
    assert sum(hashed.values()) == len(keys), "what is placed is not hashed again"
    evictor.close()
    assert len(scene.keys) == 2


def test_room_is_made_at_the_end_while_places_are_looked_for(database: Database) -> None:
    scene, jobs = Scene(database), QueuedJobs()
    trial = scene.trial(Constant(0.5))
    evictor = scene.evictor(WHOLE * 5 // 2, pool=jobs)
    for step in (10, 20, 30):
        scene.save(trial, step)
    scene.now += STORE_LISTING_SECONDS[1] + 1
    evictor.turn(0.0)
    jobs.do(0)
    evictor.turn(0.0)
    events = evictor.close()
    assert len(scene.tell(events)) == 1
    assert len(scene.keys) == 2


def test_what_is_known_of_states_is_durable_before_they_go(database: Database) -> None:
    scene = Scene(database)
    trial = scene.trial(Constant(0.5))
    evictor = scene.evictor(WHOLE * 3 // 2)
    keys = {scene.save(trial, 20, evictor)}
    assert evictor.turn(0.0) == []
    assert scene.there_when_written_down == []
    keys.add(scene.save(trial, 40, evictor))
    scene.tell(evictor.turn(0.0))
    evictor.close()
    assert scene.there_when_written_down == [keys]
    assert len(scene.keys) == 1


def test_evictor_counts_foreign_states_and_uploads(database: Database) -> None:
    scene = Scene(database)
    for number in range(3):
        scene.store.save(STATE, key=f"f{number}", attempt="0-bb", step=5)
    scene.store.files.write("checkpoints/ab/abcd/0-cc/step-5", {"c.0": [np.zeros(500, np.uint8)]})
    evictor = scene.evictor(100 * WHOLE)
    listed = sum(one.nbytes for one in scene.store.inventory())
    assert 3 * NBYTES < listed <= evictor.nbytes < listed + 4 * 1000 + 1
    evictor.close()


def test_foreign_states_are_evicted_unless_young_or_kept(
    database: Database, tmp_path: Path
) -> None:
    scene = Scene(database, store=CheckpointStore(str(tmp_path)))
    for number in range(3):
        scene.store.save(STATE, key=f"f{number}", attempt="0-bb", step=5)
    scene.kept = frozenset({"f1"})
    trial = scene.trial(Constant(0.5))
    let_age(tmp_path, 60)
    evictor = scene.evictor(2 * WHOLE)
    assert evictor.turn(0.0) == []
    evictor.close()
    assert scene.keys == {"f0", "f1", "f2"}
    let_age(tmp_path, 7200)
    evictor = scene.evictor(2 * WHOLE)
    scene.save(trial, 20, evictor)
    evictor.turn(0.0)
    evictor.close()
    assert "f1" in scene.keys
    assert not {"f0", "f2"} & scene.keys


def test_what_the_database_saw_used_lately_is_young(database: Database, tmp_path: Path) -> None:
    scene = Scene(database, store=CheckpointStore(str(tmp_path)))
    scene.store.save(STATE, key="f0", attempt="0-bb", step=5)
    scene.now += 3e9
    batch = Batch()
    batch.checkpoints.append(
        CheckpointRow(
            key="f0",
            root="f",
            step=5,
            attempt="0-bb",
            digest="d",
            nbytes=1,
            seconds=1.0,
            used=scene.now - 60,
        )
    )
    database.write(batch)
    evictor = scene.evictor(1)
    evictor.turn(0.0)
    evictor.close()
    assert scene.keys == {"f0"}


def test_the_last_states_of_the_best_trials_stay(database: Database) -> None:
    scene = Scene(database)
    evictor = scene.evictor(3 * WHOLE, keep="best:2")
    ends = {}
    for value in (0.5, 0.1, 0.4, 0.3, 0.2):
        trial = scene.trial(Constant(value))
        scene.end(trial, value)
        ends[value] = scene.save(trial, 40, evictor)
        scene.tell(evictor.turn(0.0))
    evictor.close()
    assert {ends[0.1], ends[0.2]} <= scene.keys
    assert len(scene.keys) < 5


def test_state_that_a_stage_starts_from_stays_until_loaded(database: Database) -> None:
    scene = Scene(database)
    trial, other = scene.trial(Constant(0.5)), scene.trial(Constant(0.9))
    evictor = scene.evictor(1)
    start = scene.save(trial, 20, evictor)
    scene.save(other, 20, evictor)
    scene.dispatcher.extend(trial, 40, 0.0, 0.0)
    (order,) = scene.dispatcher.handle(WorkerJoined(worker="w"), 0.0)
    assert isinstance(order, RunStage)
    assert order.start == 20
    plan = scene.dispatcher.plan
    assert scene.tell(evictor.turn(0.0)) == [(plan.node_at(other, 20), 20)]
    scene.dispatcher.handle(Progress(attempt=order.attempt, step=21), 0.0)
    scene.save(other, 30, evictor)
    assert (plan.node_at(trial, 20), 20) in scene.tell(evictor.turn(0.0))
    evictor.close()
    assert start not in scene.keys


def test_start_of_the_stage_that_comes_next_stays(database: Database) -> None:
    scene = Scene(database)
    trial, other = scene.trial(Constant(0.5)), scene.trial(Constant(0.9))
    evictor = scene.evictor(1)
    start = scene.save(trial, 20, evictor)
    scene.save(other, 20, evictor)
    scene.dispatcher.extend(trial, 40, 0.0, 0.0)
    scene.tell(evictor.turn(0.0))
    evictor.close()
    assert scene.keys == {start}


class CountedJobs(AtOnce):
    """Does each job when it is submitted, and counts them."""

    count = 0

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:  # type: ignore[override]
        self.count += 1
        return super().submit(work, *arguments, **options)


def test_turn_without_need_starts_no_job(database: Database) -> None:
    scene, jobs = Scene(database), CountedJobs()
    trial = scene.trial(Constant(0.5))
    evictor = scene.evictor(10**9, pool=jobs)
    scene.save(trial, 20, evictor)
    evictor.turn(0.0)
    assert jobs.count == 1, "the first state that is saved needs a listing"
    assert evictor.turn(0.0) == evictor.turn(0.0) == []
    assert jobs.count == 1
    evictor.close()


def test_states_are_removed_from_the_database_too(database: Database) -> None:
    scene = Scene(database)
    trial = scene.trial(Constant(0.5))
    evictor = scene.evictor(1)
    key = scene.save(trial, 20, evictor)
    batch = Batch()
    row = {"digest": "d", "nbytes": 1, "seconds": 1.0, "attempt": "0-aa"}
    batch.checkpoints.append(
        CheckpointRow(key=key, root="f", step=20, **row)  # type: ignore[arg-type]
    )
    database.write(batch)
    scene.tell(evictor.turn(0.0))
    evictor.close()
    assert database.checkpoint_keys() == set()


def test_too_small_budget_is_logged_once_with_the_needed_bytes(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(database)
    evictor = scene.evictor(WHOLE, keep="all")
    with caplog.at_level(logging.WARNING, logger="dasktune"):
        for value in (0.5, 0.1, 0.4):
            trial = scene.trial(Constant(value))
            scene.end(trial, value)
            scene.save(trial, 40, evictor)
            assert evictor.turn(0.0) == []
    evictor.close()
    said = [one.getMessage() for one in caplog.records]
    assert len(said) == 1
    assert said[0].startswith("budget 13 kB is too small: needs about ")
    assert "keep='all'" in said[0]
    assert len(scene.keys) == 3


def test_what_cannot_be_removed_stays_counted_and_is_tried_again(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Stubborn(str(tmp_path))
    scene = Scene(database, store=store)
    trial = scene.trial(Constant(0.5))
    evictor = scene.evictor(100 * WHOLE)
    scene.save(trial, 20, evictor)
    settle(evictor)
    before = evictor.nbytes
    evictor.retention = Retention(budget=1, keep=Keep.parse("none"))
    with caplog.at_level(logging.WARNING, logger="dasktune"):
        scene.tell(evictor.turn(0.0))
        assert evictor.nbytes == 0
        wait_until(lambda: evictor.turn(0.0) == [] and evictor.nbytes == before)
    assert [one.getMessage().split(": ")[1] for one in caplog.records] == ["the disk says no"]
    store.is_stubborn = False
    scene.now += 1000
    settle(evictor)
    evictor.close()
    assert scene.keys == set()


class Stubborn(CheckpointStore):
    """A store from which nothing can be removed, for a while."""

    is_stubborn = True

    def discard(self, key: str, *, attempt: str | None = None) -> bool:
        if self.is_stubborn:
            raise StorageError("the disk says no")
        return super().discard(key, attempt=attempt)


class Gated(CheckpointStore):
    """A store in which removals wait until they are let through."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.gate = threading.Event()

    def discard(self, key: str, *, attempt: str | None = None) -> bool:
        self.gate.wait(30)
        return super().discard(key, attempt=attempt)


def test_state_saved_during_its_eviction_is_evicted_again(
    database: Database, tmp_path: Path
) -> None:
    store = Gated(str(tmp_path))
    scene = Scene(database, store=store)
    trial = scene.trial(Constant(0.5))
    evictor = scene.evictor(1)
    key = scene.save(trial, 20, evictor)
    assert len(scene.tell(evictor.turn(0.0))) == 1
    # Another attempt finds the first one's commit there still: it is told that this one stands.
    assert scene.save(trial, 20, evictor, by="1-bb") == key
    assert evictor.turn(0.0) == []
    store.gate.set()
    wait_until(lambda: scene.tell(evictor.turn(0.0)) != [])
    evictor.close()
    assert scene.keys == set()
    assert not scene.dispatcher.plan.node_at(trial, 20).checkpoints


def test_a_new_attempt_that_commits_while_the_old_one_goes_stays(
    database: Database, tmp_path: Path
) -> None:
    store = Gated(str(tmp_path))
    scene = Scene(database, store=store)
    trial = scene.trial(Constant(0.5))
    evictor = scene.evictor(WHOLE)
    key = scene.save(trial, 20, evictor)
    scene.save(trial, 40, evictor)
    scene.tell(evictor.turn(0.0))
    # Someone else has removed the commit first, and the state is trained anew.
    for one in (20, 40):
        CheckpointStore(str(tmp_path)).discard(
            scene.dispatcher.plan.node_at(trial, one).key_at(one)
        )
    evictor.retention = Retention(budget=100 * WHOLE, keep=Keep.parse("none"))
    scene.save(trial, 20, evictor, by="1-bb")
    store.gate.set()
    evictor.close()
    commit = store.commit_of(key)
    assert commit is not None
    assert commit.attempt == "1-bb"
    assert store.load(key)[1].attempt == "1-bb"


def test_state_removed_by_another_driver_is_gone_at_next_listing(
    database: Database,
) -> None:
    scene = Scene(database)
    trial = scene.trial(Constant(0.5))
    evictor = scene.evictor(100 * WHOLE)
    key = scene.save(trial, 20, evictor)
    settle(evictor)
    scene.store.discard(key)
    scene.now += 1000
    wait_until(lambda: scene.tell(evictor.turn(0.0)) != [])
    evictor.close()
    assert not scene.dispatcher.plan.node_at(trial, 20).checkpoints


def test_own_state_that_another_study_keeps_is_not_evicted(database: Database) -> None:
    scene = Scene(database)
    first, second = scene.trial(Constant(0.5)), scene.trial(Constant(0.9))
    evictor = scene.evictor(WHOLE * 3 // 2)
    kept = scene.save(first, 20, evictor)
    settle(evictor)
    scene.kept = frozenset({kept})  # another study has found it since
    scene.now += 1000
    settle(evictor)
    for trial in (first, second):
        scene.end(trial, 0.1)
    scene.save(second, 20, evictor)
    scene.save(second, 40, evictor)
    scene.tell(evictor.turn(0.0))
    evictor.close()
    assert kept in scene.keys
    assert len(scene.keys) == 1


def test_what_earlier_runs_left_is_known_by_its_place(database: Database) -> None:
    scene = Scene(database)
    first, second = scene.trial(Constant(0.5)), scene.trial(turn(20))
    scene.end(first, 0.1)
    branch, end = scene.save(first, 20), scene.save(first, 40)
    scene.trials[second].state = TrialState.RUNNING
    evictor = scene.evictor(WHOLE)
    gone = scene.tell(evictor.turn(0.0))
    evictor.close()
    assert [step for _, step in gone] == [40]
    assert scene.keys == {branch}
    assert end not in scene.keys


def test_run_without_training_evicts_states_down_to_the_budget(database: Database) -> None:
    theirs = Scene(database)
    keys = [theirs.save(theirs.trial(Constant(value)), 40) for value in (0.5, 0.4)]
    scene = Scene(database, store=theirs.store)
    evictor = scene.evictor(WHOLE, keep="best:1")
    for value in (0.5, 0.4):  # known since the store was listed
        trial = scene.trial(Constant(value))
        scene.dispatcher.plan.node_at(trial, 40).checkpoints.add(40)
        scene.end(trial, value)
    gone = scene.tell(evictor.close())
    assert gone == [(scene.dispatcher.plan.node_at(0, 40), 40)]
    assert scene.keys == {keys[1]}


def test_at_the_end_no_room_is_left_for_what_would_be_written(database: Database) -> None:
    scene = Scene(database)
    evictor = scene.evictor(3 * WHOLE)
    for value in (0.5, 0.4, 0.3):
        trial = scene.trial(Constant(value))
        scene.save(trial, 40, evictor)
        scene.now -= 10  # all within a second
        scene.end(trial, value)
    assert evictor.close() == []
    assert len(scene.keys) == 3


def test_dead_uploads_are_removed_and_those_under_way_are_not(
    database: Database, tmp_path: Path
) -> None:
    scene = Scene(database, store=CheckpointStore(str(tmp_path)))
    for attempt in ("0-cc", "1-dd"):
        part = {"c.0": [np.zeros(500, np.uint8)]}
        scene.store.files.write(f"checkpoints/ab/abcd/{attempt}/step-5", part)
    scene.store.save(STATE, key="abcd", attempt="2-ee", step=5)
    let_age(tmp_path, 60)
    scene.evictor(100 * WHOLE).close()
    assert len(next(iter(scene.store.inventory())).attempts) == 3
    let_age(tmp_path, 7200)
    scene.evictor(100 * WHOLE).close()
    assert list(next(iter(scene.store.inventory())).attempts) == ["2-ee"]
    assert scene.store.load("abcd")[1].attempt == "2-ee"


# --------------------------------------------------------------------------- whole runs


class Stored(SimulatedRunner):
    """A simulated run whose states lie in a real store, and are loaded where stages start."""

    store: CheckpointStore
    evictor: Evictor | None = None

    def tell(self, event: Event) -> None:
        attempt = None
        if isinstance(event, Saved):
            attempt = self.engine.view.attempts.get(event.attempt)
        if isinstance(event, Saved) and attempt is not None:
            self._save(attempt.node_at(event.step), event.step, event.attempt)
        super().tell(event)
        while self.evictor is not None:
            for following in self.evictor.turn(0.0):
                if isinstance(following, Evicted):
                    self._check(following)
                super().tell(following)
            if not self.evictor.is_busy:
                break
            threading.Event().wait(0.0005)

    def _save(self, node: Node, step: Step, attempt: str) -> None:
        key = node.key_at(step)
        commit = self.store.save(STATE, key=key, attempt=attempt, step=step, seconds=1.0)
        if self.evictor is not None:
            self.evictor.saved(node, commit)

    def _check(self, gone: Evicted) -> None:
        place = gone.node.holder(gone.step), gone.step
        assert place not in list(self.engine._dispatcher.open.starts)

    def _launch(self, worker: Any, order: RunStage, stop: Step) -> None:
        if order.start and order.after is None:
            assert self.store.commit_of(order.node.key_at(order.start)) is not None
        super()._launch(worker, order, stop)


class Logged(Engine):
    """An engine that writes down every call of it, and the orders that followed."""

    def __init__(self, *arguments: Any, **known: Any) -> None:
        super().__init__(*arguments, **known)
        self.calls: list[tuple[str, Any, float]] = []
        self.followed: list[list[tuple[object, ...]]] = []

    def ask(self, capacity: int, now: float) -> Outcome:
        return self._logged("ask", capacity, now)

    def handle(self, event: Event, now: float) -> Outcome:
        return self._logged("handle", event, now)

    def _logged(self, name: str, content: Any, now: float) -> Outcome:
        self.calls.append((name, content, now))
        outcome: Outcome = getattr(super(), name)(content, now)
        self.followed.append([in_short(order) for order in outcome.orders])
        return outcome


def in_short(order: Order) -> tuple[object, ...]:
    """Return all of an order that another engine can give, too: nodes are their numbers."""
    names = [field.name for field in fields(order)]
    values = [getattr(order, name) for name in names]
    return (type(order), *(one.number if isinstance(one, Node) else one for one in values))


def play(
    tuner: Tuner, database: Database, *, budget: int | None, workers: int, every: int | None = None
) -> Stored:
    """Run a tuner on simulated workers over a real store."""
    options = DispatchOptions(attempt_prefix="a", saves=SavePolicy(every=every))
    engine = Logged(Dispatcher(root_key("play", 0), options), objective=LOSS, trials={})
    conditions = Conditions(
        curve=lambda values, step: float(values["lr"]) * 10 + 1 / step,  # type: ignore[arg-type]
        pace=lambda sequences, start, stop, kind: EvenPace(1.0),
        mishaps=Mishaps(straggling=0.0, drop=0.0, seed=0),
    )
    # The metric is called as in LOSS.
    runner = Stored(engine, conditions, workers=workers, limits=Limits())
    runner.store = CheckpointStore(f"memory://{uuid4().hex}")
    if budget is not None:
        runner.evictor = Evictor(
            runner.store,
            database,
            Retention(budget=budget, keep=Keep.parse("best:1")),
            view=engine.view,
            trials=engine.trials,
            objective=LOSS,
            clock=lambda: 0.0,
        )
        runner.evictor.open()
    try:
        runner.run(tuner)
    finally:
        if runner.evictor is not None:
            engine.dismiss()
            engine.evicted(runner.evictor.close())
    return runner


def results(ran: Stored) -> dict[int, tuple[object, ...]]:
    """Return the end state, steps and values of each trial."""
    return {one.number: (one.state, one.steps, one.values) for one in ran.engine.trials.values()}


def space() -> dt.Space:
    """Return 36 trials that part at many steps."""
    drops = [MultiStep(0.1, milestones=[at], gamma=0.5) for at in (2, 4, 6, 8, 10, 12)]
    widths = [Piecewise([1, 2], boundaries=[at]) for at in (3, 5, 7, 9, 11)]
    return dt.Space(lr=drops, width=[Constant(1), *widths])


TUNERS: dict[str, Callable[[], Tuner]] = {
    "grid": lambda: dt.algos.Grid(space(), max_steps=16),
    "sha": lambda: dt.algos.SHA(space(), trials=36, max_steps=16, min_steps=2, seed=1),
    "asha": lambda: dt.algos.ASHA(space(), trials=36, max_steps=16, min_steps=2, seed=1),
}


@cache
def free_results(kind: str) -> dict[int, tuple[object, ...]]:
    """Return the results of a tuner without a budget."""
    with closing(Database("sqlite://")) as database:
        return results(play(TUNERS[kind](), database, budget=None, workers=1))


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    states=st.integers(1, 20),
    workers=st.integers(1, 4),
    every=st.sampled_from([None, 1, 3]),
    kind=st.sampled_from(["grid", "sha", "asha"]),
)
def test_any_budget_gives_the_same_results_and_ends(
    states: int, workers: int, every: int | None, kind: str
) -> None:
    budget = states * WHOLE
    with closing(Database("sqlite://")) as database:
        tight = play(TUNERS[kind](), database, budget=budget, workers=workers, every=every)
    if kind != "asha":  # which depends on the order of arrival
        assert results(tight) == free_results(kind)
    stored = sum(one.nbytes for one in tight.store.inventory())
    best = min(tight.engine.trials.values(), key=lambda one: (one.value, one.number))
    key = tight.engine.view.plan.node_at(best.number, best.steps).key_at(best.steps)
    assert stored <= max(budget, WHOLE)
    assert tight.store.load(key)[1].step == best.steps


@pytest.mark.parametrize("kind", ["grid", "sha"])
def test_events_of_a_crowded_run_reproduce_its_decisions(kind: str, database: Database) -> None:
    first = play(TUNERS[kind](), database, budget=6 * WHOLE, workers=2).engine
    assert isinstance(first, Logged)
    crowding = [event for _, event, _ in first.calls if isinstance(event, StoreCrowded)]
    assert crowding[0].is_crowded
    options = DispatchOptions(attempt_prefix="a", saves=SavePolicy())
    again = Logged(Dispatcher(root_key("play", 0), options), objective=LOSS, trials={})
    again.begin(TUNERS[kind](), place=0, capacity=2, now=0.0)
    for name, content, now in first.calls:
        if isinstance(content, Evicted):
            nodes = {node.number: node for node in again.view.plan}
            content = replace(content, node=nodes[content.node.number])
        getattr(again, name)(content, now)
    assert again.followed == first.followed


def test_a_twentieth_of_the_room_costs_few_steps(database: Database) -> None:
    def grid() -> Tuner:
        drops = [MultiStep(0.1, milestones=[at], gamma=0.5) for at in range(10, 110, 10)]
        widths = [Piecewise([1, 2], boundaries=[at]) for at in range(15, 115, 10)]
        tuner: Tuner = dt.algos.Grid(dt.Space(lr=drops, width=widths), max_steps=120)
        return tuner

    free = play(grid(), database, budget=None, workers=2)
    saved = len(list(free.store.inventory()))
    tight = play(grid(), database, budget=saved * WHOLE // 20, workers=2)
    executed = tight.engine.view.steps_executed
    assert tight.evictor is not None
    assert tight.evictor.evicted > 0.9 * saved
    assert executed <= 1.15 * free.engine.view.steps_executed
    assert results(tight) == results(free)


# ------------------------------------------------------------------------- two processes


READS = 100
"""How often a state is read at least, while it comes and goes."""


@pytest.mark.slow
def test_read_during_an_eviction_is_complete_or_raises(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    answers: Any = context.Queue()
    reader = context.Process(target=_read, args=(str(tmp_path), stop, answers))
    reader.start()
    store = CheckpointStore(str(tmp_path))
    answers.get(timeout=60)  # it has begun
    for number in count():
        store.save(STATE, key="abcd", attempt=f"{number}-aa", step=5)
        assert store.discard("abcd", attempt=f"{number}-aa")
        if number >= 150 and not answers.empty():
            break
        assert reader.is_alive()
    stop.set()
    answers.get(timeout=60)  # it has read often
    whole, told = answers.get(timeout=60)
    reader.join(60)
    assert reader.exitcode == 0
    assert whole + told >= READS
    assert told > 0


def _read(url: str, stop: Any, answers: Any) -> None:
    """Read one state again and again; anything but the state or the one error ends this."""
    store = CheckpointStore(url)
    whole = told = 0
    answers.put("begun")
    for number in count():
        if number == READS:
            answers.put("often")
        if number >= READS and stop.is_set():
            break
        try:
            state, _ = store.load("abcd")
            whole += bool(np.array_equal(state["weight"], np.zeros(FLOATS)))
        except CorruptCheckpointError:
            told += 1
    answers.put((whole, told))


def settle(evictor: Evictor) -> None:
    """Wait until an evictor has received the due listing and the results of its removals."""
    evictor.turn(0.0)
    wait_until(lambda: evictor.turn(0.0) is not None and not evictor.is_busy)

"""Reuse: states of earlier runs are found by state key, if they really exist."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from dasktune._driver.commit_reader import CommitReader
from dasktune._driver.reuse import CommitsRead, KnownStates
from dasktune.errors import StorageError
from dasktune.graph.attempts import DispatchOptions
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.events import Bound, Deliver, RunStage, StatesRead, WorkerJoined
from dasktune.graph.keys import Chain
from dasktune.graph.plan import Node, SearchPlan
from dasktune.graph.save_policy import SavePolicy
from dasktune.needs import NumericClass
from dasktune.sequences import Constant, MultiStep
from dasktune.storage.checkpoints import Commit
from dasktune.storage.codec import encode
from dasktune.storage.database.database import Batch, Database
from dasktune.storage.database.rows import CheckpointRow, MetricRow
from dasktune.types import Metrics, Sequences, Step
from tests.holding import PATIENCE
from tests.storage.noting_store import NotingStore

ROOT = "aa" * 16
RATE = Constant(0.1)
LATER = MultiStep(0.1, milestones=[6], gamma=0.1)


class Left:
    """A database and a store with what a run left there."""

    def __init__(self, folder: Path) -> None:
        self.store = NotingStore(str(folder))
        self.database = Database("sqlite://")
        plan = SearchPlan(ROOT)
        self._node = plan.register(0, {"lr": RATE}, 10)

    def key(self, step: Step) -> str:
        return self._node.key_at(step)

    def state(
        self, step: Step, *reports: tuple[Step, Metrics], in_store: bool = True, row: bool = True
    ) -> None:
        snapshot = encode({"done": step})
        if in_store:
            self.store.save(snapshot, key=self.key(step), attempt="a1", step=step, reports=reports)
        if row:
            found = CheckpointRow(
                key=self.key(step),
                root=ROOT,
                step=step,
                attempt="a1",
                digest=snapshot.digest,
                nbytes=8,
                seconds=1.0,
            )
            self.database.write(Batch(checkpoints=[found]))

    def metrics(self, step: Step, values: Metrics, key: str | None = None) -> None:
        row = MetricRow(key=key or self.key(step), root=ROOT, step=step, values=values)
        self.database.write(Batch(metrics=[row]))

    def open(self) -> KnownStates:
        return KnownStates.open(self.database, self.store, ROOT)

    def plan(self) -> FilledPlan:
        """Return a new plan that is filled with what is known."""
        return FilledPlan(self.open())


class FilledPlan:
    """A plan that is filled from known states; commits are read at once."""

    def __init__(self, known_states: KnownStates) -> None:
        self.known_states = known_states
        self.dispatcher = Dispatcher(
            ROOT,
            DispatchOptions(saves=SavePolicy(every=100, at_changes=False)),
            on_new=lambda node: known_states.fill(self.dispatcher.plan, node),
            may_place=lambda: not known_states.unread,
        )

    def register(self, trial: int, sequences: Sequences, steps: Step) -> None:
        self.dispatcher.register(trial, sequences, steps)
        unread = tuple(self.known_states.unread)
        commits = self.known_states.read_commits(unread)
        self.dispatcher.handle(self.known_states.receive(unread, commits), 0.0)

    def nodes_of(self, trial: int) -> list[Node]:
        return self.dispatcher.plan.nodes_of(trial)


@pytest.fixture
def left(tmp_path: Path) -> Iterator[Left]:
    made = Left(tmp_path)
    yield made
    made.database.close()


def known(plan: FilledPlan, trial: int) -> tuple[list[Step], dict[Step, Metrics]]:
    """Return the steps of a trial that have states, and its metrics."""
    nodes = plan.nodes_of(trial)
    metrics = {step: dict(values) for node in nodes for step, values in node.metrics.items()}
    return sorted(step for node in nodes for step in node.checkpoints), metrics


def test_a_trial_finds_what_lies_on_its_way(left: Left) -> None:
    left.state(4)
    left.state(9)
    left.metrics(4, {"loss": 0.4})
    left.metrics(9, {"loss": 0.9})
    plan = left.plan()
    plan.register(0, {"lr": RATE}, 10)
    assert known(plan, 0) == ([4, 9], {4: {"loss": 0.4}, 9: {"loss": 0.9}})


def test_another_trial_finds_only_what_it_shares(left: Left) -> None:
    left.state(4)
    left.state(9)
    left.metrics(9, {"loss": 0.9})
    plan = left.plan()
    plan.register(0, {"lr": LATER}, 10)
    assert known(plan, 0) == ([4], {})
    plan.register(1, {"lr": Constant(0.2)}, 10)
    assert known(plan, 1) == ([], {})
    plan.register(2, {"lr": RATE}, 10)
    assert known(plan, 2) == ([4, 9], {9: {"loss": 0.9}})


def test_state_of_the_plain_class_is_left_once_its_node_moves(left: Left) -> None:
    """The second trial has begun on a class that keys name; the first one goes there with it."""
    left.state(6, (6, {"loss": 0.6}), row=False)
    plan = left.plan()
    dispatcher, gpu = plan.dispatcher, NumericClass(name="cuda A100", in_keys=True)
    dispatcher.register(0, {"lr": RATE}, 10)
    dispatcher.register(1, {"lr": LATER}, 10, numerics=gpu)
    plan.register(2, {"lr": Constant(0.2)}, 10)
    assert known(plan, 0) == ([], {})
    assert known(plan, 1) == ([], {})


@pytest.mark.parametrize("is_plain", [False, True])
def test_state_read_late_waits_for_its_numeric_class(left: Left, is_plain: bool) -> None:
    left.state(10, (10, {"loss": 0.6}), row=False)
    plan = left.plan()
    dispatcher, cpu = plan.dispatcher, NumericClass(name="cpu")
    gpu = NumericClass(name="cuda A100", in_keys=True)
    dispatcher.register(0, {"lr": RATE}, 10)
    dispatcher.meet(cpu, [gpu], [])
    plan.register(1, {"lr": Constant(0.2)}, 10)
    dispatcher.extend(0, 10, 0.0, 0.0)
    joined = WorkerJoined(worker="w0", numerics=cpu if is_plain else gpu)
    told = [type(each) for each in dispatcher.handle(joined, 0.0)]
    assert told == ([Deliver] if is_plain else [Bound, RunStage])


def test_a_trial_that_ends_earlier_does_not_see_beyond(left: Left) -> None:
    left.state(4)
    left.state(9)
    plan = left.plan()
    plan.register(0, {"lr": RATE}, 5)
    assert known(plan, 0)[0] == [4]
    plan.register(0, {"lr": RATE}, 10)
    assert known(plan, 0)[0] == [4, 9]


def test_a_row_without_its_state_is_not_believed(left: Left) -> None:
    left.state(4, in_store=False)
    left.metrics(4, {"loss": 0.4})
    plan = left.plan()
    plan.register(0, {"lr": RATE}, 10)
    assert known(plan, 0) == ([], {4: {"loss": 0.4}}), "what was measured stays measured"


def test_state_without_row_is_found_with_its_metrics(left: Left) -> None:
    reports = tuple((step, {"loss": step / 10}) for step in (3, 5, 8))
    left.state(8, *reports, row=False)
    left.metrics(5, {"loss": 77.0})
    plan = left.plan()
    plan.register(0, {"lr": LATER}, 10)
    assert known(plan, 0) == ([], {5: {"loss": 77.0}})
    plan.register(1, {"lr": RATE}, 10)
    # They part at 6: two of the reports belong to the steps that both share.
    expected = {3: {"loss": 0.3}, 5: {"loss": 77.0}, 8: {"loss": 0.8}}
    assert known(plan, 1) == ([8], expected), "what was recorded first stands"
    assert known(plan, 0) == ([], {3: {"loss": 0.3}, 5: {"loss": 77.0}})


def test_what_has_found_its_node_is_looked_for_no_more(
    left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (2, 4, 9):
        left.state(step)
        left.metrics(step, {"loss": step / 10})
    stranger = "99" * 16
    left.metrics(4, {"loss": 7.0}, stranger)
    plan = left.plan()
    plan.register(0, {"lr": RATE}, 10)
    assert known(plan, 0)[0] == [2, 4, 9]
    asked: list[int] = []
    original = Chain.keys

    def note(self: Chain, values: bytes, further: Iterable[int]) -> Iterator[str]:
        listed = list(further)
        asked.extend(listed)
        return original(self, values, listed)

    monkeypatch.setattr(Chain, "keys", note)
    plan.register(1, {"lr": Constant(0.2)}, 10)
    assert known(plan, 1) == ([], {})
    assert asked == [4], "only there is something that nobody has found"


def test_states_that_another_root_has_rows_of_are_not_opened(left: Left) -> None:
    left.state(4)
    left.store.opened.clear()
    KnownStates.open(left.database, left.store, "bb" * 16)
    assert left.store.opened == []


def test_states_with_rows_are_not_opened_to_list_them(left: Left) -> None:
    """A bucket may have 100,000 small ones."""
    left.state(4)
    left.state(9, row=False)
    left.store.opened_in_all.clear()
    left.open()
    assert left.store.opened_in_all == [left.key(9)]


def test_states_of_other_databases_are_opened_once(left: Left) -> None:
    left.state(4, (4, {"loss": 0.4}), row=False)
    left.store.opened.clear()
    plan = left.plan()
    plan.register(0, {"lr": RATE}, 10)
    assert known(plan, 0) == ([4], {4: {"loss": 0.4}})
    assert left.store.opened == [left.key(4)]
    left.store.discard(left.key(4))
    plan = left.plan()
    plan.register(0, {"lr": RATE}, 10)
    assert known(plan, 0) == ([], {}), "what is gone is not believed to be there"


def test_states_of_a_later_version_are_passed_over(left: Left, tmp_path: Path) -> None:
    left.state(4, row=False)
    left.state(9, row=False)
    for path in tmp_path.rglob("commit"):
        if left.key(9) in str(path):
            path.write_bytes(path.read_bytes().replace(b'"version": 3', b'"version": 4'))
    plan = left.plan()
    plan.register(0, {"lr": RATE}, 10)
    assert known(plan, 0)[0] == [4]


def test_a_commit_that_cannot_be_read_is_passed_over(left: Left, tmp_path: Path) -> None:
    left.state(4, row=False)
    left.state(9, row=False)
    for path in tmp_path.rglob("commit"):
        if left.key(4) in str(path):
            path.write_bytes(b"{}")
    plan = left.plan()
    plan.register(0, {"lr": RATE}, 10)
    assert known(plan, 0)[0] == [9]


def test_states_on_no_trials_way_are_not_opened(left: Left) -> None:
    left.state(4, row=False)
    left.store.opened.clear()
    left.plan().register(0, {"lr": Constant(0.2)}, 10)
    assert left.store.opened == []


class SilentStore(NotingStore):
    """A store that reads no commit until it may."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.may_answer = threading.Event()

    def commits(self, keys: Iterable[str]) -> dict[str, Commit]:
        assert self.may_answer.wait(PATIENCE)
        return super().commits(keys)


def test_no_stage_begins_before_commits_are_read(left: Left, tmp_path: Path) -> None:
    left.state(8, (5, {"loss": 0.5}), (8, {"loss": 0.8}), row=False)
    left.store = SilentStore(str(tmp_path))
    plan, inbox = left.plan(), queue.SimpleQueue[CommitsRead]()
    reader, dispatcher = CommitReader(plan.known_states, inbox.put), plan.dispatcher
    dispatcher.handle(WorkerJoined(worker="w"), 0.0)
    dispatcher.register(0, {"lr": RATE}, 10)
    assert dispatcher.extend(0, 10, 0.0, 0.0, reports=(5,)) == []
    assert dispatcher.idle_workers == 0, "nobody should ask the tuner for more"
    reader.turn(0.0)
    reader.turn(0.0)
    assert inbox.empty(), "the loop goes on while the store is silent"
    left.store.may_answer.set()
    (states_read,) = reader.receive(inbox.get(timeout=PATIENCE), 0.0)
    assert isinstance(states_read, StatesRead)
    out = dispatcher.handle(states_read, 0.0)
    assert inbox.empty()
    assert [each.report.step for each in out if isinstance(each, Deliver)] == [5]
    assert [(each.start, each.stop) for each in out if isinstance(each, RunStage)] == [(8, 10)]
    assert [commit.step for _, commit in plan.known_states.take_found()] == [8]
    reader.close()


def test_steps_behind_a_state_that_was_read_count_as_trained(left: Left) -> None:
    left.state(8, row=False)
    plan = left.plan()
    plan.register(0, {"lr": LATER}, 10)
    plan.register(1, {"lr": RATE}, 10)
    assert known(plan, 1)[0] == [8]
    assert [plan.dispatcher.frontier.work(node).trained for node in plan.nodes_of(1)] == [6, 8]


def test_reader_whose_store_fails_raises(left: Left, monkeypatch: pytest.MonkeyPatch) -> None:
    left.state(8, row=False)
    known_states, inbox = left.open(), queue.SimpleQueue[CommitsRead]()
    plan = SearchPlan(ROOT, on_new=lambda node: known_states.fill(plan, node))
    plan.register(0, {"lr": RATE}, 10)

    def fail(keys: Iterable[str]) -> dict[str, Commit]:
        raise StorageError("away")

    monkeypatch.setattr(left.store, "commits", fail)
    reader = CommitReader(known_states, inbox.put)
    reader.turn(0.0)
    with pytest.raises(StorageError, match="away"):
        reader.receive(inbox.get(timeout=PATIENCE), 0.0)
    assert list(known_states.unread) == [left.key(8)], "the next run reads it"
    reader.close()


def test_a_fresh_study_asks_for_no_commits(left: Left) -> None:
    left.state(4)
    left.store.opened.clear()
    left.plan().register(0, {"lr": RATE}, 10)
    assert left.store.opened == [], "states that have rows are not opened"

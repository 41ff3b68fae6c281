"""Lineages on numeric classes: no step of a trial is trained on another class than its first."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.events import (
    Bound,
    Deliver,
    Instruction,
    RunStage,
    Saved,
    Started,
    TrainingEnded,
    WorkerJoined,
    WorkerLost,
    WorkersJoined,
)
from dasktune.graph.keys import root_key
from dasktune.graph.plan import Node
from dasktune.needs import Needs, NumericClass
from dasktune.sequences import Piecewise

STEPS = 6
CPU = NumericClass(name="cpu")
A100 = NumericClass(name="cuda A100", in_keys=True)
H100 = NumericClass(name="cuda H100", in_keys=True)
CLASSES = (CPU, A100, H100)
BIG = Needs.of({"tags": "big"})


class Store:
    """States by key, with the class that made each: dispatchers share it, as runs share a store."""

    def __init__(self) -> None:
        self.made: dict[str, NumericClass | None] = {}


class Play:
    """A dispatcher whose workers train one stage after another, when told to."""

    def __init__(self, store: Store | None = None, *, looks_up: bool = True) -> None:
        self.store = store or Store()
        on_new = self.fill if looks_up else None
        self.dispatcher = Dispatcher(root_key("classes", 0), on_new=on_new)
        self.classes: dict[str, NumericClass | None] = {}
        self.running: deque[RunStage] = deque()
        self.orders: list[RunStage] = []
        self.reported: set[int] = set()
        self.bound: dict[int, NumericClass] = {}

    def fill(self, node: Node) -> None:
        for step in range(node.start + 1, node.stop + 1):
            if node.key_at(step) in self.store.made:
                metrics = {"loss": 0.0}
                self.dispatcher.plan.learn(node, step, is_stored=True, metrics=metrics)

    def meet(self, *present: NumericClass, begun: Iterable[int] = ()) -> None:
        self.dispatcher.meet(CPU, present, begun)

    def trial(
        self,
        number: int,
        first: float,
        split: int,
        needs: Needs | None = None,
        numerics: NumericClass | None = None,
    ) -> None:
        sequence = Piecewise([first, 100.0 + number], [split])
        self.take(
            self.dispatcher.register(
                number, {"lr": sequence}, STEPS, needs=needs, numerics=numerics
            )
        )

    def extend(self, number: int, until: int = STEPS) -> None:
        self.take(self.dispatcher.extend(number, until, 0.0, 0.0))

    def join(self, worker: str, numerics: NumericClass | None, *tags: str) -> None:
        self.classes[worker] = numerics
        event = WorkerJoined(worker=worker, numerics=numerics, tags=frozenset(tags))
        self.take(self.dispatcher.handle(WorkersJoined(workers=(event,)), 0.0))

    def lose(self, worker: str) -> None:
        self.running = deque(order for order in self.running if order.worker != worker)
        self.take(self.dispatcher.handle(WorkerLost(worker=worker, is_blameless=True), 0.0))

    def take(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case RunStage():
                    self.orders.append(instruction)
                    self.running.append(instruction)
                case Bound():
                    assert self.bound.setdefault(instruction.trial, instruction.numerics) == (
                        instruction.numerics
                    )
                case Deliver():
                    self.reported.add(instruction.report.trial)
                case _:
                    pass

    def train(self) -> None:
        """Have the oldest stage trained."""
        order = self.running.popleft()
        numerics = self.classes[order.worker]
        for step in range(order.start + 1, order.stop + 1):
            key = order.node.key_at(step)
            assert self.store.made.setdefault(key, numerics) == numerics, "two classes, one key"
        if order.start:
            assert self.store.made[order.node.key_at(order.start)] == numerics
        reports = ((order.stop, {"loss": 0.0}),)
        for event in (
            Started(attempt=order.attempt),
            TrainingEnded(attempt=order.attempt, step=order.stop, status="trained", seconds=1.0),
            Saved(attempt=order.attempt, step=order.stop, reports=reports),
        ):
            self.take(self.dispatcher.handle(event, 0.0))

    def finish(self) -> None:
        while self.running:
            self.train()

    def open_of(self, trials: Collection[object]) -> list[int]:
        """Return the trials, by number, that are to be asked for."""
        done = {*self.dispatcher.wanted, *self.reported}
        return [number for number in range(len(trials)) if number not in done]

    @property
    def keys(self) -> set[str]:
        return set(self.store.made)


def keys_of(*numerics: NumericClass | None) -> set[str]:
    """Return the keys of four trials of two lineages that were trained on such workers."""
    play = Play()
    for number in range(4):
        play.trial(number, number % 2, 3)
    play.meet(*[each for each in numerics if each is not None])
    for number, each in enumerate(numerics):
        play.join(f"w{number}", each)
    for number in range(4):
        play.extend(number)
    play.finish()
    assert play.reported == set(range(4))
    return play.keys


def test_keys_on_one_class_are_those_of_before() -> None:
    assert keys_of(CPU, CPU) == keys_of(None)


def test_keys_on_another_class_name_it() -> None:
    plain, other = keys_of(CPU), keys_of(A100, A100)
    assert len(plain) == len(other)
    assert not plain & other
    assert not other & keys_of(H100)


def test_lineages_are_shared_out_among_the_classes() -> None:
    play = Play()
    play.meet(CPU, A100)
    for number in range(4):
        play.trial(number, number % 2, 3)
        play.extend(number)
    play.join("cpu", CPU)
    play.join("gpu", A100)
    play.finish()
    assert {play.classes[order.worker] for order in play.orders} == {CPU, A100}
    lineages: dict[int, set[str]] = {}
    for order in play.orders:
        lineages.setdefault(int(order.node.sequences["lr"](0)), set()).add(order.worker)
    assert sorted(map(sorted, lineages.values())) == [["cpu"], ["gpu"]]
    assert play.dispatcher.open.steps_repeated == 0


def test_trial_that_joins_a_trunk_takes_its_class() -> None:
    play = Play()
    play.meet(CPU, A100)
    play.trial(0, 0, 3)
    play.extend(0)
    play.trial(1, 0, 4)
    play.join("gpu", A100)
    play.train()
    play.join("cpu", CPU)
    play.extend(1)
    play.finish()
    assert {order.worker for order in play.orders} == {"gpu"}
    assert play.bound == {0: A100, 1: A100}
    assert play.dispatcher.open.steps_repeated == 0


def test_class_that_joins_in_mid_run_takes_no_begun_trial() -> None:
    play = Play()
    play.meet(CPU)
    play.trial(0, 0, 3)
    play.extend(0, 2)
    play.join("cpu", CPU)
    play.join("gpu", A100)
    play.train()
    play.lose("cpu")
    play.extend(0)
    assert not play.running, "it waits for its class"
    assert [node.numerics for node in play.dispatcher.unplaced] == [CPU]
    play.join("cpu2", CPU)
    play.finish()
    assert play.reported == {0}


def test_states_of_the_plain_class_serve_no_other() -> None:
    store = Store()
    first, second = Play(store), Play(store)
    for play, numerics in (first, CPU), (second, A100):
        play.trial(0, 0, 3)
        play.meet(numerics)
        play.join("w", numerics)
        play.extend(0)
        play.finish()
        assert play.dispatcher.open.steps_executed == STEPS
    third = Play(store)
    third.meet(A100)
    third.join("w", A100)
    third.trial(0, 0, 3)
    third.extend(0)
    assert (third.reported, third.orders) == ({0}, []), "it finds what its own class has made"
    assert third.bound == {0: A100}


def test_states_of_the_plain_class_wait_for_a_worker_of_it() -> None:
    store = Store()
    first = Play(store)
    first.trial(0, 0, 3)
    first.join("w", CPU)
    first.extend(0)
    first.finish()
    again = Play(store)
    again.trial(0, 0, 3)  # it is told what is known, once
    again.dispatcher.plan._on_new = None
    again.meet(A100)
    again.join("cpu", CPU)
    again.extend(0)
    assert (again.reported, again.orders) == ({0}, [])


def test_trial_that_began_on_the_plain_class_stays_there() -> None:
    store = Store()
    first = Play(store)
    first.trial(0, 0, 3)
    first.meet(CPU)
    first.join("w", CPU)
    first.extend(0, 2)
    first.finish()
    again = Play(store)
    again.trial(0, 0, 3)
    again.meet(A100, begun=[0])
    again.join("gpu", A100)
    again.extend(0)
    assert again.orders == []
    again.join("cpu", CPU)
    again.finish()
    assert again.reported == {0}
    assert {order.worker for order in again.orders} == {"cpu"}


def test_class_of_a_trial_is_known_in_the_next_run() -> None:
    store = Store()
    first = Play(store)
    first.meet(CPU, A100)
    first.trial(0, 0, 3)
    first.extend(0, 2)
    first.join("gpu", A100)
    first.finish()
    again = Play(store)
    again.trial(1, 0, 5)  # of the same lineage, and not yet noted
    again.trial(0, 0, 3, numerics=first.bound[0])
    again.meet(CPU, A100)
    again.join("cpu", CPU)
    again.extend(0)
    again.extend(1)
    assert again.orders == []
    again.join("gpu", A100)
    again.finish()
    assert again.reported == {0, 1}
    assert again.dispatcher.open.steps_executed == STEPS - 2 + STEPS - 3


def test_needs_hold_within_the_class() -> None:
    play = Play()
    play.meet(CPU, A100)
    play.trial(0, 0, 3, needs=BIG)
    play.extend(0)
    play.join("cpu", CPU)
    play.join("small", A100)
    assert play.orders == []
    play.join("big", A100, "big")
    play.finish()
    assert {order.worker for order in play.orders} == {"big"}
    assert play.bound == {0: A100}


def test_plain_class_is_forgotten_after_the_run() -> None:
    play = Play(looks_up=False)
    play.meet(CPU, A100)
    play.trial(0, 0, 3)
    play.trial(1, 1, 3)
    play.extend(0)
    play.extend(1)
    play.join("cpu", CPU)
    play.join("gpu", A100)
    play.finish()
    play.dispatcher.dismiss()
    needs = {node.numerics: node.needs for node in play.dispatcher.plan}
    assert needs == {None: frozenset(), A100: frozenset({Needs().on(A100)})}


workers = st.integers(0, 2)
trials = st.tuples(st.integers(0, 2), st.integers(1, STEPS - 1), st.booleans())
acts = st.one_of(
    st.tuples(st.just("join"), workers),
    st.tuples(st.just("lose"), workers),
    st.tuples(st.just("train"), st.just(0)),
    st.tuples(st.just("extend"), st.integers(0, 7)),
)


@pytest.mark.parametrize("present", [(CPU,), (CPU, A100), (A100,), (A100, H100)])
@given(st.lists(trials, min_size=1, max_size=8), st.lists(acts, max_size=30), st.booleans())
def test_no_key_is_made_on_two_classes(
    present: tuple[NumericClass, ...],
    configurations: list[tuple[int, int, bool]],
    actions: list[tuple[str, int]],
    has_past: bool,
) -> None:
    store = Store()
    if has_past:  # another study has trained some of it on the plain class
        past = Play(store)
        past.trial(0, 0, 3)
        past.join("w", CPU)
        past.extend(0, 4)
        past.finish()
    play = Play(store)
    play.meet(*present)
    for number, (first, split, needs) in enumerate(configurations):
        play.trial(number, first, split, needs=BIG if needs else None)
    alive: dict[int, str] = {}
    for count, (action, argument) in enumerate(actions):
        if action == "join" and argument not in alive:
            alive[argument] = f"w{argument}-{count}"
            play.join(alive[argument], CLASSES[argument], "big")
        elif action == "lose" and argument in alive:
            play.lose(alive.pop(argument))
        elif action == "train" and play.running:
            play.train()
        elif action == "extend" and argument in play.open_of(configurations):
            play.extend(argument)
    for index, numerics in enumerate(CLASSES):
        play.join(f"last-{index}", numerics, "big")
    for number in play.open_of(configurations):
        play.extend(number)
    play.finish()
    assert play.reported == set(range(len(configurations)))
    for number in play.reported:
        leaf = play.dispatcher.plan.paths[number].leaf
        made = {store.made[leaf.key_at(step)] for step in range(1, STEPS + 1)}
        assert len(made) == 1, "a trial on two classes"
        bound = play.bound.get(number)
        assert bound is None or made == {bound}
        assert bound is not None or made == {CPU}

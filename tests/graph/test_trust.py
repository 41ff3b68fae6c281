"""Workers on which stage after stage raises: what a list of events makes of them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping

import pytest

from dasktune.graph.attempts import DispatchOptions
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.events import (
    Deliver,
    Event,
    Failed,
    FailTrial,
    Granted,
    Instruction,
    Paused,
    Progress,
    RunStage,
    Saved,
    Tick,
    TrainingEnded,
    WorkerJoined,
    WorkerLost,
)
from dasktune.graph.keys import root_key
from dasktune.graph.policies.broken_workers import ASIDE_SECONDS, IN_A_ROW
from dasktune.graph.view import RunView
from dasktune.sequences import Constant

STEPS = 4
PACE = 5
"""Turns that a worker takes for a stage that does not raise; one that raises takes one turn."""


class Cluster:
    """A dispatcher and its workers, some of which are broken: all that they train raises.

    Parameters
    ----------
    hosts
        The host of each worker.
    broken
        The workers on which everything raises.
    wrong
        The trials that raise on every worker.
    """

    def __init__(
        self,
        hosts: Mapping[str, str],
        broken: Collection[str] = (),
        wrong: Collection[int] = (),
    ) -> None:
        self.dispatcher = Dispatcher(root_key("trust", 0), DispatchOptions())
        self.broken, self.wrong = set(broken), set(wrong)
        self.events: list[tuple[Event, float]] = []
        self.instructions: list[Instruction] = []
        self.raised: list[tuple[int, str]] = []
        self.complete: set[int] = set()
        self.failed: dict[int, str] = {}
        self.now = 0.0
        self._queues: dict[str, deque[tuple[RunStage, int]]] = {name: deque() for name in hosts}
        for name, host in hosts.items():
            self.tell(WorkerJoined(worker=name, host=host))

    def train(self, trials: int) -> None:
        """Train trials of no common step until each is complete or failed."""
        self.ask_for(trials)
        for _ in range(2000):
            if not self.dispatcher.wanted:
                return
            self.turn()
        raise AssertionError(f"trials {list(self.dispatcher.wanted)} never end")

    def ask_for(self, trials: int) -> None:
        """Ask for trials of no common step."""
        first = len(self.dispatcher.plan.paths)
        for trial in range(first, first + trials):
            self.dispatcher.register(trial, {"lr": Constant(float(trial))}, STEPS)
        for trial in range(first, first + trials):
            self.take(self.dispatcher.extend(trial, STEPS, 0.0, self.now))

    def turn(self) -> None:
        """Do one turn of each worker."""
        self.now += 0.01
        self.tell(Tick())
        for worker, queue in self._queues.items():
            if queue:
                order, turns = queue.popleft()
                self.work(worker, order, turns)

    def work(self, worker: str, order: RunStage, turns: int) -> None:
        trial = int(order.node.sequences["lr"](0))  # type: ignore[arg-type]
        attempt = order.attempt
        if worker in self.broken or trial in self.wrong:
            self.raised.append((trial, worker))
            self.tell(Failed(attempt=attempt, step=order.start, message="/data is not mounted"))
        elif turns < PACE:
            self._queues[worker].appendleft((order, turns + 1))
        else:
            reports = ((order.stop, {"loss": 1.0}),)
            self.tell(Progress(attempt=attempt, step=order.stop))
            self.tell(Saved(attempt=attempt, step=order.stop, reports=reports))
            self.tell(TrainingEnded(attempt=attempt, step=order.stop, status="trained"))

    def tell(self, event: Event) -> None:
        self.events.append((event, self.now))
        self.take(self.dispatcher.handle(event, self.now))

    def take(self, instructions: list[Instruction]) -> None:
        self.instructions += instructions
        for instruction in instructions:
            match instruction:
                case RunStage():
                    self._queues[instruction.worker].append((instruction, 0))
                case Deliver():
                    self.complete.add(instruction.report.trial)
                case FailTrial():
                    self.failed[instruction.trial] = instruction.message
                case _:
                    pass

    @property
    def aside(self) -> set[str]:
        return {aside.worker for aside in RunView(self.dispatcher).aside}

    def tries(self, trial: int) -> list[str]:
        return [worker for other, worker in self.raised if other == trial]


def on_one_host(count: int) -> dict[str, str]:
    return {f"w{number}": "a" for number in range(count)}


@pytest.mark.parametrize("broken", [["w0"], ["w0", "w1"], ["w1", "w2", "w3"], ["w0", "w1", "w2"]])
def test_dispatcher_with_broken_workers_completes_every_trial(broken: list[str]) -> None:
    cluster = Cluster(on_one_host(4), broken)
    cluster.train(40)
    assert (cluster.failed, cluster.complete) == ({}, set(range(40)))
    assert cluster.aside == set(broken)
    assert Counter(worker for _, worker in cluster.raised) == dict.fromkeys(broken, IN_A_ROW)


def test_workers_that_break_later_are_put_aside() -> None:
    cluster = Cluster(on_one_host(4))
    cluster.train(8)
    cluster.broken = {"w0", "w1"}
    cluster.train(40)
    assert (cluster.failed, len(cluster.complete)) == ({}, 48)
    assert cluster.aside == {"w0", "w1"}


def test_trial_that_raises_everywhere_fails_after_three_workers() -> None:
    cluster = Cluster(on_one_host(6), wrong=[7])
    cluster.train(40)
    assert cluster.failed == {7: "/data is not mounted"}
    assert len(set(cluster.tries(7))) == len(cluster.tries(7)) == 3
    assert cluster.aside == set()


def test_trial_that_raises_on_new_workers_fails_after_eight() -> None:
    cluster = Cluster({f"w{number}": f"h{number}" for number in range(12)}, wrong={0})
    cluster.train(1)
    assert list(cluster.failed) == [0]
    assert len(set(cluster.raised)) == DispatchOptions().most_workers_tried == 8


ABSENCES = [
    (Paused(workers=frozenset({"w1"})), Paused(workers=frozenset())),
    (Granted(workers=frozenset({"w0"})), Granted(workers=None)),
]
"""A worker is paused, or another study has it; and it is there again."""


@pytest.mark.parametrize(("begins", "ends"), ABSENCES)
def test_trial_waits_for_a_worker_that_may_come_back(begins: Event, ends: Event) -> None:
    cluster = Cluster(on_one_host(2), ["w0"])
    cluster.tell(begins)
    cluster.ask_for(1)
    while len(cluster.raised) < 4:
        cluster.turn()
    cluster.tell(ends)
    cluster.train(0)
    assert (cluster.failed, cluster.complete) == ({}, {0})


@pytest.mark.parametrize(("begins", "ends"), ABSENCES)
def test_broken_worker_is_put_aside_while_others_may_come_back(begins: Event, ends: Event) -> None:
    cluster = Cluster(on_one_host(2), ["w0"])
    cluster.tell(begins)
    cluster.ask_for(6)
    while not cluster.aside or RunView(cluster.dispatcher).is_busy("w0"):
        cluster.turn()
    cluster.tell(ends)
    cluster.train(0)
    assert (cluster.failed, len(cluster.complete)) == ({}, 6)


@pytest.mark.parametrize(("begins", "ends"), ABSENCES)
def test_trial_fails_after_eight_tries_without_such_a_worker(begins: Event, ends: Event) -> None:
    cluster = Cluster(on_one_host(2), ["w0"])
    cluster.tell(begins)
    cluster.train(1)
    assert cluster.tries(0) == ["w0"] * 8
    assert list(cluster.failed) == [0]
    cluster.tell(ends)
    cluster.train(1)
    assert cluster.complete == {1}


def test_wrong_trial_beside_broken_workers_fails_alone() -> None:
    cluster = Cluster(on_one_host(4), broken=["w0", "w1"], wrong=[5])
    cluster.train(40)
    assert cluster.failed.keys() == {5}
    assert cluster.aside == {"w0", "w1"}
    assert len(cluster.tries(5)) <= 4


def test_trainer_that_always_raises_fails_every_trial() -> None:
    cluster = Cluster(on_one_host(4), wrong=range(40))
    cluster.train(40)
    assert cluster.failed.keys() == set(range(40))
    assert len(cluster.aside) < 4
    assert max(Counter(trial for trial, _ in cluster.raised).values()) <= 5


def test_stage_that_raised_goes_to_another_host_first() -> None:
    hosts = {**{f"a{number}": "a" for number in range(6)}, "b0": "b"}
    cluster = Cluster(hosts, broken=[name for name in hosts if name != "b0"])
    cluster.train(7)
    assert cluster.failed == {}
    twice = [trial for trial, count in Counter(t for t, _ in cluster.raised).items() if count > 1]
    assert twice == [], "the second try is on the host b"


def test_worker_put_aside_is_tried_again_and_trusted_if_mended() -> None:
    cluster = Cluster(on_one_host(2), broken=["w0"])
    cluster.train(10)
    assert cluster.aside == {"w0"}
    (aside,) = RunView(cluster.dispatcher).aside
    assert (aside.raised, aside.message, aside.host) == (IN_A_ROW, "/data is not mounted", "a")
    assert cluster.dispatcher.next_tick(cluster.now) == aside.until
    cluster.broken.clear()
    cluster.now = aside.until
    before = len(cluster.instructions)
    cluster.train(10)
    again = {one.worker for one in cluster.instructions[before:] if isinstance(one, RunStage)}
    assert again == {"w0", "w1"}
    assert cluster.aside == set()


def test_worker_that_raises_again_is_put_aside_for_longer() -> None:
    cluster = Cluster(on_one_host(2), broken=["w0"])
    waits = []
    for _ in range(3):
        cluster.train(10)
        (aside,) = RunView(cluster.dispatcher).aside
        waits.append(round((aside.until - cluster.now) / ASIDE_SECONDS))
        cluster.now = aside.until
    assert waits == [1, 2, 4]
    assert len(cluster.raised) == IN_A_ROW + 2, "one stage each time that it is tried again"
    assert cluster.failed == {}


def test_last_worker_left_is_taken_back() -> None:
    cluster = Cluster(on_one_host(2), broken=["w0"])
    cluster.train(10)
    cluster.broken.clear()
    cluster.tell(WorkerLost(worker="w1"))
    cluster.train(3)
    assert len(cluster.complete) == 13


def test_good_worker_put_aside_wrongly_is_the_last_resort() -> None:
    cluster = Cluster(on_one_host(2), wrong=range(3))
    cluster.broken = {"w1"}
    cluster.train(9)
    assert cluster.failed.keys() == {0, 1, 2}
    assert cluster.complete == set(range(3, 9))


def test_events_alone_decide_who_is_put_aside() -> None:
    cluster = Cluster(on_one_host(4), broken=["w0", "w1"], wrong=[3])
    cluster.train(20)
    other = Dispatcher(root_key("trust", 0), DispatchOptions())
    again: list[object] = []
    joined = [event for event in cluster.events if isinstance(event[0], WorkerJoined)]
    for event, now in joined:
        again += other.handle(event, now)
    for trial in range(20):
        other.register(trial, {"lr": Constant(float(trial))}, STEPS)
    for trial in range(20):
        again += other.extend(trial, STEPS, 0.0, 0.0)
    for event, now in cluster.events[len(joined) :]:
        again += other.handle(event, now)
    assert [told(one) for one in again] == [told(one) for one in cluster.instructions]
    assert list(RunView(other).aside) == list(RunView(cluster.dispatcher).aside)


def told(instruction: object) -> object:
    """Return an instruction without its node, which is another object in each plan."""
    if isinstance(instruction, RunStage):
        return (instruction.attempt, instruction.worker, instruction.start, instruction.stop)
    return instruction

"""How many workers can be used, from trees whose width is known."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from dasktune._driver.worker_demand import demand_of, running_steps, usable_slots
from dasktune.graph.devices import with_devices
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.events import Granted, WorkerGone, WorkerJoined, WorkerLost, WorkersJoined
from dasktune.graph.fair_shares import Claim, StudyShares
from dasktune.graph.keys import root_key
from dasktune.graph.view import RunView
from dasktune.sequences import Constant
from tests.graph.test_dispatch import Table, turn


def usable(table: Table, *, left: int | None = 0, now: float = 0.0, **options: Any) -> int:
    return usable_slots(RunView(table.dispatcher), now, left=left, **options)


def apart(trials: int, steps: int = 10) -> Table:
    """Return trials that share nothing, all asked for."""
    table = Table()
    for number in range(trials):
        table.trial(Constant(float(number)), steps)
        table.extend(number, steps)
    return table


@pytest.mark.parametrize("workers", [0, 1, 3, 5, 8])
def test_trials_that_share_nothing_can_use_as_many_workers(workers: int) -> None:
    table = apart(5)
    table.join(*(f"w{number}" for number in range(workers)))
    assert usable(table) == 5


@pytest.mark.parametrize(("devices", "least"), [((2,), 2), ((2, 4), 2), ((4, 1), 1), ((), 1)])
def test_least_workers_are_those_of_the_smallest_stage(
    devices: tuple[int, ...], least: int
) -> None:
    table = Table()
    for number, each in enumerate(devices):
        sequences = with_devices({"lr": Constant(float(number))}, [(0, each)])
        table.dispatcher.register(number, sequences, 8)
        table.dispatcher.extend(number, 8, 0.0, 0.0)
    assert RunView(table.dispatcher).least_workers == least
    table.join(*(f"w{number}" for number in range(6)))
    assert RunView(table.dispatcher).least_workers == least


def test_lost_worker_counts_until_its_stage_can_start_again() -> None:
    table = apart(2)
    table.join("w0", "w1")
    for event in (WorkerGone(worker="w0"), WorkerLost(worker="w0")):
        table.tell(event)
        assert usable(table) == 2


def test_single_long_trial_of_many_stages_can_use_one_worker() -> None:
    table = Table()
    table.trial(turn(4, 0.25), 6)
    table.trial(turn(8), 20)
    table.extend(1, 20)
    table.join("w0", "w1", "w2")
    assert usable(table) == 1


def test_branches_count_once_the_trunk_is_about_to_pass_them() -> None:
    table = Table()
    for value in range(4):
        table.trial(turn(100, float(value)), 120)
    for trial in range(4):
        table.extend(trial, 120)
    table.join("w0")
    table.started(0)
    assert usable(table, now=0.0) == 1, "100 steps of a second are far"
    assert usable(table, now=39.0) == 1
    assert usable(table, now=41.0) == 4


def test_future_trials_count_until_a_worker_is_idle() -> None:
    table = apart(2)
    assert usable(table, left=7) == 9
    table.join("w0", "w1")
    assert usable(table, left=7) == 9
    table.join("w2")
    assert usable(table, left=7) == 2, "it was asked, and wants no more"


def test_as_many_again_are_tried_of_a_tuner_that_does_not_say() -> None:
    table = apart(2)
    table.join("w0", "w1")
    assert usable(table, left=None) == 4
    table.join("w2")
    assert usable(table, left=None) == 2
    assert usable(Table(), left=None) == 1


def test_running_steps_are_the_measured_ones_by_worker() -> None:
    table = apart(2)
    assert running_steps(RunView(table.dispatcher)) == {}
    table.join("w0")
    table.dispatcher.speeds.observe(
        table.dispatcher.slots["w0"].queue[0].node, steps=2, seconds=800.0
    )
    assert running_steps(RunView(table.dispatcher)) == {"w0": 400.0}


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 3), st.integers(9, 12)), max_size=8))
def test_stages_that_can_start_are_those_of_the_tree(
    trials: list[tuple[int, int, int]],
) -> None:
    table = Table()
    frontier = table.dispatcher.frontier
    for number, (at, value, until) in enumerate(trials):
        table.trial(turn(at, float(value)), until)
        table.extend(number, until)
    for number in range(4):
        ready = [one.node for one in frontier.tree() if one.parent is None is one.waits_for]
        assert sorted(node.number for node in frontier.ready()) == sorted(ready)
        table.tell(WorkerJoined(worker=f"w{number}"))


def test_counting_is_cheap_in_a_large_study() -> None:
    table = apart(10_000, steps=2)
    table.join(*(f"w{number}" for number in range(8)))
    took = []
    for _ in range(10):
        began = time.thread_time()
        assert usable(table, most=64) == 64
        took.append(time.thread_time() - began)
    assert min(took) < 0.01
    assert usable(table, most=20_000, soon_seconds=0.0) == 10_000


class Sharer:
    """A study whose only stage takes two workers of one class, and its claims."""

    def __init__(self, name: str, workers: Mapping[str, str]) -> None:
        self.name = name
        self.dispatcher = Dispatcher(root_key(name, 0))
        self.dispatcher.handle(Granted(workers=frozenset()), 0.0)
        joined = (WorkerJoined(worker=each, kind=kind) for each, kind in workers.items())
        self.dispatcher.handle(WorkersJoined(workers=tuple(joined)), 0.0)
        sequences = with_devices({"lr": Constant(0.1)}, [(0, 2)])
        self.dispatcher.register(0, sequences, 8)
        self.dispatcher.extend(0, 8, 0.0, 0.0)

    def claim(self, shares: StudyShares, now: float) -> None:
        view = RunView(self.dispatcher)
        demand = demand_of(view, now, left=0, least=view.least_workers)
        granted = shares.claim(
            self.name,
            Claim(workers=demand.workers, least=demand.least),
            now,
            frozenset(view.busy_claims),
            frozenset(view.claimable),
            wanted=demand.wanted,
        )
        self.dispatcher.handle(Granted(workers=granted), now)

    @property
    def has_begun(self) -> bool:
        return bool(self.dispatcher.attempts)


def test_studies_with_stages_of_two_workers_all_begin() -> None:
    workers = {"a0": "a", "b0": "b", "a1": "a", "b1": "b"}
    shares = StudyShares()
    studies = [Sharer(name, workers) for name in ("first", "second")]
    for study, own in zip(studies, (("a0", "b0"), ("a1", "b1")), strict=True):
        for worker in own:  # each has one worker of each class
            shares.join(worker, 0.0)
        claim = Claim(workers=2, least=2)
        shares.claim(study.name, claim, 0.0, usable=frozenset(own))
    for second in range(10):
        for study in studies:
            study.claim(shares, float(second))
    assert all(study.has_begun for study in studies)

"""Stages that several workers train together, by event lists."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from dasktune.graph.attempts import DispatchOptions
from dasktune.graph.devices import Periods, with_devices
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.events import (
    AuditsRun,
    Event,
    Failed,
    FailTrial,
    Granted,
    Instruction,
    Progress,
    RunStage,
    Saved,
    SavePoint,
    Started,
    StopStage,
    Tick,
    TrainingEnded,
    WorkerGone,
    WorkerJoined,
    WorkerLeaving,
    WorkerLost,
    WorkersJoined,
)
from dasktune.graph.keys import root_key
from dasktune.graph.partings import partings
from dasktune.graph.plan import Node
from dasktune.graph.save_policy import SavePolicy
from dasktune.graph.view import RunView
from dasktune.needs import Needs
from dasktune.sequences import Constant, Piecewise
from dasktune.types import Step


class Table:
    """A dispatcher, and what it said last."""

    def __init__(self, *joined: WorkerJoined, **options: Any) -> None:
        options = {"saves": SavePolicy(at_changes=False), **options}
        self.dispatcher = Dispatcher(
            root_key("gangs", 0), DispatchOptions(attempt_prefix="a", **options)
        )
        self.view = RunView(self.dispatcher)
        self.now = 0.0
        self.trials = 0
        self.tell(WorkersJoined(workers=joined))

    def trial(self, devices: int | Periods, until: Step = 8, priority: float = 0.0) -> list[Any]:
        """Register a trial, and ask for it."""
        periods = [(0, devices)] if isinstance(devices, int) else devices
        number, self.trials = self.trials, self.trials + 1
        sequences = with_devices({"lr": Constant(0.1 + number)}, periods)
        self.dispatcher.register(number, sequences, 20)
        return self.extend(number, until, priority)

    def extend(self, trial: int, until: Step, priority: float = 0.0) -> list[Any]:
        return self.said(self.dispatcher.extend(trial, until, priority, self.now))

    def leaf(self, trial: int) -> Node:
        return self.dispatcher.plan.paths[trial].leaf

    def tell(self, event: Event) -> list[Any]:
        return self.said(self.dispatcher.handle(event, self.now))

    def train(self, attempt: int, step: Step) -> list[Any]:
        """Train an attempt to its end, and save it there."""
        name = f"{attempt}-a"
        said = self.tell(Started(attempt=name))
        said += self.tell(
            TrainingEnded(attempt=name, step=step, status="trained", seconds=float(step))
        )
        reports = ((step, {"loss": 1.0}),)
        return said + self.tell(Saved(attempt=name, step=step, reports=reports))

    def ends(self, attempt: int, step: Step, status: Any) -> list[Any]:
        return self.tell(TrainingEnded(attempt=f"{attempt}-a", step=step, status=status))

    def said(self, instructions: list[Instruction]) -> list[Any]:
        """Return stages with their workers, and stops."""
        said: list[Any] = []
        for each in instructions:
            if isinstance(each, RunStage):
                said.append((int(each.attempt[:-2]), each.worker, *each.lenders))
            elif isinstance(each, StopStage):
                said.append(("stop", int(each.attempt[:-2])))
            elif isinstance(each, SavePoint):
                said.append(("save", int(each.attempt[:-2]), each.step))
            elif isinstance(each, FailTrial):
                said.append(("fail", each.trial, each.message))
        return said


def workers(*names: str, kind: str = "", **more: Any) -> list[WorkerJoined]:
    return [WorkerJoined(worker=name, kind=kind, **more) for name in names]


def test_stage_with_3_devices_takes_3_workers() -> None:
    table = Table(*workers("w0", "w1", "w2", "w3"))
    assert table.trial(3) == [(0, "w0", "w1", "w2")]
    assert table.trial(1) == [(1, "w3")]
    assert table.view.busy_workers == 4
    assert [*table.view.busy_claims] == ["w0", "w1", "w2", "w3"]
    assert [*table.view.beside] == ["w1", "w2"]


def test_lenders_get_no_stage_until_the_attempt_has_ended() -> None:
    table = Table(*workers("w0", "w1"))
    table.trial(2)
    assert table.trial(1) == table.trial(1) == []
    assert table.train(0, 8) == [(1, "w0"), (2, "w1")]


def test_child_on_the_same_devices_keeps_its_gang() -> None:
    table = Table(*workers("w0", "w1", "w2"))
    said = table.said(_extended_twice(table, [(0, 2)]))
    assert said == [(0, "w0", "w1"), (1, "w0", "w1")]
    assert table.train(0, 4) == []
    assert table.view.is_busy("w1"), "its second stage has it"
    table.train(1, 8)
    assert not table.view.is_busy("w1")


def test_child_on_other_devices_begins_anew() -> None:
    table = Table(*workers("w0", "w1", "w2"))
    said = table.said(_extended_twice(table, [(0, 2), (4, 3)]))
    assert said == [(0, "w0", "w1")]
    assert table.train(0, 4) == [(1, "w0", "w2", "w1")]


def known(table: Table, devices: int, step: Step, lr: float = 0.1, until: Step = 20) -> list[Any]:
    """Make a trial known that leaves the first one at a step; it asks for nothing yet."""
    number, table.trials = table.trials, table.trials + 1
    function = Piecewise([lr, 7.0], boundaries=[step])
    sequences = with_devices({"lr": function}, [(0, devices)])
    return table.said(table.dispatcher.register(number, sequences, until))


def test_trial_on_fewer_devices_has_a_gang_save_where_it_parts() -> None:
    table = Table(*workers("w0", "w1"))
    table.trial(2)
    assert known(table, 1, 5) == [("save", 0, 5)]


def test_trial_on_the_same_devices_has_a_gang_save_once() -> None:
    table = Table(*workers("w0", "w1"))
    table.trial(2)
    assert known(table, 2, 5) == [("save", 0, 5)]


def test_trial_on_more_devices_has_a_worker_save_where_it_parts() -> None:
    table = Table(*workers("w0", "w1", "w2", "w3"))
    table.trial(1)
    table.trial(2)  # from now on gangs are possible
    assert known(table, 3, 5) == [("save", 0, 5)]


@pytest.mark.parametrize(("step", "lr", "until"), [(3, 0.1, 20), (8, 0.1, 20), (5, 0.2, 20)])
def test_trial_that_parts_outside_of_a_gang_has_nothing_saved(
    step: Step, lr: float, until: Step
) -> None:
    table = Table(*workers("w0", "w1"))
    table.trial(2)
    table.tell(Progress(attempt="0-a", step=3))
    assert known(table, 1, step, lr, until) == []


def test_gang_saves_where_known_trials_of_other_devices_part() -> None:
    table = Table(*workers("w0", "w1"))
    known(table, 1, 5)
    known(table, 4, 6)
    known(table, 2, 7)  # of the same devices: here a stage ends
    known(table, 3, 5, lr=0.3)  # of other values
    table.dispatcher.register(9, with_devices({"lr": Constant(0.1)}, [(0, 2)]), 20)
    table.dispatcher.extend(9, 8, 0.0, 0.0)
    orders = list(table.dispatcher.attempts.values())
    assert [(each.start, each.stop) for each in orders] == [(0, 7), (7, 8)]
    assert partings(orders[0].node, 0) == {5, 6}
    assert partings(orders[0].node, 5) == {6}


def _extended_twice(table: Table, periods: Periods) -> list[Instruction]:
    sequences = with_devices({"lr": Constant(0.5)}, periods)
    table.dispatcher.register(0, sequences, 20)
    return table.dispatcher.extend(0, 8, 0.0, 0.0, (4,))


def test_gang_is_of_one_class_and_first_of_one_host() -> None:
    table = Table(
        *workers("a0", "a1", kind="a", host="h0"),
        *workers("b0", kind="b", host="h0"),
        *workers("b1", "b2", "b3", kind="b", host="h1"),
    )
    assert table.trial(3) == [(0, "b1", "b2", "b3")]


def test_gang_waits_for_its_turn_and_keeps_idle_workers() -> None:
    table = Table(*workers("w0", "w1", "w2"))
    for _ in range(3):
        table.trial(1)
    assert table.trial(2, priority=1.0) == table.trial(1) == []
    assert table.train(0, 8) == [], "w0 is kept for the gang"
    assert (table.view.idle_workers, table.view.capacity(0.0)) == (0, 0)
    assert [node.sequences for node in table.view.gathering]
    assert table.train(1, 8) == [(3, "w0", "w1")]
    assert table.train(2, 8) == [(4, "w2")]


def test_stage_that_goes_first_is_not_kept_from_workers() -> None:
    table = Table(*workers("w0", "w1"))
    table.trial(1)
    table.trial(1)
    table.trial(2)
    table.trial(1, priority=1.0)
    assert table.train(0, 8) == [(2, "w0")]


def test_class_with_too_few_workers_keeps_none() -> None:
    table = Table(*workers("w0", "w1", kind="a"), *workers("v0", kind="b"))
    assert table.trial(3) == []
    assert not table.view.gathering
    assert table.view.idle_workers == 3
    assert len(table.trial(1)) == 1


def test_look_ahead_leaves_a_worker_to_a_gang_that_waits() -> None:
    table = Table(*workers("w0", "w1"), lookahead_seconds=100.0)
    table.trial(1)
    table.trial(1)
    assert table.train(0, 8) == []  # a whole stage was measured: workers can be looked ahead of
    table.trial(1)
    table.trial(2, priority=1.0)
    table.trial(1)
    assert table.tell(Tick()) == []
    assert table.train(1, 8) == []
    assert table.train(2, 8) == [(3, "w1", "w0"), (4, "w1")]


def test_path_is_not_carried_on_while_a_gang_goes_first() -> None:
    table = Table(*workers("w0", "w1"), lookahead_seconds=100.0)
    table.trial(1)
    table.train(0, 8)
    table.dispatcher.register(1, {"lr": Constant(0.7)}, 20)
    pair = table.said(table.dispatcher.extend(1, 12, 0.0, 0.0, (4, 8)))
    assert pair == [(1, "w1"), (2, "w1")]
    table.trials = 2
    assert table.trial(1, until=20) == [(3, "w0")]
    assert table.trial(2, priority=1.0) == []
    assert table.train(1, 4) == []
    assert table.train(2, 8) == []
    assert table.train(3, 20) == [(4, "w1", "w0"), (5, "w1")]


def test_lender_that_other_studies_give_back_stays_lent() -> None:
    table = Table(*workers("w0", "w1"))
    table.trial(2)
    table.tell(Granted(workers=None))
    assert table.trial(1) == []


@pytest.mark.parametrize(
    "event", [WorkerLeaving(worker="w1"), Granted(workers=frozenset({"w0", "w2"}))]
)
def test_gang_without_a_lender_stops_saved_and_goes_on(event: Event) -> None:
    table = Table(*workers("w0", "w1", "w2"))
    table.trial(2)
    table.tell(Started(attempt="0-a"))
    assert table.tell(event) == [("stop", 0)]
    assert table.ends(0, 3, "stopped") == []
    assert table.tell(Saved(attempt="0-a", step=3)) == [(1, "w2", "w0")]
    assert table.dispatcher.open.steps_repeated == 0


def test_withheld_lender_is_busy_until_it_is_given_back() -> None:
    table = Table(*workers("w0", "w1"))
    table.trial(2)
    table.tell(Granted(workers=frozenset({"w0"})))
    assert table.view.is_busy("w1")
    table.ends(0, 3, "stopped")
    assert not table.view.is_busy("w1")


@pytest.mark.parametrize("is_told_first", [False, True])
def test_lost_lender_repeats_its_stage_only(is_told_first: bool) -> None:
    table = Table(*workers("w0", "w1", "w2"))
    table.trial(2)
    table.tell(Started(attempt="0-a"))
    assert table.tell(WorkerGone(worker="w1")) == []
    if is_told_first:
        assert table.ends(0, 3, "lost") == [(1, "w2", "w0")]
        assert table.tell(WorkerLost(worker="w1")) == []
    else:
        assert table.tell(WorkerLost(worker="w1")) == [("stop", 0)]
        assert table.ends(0, 3, "lost") == [(1, "w2", "w0")]
    assert table.train(1, 8) == []
    assert not table.view.wanted
    assert (table.dispatcher.open.steps_executed, table.dispatcher.open.steps_repeated) == (11, 3)


def test_gang_is_told_which_lender_it_waits_for_in_vain() -> None:
    table = Table(*workers("w0", "w1", "w2"))
    table.trial(3)
    table.tell(Started(attempt="0-a"))
    stops: list[tuple[str, str]] = []
    for event in (WorkerLeaving(worker="w1"), WorkerLost(worker="w1"), WorkerLost(worker="w0")):
        said = table.dispatcher.handle(event, 0.0)
        stops += [(each.worker, each.lost) for each in said if isinstance(each, StopStage)]
    assert stops == [("w0", ""), ("w0", "w1")]


def test_stage_that_kills_its_lenders_fails_its_trial() -> None:
    table = Table(*workers(*(f"w{n}" for n in range(9))), losses_allowed=2)
    table.trial(2)
    said: list[Any] = []
    for attempt in range(3):
        table.tell(Started(attempt=f"{attempt}-a"))
        node = table.dispatcher.attempts[f"{attempt}-a"]
        table.tell(WorkerGone(worker=node.lenders[0]))
        said = table.ends(attempt, 2, "lost")
        table.tell(WorkerLost(worker=node.lenders[0]))
    (fail,) = [each for each in said if each[0] == "fail"]
    assert "one of its workers was lost 3 times in a row in or soon after step 2" in fail[2]


def test_lost_own_worker_gives_its_lenders_back() -> None:
    table = Table(*workers("w0", "w1", "w2"))
    table.trial(2)
    assert table.tell(WorkerLost(worker="w0")) == [(1, "w2", "w1")]


def test_failed_gang_is_tried_on_other_workers() -> None:
    table = Table(*workers("w0", "w1", "w2", "w3"))
    table.trial(2)
    assert table.tell(Failed(attempt="0-a", step=1, message="boom")) == [(1, "w2", "w3")]


def place_of(worker: str) -> str:
    """Return the place of a worker: it comes back there under another name."""
    return worker.partition("-")[0]


def losses(
    broken: set[str], *, count: int = 4, hosts: int = 1, busy: int = 0, is_told_late: bool = False
) -> tuple[int, list[Any]]:
    """Return how often a trial on 2 devices is lost with a worker, and how it ends.

    Each broken place kills its worker in this stage, and nothing else; another worker joins there.

    Parameters
    ----------
    busy
        How many workers train other stages, which end only when nothing else can go on.
    is_told_late
        Whether the driver hears of the end of the stage before it hears of the lost worker.
    """
    table = Table()
    joined = {f"p{n}": f"h{n % hosts}" for n in range(count)}
    table.tell(WorkersJoined(workers=[joins(f"{each}-0", joined[each]) for each in joined]))
    others = [table.trial(1, until=4)[0][0] for _ in range(busy)]
    said, lost = table.trial(2, priority=1.0), 0
    while True:
        if not said:
            said = table.train(others.pop(0), 4)
            continue
        if said[0][0] == "fail":
            return lost, said
        ((attempt, *gang),) = said
        if len(gang) == 1:  # another trial of one worker
            others.append(attempt)
            said = []
            continue
        dead = next((worker for worker in gang if place_of(worker) in broken), None)
        if dead is None:
            return lost, table.train(attempt, 8)
        lost += 1
        table.tell(Started(attempt=f"{attempt}-a"))
        said = []
        if dead != gang[0] and is_told_late:
            said += table.ends(attempt, 0, "lost")
        table.tell(WorkerGone(worker=dead))
        if dead != gang[0] and not is_told_late:
            said += table.ends(attempt, 0, "lost")
        said += table.tell(WorkerLost(worker=dead))
        place = place_of(dead)
        said += table.tell(joins(f"{place}-{lost}", joined[place]))
        said = [each for each in said if each[0] != "stop"]


def joins(worker: str, host: str) -> WorkerJoined:
    return WorkerJoined(worker=worker, host=host)


@pytest.mark.parametrize("is_told_late", [False, True])
@pytest.mark.parametrize("busy", [0, 1, 2])
@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("broken", [*combinations(["p0", "p1", "p2", "p3"], 2)])
def test_two_broken_workers_use_up_no_trials_losses(
    broken: tuple[str, str], hosts: int, busy: int, is_told_late: bool
) -> None:
    lost, said = losses({*broken}, hosts=hosts, busy=busy, is_told_late=is_told_late)
    assert [each for each in said if each[0] == "fail"] == []
    assert lost <= 2 + is_told_late


def tries(count: int, devices: int, *broken: str, step: Step) -> list[Any]:
    """Return the gangs of a trial on workers of which some raise, and how it ends."""
    table = Table(*workers(*(f"w{n}" for n in range(count))))
    said, gangs = table.trial(devices), []
    while said and said[0][0] != "fail":
        ((attempt, *gang),) = said
        gangs.append({*gang})
        if {*broken}.isdisjoint(gang):
            table.train(attempt, 8)
            return gangs
        said = table.tell(Failed(attempt=f"{attempt}-a", step=step, message="boom"))
    return [*gangs, said[0]]


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize(("count", "devices"), [(3, 2), (4, 2), (4, 3), (5, 3), (8, 4), (8, 7)])
def test_one_broken_worker_fails_no_trial_that_others_train(
    count: int, devices: int, step: Step
) -> None:
    for broken in range(count):
        gangs = tries(count, devices, f"w{broken}", step=step)
        assert isinstance(gangs[-1], set), f"w{broken} is broken: {gangs}"
        assert f"w{broken}" not in gangs[-1]


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize(("count", "devices"), [(4, 2), (5, 2), (8, 2), (6, 3), (8, 4)])
def test_two_broken_workers_fail_no_trial_that_others_train(
    count: int, devices: int, step: Step
) -> None:
    for broken in combinations([f"w{n}" for n in range(count)], 2):
        gangs = tries(count, devices, *broken, step=step)
        assert isinstance(gangs[-1], set), f"{broken} are broken: {gangs}"
        assert gangs[-1].isdisjoint(broken)
        assert len(gangs) <= 7


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize(("count", "devices", "most"), [(2, 2, 2), (3, 2, 3), (4, 2, 6), (8, 2, 3)])
def test_trial_that_raises_in_every_gang_fails_soon(
    count: int, devices: int, most: int, step: Step
) -> None:
    names = [f"w{n}" for n in range(count)]
    *gangs, failure = tries(count, devices, *names, step=step)
    assert failure == ("fail", 0, "boom")
    assert 2 <= len(gangs) <= most


def test_trial_that_raises_with_an_untrusted_worker_fails() -> None:
    table = Table(*workers("w0", "w1"))
    said = [order for _ in range(6) for order in table.trial(1)]
    while table.dispatcher.attempts:  # w0 raises each time, and w1 trains
        (attempt, worker) = said.pop(0)
        is_broken = worker == "w0"
        failed = Failed(attempt=f"{attempt}-a", step=0, message="broken")
        said += table.tell(failed) if is_broken else table.train(attempt, 8)
    assert [aside.worker for aside in RunView(table.dispatcher).aside] == ["w0"]
    said, tries, at_once = table.trial(2), 0, 0
    while said == [] or said[0][0] != "fail":
        table.now += 0.0 if said else 4000.0
        event = Failed(attempt=f"{said[0][0]}-a", step=1, message="boom") if said else Tick()
        at_once = at_once + 1 if said else 0
        tries += bool(said)
        said = table.tell(event)
        assert at_once <= 2
        assert tries <= 8
    assert said == [("fail", 6, "boom")]


def test_gang_that_raised_waits_for_a_busy_worker() -> None:
    table = Table(*workers("w0", "w1", "w2"))
    table.trial(1)
    assert table.trial(2) == [(1, "w1", "w2")]
    assert table.tell(Failed(attempt="1-a", step=1, message="boom")) == []
    assert table.view.gathering
    assert table.train(0, 8) == [(2, "w0", "w1")]


def test_devices_that_a_worker_has_need_no_lender() -> None:
    table = Table(*workers("w0", "w1", resources={"GPU": 2}), needs=Needs.of({"GPU": 2}))
    assert table.trial(2) == [(0, "w0")]


def test_workers_with_too_few_devices_lend_one_each() -> None:
    """A stage that began when its needs were of more devices has as many of them as then."""
    joined = workers("w0", "w1", "w2", "w3", resources={"GPU": 2})
    table = Table(*joined, needs=Needs.of({"GPU": 2}))
    assert table.trial(4) == [(0, "w0", "w1", "w2", "w3")]


def test_gang_of_shared_devices_has_one_worker_of_each() -> None:
    table = Table(
        *workers("a0", "a1", device="gpu0", device_bytes=100),
        *workers("b0", "b1", device="gpu1", device_bytes=100),
    )
    assert table.trial(2) == [(0, "a0", "b0")]
    assert table.trial(1) == []
    assert table.train(0, 8) == [(1, "a1")]


def test_gang_takes_one_worker_of_each_gpu() -> None:
    table = Table(*workers("a0", "a1", gpu="GPU-a"), *workers("b0", "b1", gpu="GPU-b"))
    assert table.trial(2) == [(0, "a0", "b0")]
    assert table.trial(1) + table.trial(1) == [(1, "a1"), (2, "b1")]
    assert table.view.devices_for(table.leaf(0)) == {"": 2}


def test_gang_is_not_made_of_one_gpu_seen_twice() -> None:
    table = Table(*workers("a0", "a1", gpu="GPU-a"))
    assert table.trial(2) == []
    assert table.trial(1) == [(0, "a0")]
    assert table.tell(WorkerJoined(worker="b0", gpu="GPU-b")) == []
    assert table.train(0, 8) == [(1, "b0", "a0")]


def test_gang_takes_the_worker_of_its_class_on_a_gpu() -> None:
    table = Table(
        *workers("a0", kind="large", gpu="GPU-a"),
        *workers("a1", kind="small", gpu="GPU-a"),
        *workers("b1", kind="small", gpu="GPU-b"),
    )
    assert table.trial(2) == [(0, "a1", "b1")]


def test_second_worker_of_a_gpu_stands_in_for_one_that_leaves() -> None:
    table = Table(*workers("a0", "a1", gpu="GPU-a"), *workers("b0", gpu="GPU-b"))
    table.tell(WorkerLeaving(worker="a0"))
    assert table.trial(2) == [(0, "a1", "b0")]


def test_gang_takes_the_worker_that_stands_for_a_shared_gpu() -> None:
    table = Table(
        *workers("a1", "a0", device="GPU-a", gpu="GPU-a"),
        *workers("b1", "b0", device="GPU-b", gpu="GPU-b"),
    )
    assert table.trial(2) == [(0, "a0", "b0")]


def test_gang_waits_for_a_worker_with_an_audit() -> None:
    table = Table(*workers("w0", "w1"))
    table.trial(1, until=1)
    audited = table.leaf(0)
    table.train(0, 1)
    table.tell(AuditsRun(nodes={"w1": audited}))
    assert table.trial(2) == []
    assert table.tell(AuditsRun(nodes={})) == [(1, "w1", "w0")]

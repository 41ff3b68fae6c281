"""How many workers of each pool a run can use, from stages whose needs are known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dasktune._cluster.pools import WorkerPool
from dasktune._driver.pool_demand import PoolDemand
from dasktune._driver.worker_demand import yet_to_begin
from dasktune._engine.timeouts import OTHER_NODE_SECONDS
from dasktune.graph.events import WorkerGone, WorkerJoined, WorkerLost
from dasktune.graph.view import RunView
from dasktune.needs import Needs, NumericClass, Offer
from dasktune.sequences import Constant
from tests.graph.test_dispatch import Table, turn
from tests.graph.test_packing import Device

GPU, BIG, FAST = Needs.of({"GPU": 1}), Needs.of({"GPU": 2}), Needs.of({"tags": "fast"})


def stages(*needs: Needs | None, **options: object) -> Table:
    """Return trials that share nothing, with these needs."""
    table = Table(**options)
    for number, own in enumerate(needs):
        sequences = {"lr": Constant(float(number))}
        table.dispatcher.register(number, sequences, 10, needs=own)
        table.extend(number, 10)
    return table


def pool(
    name: str, gpus: float = 0, *, room: int = 9, workers: str = "", **more: str
) -> WorkerPool:
    offer = Offer.of({"GPU": gpus} if gpus else {}, name, more.get("tags", "").split())
    return WorkerPool(name=name, offer=offer, room=room, workers=frozenset(workers.split()))


def demand(table: Table, *pools: WorkerPool, left: int = 0) -> dict[str, int]:
    return PoolDemand().of(RunView(table.dispatcher), pools, 0.0, left=left)


def test_stage_counts_for_the_first_pool_that_it_fits() -> None:
    table = stages(GPU, GPU, None, None, None)
    assert demand(table, pool("cpu"), pool("gpu", 1)) == {"cpu": 3, "gpu": 2}
    assert demand(table, pool("gpu", 1), pool("cpu")) == {"gpu": 5, "cpu": 0}


def test_stage_asks_for_all_workers_of_a_shared_device() -> None:
    table = stages(GPU, GPU, GPU)
    shared = replace(pool("gpu", 1, room=8), sharers=4)
    assert demand(table, shared, pool("old", 1)) == {"gpu": 8, "old": 1}


def test_stages_that_train_together_ask_for_one_device() -> None:
    device = Device(lambda n: min(n, 2))
    device.ask(range(60))
    device.pack(2)
    workers = " ".join(f"w{number}" for number in range(4))
    shared = replace(pool("gpu", room=99, workers=workers), sharers=4)
    for trial in [*device.dispatcher.wanted][9:]:
        device.dispatcher.stop(trial, device.now)
    view = RunView(device.dispatcher)
    assert view.busy_workers + view.count_ready(99) == 9
    assert PoolDemand().of(view, [shared], device.now, left=0) == {"gpu": 20}


def test_idle_workers_of_a_busy_device_leave_trials_to_begin() -> None:
    device = Device(float, devices=2)
    device.ask(range(2))
    assert yet_to_begin(RunView(device.dispatcher), None) == 2


def test_stage_counts_for_the_next_pool_once_one_is_full() -> None:
    table = stages(GPU, GPU, None, None, None)
    found = demand(table, pool("gpu", 1, room=3), pool("old", 1, room=0), pool("cpu"))
    assert found == {"gpu": 3, "old": 0, "cpu": 2}, "those with few pools go first"


def test_stages_beyond_all_room_count_for_the_first_pool() -> None:
    table = stages(GPU, GPU, GPU)
    assert demand(table, pool("gpu", 1, room=0), pool("new", 1, room=1)) == {"gpu": 2, "new": 1}


def test_stage_that_fits_no_pool_counts_for_none() -> None:
    assert demand(stages(BIG, None), pool("cpu"), pool("gpu", 1)) == {"cpu": 1, "gpu": 0}


def test_needs_of_the_study_hold_for_each_stage() -> None:
    table = stages(None, FAST, needs=GPU)
    fast = pool("fast", 1, tags="fast")
    assert demand(table, pool("cpu"), pool("gpu", 1), fast) == {"cpu": 0, "gpu": 1, "fast": 1}


def test_busy_worker_counts_for_its_own_pool() -> None:
    table = stages(None, None)
    table.join("w0")
    assert demand(table, pool("cpu"), pool("gpu", 1, workers="w0")) == {"cpu": 1, "gpu": 1}


def test_trials_yet_to_begin_fit_what_the_study_fits() -> None:
    table = Table(needs=GPU)
    assert demand(table, pool("cpu"), pool("gpu", 1), left=4) == {"cpu": 0, "gpu": 4}


def test_shared_stage_without_a_pool_for_all_fits_that_of_one() -> None:
    table = Table()
    for number, own in enumerate((GPU, FAST)):
        table.dispatcher.register(number, {"lr": turn(5, float(number))}, 10, needs=own)
        table.extend(number, 10)
    assert demand(table, pool("gpu", 1), pool("fast", tags="fast")) == {"gpu": 1, "fast": 0}
    both = pool("both", 1, tags="fast")
    assert demand(table, pool("gpu", 1), both) == {"gpu": 0, "both": 1}


def test_shared_stage_fits_pools_that_each_fit_one_of_its_trials() -> None:
    table, disks = Table(), Needs.of({"DISK": 1})
    for number, own in enumerate((GPU, disks)):
        table.dispatcher.register(number, {"lr": turn(5, float(number))}, 10, needs=own)
        table.extend(number, 10)
    offers = {"cpu": {}, "gpu": {"GPU": 1}, "disk": {"DISK": 1}}
    pools = [
        WorkerPool(name=name, offer=Offer.of(amounts, name), room=9)
        for name, amounts in offers.items()
    ]
    assert demand(table, *pools) == {"cpu": 0, "gpu": 1, "disk": 0}


@pytest.mark.parametrize(("tag", "counts"), [("fast", [1, 0]), ("slow", [0, 1])])
def test_tags_of_hardware_are_learned_from_the_first_worker(tag: str, counts: list[int]) -> None:
    table, learned = stages(FAST), PoolDemand()
    view = RunView(table.dispatcher)
    assert learned.of(view, [pool("a"), pool("b")], 0.0, left=0) == {"a": 1, "b": 0}
    table.tell(WorkerJoined(worker="w0", tags=frozenset({tag})))
    learned.of(view, [pool("a", workers="w0"), pool("b")], 0.0, left=0)
    for event in (WorkerGone(worker="w0"), WorkerLost(worker="w0")):
        table.tell(event)
    # The pool has no worker any more; its tags are still known.
    found = learned.of(view, [pool("a"), pool("b")], 0.0, left=0)
    assert [*found.values()] == counts


def test_begun_trial_counts_for_the_pool_of_its_numeric_class() -> None:
    table, learned = Table(), PoolDemand()
    classes = [NumericClass(name="cpu"), NumericClass(name="cuda A100", in_keys=True)]
    table.dispatcher.meet(classes[0], classes, [])
    for number, numerics in enumerate(classes):
        table.tell(WorkerJoined(worker=f"w{number}", numerics=numerics))
    learned.of(
        RunView(table.dispatcher),
        [pool("cpu", workers="w0"), pool("gpu", workers="w1")],
        0.0,
        left=0,
    )
    for event in (WorkerGone(worker="w1"), WorkerLost(worker="w1")):
        table.tell(event)
    begun = classes[1]
    table.dispatcher.register(0, {"lr": Constant(1.0)}, 10, numerics=begun)
    table.extend(0, 10)
    # The pool has no worker any more; its class is still known, and its jobs must come back.
    pools = [pool("cpu", workers="w0"), pool("gpu")]
    assert learned.of(RunView(table.dispatcher), pools, 0.0, left=0) == {"cpu": 0, "gpu": 1}


def test_stage_of_a_class_not_met_asks_for_other_workers() -> None:
    """A job of the same pool may come on a node of that class, as in an earlier run."""
    table, learned = Table(needs=GPU), PoolDemand()
    plain, met, begun = (
        NumericClass(name=name, in_keys=name != "cpu") for name in ("cpu", "new", "old")
    )
    table.dispatcher.meet(plain, [met], [])
    table.tell(WorkerJoined(worker="w0", resources={"GPU": 1}, numerics=met))
    for number in range(2):
        sequences = {"lr": Constant(float(number))}
        table.dispatcher.register(number, sequences, 10, numerics=begun)
        table.extend(number, 10)
    view = RunView(table.dispatcher)

    def wanted(now: float, workers: str) -> list[int]:
        pools = [pool("cpu"), pool("gpu", 1, workers=workers), pool("more", workers="w9")]
        return [*learned.of(view, pools, now, left=0).values()]

    assert wanted(0.0, "w0") == [0, 0, 0]
    assert wanted(OTHER_NODE_SECONDS, "w0") == [0, 0, 0], "w0 leaves first: it would take the job"
    assert wanted(OTHER_NODE_SECONDS, "") == [0, 1, 0], "one for both"
    table.tell(WorkerJoined(worker="w1", resources={"GPU": 1}, numerics=met))
    assert wanted(OTHER_NODE_SECONDS + 1, "w1") == [0, 0, 0]
    assert wanted(OTHER_NODE_SECONDS + 9, "") == [0, 0, 0], "SLURM has given one just now"
    table.tell(WorkerJoined(worker="w2", resources={"GPU": 1}, numerics=begun))
    assert view.busy_workers == 1
    assert wanted(OTHER_NODE_SECONDS + 9, "w2") == [0, 2, 0], "the class is known now"

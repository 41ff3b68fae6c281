"""Clusters of users that a study makes larger and smaller."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Client, LocalCluster, Worker

import dasktune as dt
from dasktune._cluster.growing import GrowingCluster
from dasktune._engine.timeouts import WORKERS_SECONDS, Timeouts
from dasktune.errors import ClusterError, ConfigurationError
from tests.held_study import HeldStudy, held_study
from tests.holding import wait_until

INVALID = ["4-2", "x", "0-0", "-1", "-1-4", "1-2-3", " 1-2", "", 0, -2, 1.5, True, "1" * 50]
"""Texts and numbers that are no number of workers."""


@pytest.fixture
def held(tmp_path: Path) -> Iterator[HeldStudy]:
    with held_study(tmp_path) as made:
        yield made


@contextmanager
def empty(kind: type[LocalCluster] = LocalCluster, **options: Any) -> Iterator[LocalCluster]:
    """Give a cluster without workers, which would start them in this process."""
    with kind(
        n_workers=0,
        threads_per_worker=1,
        memory_limit=0,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        **({"processes": False, "protocol": "tcp://"} | options),
    ) as cluster:
        yield cluster


def size(cluster: Any) -> int:
    return len(cluster.scheduler_info["workers"])


@pytest.mark.cluster
@pytest.mark.parametrize("processes", [False, True])
def test_cluster_grows_by_demand_and_ends_idle_workers(held: HeldStudy, processes: bool) -> None:
    with empty(processes=processes) as cluster, Client(cluster) as client:

        def act() -> None:
            wait_until(held.are_apart)
            held.gates[2].open()
            wait_until(lambda: size(cluster) == 1)

        held.train(act, client=client, workers="0-4")
        assert len(held.workers(1)) == 1, "a worker that trains is never ended"
        assert not cluster.worker_spec
        assert client.cluster is cluster


def test_range_keeps_its_least_number_of_workers(held: HeldStudy) -> None:
    with empty() as cluster, Client(cluster) as client:
        held.train(lambda: wait_until(held.are_apart), client=client, workers="1-2")
        assert len(cluster.worker_spec) == 1


def test_number_of_workers_is_the_size_of_the_cluster(held: HeldStudy) -> None:
    with empty() as cluster, Client(cluster) as client:
        held.train(lambda: wait_until(lambda: size(cluster) == 3), client=client, workers=3)
        assert len(cluster.worker_spec) == 3


def test_study_takes_the_place_of_adapt_while_it_runs(held: HeldStudy) -> None:
    with empty() as cluster, Client(cluster) as client:
        before = cluster.adapt(minimum=0, maximum=2, interval="50ms")
        held.train(lambda: wait_until(held.are_apart), client=client)
        assert before.periodic_callback is None
        after = cluster._adaptive
        wait_until(lambda: after.periodic_callback.is_running())
        assert (after.minimum, after.maximum, after.interval) == (0, 2, 0.05)


@pytest.mark.cluster
def test_workers_of_this_host_grow_from_one(held: HeldStudy) -> None:
    held.train(lambda: wait_until(held.are_apart), workers="0-2")


class Choosing:
    """A cluster that chooses by itself which workers end, as those of Kubernetes do."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self.scheduler_comm, self.loop = cluster.scheduler_comm, cluster.loop
        self.status = cluster.status
        self.asked: list[int] = []

    @property
    def scheduler_info(self) -> Any:
        return self._cluster.scheduler_info

    async def scale(self, n: int) -> None:
        self.asked.append(n)
        surplus = len(self._cluster.worker_spec) - n
        if surplus <= 0:
            self._cluster.scale(n)
        else:
            scheduler = self.scheduler_comm
            names = await scheduler.workers_to_close(n=surplus, attribute="name")
            await scheduler.retire_workers(names=names, close_workers=False, remove=False)
            await self._cluster.scale_down(names)


def test_cluster_may_choose_the_workers_that_end(held: HeldStudy) -> None:
    with empty() as cluster, Client(cluster) as client:
        client.cluster = choosing = Choosing(cluster)

        def act() -> None:
            wait_until(held.are_apart)
            held.gates[2].open()
            wait_until(lambda: size(cluster) == 1)

        held.train(act, client=client, workers="0-4")
        assert len(held.workers(1)) == 1
        assert choosing.asked == [1, 2, 1, 0]


class Queued(Worker):
    """Waits until the test lets it begin, as a job in a queue."""

    may_begin = threading.Event()

    async def start_unsafe(self) -> Any:
        await asyncio.to_thread(self.may_begin.wait)
        return await super().start_unsafe()


@pytest.fixture
def queue() -> Iterator[threading.Event]:
    Queued.may_begin.clear()
    yield Queued.may_begin
    Queued.may_begin.set()


def test_workers_in_a_queue_are_awaited(
    held: HeldStudy, queue: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    def act() -> None:
        wait_until(lambda: "LocalCluster has 0 of 1 worker that it was asked for" in caplog.text)
        queue.set()

    with empty(worker_class=Queued) as cluster, Client(cluster) as client:
        held.train(act, client=client, workers="0-1")


def test_wait_for_a_queue_ends_where_users_say(held: HeldStudy, queue: threading.Event) -> None:
    impatient = dt.Timeouts(workers_seconds=0.1)
    with empty(worker_class=Queued) as cluster, Client(cluster) as client:
        with pytest.raises(ClusterError, match=r"none after 0 s; LocalCluster has 0 of 1 worker"):
            held.train(held.let_go, client=client, workers="0-1", timeouts=impatient)
        queue.set()


def test_only_workers_that_nobody_asks_for_have_a_limit() -> None:
    assert Timeouts().patience(asks=True) == float("inf")
    assert Timeouts().patience(asks=False) == WORKERS_SECONDS
    assert {Timeouts(workers_seconds=9).patience(asks=asks) for asks in (True, False)} == {9.0}
    with pytest.raises(ConfigurationError, match="workers_seconds must be a number of seconds > 0"):
        Timeouts(workers_seconds=0)


class Refusing(LocalCluster):
    """Is refused each worker."""

    def scale(self, n: int = 0, **options: Any) -> Any:
        if n:
            raise RuntimeError("the quota is used up")
        return super().scale(n, **options)


def test_cluster_that_starts_no_worker_is_named(held: HeldStudy) -> None:
    with (
        empty(Refusing) as cluster,
        Client(cluster) as client,
        pytest.raises(ClusterError, match=r"Refusing cannot start workers: .*quota is used up"),
    ):
        held.train(held.let_go, client=client, workers="0-4")


def test_empty_cluster_is_told_at_once_how_to_grow(
    held: HeldStudy, caplog: pytest.LogCaptureFixture
) -> None:
    def act() -> None:
        wait_until(lambda: "waiting for a worker" in caplog.text)
        cluster.scale(1)

    with empty() as cluster, Client(cluster.scheduler_address) as client:
        held.train(act, client=client)
    assert "optimize(..., client=Client(cluster), workers='0-4')" in caplog.text


def client_of(cluster: object) -> Any:
    return SimpleNamespace(submit=None, cluster=cluster)


@pytest.mark.parametrize("workers", INVALID)
def test_invalid_number_of_workers_is_refused(held: HeldStudy, workers: Any) -> None:
    tuner = dt.algos.Grid(dt.Space(lr=[1.0]), max_steps=1)
    with pytest.raises(ConfigurationError, match=r"workers must be a number >= 1 or a range such"):
        held.study.optimize(tuner, workers=workers)


@pytest.mark.parametrize(
    ("cluster", "reason"),
    [
        (None, "this client has only the address of a scheduler: write Client"),
        (object(), "a cluster that can scale, and object has a fixed size"),
        (SimpleNamespace(scale=print, _supports_scaling=False), "SimpleNamespace has a fixed"),
    ],
)
def test_cluster_of_fixed_size_is_refused_a_range(
    held: HeldStudy, cluster: object, reason: str
) -> None:
    tuner = dt.algos.Grid(dt.Space(lr=[1.0]), max_steps=1)
    with pytest.raises(ConfigurationError, match=reason):
        held.study.optimize(tuner, client=client_of(cluster), workers="0-4")


def test_tasks_of_dask_name_their_trials(held: HeldStudy) -> None:
    seen: dict[str, Any] = {}

    def act() -> None:
        wait_until(lambda: held.workers(1) or held.workers(2))
        tasks = dict(cluster.scheduler.tasks)
        seen.update({key[1]: task.annotations["trials"] for key, task in tasks.items()})

    with empty() as cluster, Client(cluster) as client:
        held.train(act, client=client, workers="0-1")
    assert {"trial 0": [0]}.items() <= seen.items()


def test_size_of_jobs_with_several_workers_is_whole() -> None:
    job = {"cls": Worker, "options": {}, "group": ["-0", "-1"]}
    cluster = SimpleNamespace(new_spec=job, worker_spec={}, scheduler_info={"workers": {}})
    with pytest.raises(ConfigurationError, match="must allow the 2 workers of one job, got at mos"):
        GrowingCluster(cluster, 0, 1, idle_seconds=1.0)

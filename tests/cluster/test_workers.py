"""Workers as slots: who is greeted, who is refused, and what is left behind."""

from __future__ import annotations

import logging
import platform
import queue
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster, Worker

import dasktune
from dasktune.cluster import workers as clusters
from dasktune.cluster.workers import Workers
from dasktune.errors import ClusterError
from dasktune.graph.events import WorkerJoined, WorkerLost
from dasktune.trainer import Trainer
from dasktune.trainer.code import pack
from dasktune.worker import plugin
from dasktune.worker.job import JobPlan


class Idle(Trainer):
    def build(self, hp: Mapping[str, Any]) -> None:
        return

    setup = build

    def train(self) -> None:
        return

    def evaluate(self) -> dict[str, float]:
        return {"loss": 0.0}

    def state_dict(self) -> dict[str, Any]:
        return {}

    load_state_dict = build


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(
        processes=False,
        n_workers=1,
        threads_per_worker=1,
        host="127.0.0.1",
        protocol="tcp://",
        dashboard_address="127.0.0.1:0",
    ) as made:
        yield made


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster) as connected:
        yield connected


@pytest.fixture
def plan(tmp_path: Path) -> JobPlan:
    return JobPlan(
        run="idle-1",
        code=pack(Idle),
        config={},
        seed=0,
        store=str(tmp_path),
        report_every=1,
        needs={},
    )


def open_workers(client: Client, plan: JobPlan, inbox: queue.SimpleQueue[Any]) -> Workers:
    return Workers(client, plan, inbox.put)


def news(workers: Workers, inbox: queue.SimpleQueue[Any]) -> Any:
    """Return the next event; look around every 0.5 s meanwhile, as a runner does."""
    for _ in range(60):
        workers.look_around()
        try:
            return inbox.get(timeout=0.5)
        except queue.Empty:
            pass
    raise TimeoutError("nothing was heard")


def plugins_of(client: Client) -> set[str]:
    """Return the plugins on the scheduler and on all workers, but for Dask's own."""
    found = set(client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.worker_plugins)))
    for plugins in client.run(lambda dask_worker: list(dask_worker.plugins)).values():
        found |= set(plugins)
    return found - {"shuffle"}


def test_workers_announce_present_and_later_workers(
    cluster: LocalCluster, client: Client, plan: JobPlan
) -> None:
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    workers = open_workers(client, plan, inbox)
    first = workers.open(lambda event: None)
    assert [type(one) for one in first] == [WorkerJoined]
    cluster.scale(2)
    joined = news(workers, inbox)
    assert isinstance(joined, WorkerJoined)
    assert {first[0].worker, joined.worker} == set(client.scheduler_info()["workers"])
    assert plugins_of(client) == {plan.run}
    cluster.scale(1)
    left = news(workers, inbox)
    assert left in [WorkerLost(worker=first[0].worker), WorkerLost(worker=joined.worker)]
    workers.close()
    assert plugins_of(client) == set()


def test_close_succeeds_after_the_scheduler_lost_the_plugin(client: Client, plan: JobPlan) -> None:
    workers = open_workers(client, plan, queue.SimpleQueue())
    workers.open(lambda event: None)
    client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.worker_plugins.clear())
    workers.close()


@pytest.mark.parametrize("is_safe", [True, False])
def test_profiler_of_dask_runs_only_where_it_is_safe(
    cluster: LocalCluster,
    client: Client,
    plan: JobPlan,
    monkeypatch: pytest.MonkeyPatch,
    is_safe: bool,
) -> None:
    monkeypatch.setattr(plugin, "PROFILING_IS_SAFE", is_safe)
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    workers = open_workers(client, plan, inbox)
    workers.open(lambda event: None)
    cluster.scale(2)  # the plugin comes to the one while it runs, to the other before it starts
    assert isinstance(news(workers, inbox), WorkerJoined)
    for worker in cluster.workers.values():
        callbacks = worker.periodic_callbacks
        running = {name for name, one in callbacks.items() if one.is_running()}
        assert ("profile" in running) is ("profile-cycle" in running) is is_safe
    workers.close()


def test_news_that_were_lost_are_made_up_for(
    cluster: LocalCluster, client: Client, plan: JobPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    monkeypatch.setattr(Workers, "_on_membership", lambda self, event: None)
    monkeypatch.setattr(clusters, "WORKER_LIST_SECONDS", 0.0)
    workers = open_workers(client, plan, inbox)
    (first,) = workers.open(lambda event: None)
    workers.look_around()
    cluster.scale(2)
    client.wait_for_workers(2)
    workers.look_around()
    workers.look_around()
    joined = inbox.get(timeout=30)
    assert isinstance(joined, WorkerJoined)
    assert joined.worker != first.worker
    cluster.scale(0)
    cluster.sync(cluster._correct_state)
    workers.look_around()
    left = {inbox.get(timeout=30) for _ in range(2)}
    assert left == {WorkerLost(worker=first.worker), WorkerLost(worker=joined.worker)}
    assert inbox.empty()
    workers.close()


def test_a_worker_that_is_not_ready_yet_is_greeted_again(
    client: Client, plan: JobPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    monkeypatch.setattr(clusters, "WORKER_LIST_SECONDS", 0.0)
    workers = open_workers(client, plan, inbox)
    (first,) = workers.open(lambda event: None)
    ready = workers._ask
    monkeypatch.setattr(workers, "_ask", lambda *args, **options: {})
    workers._greet(first.worker)
    assert inbox.empty()
    monkeypatch.setattr(workers, "_ask", ready)
    workers.look_around()
    joined = inbox.get(timeout=30)
    assert isinstance(joined, WorkerJoined)
    assert joined.worker == first.worker
    workers.close()


def test_open_refuses_an_altered_trainer_and_removes_its_plugin(
    client: Client, plan: JobPlan
) -> None:
    code = replace(plan.code, digest="0" * 32)
    workers = open_workers(client, replace(plan, code=code), queue.SimpleQueue())
    with pytest.raises(ClusterError, match=r"worker tcp://.*was altered on its way"):
        workers.open(lambda event: None)
    assert plugins_of(client) == set()


def test_a_module_that_raises_when_it_is_opened_is_refused(
    client: Client, plan: JobPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_module.py").write_text("raise ZeroDivisionError('at import')")
    monkeypatch.syspath_prepend(tmp_path)
    code = replace(plan.code, kind="import", module="broken_module", payload=b"")
    workers = open_workers(client, replace(plan, code=code), queue.SimpleQueue())
    with pytest.raises(ClusterError, match="ZeroDivisionError: at import"):
        workers.open(lambda event: None)
    assert plugins_of(client) == set()


def test_late_worker_of_another_version_is_not_used(
    client: Client,
    plan: JobPlan,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    workers = open_workers(client, plan, inbox)
    (first,) = workers.open(lambda event: None)
    older = {"python": platform.python_version(), "dasktune": "9.9", "numpy": None, "torch": None}
    monkeypatch.setattr(clusters, "probe", lambda: lambda: older)
    with caplog.at_level(logging.WARNING, "dasktune.cluster.workers"):
        workers._greet(first.worker)
    assert f"must have dasktune {dasktune.__version__}, it has 9.9" in caplog.text
    assert inbox.empty()
    monkeypatch.undo()
    workers.close()


def test_an_empty_cluster_is_refused(
    cluster: LocalCluster, client: Client, plan: JobPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "WORKERS_SECONDS", 0.1)
    cluster.scale(0)
    while client.scheduler_info()["workers"]:
        cluster.sync(cluster._correct_state)
    with pytest.raises(ClusterError, match="the cluster must have a worker, it has none"):
        open_workers(client, plan, queue.SimpleQueue()).open(lambda event: None)


def test_a_worker_with_a_gpu_has_it_claimed(client: Client, plan: JobPlan) -> None:
    workers = open_workers(client, plan, queue.SimpleQueue())
    workers._resources["w1"] = {"GPU": 2.0}
    workers._resources["w2"] = {}
    assert workers.claims("w1", {}) == {"GPU": 1.0}
    assert workers.claims("w1", {"GPU": 2}) == {"GPU": 2}
    assert workers.claims("w2", {}) is None


def test_workers_that_differ_in_what_decides_results_are_refused(
    cluster: LocalCluster, client: Client, plan: JobPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def versions(dask_worker: Worker) -> dict[str, str]:
        mine = {"python": platform.python_version(), "dasktune": dasktune.__version__}
        torch = "2.0" if dask_worker.address == first else "2.13.0"
        return {**mine, "numpy": "2.4.6", "torch": torch}

    cluster.scale(2)
    client.wait_for_workers(2)
    first, second = sorted(client.scheduler_info()["workers"])
    monkeypatch.setattr(clusters, "probe", lambda: versions)
    with pytest.raises(ClusterError) as refused:
        open_workers(client, plan, queue.SimpleQueue()).open(lambda event: None)
    assert str(refused.value) == (
        f"all workers must have the same torch: 2.0 on {first}; 2.13.0 on {second}"
    )

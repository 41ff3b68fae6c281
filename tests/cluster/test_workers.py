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
from dasktune._cluster.versions import probe
from dasktune._cluster.workers import Workers
from dasktune._engine.timeouts import Timeouts, Waits
from dasktune._worker.job import JobPlan
from dasktune._worker.plugin import StagePlugin
from dasktune.errors import ClusterError
from dasktune.graph.events import WorkerJoined, WorkerLost
from dasktune.needs import NO_NEEDS
from dasktune.trainer import Trainer
from dasktune.trainer.code import pack

EACH_TIME = Timeouts(waits=Waits(look_seconds=0.0))
"""The workers are looked at whenever that is asked for."""


class Deaf(Workers):
    """Hears of no worker that comes or goes."""

    def _on_membership(self, event: tuple[float, Mapping[str, Any]]) -> None:
        return


class Unanswered(Workers):
    """Gets no answers from workers while it is told so."""

    gets_answers = True

    def _ask(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        return super()._ask(*arguments, **options) if self.gets_answers else {}


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
        needs=NO_NEEDS,
    )


def open_workers(client: Client, plan: JobPlan, inbox: queue.SimpleQueue[Any]) -> Workers:
    return Workers(client, plan, inbox.put)


def opened(workers: Workers) -> list[WorkerJoined]:
    """Return the workers that are ready, as a runner that never stops gets them."""
    steps = workers.open(lambda event: None)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return list(end.value)


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
    names = set(client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.worker_plugins)))
    for plugins in client.run(lambda dask_worker: list(dask_worker.plugins)).values():
        names |= set(plugins)
    return names - {"shuffle"}


def test_workers_announce_present_and_later_workers(
    cluster: LocalCluster, client: Client, plan: JobPlan
) -> None:
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    workers = open_workers(client, plan, inbox)
    first = opened(workers)
    assert [type(event) for event in first] == [WorkerJoined]
    cluster.scale(2)
    joined = news(workers, inbox)
    assert isinstance(joined, WorkerJoined)
    assert {first[0].worker, joined.worker} == set(client.scheduler_info(n_workers=-1)["workers"])
    assert plugins_of(client) == {plan.run}
    cluster.scale(1)
    left = news(workers, inbox)
    assert left in [WorkerLost(worker=first[0].worker), WorkerLost(worker=joined.worker)]
    workers.close()
    assert plugins_of(client) == set()


def test_close_succeeds_after_the_scheduler_lost_the_plugin(client: Client, plan: JobPlan) -> None:
    workers = open_workers(client, plan, queue.SimpleQueue())
    opened(workers)
    client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.worker_plugins.clear())
    workers.close()


@pytest.mark.parametrize("is_safe", [True, False])
def test_profiler_of_dask_runs_only_where_it_is_safe(
    cluster: LocalCluster, client: Client, plan: JobPlan, is_safe: bool
) -> None:
    client.register_plugin(StagePlugin(plan, may_profile=is_safe))
    cluster.scale(2)  # the plugin comes to the one while it runs, to the other before it starts
    client.wait_for_workers(2)
    for worker in cluster.workers.values():
        callbacks = worker.periodic_callbacks
        running = {name for name, callback in callbacks.items() if callback.is_running()}
        assert ("profile" in running) is ("profile-cycle" in running) is is_safe


def test_news_that_were_lost_are_made_up_for(
    cluster: LocalCluster, client: Client, plan: JobPlan
) -> None:
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    workers = Deaf(client, plan, inbox.put, timeouts=EACH_TIME)
    (first,) = opened(workers)
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


def test_a_worker_that_is_not_ready_yet_is_greeted_again(client: Client, plan: JobPlan) -> None:
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    workers = Unanswered(client, plan, inbox.put, timeouts=EACH_TIME)
    (first,) = opened(workers)
    workers.gets_answers = False
    workers._greet(first.worker)
    assert inbox.empty()
    workers.gets_answers = True
    workers.look_around()
    joined = inbox.get(timeout=30)
    assert isinstance(joined, WorkerJoined)
    assert joined.worker == first.worker
    workers.close()


def forget_plugin(client: Client, plan: JobPlan) -> None:
    """Take the plugin off the workers, as if it had never come: no teardown."""

    def forget(dask_worker: Worker) -> None:
        del dask_worker.plugins[plan.run]

    client.run(forget)


def test_worker_that_missed_the_plugin_gets_it(client: Client, plan: JobPlan) -> None:
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    workers = Deaf(client, plan, inbox.put, timeouts=EACH_TIME)
    (first,) = opened(workers)
    forget_plugin(client, plan)
    workers._known.clear()
    assert news(workers, inbox) == first
    assert plugins_of(client) == {plan.run}
    workers.close()


def test_close_succeeds_if_a_worker_missed_the_plugin(client: Client, plan: JobPlan) -> None:
    workers = open_workers(client, plan, queue.SimpleQueue())
    opened(workers)
    forget_plugin(client, plan)
    workers.close()
    assert plugins_of(client) == set()


def test_worker_that_gives_no_versions_is_greeted_again(client: Client, plan: JobPlan) -> None:
    def give_none(dask_worker: Worker) -> None:
        raise OSError("not now")

    probes = iter([probe(), give_none, probe()])
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    workers = Workers(
        client, plan, inbox.put, timeouts=EACH_TIME, find_versions=lambda: next(probes)
    )
    (first,) = opened(workers)
    workers._greet(first.worker)
    assert news(workers, inbox) == first
    workers.close()


def test_open_refuses_an_altered_trainer_and_removes_its_plugin(
    client: Client, plan: JobPlan
) -> None:
    code = replace(plan.code, digest="0" * 32)
    workers = open_workers(client, replace(plan, code=code), queue.SimpleQueue())
    with pytest.raises(ClusterError, match=r"worker tcp://.*was altered on its way"):
        opened(workers)
    assert plugins_of(client) == set()


def test_a_module_that_raises_when_it_is_opened_is_refused(
    client: Client, plan: JobPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_module.py").write_text("raise ZeroDivisionError('at import')")
    monkeypatch.syspath_prepend(tmp_path)
    code = replace(plan.code, kind="import", module="broken_module", payload=b"")
    workers = open_workers(client, replace(plan, code=code), queue.SimpleQueue())
    with pytest.raises(ClusterError, match="ZeroDivisionError: at import"):
        opened(workers)
    assert plugins_of(client) == set()


def test_late_worker_of_another_version_is_not_used(
    client: Client, plan: JobPlan, caplog: pytest.LogCaptureFixture
) -> None:
    older = {"python": platform.python_version(), "dasktune": "9.9", "numpy": None, "torch": None}
    probes = iter([probe(), lambda: older])
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    workers = Workers(client, plan, inbox.put, find_versions=lambda: next(probes))
    (first,) = opened(workers)
    with caplog.at_level(logging.WARNING, "dasktune._cluster.workers"):
        workers._greet(first.worker)
    assert f", got 9.9 on {first.worker}" in caplog.text
    assert inbox.empty()
    workers.close()


PATCHED = {"dasktune": f"{dasktune.__version__}1", "python": f"{platform.python_version()}1"}
"""Versions with another patch number than the driver's."""


def test_workers_of_another_patch_are_used_with_a_warning(
    client: Client, plan: JobPlan, caplog: pytest.LogCaptureFixture
) -> None:
    def versions() -> dict[str, str]:
        return {**PATCHED, "numpy": "2.4.6", "torch": "2.13.0"}

    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    workers = Workers(client, plan, inbox.put, find_versions=lambda: versions)
    with caplog.at_level(logging.WARNING, "dasktune._cluster.workers"):
        (first,) = opened(workers)
        workers._greet(first.worker)
    assert inbox.get_nowait() == first
    workers.close()
    assert sorted(caplog.messages) == [
        f"workers have different patch versions of {name}: {there} on {first.worker}; "
        f"the driver has {here}"
        for name, there, here in (
            ("Python", PATCHED["python"], platform.python_version()),
            ("dasktune", PATCHED["dasktune"], dasktune.__version__),
        )
    ]


def test_exact_study_refuses_workers_of_another_patch(client: Client, plan: JobPlan) -> None:
    exact = replace(plan, is_exact=True)
    versions = {**PATCHED, "numpy": None, "torch": None}
    workers = Workers(client, exact, print, find_versions=lambda: lambda: versions)
    with pytest.raises(ClusterError) as refused:
        opened(workers)
    (worker,) = client.scheduler_info(n_workers=-1)["workers"]
    assert str(refused.value) == "\n".join(
        f"all workers must have {name} {here}, got {here}1 on {worker}"
        for name, here in (
            ("dasktune", dasktune.__version__),
            ("Python", platform.python_version()),
        )
    )


def test_all_of_many_workers_are_greeted(
    cluster: LocalCluster, client: Client, plan: JobPlan
) -> None:
    """Some versions of Dask name no more than 5 workers, unless asked for all."""
    cluster.scale(7)
    client.wait_for_workers(7)
    workers = open_workers(client, plan, queue.SimpleQueue())
    assert len(opened(workers)) == 7
    workers.close()


def test_an_empty_cluster_is_refused(cluster: LocalCluster, client: Client, plan: JobPlan) -> None:
    timeouts = Timeouts(workers_seconds=0.1)
    cluster.scale(0)
    while client.scheduler_info(n_workers=-1)["workers"]:
        cluster.sync(cluster._correct_state)
    with pytest.raises(ClusterError, match="the cluster must have a worker, it has none"):
        opened(Workers(client, plan, print, timeouts=timeouts))


def test_a_worker_with_a_gpu_has_it_claimed(client: Client, plan: JobPlan) -> None:
    workers = open_workers(client, plan, queue.SimpleQueue())
    workers._resources["w1"] = {"GPU": 2.0}
    workers._resources["w2"] = {}
    assert workers.claims("w1", {}) == {"GPU": 1.0}
    assert workers.claims("w1", {"GPU": 2}) == {"GPU": 2}
    assert workers.claims("w2", {}) is None


@pytest.mark.parametrize("other", ["2.12.0", "2.13.0+cpu"])
def test_workers_that_differ_in_what_decides_results_are_refused(
    cluster: LocalCluster, client: Client, plan: JobPlan, other: str
) -> None:
    def versions(dask_worker: Worker) -> dict[str, str]:
        common = {"python": platform.python_version(), "dasktune": dasktune.__version__}
        torch = other if dask_worker.address == first else "2.13.0"
        return {**common, "numpy": "2.4.6", "torch": torch}

    cluster.scale(2)
    client.wait_for_workers(2)
    first, second = sorted(client.scheduler_info(n_workers=-1)["workers"])
    workers = Workers(client, plan, print, find_versions=lambda: versions)
    with pytest.raises(ClusterError) as refused:
        opened(workers)
    assert str(refused.value) == (
        "all workers must have the same torch: "
        + "; ".join(sorted([f"{other} on {first}", f"2.13.0 on {second}"]))
    )

"""A SLURMCluster of the user's own, which a study makes larger and smaller, on a real SLURM."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from dasktune.errors import ClusterError
from dasktune.slurm.workers import pool_module
from tests.held_study import held_study
from tests.holding import wait_until
from tests.slurm_server import Slurm

from .test_scaling import BLOCKER

pytestmark = [pytest.mark.cluster, pytest.mark.slurm]


@contextmanager
def slurm_cluster(folder: Path, **options: Any) -> Iterator[Any]:
    """Give a cluster of dask-jobqueue, whose jobs have two workers each."""
    pool_module()  # imports dask-jobqueue without its handlers of signals
    from dask_jobqueue import SLURMCluster

    with SLURMCluster(
        **{"queue": "low", "cores": 2, "processes": 2, "memory": "400MB", **options},
        walltime="00:10:00",
        interface="lo",
        python=sys.executable,
        log_directory=str(folder),
        local_directory=str(folder),
        silence_logs=False,  # or pytest gets no warning
        scheduler_options={"dashboard_address": "127.0.0.1:0"},
    ) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def use_slurm(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])


def test_cluster_of_jobs_grows_after_a_queue_and_shrinks(
    tmp_path: Path, slurm: Slurm, caplog: pytest.LogCaptureFixture
) -> None:
    blockers = [slurm.call(*BLOCKER) for _ in slurm.nodes]
    wait_until(lambda: len(slurm.jobs()) == len(blockers))
    with (
        held_study(tmp_path, trials=4) as held,
        slurm_cluster(tmp_path) as cluster,
        Client(cluster) as client,
    ):

        def act() -> None:
            wait_until(lambda: slurm.jobs("PENDING"))
            wait_until(lambda: "SLURMCluster has 0 of 2 workers that it was" in caplog.text)
            slurm.call("scancel", *blockers)
            wait_until(held.are_apart)
            assert len(slurm.jobs()) == 2
            for lr in (2, 3, 4):
                held.gates[lr].open()
            wait_until(lambda: len(slurm.jobs()) == 1)

        held.train(act, client=client, workers="0-4")
        assert len(held.workers(1)) == 1, "the job of a worker that trains is never ended"
        wait_until(lambda: not slurm.jobs() and not slurm.jobs("PENDING"))


def test_refusal_by_slurm_is_named(tmp_path: Path) -> None:
    with (
        held_study(tmp_path) as held,
        slurm_cluster(tmp_path, queue="none") as cluster,
        Client(cluster) as client,
        pytest.raises(ClusterError, match=r"(?is)SLURMCluster cannot start .*invalid partition"),
    ):
        held.train(held.let_go, client=client, workers="0-4")

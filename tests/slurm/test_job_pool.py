"""One pool of jobs, by a clock of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from dasktune._driver.pool_demand import PoolDemand
from dasktune._engine.timeouts import RESUBMIT_SECONDS
from dasktune.graph.view import RunView
from dasktune.slurm.job_pool import STILLBORN, JobPool
from dasktune.slurm.options import SlurmOptions
from tests.driver.test_pool_demand import stages


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlurmOptions:
    """Return options of jobs of two workers, on a host with commands that do nothing."""
    for name in ("sbatch", "squeue", "scancel"):
        (tmp_path / name).touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return SlurmOptions(workers="0-8", workers_per_job=2, tags=("Fast",), gpus_per_worker=1)


def test_pool_without_demand_submits_no_job(options: SlurmOptions) -> None:
    pool = JobPool("gpu", options)
    assert pool.missing(0, 0.0, is_hopeless=False) == 0
    assert pool.seen(frozenset(), 0.0).status.reason == "no stage is for it"
    pool.use(3, (), 0.0, 0.0)
    assert pool.missing(0, 0.0, is_hopeless=False) == 2, "each has two workers"
    assert pool.seen(frozenset(), 0.0).status.reason == "its jobs are not submitted yet"


def test_refused_pool_has_no_room_until_a_job_is_accepted(options: SlurmOptions) -> None:
    pool = JobPool("gpu", options, "no such partition")
    assert pool.trouble() == "pool gpu: SLURM refuses jobs: no such partition"
    assert pool.seen(frozenset(), 0.0).room == 0
    pool.use(2, (), 0.0, 0.0)
    assert pool.missing(0, 0.0, is_hopeless=False) == 1
    pool.refused("no such partition", 0.0)
    assert pool.missing(0, RESUBMIT_SECONDS - 1, is_hopeless=False) == 0
    assert pool.missing(0, RESUBMIT_SECONDS, is_hopeless=False) == 1
    pool.listed(["7"], {"7": "PENDING (Resources)", "8": "RUNNING"})
    seen = pool.seen(frozenset(), 0.0)
    assert (seen.room, pool.trouble()) == (8, None)
    assert (seen.status.queued, seen.status.running) == (1, 0)
    assert seen.status.reason == "its jobs: PENDING (Resources)"


def test_pool_whose_jobs_end_at_once_tries_one_job(options: SlurmOptions, tmp_path: Path) -> None:
    pool = JobPool("gpu", options)
    pool.use(8, (), 0.0, 0.0)
    for number in range(STILLBORN):
        assert pool.missing(0, 0.0, is_hopeless=False) == 4
        pool.ended(f"job-{number}", str(number), tmp_path, 0.0)
    assert "3 jobs of SLURM ended before their worker was there" in str(pool.trouble())
    assert pool.seen(frozenset(), 0.0).room == 0
    assert pool.missing(0, RESUBMIT_SECONDS, is_hopeless=True) == 0
    assert pool.missing(0, RESUBMIT_SECONDS, is_hopeless=False) == 1
    pool.arrived("job-9")
    assert pool.trouble() is None
    assert pool.missing(0, RESUBMIT_SECONDS, is_hopeless=False) == 4


@pytest.mark.parametrize("kind", ["refused", "refused at first", "stillborn"])
def test_refused_pool_is_tried_while_the_next_has_room(
    options: SlurmOptions, tmp_path: Path, kind: str
) -> None:
    table, demand = stages(None, None), PoolDemand()
    first = JobPool("first", options, "no node" if kind == "refused at first" else "")
    second = JobPool("second", options)

    def wanted_at(now: float) -> dict[str, int]:
        seen = [pool.seen(frozenset(), now) for pool in (first, second)]
        wanted = demand.of(RunView(table.dispatcher), seen, now, left=0)
        for pool in (first, second):
            pool.use(wanted[pool.name], (), 0.0, now)
        return wanted

    def refuse_at(now: float) -> None:
        if kind != "stillborn":
            first.refused("no node", now)
        for number in range(STILLBORN if kind == "stillborn" else 0):
            first.ended(f"{now}-{number}", str(number), tmp_path, now)

    if kind != "refused at first":
        assert wanted_at(0.0) == {"first": 2, "second": 0}
        refuse_at(0.0)
    assert wanted_at(1.0) == {"first": 0, "second": 2}
    long = options.idle_seconds + RESUBMIT_SECONDS
    wanted_at(2.0)
    wanted = wanted_at(long)
    assert wanted == {"first": 1, "second": 2}, "the stages keep their place in the second"
    assert first.missing(0, long, is_hopeless=False) == 1
    refuse_at(long)
    assert wanted_at(long + 1) == {"first": 0, "second": 2}
    first.listed(["7"], {"7": "RUNNING"})
    first.arrived("job-7")
    assert wanted_at(long + 2) == {"first": 2, "second": 0}, "it is the preferred one"


def test_offer_and_status_name_the_pool(options: SlurmOptions) -> None:
    seen = JobPool("gpu", options).seen(frozenset({"tcp://a", "tcp://b"}), 0.0)
    assert str(seen.offer) == "pool gpu of SLURM (GPU=1, tags fast)"
    assert str(seen.status).startswith("pool gpu of SLURM: 2 workers of at most 8, ")
    assert type(seen.status).from_json(seen.status.to_json()) == seen.status
    assert type(seen.status).from_json({"name": "x", "workers": "2"}) is None

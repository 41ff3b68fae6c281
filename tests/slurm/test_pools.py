"""Several pools of jobs on a real SLURM, and their options."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from dasktune._cluster.pools import PoolStatus
from dasktune.cli.status import StudyStatus, read
from dasktune.errors import ConfigurationError
from dasktune.slurm.options import options_for, pools_for, pools_of
from tests.slurm_server import Slurm

from .conftest import PATIENCE, Folder
from .test_scaling import (
    STUDY_FILE,
    Held,
    check_each_step_once,
    finished,
    has_said,
    jobs_at,
    start,
)

TWO_POOLS = """
[slurm]
idle-seconds = 2

[slurm.cpu]
workers = "1-2"
tags = ["small"]

[slurm.gpu]
workers = "0-2"
partition = "high"
gpus-per-worker = 1
"""

REFUSED = """
[slurm.old]
workers = "1-2"
partition = "none"
"""

NEEDS = "lambda hp: {'GPU': 1} if hp['trial'] % 2 else {'tags': 'small'}"


def write_study(folder: Folder, pools: str, needs: str = NEEDS) -> None:
    text = STUDY_FILE.replace("load_if_exists=True", f"load_if_exists=True, needs={needs}")
    (folder.path / "count.py").write_text(text)
    (folder.path / "dasktune.toml").write_text(pools)


def status_of(folder: Folder) -> StudyStatus:
    (status,) = read(str(folder.path / "runs" / "count"))
    return status


def pools_in(folder: Folder) -> dict[str, PoolStatus]:
    run = status_of(folder).run
    return {} if run is None else {pool.name.split()[1]: pool for pool in run.pools}


@pytest.mark.cluster
@pytest.mark.slurm
def test_each_pool_follows_its_own_demand(folder: Folder, slurm: Slurm) -> None:
    write_study(folder, TWO_POOLS + REFUSED)
    held = Held(folder, *range(8), at=2)
    process = start(folder)
    folder.wait(lambda: len(jobs_at(folder, 2)) == 4, process)
    by_pool = slurm.call("squeue", "-h", "-o", "%P %j").splitlines()
    assert sorted(by_pool) == ["high dasktune-gpu"] * 2 + ["low dasktune-cpu"] * 2

    folder.wait(lambda: pools_in(folder)["gpu"].workers == 2, process)
    pools = pools_in(folder)
    assert [(pools[name].running, pools[name].most) for name in pools] == [(2, 2), (2, 2), (0, 2)]
    assert pools["old"].is_refused
    assert "none" in pools["old"].reason
    assert "pool    pool gpu of SLURM: 2 workers of at most 2" in str(status_of(folder))

    held.let_go(1, 3, 5, 7)
    # Nothing is left for the pool with GPUs; the other one goes on.
    folder.wait(lambda: slurm.call("squeue", "-h", "-p", "high") == "", process)
    assert len(slurm.jobs()) == 2
    held.let_go()
    _, errors = finished(process)
    assert errors.count("pool old: SLURM refuses a job") == 1
    check_each_step_once(folder, 8, 8)
    assert {int(trial) % 2 for _, gpu, trial, *_ in folder.steps() if gpu != "None"} == {1}
    assert slurm.jobs("PENDING,RUNNING") == []


@pytest.mark.cluster
@pytest.mark.slurm
def test_next_driver_cancels_the_jobs_of_all_pools(folder: Folder, slurm: Slurm) -> None:
    later = 'directives = ["--begin=now+1hour"]\n'
    write_study(folder, TWO_POOLS.replace("0-2", "1-2").replace("idle-", f"{later}idle-"))
    first = start(folder)
    folder.wait(lambda: len(slurm.jobs("PENDING")) == 2, first)
    folder.wait(lambda: has_said(folder, "BeginTime"), first)
    pending = slurm.jobs("PENDING")
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    second = start(folder)
    folder.wait(lambda: has_said(folder, "of a driver that is gone"), second)
    (line,) = (
        each for each in (folder.path / "run.log").read_text().splitlines() if "gone" in each
    )
    assert all(job in line for job in pending)
    folder.wait(lambda: len(slurm.jobs("PENDING")) == 2, second)
    assert not set(slurm.jobs("PENDING")) & set(pending)
    os.killpg(second.pid, signal.SIGINT)
    second.communicate(timeout=PATIENCE)
    folder.wait(lambda: slurm.jobs("PENDING,RUNNING") == [])


@pytest.mark.cluster
@pytest.mark.slurm
def test_needs_that_no_pool_meets_are_refused_first(folder: Folder, slurm: Slurm) -> None:
    before = slurm.jobs("all")
    write_study(folder, TWO_POOLS.replace("1-2", "0-2"), needs="{'GPU': 2}")
    process = start(folder)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "no worker has GPU=2; workers: " in errors
    assert "pool cpu of SLURM (tags small); pool gpu of SLURM (GPU=1)" in errors
    assert slurm.jobs("all") == before


@pytest.mark.slow
@pytest.mark.slurm
def test_doctor_shows_each_pool_and_examines_its_workers(folder: Folder) -> None:
    write_study(folder, TWO_POOLS + REFUSED)
    flags = ("--slurm", "--interface", "lo", "--memory", "200MB")
    done = folder.command("doctor", "count.py", *flags, "--json", "--seconds", "60")
    document = json.loads(done.stdout)
    assert document["workers"] == 2, done.stdout + done.stderr
    pools = [each for each in document["findings"] if each["check"] == "pool"]
    assert [each["status"] for each in pools] == ["ok", "ok", "warning"]
    assert "SLURM refuses jobs" in pools[2]["found"]


# ------------------------------------------------------------------------------- options


@pytest.mark.usefixtures("commands")
def test_tables_of_pools_have_the_defaults_of_slurm(tmp_path: Path) -> None:
    (tmp_path / "dasktune.toml").write_text(
        '[slurm]\naccount = "vision"\nmemory = "1GB"\n[slurm.driver]\ncpus = 2\n'
        '[slurm.old-gpus]\ngpus-per-worker = 1\ntags = ["old"]\n'
        '[slurm.cpu]\nworkers = "0-8"\nmemory = "2GB"\n'
    )
    pools = pools_for(tmp_path, {"account": "lab", "qos": None})
    assert list(pools) == ["old-gpus", "cpu"], "in the order of the file"
    old, cpu = pools.values()
    assert (old.gpus_per_worker, old.tags, old.memory, old.least) == (1, ("old",), "1GB", 1)
    assert (cpu.least, cpu.most, cpu.memory, cpu.account) == (0, 8, "2GB", "lab")
    assert [pool.job_name for pool in pools.values()] == ["dasktune-old-gpus", "dasktune-cpu"]


@pytest.mark.usefixtures("commands")
def test_flags_that_a_pool_has_itself_are_refused(tmp_path: Path) -> None:
    (tmp_path / "dasktune.toml").write_text(TWO_POOLS)
    with pytest.raises(ConfigurationError, match=r"one pool here, got \[slurm\.cpu\]"):
        options_for(tmp_path, {})
    with pytest.raises(ConfigurationError, match=r"--partition must be left out.*\[slurm\.gpu\]"):
        pools_for(tmp_path, {"partition": "low"})


@pytest.mark.usefixtures("commands")
def test_problems_of_all_pools_are_reported_together() -> None:
    own: dict[str, dict[str, Any]] = {
        "a": {"interface": "lo", "memory": "much"},
        "b;c": {},
        "d": {"queue": "gpu", "workers": "0-0"},
    }
    with pytest.raises(ConfigurationError) as caught:
        pools_of(own, {"size": 1})
    texts = [problem.partition(",")[0] for problem in caught.value.problems]
    assert [text.partition(": ")[0] for text in texts] == [
        "slurm_client",
        "slurm_client.a",
        "slurm_client",
        "slurm_client.d",
        "slurm_client.d",
    ]


@pytest.mark.usefixtures("commands")
def test_pools_with_unlike_schedulers_are_refused() -> None:
    own = {"a": {"interface": "lo"}, "b": {"shared_directory": "x"}}
    with pytest.raises(ConfigurationError) as caught:
        pools_of(own, {})
    assert [problem.partition(" ")[0] for problem in caught.value.problems] == [
        "interface",
        "shared_directory",
    ]

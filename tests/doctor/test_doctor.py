"""Real clusters of processes with real faults: each is named, and nothing stays behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster

import dasktune as dt
from dasktune._cluster.local import local_client
from dasktune._study.study import Study
from dasktune.doctor import Diagnosis, Finding, Status, examine
from dasktune.doctor.checks import diagnose
from dasktune.doctor.collect import Collector
from dasktune.doctor.study import CheckedStudy, study_of
from dasktune.errors import ClusterError, ConfigurationError
from tests.services import S3Server, scheduler_in

from .conftest import Cluster

pytestmark = pytest.mark.process


def _no_mounts() -> bool:
    try:
        return subprocess.run(["unshare", "-m", "true"], check=False).returncode != 0
    except OSError:
        return True


private_mounts = pytest.mark.skipif(_no_mounts(), reason="needs root, for mounts of its own")


class Walk(dt.Trainer):
    """Walks; it must never be trained here."""

    ignored_config = ("data",)

    def build(self, hp: Mapping[str, Any]) -> None:
        raise AssertionError("nothing may be built")

    setup = build

    def train(self) -> None:
        raise AssertionError("nothing may be trained")

    def evaluate(self) -> dict[str, float]:
        return {"loss": float(np.zeros(1)[0])}

    def state_dict(self) -> dict[str, Any]:
        return {}

    load_state_dict = build

    @classmethod
    def fingerprint_data(cls, config: Mapping[str, Any]) -> Any:
        return Path(config["data"]).read_text() if "data" in config else None


@pytest.fixture
def study(tmp_path: Path) -> Iterator[Study]:
    with closing(make(tmp_path / "runs")) as made:
        yield made


def make(storage: object, **changes: Any) -> Study:
    fields = {"name": "walk", "metric": "loss", "storage": str(storage), **changes}
    return dt.create_study(Walk, **fields)


def content(folder: Path) -> dict[str, bytes]:
    """Return every file and folder below a folder with its bytes."""
    return {
        str(path.relative_to(folder)): b"" if path.is_dir() else path.read_bytes()
        for path in folder.rglob("*")
    }


def of(found: Diagnosis, check: str, status: Status = Status.PROBLEM) -> list[Finding]:
    return [one for one in found.findings if (one.check, one.status) == (check, status)]


def named(client: Client, name: str) -> str:
    """Return the address of a worker by its name."""
    workers = client.scheduler_info(n_workers=-1)["workers"]
    return next(address for address, one in workers.items() if one["name"] == name)


def test_doctor_local_cluster_is_ok_and_leaves_no_files(study: Study, tmp_path: Path) -> None:
    before = content(tmp_path)
    found = dt.doctor(study, workers=2, seconds=60)
    assert found.ok, str(found)
    assert found.workers == 2
    warned = {one.check for one in found.of(Status.WARNING)}
    assert warned <= {"resume", "memory", "disk", "speed", "database"}  # by this machine
    checked = {one.check for one in found.findings if len(one.workers) == 2}
    assert checked >= {"versions", "trainer", "store", "clock", "cores", "class"}
    assert content(tmp_path) == before


def test_doctor_missing_store_and_database_are_not_created(
    tmp_path: Path, cluster: Cluster
) -> None:
    cluster.start()
    cluster.start()
    new = partial(make, tmp_path / "not" / "there" / "yet")
    with study_of(new) as checked:
        found = examine(checked, cluster.client)
    assert found.ok, str(found)
    assert of(found, "store", Status.OK)
    assert of(found, "database", Status.OK)
    assert list(tmp_path.iterdir()) == []


@private_mounts
def test_doctor_folder_that_differs_on_workers_is_a_problem(
    study: Study, tmp_path: Path, cluster: Cluster
) -> None:
    """Two workers of one host that has another file system there; a third sees ours."""
    before = content(tmp_path)
    hidden = f"mount -t tmpfs none {tmp_path}"
    cluster.start(mounts=hidden)
    cluster.start(mounts=hidden)
    cluster.start()
    found = dt.doctor(study, client=cluster.client)
    (problem,) = of(found, "store")
    others = {named(cluster.client, f"worker-{number}") for number in range(2)}
    assert set(problem.workers) == others
    assert "another place there than here" in problem.found
    assert "shared file system" in problem.mend
    (fine,) = of(found, "store", Status.OK)
    assert fine.workers == (named(cluster.client, "worker-2"),)
    assert content(tmp_path) == before
    left = cluster.client.run(os.listdir, str(tmp_path), workers=list(others))
    assert left == {one: [] for one in others}


@private_mounts
def test_doctor_read_only_store_of_a_worker_is_a_problem(
    study: Study, tmp_path: Path, cluster: Cluster
) -> None:
    before = content(tmp_path)
    runs = tmp_path / "runs"
    cluster.start(mounts=f"mount --bind {runs} {runs}; mount -o remount,ro,bind {runs}")
    cluster.start()
    found = dt.doctor(study, client=cluster.client)
    (problem,) = of(found, "store")
    assert problem.workers == (named(cluster.client, "worker-0"),)
    assert "cannot create in" in problem.found
    assert "read-only" in problem.found
    assert content(tmp_path) == before


@private_mounts
def test_doctor_missing_or_different_data_of_a_worker_is_found(
    tmp_path: Path, cluster: Cluster
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "train.txt").write_text("ours")
    there = f"mount -t tmpfs none {data}"
    cluster.start(mounts=there)
    cluster.start(mounts=f"{there}; printf theirs > {data}/train.txt")
    with closing(make(tmp_path / "runs", config={"data": str(data / "train.txt")})) as study:
        found = dt.doctor(study, client=cluster.client)
    lacks, other = (named(cluster.client, f"worker-{number}") for number in range(2))
    assert [one.workers for one in of(found, "config", Status.WARNING)] == [(lacks,)]
    (silent,) = of(found, "answers")
    assert silent.workers == (lacks,)
    assert "open and compare the trainer: FileNotFoundError" in silent.found
    (differs,) = of(found, "trainer")
    assert differs.workers == (other,)
    assert differs.found == "what decides results differs there: data"


def distribution(folder: Path, name: str, version: str) -> Path:
    """Make what tells that a package of some version is installed in a folder."""
    about = folder / f"{name}-{version}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder


def test_doctor_other_numpy_versions_on_workers_are_found(
    study: Study, tmp_path_factory: pytest.TempPathFactory, cluster: Cluster
) -> None:
    here = tuple(map(int, np.__version__.split(".")[:2]))
    patched = f"{here[0]}.{here[1]}.999"
    stubs = tmp_path_factory.mktemp("stubs")
    cluster.start(path=[distribution(stubs / "old", "numpy", "1.26.4")])
    cluster.start(path=[distribution(stubs / "patched", "numpy", patched)])
    cluster.start()
    found = dt.doctor(study, client=cluster.client)
    old, new, same = (named(cluster.client, f"worker-{number}") for number in range(3))
    (problem,) = of(found, "numpy")
    assert (problem.workers, problem.found) == ((old,), f"1.26.4, here {np.__version__}")
    assert problem.mend == f"install numpy {np.__version__} there"
    (warning,) = of(found, "numpy", Status.WARNING)
    assert warning.workers == (new,)
    assert [one.workers for one in of(found, "versions", Status.OK)] == [(same,)]


def test_workers_with_another_dasktune_are_found_and_not_used(
    study: Study, tmp_path_factory: pytest.TempPathFactory, cluster: Cluster
) -> None:
    other, none = tmp_path_factory.mktemp("other"), tmp_path_factory.mktemp("none")
    for folder, text in ((other, "__version__ = '0.0.1'\n"), (none, "raise ImportError\n")):
        (folder / "dasktune").mkdir()
        (folder / "dasktune" / "__init__.py").write_text(text)
    cluster.start(path=[other])
    cluster.start(path=[none])
    found = dt.doctor(study, client=cluster.client)
    problems = {one.workers: one.found for one in of(found, "dasktune")}
    assert problems == {
        (named(cluster.client, "worker-0"),): f"0.0.1, here {dt.__version__}",
        (named(cluster.client, "worker-1"),): f"not installed, here {dt.__version__}",
    }
    assert not of(found, "answers")
    assert len(of(found, "clock", Status.OK)[0].workers) == 2


@pytest.mark.slow
def test_hanging_worker_is_a_problem_and_delays_no_other(study: Study, cluster: Cluster) -> None:
    hung = cluster.start()
    cluster.start()
    address = named(cluster.client, "worker-0")
    hung.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    # Longer than a machine stands still: the other worker answers.
    found = dt.doctor(study, client=cluster.client, seconds=20)
    assert time.monotonic() - began < 60
    (silent,) = of(found, "answers")
    assert silent.workers == (address,)
    assert silent.found == "asked to answer: no answer within 20 s"
    assert of(found, "store", Status.OK)[0].workers == (named(cluster.client, "worker-1"),)


def test_doctor_hanging_scheduler_raises_cluster_error(study: Study, tmp_path: Path) -> None:
    file = tmp_path / "scheduler.json"
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1"]
    command += ["--port", "0", "--no-dashboard", "--scheduler-file", str(file)]
    scheduler = subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd=tmp_path)
    try:
        with Client(scheduler_in(file), timeout=60) as client:
            scheduler.send_signal(signal.SIGSTOP)
            with pytest.raises(ClusterError, match="does not answer: no answer within 3 s"):
                dt.doctor(study, client=client, seconds=3)
            scheduler.kill()
    finally:
        scheduler.kill()
        scheduler.wait()


def test_doctor_clock_offset_is_measured_by_round_trips(study: Study, cluster: Cluster) -> None:
    cluster.start()
    facts = Collector(cluster.client, CheckedStudy.of(study), 30).facts()
    offset = facts.workers[0].offset
    assert offset is not None
    assert abs(offset.seconds) <= offset.error + 0.01
    assert offset.error < 1
    behind = Collector(
        cluster.client, CheckedStudy.of(study), 30, clock=lambda: time.time() - 40
    ).facts()
    clocks = [one for one in diagnose(behind) if one.check == "clock"]
    assert {one.status for one in clocks} == {Status.PROBLEM}
    (worker,) = [one for one in clocks if one.workers]
    offset = behind.workers[0].offset
    assert offset is not None
    assert abs(offset.seconds - 40) <= offset.error + 0.01
    assert f"the clock there is {offset.seconds:.1f} s ahead of the driver's" in worker.found
    (store,) = [one for one in clocks if not one.workers]
    # A file's time is as coarse as its system.
    assert re.search(r"the store's clock is (39\.\d|4\d[\d.]*) s", store.found)


@pytest.mark.slow
def test_doctor_claimed_but_missing_gpu_is_a_problem(study: Study, cluster: Cluster) -> None:
    cluster.start("--resources", "GPU=1", env={"CUDA_VISIBLE_DEVICES": ""})
    found = dt.doctor(study, client=cluster.client, seconds=120)
    (problem,) = of(found, "GPU")
    assert "claimed, and torch sees none" in problem.found


def has_started_cuda() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


@pytest.mark.gpu
def test_doctor_gpu_of_a_worker_is_reported_without_using_it(study: Study) -> None:
    with local_client(1, gpus_per_worker=1) as client:
        found = dt.doctor(study, client=client, seconds=120)
        started = client.run(has_started_cuda)
    assert found.ok, str(found)
    assert "1 GPU, " in of(found, "GPU", Status.OK)[0].found
    assert set(started.values()) == {False}, "CUDA was started in another process"


def test_doctor_unmet_needs_are_a_problem(tmp_path: Path, cluster: Cluster) -> None:
    cluster.start("--resources", "CAMERA=1")
    for needs, status in ({"CAMERA": 1}, Status.OK), ({"CAMERA": 2}, Status.PROBLEM):
        with closing(make(tmp_path / "runs", needs=needs, load_if_exists=True)) as study:
            found = dt.doctor(study, client=cluster.client)
        assert [one.status for one in found.findings if one.check == "resources"] == [status]


@pytest.mark.filterwarnings("ignore:Port 8787")
def test_doctor_default_dask_cluster_has_warnings(study: Study, tmp_path: Path) -> None:
    # A cluster that tests share changes the settings of this process for as long as it is there.
    scheduler = dask.config.merge(*dask.config.defaults)["distributed"]["scheduler"]
    settings = {"distributed.scheduler": scheduler, "distributed.worker.daemon": True}
    with (
        dask.config.set({**settings, "temporary-directory": str(tmp_path / "dask")}),
        LocalCluster(
            n_workers=1,
            threads_per_worker=2,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            memory_limit="3GiB",
        ) as started,
        Client(started) as client,
    ):
        found = dt.doctor(study, client=client)
    assert found.ok, str(found)
    warned = " ".join(one.found for one in of(found, "settings", Status.WARNING))
    for name in ("allowed-failures", "work-stealing", "worker-ttl", "no-workers-timeout"):
        assert f"{name}: " in warned
    assert of(found, "slots", Status.WARNING)
    assert of(found, "processes", Status.WARNING)
    assert "3 GiB" in " ".join(one.found for one in of(found, "memory", Status.WARNING))


def test_memory_store_is_a_problem_for_other_processes_only(two_threads: Client) -> None:
    with closing(make("memory://doctor")) as study:
        assert not of(dt.doctor(study, client=two_threads), "store")
        with local_client(1) as client:
            (problem,) = of(dt.doctor(study, client=client), "store")
    assert "one process only" in problem.found


@pytest.mark.s3
@pytest.mark.slow
def test_bucket_is_tried_by_every_worker_and_left_unchanged(
    tmp_path: Path, moto: S3Server, monkeypatch: pytest.MonkeyPatch, cluster: Cluster
) -> None:
    for name, value in moto.environment().items():
        monkeypatch.setenv(name, value)
    url = f"s3://{moto.create_bucket()}/study"
    cluster.start()
    cluster.start()
    # A port where nobody listens would be tried again for ten seconds.
    cluster.start(env={"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""})
    with closing(make(url, database=str(tmp_path / "dasktune.db"))) as study:
        before = [entry.path for entry in study.store.files.entries("")]
        found = dt.doctor(study, client=cluster.client)
        assert [entry.path for entry in study.store.files.entries("")] == before
    (problem,) = of(found, "store")
    assert problem.workers == (named(cluster.client, "worker-2"),)
    assert "no credentials" in problem.found
    (fine,) = of(found, "store", Status.OK)
    assert len(fine.workers) == 2
    assert of(found, "speed", Status.OK) or of(found, "speed", Status.WARNING)


def test_doctor_reports_the_last_check_resume(study: Study, two_threads: Client) -> None:
    for ok, status in ((False, Status.PROBLEM), (True, Status.OK)):
        study.record_check(ok, "as it was found")
        found = dt.doctor(study, client=two_threads)
        assert [one.status for one in found.findings if one.check == "resume"] == [status]


@pytest.mark.postgresql
def test_postgresql_is_tried_and_missing_server_is_a_problem(
    tmp_path: Path, postgresql: str, two_threads: Client
) -> None:
    fields = {"database": postgresql, "name": "doctor"}
    with closing(make(tmp_path / "runs", **fields)) as study:
        found = dt.doctor(study, client=two_threads)
    # A busy machine may be slow.
    (fine,) = of(found, "database", Status.OK) or of(found, "database", Status.WARNING)
    assert "s for a transaction" in fine.found
    gone = postgresql.replace("postgres?host=", "postgres?host=/nowhere")
    with study_of(partial(make, tmp_path / "runs", **{**fields, "database": gone})) as checked:
        found = examine(checked, two_threads)
    (problem,) = of(found, "database")
    assert "cannot use database postgresql" in problem.found


@pytest.mark.parametrize("text", ["this is no database, but long enough", ""])
def test_file_without_a_database_is_a_problem_unless_empty(
    tmp_path: Path, two_threads: Client, text: str
) -> None:
    file = tmp_path / "some.db"
    file.write_text(text)
    with study_of(partial(make, tmp_path / "runs", database=str(file))) as checked:
        found = examine(checked, two_threads)
    assert bool(of(found, "database")) == bool(text)
    assert file.read_text() == text
    assert [one.name for one in tmp_path.iterdir()] == ["some.db"]


def test_doctor_invalid_arguments_are_refused(study: Study, two_threads: Client) -> None:
    with pytest.raises(ConfigurationError, match="seconds must be a number > 0, got 0"):
        dt.doctor(study, client=two_threads, seconds=0)
    with pytest.raises(ConfigurationError, match="not for the one of client"):
        dt.doctor(study, client=two_threads, workers=2)
    with pytest.raises(ConfigurationError, match="study must be one of create_study"):
        dt.doctor("walk")  # type: ignore[arg-type]

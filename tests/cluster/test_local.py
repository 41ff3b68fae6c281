"""The local cluster: its processes, and the GPUs that each of them sees."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import distributed
import pytest
from distributed import Client
from packaging.version import Version

import dasktune as dt
from dasktune._cluster.local import LOCAL_SETTINGS, METHOD, available_cores, local_client
from dasktune._worker import hardware
from dasktune._worker.gpus import Gpu
from dasktune._worker.job import JobPlan, open_job
from dasktune.errors import ClusterError, ConfigurationError
from dasktune.needs import Needs
from dasktune.sequences import Constant
from dasktune.trainer.code import pack


class Where(dt.Trainer):
    """Tells in its state what it saw of the world."""

    def build(self, hp: Any) -> None:
        self.seen = f"{self.device} {os.environ.get('CUDA_VISIBLE_DEVICES')}"

    def setup(self, hp: Any) -> None: ...

    def train(self) -> None: ...

    def evaluate(self) -> dict[str, float]:
        return {"loss": float(self.seen == "cuda 0"), "gpu": float("cuda" in self.seen)}

    def state_dict(self) -> dict[str, object]:
        return {}

    def load_state_dict(self, state: Any) -> None: ...


@pytest.fixture(autouse=True)
def interpreters() -> Iterator[None]:
    """Start each worker as users' clusters do: as a new interpreter."""
    with dask.config.set({"distributed.worker.multiprocessing-method": "spawn"}):
        yield


def never_end() -> None:
    """Have this process wait when it ends."""
    atexit.register(threading.Event().wait)


def test_worker_that_is_slow_to_end_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "distributed.nanny")
    with local_client(1) as client:
        (pid,) = client.run(os.getpid).values()
        client.run(never_end)
    assert not Path(f"/proc/{pid}").exists()
    assert not caplog.records
    assert not logging.getLogger("distributed.nanny").filters


def test_two_local_clusters_share_no_folder_but_settings() -> None:
    def scratch(client: Client) -> list[Path]:
        assert client.cluster is not None
        folders = client.run(lambda dask_worker: dask_worker.local_directory).values()
        return [Path(folder) for folder in (*folders, client.cluster.scheduler.local_directory)]

    def settings() -> dict[str, object]:
        return {name: dask.config.get(name, None) for name in (*LOCAL_SETTINGS, METHOD)}

    before, nanny = settings(), logging.getLogger("distributed.nanny")
    with ExitStack() as stack:
        first = stack.enter_context(ExitStack())
        folders = scratch(first.enter_context(local_client(1)))
        second = stack.enter_context(local_client(1))
        first.close()
        assert not any(folder.exists() for folder in folders)
        assert all(folder.is_dir() for folder in scratch(second))
        assert not nanny.filters, "the second cluster may still have news"
        assert dask.config.get("distributed.worker.daemon") is False
    assert settings() == before


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def seen_by(client: Client) -> Counter[tuple[str | None, float]]:
    """Return how many workers have each pair of visible devices and GPU resource."""
    visible = client.run(lambda: os.environ.get("CUDA_VISIBLE_DEVICES"))
    workers = client.scheduler_info(n_workers=-1)["workers"]
    return Counter(
        (visible[address], worker["resources"].get("GPU", 0)) for address, worker in workers.items()
    )


def is_added(news: Any) -> bool:
    return isinstance(news, dict) and news.get("action") == "add-worker"


def new_study(folder: Path, **options: Any) -> dt.Study:
    return dt.create_study(Where, name="where", storage=folder, metric="loss", **options)


def grid() -> Any:
    return dt.algos.Grid(dt.Space(lr=[Constant(0.1), Constant(0.2)]), max_steps=2)


def test_there_is_a_core() -> None:
    assert available_cores() >= 1


@pytest.mark.cluster
@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("workers", "gpus_per_worker", "expected"),
    [
        (None, 1, {("0", 1): 1, ("1", 1): 1}),
        (None, 0.5, {("0", 0.5): 2, ("1", 0.5): 2}),
        (2, 0.5, {("0", 0.5): 1, ("1", 0.5): 1}),
        (None, 2, {("0,1", 2): 1}),
        (1, 0, {("0,1", 0): 1}),
    ],
)
def test_each_worker_sees_its_own_gpus(
    workers: int | None, gpus_per_worker: float, expected: dict[tuple[str, float], int]
) -> None:
    with local_client(workers, gpus_per_worker=gpus_per_worker) as client:
        assert seen_by(client) == expected
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"


@pytest.mark.cluster
@pytest.mark.usefixtures("two_gpus")
def test_workers_that_share_a_gpu_have_all_of_it() -> None:
    with local_client(3, gpus_per_worker=1, trials_per_gpu=2) as client:
        assert seen_by(client) == {("0", 1): 2, ("1", 1): 1}
        shared = client.run(lambda: os.environ["DASKTUNE_DEVICE"])
        visible = client.run(lambda: os.environ["CUDA_VISIBLE_DEVICES"])
    assert shared == visible


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("gpus_per_worker", "trials_per_gpu", "message"),
    [
        (0.5, 2, "trials_per_gpu=2 must come with gpus_per_worker=1, got 0.5"),
        (0, 3, "trials_per_gpu=3 must come with gpus_per_worker=1, got 0"),
        (1, 0, "trials_per_gpu must be an int >= 1, got 0"),
        (1, True, "trials_per_gpu must be an int >= 1, got True"),
    ],
)
def test_trials_share_whole_gpus_only(
    tmp_path: Path, gpus_per_worker: float, trials_per_gpu: int, message: str
) -> None:
    options = {"gpus_per_worker": gpus_per_worker, "trials_per_gpu": trials_per_gpu}
    with pytest.raises(ConfigurationError, match=message), local_client(1, **options):
        raise AssertionError
    with pytest.raises(ConfigurationError, match=message):
        new_study(tmp_path).optimize(
            grid(), gpus_per_worker=gpus_per_worker, trials_per_gpu=trials_per_gpu, check=False
        )


@pytest.mark.cluster
@pytest.mark.usefixtures("two_gpus")
def test_a_worker_that_was_killed_comes_back_with_its_gpu() -> None:
    with local_client(2, gpus_per_worker=1) as client:
        before = client.run(os.getpid)
        victim = next(iter(before))
        back = threading.Event()
        client.subscribe_topic("all", lambda event: is_added(event[1]) and back.set())
        os.kill(before[victim], signal.SIGKILL)
        assert back.wait(60)
        assert seen_by(client) == {("0", 1): 1, ("1", 1): 1}


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("workers", "gpus_per_worker", "message"),
    [
        (3, 1, r"3 workers with gpus_per_worker=1 .* there are 2 \(0, 1\) here"),
        (None, 3, r"a worker with gpus_per_worker=3 .* there are 2 \(0, 1\) here"),
        (5, 0.5, r"5 workers with gpus_per_worker=0.5"),
        (1, 1.5, "gpus_per_worker must be a whole number, or a fraction below 1, got 1.5"),
        (1, -1, "gpus_per_worker must be"),
        (0, 1, "workers must be an int >= 1, got 0"),
    ],
)
def test_gpus_that_are_not_there_are_refused(
    workers: int | None, gpus_per_worker: float, message: str
) -> None:
    with (
        pytest.raises(ConfigurationError, match=message),
        local_client(workers, gpus_per_worker=gpus_per_worker),
    ):
        pass


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(
    ("needs", "gpus_per_worker", "message"),
    [
        ({"GPU": 1}, None, r"stages need a GPU \(needs: GPU=1\), and none is here"),
        ({"GPU": 1}, 1, "there is none here"),
        ({"GPU": 1}, 0, r"stages need 1 GPUs .* each worker would have gpus_per_worker=0"),
        ([{"GPU": 1}, {"GPU": 2, "tags": "a"}], None, r"\(needs: GPU=1 or GPU=2, tag a\)"),
        ({"GPU": 1, "disk": 2}, None, "stages need disk, which workers of this host do not have"),
        (None, 1, "there is none here"),
    ],
)
def test_missing_gpus_are_refused_before_a_cluster_starts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    needs: dict[str, float] | None,
    gpus_per_worker: float | None,
    message: str,
) -> None:
    def start(*arguments: Any, **keywords: Any) -> None:
        raise AssertionError("a cluster was started")

    monkeypatch.setattr("dasktune._cluster.local.LocalCluster", start)
    study = new_study(tmp_path, needs=needs)
    with pytest.raises(ConfigurationError, match=message):
        study.optimize(grid(), gpus_per_worker=gpus_per_worker)
    assert not study.trials


@pytest.mark.cluster
@pytest.mark.usefixtures("two_gpus")
def test_a_study_that_needs_gpus_gets_a_worker_for_each(tmp_path: Path) -> None:
    study = new_study(tmp_path, needs={"GPU": 1})
    study.optimize(grid(), progress=False, last_line=False)
    # No torch is imported by the workers, so that the GPUs are believed.
    assert {trial.metrics[2]["gpu"] for trial in study.trials} == {1.0}


def plan(folder: Path, needs: dict[str, float]) -> JobPlan:
    return JobPlan(
        run="r",
        code=pack(Where),
        config={},
        seed=0,
        store=str(folder),
        report_every=1,
        needs=Needs.of(needs),
    )


open_here = partial(open_job, describe=lambda device: {})
"""Opens a job without asking a torch that only counts GPUs for its version."""


def torch_that_counts(count: int) -> Any:
    cuda = SimpleNamespace(is_available=lambda: count > 0)
    return SimpleNamespace(cuda=cuda, _C=SimpleNamespace(_cuda_getDeviceCount=lambda: count))


def test_a_process_whose_torch_took_all_gpus_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setitem(sys.modules, "torch", torch_that_counts(2))
    with pytest.raises(ClusterError, match="only under `if __name__ == '__main__':`"):
        open_here(plan(tmp_path, {}), {"GPU": 1})
    monkeypatch.setitem(sys.modules, "torch", torch_that_counts(1))
    assert open_here(plan(tmp_path, {}), {"GPU": 1}).device == "cuda"


def test_a_worker_of_dask_cuda_trains_on_its_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "dask_cuda", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "torch", torch_that_counts(2))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    assert open_here(plan(tmp_path, {}), {}).device == "cuda"
    monkeypatch.setitem(sys.modules, "torch", torch_that_counts(0))
    assert open_here(plan(tmp_path, {}), {}).device == "cpu"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setitem(sys.modules, "torch", torch_that_counts(2))
    assert open_here(plan(tmp_path, {}), {}).device == "cpu"


def test_job_names_the_gpu_that_it_trains_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {each: Gpu(model="H100", nbytes=2**36, uuid=f"GPU-{each}") for each in "01"}
    monkeypatch.setattr(hardware, "gpu_of", known.get)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    monkeypatch.setitem(sys.modules, "torch", torch_that_counts(2))
    assert open_here(plan(tmp_path, {}), {"GPU": 1}).gpu == "GPU-1"
    assert open_here(plan(tmp_path, {}), {}).gpu == ""
    monkeypatch.setitem(sys.modules, "torch", torch_that_counts(0))
    assert open_here(plan(tmp_path, {}), {"GPU": 1}).gpu == ""


SCRIPT = """
from dasktune._cluster.local import local_client

with local_client(1):
    pass
"""


@pytest.mark.process
@pytest.mark.cluster
@pytest.mark.skipif(
    Version(distributed.__version__) < Version("2026.8"),
    reason="older versions of Dask wait for a worker that has ended at its start",
)
def test_script_without_a_main_guard_gets_advice(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    ended = subprocess.run(
        [sys.executable, str(script)], check=False, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 1
    start = "dasktune.errors.ClusterError: local workers could not be started"
    told = [line for line in ended.stderr.splitlines() if line.startswith(start)]
    assert told
    assert "outside `if __name__ == '__main__':`, move it there" in told[-1]

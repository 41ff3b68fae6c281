"""The process of a job: workers that are told once, started again, and do not outlive it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dasktune._worker.shared_device import SHARED_DEVICE
from dasktune.errors import ConfigurationError
from dasktune.slurm import launch as launching
from dasktune.slurm.launch import device_shares
from tests.holding import wait_until

pytestmark = pytest.mark.process

WORKER = """
import os, signal, sys, time
name = sys.argv[sys.argv.index("--name") + 1]
def note(*words):
    with open(f"{name}.log", "a") as file:
        print(*words, file=file)
def end(number, _):
    note("told", number)
    time.sleep(0.3)  # a second signal would be noted, too
    note("saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
note("began", os.getpid(), os.environ.get("CUDA_VISIBLE_DEVICES"), *sys.argv[1:])
note("shares", os.environ.get("DASKTUNE_DEVICE"))
if os.environ.get("FAILS") == name:
    sys.exit(3)
while True:
    signal.pause()
"""

LAUNCHER = """
import sys
from dasktune.slurm import launch
launch.WORKER, launch.RELAUNCH_SECONDS = "worker", float(sys.argv[1])
sys.exit(launch.main(sys.argv[2:]))
"""


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Return a function that starts a job whose workers only write what happens to them."""
    (tmp_path / "worker.py").write_text(WORKER)
    started = []

    def start(*arguments: str, again: float = 30.0, **environment: str) -> subprocess.Popen[str]:
        path = os.pathsep.join([str(tmp_path), *sys.path])
        process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, str(again), *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path, **environment},
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def lines_of(folder: Path, name: str) -> list[list[str]]:
    path = folder / f"{name}.log"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def is_alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_launch_gives_workers_names_devices_and_shared_arguments(
    tmp_path: Path, launch: Callable[..., subprocess.Popen[str]]
) -> None:
    shared = ("--workers", "2", "--gpus-per-worker", "1", "--sharers", "1")
    launch(*shared, "tcp://there:1", "--name", "job", "--nthreads", "1", CUDA_VISIBLE_DEVICES="4,7")
    wait_until(lambda: all(len(lines_of(tmp_path, f"job-{n}")) == 2 for n in (0, 1)))
    for name, device in (("job-0", "4"), ("job-1", "7")):
        began, shares = lines_of(tmp_path, name)
        assert shares == ["shares", "None"]
        assert began[2] == device
        assert began[3:] == ["tcp://there:1", "--nthreads", "1", "--no-nanny", "--name", name]


def test_launch_names_the_device_that_workers_share(
    tmp_path: Path, launch: Callable[..., subprocess.Popen[str]]
) -> None:
    shared = ("--workers", "4", "--gpus-per-worker", "1", "--sharers", "2", "--is-measured")
    environment = {"CUDA_VISIBLE_DEVICES": "0,3", "SLURM_JOB_ID": "17"}
    launch(*shared, "tcp://there:1", "--name", "job", **environment)
    names = [f"job-{number}" for number in range(4)]
    wait_until(lambda: all(len(lines_of(tmp_path, name)) == 2 for name in names))
    lines = [lines_of(tmp_path, name) for name in names]
    assert [began[2] for began, _ in lines] == ["0", "0", "3", "3"]
    assert [" ".join(shares[1:]) for _, shares in lines] == [
        *["job 17, GPU 0"] * 2,
        *["job 17, GPU 3"] * 2,
    ]
    assert launching.SHARED_DEVICE == SHARED_DEVICE


def test_launch_signals_each_worker_once_and_waits_for_it(
    tmp_path: Path, launch: Callable[..., subprocess.Popen[str]]
) -> None:
    job = launch("--workers", "2", "--name", "job")
    wait_until(lambda: all(len(lines_of(tmp_path, f"job-{n}")) == 2 for n in (0, 1)))
    job.send_signal(signal.SIGTERM)
    wait_until(lambda: len(lines_of(tmp_path, "job-0")) > 2)
    job.send_signal(signal.SIGTERM)
    assert job.wait(30) == 0
    for name in ("job-0", "job-1"):
        assert lines_of(tmp_path, name)[2:] == [["told", str(int(signal.SIGTERM))], ["saved"]]


def test_a_worker_that_dies_is_started_again(
    tmp_path: Path, launch: Callable[..., subprocess.Popen[str]]
) -> None:
    job = launch("--workers", "2", "--name", "job", again=0.0)
    wait_until(lambda: all(len(lines_of(tmp_path, f"job-{n}")) == 2 for n in (0, 1)))
    os.kill(int(lines_of(tmp_path, "job-0")[0][1]), signal.SIGKILL)
    wait_until(lambda: len(lines_of(tmp_path, "job-0")) == 4)
    job.send_signal(signal.SIGTERM)
    assert job.wait(30) == 0
    assert len(lines_of(tmp_path, "job-1")) == 4, "the other went on"


def test_one_that_dies_at_once_is_not_and_the_job_says_so(
    tmp_path: Path, launch: Callable[..., subprocess.Popen[str]]
) -> None:
    job = launch("--workers", "2", "--name", "job", FAILS="job-1")
    assert job.stderr is not None
    assert job.stderr.readline() == "worker job-1 ended with 3\n"
    wait_until(lambda: lines_of(tmp_path, "job-0"))
    job.send_signal(signal.SIGTERM)
    assert job.wait(30) == 1
    assert len(lines_of(tmp_path, "job-1")) == 2
    assert lines_of(tmp_path, "job-0")[-1] == ["saved"]


def test_workers_end_with_a_job_that_is_killed(
    tmp_path: Path, launch: Callable[..., subprocess.Popen[str]]
) -> None:
    job = launch("--workers", "1", "--name", "job")
    wait_until(lambda: lines_of(tmp_path, "job"))
    pid = lines_of(tmp_path, "job")[0][1]
    job.kill()
    job.wait(30)
    wait_until(lambda: not is_alive(pid))


def test_launch_refuses_too_few_gpus_before_workers_start(
    tmp_path: Path, launch: Callable[..., subprocess.Popen[str]]
) -> None:
    job = launch(
        *("--workers", "2", "--gpus-per-worker", "2", "--name", "job"), CUDA_VISIBLE_DEVICES="0,1"
    )
    _, errors = job.communicate(timeout=30)
    assert job.returncode == 1
    assert errors == "the job must see 4 GPUs for its 2 workers, got CUDA_VISIBLE_DEVICES=0,1\n"
    assert not lines_of(tmp_path, "job-0")


@pytest.mark.parametrize(
    ("visible", "workers", "each", "sharers", "shares"),
    [
        ("", 2, 0, 1, [None, None]),
        ("0,1,2,3", 2, 2, 1, ["0,1", "2,3"]),
        ("5,2", 6, 1, 3, ["5", "5", "5", "2", "2", "2"]),
        ("MIG-a,MIG-b", 2, 1, 1, ["MIG-a", "MIG-b"]),
    ],
)
def test_devices_are_shared_out(
    visible: str, workers: int, each: int, sharers: int, shares: list[str | None]
) -> None:
    assert device_shares(visible, workers, each, sharers) == shares


def test_device_shares_without_devices_names_the_variable() -> None:
    with pytest.raises(ConfigurationError, match=r"see 1 GPUs .* CUDA_VISIBLE_DEVICES=\(not set\)"):
        device_shares("", 2, 1, 2)

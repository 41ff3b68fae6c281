"""The main process of a job: starts the workers and forwards SLURM's signals to them.

SLURM signals only the job's main process that the job will end. Workers get the signal once,
however often SLURM repeats it: a second one would end a worker that is still saving. This module
imports only the standard library, because its process stays beside the workers until they end.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from dasktune._engine.timeouts import RELAUNCH_SECONDS
from dasktune.errors import ConfigurationError

DEVICES = "CUDA_VISIBLE_DEVICES"

SHARED_DEVICE = "DASKTUNE_DEVICE"
"""As in `dasktune._worker.shared_device`, which imports much."""

WORKER = "distributed.cli.dask_worker"
"""The module of the worker command."""

ENDING = (signal.SIGTERM, signal.SIGINT)
"""Signals that the workers get, too."""

PR_SET_PDEATHSIG = 1


def main(arguments: Sequence[str]) -> int:
    """Run the workers of a job to their end; return the exit code of the job."""
    parser = argparse.ArgumentParser(prog="dasktune.slurm.launch", allow_abbrev=False)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--gpus-per-worker", type=int, default=0)
    parser.add_argument("--sharers", type=int, default=1)
    parser.add_argument("--is-measured", action="store_true")
    parser.add_argument("--name", required=True)
    parser.add_argument("--local-directory")
    given, others = parser.parse_known_args(arguments)
    names = worker_names(given.name, given.workers)
    try:
        shares = device_shares(
            os.environ.get(DEVICES, ""), given.workers, given.gpus_per_worker, given.sharers
        )
        if given.local_directory:
            others += ["--local-directory", own_folder(given.local_directory)]
    except ConfigurationError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return WorkerProcesses(names, shares, others, is_measured=given.is_measured).run()


def worker_names(job: str, workers: int) -> list[str]:
    """Return the names of a job's workers, as dask-jobqueue expects them."""
    return [job] if workers == 1 else [f"{job}-{number}" for number in range(workers)]


def own_folder(above: str) -> str:
    """Return the folder of this user's temporary files, made if need be.

    Dask imports from where its workers keep their files: nobody else may write there.

    Raises
    ------
    ConfigurationError
        If it belongs to another user.
    """
    path = os.path.join(above, f"dasktune-{os.getuid()}")
    os.makedirs(above, exist_ok=True)
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
    status = os.lstat(path)
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    if not is_own or status.st_mode & 0o022:
        raise ConfigurationError(
            f"{path} must be a folder of this user, to which nobody else may write; give another "
            "local_directory"
        )
    return path


def device_shares(visible: str, workers: int, each: int, sharers: int) -> list[str | None]:
    """Return the devices that each worker sees; None where it keeps what the job sees.

    Parameters
    ----------
    visible
        What the job sees, as in ``CUDA_VISIBLE_DEVICES``.
    each
        Devices of a worker; 0 if it needs none.
    sharers
        How many workers share those.

    Examples
    --------
    >>> device_shares("0,2", workers=4, each=1, sharers=2)
    ['0', '0', '2', '2']

    Raises
    ------
    ConfigurationError
        If there are too few.
    """
    if each == 0:
        return [None] * workers
    devices = [device for device in visible.split(",") if device]
    needed = each * -(-workers // sharers)
    if len(devices) < needed:
        raise ConfigurationError(
            f"the job must see {needed} GPUs for its {workers} workers, "
            f"got {DEVICES}={visible or '(not set)'}"
        )
    first = [number // sharers * each for number in range(workers)]
    return [",".join(devices[at : at + each]) for at in first]


class Running(NamedTuple):
    """A worker process, and when it began (seconds of the monotonic clock)."""

    name: str
    process: subprocess.Popen[bytes]
    began: float


class WorkerProcesses:
    """The worker processes of a job.

    Parameters
    ----------
    shares
        The devices of each worker; None for those of the job.
    arguments
        Of ``dask worker``, without a name.
    is_measured
        Whether only as many workers of one device train at a time as that pays, by measurement.
    """

    def __init__(
        self,
        names: Sequence[str],
        shares: Sequence[str | None],
        arguments: Sequence[str],
        *,
        is_measured: bool = False,
    ) -> None:
        self._commands = {
            name: [sys.executable, "-m", WORKER, *arguments, "--no-nanny", "--name", name]
            for name in names
        }
        self._environments = {
            name: environment_of(share, is_measured=is_measured)
            for name, share in zip(names, shares, strict=True)
        }
        self._running: dict[int, Running] = {}
        self._is_ending = False

    def run(self) -> int:
        """Run all workers to their end, and return the highest exit code."""
        for number in ENDING:
            signal.signal(number, self._pass_on)
        for name in self._commands:
            self._start(name)
        worst = 0
        while self._running:
            worst = max(worst, self._wait())
        return worst

    def _start(self, name: str) -> None:
        # A signal between the start of the process and its entry in _running would miss it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        try:
            if not self._is_ending:
                process = _started(self._commands[name], self._environments[name], before)
                self._running[process.pid] = Running(name, process, time.monotonic())
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _wait(self) -> int:
        """Wait for a worker to end; return its exit code, 0 if it is started again."""
        pid, status = os.wait()
        ended = self._running.pop(pid, None)
        if ended is None:
            return 0
        code = ended.process.returncode = os.waitstatus_to_exitcode(status)
        if code == 0 or self._is_ending:
            return 0
        sys.stderr.write(f"worker {ended.name} ended with {code}\n")
        if time.monotonic() - ended.began < RELAUNCH_SECONDS:
            return 1
        self._start(ended.name)
        return 0

    def _pass_on(self, number: int, _: object) -> None:
        if self._is_ending:
            return
        self._is_ending = True
        for pid in self._running:
            # Popen.send_signal would also reap a process, which `_wait` must do.
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def environment_of(devices: str | None, *, is_measured: bool) -> Mapping[str, str]:
    """Return the environment of a worker that sees these devices.

    The indices of GPUs repeat in each job of a node, so the name of a shared one has the job's id.
    """
    if devices is None:
        return dict(os.environ)
    job = os.environ.get("SLURM_JOB_ID", "")
    shared = {SHARED_DEVICE: f"job {job}, GPU {devices}"} if is_measured else {}
    return {**os.environ, DEVICES: devices, **shared}


def _started(
    command: Sequence[str], environment: Mapping[str, str], mask: Iterable[int]
) -> subprocess.Popen[bytes]:
    """Start a worker in its own session; it ends with this process."""
    libc = ctypes.CDLL(None)

    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if hasattr(libc, "prctl"):
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    return subprocess.Popen(command, env=environment, start_new_session=True, preexec_fn=prepare)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

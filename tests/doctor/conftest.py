"""Workers of any kind, each a process: with its own environment, folders and options."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import dask
import pytest
from distributed import Client, LocalCluster

from dasktune._cluster.local import LOCAL_SETTINGS

ROOT = Path(__file__).parents[2]


@dataclass
class Cluster:
    """A scheduler on loopback, and what was started for it."""

    connected: Client
    folder: Path
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def client(self) -> Client:
        """Its client, once all that was started are there."""
        if self.workers:
            self.connected.wait_for_workers(len(self.workers), timeout=60)
        return self.connected

    def start(
        self,
        *options: str,
        env: Mapping[str, str] | None = None,
        mounts: str = "",
        path: Sequence[Path] = (),
    ) -> subprocess.Popen[bytes]:
        """Start a worker; it is waited for when the client is used.

        `mounts` are commands of a shell that sees file systems of its own; what lies in `path`
        is imported first.
        """
        number = len(self.workers)
        scheduler = self.connected.scheduler
        assert scheduler is not None
        command = [sys.executable, "-m", "distributed.cli.dask_worker", scheduler.address]
        command += ["--no-nanny", "--nthreads", "1", "--memory-limit", "0", "--host", "127.0.0.1"]
        command += ["--no-dashboard", "--local-directory", str(self.folder / f"worker-{number}")]
        command += ["--name", f"worker-{number}", *options]
        if mounts:
            command = ["unshare", "-m", "sh", "-ec", f'{mounts}; exec "$@"', "sh", *command]
        places = os.pathsep.join([*map(str, path), str(ROOT)])
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": places, **(env or {})}
        with (self.folder / f"worker-{number}.log").open("wb") as log:
            process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, cwd=self.folder
            )
        self.workers.append(process)
        return process


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {**LOCAL_SETTINGS, "temporary-directory": str(tmp_path_factory.mktemp("dask"))}
    with (
        dask.config.set(settings),
        LocalCluster(
            n_workers=0,
            processes=False,
            host="127.0.0.1",
            protocol="tcp://",
            dashboard_address="127.0.0.1:0",
        ) as scheduler,
        Client(scheduler) as client,
    ):
        made = Cluster(client, tmp_path_factory.mktemp("workers"))
        try:
            yield made
        finally:
            for process in made.workers:
                process.kill()
                process.wait()

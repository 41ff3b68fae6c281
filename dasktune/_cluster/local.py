"""Clusters of processes on this host: one when none is given."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import dask
import distributed.utils
from distributed import Client, LocalCluster, Nanny

from dasktune._cluster import fork_server
from dasktune._numbers import whole_of
from dasktune._worker.gpus import VISIBLE, shared_out, sharing_problems, visible_gpus
from dasktune._worker.shared_device import SHARED_DEVICE
from dasktune.errors import ClusterError, ConfigurationError, refuse

LOCAL_SETTINGS = {
    "distributed.worker.daemon": False,
    "distributed.scheduler.work-stealing": False,
    "distributed.scheduler.allowed-failures": 0,
    "distributed.scheduler.no-workers-timeout": "60s",
    "distributed.scheduler.worker-ttl": "60s",
    "distributed.admin.tick.limit": "30s",
    **{
        f"distributed.nanny.pre-spawn-environ.{name}": value
        for name, value in fork_server.OWN_ENVIRONMENT.items()
    },
}
"""Data loaders may have processes, and Dask neither moves nor repeats a stage by itself."""


METHOD = "distributed.worker.multiprocessing-method"
"""Dask's setting: how the processes of workers are started."""

_NANNY = logging.getLogger("distributed.nanny")


class _SharedSettings:
    """Dask's settings for local clusters, until the last cluster of this process has ended.

    They are those of the process: set by two threads, the first to end would take them from the
    other, and the last would leave them behind.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clusters = 0
        self._reset = ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            if not self._clusters:
                self._reset.enter_context(dask.config.set(LOCAL_SETTINGS))
            self._clusters += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._clusters -= 1
            if not self._clusters:
                self._reset.close()


_SETTINGS = _SharedSettings()


class GpuNanny(Nanny):
    """Starts a worker that sees only its own GPUs, of which `gpus` has those of each, by number.

    `is_shared`: several workers see the same GPU, and only as many train on it as that pays.
    """

    def __init__(
        self, scheduler: str, *, name: int, gpus: list[str], is_shared: bool, **keywords: Any
    ) -> None:
        env = {VISIBLE: gpus[name], **({SHARED_DEVICE: gpus[name]} if is_shared else {})}
        super().__init__(scheduler, name=name, env=env, **keywords)


@contextmanager
def local_client(
    workers: int | None = None,
    *,
    gpus_per_worker: float = 0,
    trials_per_gpu: int = 1,
    dashboard: bool = True,
) -> Iterator[Client]:
    """Give a client of a new local cluster: one single-threaded process per slot.

    Parameters
    ----------
    workers
        How many; if None as many as there are cores, or as the GPUs allow. All ports are on
        loopback.
    gpus_per_worker
        GPUs that each worker has for itself, or the share of one such as 0.5, which two
        workers have then. A worker sees no other GPU, and has them as its resource ``GPU``.
        Of those that ``CUDA_VISIBLE_DEVICES`` names here, if it is set.
    trials_per_gpu
        Most trials that may train on one GPU at a time, each in a worker of its own. How many of
        them do is measured: one more is tried where memory is known to have room, and stays if
        the GPU then trains more steps a second. More than 1 is for ``gpus_per_worker=1``.
    dashboard
        Whether Dask serves its own dashboard, at ``client.dashboard_link``.

    Raises
    ------
    ConfigurationError
        If there are not so many GPUs, or more trials of a GPU with parts or several GPUs.
    ClusterError
        If the processes cannot be started.
    """
    if workers is not None and whole_of(workers) is None:
        raise ConfigurationError(f"workers must be an int >= 1, got {workers!r}")
    refuse(sharing_problems(trials_per_gpu, gpus_per_worker))
    count, keywords = workers or available_cores(), dict[str, Any]()
    if gpus_per_worker:
        gpus = shared_out(visible_gpus() * trials_per_gpu, gpus_per_worker, workers)
        count, keywords = len(gpus), {"worker_class": GpuNanny, "gpus": gpus}
        keywords["is_shared"] = trials_per_gpu > 1
        keywords["resources"] = {"GPU": gpus_per_worker}
    with (
        tempfile.TemporaryDirectory(prefix="dasktune-") as scratch,
        _SETTINGS,
        ExitStack() as stack,
    ):
        if not gpus_per_worker:
            stack.enter_context(_forked_workers())

        def is_grave(record: logging.LogRecord) -> bool:  # its own: other clusters may go on
            return record.levelno >= logging.ERROR

        stack.callback(_NANNY.removeFilter, is_grave)
        with fork_server.ctrl_c_held_back():
            cluster = stack.enter_context(_cluster(count, scratch, dashboard, **keywords))
        client = stack.enter_context(Client(cluster))
        client.run(_say_only_what_is_grave)
        # All is saved when a run ends: that a process is slow to end then is no news.
        stack.callback(_NANNY.addFilter, is_grave)
        yield client


@contextmanager
def _forked_workers() -> Iterator[None]:
    """Have workers forked while this lasts, if they can be."""
    fork_server.start()
    is_served = fork_server.serves(_pre_spawn_environment())
    if dask.config.get(METHOD) != "spawn" or not is_served:
        yield
        return
    distributed.utils._forkserver_preload_set = True  # else pandas is imported here, too
    with dask.config.set({METHOD: "forkserver"}):
        yield


def _pre_spawn_environment() -> dict[str, str]:
    """Return the variables that Dask sets before it starts a worker."""
    settings = dask.config.get("distributed.nanny.pre-spawn-environ")
    return {
        name: os.environ.get(name, str(value))
        for name, value in settings.items()
        if value is not None
    }


def _say_only_what_is_grave() -> None:
    """Keep a worker that is closing from writing that it misses its scheduler.

    What goes wrong in a stage is told by the stage.
    """
    logging.getLogger("distributed.worker").setLevel(logging.CRITICAL)


def _cluster(workers: int, scratch: str, dashboard: bool, **keywords: Any) -> LocalCluster:
    try:
        return LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            memory_limit=0,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            local_directory=scratch,
            scheduler_kwargs={"local_directory": scratch, "dashboard": dashboard},
            **keywords,
        )
    except RuntimeError as error:
        raise ClusterError(
            f"local workers could not be started: {error} If a script runs its study outside "
            "`if __name__ == '__main__':`, move it there: each worker process reads the script, too"
        ) from error


def available_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

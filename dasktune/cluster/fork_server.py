"""The fork server: local workers are forked from a process that has imported what they need.

A new interpreter imports Dask and dasktune for most of a second. The fork server of Python does it
once, beside what the driver does before it needs workers, and a lost worker is replaced at once.
Each worker still reads the user's script by itself, as one that is a new interpreter. Forked
processes have the hash seed and the memory allocator of the server, which are set at its start.

It is for Linux and for workers without GPUs. A server that other code has started is left alone.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker

from dasktune.trainer.check_switch import is_on

SWITCH = "DASKTUNE_FORK"
"""The environment variable: ``on``, which is the default, or ``off``: workers are interpreters."""

IS_SAFE = sys.platform.startswith("linux") and sys.version_info >= (3, 11, 1)
"""Before that version, other users of the host could speak to the server [CVE-2022-42919]."""

LIBRARIES = (
    *("distributed.nanny", "dasktune.worker.host", "dasktune.worker.plugin"),
    "dasktune.cluster.forked",  # the last
)
"""The modules that the server imports."""

BY_DRIVER = ("torch",)
"""Those that it imports if the driver has them: they run no thread before they are used."""

OWN_ENVIRONMENT = {
    # Dask's own value gives freed memory back at once: tensors of every step are then new
    # pages, and a third of the time of small networks goes there.
    "MALLOC_TRIM_THRESHOLD_": str(2**28),
    "MALLOC_MMAP_THRESHOLD_": str(2**28),
    # Or a script that asks at its top whether there is a GPU settles, in each worker that
    # reads it, which ones torch sees there: before the worker is told which are its own.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}
"""The variables that local workers have from their start on."""

ENVIRONMENT = {
    **OWN_ENVIRONMENT,
    **{f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")},
    "PYTHONHASHSEED": "6640",
}
"""Those with the ones that Dask sets."""

_STARTED: dict[str, str] = {}
"""Those variables of the server that was started here; empty if none was."""


def start() -> None:
    """Start the server, if it may be used; it imports while the caller goes on."""
    is_known = forkserver._forkserver._forkserver_pid is not None  # type: ignore[attr-defined]
    if is_known or not IS_SAFE or not is_on(SWITCH):
        return
    loaded = [name for name in BY_DRIVER if name in sys.modules]
    forkserver.set_forkserver_preload([*loaded, *LIBRARIES])
    environment = {name: os.environ.get(name, value) for name, value in ENVIRONMENT.items()}
    with ctrl_c_held_back(), _environment(environment):
        forkserver.ensure_running()
    _STARTED.update(environment)


def serves(environment: Mapping[str, str]) -> bool:
    """Return whether workers of the server have these variables from their start on."""
    return bool(_STARTED) and {**_STARTED, **environment} == _STARTED


@contextmanager
def ctrl_c_held_back() -> Iterator[None]:
    """Hold SIGINT back: from this thread for a while, from what is started here for good.

    A terminal sends it to all its processes, and workers must live on to save what they
    have. Threads and processes take over the signal mask of the thread that starts them.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # Would be started with the first worker, and lifts the mask for it (Python 3.11).
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables for processes that are started meanwhile."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value

"""The fork server: local workers are forked from a process that has imported what they need.

A new interpreter imports Dask and dasktune for most of a second. The fork server of Python does it
once, beside what the driver does before it needs workers, and a lost worker is replaced at once.
Each worker still reads the user's script by itself, as one that is a new interpreter. Forked
processes have the environment of the server: if it has changed since, workers are interpreters.

It is for Linux and for workers without GPUs. A server that other code has started, or chosen
modules for, is left alone.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from typing import Any

from dasktune.trainer.check_switch import is_on

SWITCH = "DASKTUNE_FORK"
"""The environment variable: ``on``, which is the default, or ``off``: workers are interpreters."""

IS_SAFE = sys.platform.startswith("linux") and (3, 11, 1) <= sys.version_info < (3, 14)
"""Before these versions, other users of the host could speak to the server [CVE-2022-42919].

From 3.14 on, Python starts all processes from its one server: it must be as the user wants it.
"""

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
}
"""Those with the ones that Dask sets unless this process has them."""

MAIN = ["__main__"]
"""What a server imports of which nobody has asked anything."""

REPLACED = "DASKTUNE_FORK_REPLACED"
"""The variable that tells the server which variables it has for its own imports alone."""

_STARTED: dict[str, str] = {}
"""All variables of the server that this process has started; empty if none was."""

if hasattr(os, "register_at_fork"):
    # Python asks for the state of the server as its child: a fork has none.
    os.register_at_fork(after_in_child=_STARTED.clear)


def start() -> None:
    """Start the server, if it may be used; it imports while the caller goes on."""
    server: Any = forkserver._forkserver
    is_taken = server._forkserver_pid is not None or server._preload_modules != MAIN
    if is_taken or not IS_SAFE or not is_on(SWITCH):
        return
    loaded = [name for name in BY_DRIVER if name in sys.modules]
    forkserver.set_forkserver_preload([*loaded, *LIBRARIES])
    variables = _variables()
    try:
        with ctrl_c_held_back(), _environment({**variables, **_for_imports()}):
            forkserver.ensure_running()
    except OSError:  # the path of the folder of temporary files is too long for a socket, say
        forkserver.set_forkserver_preload(MAIN)
    else:
        _STARTED.update(variables)


def serves(environment: Mapping[str, str]) -> bool:
    """Return whether a worker that starts now, with these variables, has those of the server."""
    return {**_variables(), **environment} == _STARTED


def _variables() -> dict[str, str]:
    """Return the variables that Dask gives a new interpreter."""
    always = {"PYTHONHASHSEED": "6640", "__DASK_PARENT_PID": str(os.getpid())}
    return {**ENVIRONMENT, **os.environ, **always}


def _for_imports() -> dict[str, str]:
    """Return variables with which the server finds the modules that this process finds.

    Else modules in the working folder come first, whatever they are (Python 3.11).
    """
    path = os.pathsep.join(os.path.abspath(folder) for folder in sys.path)
    replaced = {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    return {**replaced, REPLACED: json.dumps({name: os.environ.get(name) for name in replaced})}


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

"""The fork server: local workers are forked from a process that has imported what they need.

A new interpreter needs most of a second to import Dask and dasktune. Python's fork server imports
them once, while the driver prepares its study; a lost worker is then replaced at once. Each worker
still reads the user's script, as a new interpreter does. Forked processes have the environment,
the limits and the CPUs of the server: if the driver's have changed since, workers start as new
interpreters.

If the trainer uses a library that imports slowly, such as torch, the server starts already when a
study is created. If variables, limits or CPUs have changed by the first run, this run replaces it.

It is for Linux and for workers without GPUs. A server that other code has started, or chosen
modules for, is left alone.
"""

from __future__ import annotations

import atexit
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker
from types import FunctionType, ModuleType
from typing import Any

import psutil
from distributed import default_client

from dasktune.trainer.check_switch import is_on
from dasktune.trainer.fingerprint.installed import is_installed

SWITCH = "DASKTUNE_FORK"
"""The environment variable: ``on``, the default, or ``off``: workers are new interpreters."""

IS_SAFE = sys.platform.startswith("linux") and (3, 11, 1) <= sys.version_info < (3, 14)
"""Before 3.11.1, other users of the host could connect to the server [CVE-2022-42919].

From 3.14 on, Python by default starts all processes from this server: it is the user's to set up.
"""

FIRST = "dasktune._cluster.importing"
"""The first import of the server, which makes the others quicker."""

LIBRARIES = (
    *("distributed.nanny", "dasktune._worker.host", "dasktune._worker.plugin"),
    "dasktune._cluster.forked",  # the last
)
"""The modules that the server imports."""

BY_DRIVER = ("torch",)
"""Modules that it imports if the driver has: importing them starts no thread."""

OF_TRAINERS = ("lightgbm", "lightning", "pandas", "scipy", "sklearn", "torch", "xgboost")
"""Libraries that it imports if the trainer's module refers to them: they start no thread, too."""

WITH_OPTIMIZERS = "torch._dynamo"
"""What torch itself imports when the first optimizer is made, for longer than torch."""

CACHE_OF_TORCH = "TORCHINDUCTOR_CACHE_DIR"
"""A variable that `WITH_OPTIMIZERS` sets where it is imported, if the user has not."""

OWN_ENVIRONMENT = {
    # Dask's own value gives freed memory back at once: tensors of every step are then new
    # pages, and a third of the time of small networks goes there.
    "MALLOC_TRIM_THRESHOLD_": str(2**28),
    "MALLOC_MMAP_THRESHOLD_": str(2**28),
    # Without it, a script that asks at its top whether there is a GPU fixes the GPUs that torch
    # sees in each worker that reads the script: before the worker receives its own GPUs.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}
"""The variables that local workers have from their start on."""

ENVIRONMENT = {
    **OWN_ENVIRONMENT,
    **{f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")},
}
"""The same, and the variables that Dask sets unless this process has them."""

MAIN = ["__main__"]
"""The modules that a server imports by default."""

REPLACED = "DASKTUNE_FORK_REPLACED"
"""The variable with the former values of variables that are set for the server's imports only."""

_STARTED: dict[str, object] = {}
"""The variables and settings with which this process has started a server; empty if it has not."""

_AHEAD: set[int] = set()
"""The number of a server's process, from its early start until the first run; empty otherwise."""

_LOCK = threading.RLock()
"""Held while the server is started or ended."""


def _begin_forked() -> None:
    """Leave behind what belongs to the parent process, after a fork of a driver.

    The server is a child of the parent, not of the forked process, which must not wait for it. A
    fork does not copy the thread in which Dask packs large messages, and Dask's pool believes that
    it still runs. Without a new pool, a study of the forked process would wait for its first
    message for ever.
    """
    _LOCK.release()  # held since before the fork: no other thread of the parent has it
    _STARTED.clear()
    _AHEAD.clear()
    dask_utils: Any = sys.modules.get("distributed.utils")
    if hasattr(dask_utils, "_offload_executor"):
        dask_utils._offload_executor = ThreadPoolExecutor(1, thread_name_prefix="Dask-Offload")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_begin_forked
    )


def libraries_of(user_module: str) -> list[str]:
    """Return the modules of `OF_TRAINERS` to which a trainer's module refers.

    The user's own modules to which it refers are searched, too.
    """
    names, seen, left = set[str](), set[str](), [user_module]
    while left:
        module = sys.modules.get(left.pop())
        if module is None or module.__name__ in seen or is_installed(module):
            continue
        seen.add(module.__name__)
        for name in map(_module_of, list(vars(module).values())):
            if name.partition(".")[0] in OF_TRAINERS and name in sys.modules:
                names.add(name)
            elif name:
                left.append(name)
    uses_torch = any(name.partition(".")[0] == "torch" for name in names)
    return [*sorted(names), WITH_OPTIMIZERS] if uses_torch else sorted(names)


def _module_of(value: object) -> str:
    if isinstance(value, ModuleType):
        return value.__name__
    name = getattr(value, "__module__", None) if isinstance(value, type | FunctionType) else None
    return name if isinstance(name, str) else ""


def start(libraries: Iterable[str] = (), *, is_ahead: bool = False) -> None:
    """Start the server, if it may be used; it imports while the caller goes on.

    `libraries` are imported, too: see `libraries_of`. `is_ahead`: no run uses it so far.
    """
    server: Any = forkserver._forkserver
    with _LOCK:
        if _AHEAD and not serves({}):
            _end_unused()  # the environment has changed since
        is_taken = server._forkserver_pid is not None or server._preload_modules != MAIN
        if is_taken or not IS_SAFE or not is_on(SWITCH):
            is_ahead = is_ahead and server._forkserver_pid in _AHEAD
        else:
            _start([*libraries, *LIBRARIES])
        _AHEAD.clear()
        if is_ahead and _STARTED:
            _AHEAD.add(server._forkserver_pid)


def _start(libraries: Iterable[str]) -> None:
    loaded = [name for name in BY_DRIVER if name in sys.modules]
    forkserver.set_forkserver_preload([FIRST, *loaded, *libraries])
    variables = _variables()
    try:
        with ctrl_c_held_back(), _environment({**variables, **_for_imports()}):
            forkserver.ensure_running()
    except OSError:  # the path of the folder of temporary files is too long for a socket, say
        forkserver.set_forkserver_preload(MAIN)
    else:
        _STARTED.update(inherited())


def start_ahead(user_module: str) -> None:
    """Start the server ahead of a run, if a trainer's module uses what takes long to import.

    Not where a client shows that the cluster is the user's, and not in a process of a worker.
    """
    libraries = libraries_of(user_module)
    if not libraries or multiprocessing.parent_process() is not None:
        return
    with suppress(ValueError):
        default_client()
        return
    start(libraries, is_ahead=True)


def end_unused() -> None:
    """End a server that was started ahead, unless processes were forked from it."""
    with _LOCK:
        _end_unused()


def _end_unused() -> None:
    server: Any = forkserver._forkserver
    if server._forkserver_pid in _AHEAD:
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            if psutil.Process(server._forkserver_pid).children():
                _AHEAD.clear()
                return
            os.kill(server._forkserver_pid, signal.SIGKILL)  # it may still import
        with suppress(ChildProcessError):  # something has waited for it
            server._stop()
        server._forkserver_pid = None
        forkserver.set_forkserver_preload(MAIN)
        _STARTED.clear()
    _AHEAD.clear()


# A server that still imports would keep the script's output open for some seconds.
atexit.register(end_unused)


def serves(environment: Mapping[str, str]) -> bool:
    """Return whether a worker that starts now would inherit exactly what the server has."""
    now = {**inherited(), **environment}
    if CACHE_OF_TORCH not in _STARTED:  # if torch has set it, it has done so in the server, too
        chosen = os.path.join(tempfile.gettempdir(), "torchinductor_")
        if str(now.get(CACHE_OF_TORCH, "")).startswith(chosen):
            del now[CACHE_OF_TORCH]
    return bool(_STARTED) and now == _STARTED


def inherited() -> dict[str, object]:
    """Return the variables and the settings of a new process; `=` begins the names of settings."""
    import resource

    names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    limits = {f"={name}": resource.getrlimit(getattr(resource, name)) for name in names}
    priority = os.getpriority(os.PRIO_PROCESS, 0)
    cpus = os.sched_getaffinity(0)
    return {**_variables(), **limits, "=cpus": cpus, "=priority": priority}


def _variables() -> dict[str, str]:
    """Return the variables that Dask gives a new interpreter."""
    always = {"PYTHONHASHSEED": "6640", "__DASK_PARENT_PID": str(os.getpid())}
    return {**ENVIRONMENT, **os.environ, **always}


def _for_imports() -> dict[str, str]:
    """Return variables with which the server finds the modules that this process finds.

    Without them Python 3.11 looks for each module in the working folder first.
    """
    path = os.pathsep.join(os.path.abspath(folder) for folder in sys.path)
    replaced = {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    return {**replaced, REPLACED: json.dumps({name: os.environ.get(name) for name in replaced})}


@contextmanager
def ctrl_c_held_back() -> Iterator[None]:
    """Block SIGINT and SIGHUP: in this thread until the end, in processes started here for good.

    A terminal sends them to all its processes, and workers must live on to save their
    states. Threads and processes take over the signal mask of the thread that starts them.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        # Else it starts with the first worker, and its start unblocks SIGINT (Python 3.11).
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables for the processes that the block starts."""
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

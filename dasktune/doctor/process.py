"""Facts on a process and its host: functions that travel by value to workers and scheduler.

dasktune may be missing there or have another version. So this module imports nothing of it, and
answers are plain data. Slow calls run in a thread, because the event loop must go on.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import multiprocessing
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

TORCH = """
import json, torch
devices, problem = [], ""
try:
    for number in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(number)
        free = torch.cuda.mem_get_info(number)[0]
        uuid = str(getattr(found, "uuid", number))
        devices.append(
            {"name": found.name, "uuid": uuid, "nbytes": found.total_memory, "free": free}
        )
except Exception as error:
    problem = " ".join(str(error).split())
print(json.dumps({"cuda": torch.version.cuda, "devices": devices, "problem": problem}))
"""
"""Runs in a new process: one that starts CUDA keeps memory of the GPU until it ends."""


def look(packages: list[str], folders: list[str], paths: list[str]) -> dict[str, Any]:
    """Return the fields of a `dasktune.doctor.facts.Look` that any process has."""
    import psutil

    free = {folder: room(folder) for folder in [tempfile.gettempdir(), *folders]}
    affinity = getattr(os, "sched_getaffinity", None)
    cores = sorted(affinity(0)) if affinity else list(range(os.cpu_count() or 1))
    host = socket.gethostname()
    return {
        "host": host,
        "process": f"{host}:{os.getpid()}:{psutil.Process().create_time()}",
        "packages": {"python": platform.python_version(), **versions(packages)},
        "cores": tuple(cores),
        "threads": os.environ.get("OMP_NUM_THREADS", ""),
        "memory_free": psutil.virtual_memory().available,
        "free": {folder: left for folder, left in free.items() if left is not None},
        "missing": tuple(path for path in paths if not os.path.exists(path)),
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "gpus": tuple(gpus()),
    }


def versions(packages: list[str]) -> dict[str, str | None]:
    """Return the version of dasktune and of packages; None for a missing one."""
    known: dict[str, str | None] = dict.fromkeys(["dasktune", *packages])
    with suppress(ImportError):
        known["dasktune"] = str(importlib.import_module("dasktune").__version__)
    for package in packages:
        with suppress(metadata.PackageNotFoundError):
            known[package] = metadata.version(package)
    return known


def room(folder: str) -> int | None:
    """Return the free bytes for a folder, also for one that does not exist yet."""
    path = Path(folder).expanduser().absolute()
    for folder_above in (path, *path.parents):
        with suppress(OSError):
            return shutil.disk_usage(folder_above).free
    return None


def gpus() -> list[str]:
    """Return the names of all GPUs of NVIDIA's driver, also of hidden ones."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


async def look_at_worker(
    packages: list[str], folders: list[str], paths: list[str], dask_worker: Any = None
) -> dict[str, Any]:
    """Return the fields of a worker's `Look`."""
    folders = [*folders, dask_worker.local_directory]
    return {
        **await asyncio.to_thread(look, packages, folders, paths),
        "listening": listening(dask_worker),
        "slots": dask_worker.state.nthreads,
        "resources": dict(dask_worker.state.total_resources),
        "memory_limit": int(getattr(dask_worker.memory_manager, "memory_limit", None) or 0),
        "is_daemon": multiprocessing.current_process().daemon,
    }


async def look_at_scheduler(packages: list[str], dask_scheduler: Any = None) -> dict[str, Any]:
    """Return the fields of a scheduler's `Look`."""
    settings = {
        "allowed-failures": dask_scheduler.allowed_failures,
        "work-stealing": float("stealing" in dask_scheduler.extensions),
        "worker-ttl": dask_scheduler.worker_ttl,
        "no-workers-timeout": dask_scheduler.no_workers_timeout,
    }
    own = await asyncio.to_thread(look, packages, [], [])
    return {**own, "listening": listening(dask_scheduler), "settings": settings}


def listening(server: Any) -> tuple[str, ...]:
    """Return the addresses that a worker or scheduler listens on."""
    addresses = [str(listener.listen_address) for listener in server.listeners]
    page = getattr(server, "http_server", None)
    if page is not None and hasattr(page, "address"):
        addresses.append(f"http://{page.address}:{page.port}")
    return tuple(addresses)


def time_of_day() -> float:
    """Return the time of day (epoch seconds)."""
    return time.time()


async def look_at_torch() -> dict[str, Any]:
    """Return the fields of a `dasktune.doctor.facts.Torch`."""
    return await asyncio.to_thread(_torch)


def _torch() -> dict[str, Any]:
    command = [sys.executable, "-c", TORCH]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    except subprocess.CalledProcessError as error:
        words = error.stderr.strip().splitlines() or ["no word"]
        return {"cuda": None, "devices": [], "problem": f"torch cannot be imported: {words[-1]}"}
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer

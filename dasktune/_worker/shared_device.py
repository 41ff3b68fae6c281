"""The device that workers share, of which only as many train at a time as that pays.

Each of these workers is a process with all of the device to itself, as far as it knows. Whoever
starts them says which share one: by the variable `SHARED_DEVICE`.
"""

from __future__ import annotations

import os
import platform
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

from dasktune._worker.hardware import Hardware, hardware_of

SHARED_DEVICE = "DASKTUNE_DEVICE"
"""Variable that names the device that a worker shares: the same for all workers that share it."""

CONTEXT_BYTES = 2**29
"""Memory of a GPU that a process uses beside that of torch, about: CUDA's own."""

MPS_PIPES = "CUDA_MPS_PIPE_DIRECTORY"
"""Variable that says where clients of NVIDIA's multi-process service (MPS) find its daemon."""


def shares_device() -> bool:
    """Whether this process is a worker that shares its device."""
    return bool(os.environ.get(SHARED_DEVICE, "").strip())


def describe_sharing(resources: Mapping[str, float]) -> dict[str, object]:
    """Return the shared device of this worker, and whether MPS runs, as plain data.

    `resources` are the worker's Dask resources.
    """
    if not shares_device():
        return {"device": "", "device_bytes": 0, "mps": False}
    hardware = hardware_of(resources)
    given = os.environ[SHARED_DEVICE].strip()
    return {
        "device": device_name(hardware, given, platform.node()),
        "device_bytes": hardware.memory if hardware.gpu is None else hardware.gpu.nbytes,
        "mps": hardware.gpus > 0 and mps_runs(),
    }


def device_name(hardware: Hardware, given: str, host: str) -> str:
    """Return the name of a shared device on a host, which no other device has.

    The indices of GPUs repeat in each job of a host; their UUIDs do not. `given` is the name that
    whoever started the workers gave the device.

    Examples
    --------
    >>> plain = Hardware(cpu="", architecture="x86_64", cores=8, memory=2**36)
    >>> device_name(plain, "socket0", "host1")
    'host1/socket0'
    """
    gpu = hardware.gpu
    return gpu.uuid if gpu is not None and gpu.uuid else f"{host}/{given}"


def mps_runs() -> bool:
    """Whether the daemon of MPS runs here: then stages on one GPU run side by side, not in turns.

    A process of CUDA finds the daemon by itself, by the same folder.
    """
    control = Path(os.environ.get(MPS_PIPES) or "/tmp/nvidia-mps") / "control"
    try:
        return stat.S_ISFIFO(control.stat().st_mode)
    except OSError:
        return False


def begin_peak(device: str) -> None:
    """Begin to measure the memory that this process holds on a device, by torch's name."""
    torch = sys.modules.get("torch")
    if device == "cuda" and torch is not None and torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()


def peak_bytes(device: str) -> int | None:
    """Return the most bytes that this process has held on a device; None if that is unknown.

    On a GPU that is the most since `begin_peak`, as far as torch allocated it, and CUDA's own; on
    a processor the most that was ever resident.
    """
    if device == "cpu":
        return _most_resident()
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return int(torch.cuda.max_memory_reserved()) + CONTEXT_BYTES


def free_unused(device: str) -> None:
    """Give memory of a device back that torch keeps for later."""
    torch = sys.modules.get("torch")
    if device == "cuda" and torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _most_resident() -> int | None:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    sizes = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return next((1024 * int(size) for size in sizes), None)

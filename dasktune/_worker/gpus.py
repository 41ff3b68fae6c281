"""The GPUs of this host, and which of them each worker sees."""

from __future__ import annotations

import ctypes
import math
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from itertools import takewhile
from typing import Any

from dasktune._numbers import real_of, whole_of
from dasktune.errors import ConfigurationError
from dasktune.needs import Needs

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""The environment variable that says which GPUs a process sees, by index or UUID."""

GPU_ID = re.compile(r"\d+|(GPU|MIG)-[\w/-]+")
"""What may stand in it; for CUDA the list ends before anything else, such as -1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU as its driver describes it."""

    model: str
    """Its name there."""
    nbytes: int
    """Its memory."""
    uuid: str = ""
    """Unique name; empty if the driver does not say."""


class _Memory(ctypes.Structure):
    """``nvmlMemory_t``."""

    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong)]
    _fields_ += [("used", ctypes.c_ulonglong)]


def visible_gpus() -> tuple[str, ...]:
    """Return the ids of the GPUs that this process may use, by index or UUID.

    What ``CUDA_VISIBLE_DEVICES`` names is believed. Without it there are as many as the
    driver of NVIDIA counts, or else torch.
    """
    given = os.environ.get(VISIBLE)
    if given is None:
        return tuple(map(str, range(_counted())))
    ids = (text.strip() for text in given.split(","))
    return tuple(takewhile(lambda text: GPU_ID.fullmatch(text) is not None, ids))


def shared_out(gpus: tuple[str, ...], per_worker: float, workers: int | None = None) -> list[str]:
    """Return the GPUs that each worker shall see, as `VISIBLE` has them.

    Parameters
    ----------
    per_worker
        How many each sees, or the share of one that it has, such as 0.5.
    workers
        How many workers; as many as the GPUs allow if None.

    Raises
    ------
    ConfigurationError
        If there are not so many GPUs.

    Examples
    --------
    >>> shared_out(("0", "1", "2"), 1)
    ['0', '1', '2']
    >>> shared_out(("0", "1"), 0.5)
    ['0', '1', '0', '1']
    >>> shared_out(("0", "1", "2", "3"), 2, workers=2)
    ['0,1', '2,3']
    """
    if not _is_amount(per_worker):
        raise ConfigurationError(
            f"gpus_per_worker must be a whole number, or a fraction below 1, got {per_worker!r}"
        )
    if per_worker < 1:
        # Rounding may make three thirds a little more than one.
        sharing = math.floor(1 / per_worker + 1e-9)
        slots = list(gpus) * sharing
    else:
        size = int(per_worker)
        starts = range(0, len(gpus) - size + 1, size)
        slots = [",".join(gpus[start : start + size]) for start in starts]
    if not slots or len(slots) < (workers or 0):
        raise ConfigurationError(
            f"{'a worker' if workers in (None, 1) else f'{workers} workers'} with gpus_per_worker="
            f"{per_worker:g} must find GPUs enough; {_in_words(gpus)} here"
        )
    return slots[:workers]


def sharing_problems(trials_per_gpu: object, gpus_per_worker: float) -> Iterator[str]:
    """Yield why so many trials cannot share a GPU."""
    if (together := whole_of(trials_per_gpu)) is None:
        yield f"trials_per_gpu must be an int >= 1, got {trials_per_gpu!r}"
    elif together > 1 and gpus_per_worker != 1:
        yield (
            f"trials_per_gpu={trials_per_gpu} must come with gpus_per_worker=1, "
            f"got {gpus_per_worker:g}"
        )


def gpus_needed(needs: Needs, gpus_per_worker: float | None) -> float:
    """Return how many GPUs each worker of this host gets: what is said, or what stages need.

    Raises a `ConfigurationError` if stages need what a worker of this host would not have.
    """
    amounts = [dict(need.amounts) for need in needs.alternatives]
    possible = [each.get("GPU", 0.0) for each in amounts if set(each) <= {"GPU"}]
    if not possible:
        others = sorted({name for each in amounts for name in each} - {"GPU"})
        raise ConfigurationError(
            f"stages need {', '.join(others)}, which workers of this host do not have: start "
            "workers with such resources yourself, and give a client"
        )
    if gpus_per_worker is None:
        able = [gpus for gpus in possible if not gpus or visible_gpus()]
        if not able:
            raise ConfigurationError(f"stages need a GPU (needs: {needs}), and none is here")
        return able[0]
    if gpus_per_worker < (least := min(possible)):
        raise ConfigurationError(
            f"stages need {least:g} GPUs (needs: {needs}), and each worker would have "
            f"gpus_per_worker={gpus_per_worker:g}"
        )
    return gpus_per_worker


def has_gpus_of_its_own() -> bool:
    """Whether dask-cuda has given this process its GPUs; its workers need not say so."""
    return "dask_cuda" in sys.modules and bool(os.environ.get(VISIBLE))


def sees_too_many(torch: Any) -> bool:
    """Whether CUDA was started here before it was said which GPUs are this process's.

    It is asked itself: ``torch.cuda.device_count`` may count what it would be by now.
    """
    count = getattr(torch._C, "_cuda_getDeviceCount", None) if torch is not None else None
    return count is not None and VISIBLE in os.environ and count() > len(visible_gpus())


def _is_amount(given: object) -> bool:
    number = real_of(given)
    return 0 < number < 1 or (number >= 1 and number.is_integer())


def _in_words(gpus: tuple[str, ...]) -> str:
    if not gpus:
        return "there is none"
    return f"there {'is' if len(gpus) == 1 else 'are'} {len(gpus)} ({', '.join(gpus)})"


@lru_cache(maxsize=64)
def gpu_of(gpu_id: str) -> Gpu | None:
    """Return the model and memory of a GPU, by NVIDIA's driver; None for an unknown GPU.

    `gpu_id` is an index or UUID of `visible_gpus`. Indices are those of the driver, which orders
    GPUs by their bus: CUDA does so, too, where all GPUs of a host are alike or
    ``CUDA_DEVICE_ORDER`` is ``PCI_BUS_ID``.
    """
    try:
        with _nvml() as driver:
            device = None if driver is None else _device(driver, gpu_id)
            if driver is None or device is None:
                return None
            name, memory = ctypes.create_string_buffer(96), _Memory()
            if driver.nvmlDeviceGetName(device, name, ctypes.c_uint(96)) != 0:
                return None
            failed = driver.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory))
            model = name.value.decode(errors="replace")
            nbytes = 0 if failed else memory.total
            return Gpu(model=model, nbytes=nbytes, uuid=_uuid_of(driver, device))
    except (OSError, AttributeError):
        return None


@contextmanager
def _nvml() -> Iterator[Any]:
    """Give the library of NVIDIA's driver; None without an answer of the driver.

    Raises an `OSError` if there is no such library, an `AttributeError` if it is too old.
    """
    driver = ctypes.CDLL("libnvidia-ml.so.1")
    if driver.nvmlInit_v2() != 0:
        yield None
        return
    try:
        yield driver
    finally:
        driver.nvmlShutdown()


def _device(driver: Any, gpu_id: str) -> ctypes.c_void_p | None:
    """Return the driver's handle of a GPU by index or UUID, which may be cut short."""
    device = ctypes.c_void_p()
    if not gpu_id.isdecimal():
        if driver.nvmlDeviceGetHandleByUUID(gpu_id.encode(), ctypes.byref(device)) == 0:
            return device
        return next(_with_uuid(driver, gpu_id), None)
    failed = driver.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(gpu_id)), ctypes.byref(device))
    return None if failed else device


def _uuid_of(driver: Any, device: ctypes.c_void_p) -> str:
    """Return the UUID of a GPU; empty if the driver does not say."""
    uuid = ctypes.create_string_buffer(96)
    failed = driver.nvmlDeviceGetUUID(device, uuid, ctypes.c_uint(96))
    return "" if failed else uuid.value.decode(errors="replace")


def _with_uuid(driver: Any, start: str) -> Iterator[ctypes.c_void_p]:
    """Yield the GPUs whose UUID begins so."""
    count = ctypes.c_uint()
    driver.nvmlDeviceGetCount_v2(ctypes.byref(count))
    for index in range(count.value):
        device = ctypes.c_void_p()
        failed = driver.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device))
        if not failed and _uuid_of(driver, device).startswith(start):
            yield device


def _counted() -> int:
    """Return how many GPUs the driver of NVIDIA counts, or torch where it is another's."""
    try:
        with _nvml() as driver:
            count = ctypes.c_uint()
            if driver is None or driver.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
                return 0
            return count.value
    except (OSError, AttributeError):
        return _counted_by_torch()


def _counted_by_torch() -> int:
    if find_spec("torch") is None:
        return 0
    import torch

    return torch.cuda.device_count()

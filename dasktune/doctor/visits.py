"""Trying a store, in the driver and on workers: all that is written is removed again.

The functions travel by value to workers that have the same dasktune.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from dasktune.storage.files.base import Files
from dasktune.storage.files.failures import reason_of
from dasktune.storage.files.objects import open_files
from dasktune.storage.files.retry import Patience

FIRST = "first"
"""Name of the file that all try to create: one of them must have been the first."""

BEFORE_WRITING = ("open", "read")
"""Whoever fails in these has left nothing."""

_TIMES = 3
"""How often a small file is written and read; the median counts."""


async def arrive(url: str, folder: str, name: str, seconds: float) -> dict[str, Any]:
    """Look for the driver's file and leave one; return how that went."""
    return await asyncio.to_thread(visit, url, folder, name, seconds)


async def measure(url: str, folder: str, name: str, nbytes: int, seconds: float) -> dict[str, Any]:
    """Return how fast a large file is written and read (bytes per second)."""
    return await asyncio.to_thread(speed, url, folder, name, nbytes, seconds)


async def clear(url: str, folder: str, name: str, seconds: float) -> bool:
    """Remove what `arrive` has left; return whether it is gone."""
    return await asyncio.to_thread(clear_files, url, folder, name, seconds)


async def leave(folders: Sequence[str]) -> None:
    """Remove folders that `arrive` found absent, as far as they are empty."""
    await asyncio.to_thread(remove_empty, folders)


def visit(url: str, folder: str, name: str, seconds: float) -> dict[str, Any]:
    """Use a store in each way that runs do; return the fields of a `Visit`, and more.

    Parameters
    ----------
    url, folder
        The store, and where in it to write.
    name
        This process's own; the driver's is ``driver``.
    seconds
        How long a store that fails is tried again.

    Returns
    -------
    dict
        With ``absent``, the folders of this machine that did not exist before.
    """
    began, doing = time.monotonic(), "open"
    found: dict[str, Any] = {"absent": absent_folders(url, folder)}
    try:
        files = _opened(url, seconds)
        doing = "read"
        there = files.read(folder, ["driver"])[0]
        found["sees"] = there is not None and there.tobytes() == folder.encode()
        own, content = f"{folder}/{name}", folder.encode()
        doing = "create"
        first = files.create(own, content)
        found["refuses"] = first and not files.create(own, b"again")
        found["won"] = files.create(f"{folder}/{FIRST}", name.encode())
        doing = "list"
        found["lists"] = own in {entry.path for entry in files.entries(folder)}
        doing = "write"
        found["seconds"] = _seconds_of_small(files, f"{own}-small")
        doing = "remove"
        files.remove(f"{own}-small")
        found["removes"] = files.read(folder, [f"{name}-small"])[0] is None
    except Exception as error:  # noqa: BLE001 - libraries of stores have errors of their own
        found |= {"failed": doing, "reason": reason_of(error)}
    if name != "driver" and time.monotonic() - began > seconds:
        # Nobody waits for this any more, nor asks to clear it.
        clear_files(url, folder, name, seconds)
        remove_empty(found["absent"])
    return found


def speed(url: str, folder: str, name: str, nbytes: int, seconds: float) -> dict[str, Any]:
    """Return the fields of a `Speed`; what is written is removed."""
    files, large = _opened(url, seconds), f"{folder}/{name}-large"
    content = np.frombuffer(os.urandom(nbytes), np.uint8)
    with _leaving_no_folders(url, folder):
        try:
            began = time.perf_counter()
            files.write(large, {"file": [content]})
            written = time.perf_counter()
            there = files.read(large, ["file"])[0]
            ended = time.perf_counter()
        finally:
            files.remove(large)
    if there is None or not np.array_equal(there, content):
        raise OSError("a file is read otherwise than it was written")
    return {"write": nbytes / (written - began), "read": nbytes / (ended - written)}


def clear_files(url: str, folder: str, name: str, seconds: float) -> bool:
    """Remove what a process has written below a folder, or all if it is the driver."""
    files = _opened(url, seconds)
    if name == "driver":
        files.remove(folder)
        return not list(files.entries(folder))
    with _leaving_no_folders(url, folder):
        own = [f"{folder}/{name}", f"{folder}/{name}-small"]
        with suppress(FileNotFoundError):
            files.remove_files(own)
        first = f"{folder}/{FIRST}"
        files.remove_same(first, name.encode())
    return files.read("", own) == [None, None]


def absent_folders(url: str, folder: str) -> tuple[str, ...]:
    """Return the folders of this machine that would have to be made, deepest first."""
    root = local_folder(url)
    if root is None:
        return ()
    place = root / folder
    return tuple(str(one) for one in (place, *place.parents) if not one.exists())


def local_folder(url: str) -> Path | None:
    """Return where a store is on this machine; None if it is elsewhere."""
    protocol, separator, path = url.partition("://")
    if separator and protocol not in ("file", "local"):
        return None
    return Path(path if separator else url).expanduser().absolute()


def remove_empty(folders: Sequence[str]) -> None:
    """Remove folders as far as they are empty."""
    for one in folders:
        with suppress(OSError):
            Path(one).rmdir()


def written(url: str, folder: str, names: Sequence[str], seconds: float) -> list[bool]:
    """Return which of the files that other processes wrote are there as they wrote them."""
    found = _opened(url, seconds).read(folder, names)
    return [one is not None and one.tobytes() == folder.encode() for one in found]


def clock_of(url: str, folder: str, seconds: float) -> float | None:
    """Return when the store says that the driver's file was written; None if it does not say."""
    files = _opened(url, seconds)
    times = {entry.path: entry.modified for entry in files.entries(folder)}
    return times.get(f"{folder}/driver") or None


def _opened(url: str, seconds: float) -> Files:
    return open_files(url, patience=Patience(seconds=seconds / 2, request=seconds / 2))


def _seconds_of_small(files: Files, path: str) -> float:
    """Return how long it takes to write and read a small file."""
    taken = []
    for _ in range(_TIMES):
        began = time.perf_counter()
        files.replace(path, b"small")
        files.read("", [path])
        taken.append(time.perf_counter() - began)
    return sorted(taken)[_TIMES // 2]


@contextmanager
def _leaving_no_folders(url: str, folder: str) -> Iterator[None]:
    """Remove, in the end, what had to be made: one that comes late finds nothing there."""
    absent = absent_folders(url, folder)
    try:
        yield
    finally:
        remove_empty(absent)

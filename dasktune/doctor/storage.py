"""Tests of a store and of a database; all that they write is removed again.

The functions on a store travel by value to workers that have the same version of dasktune.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import sqlalchemy as sa

from dasktune.doctor.facts import DatabaseFacts, Speed, StoreUse
from dasktune.engine.timeouts import CHECK_DATABASE_SECONDS
from dasktune.errors import ConfigurationError, StorageError
from dasktune.storage.database.connection import Connections, network_kind
from dasktune.storage.database.database import Database
from dasktune.storage.files.base import Files
from dasktune.storage.files.failures import reason_of
from dasktune.storage.files.objects import open_files
from dasktune.storage.files.retry import Patience

FIRST = "first"
"""Name of the file that all processes try to create: exactly one may succeed."""

BEFORE_WRITING = ("open", "read")
"""A process that fails in these operations has left nothing."""

_TIMES = 3
"""Number of times that a small file is written and read; the median counts."""


async def use_there(url: str, folder: str, name: str, seconds: float) -> StoreUse:
    """Call `use` on a worker, in a thread."""
    return await asyncio.to_thread(use, url, folder, name, seconds)


async def measure_there(url: str, folder: str, name: str, nbytes: int, seconds: float) -> Speed:
    """Call `measure` on a worker, in a thread."""
    return await asyncio.to_thread(measure, url, folder, name, nbytes, seconds)


async def clear_there(url: str, folder: str, name: str, seconds: float) -> bool:
    """Call `clear_files` on a worker, in a thread."""
    return await asyncio.to_thread(clear_files, url, folder, name, seconds)


async def remove_empty_there(folders: Sequence[str]) -> None:
    """Call `remove_empty` on a worker, in a thread."""
    await asyncio.to_thread(remove_empty, folders)


def use(url: str, folder: str, name: str, seconds: float) -> StoreUse:
    """Use a store in each way that runs do, and return the outcome.

    Parameters
    ----------
    url, folder
        The store, and the folder in it to write to.
    name
        The name of this process; the driver's is ``driver``.
    seconds
        How long an operation of the store that fails is tried again.
    """
    began, operation = time.monotonic(), "open"
    outcome: dict[str, Any] = {"made": absent_folders(url, folder)}
    try:
        files = _opened(url, seconds)
        operation = "read"
        there = files.read(folder, ["driver"])[0]
        outcome["sees"] = there is not None and there.tobytes() == folder.encode()
        own, content = f"{folder}/{name}", folder.encode()
        operation = "create"
        first = files.create(own, content)
        outcome["refuses"] = first and not files.create(own, b"again")
        outcome["won"] = files.create(f"{folder}/{FIRST}", name.encode())
        operation = "list"
        outcome["lists"] = own in {entry.path for entry in files.entries(folder)}
        operation = "write"
        outcome["seconds"] = _seconds_of_small(files, f"{own}-small")
        operation = "remove"
        files.remove(f"{own}-small")
        outcome["removes"] = files.read(folder, [f"{name}-small"])[0] is None
        outcome["conditional"] = name == "driver" and files.removes_conditionally()
    except Exception as error:  # noqa: BLE001 - libraries of stores have errors of their own
        outcome |= {"failed": operation, "reason": reason_of(error)}
    if name != "driver" and time.monotonic() - began > seconds:
        # The driver has given up this call, and will not call `clear_files` here.
        clear_files(url, folder, name, seconds)
        remove_empty(outcome["made"])
    return StoreUse(**outcome)


def measure(url: str, folder: str, name: str, nbytes: int, seconds: float) -> Speed:
    """Write, read and remove a large file, and return the speed."""
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
    return Speed(write=nbytes / (written - began), read=nbytes / (ended - written))


def clear_files(url: str, folder: str, name: str, seconds: float) -> bool:
    """Remove the files of a process, the driver's with the whole folder; return success."""
    files = _opened(url, seconds)
    if name == "driver":
        files.remove(folder)
        return not list(files.entries(folder))
    with _leaving_no_folders(url, folder):
        own = [f"{folder}/{name}", f"{folder}/{name}-small"]
        with suppress(FileNotFoundError):
            files.remove_files(own)
        # Nobody replaces this file, so that it needs no mark, which other processes would see.
        first = files.read(folder, [FIRST])[0]
        if first is not None and first.tobytes() == name.encode():
            files.remove(f"{folder}/{FIRST}")
    return files.read("", own) == [None, None]


def absent_folders(url: str, folder: str) -> tuple[str, ...]:
    """Return the local folders that a use of the store has to make, deepest first."""
    root = local_folder(url)
    if root is None:
        return ()
    path = root / folder
    return tuple(str(each) for each in (path, *path.parents) if not each.exists())


def local_folder(url: str) -> Path | None:
    """Return the folder of a local store; None for another store."""
    protocol, separator, path = url.partition("://")
    if separator and protocol not in ("file", "local"):
        return None
    return Path(path if separator else url).expanduser().absolute()


def remove_empty(folders: Sequence[str]) -> None:
    """Remove those folders that are empty."""
    for folder in folders:
        with suppress(OSError):
            Path(folder).rmdir()


def written(url: str, folder: str, names: Sequence[str], seconds: float) -> list[bool]:
    """Return for each process whether its file exists with the right content."""
    contents = _opened(url, seconds).read(folder, names)
    return [content is not None and content.tobytes() == folder.encode() for content in contents]


def clock_of(url: str, folder: str, seconds: float) -> float | None:
    """Return the store's time of the driver's file (epoch seconds); None if unknown."""
    files = _opened(url, seconds)
    times = {entry.path: entry.modified for entry in files.entries(folder)}
    return times.get(f"{folder}/driver") or None


def _opened(url: str, seconds: float) -> Files:
    return open_files(url, patience=Patience(seconds=seconds / 2, request=seconds / 2))


def _seconds_of_small(files: Files, path: str) -> float:
    """Return the seconds to write and read a small file."""
    taken = []
    for _ in range(_TIMES):
        began = time.perf_counter()
        files.replace(path, b"small")
        files.read("", [path])
        taken.append(time.perf_counter() - began)
    return sorted(taken)[_TIMES // 2]


@contextmanager
def _leaving_no_folders(url: str, folder: str) -> Iterator[None]:
    """Remove folders again that had to be made: a late call may find them gone."""
    absent = absent_folders(url, folder)
    try:
        yield
    finally:
        remove_empty(absent)


# ---------------------------------------------------------------------- database

IN_MEMORY = "in memory"

_MEMORY = (None, "", ":memory:")


def try_database(database: Database | str) -> DatabaseFacts:
    """Return the facts on a database, given open or as the URL where it would be."""
    if isinstance(database, Database):
        return _examined(database.connections)
    file = _file_of(database)
    if file is not None and not file.exists():
        return _tried_file(DatabaseFacts(name=str(file)), file)
    if file is None and database.startswith("sqlite:"):
        return DatabaseFacts(name=IN_MEMORY)
    try:
        connections = Connections(database, timeout=CHECK_DATABASE_SECONDS, create=False)
    except (StorageError, ConfigurationError) as error:
        return DatabaseFacts(name="", problem=str(error))
    try:
        return _examined(connections)
    finally:
        connections.close()


def _examined(connections: Connections) -> DatabaseFacts:
    facts = DatabaseFacts(name=connections.name or IN_MEMORY)
    if connections.file is not None:
        return _tried_file(facts, connections.file)
    if connections.dialect == "sqlite":
        return facts
    began = time.perf_counter()
    try:
        connections.run(_write_and_forget)
    except StorageError as error:
        return replace(facts, problem=str(error))
    return replace(facts, seconds=time.perf_counter() - began)


def _write_and_forget(connection: sa.Connection) -> None:
    """Write a row to a table that ends with the transaction."""
    connection.execute(sa.text("CREATE TEMPORARY TABLE dasktune_probe (n INT) ON COMMIT DROP"))
    connection.execute(sa.text("INSERT INTO dasktune_probe VALUES (1)"))


def _file_of(url: str) -> Path | None:
    """Return the file of a SQLite database; None for other databases and malformed URLs."""
    if "://" not in url:
        return Path(url).expanduser().absolute()
    try:
        address = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):
        return None
    is_file = address.get_backend_name() == "sqlite" and address.database not in _MEMORY
    return Path(str(address.database)).absolute() if is_file else None


def _tried_file(facts: DatabaseFacts, file: Path) -> DatabaseFacts:
    """Commit to a new SQLite file beside the database, and remove that file."""
    facts = replace(facts, network=network_kind(file))
    probe = file.with_name(f"probe-{uuid4().hex}.db")
    absent = [str(parent) for parent in probe.parents if not parent.exists()]
    try:
        _check_file(file)
        probe.parent.mkdir(parents=True, exist_ok=True)
        return replace(facts, seconds=_seconds_of_commit(probe))
    except (OSError, sqlite3.Error) as error:
        return replace(facts, problem=f"cannot use database {file}: {error}")
    finally:
        for ending in ("", "-wal", "-shm", "-journal"):
            probe.with_name(probe.name + ending).unlink(missing_ok=True)
        remove_empty(absent)


def _check_file(file: Path) -> None:
    """Check that an existing file is a database that can be written."""
    if not file.exists():
        return
    with file.open("r+b") as opened:
        head = opened.read(16)
    if head not in (b"", b"SQLite format 3\x00"):
        raise sqlite3.DatabaseError("it is no SQLite database")


def _seconds_of_commit(probe: Path) -> float:
    with closing(sqlite3.connect(probe, timeout=CHECK_DATABASE_SECONDS)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE probe (n INT)")
        connection.commit()
        began = time.perf_counter()
        connection.execute("INSERT INTO probe VALUES (1)")
        connection.commit()
        return time.perf_counter() - began

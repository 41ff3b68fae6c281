"""Tests of a store and of a database; all that they write is removed again."""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa

from dasktune._engine.timeouts import CHECK_DATABASE_SECONDS
from dasktune.doctor.facts import DatabaseFacts, StoreUse
from dasktune.errors import ConfigurationError, StorageError
from dasktune.storage.database.connection import Connections, network_kind
from dasktune.storage.database.database import Database
from dasktune.storage.files.base import Files
from dasktune.storage.files.failures import reason_of
from dasktune.storage.files.objects import open_files
from dasktune.storage.files.retry import Patience

DRIVER = "driver"
"""Name of the driver's file, which it writes before any worker looks for it."""

FIRST = "first"
"""Name of the file that all processes try to create: only the driver may succeed."""


async def use_there(
    url: str, folder: str, nbytes: int, seconds: float, dask_worker: Any = None
) -> StoreUse:
    """Call `use` on a worker, in a thread."""
    name = name_of(dask_worker.address)
    return await asyncio.to_thread(use, url, folder, name, nbytes, seconds)


def name_of(address: str) -> str:
    """Return the name of a worker's file."""
    return re.sub(r"\W+", "-", address)


def use(url: str, folder: str, name: str, nbytes: int, seconds: float) -> StoreUse:
    """Use a store in each way that runs do, and return the outcome.

    A worker that does not see the driver's file writes nothing: its place is another one. An
    operation that fails is tried again for some `seconds`.
    """
    began, operation = time.monotonic(), "open"
    own, outcome = f"{folder}/{name}", StoreUse()
    try:
        files = _opened(url, seconds)
        operation = "read"
        if name != DRIVER and not _are_there(files, folder, [DRIVER])[0]:
            return replace(outcome, sees=False)
        operation = "create"
        files.create(own, folder.encode())
        overwrites = files.create(f"{folder}/{FIRST}", name.encode()) and name != DRIVER
        operation = "write"
        write, read = _speed(files, f"{own}-large", nbytes)
        operation = "remove"
        files.remove(f"{own}-large")
        outcome = replace(outcome, overwrites=overwrites, write=write, read=read)
    except Exception as error:  # noqa: BLE001 - libraries of stores have errors of their own
        outcome = replace(outcome, failed=operation, reason=reason_of(error))
    if name != DRIVER and time.monotonic() - began > seconds:
        # The driver has given up this call, and may have removed the folder before.
        clear(url, own, seconds)
        clear(url, f"{own}-large", seconds)
    return outcome


def clear(url: str, path: str, seconds: float) -> None:
    """Remove a file or folder from a store."""
    _opened(url, seconds).remove(path)


def absent_folders(url: str, folder: str) -> list[Path]:
    """Return the local folders that a use of the store has to make, deepest first."""
    root = local_folder(url)
    path = None if root is None else root / folder
    return [] if path is None else [each for each in (path, *path.parents) if not each.exists()]


def local_folder(url: str) -> Path | None:
    """Return the folder of a local store; None for another store."""
    protocol, separator, path = url.partition("://")
    if separator and protocol not in ("file", "local"):
        return None
    return Path(path if separator else url).expanduser().absolute()


def written(url: str, folder: str, names: Sequence[str], seconds: float) -> list[bool]:
    """Return for each process whether its file exists with the right content."""
    return _are_there(_opened(url, seconds), folder, names)


def clock_of(url: str, folder: str, seconds: float) -> float | None:
    """Return the store's time of the driver's file (epoch seconds); None if unknown."""
    entries = _opened(url, seconds).entries(folder)
    times = {entry.path: entry.modified for entry in entries}
    return times.get(f"{folder}/{DRIVER}") or None


def _opened(url: str, seconds: float) -> Files:
    return open_files(url, patience=Patience(seconds=seconds / 2, request=seconds / 2))


def _are_there(files: Files, folder: str, names: Sequence[str]) -> list[bool]:
    contents = files.read(folder, names)
    expected = np.frombuffer(folder.encode(), np.uint8)
    return [
        isinstance(content, np.ndarray) and np.array_equal(content, expected)
        for content in contents
    ]


def _speed(files: Files, path: str, nbytes: int) -> tuple[float, float]:
    """Return the bytes per second to write a file, and to read it."""
    content = np.frombuffer(os.urandom(nbytes), np.uint8)
    began = time.perf_counter()
    files.write(path, {"file": [content]})
    written = time.perf_counter()
    there = files.read(path, ["file"], most={"file": nbytes})[0]
    ended = time.perf_counter()
    if not isinstance(there, np.ndarray) or not np.array_equal(there, content):
        raise OSError("a file is read otherwise than it was written")
    return nbytes / (written - began), nbytes / (ended - written)


# ---------------------------------------------------------------------- database


def try_database(database: Database | str) -> DatabaseFacts:
    """Return the facts on a database, given open or as the URL where it would be."""
    if isinstance(database, Database):
        connections = database.connections
        return (
            _tried_server(connections)
            if connections.file is None
            else _tried_file(connections.file)
        )
    file = _file_of(database)
    if file is not None:
        return _tried_file(file)
    try:
        connections = Connections(database, timeout=CHECK_DATABASE_SECONDS, create=True)
    except (StorageError, ConfigurationError) as error:
        return DatabaseFacts(name="", problem=str(error))
    with closing(connections):
        return _tried_server(connections)


def _file_of(url: str) -> Path | None:
    """Return the file of a SQLite database; None for other databases and malformed URLs."""
    if "://" not in url:
        return Path(url).expanduser().absolute()
    try:
        address = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):
        return None
    if address.get_backend_name() != "sqlite" or address.database in (None, "", ":memory:"):
        return None
    return Path(str(address.database)).absolute()


def _tried_file(file: Path) -> DatabaseFacts:
    """Take the lock for writing of a SQLite file; of a file that is missing, look at its folder."""
    facts = DatabaseFacts(name=str(file), network=network_kind(file))
    began = time.perf_counter()
    try:
        if file.exists():
            with closing(sqlite3.connect(file, timeout=CHECK_DATABASE_SECONDS)) as connection:
                connection.execute("BEGIN IMMEDIATE")
                connection.rollback()
        elif not os.access(next(above for above in file.parents if above.exists()), os.W_OK):
            raise PermissionError("its folder cannot be written")
    except (OSError, sqlite3.Error) as error:
        return replace(facts, problem=f"cannot use database {file}: {error}")
    return replace(facts, seconds=time.perf_counter() - began)


def _tried_server(connections: Connections) -> DatabaseFacts:
    """Write a row to a table that ends with the transaction."""
    facts = DatabaseFacts(name=connections.name)
    if connections.dialect == "sqlite":
        return replace(facts, name="in memory")
    began = time.perf_counter()
    try:
        connections.run(_write_and_forget)
    except StorageError as error:
        return replace(facts, problem=str(error))
    return replace(facts, seconds=time.perf_counter() - began)


def _write_and_forget(connection: sa.Connection) -> None:
    connection.execute(sa.text("CREATE TEMPORARY TABLE dasktune_probe (n INT) ON COMMIT DROP"))
    connection.execute(sa.text("INSERT INTO dasktune_probe VALUES (1)"))

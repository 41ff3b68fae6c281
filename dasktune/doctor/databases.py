"""Trying a database from the driver; nothing is left in it or beside it."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import sqlalchemy as sa

from dasktune.doctor.facts import DatabaseFacts
from dasktune.doctor.visits import remove_empty
from dasktune.errors import ConfigurationError, StorageError
from dasktune.storage.database.connection import Connections, network_kind
from dasktune.storage.database.database import Database

IN_MEMORY = "in memory"

_BUSY_SECONDS = 5.0
_MEMORY = (None, "", ":memory:")


def examine_database(database: Database | str) -> DatabaseFacts:
    """Return what is found out about a database, open or where it would be."""
    if isinstance(database, Database):
        return _examined(database.connections)
    file = _file_of(database)
    if file is not None and not file.exists():
        return _tried_file(DatabaseFacts(name=str(file)), file)
    if file is None and database.startswith("sqlite:"):
        return DatabaseFacts(name=IN_MEMORY)
    try:
        connections = Connections(database, timeout=_BUSY_SECONDS, create=False)
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
    """Write a row that is gone with the transaction."""
    connection.execute(sa.text("CREATE TEMPORARY TABLE dasktune_probe (n INT) ON COMMIT DROP"))
    connection.execute(sa.text("INSERT INTO dasktune_probe VALUES (1)"))


def _file_of(url: str) -> Path | None:
    """Return the file of a SQLite database; None for any other, and what cannot be read."""
    if "://" not in url:
        return Path(url).expanduser().absolute()
    try:
        address = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):
        return None
    is_file = address.get_backend_name() == "sqlite" and address.database not in _MEMORY
    return Path(str(address.database)).absolute() if is_file else None


def _tried_file(facts: DatabaseFacts, file: Path) -> DatabaseFacts:
    """Commit to a SQLite file of the same kind beside it, which is removed again."""
    facts = replace(facts, network=network_kind(file))
    probe = file.with_name(f"probe-{uuid4().hex}.db")
    absent = [str(one) for one in probe.parents if not one.exists()]
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
    """Look at the file itself, if there is one: whether it is a database that can be written."""
    if not file.exists():
        return
    with file.open("r+b") as opened:
        head = opened.read(16)
    if head not in (b"", b"SQLite format 3\x00"):
        raise sqlite3.DatabaseError("it is no SQLite database")


def _seconds_of_commit(probe: Path) -> float:
    with closing(sqlite3.connect(probe, timeout=_BUSY_SECONDS)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE probe (n INT)")
        connection.commit()
        began = time.perf_counter()
        connection.execute("INSERT INTO probe VALUES (1)")
        connection.commit()
        return time.perf_counter() - began

"""Making the tables of a database, or bringing older ones up to date."""

from __future__ import annotations

import logging

import sqlalchemy as sa

from dasktune.errors import StorageError
from dasktune.storage.database import schema
from dasktune.storage.database.connection import Connections

logger = logging.getLogger(__name__)

_LOCK = 0x6461736B
"""Number of the advisory lock under which tables are made and changed in PostgreSQL."""


def prepare(connections: Connections, *, create: bool, migrate: bool) -> None:
    """Ensure that the database has the tables of this version.

    Parameters
    ----------
    create
        Whether missing tables may be made.
    migrate
        Whether older tables may be changed. A SQLite file is copied first.

    Raises
    ------
    StorageError
        If they may not, or an unknown version of dasktune made the tables.
    """
    name, newest = connections.name, schema.REVISIONS[-1]
    revision = connections.run(_revision)
    if revision == newest:
        return
    if revision not in (None, *schema.REVISIONS):
        raise StorageError(
            f"database {name} must have tables of revision {' or '.join(schema.REVISIONS)}, "
            f"got {revision}: it was made by another version of dasktune"
        )
    if create if revision is None else migrate:
        connections.run(lambda connection: _bring_up_to_date(connections, connection))
    elif revision is None:
        raise StorageError(f"database {name} holds no studies of dasktune")
    else:
        raise StorageError(
            f"database {name} was made by an older version of dasktune (revision {revision}, "
            f"this one has {newest}); to bring it up to date, run: dasktune migrate DATABASE"
        )


def _bring_up_to_date(connections: Connections, connection: sa.Connection) -> None:
    if connections.dialect == "sqlite":
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    else:
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
    # Another process may have done all of this while this one waited for the lock.
    revision = _revision(connection)
    if revision is None:
        _make_tables(connection)
    elif revision != schema.REVISIONS[-1]:
        _migrate(connections, connection, revision)


def _migrate(connections: Connections, connection: sa.Connection, revision: str) -> None:
    # Alembic takes longer to import than all the rest.
    from alembic.util import CommandError

    from dasktune.storage.migrations import back_up, migrate

    newest = schema.REVISIONS[-1]
    copy = None if connections.file is None else back_up(connections.file, newest)
    logger.warning(
        "database %s is brought up to date, from revision %s to %s%s",
        connections.name,
        revision,
        newest,
        f"; as it was, it is kept in {copy}" if copy else "",
    )
    try:
        migrate(connection, revision)
    except (CommandError, TypeError, ValueError) as error:
        raise StorageError(
            f"database {connections.name} cannot be brought up to date, and is as it was: {error}"
        ) from error


def _revision(connection: sa.Connection) -> str | None:
    """Return the revision of the tables; None in an empty database."""
    # Others make and change tables in one transaction, so a revision is never half there.
    if not sa.inspect(connection).has_table(schema.meta.name):
        return None
    meta = schema.meta.c
    version = connection.execute(sa.select(meta.number).where(meta.name == "version")).scalar()
    if version != schema.META_VERSION:
        return f"version {version}"
    return str(connection.execute(sa.select(schema.revision.c.version_num)).scalar_one())


def _make_tables(connection: sa.Connection) -> None:
    """Make all tables as they are now: migrations from older ones give the same tables."""
    schema.metadata.create_all(connection, checkfirst=False)
    schema.revision.create(connection, checkfirst=False)
    connection.execute(schema.revision.insert(), {"version_num": schema.REVISIONS[-1]})
    connection.execute(schema.meta.insert(), {"name": "version", "number": schema.META_VERSION})

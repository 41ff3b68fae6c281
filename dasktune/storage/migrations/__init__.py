"""Migrations: bringing the tables of an older database up to date with Alembic.

Its scripts are in ``versions``. A new revision needs a script there, a change of
`dasktune.storage.database.schema`, and its number in `REVISIONS` there; a test compares the
two. This package is imported only for a migration, because Alembic is slow to import.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic.config import Config
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext, MigrationStep
from alembic.script import ScriptDirectory

from dasktune.storage.database import schema

FOLDERS = [Path(__file__).parent / "versions"]
"""Where the scripts are."""


def scripts() -> ScriptDirectory:
    """Return Alembic's view of the revisions."""
    config = Config()
    folders = os.pathsep.join(map(str, FOLDERS))
    for name, value in (
        ("script_location", str(Path(__file__).parent)),
        ("version_locations", folders),
        ("path_separator", "os"),
    ):
        config.set_main_option(name, value.replace("%", "%%"))
    return ScriptDirectory.from_config(config)


def context_of(connection: sa.Connection, **options: Any) -> MigrationContext:
    """Return Alembic's view of a database; its transaction is the connection's."""
    table = {"version_table": schema.revision.name, "compare_type": True}
    return MigrationContext.configure(connection, opts={**table, **options})


def migrate(connection: sa.Connection, revision: str) -> None:
    """Lead the tables to the newest revision, inside the connection's transaction.

    Parameters
    ----------
    connection
        Holds the lock under which tables are changed.
    """
    directory = scripts()

    def steps(current: Any, _: MigrationContext) -> list[MigrationStep]:
        ahead = reversed(list(directory.iterate_revisions("head", revision)))
        upgrade = MigrationStep.upgrade_from_script
        return [upgrade(directory.revision_map, script) for script in ahead]

    context = context_of(connection, fn=steps)
    with Operations.context(context):
        context.run_migrations()


def back_up(file: Path, revision: str) -> Path:
    """Copy a SQLite file, which others may be using, to a new name and return that.

    Parameters
    ----------
    revision
        The revision that the migration leads to; it is part of the new name.

    Raises
    ------
    OSError
        If the file cannot be copied, for example because the disk is full.
    """
    name = f"{file.name}.before-{revision}"
    for number in count(1):
        copy = file.with_name(f"{name}.bak" if number == 1 else f"{name}.{number}.bak")
        try:
            copy.touch(mode=file.stat().st_mode & 0o777, exist_ok=False)
            break
        except FileExistsError:
            continue
    try:
        with closing(sqlite3.connect(file)) as old, closing(sqlite3.connect(copy)) as new:
            old.backup(new)
    except sqlite3.Error as error:
        copy.unlink()
        raise OSError(f"it cannot be copied to {copy}: {error}") from error
    except BaseException:
        copy.unlink()
        raise
    return copy

"""Writing rows: one statement a table, executed with the driver's own cursor.

Every report is written through here, so rows go to the driver as tuples, without the work that
SQLAlchemy does for each row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import psycopg

from dasktune.storage.database import rows, schema
from dasktune.storage.database.columns import row_values

INSERTS: Mapping[str, Callable[[sa.Table], sqlite.Insert | postgresql.Insert]] = {
    "sqlite": sqlite.insert,
    "postgresql": postgresql.insert,
}
"""Insertions that can leave or replace a row with the same key, by dialect."""

_DIALECTS: Mapping[str, sa.Dialect] = {
    "sqlite": sqlite.dialect(paramstyle="qmark"),
    "postgresql": psycopg.dialect(paramstyle="format"),  # type: ignore[no-untyped-call]
}

_KINDS: Mapping[str, type] = {
    "events": rows.EventRow,
    "trials": rows.TrialRow,
    "metrics": rows.MetricRow,
    "checkpoints": rows.CheckpointRow,
    "stages": rows.StageRow,
    "logs": rows.LogRow,
}
"""Kinds of rows by table without prefix, in the order of writing."""


@dataclass(frozen=True, slots=True)
class Insertion:
    """The statement that writes a row of one table, and the parameters of rows.

    Parameters
    ----------
    sql
        The statement, its parameters by position.
    values
        Returns the parameters of each of the rows.
    """

    sql: str
    values: Callable[[Sequence[Any]], list[tuple[Any, ...]]]


def insertions(dialect: str) -> dict[str, Insertion]:
    """Return the insertions by table without prefix, in the order of writing."""
    return {
        name: Insertion(
            statement(dialect, name),
            row_values(kind, schema.table(name), schema.DERIVED.get(name, {})),
        )
        for name, kind in _KINDS.items()
    }


def write_rows(connection: sa.Connection, sql: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Execute a statement for all rows with the driver's own cursor, inside the transaction.

    Raises
    ------
    sqlalchemy.exc.DBAPIError
        For every error of the driver, as SQLAlchemy does, lost connections included.
    """
    dialect = connection.dialect
    driver: Any = dialect.loaded_dbapi
    # A connection that was lost before raises here.
    cursor = connection.connection.cursor()
    try:
        cursor.executemany(sql, rows)
    except driver.Error as error:
        is_lost = dialect.is_disconnect(error, connection.connection, cursor)
        if is_lost:
            connection.invalidate(error)
        raise sa.exc.DBAPIError.instance(
            None, None, error, driver.Error, connection_invalidated=is_lost
        ) from error
    finally:
        cursor.close()


@cache
def statement(dialect: str, name: str) -> str:
    """Return the SQL that writes a row of one table.

    A row with the same key stays in ``metrics``, is an error in ``events``, and is replaced in
    all others.
    """
    table = schema.table(name)
    columns = list(table.columns.keys())
    insert = INSERTS[dialect](table)
    if name == "metrics":
        insert = insert.on_conflict_do_nothing()
    elif name != "events":
        keys = [column.name for column in table.primary_key.columns]
        others = {column: insert.excluded[column] for column in columns if column not in keys}
        insert = insert.on_conflict_do_update(index_elements=keys, set_=others)
    return str(insert.compile(dialect=_DIALECTS[dialect], column_keys=columns))

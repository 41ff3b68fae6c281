"""How rows are written: one statement a table, and the plain values of a row for it.

A report is written through here, so rows go to the driver as tuples, past all that
SQLAlchemy would do for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import psycopg

from dasktune.storage.database import schema
from dasktune.storage.database.schema import (
    CheckpointRow,
    Encoded,
    EventRow,
    MetricRow,
    StageRow,
    TrialRow,
    finite,
    kind_and_place,
    to_text,
)
from dasktune.storage.metrics import metrics_to_text

INSERTS: Mapping[str, Callable[[sa.Table], sqlite.Insert | postgresql.Insert]] = {
    "sqlite": sqlite.insert,
    "postgresql": postgresql.insert,
}
"""Insertions that can give way to a row that is there, by dialect."""

_DIALECTS: Mapping[str, sa.Dialect] = {
    "sqlite": sqlite.dialect(paramstyle="qmark"),
    "postgresql": psycopg.dialect(paramstyle="format"),  # type: ignore[no-untyped-call]
}


@dataclass(frozen=True, slots=True)
class Insertion:
    """How the rows of one table are written.

    Parameters
    ----------
    sql
        The statement, its parameters by position.
    values
        Gives the parameters of a row.
    """

    sql: str
    values: Callable[[Any], tuple[Any, ...]]


def insertions(dialect: str) -> dict[str, Insertion]:
    """Return how rows are written, by table without prefix, in the order of writing."""
    return {name: Insertion(statement(dialect, name), values) for name, values in _ROWS.items()}


def write_rows(connection: sa.Connection, sql: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Execute a statement for all rows with the driver's own cursor, inside the transaction.

    Raises
    ------
    sqlalchemy.exc.DBAPIError
        As SQLAlchemy would, also about a connection that was lost.
    """
    dialect = connection.dialect
    driver: Any = dialect.loaded_dbapi
    # A connection that was lost before is noticed here.
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


def statement(dialect: str, name: str) -> str:
    """Return the insertion into one table, and what becomes of a row that is there."""
    table = schema.metadata.tables[f"dasktune_{name}"]
    columns = list(table.columns.keys())
    insert = INSERTS[dialect](table)
    if name == "metrics":
        insert = insert.on_conflict_do_nothing()
    elif name != "events":
        keys = [column.name for column in table.primary_key.columns]
        others = [column for column in columns if column not in keys]
        insert = insert.on_conflict_do_update(
            index_elements=keys, set_={column: insert.excluded[column] for column in others}
        )
    return str(insert.compile(dialect=_DIALECTS[dialect], column_keys=columns))


def _event(row: EventRow) -> tuple[Any, ...]:
    return row.study_id, row.number, to_text(row.payload), *kind_and_place(row.payload)


def _trial(row: TrialRow) -> tuple[Any, ...]:
    value, record = row.value, row.record
    number = None if value is None else repr(float(value))
    text = record if isinstance(record, Encoded) else to_text(record)
    return (
        *(row.study_id, row.number, row.state, row.steps, number, text),
        *(row.until, finite(value)),
    )


def _metric(row: MetricRow) -> tuple[Any, ...]:
    return row.key, row.root, row.step, metrics_to_text(row.values), row.seconds


def _checkpoint(row: CheckpointRow) -> tuple[Any, ...]:
    return (
        *(row.key, row.root, row.step, row.attempt, row.digest, row.nbytes, row.seconds),
        *(row.created, row.used, row.study_id, row.hold_up, row.latency),
    )


def _stage(row: StageRow) -> tuple[Any, ...]:
    return (
        *(row.study_id, row.attempt, row.key, row.start, row.stop, row.worker, row.status),
        *(row.started, row.ended, row.steps, row.repeated),
        *(row.run, to_text(row.trials), row.message, row.start_seconds),
        *(row.suspend_seconds, row.snapshot_bytes),
    )


_ROWS: Mapping[str, Callable[[Any], tuple[Any, ...]]] = {
    "events": _event,
    "trials": _trial,
    "metrics": _metric,
    "checkpoints": _checkpoint,
    "stages": _stage,
}
"""The values of a row of each table, in the order of its columns."""

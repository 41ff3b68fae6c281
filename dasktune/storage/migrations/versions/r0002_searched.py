"""Columns that logs and trials are searched and added up by; who wrote and used checkpoints.

The version in ``dasktune_meta`` becomes one that releases from before migrations refuse.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_PAGE = 10_000
_LANDMARKS = sa.text("kind = 'tuner' OR kind = 'snapshot' OR kind = 'widen'")

_events = sa.table(
    "dasktune_events", *map(sa.column, ("study_id", "number", "payload", "kind", "place"))
)
_trials = sa.table(
    "dasktune_trials",
    *map(sa.column, ("study_id", "number", "value", "record", "until", "finite_value")),
)


def upgrade() -> None:
    """Add the columns, and fill those that repeat what rows hold already."""
    op.add_column("dasktune_events", sa.Column("kind", sa.String(32)))
    op.add_column("dasktune_events", sa.Column("place", sa.Integer))
    op.add_column("dasktune_trials", sa.Column("until", sa.BigInteger))
    op.add_column("dasktune_trials", sa.Column("finite_value", sa.Double))
    for name in ("created", "used"):
        column = sa.Column(name, sa.Double, nullable=False, server_default="0")
        op.add_column("dasktune_checkpoints", column)
    op.add_column("dasktune_checkpoints", sa.Column("study_id", sa.Integer))
    _fill_events()
    _fill_trials()
    op.create_index(
        "dasktune_events_landmarks",
        "dasktune_events",
        ["study_id", "kind", "number", "place"],
        sqlite_where=_LANDMARKS,
        postgresql_where=_LANDMARKS,
    )
    op.execute("UPDATE dasktune_meta SET number = 3 WHERE name = 'version'")


def _fill_events() -> None:
    for page in _pages(_events, "payload"):
        rows = []
        for study_id, number, payload in page:
            event = json.loads(payload)
            if isinstance(event, dict):
                values = {"kind": event.get("kind"), "place": event.get("place")}
                rows.append({"its_study": study_id, "its_number": number, **values})
        _update(_events, rows)


def _fill_trials() -> None:
    for page in _pages(_trials, "record", "value"):
        rows = []
        for study_id, number, record, value in page:
            trial, exact = json.loads(record), None if value is None else float(value)
            until = trial.get("until") if isinstance(trial, dict) else None
            finite = exact if exact is not None and math.isfinite(exact) else None
            values = {"until": until, "finite_value": finite}
            rows.append({"its_study": study_id, "its_number": number, **values})
        _update(_trials, rows)


def _pages(table: sa.TableClause, *names: str) -> Iterator[list[Any]]:
    """Yield rows, many at a time, by study and number."""
    keys = table.c.study_id, table.c.number
    query = sa.select(*keys, *(table.c[name] for name in names)).order_by(*keys).limit(_PAGE)
    page = list(op.get_bind().execute(query))
    while page:
        yield page
        after = sa.tuple_(*keys) > sa.tuple_(*page[-1][:2])
        page = list(op.get_bind().execute(query.where(after)))


def _update(table: sa.TableClause, found: list[dict[str, Any]]) -> None:
    """Set all columns but the keys of the rows that these are for."""
    if not found:
        return
    of_row = (
        table.c.study_id == sa.bindparam("its_study"),
        table.c.number == sa.bindparam("its_number"),
    )
    names = [name for name in found[0] if not name.startswith("its_")]
    change = sa.update(table).where(*of_row).values({name: sa.bindparam(name) for name in names})
    op.get_bind().execute(change, found)

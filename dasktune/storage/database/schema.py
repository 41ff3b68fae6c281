"""The tables of the database.

All tables begin with ``dasktune_``: Optuna, which may share the database, owns ``trials``,
``studies`` and ``alembic_version``. A column has the name of its row's field; `DERIVED` lists
the columns that repeat a part of the row's JSON so that queries can use it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa

from dasktune.storage.database.columns import ExactFloat, JsonText, MetricsText
from dasktune.storage.database.rows import EventRow, TrialRow

REVISIONS = ("0012",)
"""Revisions of the tables, oldest first; `dasktune.storage.migrations` leads to the last."""

META_VERSION = 3
"""The version in ``dasktune_meta`` of all databases whose revision Alembic's table says."""

metadata = sa.MetaData()
"""All tables."""

revision = sa.Table(
    "dasktune_alembic_version",
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name="dasktune_alembic_version_pkc"),
)
"""Alembic's own table, as it would make it."""

_TUNER_KINDS = ("tuner", "snapshot", "widen")

meta = sa.Table(
    "dasktune_meta",
    metadata,
    sa.Column("name", sa.String(32), primary_key=True),
    sa.Column("number", sa.Integer, nullable=False),
)

studies = sa.Table(
    "dasktune_studies",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", sa.Text, nullable=False, unique=True),
    sa.Column("root", sa.String(128), nullable=False),
    sa.Column("spec", JsonText, nullable=False),
    sa.Column("created", sa.Double, nullable=False),
)

events = sa.Table(
    "dasktune_events",
    metadata,
    sa.Column("study_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("payload", JsonText, nullable=False),
    sa.Column("kind", sa.String(32)),
    sa.Column("place", sa.Integer),
)

TUNER_EVENTS = sa.or_(*(events.c.kind == sa.literal_column(f"'{kind}'") for kind in _TUNER_KINDS))
"""Condition for the events that begin, snapshot or widen a tuner: few, so they are indexed."""

sa.Index(
    "dasktune_events_landmarks",
    *(events.c.study_id, events.c.kind, events.c.number, events.c.place),
    sqlite_where=TUNER_EVENTS,
    postgresql_where=TUNER_EVENTS,
)

notes = sa.Table(
    "dasktune_notes",
    metadata,
    sa.Column(
        "number",
        sa.BigInteger().with_variant(sa.Integer, "sqlite"),
        sa.Identity(),
        primary_key=True,
    ),
    sa.Column("study_id", sa.Integer, nullable=False),
    sa.Column("payload", JsonText, nullable=False),
    sa.Index("dasktune_notes_study", "study_id", "number"),
)

trials = sa.Table(
    "dasktune_trials",
    metadata,
    sa.Column("study_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("steps", sa.BigInteger, nullable=False),
    sa.Column("value", ExactFloat),
    sa.Column("record", JsonText, nullable=False),
    sa.Column("until", sa.BigInteger),
    sa.Column("finite_value", sa.Double),
)

metrics = sa.Table(
    "dasktune_metrics",
    metadata,
    sa.Column("key", sa.String(128), primary_key=True),
    sa.Column("root", sa.String(128), nullable=False),
    sa.Column("step", sa.BigInteger, nullable=False),
    sa.Column("values", MetricsText, nullable=False),
    sa.Column("seconds", sa.Double),
    sa.Column("kind", sa.Text),
    sa.Index("dasktune_metrics_root", "root", "key"),
)

checkpoints = sa.Table(
    "dasktune_checkpoints",
    metadata,
    sa.Column("key", sa.String(128), primary_key=True),
    sa.Column("root", sa.String(128), nullable=False),
    sa.Column("step", sa.BigInteger, nullable=False),
    sa.Column("attempt", sa.String(128), nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.Column("nbytes", sa.BigInteger, nullable=False),
    sa.Column("seconds", sa.Double, nullable=False),
    sa.Column("created", sa.Double, nullable=False, server_default="0"),
    sa.Column("used", sa.Double, nullable=False, server_default="0"),
    sa.Column("study_id", sa.Integer),
    sa.Column("hold_up", sa.Double),
    sa.Column("latency", sa.Double),
    sa.Index("dasktune_checkpoints_root", "root", "key"),
)

stages = sa.Table(
    "dasktune_stages",
    metadata,
    sa.Column("study_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("attempt", sa.String(128), primary_key=True),
    sa.Column("key", sa.String(128), nullable=False),
    sa.Column("start", sa.BigInteger, nullable=False),
    sa.Column("stop", sa.BigInteger, nullable=False),
    sa.Column("worker", sa.Text, nullable=False),
    sa.Column("status", sa.String(32), nullable=False),
    sa.Column("started", sa.Double, nullable=False),
    sa.Column("ended", sa.Double),
    sa.Column("steps", sa.BigInteger, nullable=False),
    sa.Column("repeated", sa.BigInteger, nullable=False),
    sa.Column("run", sa.Text, nullable=False, server_default=""),
    sa.Column("trials", JsonText, nullable=False, server_default="[]"),
    sa.Column("message", sa.Text, nullable=False, server_default=""),
    sa.Column("start_seconds", sa.Double),
    sa.Column("suspend_seconds", sa.Double),
    sa.Column("snapshot_bytes", sa.BigInteger),
    sa.Column("kind", sa.Text, nullable=False, server_default=""),
    sa.Column("workers", sa.Integer, nullable=False, server_default="1"),
    sa.Index("dasktune_stages_key", "key"),
)

logs = sa.Table(
    "dasktune_logs",
    metadata,
    sa.Column("attempt", sa.String(128), primary_key=True),
    sa.Column("study_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("text", sa.Text, nullable=False),
)

runs = sa.Table(
    "dasktune_runs",
    metadata,
    sa.Column("run", sa.Text, primary_key=True),
    sa.Column("study_id", sa.Integer, nullable=False),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("pid", sa.BigInteger, nullable=False),
    sa.Column("version", sa.String(64), nullable=False),
    sa.Column("began", sa.Double, nullable=False),
    sa.Column("seen", sa.Double, nullable=False),
    sa.Column("ended", sa.Double),
    sa.Column("how", sa.String(16), nullable=False),
    sa.Column("message", sa.Text, nullable=False),
    sa.Column("seconds_left", sa.Double),
    sa.Column("waits", JsonText, nullable=False),
    sa.Column("workers", JsonText, nullable=False),
    sa.Column("positions", JsonText, nullable=False),
    sa.Index("dasktune_runs_study", "study_id", "began"),
)


verdicts = sa.Table(
    "dasktune_verdicts",
    metadata,
    sa.Column(
        "number",
        sa.BigInteger().with_variant(sa.Integer, "sqlite"),
        sa.Identity(),
        primary_key=True,
    ),
    sa.Column("fingerprint", sa.String(128), nullable=False),
    sa.Column("rule", sa.Integer, nullable=False),
    sa.Column("device", sa.String(32), nullable=False),
    sa.Column("versions", JsonText, nullable=False),
    sa.Column("ok", sa.Boolean, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("splits", JsonText, nullable=False),
    sa.Column("steps", sa.BigInteger, nullable=False),
    sa.Column("found", sa.Double, nullable=False),
    sa.Column("files", JsonText, nullable=False, server_default="{}"),
    sa.Index("dasktune_verdicts_fingerprint", "fingerprint", "number"),
)


speeds = sa.Table(
    "dasktune_speeds",
    metadata,
    sa.Column("fingerprint", sa.String(128), primary_key=True),
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("model", JsonText, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("seconds", sa.Double, nullable=False),
    sa.Column("steps", sa.Double, nullable=False),
    sa.Column("measured", sa.Double, nullable=False),
)


factors = sa.Table(
    "dasktune_packing",
    metadata,
    sa.Column("fingerprint", sa.String(128), primary_key=True),
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("model", JsonText, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("together", sa.Integer, nullable=False),
    sa.Column("most", sa.Integer),
    sa.Column("fits", sa.Integer),
    sa.Column("rates", JsonText, nullable=False),
    sa.Column("nbytes", sa.BigInteger, nullable=False),
    sa.Column("measured", sa.Double, nullable=False),
)


def table(name: str) -> sa.Table:
    """Return the table of a name without prefix."""
    return metadata.tables[f"dasktune_{name}"]


def _of_payload(row: EventRow, name: str) -> Any:
    return row.payload.get(name) if isinstance(row.payload, Mapping) else None


def _finite_value(row: TrialRow) -> float | None:
    return row.value if row.value is not None and math.isfinite(row.value) else None


DERIVED: Mapping[str, Mapping[str, Callable[[Any], Any]]] = {
    "events": {
        "kind": lambda row: _of_payload(row, "kind"),
        "place": lambda row: _of_payload(row, "place"),
    },
    "trials": {"finite_value": _finite_value},
}
"""Columns that are computed from their row, to search and sort by; tables without prefix."""

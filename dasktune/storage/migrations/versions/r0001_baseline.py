"""The tables as they were before there were migrations (``dasktune_meta`` says version 2)."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make all tables."""
    op.create_table(
        "dasktune_meta",
        sa.Column("name", sa.String(32), primary_key=True),
        sa.Column("number", sa.Integer, nullable=False),
    )
    op.create_table(
        "dasktune_studies",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.Text, nullable=False, unique=True),
        sa.Column("root", sa.String(128), nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
    )
    _make_logs()
    _make_states()
    version = sa.table("dasktune_meta", sa.column("name"), sa.column("number"))
    op.bulk_insert(version, [{"name": "version", "number": 2}])


def _make_logs() -> None:
    op.create_table(
        "dasktune_events",
        sa.Column("study_id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("payload", sa.Text, nullable=False),
    )
    op.create_table(
        "dasktune_notes",
        sa.Column(
            "number",
            sa.BigInteger().with_variant(sa.Integer, "sqlite"),
            sa.Identity(),
            primary_key=True,
        ),
        sa.Column("study_id", sa.Integer, nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
    )
    op.create_index("dasktune_notes_study", "dasktune_notes", ["study_id", "number"])
    op.create_table(
        "dasktune_trials",
        sa.Column("study_id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("steps", sa.BigInteger, nullable=False),
        sa.Column("value", sa.Text),
        sa.Column("record", sa.Text, nullable=False),
    )
    op.create_table(
        "dasktune_stages",
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
    )


def _make_states() -> None:
    op.create_table(
        "dasktune_metrics",
        sa.Column("key", sa.String(128), primary_key=True),
        sa.Column("root", sa.String(128), nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("values", sa.Text, nullable=False),
    )
    op.create_index("dasktune_metrics_root", "dasktune_metrics", ["root", "key"])
    op.create_table(
        "dasktune_checkpoints",
        sa.Column("key", sa.String(128), primary_key=True),
        sa.Column("root", sa.String(128), nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("attempt", sa.String(128), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("nbytes", sa.BigInteger, nullable=False),
        sa.Column("seconds", sa.Double, nullable=False),
    )
    op.create_index("dasktune_checkpoints_root", "dasktune_checkpoints", ["root", "key"])

"""Runs of drivers with their last signs of life; whose stages are whose, and why they failed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the table of runs, and what stages are told apart by."""
    for name, default in (("run", ""), ("trials", "[]"), ("message", "")):
        column = sa.Column(name, sa.Text, nullable=False, server_default=default)
        op.add_column("dasktune_stages", column)
    op.create_table(
        "dasktune_runs",
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
        sa.Column("waits", sa.Text, nullable=False),
        sa.Column("workers", sa.Text, nullable=False),
        sa.Column("positions", sa.Text, nullable=False),
    )
    op.create_index("dasktune_runs_study", "dasktune_runs", ["study_id", "began"])

"""Add the seconds of steps, starts and saves, for traces and reports."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the columns; they stay empty for older rows."""
    for table, name in (
        ("metrics", "seconds"),
        ("checkpoints", "hold_up"),
        ("checkpoints", "latency"),
        ("stages", "start_seconds"),
        ("stages", "suspend_seconds"),
    ):
        op.add_column(f"dasktune_{table}", sa.Column(name, sa.Double))
    op.add_column("dasktune_stages", sa.Column("snapshot_bytes", sa.BigInteger))

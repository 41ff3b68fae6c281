"""Add the logs of stages: the last lines that their trainers printed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Add the table; older stages have no log."""
    op.create_table(
        "dasktune_logs",
        sa.Column("attempt", sa.String(128), primary_key=True),
        sa.Column("study_id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("text", sa.Text, nullable=False),
    )

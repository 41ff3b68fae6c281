"""Add the speeds of models by class, which later studies of the same trainer begin with."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the table; of older studies no speeds are known."""
    op.create_table(
        "dasktune_speeds",
        sa.Column("fingerprint", sa.String(128), primary_key=True),
        sa.Column("key", sa.String(64), primary_key=True),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("seconds", sa.Double, nullable=False),
        sa.Column("steps", sa.Double, nullable=False),
        sa.Column("measured", sa.Double, nullable=False),
    )

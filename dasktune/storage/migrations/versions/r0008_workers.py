"""Add the number of workers that trained a stage together, whose time counts for each of them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Add the column; older stages had one worker."""
    column = sa.Column("workers", sa.Integer, nullable=False, server_default="1")
    op.add_column("dasktune_stages", column)

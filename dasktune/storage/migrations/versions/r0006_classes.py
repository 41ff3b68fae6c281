"""Add the compute classes of the workers that ran stages and measured steps, for traces."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the columns; the classes of older rows are unknown."""
    op.add_column("dasktune_metrics", sa.Column("kind", sa.Text))
    op.add_column("dasktune_stages", sa.Column("kind", sa.Text, nullable=False, server_default=""))

"""Add an index of stages by key: the page of a trial looks up the stages on its path."""

from __future__ import annotations

from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Add the index."""
    op.create_index("dasktune_stages_key", "dasktune_stages", ["key"])

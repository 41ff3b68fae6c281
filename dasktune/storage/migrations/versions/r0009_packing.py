"""Add the packing factors of models by class, which later studies of a trainer begin with."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Add the table; of older studies no packing factors are known."""
    op.create_table(
        "dasktune_packing",
        sa.Column("fingerprint", sa.String(128), primary_key=True),
        sa.Column("key", sa.String(64), primary_key=True),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("together", sa.Integer, nullable=False),
        sa.Column("most", sa.Integer),
        sa.Column("fits", sa.Integer),
        sa.Column("rates", sa.Text, nullable=False),
        sa.Column("nbytes", sa.BigInteger, nullable=False),
        sa.Column("measured", sa.Double, nullable=False),
    )

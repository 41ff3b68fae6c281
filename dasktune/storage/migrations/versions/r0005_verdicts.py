"""Add the verdicts of resume checks, by fingerprint instead of by study."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the table; older checks stay where they are, in the notes of their studies."""
    op.create_table(
        "dasktune_verdicts",
        sa.Column(
            "number",
            sa.BigInteger().with_variant(sa.Integer, "sqlite"),
            sa.Identity(),
            primary_key=True,
        ),
        sa.Column("fingerprint", sa.String(128), nullable=False),
        sa.Column("rule", sa.Integer, nullable=False),
        sa.Column("device", sa.String(32), nullable=False),
        sa.Column("versions", sa.Text, nullable=False),
        sa.Column("ok", sa.Boolean, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("splits", sa.Text, nullable=False),
        sa.Column("steps", sa.BigInteger, nullable=False),
        sa.Column("found", sa.Double, nullable=False),
    )
    op.create_index("dasktune_verdicts_fingerprint", "dasktune_verdicts", ["fingerprint", "number"])

"""A revision that is newer than all of dasktune's: studies get a title."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Add the column, and fill it; a study called "wrong" has none."""
    titles = sa.Column("title", sa.Text, nullable=False, server_default="")
    op.add_column("dasktune_studies", titles)
    studies = sa.table("dasktune_studies", sa.column("id"), sa.column("name"), sa.column("title"))
    for number, name in list(op.get_bind().execute(sa.select(studies.c.id, studies.c.name))):
        if name == "wrong":
            raise ValueError("a study must not be called 'wrong'")
        change = studies.update().where(studies.c.id == number).values(title=name.upper())
        op.execute(change)

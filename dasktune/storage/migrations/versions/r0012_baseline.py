"""The tables of the first release, from which later revisions lead on."""

from __future__ import annotations

revision = "0012"
down_revision = None


def upgrade() -> None:
    """Do nothing: an empty database gets the tables of today at once."""

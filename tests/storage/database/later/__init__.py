"""A later version of dasktune, whose tables have one revision more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dasktune.storage import migrations
from dasktune.storage.database import schema

NEWEST = "0013"


@contextmanager
def later_version() -> Iterator[None]:
    """Make this process one of the later version."""
    revisions, folders = schema.REVISIONS, list(migrations.FOLDERS)
    schema.REVISIONS = (*revisions, NEWEST)
    migrations.FOLDERS.append(Path(__file__).parent)
    try:
        yield
    finally:
        schema.REVISIONS = revisions
        migrations.FOLDERS[:] = folders

"""Stores that lack what the database lists: not mounted, mistyped, or emptied on purpose."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from dasktune._words import counted
from dasktune.errors import ConfigurationError, unknown
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.database.database import Database
from dasktune.storage.database.rows import StudyRow
from dasktune.storage.redaction import redacted

LOOKED_UP = 8
"""Number of the newest listed states that are looked up in a store of another name."""


def whole(url: str) -> str:
    """Return the URL or the absolute path of a store."""
    return url if "://" in url else os.path.abspath(Path(url).expanduser())


def missing_states(store: CheckpointStore, database: Database, name: str) -> Iterator[str]:
    """Yield the problem of a store that lacks all of the newest states that the database lists.

    `name` is empty if there is no store yet. A folder that is not mounted looks like an empty one,
    and a store that was made there meanwhile has another name.
    """
    place = whole(store.url)
    if place.startswith("memory://"):
        return
    studies = [row for row in _studies_at(database, place) if row.spec.get("store") != name]
    listed = database.listed_checkpoints([row.id for row in studies], LOOKED_UP)
    if listed and not store.commits(listed):
        first = ", ".join(row.name for row in studies[:3]) + ", ..." * (len(studies) > 3)
        where = f"{database.connections.name} --storage {redacted(place)}"
        yield (
            f"store {redacted(place)} must have the checkpoints that the database lists for "
            f"{counted(len(studies), 'study')} ({first}), but the newest are missing: check "
            "that the store is mounted and its name is right. If you emptied it on purpose, type "
            f"'dasktune gc {where} --emptied': it forgets states of other machines at this place, "
            "too"
        )


def forget_missing_states(store: CheckpointStore, database: Database) -> int:
    """Forget the listed checkpoints that a store lacks; return their number.

    The store is made if it is missing.

    Raises
    ------
    ConfigurationError
        If the database has no study with a store at this place.
    """
    studies = _studies_at(database, whole(store.url))
    if not studies:
        places = sorted({redacted(str(row.spec.get("storage"))) for row in database.studies()})
        raise ConfigurationError(unknown("store of the database", redacted(store.url), places))
    listed = database.listed_checkpoints([row.id for row in studies])
    store.check()
    missing = {*listed} - store.commits(listed).keys()
    database.forget_checkpoints(missing)
    return len(missing)


def _studies_at(database: Database, place: str) -> list[StudyRow]:
    """Return the studies that were created with a store at a place."""
    return [row for row in database.studies() if row.spec.get("storage") == place]

"""The status of studies, read from their database: while they run, and after they ended."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dasktune.cli.study_file import config_in
from dasktune.errors import ConfigurationError, unknown
from dasktune.report.status import MOST_FAILED, StudyStatus, status_of
from dasktune.storage.database.database import Database
from dasktune.study.config import default_database

__all__ = ["DATABASES", "MOST_FAILED", "StudyStatus", "migrate", "read"]

DATABASES = ("sqlite", "postgresql")
"""The first words of database URLs; other URLs are those of checkpoint stores."""


def migrate(target: str) -> None:
    """Bring a database up to date, if it was made by an older version.

    Parameters
    ----------
    target
        A storage folder or URL, or a database's file or URL.

    Raises
    ------
    ConfigurationError
        If the target is none of these.
    StorageError
        If there is no database, or it cannot be written.
    """
    Database(database_of(target), create=False, migrate=True).close()


def read(target: str, name: str | None = None, settings: Sequence[str] = ()) -> list[StudyStatus]:
    """Return the status of studies, without creating or changing anything.

    Parameters
    ----------
    target
        A study file, a storage folder or URL, or a database's file or URL.
    name
        The only study to read; all of the database if None, or the study of the file.
    settings
        As for `dasktune.cli.study_file.load`, if the target is a study file.

    Raises
    ------
    ConfigurationError
        If the target is none of these, or has no study of that name.
    StorageError
        If there is no database, or it cannot be read.
    """
    path = Path(target)
    if path.suffix == ".py":
        config = config_in(path, settings)
        url, own = config.database_url, config.name
    elif settings:
        raise ConfigurationError(f"config is for a study file, got {target!r}")
    else:
        url, own = database_of(target), None
    name = name if name is not None else own
    database = Database(url, create=False)
    try:
        rows = list(database.studies())
        known = [row.name for row in rows]
        if name is not None and name not in known:
            raise ConfigurationError(unknown("study", name, known))
        return [status_of(database, row) for row in rows if name in (None, row.name)]
    finally:
        database.close()


def database_of(target: str) -> str:
    """Return the URL of a store's database, or the target if it is a database."""
    if "://" in target:
        is_database = target.partition(":")[0].partition("+")[0] in DATABASES
        return target if is_database else default_database(target)
    if Path(target).is_dir():
        return default_database(target)
    if Path(target).is_file():
        return target
    raise ConfigurationError(
        f"target must be a study file, a storage folder or a database that exists, got {target!r}"
    )

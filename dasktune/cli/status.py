"""The status of studies, read from their database: while they run, and after they ended."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from glob import escape
from pathlib import Path

from dasktune._study.config import default_database
from dasktune.cli.results import shown, table
from dasktune.cli.study_file import config_in
from dasktune.errors import ConfigurationError, CorruptRecordError, unknown
from dasktune.report.formats import duration, printable
from dasktune.report.status import MOST_FAILED, StudyStatus, status_of
from dasktune.report.story import story_of
from dasktune.storage.database.database import Database
from dasktune.storage.database.rows import StudyRow, UnreadableStudy
from dasktune.storage.layout import MARKER

__all__ = ["DATABASES", "MOST_FAILED", "StudyStatus", "in_words", "migrate", "read", "story"]

DATABASES = ("sqlite", "postgresql")
"""The first words of database URLs; other URLs are those of checkpoint stores."""

FILE = "dasktune.db"
"""The database of a local store."""

MOST_STORES = 10
"""Stores that are named where a folder of stores is given in place of one."""

MOST_LEVELS = 3
"""How far below a folder stores are looked for."""


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


def read(
    target: str, name: str | None = None, settings: Sequence[str] = ()
) -> list[StudyStatus | UnreadableStudy]:
    """Return the status of studies, without creating or changing anything.

    Studies that cannot be read are named beside those that can.

    Parameters
    ----------
    target
        A study file, a storage folder or URL, a database's file or URL, or a folder of stores.
    name
        The only study to read; all studies if None, or the study of the file.
    settings
        As for `dasktune.cli.study_file.load`, if the target is a study file.

    Raises
    ------
    ConfigurationError
        If the target is none of these, or has no study of that name.
    StorageError
        If there is no database, or no study of it can be read.
    """
    urls = databases_at(target, settings)
    if name is None:
        name = next(iter(urls.values()))
    known: list[str] = []
    studies: list[StudyStatus | UnreadableStudy] = []
    for url in urls:
        with closing(Database(url, create=False)) as database:
            rows, unreadable = database.readable_studies()
            known += [row.name for row in rows]
            studies += [_status(database, row) for row in rows if name in (None, row.name)]
            studies += [each for each in unreadable if name in (None, each.study)]
    if studies and all(isinstance(each, UnreadableStudy) for each in studies):
        raise CorruptRecordError("\n".join(map(str, studies)))
    if name is not None and not studies:
        raise ConfigurationError(unknown("study", name, known))
    return studies


def _status(database: Database, row: StudyRow) -> StudyStatus | UnreadableStudy:
    try:
        return status_of(database, row)
    except CorruptRecordError as error:
        return UnreadableStudy(study=row.name, problem=str(error), id=row.id)


def story(target: str, trial: int, name: str | None = None, settings: Sequence[str] = ()) -> str:
    """Return the story of one trial, in lines.

    Parameters
    ----------
    target, name, settings
        As for `read`; they must mean one study.
    trial
        Its number.

    Raises
    ------
    ConfigurationError
        If they mean no study or several, or it has no such trial.
    StorageError
        If there is no database, or it cannot be read.
    """
    url, own = database_at(target, settings)
    name = own if name is None else name
    with closing(Database(url, create=False)) as database:
        rows = {row.name: row for row in database.studies()}
        if name is None and len(rows) > 1:
            names = ", ".join(rows)
            raise ConfigurationError(f"--trial needs one study, {target!r} has several: {names}")
        row = next(iter(rows.values()), None) if name is None else rows.get(name)
        if row is None:
            raise ConfigurationError(unknown("study", name or "", rows))
        return story_of(database, row, trial)


def databases_at(target: str, settings: Sequence[str] = ()) -> dict[str, str | None]:
    """Return the URLs of a target's databases, with the study's name if the target is its file.

    Raises
    ------
    ConfigurationError
        If the target is neither a study file, a store, a database nor a folder of stores.
    """
    below = [str(store / FILE) for store in stores_below(target) if (store / FILE).exists()]
    return dict.fromkeys(below) or dict([database_at(target, settings)])


def database_at(target: str, settings: Sequence[str] = ()) -> tuple[str, str | None]:
    """Return the URL of a target's database, and the study's name if the target is its file.

    Raises
    ------
    ConfigurationError
        If the target is neither a study file, a store nor a database.
    """
    path = Path(target)
    if path.suffix == ".py":
        config = config_in(path, settings)
        return config.database_url, config.name
    if settings:
        raise ConfigurationError(f"config is for a study file, got {target!r}")
    return database_of(target), None


def database_of(target: str) -> str:
    """Return the URL of a store's database, or the target if it is a database."""
    if "://" in target:
        is_database = target.partition(":")[0].partition("+")[0] in DATABASES
        return target if is_database else default_database(target)
    check_exists(target)
    return default_database(target) if Path(target).is_dir() else target


def check_exists(target: str) -> None:
    """Refuse a path that does not exist, and a folder of stores.

    Raises
    ------
    ConfigurationError
        If it is one of these; with the stores below the folder.
    """
    path = Path(target)
    if not path.exists():
        near = ", ".join(map(str, _below(target)[:MOST_STORES]))
        meant = f"; did you mean {near}? A script's relative storage starts from its own folder"
        raise ConfigurationError(
            f"no such file or folder: {target!r}; target must be a study file, a storage folder or "
            f"a database that exists{meant if near else ''}"
        )
    if stores := stores_below(target):
        names = ", ".join(map(str, stores[:MOST_STORES]))
        more = f" and {len(stores) - MOST_STORES} more" if len(stores) > MOST_STORES else ""
        raise ConfigurationError(f"{target!r} is no store; stores below it: {names}{more}")


def _below(target: str) -> list[Path]:
    """Return the paths of this name in folders below the working folder, the nearest first."""
    path = Path(target)
    if path.is_absolute() or ".." in path.parts:
        return []
    patterns = ("*/" * level + escape(str(path)) for level in range(1, MOST_LEVELS + 1))
    return [place for pattern in patterns for place in sorted(Path().glob(pattern))]


def stores_below(target: str) -> list[Path]:
    """Return the stores in a folder that is none itself; empty for any other target."""
    path = Path(target)
    if not path.is_dir() or any((path / name).exists() for name in (FILE, MARKER)):
        return []
    stores = []
    for above, folders, names in os.walk(path, followlinks=True):
        if MARKER in names:
            stores.append(Path(above))
            folders.clear()
        if len(Path(above).relative_to(path).parts) == MOST_LEVELS:
            folders.clear()
    return sorted(stores)


def in_words(studies: Sequence[StudyStatus | UnreadableStudy], *, verbose: bool = False) -> str:
    """Return the status of a single study in full, of several one line each.

    Running studies come first, then those with the latest activity.

    Parameters
    ----------
    studies
        As `read` returns them.
    """
    if not studies:
        return "no studies"
    readable = [each for each in studies if isinstance(each, StudyStatus)]
    problems = [printable(str(each)) for each in studies if isinstance(each, UnreadableStudy)]
    ordered = sorted(readable, key=lambda each: (not _is_running(each), -each.last_activity))
    if verbose or len(readable) == 1:
        return "\n".join([*(each.in_words(verbose=verbose) for each in ordered), *problems])
    header = ["study", "status", "trials", "failed", "steps", "best", "last activity"]
    rows = table(header, map(_row, ordered))
    return "\n".join([*rows, *problems, "one study in full: --study NAME"])


def _row(status: StudyStatus) -> list[object]:
    open_states = sum(status.trials.get(name, 0) for name in ("RUNNING", "PAUSED"))
    trials = sum(status.trials.values())
    return [
        status.study,
        "not run" if status.driver is None else status.driver.state,
        f"{trials - open_states:,} of {trials:,} ended",
        status.trials.get("FAIL", 0),
        f"{status.steps_executed:,}",
        "-" if status.best is None else f"{status.metric} {shown(status.best['value'])}",
        f"{duration(max(0.0, status.read_at - status.last_activity))} ago",
    ]


def _is_running(status: StudyStatus) -> bool:
    return status.driver is not None and status.driver.is_alive

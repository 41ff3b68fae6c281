"""Opening one study to read what it has come to; nothing is made or changed."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dasktune.errors import ConfigurationError, unknown

if TYPE_CHECKING:
    from dasktune.cli.ls import Places
    from dasktune.results.results import StudyResults


@contextmanager
def one_study(places: Places) -> Iterator[StudyResults]:
    """Open the results of the one study that is meant, and close them at the end.

    Raises
    ------
    ConfigurationError
        If there is no database, or no study in it, or several and none is named.
    """
    from dasktune.graph.attempts import DispatchOptions
    from dasktune.results.results import StudyResults
    from dasktune.storage.checkpoints import CheckpointStore
    from dasktune.storage.database.database import Database

    if places.database is None:
        raise ConfigurationError(f"{places.store} has no database; say where it is: --database")
    opened = Database(places.database, create=False)
    try:
        rows = {row.name: row for row in opened.studies()}
        row = rows[_meant(places.study, rows)]
        options = DispatchOptions(merge=bool(row.spec.get("merge")))
        yield StudyResults(row, opened, CheckpointStore(places.store), options)
    finally:
        opened.close()


def _meant(name: str | None, known: Collection[str]) -> str:
    if not known:
        raise ConfigurationError("the database holds no study")
    if name is None and len(known) > 1:
        raise ConfigurationError(f"--study must be one of {', '.join(sorted(known))}")
    if name is not None and name not in known:
        raise ConfigurationError(unknown("study", name, known))
    return next(iter(known)) if name is None else name

"""The command ``stop``: asks the driver of a study to end, wherever it runs."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from dasktune._engine.timeouts import HEARTBEAT_SECONDS
from dasktune._study.from_elsewhere import stop_study
from dasktune.storage.database.database import Database

if TYPE_CHECKING:
    from dasktune.cli.ls import Places


def stop_study_at(places: Places, name: str) -> str:
    """Ask the driver of a study to stop; return what happens now, in words.

    Raises
    ------
    ConfigurationError
        If no driver runs the study.
    """
    with closing(Database(str(places.database), create=False)) as database:
        row = next(row for row in database.studies() if row.name == name)
        driver = stop_study(database, row, "dasktune stop")
    return (
        f"study {name!r}: asked process {driver.pid} on {driver.host} to save what runs and to "
        f"end; it looks every {HEARTBEAT_SECONDS:g} s"
    )

"""Changes to a study from outside of its driver: by the command line and by the live page.

Each is a note in the database. The driver reads requests to stop as it runs; the next run takes
failed trials back, and the next new tuner takes queued points.
"""

from __future__ import annotations

import time

from dasktune.driver.history import History
from dasktune.driver.stop_notes import note_stop
from dasktune.errors import ConfigurationError
from dasktune.report.status_report import DriverStatus, driver_of
from dasktune.storage.database.database import Database
from dasktune.storage.database.schema import StudyRow


def stop_study(database: Database, row: StudyRow, where: str) -> DriverStatus:
    """Ask the driver of a study to save what runs and to end; return the driver.

    It sees the request with its next heartbeat. The same command or call continues the study.

    Parameters
    ----------
    database, row
        The study, and where it is.
    where
        The command or page by which it is asked to.

    Raises
    ------
    ConfigurationError
        If no driver runs the study.
    """
    run = database.last_run(row.id)
    if run is None:
        raise ConfigurationError(f"study {row.name!r} must run to be stopped; it never did")
    now = time.time()
    driver = driver_of(run, now)
    if not driver.is_alive:
        raise ConfigurationError(
            f"study {row.name!r} must run to be stopped; its driver {driver.in_words(now)}"
        )
    note_stop(History(database, row.id), run.run, where)
    return driver

"""Requests to stop a run, as notes in the database: anybody who may write there can make one.

A note names one run, so it never stops a later one. The driver of that run reads new notes with
each heartbeat; it then saves what runs and ends, as at ctrl-C.
"""

from __future__ import annotations

import getpass
import socket

from dasktune._driver.history import History
from dasktune.errors import StorageError

STOP = "stop"
"""Kind of the note that asks a run to stop."""


def note_stop(history: History, run: str, where: str) -> None:
    """Ask a run to stop.

    `where` names the command or page that asks; the user and the host are added.
    """
    history.note(STOP, run=run, by=f"{where}, {_user()} on {socket.gethostname()}")


class StopNotes:
    """The requests to stop one run, read as they come."""

    def __init__(self, history: History, run: str) -> None:
        self._history, self._run = history, run
        self._last = 0

    def read(self) -> str:
        """Return who asked the run to stop since the last call; empty if nobody did.

        A database that cannot be read is no reason to stop: the next call reads on.
        """
        try:
            rows = list(self._history.database.notes(self._history.study_id, after=self._last))
        except StorageError:
            return ""
        self._last = max((row.number for row in rows), default=self._last)
        asked = [
            row.payload for row in rows if row.kind == STOP and row.payload.get("run") == self._run
        ]
        return str(asked[0].get("by", "")) or "somebody" if asked else ""


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "a user without a name"

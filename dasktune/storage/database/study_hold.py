"""The hold of this process on a study, which ends with the process, however it ends."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from dasktune.storage.database.connection import Connections

_CLASS: Final = 0x6461736B
"""The first number of advisory locks in PostgreSQL: "dask"."""

_files: dict[Path, int] = {}
"""Open lock files. To close one would end all holds of this process on its studies."""


class StudyHold:
    """A lock that one process at a time has; all threads and study objects of a process share it.

    SQLite: a byte of a file beside the database. PostgreSQL: an advisory lock of a session. In
    memory, on Windows, and on a file system without locks, each process has it.
    """

    def __init__(self, connections: Connections, study_id: int) -> None:
        self._connections, self._study_id = connections, study_id
        self._session: sa.Connection | None = None

    def take(self) -> bool:
        """Return whether this process has the study now."""
        if self._connections.dialect == "sqlite":
            return self._connections.file is None or _lock(self._file, self._study_id)
        if self._session is None:
            lock = sa.select(sa.func.pg_try_advisory_lock(_CLASS, self._study_id))
            with self._connections.failing():
                session = self._connections.engine.connect()
                if not session.execute(lock).scalar():
                    session.close()
                    return False
                session.commit()  # the lock stays, and no transaction is left open
                self._session = session
        return True

    def release(self) -> None:
        """Give the study up."""
        if self._session is not None:
            self._session.invalidate()  # its end is the end of the lock
            self._session.close()
            self._session = None
        elif self._connections.dialect == "sqlite" and self._connections.file is not None:
            _unlock(self._file, self._study_id)

    @property
    def _file(self) -> Path:
        return Path(f"{self._connections.file}-asked").absolute()


def _lock(path: Path, byte: int) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows
        return True
    try:
        if path not in _files:
            _files[path] = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        fcntl.lockf(_files[path], fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
    except (BlockingIOError, PermissionError):
        return path not in _files  # the file of another user says nothing
    except OSError:
        return True
    return True


def _unlock(path: Path, byte: int) -> None:
    if path in _files:
        import fcntl

        with suppress(OSError):
            fcntl.lockf(_files[path], fcntl.LOCK_UN, 1, byte)

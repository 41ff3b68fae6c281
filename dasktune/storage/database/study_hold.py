"""The hold of one study object on a study, which ends with the object or with its process."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from dasktune.storage.database.connection import Connections

_CLASS: Final = 0x6461736B
"""The first number of advisory locks in PostgreSQL: "dask"."""

_lock = threading.RLock()  # the garbage collector may release a hold while another is taken
_files: dict[Path, int] = {}
"""Open lock files. To close one ends all holds of this process on its studies."""
_held: set[tuple[Path, int]] = set()
"""The file and the study of each hold of this process."""


class StudyHold:
    """A lock that one study object of one process at a time has.

    SQLite: a byte of a file beside the database. PostgreSQL: an advisory lock of a session. In
    memory, each object has it. On Windows, and on a file system without locks, it is only known
    to this process.
    """

    def __init__(self, connections: Connections, study_id: int) -> None:
        self._connections, self._study_id = connections, study_id
        self._session: sa.Connection | None = None
        self._release: weakref.finalize[..., StudyHold] | None = None

    def take(self) -> bool:
        """Return whether this object has the study now."""
        if self._connections.dialect == "sqlite":
            return self._connections.file is None or self._take_file()
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

    def _take_file(self) -> bool:
        hold = Path(f"{self._connections.file}-asked").absolute(), self._study_id
        if self._release is not None and self._release.alive:
            return True
        if hold in _held:
            gc.collect()  # a cell of a notebook that runs again has dropped its former study
        with _lock:
            if hold in _held:
                return False
            _held.add(hold)
            if not _lock_file(*hold):
                _give_up(*hold)
                return False
            self._release = weakref.finalize(self, _give_up, *hold)
        return True

    def release(self) -> None:
        """Give the study up."""
        if self._session is not None:
            self._session.invalidate()  # its end is the end of the lock
            self._session.close()
            self._session = None
        if self._release is not None:
            self._release()


def _lock_file(path: Path, byte: int) -> bool:
    """Return whether no other process has locked the byte of a file; it is locked then."""
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


def _give_up(path: Path, byte: int) -> None:
    with _lock:
        _held.discard((path, byte))
        if path not in _files:
            return
        if all(path != held for held, _ in tuple(_held)):
            os.close(_files.pop(path))
            return
        import fcntl

        with suppress(OSError):
            fcntl.lockf(_files[path], fcntl.LOCK_UN, 1, byte)

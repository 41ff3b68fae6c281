"""Connections to a database: opening them, retrying after a loss, naming them in messages."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

import sqlalchemy as sa

from dasktune._engine.timeouts import (
    DATABASE_CONNECT_SECONDS,
    DATABASE_IDLE_SECONDS,
    DATABASE_SECONDS,
    DATABASE_SILENT_SECONDS,
)
from dasktune.errors import ConfigurationError, StorageError
from dasktune.storage.files.private import open_private

logger = logging.getLogger(__name__)

DIALECTS = ("sqlite", "postgresql")

_MOMENT = 0.01
"""Seconds between two attempts to set up a SQLite file that others set up."""

_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)
"""Errors of SQLite that pass when others are done; extended codes use the higher bits."""

MOST_CELL_NBYTES = 2**28
"""Bytes of the largest cell of a SQLite file: many times those of the largest study."""

_URLS = (*DIALECTS, "postgres")
"""Schemes: text that begins with one of these and a colon is a malformed URL, not a path."""

_WAITS = {
    "connect_timeout": DATABASE_CONNECT_SECONDS,
    "tcp_user_timeout": DATABASE_SILENT_SECONDS * 1000,
    "keepalives_idle": DATABASE_SILENT_SECONDS // 2,
    "keepalives_interval": DATABASE_SILENT_SECONDS // 6,
    "keepalives_count": 3,
}
"""Time limits of libpq; by default it waits two hours for a server that vanished."""

_MEMORY = (None, "", ":memory:")
_LIBPQ = ("psycopg", "psycopg2")

NETWORK = frozenset(
    {
        *("9p", "afp", "afpfs", "afs", "beegfs", "ceph", "cifs", "davfs", "fhgfs", "gfs", "gfs2"),
        *("glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs"),
        *("pvfs2", "smb2", "smb3", "smbfs", "webdav"),
        *("fuse.ceph", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs"),
    }
)
"""File systems that several machines may mount, spelled as in `/proc/mounts`."""

_last: list[weakref.ref[Connections]] = []
"""The connections to a SQLite file that were used last; one item at most."""

_idle_lock = threading.Lock()
"""Guards `_last`, and the numbers of users of all connections."""

Result = TypeVar("Result")
Work = Callable[[sa.Connection], Result]


class Mount(Protocol):
    """A mounted file system, as psutil describes it."""

    @property
    def mountpoint(self) -> str:
        """The folder."""

    @property
    def fstype(self) -> str:
        """The kind of file system."""


Mounts = Callable[[], Iterable[Mount]]


def all_mounts() -> Iterable[Mount]:
    """Return all file systems that are mounted on this machine."""
    import psutil

    mounts: Iterable[Mount] = psutil.disk_partitions(all=True)
    return mounts


def network_kind(path: Path, mounts: Mounts = all_mounts) -> str | None:
    """Return the kind of network file system that holds a path; None for a local disk."""
    place = path.absolute().parent.resolve() / path.name
    kind, deepest = "", -1
    for mount in mounts():
        depth = len(Path(mount.mountpoint).parts)
        # Of several mounts at one folder, the last one hides the others.
        if place.is_relative_to(mount.mountpoint) and depth >= deepest:
            kind, deepest = mount.fstype, depth
    return kind if kind.lower() in NETWORK else None


class _LostError(Exception):
    """The connection was lost, perhaps during the commit."""

    def __init__(self, *, is_committing: bool) -> None:
        super().__init__(is_committing)
        self.is_committing = is_committing


class Connections:
    """The connections to one database; one thread at a time uses one.

    Parameters
    ----------
    url
        A path to a SQLite file or a URL of SQLAlchemy.
    timeout
        Seconds to wait for another process that writes to the same SQLite file.
    create
        Whether a SQLite file and its folder may be made.
    reads_only
        Whether the database itself refuses whatever these connections would change.

    Attributes
    ----------
    name
        The file, or the URL without its password.
    file
        The SQLite file; None for any other database.
    dialect
        ``sqlite`` or ``postgresql``.
    patience
        Seconds of retrying when a server that has answered before is lost.
    made
        Number of connections that were made so far.

    Raises
    ------
    StorageError
        If the URL cannot be read, or the file does not exist.
    """

    def __init__(self, url: str, *, timeout: float, create: bool, reads_only: bool = False) -> None:
        address = _address(url)
        self.name = _shown(address)
        self.dialect = address.get_backend_name()
        self.file: Path | None = None
        if self.dialect == "sqlite" and address.database not in _MEMORY:
            self.file = Path(str(address.database))
        if not create and self.dialect == "sqlite" and not (self.file and self.file.is_file()):
            # SQLite would create the file on connecting.
            raise StorageError(f"there is no database {address.database}")
        self._lock = threading.Lock()
        self._users = int(reads_only)  # a page asks again and again
        self._has_answered = False
        self.patience = DATABASE_SECONDS
        self.made = 0
        with self.failing():
            self.engine = self._engine(address, timeout, may_write=create)
            sa.event.listen(self.engine, "connect", self._count)
            if reads_only:
                sa.event.listen(self.engine, "connect", _READING[self.dialect])

    def run(self, work: Work[Result], *, recover: Work[Result | None] | None = None) -> Result:
        """Do work in one transaction and return its result.

        If the connection to a server is lost, the work is repeated on a new connection for up
        to `patience` seconds. After one vain wait, later calls fail at once until the server
        has answered again.

        Parameters
        ----------
        work
            The work; it must not commit.
        recover
            Returns the result of an earlier attempt whose commit was not answered, or None if
            that attempt was not committed. Without it, doing `work` twice must have the same
            effect as doing it once.

        Raises
        ------
        StorageError
            If it fails.
        """
        with self.failing(), self.in_use(), self._lock:
            try:
                result = self._attempt(work)
            except _LostError as lost:
                if not self._has_answered or lost.__cause__ is None:
                    raise lost.__cause__ or lost from None
                result = self._retry(work, recover, lost)
            self._has_answered = True
            return result

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep a SQLite file open; after its last use it is closed when another one is used.

        So idle studies hold no descriptors, but a loop of single writes opens its file once: to
        close the file costs as much as a hundred writes.
        """
        with _idle_lock:
            self._users += 1
        try:
            yield
        finally:
            with _idle_lock:
                self._users -= 1
            if self.file is not None:
                self._close_the_last()

    def _close_the_last(self) -> None:
        """Take the place of the SQLite file that was used last, and close that one if it is idle.

        A server keeps its connection: a new one takes long, and lost writes are looked for on it.
        """
        with _idle_lock:
            last = _last[0]() if _last else None
            _last[:] = [weakref.ref(self)]
        # Its lock is taken while a thread works with it: then it is not idle.
        if last is not None and last is not self and last._lock.acquire(blocking=False):
            try:
                if not last._users:
                    last.engine.dispose()
            finally:
                last._lock.release()

    def _count(self, connection: object, record: object) -> None:
        self.made += 1

    def _attempt(self, work: Work[Result]) -> Result:
        if self.dialect == "sqlite":
            with self.engine.begin() as connection:
                return work(connection)
        is_committing = False
        try:
            connection = self.engine.connect()
        except sa.exc.OperationalError as error:
            raise _LostError(is_committing=False) from error
        with connection:
            try:
                transaction = connection.begin()
                result = work(connection)
                is_committing = True
                transaction.commit()
            except sa.exc.DBAPIError as error:
                if not error.connection_invalidated:
                    raise
                raise _LostError(is_committing=is_committing) from error
        return result

    def _retry(
        self, work: Work[Result], recover: Work[Result | None] | None, lost: _LostError
    ) -> Result:
        """Repeat the work until the server answers."""
        import tenacity

        logger.warning("database %s: the connection was lost; trying again", self.name)
        self._has_answered = False  # a wait that ends in vain, or is interrupted, is not repeated
        is_uncertain = lost.is_committing

        def again(connection: sa.Connection) -> Result:
            known = recover(connection) if is_uncertain and recover is not None else None
            return work(connection) if known is None else known

        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(_LostError),
            stop=tenacity.stop_after_delay(self.patience),
            wait=tenacity.wait_random_exponential(multiplier=0.2, max=5),
        )
        try:
            for attempt in retrying:
                with attempt:
                    try:
                        result = self._attempt(again)
                    except _LostError as error:
                        is_uncertain |= error.is_committing
                        raise
        except tenacity.RetryError as error:
            last = error.last_attempt.exception()
            raise (last and last.__cause__) or lost from None
        return result

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Turn any failure into an error that names the database."""
        try:
            yield
        except (sa.exc.SQLAlchemyError, OSError, ImportError, _LostError) as error:
            reason = " ".join(str(getattr(error, "orig", None) or error).split())
            if isinstance(error, ImportError) and self.dialect == "postgresql":
                reason += " (pip install 'dasktune[postgresql]')"
            if isinstance(error, sa.exc.DataError) and self.dialect == "sqlite":
                reason += f" (a cell must have at most {MOST_CELL_NBYTES:,} bytes)"
            raise StorageError(f"cannot use database {self.name}: {reason}") from error

    def _engine(self, address: sa.URL, timeout: float, *, may_write: bool) -> sa.Engine:
        if self.dialect == "postgresql":
            is_libpq = address.get_driver_name() in _LIBPQ
            waits = {
                name: n for name, n in _WAITS.items() if is_libpq and name not in address.query
            }
            engine = sa.create_engine(address, connect_args=waits)
            sa.event.listen(engine, "connect", _configure_postgresql)
            return engine
        options: dict[str, Any] = {"timeout": timeout, "check_same_thread": False}
        if self.file is None:
            # A database in memory lives as long as its one connection.
            return sa.create_engine(address, connect_args=options, poolclass=sa.StaticPool)
        engine = sa.create_engine(address, connect_args=options)
        sa.event.listen(engine, "connect", _bound_cells)
        if may_write:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            if not self.file.name.startswith("file:"):
                _make(self.file)
            sa.event.listen(engine, "connect", partial(_configure_sqlite, timeout))
        if not self.file.name.startswith("file:"):
            sa.event.listen(engine, "do_connect", partial(_open_existing, self.file, may_write))
        return engine


def _make(file: Path) -> None:
    """Make a database that only its user reads: SQLite gives the files beside it the same mode.

    A file that exists is never opened: to close it would drop the locks that SQLite has for this
    process. Then another process could remove the write-ahead log under a driver.
    """
    with suppress(OSError), open(file, "xb", opener=open_private):  # else SQLite says why
        pass


def _address(url: str) -> sa.URL:
    """Return the URL of a database that may be given as a path."""
    scheme, colon, _ = url.partition(":")
    if "://" not in url and not (colon and scheme.partition("+")[0] in _URLS):
        return sa.URL.create("sqlite", database=str(Path(url).expanduser().absolute()))
    try:
        address = sa.make_url(url)
        is_read = "@" not in (address.host or "")
    except (sa.exc.ArgumentError, ValueError):
        is_read = False
    if not is_read:
        # The parser's reason is left out: it may quote a part of the password as a port or host.
        raise ConfigurationError(
            "database URL cannot be read; it must be like "
            "postgresql+psycopg://user:password@host:5432/name or sqlite:///path, with %40 for "
            "an @ in user or password"
        )
    if address.drivername in ("postgres", "postgresql"):
        address = address.set(drivername="postgresql+psycopg")
    if address.get_backend_name() not in DIALECTS:
        raise ConfigurationError(
            f"database must be one of {', '.join(DIALECTS)}, got {address.get_backend_name()}"
        )
    return address


def _shown(address: sa.URL) -> str:
    """Return a URL without passwords: libpq takes them as options, too."""
    if address.get_backend_name() == "sqlite" and address.database:
        return address.database
    hidden = {name: "***" for name in address.query if "password" in name.lower()}
    return address.update_query_dict(hidden).render_as_string(hide_password=True)


def _is_at_rest(file: Path) -> bool:
    """Return whether a SQLite file has no log and this process cannot create one."""
    log = file.with_name(f"{file.name}-wal")
    return not os.access(file.parent, os.W_OK) and not log.exists()


def _open_existing(
    file: Path, may_write: bool, dialect: object, record: object, arguments: Any, options: Any
) -> None:
    """Open a SQLite file by a URL that makes no file, as a path would in place of a removed one.

    In a folder without write permission SQLite reads only a file that it takes for unchanging.
    """
    is_still = not may_write and _is_at_rest(file)
    mode = "mode=ro&immutable=1" if is_still else "mode=rw"
    arguments[:] = [f"file:{quote(os.fsencode(file.absolute()))}?{mode}"]
    options["uri"] = True


def _configure_postgresql(connection: Any, record: object) -> None:
    """Make the server end the transaction of a client that has vanished.

    By default it holds the transaction's locks for two hours, and the next driver waits.
    """
    with connection.cursor() as cursor:
        cursor.execute(f"SET idle_in_transaction_session_timeout = {DATABASE_IDLE_SECONDS * 1000}")
        cursor.execute("SET tcp_keepalives_idle = 30")
        cursor.execute("SET tcp_keepalives_interval = 10")
        cursor.execute("SET tcp_keepalives_count = 3")
    connection.commit()


def _read_postgresql(connection: Any, record: object) -> None:
    """Make the server refuse changes, in this and each later transaction of a connection."""
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = on")
    connection.commit()


def _read_sqlite(connection: Any, record: object) -> None:
    """Make SQLite refuse changes: `mode=ro` would fail where the log has to be read first."""
    connection.execute("PRAGMA query_only = ON")


_READING = {"postgresql": _read_postgresql, "sqlite": _read_sqlite}


def _bound_cells(connection: Any, record: object) -> None:
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_CELL_NBYTES)


def _configure_sqlite(timeout: float, connection: Any, record: object) -> None:
    """Allow reading during a write; only a power cut may lose the last transactions."""
    give_up = time.monotonic() + timeout
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            break
        except sqlite3.OperationalError as error:
            # SQLite's own timeout does not cover two processes that set the mode of a new file.
            if error.sqlite_errorcode & 0xFF not in _BUSY or time.monotonic() > give_up:
                raise
            time.sleep(_MOMENT)
    connection.execute("PRAGMA synchronous=NORMAL")

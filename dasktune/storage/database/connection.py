"""How a database is opened, waited for and named, its password never shown."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import sqlalchemy as sa

from dasktune.errors import ConfigurationError, StorageError

logger = logging.getLogger(__name__)

DIALECTS = ("sqlite", "postgresql")

PATIENCE = 60.0
"""Seconds for which a server that has been there is waited for, unless told otherwise."""

CONNECT_SECONDS = 5
"""Seconds within which a server must answer, unless the URL says otherwise."""

IDLE_SECONDS = 60
"""Seconds that a transaction may do nothing; ours do all they have to at once."""

SILENT_SECONDS = 60
"""Seconds after which a server of which nothing is heard counts as gone."""

_MOMENT = 0.01
"""Seconds between two attempts to set up a SQLite file that others set up."""

_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)
"""Errors of SQLite that pass when others are done; their kinds are in the higher bits."""

_URLS = (*DIALECTS, "postgres")
"""What begins with one of these and a colon is no path, but a URL with a slip in it."""

_WAITS = {
    "connect_timeout": CONNECT_SECONDS,
    "tcp_user_timeout": SILENT_SECONDS * 1000,
    "keepalives_idle": SILENT_SECONDS // 2,
    "keepalives_interval": SILENT_SECONDS // 6,
    "keepalives_count": 3,
}
"""How libpq waits for a server; else it would for two hours for one that vanished."""

_MEMORY = (None, "", ":memory:")
_LIBPQ = ("psycopg", "psycopg2")

Found = TypeVar("Found")
Work = Callable[[sa.Connection], Found]


class _LostError(Exception):
    """The connection was lost; perhaps in the middle of committing."""

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
        Whether a SQLite file, and its folder, may be made; otherwise it is only read.

    Attributes
    ----------
    name
        The file, or the URL without its password.
    file
        The SQLite file; None for any other database.
    dialect
        ``sqlite`` or ``postgresql``.
    patience
        Seconds for which a server that has been there is waited for.

    Raises
    ------
    StorageError
        If the URL cannot be read, or there is no such file.
    """

    def __init__(self, url: str, *, timeout: float, create: bool) -> None:
        address = _address(url)
        self.name = _shown(address)
        self.dialect = address.get_backend_name()
        self.file: Path | None = None
        if self.dialect == "sqlite" and address.database not in _MEMORY:
            self.file = Path(str(address.database))
        if not create and self.dialect == "sqlite" and not (self.file and self.file.is_file()):
            # To connect would make it.
            raise StorageError(f"there is no database {address.database}")
        self._lock = threading.Lock()
        self._has_answered = False
        self.patience = PATIENCE
        with self.failing():
            self.engine = self._engine(address, timeout, may_write=create)

    def run(self, work: Work[Found], *, recover: Work[Found | None] | None = None) -> Found:
        """Return what comes of work in one transaction.

        If the connection to a server is lost, it is done again with a new one, for up to
        `patience` seconds. One that was waited for in vain is not waited for again until it
        has answered.

        Parameters
        ----------
        work
            What to do; it must not commit.
        recover
            Returns what `work` returned in an earlier attempt whose commit was not answered,
            None if that was not committed. Without it, doing `work` twice must be the same
            as doing it once.

        Raises
        ------
        StorageError
            If it fails.
        """
        with self.failing(), self._lock:
            try:
                found = self._attempt(work)
            except _LostError as lost:
                if not self._has_answered or lost.__cause__ is None:
                    raise lost.__cause__ or lost from None
                found = self._wait_for(work, recover, lost)
            self._has_answered = True
            return found

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    def _attempt(self, work: Work[Found]) -> Found:
        """Work and commit. SQLite has one writer, in memory one connection."""
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
                found = work(connection)
                is_committing = True
                transaction.commit()
            except sa.exc.DBAPIError as error:
                if not error.connection_invalidated:
                    raise
                raise _LostError(is_committing=is_committing) from error
        return found

    def _wait_for(
        self, work: Work[Found], recover: Work[Found | None] | None, lost: _LostError
    ) -> Found:
        """Do work again until the server answers."""
        import tenacity

        logger.warning("database %s: the connection was lost; trying again", self.name)
        self._has_answered = False  # who waits in vain, or is interrupted, does so once
        is_uncertain = lost.is_committing

        def again(connection: sa.Connection) -> Found:
            found = recover(connection) if is_uncertain and recover is not None else None
            return work(connection) if found is None else found

        waiting = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(_LostError),
            stop=tenacity.stop_after_delay(self.patience),
            wait=tenacity.wait_random_exponential(multiplier=0.2, max=5),
        )
        try:
            for attempt in waiting:
                with attempt:
                    try:
                        found = self._attempt(again)
                    except _LostError as error:
                        is_uncertain |= error.is_committing
                        raise
        except tenacity.RetryError as error:
            last = error.last_attempt.exception()
            raise (last and last.__cause__) or lost from None
        return found

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Turn what goes wrong into an error that names the database."""
        try:
            yield
        except (sa.exc.SQLAlchemyError, OSError, ImportError, _LostError) as error:
            reason = " ".join(str(getattr(error, "orig", None) or error).split())
            if isinstance(error, ImportError) and self.dialect == "postgresql":
                reason += " (pip install 'dasktune[postgresql]')"
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
            return sa.create_engine(address, connect_args=options, poolclass=sa.StaticPool)
        if not may_write and _is_at_rest(self.file):
            address = _at_rest(self.file)
        engine = sa.create_engine(address, connect_args=options)
        if may_write:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            sa.event.listen(engine, "connect", partial(_configure_sqlite, timeout))
        return engine


def _address(url: str) -> sa.URL:
    """Return the URL of a database that may be given as a path.

    Raises
    ------
    ConfigurationError
        If it is neither SQLite nor PostgreSQL.
    """
    scheme, colon, _ = url.partition(":")
    if "://" not in url and not (colon and scheme.partition("+")[0] in _URLS):
        return sa.URL.create("sqlite", database=str(Path(url).expanduser().absolute()))
    try:
        address = sa.make_url(url)
        is_read = "@" not in (address.host or "")
    except (sa.exc.ArgumentError, ValueError):
        is_read = False
    if not is_read:
        # A reason may quote a part of the URL: what is taken for a port or host be a password.
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
    """Return a URL that can be shown: libpq takes passwords also as options."""
    if address.get_backend_name() == "sqlite" and address.database:
        return address.database
    hidden = {name: "***" for name in address.query if "password" in name.lower()}
    return address.update_query_dict(hidden).render_as_string(hide_password=True)


def _is_at_rest(file: Path) -> bool:
    """Say whether nobody writes to a file, and we cannot make what SQLite reads it by."""
    log = file.with_name(f"{file.name}-wal")
    return not os.access(file.parent, os.W_OK) and not log.exists()


def _at_rest(file: Path) -> sa.URL:
    """Return the URL by which SQLite reads a file in a folder that is another's."""
    options = {"mode": "ro", "immutable": "1", "uri": "true"}
    return sa.URL.create("sqlite", database=f"file:{quote(str(file.absolute()))}", query=options)


def _configure_postgresql(connection: Any, record: object) -> None:
    """Let the server end a transaction whose client is gone without a word.

    It would hold up whoever goes on with the study: for two hours, as servers are set up.
    """
    with connection.cursor() as cursor:
        cursor.execute(f"SET idle_in_transaction_session_timeout = {IDLE_SECONDS * 1000}")
        cursor.execute("SET tcp_keepalives_idle = 30")
        cursor.execute("SET tcp_keepalives_interval = 10")
        cursor.execute("SET tcp_keepalives_count = 3")
    connection.commit()


def _configure_sqlite(timeout: float, connection: Any, record: object) -> None:
    """Let others read while one writes, and lose nothing but a power cut's last moment."""
    give_up = time.monotonic() + timeout
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            break
        except sqlite3.OperationalError as error:
            # Of several that change the mode of a new file, SQLite lets the others not wait.
            if error.sqlite_errorcode & 0xFF not in _BUSY or time.monotonic() > give_up:
                raise
            time.sleep(_MOMENT)
    connection.execute("PRAGMA synchronous=NORMAL")

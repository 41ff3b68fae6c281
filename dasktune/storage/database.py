"""The database: studies, their logs and trials, metrics and checkpoints by state key.

SQLite in WAL mode when nothing else is asked for; PostgreSQL by URL. Only the driver opens
it. What is written costs the same however much is there already: logs are appended to, and
other rows are inserted or replaced one by one. A SQLite file must not lie on a network file
system, whose locks do not hold.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from dasktune.errors import StorageError
from dasktune.storage import schema
from dasktune.storage.schema import (
    CheckpointRow,
    EventRow,
    MetricRow,
    NoteRow,
    StageRow,
    StudyRow,
    TrialRow,
)

_PAGE = 1000
_INSERTS: Mapping[str, Callable[[sa.Table], sqlite.Insert | postgresql.Insert]] = {
    "sqlite": sqlite.insert,
    "postgresql": postgresql.insert,
}

Row = TypeVar("Row")


@dataclass(slots=True, kw_only=True)
class Batch:
    """Rows that are written together or not at all; gathered in lists, hence not frozen."""

    events: list[EventRow] = field(default_factory=list)
    trials: list[TrialRow] = field(default_factory=list)
    metrics: list[MetricRow] = field(default_factory=list)
    checkpoints: list[CheckpointRow] = field(default_factory=list)
    stages: list[StageRow] = field(default_factory=list)


class Database:
    """One open database; safe to use from several threads.

    Parameters
    ----------
    url
        A path to a SQLite file, whose folder is made if it is missing, or a URL of
        SQLAlchemy: ``sqlite:///path``, ``sqlite://`` (in memory),
        ``postgresql+psycopg://...``.
    timeout
        Seconds to wait for another process that writes to the same SQLite file.
    create
        Make it if it is missing. Without this a missing one is an error, and looking for
        it leaves nothing behind.

    Raises
    ------
    StorageError
        If it cannot be opened, is no database, or was made by a later version.

    Examples
    --------
    >>> database = Database("sqlite://")
    >>> study = database.create_study("digits", root="a1f0", spec={"metric": "loss"}, created=0.0)
    >>> database.write(Batch(events=[EventRow(study_id=study.id, number=0, payload={"n": 1})]))
    >>> [event.payload for event in database.events(study.id)]
    [{'n': 1}]
    >>> database.close()
    """

    def __init__(self, url: str | Path, *, timeout: float = 30.0, create: bool = True) -> None:
        address = _address(str(url))
        if not create:
            _find_file(address)
        self._name = address.database or address.render_as_string(hide_password=True)
        if address.get_backend_name() == "postgresql":
            self._name = address.render_as_string(hide_password=True)
        self._lock = threading.Lock()
        with self._failing():
            self._engine = _engine(address, timeout)
        self._writes = {
            part.name: _write_statement(self._engine.dialect.name, part.name)
            for part in fields(Batch)
        }
        try:
            self._prepare(create)
        except StorageError:
            self.close()
            raise

    def write(self, batch: Batch) -> None:
        """Write all rows of a batch in one transaction.

        Raises
        ------
        StorageError
            If it cannot be written, or an event's number is taken: another process writes
            to the log of the same study.
        """
        try:
            with self._transaction() as connection:
                for name, statement in self._writes.items():
                    rows = [_columns(row) for row in getattr(batch, name)]
                    if rows:
                        connection.execute(statement, rows)
        except StorageError as error:
            # Only an event has a number that is used once: other rows replace or give way.
            if batch.events and isinstance(error.__cause__, sa.exc.IntegrityError):
                raise StorageError(self._fenced(batch.events[0].study_id)) from None
            raise

    def note(self, study_id: int, payload: Any) -> None:
        """Append a note about a study; any process may, also while another one runs it.

        Raises
        ------
        StorageError
            If it cannot be written.
        """
        with self._transaction() as connection:
            connection.execute(schema.notes.insert(), {"study_id": study_id, "payload": payload})

    def create_study(self, name: str, *, root: str, spec: Any, created: float) -> StudyRow:
        """Add a study and return it.

        Raises
        ------
        StorageError
            If the name is taken.
        """
        insert = _INSERTS[self._engine.dialect.name](schema.studies).on_conflict_do_nothing()
        values = {"name": name, "root": root, "spec": spec, "created": created}
        with self._transaction() as connection:
            identity = connection.execute(
                insert.values(values).returning(schema.studies.c.id)
            ).scalar_one_or_none()
        if identity is None:
            raise StorageError(f"study {name!r} exists already in {self._name}")
        return StudyRow(id=identity, name=name, root=root, spec=spec, created=created)

    def study(self, name: str) -> StudyRow | None:
        """Return the study of that name; None if there is none."""
        return next(self._rows(StudyRow, schema.studies, schema.studies.c.name == name), None)

    def studies(self) -> Iterator[StudyRow]:
        """Return all studies, oldest first."""
        return self._rows(StudyRow, schema.studies)

    def events(self, study_id: int, after: int = -1) -> Iterator[EventRow]:
        """Return the events of a study with a number above `after`, in order."""
        table = schema.events
        return self._rows(EventRow, table, table.c.study_id == study_id, table.c.number > after)

    def notes(self, study_id: int) -> Iterator[NoteRow]:
        """Return the notes about a study, oldest first."""
        return self._rows(NoteRow, schema.notes, schema.notes.c.study_id == study_id)

    def trials(self, study_id: int) -> Iterator[TrialRow]:
        """Return the trials of a study by number."""
        return self._rows(TrialRow, schema.trials, schema.trials.c.study_id == study_id)

    def metrics(self, root: str) -> Iterator[MetricRow]:
        """Return the metrics of all states below a root, by key."""
        return self._rows(MetricRow, schema.metrics, schema.metrics.c.root == root)

    def checkpoints(self, root: str) -> Iterator[CheckpointRow]:
        """Return the checkpoints below a root, by key."""
        return self._rows(CheckpointRow, schema.checkpoints, schema.checkpoints.c.root == root)

    def checkpoint_keys(self) -> set[str]:
        """Return the keys of all checkpoints, whatever their root."""
        with self._transaction() as connection:
            return set(connection.execute(sa.select(schema.checkpoints.c.key)).scalars())

    def stages(self, study_id: int) -> Iterator[StageRow]:
        """Return the stages that were run for a study, by attempt."""
        return self._rows(StageRow, schema.stages, schema.stages.c.study_id == study_id)

    def forget_checkpoint(self, key: str) -> None:
        """Remove the row of a checkpoint that was discarded or found corrupt."""
        table = schema.checkpoints
        with self._transaction() as connection:
            connection.execute(table.delete().where(table.c.key == key))

    def close(self) -> None:
        """Close all connections; what was written is durable already."""
        self._engine.dispose()

    def _fenced(self, study_id: int) -> str:
        """Say that the log of a study has gone on without the one who writes to it."""
        found = self._rows(StudyRow, schema.studies, schema.studies.c.id == study_id)
        name = next((repr(study.name) for study in found), f"number {study_id}")
        return (
            f"study {name}: another process is running this study; what that one decided stands. "
            "Run this again when it has ended: it goes on from there"
        )

    def _prepare(self, create: bool) -> None:
        """Make the tables that are missing; the version is written when all are there."""
        version = self._version()
        if version == schema.VERSION:
            return
        if version is None and not create:
            raise StorageError(f"database {self._name} holds no studies of dasktune")
        if version is not None:
            raise StorageError(
                f"database {self._name} must have version {schema.VERSION}, got {version}: "
                "it was made by another version of dasktune"
            )
        insert = _INSERTS[self._engine.dialect.name](schema.meta).on_conflict_do_nothing()
        with self._transaction() as connection:
            for table in schema.metadata.sorted_tables:
                connection.execute(CreateTable(table, if_not_exists=True))
                for index in table.indexes:
                    connection.execute(CreateIndex(index, if_not_exists=True))
            connection.execute(insert.values(name="version", number=schema.VERSION))

    def _version(self) -> int | None:
        with self._transaction() as connection:
            if not sa.inspect(connection).has_table(schema.meta.name):
                return None
            return connection.execute(
                sa.select(schema.meta.c.number).where(schema.meta.c.name == "version")
            ).scalar_one_or_none()

    def _rows(
        self, kind: type[Row], table: sa.Table, *conditions: sa.ColumnElement[bool]
    ) -> Iterator[Row]:
        """Read page by page in the order of the primary key.

        No transaction is open while the caller looks at a row, so it may take its time and
        write meanwhile.
        """
        order = list(table.primary_key.columns)
        query = sa.select(table).where(*conditions).order_by(*order).limit(_PAGE)
        page = self._page(query)
        while page:
            for row in page:
                yield kind(**row)
            if len(page) < _PAGE:
                return
            last = [page[-1][column.name] for column in order]
            page = self._page(query.where(sa.tuple_(*order) > sa.tuple_(*last)))

    def _page(self, query: sa.Select[Any]) -> Sequence[Mapping[str, Any]]:
        with self._transaction() as connection:
            return [{**row} for row in connection.execute(query).mappings()]

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        """Let one thread at a time in: SQLite has one writer, in memory one connection."""
        with self._failing(), self._lock, self._engine.begin() as connection:
            yield connection

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except (sa.exc.SQLAlchemyError, OSError, ImportError) as error:
            reason = getattr(error, "orig", None) or error
            raise StorageError(f"cannot use database {self._name}: {reason}") from error


def _address(url: str) -> sa.URL:
    """Return the URL of a database that may be given as a path.

    Raises
    ------
    StorageError
        If it is neither SQLite nor PostgreSQL.
    """
    if "://" not in url:
        return sa.URL.create("sqlite", database=str(Path(url).expanduser().absolute()))
    try:
        address = sa.make_url(url)
    except sa.exc.ArgumentError as error:
        raise StorageError(f"database URL cannot be read: {error}") from error
    if address.get_backend_name() not in _INSERTS:
        raise StorageError(
            f"database must be one of {', '.join(_INSERTS)}, got {address.get_backend_name()}"
        )
    return address


def _find_file(address: sa.URL) -> None:
    """Refuse a SQLite file that does not exist: to connect would make it."""
    file = str(address.database)
    if address.get_backend_name() == "sqlite" and not Path(file).is_file():
        raise StorageError(f"there is no database {file}")


def _engine(address: sa.URL, timeout: float) -> sa.Engine:
    if address.get_backend_name() != "sqlite":
        return sa.create_engine(address, pool_pre_ping=True)
    options: dict[str, Any] = {"timeout": timeout, "check_same_thread": False}
    if address.database in (None, "", ":memory:"):
        return sa.create_engine(address, connect_args=options, poolclass=sa.StaticPool)
    Path(str(address.database)).parent.mkdir(parents=True, exist_ok=True)
    engine = sa.create_engine(address, connect_args=options)
    sa.event.listen(engine, "connect", _configure_sqlite)
    return engine


def _configure_sqlite(connection: Any, record: object) -> None:
    """Let others read while one writes, and lose nothing but a power cut's last moment."""
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")


def _write_statement(dialect: str, name: str) -> sa.Insert:
    """Return the insertion into one table, and what becomes of a row that is there."""
    table = schema.metadata.tables[f"dasktune_{name}"]
    insert = _INSERTS[dialect](table)
    if name == "events":
        return insert
    if name == "metrics":
        return insert.on_conflict_do_nothing()
    keys = [column.name for column in table.primary_key.columns]
    others = {column.name for column in table.columns} - set(keys)
    return insert.on_conflict_do_update(
        index_elements=keys, set_={column: insert.excluded[column] for column in sorted(others)}
    )


def _columns(row: Any) -> dict[str, Any]:
    return {part.name: getattr(row, part.name) for part in fields(row)}

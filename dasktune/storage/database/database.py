"""The database: studies, their logs and trials, metrics and checkpoints by state key.

SQLite in WAL mode when nothing else is asked for; PostgreSQL by URL. Only the driver opens
it. What is written costs the same however much is there already: logs are appended to, and
other rows are inserted or replaced one by one; what is read is read page by page, and figures
of a study are added up by the database. A SQLite file must not lie on a network file system,
whose locks do not hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa

from dasktune.errors import StorageError
from dasktune.storage.database import schema
from dasktune.storage.database.columns import prepare
from dasktune.storage.database.connection import Connections
from dasktune.storage.database.insertions import INSERTS, insertions, write_rows
from dasktune.storage.database.network import warner
from dasktune.storage.database.schema import (
    CheckpointRow,
    EventRow,
    MetricRow,
    NoteRow,
    RunRow,
    StageRow,
    StudyRow,
    TrialRow,
)
from dasktune.types import Metrics, Step

_PAGE = 1000
_SCANNED = 4
"""Rows of others that may be read for each row that is wanted."""

_KEYS = 500
"""Keys in one statement: SQLite has a limit."""

Row = TypeVar("Row")
Key = TypeVar("Key", str, int)


@dataclass(slots=True, kw_only=True)
class Batch:
    """Rows that are written together or not at all; gathered in lists, hence not frozen."""

    events: list[EventRow] = field(default_factory=list)
    trials: list[TrialRow] = field(default_factory=list)
    metrics: list[MetricRow] = field(default_factory=list)
    checkpoints: list[CheckpointRow] = field(default_factory=list)
    stages: list[StageRow] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFigures:
    """What the rows of a study add up to.

    Parameters
    ----------
    trials
        Number of trials by state.
    steps_requested
        Steps that trials have been trained, or are asked to be.
    steps_executed, steps_repeated
        Steps of the stages that have ended.
    stages
        Number of stages that have ended, by status.
    last_end
        When the last of them ended (epoch seconds); None if none has.
    """

    trials: Mapping[str, int]
    steps_requested: Step
    steps_executed: Step
    steps_repeated: Step
    stages: Mapping[str, int]
    last_end: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedStages:
    """Attempts of a study that failed at the same step for the same reason.

    Parameters
    ----------
    step
        The last step before the one that failed.
    message
        Why.
    trials
        Some of the trials that wanted them.
    count
        How many.
    last
        When the last of them did (epoch seconds).
    """

    step: Step
    message: str
    trials: Sequence[int]
    count: int
    last: float


class Database:
    """One open database; safe to use from several threads.

    Parameters
    ----------
    url
        A path to a SQLite file, whose folder is made if it is missing, or a URL of
        SQLAlchemy: ``sqlite:///path``, ``sqlite://`` (in memory),
        ``postgresql+psycopg://...``. A password in it is shown nowhere.
    timeout
        Seconds to wait for another process that writes to the same SQLite file.
    create
        Make it if it is missing. Without this a missing one is an error, and looking for
        it leaves nothing behind.
    migrate
        Bring it up to date if it was made by an older version, a SQLite file after it was
        copied; otherwise an older one is an error. As `create` if None.

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

    def __init__(
        self,
        url: str | Path,
        *,
        timeout: float = 30.0,
        create: bool = True,
        migrate: bool | None = None,
    ) -> None:
        self._connections = Connections(str(url), timeout=timeout, create=create)
        self._insertions = insertions(self._connections.dialect)
        if self._connections.file is not None:
            warner.look_at(self._connections.file)
        try:
            prepare(
                self._connections, create=create, migrate=create if migrate is None else migrate
            )
        except StorageError:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"Database({self._connections.name!r})"

    @property
    def connections(self) -> Connections:
        """Its connections, to see whether and how fast it answers."""
        return self._connections

    # ---------------------------------------------------------------------- writing

    def write(self, batch: Batch) -> None:
        """Write all rows of a batch in one transaction; after this they are durable.

        Raises
        ------
        StorageError
            If it cannot be written, or an event's number is taken: another process writes
            to the log of the same study.
        """
        try:
            values = [
                (made.sql, [made.values(row) for row in rows])
                for name, made in self._insertions.items()
                if (rows := getattr(batch, name))
            ]
        except (TypeError, ValueError, AttributeError) as error:
            raise StorageError(f"cannot write to {self._connections.name}: {error}") from error

        def work(connection: sa.Connection) -> bool:
            for sql, rows in values:
                write_rows(connection, sql, rows)
            return True

        try:
            self._connections.run(work, recover=partial(_find_events, batch.events))
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
        table = schema.notes

        def work(connection: sa.Connection) -> bool:
            connection.execute(table.insert(), {"study_id": study_id, "payload": payload})
            return True

        def recover(connection: sa.Connection) -> bool | None:
            mine = sa.select(table.c.payload).where(table.c.study_id == study_id)
            newest = connection.execute(mine.order_by(table.c.number.desc()).limit(1)).scalar()
            return schema.to_text(newest) == schema.to_text(payload) or None

        self._connections.run(work, recover=recover)

    def create_study(self, name: str, *, root: str, spec: Any, created: float) -> StudyRow | None:
        """Add a study and return it; None if the name is taken.

        Of several processes that do this at once, one adds it.

        Raises
        ------
        StorageError
            If it cannot be written.
        """
        table = schema.studies
        values = {"name": name, "root": root, "spec": spec, "created": created}
        insert = INSERTS[self._connections.dialect](table).on_conflict_do_nothing().values(values)

        def work(connection: sa.Connection) -> int | None:
            made: int | None = connection.execute(insert.returning(table.c.id)).scalar()
            return made

        def recover(connection: sa.Connection) -> int | None:
            mine = (table.c.name == name, table.c.root == root, table.c.created == created)
            made: int | None = connection.execute(sa.select(table.c.id).where(*mine)).scalar()
            return made

        identity = self._connections.run(work, recover=recover)
        if identity is None:
            return None
        return StudyRow(id=identity, name=name, root=root, spec=spec, created=created)

    def sign(self, row: RunRow) -> None:
        """Write how a run stands.

        Raises
        ------
        StorageError
            If it cannot be written.
        """
        table, values = schema.runs, asdict(row)
        insert = INSERTS[self._connections.dialect](table).values(values)
        changed = {name: insert.excluded[name] for name in values if name != "run"}
        self._do(insert.on_conflict_do_update(index_elements=["run"], set_=changed))

    def forget_checkpoints(self, keys: Iterable[str]) -> None:
        """Remove the rows of checkpoints that were discarded or found corrupt."""
        table = schema.checkpoints
        for some in _parts(keys):
            self._do(table.delete().where(table.c.key.in_(some)))

    def touch_checkpoints(self, keys: Iterable[str], when: float) -> None:
        """Take note that checkpoints were used at a time (epoch seconds); it never goes back."""
        table = schema.checkpoints
        for some in _parts(keys):
            mine = table.c.key.in_(some), table.c.used < when
            self._do(table.update().where(*mine).values(used=when))

    # ---------------------------------------------------------------------- reading

    def study(self, name: str) -> StudyRow | None:
        """Return the study of that name; None if there is none."""
        return next(self._rows(StudyRow, schema.studies, schema.studies.c.name == name), None)

    def studies(self) -> Iterator[StudyRow]:
        """Return all studies, oldest first."""
        return self._rows(StudyRow, schema.studies)

    def events(
        self, study_id: int, after: int = -1, *, place: int | None = None
    ) -> Iterator[EventRow]:
        """Return the events of a study with a number above `after`, in order.

        Parameters
        ----------
        study_id
            Which study.
        after
            Where to begin.
        place
            Only those about this tuner; None for all.
        """
        table = schema.events
        wanted = [table.c.study_id == study_id, table.c.number > after]
        if place is not None:
            wanted.append(table.c.place == place)
        return self._rows(EventRow, table, *wanted)

    def landmarks(self, study_id: int, kind: str, after: int = -1) -> list[EventRow]:
        """Return the events of a kind by which tuners are found, in order.

        Parameters
        ----------
        study_id
            Which study.
        kind
            ``tuner``, ``snapshot`` or ``widen``: other kinds are not found quickly.
        after
            Only those with a number above this.
        """
        number = schema.events.c.number
        query = self._landmarks(study_id, kind).where(number > after).order_by(number)
        return [EventRow(**row._mapping) for row in self._ask(query)]

    def last_landmark(self, study_id: int, kind: str, place: int) -> EventRow | None:
        """Return the last event of a kind about a tuner; None if there is none."""
        table = schema.events
        query = self._landmarks(study_id, kind).where(table.c.place == place)
        found = self._ask(query.order_by(table.c.number.desc()).limit(1))
        return EventRow(**found[0]._mapping) if found else None

    def next_event(self, study_id: int) -> int:
        """Return the number after that of the last event of a study."""
        table = schema.events
        query = sa.select(sa.func.max(table.c.number)).where(table.c.study_id == study_id)
        last = self._ask(query)[0][0]
        return 0 if last is None else last + 1

    def notes(self, study_id: int) -> Iterator[NoteRow]:
        """Return the notes about a study, oldest first."""
        return self._rows(NoteRow, schema.notes, schema.notes.c.study_id == study_id)

    def trials(self, study_id: int) -> Iterator[TrialRow]:
        """Return the trials of a study by number."""
        return self._rows(TrialRow, schema.trials, schema.trials.c.study_id == study_id)

    def count_trials(self, study_id: int) -> int:
        """Return how many trials a study has."""
        mine = schema.trials.c.study_id == study_id
        return int(self._ask(sa.select(sa.func.count()).where(mine))[0][0])

    def best_trial(self, study_id: int, *, is_maximized: bool) -> TrialRow | None:
        """Return the trial with the best finite value of those that did not fail.

        It is the first one of several; None if there is none.
        """
        table = schema.trials
        value = table.c.finite_value
        query = (
            sa.select(*_columns_of(TrialRow, table))
            .where(table.c.study_id == study_id, table.c.state != "FAIL", value.is_not(None))
            .order_by(value.desc() if is_maximized else value, table.c.number)
            .limit(1)
        )
        return next((TrialRow(**row._mapping) for row in self._ask(query)), None)

    def figures(self, study_id: int) -> StudyFigures:
        """Return what the trials and the stages of a study add up to."""
        table = schema.trials
        until = sa.func.coalesce(table.c.until, 0)
        asked = sa.case((until > table.c.steps, until), else_=table.c.steps)
        trials = self._ask(
            sa.select(table.c.state, sa.func.count(), sa.func.sum(asked))
            .where(table.c.study_id == study_id)
            .group_by(table.c.state)
        )
        done = schema.stages
        sums = (sa.func.sum(done.c.steps), sa.func.sum(done.c.repeated), sa.func.max(done.c.ended))
        stages = self._ask(
            sa.select(done.c.status, sa.func.count(), *sums)
            .where(done.c.study_id == study_id, done.c.ended.is_not(None))
            .group_by(done.c.status)
        )
        return StudyFigures(
            trials={state: count for state, count, _ in trials},
            steps_requested=sum(int(steps) for _, _, steps in trials),
            steps_executed=sum(int(steps) for _, _, steps, _, _ in stages),
            steps_repeated=sum(int(repeated) for _, _, _, repeated, _ in stages),
            stages={status: count for status, count, _, _, _ in stages},
            last_end=max((last for _, _, _, _, last in stages), default=None),
        )

    def last_run(self, study_id: int) -> RunRow | None:
        """Return the run of a study that began last; None if there was none."""
        table = schema.runs
        query = sa.select(*_columns_of(RunRow, table)).where(table.c.study_id == study_id)
        found = self._ask(query.order_by(table.c.began.desc()).limit(1))
        return RunRow(**found[0]._mapping) if found else None

    def runs(self, study_id: int) -> Iterator[RunRow]:
        """Return the runs of a study, by name."""
        return self._rows(RunRow, schema.runs, schema.runs.c.study_id == study_id)

    def open_stages(self, study_id: int, run: str) -> list[StageRow]:
        """Return the stages that a run has begun and of which no end is known, by attempt."""
        table = schema.stages.c
        mine = (table.study_id == study_id, table.run == run, table.ended.is_(None))
        return list(self._rows(StageRow, schema.stages, *mine))

    def failed_stages(self, study_id: int, most: int) -> list[FailedStages]:
        """Return at most so many groups of stages that failed alike, the latest first."""
        table = schema.stages.c
        step = (table.start + table.steps).label("step")
        alike = (step, table.message, table.trials)
        last = sa.func.max(table.ended)
        found = self._ask(
            sa.select(*alike, sa.func.count(), last)
            .where(table.study_id == study_id, table.status == "failed")
            .group_by(*alike)
            .order_by(last.desc())
            .limit(most)
        )
        return [
            FailedStages(step=at, message=why, trials=tuple(trials), count=count, last=when)
            for at, why, trials, count, when in found
        ]

    def failed_trials(
        self, study_id: int, most: int, *, named: Iterable[int] = ()
    ) -> list[TrialRow]:
        """Return the trials that failed, by number: at most so many, and those that are named."""
        table = schema.trials
        failed = (table.c.study_id == study_id, table.c.state == "FAIL")
        query = sa.select(*_columns_of(TrialRow, table)).where(*failed)
        found = {row.number: row for row in self._ask(query.order_by(table.c.number).limit(most))}
        for some in _parts(set(named) - found.keys()):
            found |= {row.number: row for row in self._ask(query.where(table.c.number.in_(some)))}
        return [TrialRow(**found[number]._mapping) for number in sorted(found)]

    def metrics(self, root: str) -> Iterator[MetricRow]:
        """Return the metrics of all states below a root, by key."""
        return self._rows(MetricRow, schema.metrics, schema.metrics.c.root == root)

    def known_metrics(self, root: str) -> Iterator[tuple[str, Step, Metrics]]:
        """Return `metrics` as (key, step, metrics), in no order: fast, there may be millions."""
        table = schema.metrics
        place, is_mine = self._way_through_metrics(root)
        texts = sa.type_coerce(table.c["values"], sa.Text)
        mine = sa.select(table.c.key, table.c.step, texts, place).where(is_mine)
        query = mine.order_by(place).limit(_PAGE)
        while page := self._connections.run(partial(_tuples, query)):
            keys, steps, found, places = zip(*page, strict=True)
            yield from zip(keys, steps, schema.MetricsText().values_of(found), strict=True)
            query = mine.where(place > places[-1]).order_by(place).limit(_PAGE)

    def _way_through_metrics(
        self, root: str
    ) -> tuple[sa.ColumnElement[Any], sa.ColumnElement[bool]]:
        """Return what metrics are read by, and what tells those below a root.

        SQLite reads a table from end to end many times faster than row by row through an index,
        whose order is that of the keys: at random.
        """
        table = schema.metrics
        if self._connections.dialect == "sqlite":
            row = sa.literal_column("rowid", sa.Integer)
            mine = self._ask(sa.select(sa.func.count()).where(table.c.root == root))[0][0]
            last = self._ask(sa.select(sa.func.max(row)).select_from(table))[0][0] or 0
            if mine * _SCANNED >= last:
                # With the sign its index is passed over.
                return row, sa.literal_column("+root", sa.String) == root
        return table.c.key, table.c.root == root

    def checkpoints(self, root: str) -> Iterator[CheckpointRow]:
        """Return the checkpoints below a root, by key."""
        return self._rows(CheckpointRow, schema.checkpoints, schema.checkpoints.c.root == root)

    def storage_rows(self) -> Iterator[CheckpointRow]:
        """Return all checkpoints, whatever their root, by key."""
        return self._rows(CheckpointRow, schema.checkpoints)

    def checkpoint_keys(self) -> set[str]:
        """Return the keys of all checkpoints, whatever their root."""
        return {key for (key,) in self._ask(sa.select(schema.checkpoints.c.key))}

    def stages(self, study_id: int) -> Iterator[StageRow]:
        """Return the stages that were run for a study, by attempt."""
        return self._rows(StageRow, schema.stages, schema.stages.c.study_id == study_id)

    def close(self) -> None:
        """Close all connections; what was written is durable already."""
        self._connections.close()

    def _fenced(self, study_id: int) -> str:
        """Say that the log of a study has gone on without the one who writes to it."""
        found = self._rows(StudyRow, schema.studies, schema.studies.c.id == study_id)
        name = next((repr(study.name) for study in found), f"number {study_id}")
        return (
            f"study {name}: another process is running this study; what that one decided stands. "
            "Run this again when it has ended: it goes on from there"
        )

    # ------------------------------------------------------------------------ pages

    def _rows(
        self, kind: type[Row], table: sa.Table, *conditions: sa.ColumnElement[bool]
    ) -> Iterator[Row]:
        """Read page by page in the order of the primary key.

        No transaction is open while the caller looks at a row, so it may take its time and
        write meanwhile.
        """
        columns = _columns_of(kind, table)
        names = [column.name for column in columns]
        order = list(table.primary_key.columns)
        places = [names.index(column.name) for column in order]
        plain = [sa.type_coerce(one, sa.Text) if _decoder(one) else one for one in columns]
        query = sa.select(*plain).where(*conditions).order_by(*order).limit(_PAGE)
        page = self._ask(query)
        while page:
            # By columns, since one document of all JSON in a column is read far faster.
            series = [
                decode(found) if (decode := _decoder(column)) else found
                for column, found in zip(columns, zip(*page, strict=True), strict=True)
            ]
            for values in zip(*series, strict=True):
                yield kind(**dict(zip(names, values, strict=True)))
            if len(page) < _PAGE:
                return
            last = [page[-1][place] for place in places]
            page = self._ask(query.where(sa.tuple_(*order) > sa.tuple_(*last)))

    def _landmarks(self, study_id: int, kind: str) -> sa.Select[Any]:
        table = schema.events
        # As text, not as a parameter: else the partial index is not known to be of use.
        its_kind = table.c.kind == sa.literal(kind, literal_execute=True)
        columns = _columns_of(EventRow, table)
        return sa.select(*columns).where(table.c.study_id == study_id, its_kind)

    def _ask(self, query: sa.Select[Any]) -> Sequence[Any]:
        return self._connections.run(lambda connection: connection.execute(query).all())

    def _do(self, change: sa.Delete | sa.Update | sa.Insert) -> None:
        def work(connection: sa.Connection) -> None:
            connection.execute(change)

        self._connections.run(work)


def _find_events(events: Sequence[EventRow], connection: sa.Connection) -> bool | None:
    """Return True if events are in their log, as they are; None if not, or there are none."""
    table = schema.events
    for event in events:
        mine = (table.c.study_id == event.study_id, table.c.number == event.number)
        there = connection.execute(sa.select(table.c.payload).where(*mine)).all()
        if [schema.to_text(row[0]) for row in there] != [schema.to_text(event.payload)]:
            return None
    return bool(events) or None


def _tuples(query: sa.Select[Any], connection: sa.Connection) -> Sequence[tuple[Any, ...]]:
    """Return rows as the driver gives them, past all that SQLAlchemy would do for each."""
    cursor: Any = connection.execute(query).cursor
    found: Sequence[tuple[Any, ...]] = cursor.fetchall()
    return found


def _columns_of(kind: type, table: sa.Table) -> list[sa.Column[Any]]:
    """Return the columns that a kind of row has fields for."""
    return [table.c[part.name] for part in fields(kind)]


def _decoder(column: sa.Column[Any]) -> Callable[[Iterable[str]], list[Any]] | None:
    """Return what decodes the texts of a column; None if it holds no JSON."""
    return column.type.values_of if isinstance(column.type, schema.JsonText) else None


def _parts(keys: Iterable[Key]) -> Iterator[list[Key]]:
    """Yield keys, as many at a time as fit into one statement."""
    left = iter(keys)
    while some := list(islice(left, _KEYS)):
        yield some

"""The database: studies, their event logs and trials, metrics and checkpoints by state key.

SQLite in WAL mode by default; PostgreSQL by URL. Only the driver opens it. The cost of a write
does not depend on the size of the database: events are appended, and other rows are inserted or
replaced one by one. Rows are read page by page, and the database adds up the figures of a study.
A SQLite file must not lie on a network file system, whose locks do not hold.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa

from dasktune._engine.timeouts import SQLITE_SECONDS
from dasktune.errors import CorruptRecordError, FencedError, StorageError, shown
from dasktune.storage.database import schema
from dasktune.storage.database.columns import (
    JsonText,
    MetricsText,
    check_cells,
    columns_of,
    to_text,
)
from dasktune.storage.database.connection import (
    Connections,
    Mounts,
    Work,
    all_mounts,
    network_kind,
)
from dasktune.storage.database.insertions import INSERTS, insertions, write_rows
from dasktune.storage.database.kept_writes import (
    KEPT_BYTES,
    KeptWrites,
    fenced,
    last_event,
)
from dasktune.storage.database.rows import (
    CheckpointRow,
    EventRow,
    FactorRow,
    LogRow,
    MetricRow,
    NoteRow,
    RunRow,
    SpeedRow,
    StageRow,
    StudyRow,
    TrialRow,
    UnreadableStudy,
    VerdictRow,
)
from dasktune.storage.database.study_hold import StudyHold
from dasktune.storage.database.upgrade import prepare
from dasktune.types import Metrics, Step

logger = logging.getLogger(__name__)

_PAGE = 1000
_SCANNED = 4
"""A whole table is scanned if at most so many rows are read for each row that is returned."""

_KEYS = 500
"""Keys in one statement: SQLite has a limit."""

_warned: set[Path] = set()
"""The files that this process has checked for network file systems."""

Row = TypeVar("Row")
MeasuredRow = TypeVar("MeasuredRow", SpeedRow, FactorRow)
Key = TypeVar("Key", str, int)


@dataclass(slots=True, kw_only=True)
class Batch:
    """Rows that are written together or not at all; gathered in lists, hence not frozen.

    Parameters
    ----------
    events, trials, metrics, checkpoints, stages, logs
        The rows of each table.
    """

    events: list[EventRow] = field(default_factory=list)
    trials: list[TrialRow] = field(default_factory=list)
    metrics: list[MetricRow] = field(default_factory=list)
    checkpoints: list[CheckpointRow] = field(default_factory=list)
    stages: list[StageRow] = field(default_factory=list)
    logs: list[LogRow] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFigures:
    """Totals over the rows of a study.

    Parameters
    ----------
    trials
        Number of trials by state.
    steps_requested
        Sum over all trials of the steps trained or requested.
    steps_executed, steps_repeated
        Steps of the ended stages.
    stages
        Number of ended stages by status.
    last_end
        End of the last of them (epoch seconds); None without one.
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
    trials
        Some of the trials that requested them.
    count
        Number of attempts.
    last
        Time of the last failure (epoch seconds).
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
        ``postgresql+psycopg://...``. Its password is never shown.
    timeout
        Seconds to wait for another process that writes to the same SQLite file.
    create
        Make a missing database. Without this a missing database is an error, and the disk
        stays unchanged.
    migrate
        Bring the database of an older version up to date, a SQLite file after copying it;
        without this an older database is an error. As `create` if None.
    reads_only
        Whether the database itself refuses all changes; needs `create` to be False.
    mounts
        Returns the mounted file systems, to warn of a SQLite file on a network.
    kept_bytes
        Bytes of the last writes that are kept, to be written again if the database loses what
        it has acknowledged. None: 64 MiB for a server, and 0 for SQLite, which can lose
        them only together with this process.

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
        timeout: float = SQLITE_SECONDS,
        create: bool = True,
        migrate: bool | None = None,
        reads_only: bool = False,
        mounts: Mounts = all_mounts,
        kept_bytes: int | None = None,
    ) -> None:
        self._connections = Connections(
            str(url), timeout=timeout, create=create, reads_only=reads_only
        )
        self._insertions = insertions(self._connections.dialect)
        if kept_bytes is None:
            kept_bytes = 0 if self._connections.dialect == "sqlite" else KEPT_BYTES
        self.kept = KeptWrites(self._connections.name, kept_bytes)
        """The last writes, for the case that the database loses them."""
        self._checked = 0
        """The connection, by its number, for which it is known that nothing is lost."""
        if self._connections.file is not None:
            _warn_of_network(self._connections.file, mounts)
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
        """The connections, to measure whether and how fast the database answers."""
        return self._connections

    # ---------------------------------------------------------------------- writing

    def write(self, batch: Batch) -> None:
        """Write all rows of a batch in one transaction; they are durable on return.

        Raises
        ------
        StorageError
            If the batch cannot be written.
        FencedError
            If an event's number is taken because another process writes to the event log of the
            same study.
        """
        try:
            values = [
                (insertion.sql, insertion.values(rows))
                for name, insertion in self._insertions.items()
                if (rows := getattr(batch, name))
            ]
        except (TypeError, ValueError, AttributeError) as error:
            raise StorageError(f"cannot write to {self._connections.name}: {error}") from error

        def work(connection: sa.Connection) -> bool:
            for sql, rows in values:
                write_rows(connection, sql, rows)
            return True

        try:
            self._run(work, recover=partial(_find_events, batch.events), restores=True)
        except StorageError as error:
            # Only an event can conflict: all other rows replace the older row or are dropped.
            if batch.events and isinstance(error.__cause__, sa.exc.IntegrityError):
                raise FencedError(fenced(self.name_of(batch.events[0].study_id))) from None
            raise
        self.kept.add(work, batch.events, chain.from_iterable(rows for _, rows in values))

    def hold_of(self, study_id: int) -> StudyHold:
        """Return a hold on a study, of which one at a time can be taken."""
        return StudyHold(self._connections, study_id)

    def note(self, study_id: int, payload: Any) -> None:
        """Append a note about a study; allowed also while another process runs the study.

        Raises
        ------
        StorageError
            If it cannot be written.
        """
        table = schema.notes

        number: int | None = None

        def work(connection: sa.Connection) -> bool:
            nonlocal number
            insert = table.insert().values(study_id=study_id, payload=payload)
            number = connection.execute(insert.returning(table.c.number)).scalar()
            return True

        def recover(connection: sa.Connection) -> bool | None:
            notes = sa.select(table.c.payload).where(table.c.study_id == study_id)
            if number is not None:
                notes = notes.where(table.c.number == number)
            newest = connection.execute(notes.order_by(table.c.number.desc()).limit(1)).scalar()
            return to_text(newest) == to_text(payload) or None

        self._run(work, recover=recover)
        self.kept.add(lambda connection: recover(connection) or work(connection))

    def create_study(self, name: str, *, root: str, spec: Any, created: float) -> StudyRow | None:
        """Add a study and return it, or None if the name is taken.

        If several processes do this at the same time, exactly one adds the study.

        Raises
        ------
        StorageError
            If it cannot be written.
        """
        table = schema.studies
        values = {"name": name, "root": root, "spec": spec, "created": created}
        if self._connections.dialect == "sqlite":
            values["id"] = _unused_number()
        insert = INSERTS[self._connections.dialect](table).on_conflict_do_nothing().values(values)

        def work(connection: sa.Connection) -> int | None:
            added: int | None = connection.execute(insert.returning(table.c.id)).scalar()
            return added

        def recover(connection: sa.Connection) -> int | None:
            same = (table.c.name == name, table.c.root == root, table.c.created == created)
            added: int | None = connection.execute(sa.select(table.c.id).where(*same)).scalar()
            return added

        identity = self._run(work, recover=recover)
        if identity is None:
            return None
        return StudyRow(id=identity, name=name, root=root, spec=spec, created=created)

    def rename_study(self, study_id: int, name: str) -> bool:
        """Give a study another name, and return whether that name was free.

        Raises
        ------
        StorageError
            If it cannot be written.
        """
        table = schema.studies
        other = table.alias()
        taken = sa.exists().where(other.c.name == name, other.c.id != study_id)
        update = table.update().where(table.c.id == study_id, ~taken)

        def work(connection: sa.Connection) -> bool:
            return connection.execute(update.values(name=name)).rowcount == 1

        try:
            return self._run(work)
        except StorageError as error:
            if isinstance(error.__cause__, sa.exc.IntegrityError):
                return False  # another process has taken the name just now
            raise

    def delete_study(self, study_id: int, *, roots: Iterable[str] = ()) -> None:
        """Remove a study with all its rows, in one transaction.

        Parameters
        ----------
        study_id
            The study.
        roots
            Roots that no other study has: metrics and checkpoints of these are removed.

        Raises
        ------
        StorageError
            If it cannot be written.
        """
        of_root = (schema.metrics, schema.checkpoints)
        of_stages = (schema.stages, schema.logs)
        of_study = (schema.events, schema.notes, schema.trials, *of_stages, schema.runs)
        kept = schema.checkpoints.update().where(schema.checkpoints.c.study_id == study_id)
        changes: list[sa.Delete | sa.Update] = [
            *(
                table.delete().where(table.c.root.in_(some))
                for some in _parts(roots)
                for table in of_root
            ),
            kept.values(study_id=None),
            *(table.delete().where(table.c.study_id == study_id) for table in of_study),
            schema.studies.delete().where(schema.studies.c.id == study_id),
        ]

        def work(connection: sa.Connection) -> None:
            if connection.dialect.name == "sqlite":
                connection.execute(_keep_number(study_id))
            for change in changes:
                connection.execute(change)

        self._run(work)
        self.kept.forget(study_id)

    def write_run(self, row: RunRow) -> None:
        """Write the status of a run.

        Raises
        ------
        StorageError
            If it cannot be written.
        """
        table, values = schema.runs, asdict(row)
        insert = INSERTS[self._connections.dialect](table).values(values)
        changed = {name: insert.excluded[name] for name in values if name != "run"}
        self._do(insert.on_conflict_do_update(index_elements=["run"], set_=changed))

    def add_verdict(self, row: VerdictRow) -> None:
        """Append the verdict of a resume check.

        Raises
        ------
        StorageError
            If it cannot be written.
        """
        self._do(schema.verdicts.insert().values(asdict(row)))

    def write_kept(self, speeds: Iterable[SpeedRow], factors: Iterable[FactorRow]) -> None:
        """Write speeds and packing factors of models on classes, in one transaction.

        Raises
        ------
        StorageError
            If they cannot be written.
        """
        tables = ((schema.speeds, [*speeds]), (schema.factors, [*factors]))
        upserts = [
            (self._upsert(table), [asdict(row) for row in rows]) for table, rows in tables if rows
        ]

        def work(connection: sa.Connection) -> None:
            for upsert, values in upserts:
                connection.execute(upsert, values)

        if upserts:
            self._run(work)
            self.kept.add(work)

    def _upsert(self, table: sa.Table) -> sa.Executable:
        """Return the statement that writes rows in place of those with the same primary key."""
        insert = INSERTS[self._connections.dialect](table)
        changed = {
            column.name: insert.excluded[column.name]
            for column in table.columns
            if not column.primary_key
        }
        keys = [column.name for column in table.primary_key]
        return insert.on_conflict_do_update(index_elements=keys, set_=changed)

    def forget_checkpoints(self, keys: Iterable[str]) -> None:
        """Remove the rows of evicted or corrupt checkpoints."""
        table = schema.checkpoints
        for some in _parts(keys):
            self._do(table.delete().where(table.c.key.in_(some)), keys=some)

    def touch_checkpoints(self, keys: Iterable[str], when: float) -> None:
        """Set the time of the last use of checkpoints (epoch seconds), unless it is later."""
        table = schema.checkpoints
        for some in _parts(keys):
            older = table.c.key.in_(some), table.c.used < when
            self._do(table.update().where(*older).values(used=when), keys=some)

    # ---------------------------------------------------------------------- reading

    def study(self, name: str) -> StudyRow | None:
        """Return the study of a name, or None."""
        return next(self._rows(StudyRow, schema.studies, schema.studies.c.name == name), None)

    def studies(self) -> Iterator[StudyRow]:
        """Return all studies, oldest first."""
        return self._rows(StudyRow, schema.studies)

    def readable_studies(self) -> tuple[list[StudyRow], list[UnreadableStudy]]:
        """Return the studies whose rows can be read, oldest first, and the others."""
        table = schema.studies.c
        try:
            return list(self.studies()), []
        except CorruptRecordError:
            names = self._ask(sa.select(table.id, table.name).order_by(table.id))
        rows: list[StudyRow] = []
        unreadable: list[UnreadableStudy] = []
        for number, name in names:
            try:
                rows += self._rows(StudyRow, schema.studies, table.id == number)
            except CorruptRecordError as error:
                word = name if isinstance(name, str) else shown(name)
                unreadable.append(UnreadableStudy(study=word, problem=str(error), id=number))
        return rows, unreadable

    def events(
        self, study_id: int, after: int = -1, *, place: int | None = None
    ) -> Iterator[EventRow]:
        """Return the events of a study in order.

        Parameters
        ----------
        study_id
            The study's id.
        after
            Return events with a number above this.
        place
            Return only events about the tuner of this place; None for all events.
        """
        table = schema.events
        wanted = [table.c.study_id == study_id, table.c.number > after]
        if place is not None:
            wanted.append(table.c.place == place)
        return self._rows(EventRow, table, *wanted)

    def tuner_events(self, study_id: int, kind: str, after: int = -1) -> list[EventRow]:
        """Return the events of one kind in order, by an index.

        Parameters
        ----------
        study_id
            The study's id.
        kind
            ``tuner``, ``snapshot`` or ``widen``: the index has no other kinds.
        after
            Return events with a number above this.
        """
        number = schema.events.c.number
        query = self._tuner_events(study_id, kind).where(number > after).order_by(number)
        return self._made(EventRow, schema.events, self._ask(query))

    def last_tuner_event(self, study_id: int, kind: str, place: int) -> EventRow | None:
        """Return the last event of a kind about the tuner of a place, or None."""
        table = schema.events
        query = self._tuner_events(study_id, kind).where(table.c.place == place)
        return self._first(EventRow, table, query.order_by(table.c.number.desc()))

    def next_event(self, study_id: int) -> int:
        """Return the number after that of the last event of a study."""
        last = self._run(lambda connection: last_event(connection, study_id))
        if last != -1:  # there is an event
            check_cells(EventRow, schema.events.c.number, [last])
        return last + 1

    def missing_events(self, study_id: int, after: int = -1) -> list[tuple[int, int]]:
        """Return the first and last numbers of the gaps in an event log, above a number."""
        number = schema.events.c.number
        later = (schema.events.c.study_id == study_id, number > after)
        ends = sa.select(sa.func.max(number), sa.func.count(number)).where(*later)
        last, count = self._run(lambda connection: connection.execute(ends).one())
        if last is None:
            return []
        check_cells(EventRow, number, [last])
        if last - after == count:
            return []
        first = sa.cast(after, sa.BigInteger)
        before = sa.func.lag(number, 1, first).over(order_by=number).label("before")
        pairs = sa.select(number, before).where(*later).subquery().c
        gaps = sa.select(pairs.before, pairs.number).where(pairs.number - pairs.before > 1)
        rows = self._ask(gaps.order_by(pairs.number))
        return [(before + 1, number - 1) for before, number in rows]

    def name_of(self, study_id: int) -> str:
        """Return the name of a study, quoted; its number if it is gone."""
        rows = self._rows(StudyRow, schema.studies, schema.studies.c.id == study_id)
        return next((repr(study.name) for study in rows), f"number {study_id}")

    def notes(self, study_id: int, after: int = -1) -> Iterator[NoteRow]:
        """Return the notes about a study with a number above `after`, oldest first."""
        table = schema.notes
        chosen = sa.and_(table.c.study_id == study_id, table.c.number > after)
        return self._rows(NoteRow, table, chosen)

    def verdicts(self, fingerprint: str) -> list[VerdictRow]:
        """Return the verdicts of resume checks on a fingerprint, oldest first."""
        table = schema.verdicts
        query = sa.select(*columns_of(VerdictRow, table)).where(table.c.fingerprint == fingerprint)
        return self._made(VerdictRow, table, self._ask(query.order_by(table.c.number)))

    def speeds(self, fingerprint: str, most: int) -> list[SpeedRow]:
        """Return at most `most` speeds for a fingerprint, the last measured first."""
        return self._latest(SpeedRow, schema.speeds, fingerprint, most)

    def factors(self, fingerprint: str, most: int) -> list[FactorRow]:
        """Return at most `most` packing factors for a fingerprint, the last measured first."""
        return self._latest(FactorRow, schema.factors, fingerprint, most)

    def _latest(
        self, row_type: type[MeasuredRow], table: sa.Table, fingerprint: str, most: int
    ) -> list[MeasuredRow]:
        """Return at most `most` rows of a fingerprint, the last measured first."""
        query = sa.select(*columns_of(row_type, table)).where(table.c.fingerprint == fingerprint)
        latest = query.order_by(table.c.measured.desc(), table.c.key).limit(most)
        return self._made(row_type, table, self._ask(latest))

    def trials(self, study_id: int) -> Iterator[TrialRow]:
        """Return the trials of a study by number."""
        return self._rows(TrialRow, schema.trials, schema.trials.c.study_id == study_id)

    def trial_marks(self, study_id: int) -> Sequence[tuple[Any, ...]]:
        """Return (number, state, steps, finite value, until) of all trials, without records.

        A trial with the same mark as before has not changed, as far as a table of trials goes.
        """
        table = schema.trials.c
        marks = (table.number, table.state, table.steps, table.finite_value, table.until)
        query = sa.select(*marks).where(table.study_id == study_id).order_by(table.number)
        return self._run(partial(_tuples, query))

    def some_trials(self, study_id: int, numbers: Iterable[int]) -> Iterator[TrialRow]:
        """Return the trials of these numbers."""
        table = schema.trials.c
        for some in _parts(numbers):
            of_study = table.study_id == study_id
            yield from self._rows(TrialRow, schema.trials, of_study, table.number.in_(some))

    def count_trials(self, study_id: int) -> int:
        """Return the number of trials of a study."""
        query = sa.select(sa.func.count()).where(schema.trials.c.study_id == study_id)
        return int(self._ask(query)[0][0])

    def best_trial(self, study_id: int, *, is_maximized: bool) -> TrialRow | None:
        """Return the successful trial with the best finite value: the first of several, or None."""
        table = schema.trials
        value = table.c.finite_value
        query = (
            sa.select(*columns_of(TrialRow, table))
            .where(table.c.study_id == study_id, table.c.state != "FAIL", value.is_not(None))
            .order_by(value.desc() if is_maximized else value, table.c.number)
        )
        return self._first(TrialRow, table, query)

    def figures(self, study_id: int) -> StudyFigures:
        """Return the totals over the trials and stages of a study."""
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
        check_cells(TrialRow, table.c.state, [state for state, _, _ in trials])
        check_cells(StageRow, done.c.status, [status for status, *_ in stages])
        ends = [last for _, _, _, _, last in stages]
        check_cells(StageRow, done.c.ended, ends)
        return StudyFigures(
            trials={state: count for state, count, _ in trials},
            steps_requested=_whole(sum(steps for _, _, steps in trials)),
            steps_executed=_whole(sum(steps for _, _, steps, _, _ in stages)),
            steps_repeated=_whole(sum(repeated for _, _, _, repeated, _ in stages)),
            stages={status: count for status, count, _, _, _ in stages},
            last_end=max(ends, default=None),
        )

    def last_run(self, study_id: int) -> RunRow | None:
        """Return the latest run of a study, or None."""
        table = schema.runs
        query = sa.select(*columns_of(RunRow, table)).where(table.c.study_id == study_id)
        return self._first(RunRow, table, query.order_by(table.c.began.desc()))

    def runs(self, study_id: int) -> Iterator[RunRow]:
        """Return the runs of a study, by name."""
        return self._rows(RunRow, schema.runs, schema.runs.c.study_id == study_id)

    def open_stages(self, study_id: int, run: str) -> list[StageRow]:
        """Return the stages of a run without a recorded end, by attempt."""
        table = schema.stages.c
        is_open = (table.study_id == study_id, table.run == run, table.ended.is_(None))
        return list(self._rows(StageRow, schema.stages, *is_open))

    def failed_stages(self, study_id: int, most: int) -> list[FailedStages]:
        """Return at most `most` groups of stages that failed alike, the latest first."""
        table = schema.stages.c
        step = (table.start + table.steps).label("step")
        alike = (step, table.message, table.trials)
        last = sa.func.max(table.ended)
        groups = self._ask(
            sa.select(*alike, sa.func.count(), last)
            .where(table.study_id == study_id, table.status == "failed")
            .group_by(*alike)
            .order_by(last.desc())
            .limit(most)
        )
        return [
            FailedStages(step=at, message=why, trials=tuple(trials), count=count, last=when)
            for at, why, trials, count, when in groups
        ]

    def failed_trials(
        self, study_id: int, most: int, *, named: Iterable[int] = ()
    ) -> list[TrialRow]:
        """Return failed trials by number: the first `most`, and those in `named`."""
        table = schema.trials
        failed = (table.c.study_id == study_id, table.c.state == "FAIL")
        query = sa.select(*columns_of(TrialRow, table)).where(*failed)
        rows = {row.number: row for row in self._ask(query.order_by(table.c.number).limit(most))}
        for some in _parts(set(named) - rows.keys()):
            rows |= {row.number: row for row in self._ask(query.where(table.c.number.in_(some)))}
        return self._made(TrialRow, table, [rows[number] for number in sorted(rows)])

    def metrics(self, root: str) -> Iterator[MetricRow]:
        """Return the metrics of all states below a root, by key."""
        return self._rows(MetricRow, schema.metrics, schema.metrics.c.root == root)

    def known_metrics(self, root: str) -> Iterator[tuple[str, Step, Metrics]]:
        """Return (key, step, metrics) of all states below a root, in any order.

        Faster than `metrics`: there may be millions.
        """
        table = schema.metrics
        order, is_below = self._metrics_order(root)
        texts = sa.type_coerce(table.c["values"], sa.Text)
        rows = sa.select(table.c.key, table.c.step, texts, order).where(is_below)
        query = rows.order_by(order).limit(_PAGE)
        while page := self._run(partial(_tuples, query)):
            keys, steps, values, places = zip(*page, strict=True)
            check_cells(MetricRow, table.c.key, keys)
            check_cells(MetricRow, table.c.step, steps)
            yield from zip(keys, steps, MetricsText().values_of(values), strict=True)
            query = rows.where(order > places[-1]).order_by(order).limit(_PAGE)

    def metrics_at(self, keys: Iterable[str]) -> Iterator[tuple[str, Metrics]]:
        """Yield (key, metrics) of the states with these keys, in any order."""
        table = schema.metrics.c
        texts = sa.type_coerce(table["values"], sa.Text)
        for some in _parts(keys):
            query = sa.select(table.key, texts).where(table.key.in_(some))
            if rows := self._run(partial(_tuples, query)):
                known, values = zip(*rows, strict=True)
                yield from zip(known, MetricsText().values_of(values), strict=True)

    def metric_steps(self, root: str) -> list[Step]:
        """Return the steps at which a state below a root has metrics, ascending."""
        table = schema.metrics.c
        query = sa.select(table.step).where(table.root == root).distinct().order_by(table.step)
        steps = [step for (step,) in self._ask(query)]
        check_cells(MetricRow, table.step, steps)
        return steps

    def _metrics_order(self, root: str) -> tuple[sa.ColumnElement[Any], sa.ColumnElement[bool]]:
        """Return the order in which to read metrics, and the condition of being below a root."""
        table = schema.metrics
        if self._connections.dialect == "sqlite":
            # A scan of the whole table is many times faster than reading through the index,
            # whose order, that of the keys, is random on the disk.
            row = sa.literal_column("rowid", sa.Integer)
            count = self._ask(sa.select(sa.func.count()).where(table.c.root == root))[0][0]
            last = self._ask(sa.select(sa.func.max(row)).select_from(table))[0][0] or 0
            if count * _SCANNED >= last:
                # The sign keeps SQLite from using the index on root.
                return row, sa.literal_column("+root", sa.String) == root
        return table.c.key, table.c.root == root

    def checkpoints(self, root: str) -> Iterator[CheckpointRow]:
        """Return the checkpoints below a root, by key."""
        return self._rows(CheckpointRow, schema.checkpoints, schema.checkpoints.c.root == root)

    def checkpoints_at(self, keys: Iterable[str]) -> Iterator[CheckpointRow]:
        """Return the checkpoints of the states with these keys."""
        for some in _parts(keys):
            yield from self._rows(
                CheckpointRow, schema.checkpoints, schema.checkpoints.c.key.in_(some)
            )

    def stages_to(self, keys: Iterable[str], attempts: Iterable[str] = ()) -> list[StageRow]:
        """Return the stages of all studies that end at states with these keys, or have an id.

        Parameters
        ----------
        keys
            Keys of states.
        attempts
            Ids of attempts.
        """
        table = schema.stages.c
        wanted: list[sa.ColumnElement[bool]] = [table.key.in_(some) for some in _parts(keys)]
        # With the studies named, the primary key finds an attempt.
        studies = table.study_id.in_(sa.select(schema.studies.c.id))
        wanted += [sa.and_(studies, table.attempt.in_(some)) for some in _parts(attempts)]
        rows = (row for each in wanted for row in self._rows(StageRow, schema.stages, each))
        return list({(row.study_id, row.attempt): row for row in rows}.values())

    def logs_of(self, attempts: Iterable[str]) -> Iterator[LogRow]:
        """Return the logs of attempts with these ids, of all studies."""
        for some in _parts(attempts):
            yield from self._rows(LogRow, schema.logs, schema.logs.c.attempt.in_(some))

    def listed_checkpoints(self, study_ids: Iterable[int], most: int | None = None) -> list[str]:
        """Return the keys of the checkpoints that these studies wrote, the newest first."""
        table = schema.checkpoints.c
        wrote = table.study_id.in_([*study_ids])
        query = sa.select(table.key).where(wrote).order_by(table.created.desc(), table.key)
        return [key for (key,) in self._ask(query.limit(most))]

    def storage_rows(self) -> Iterator[CheckpointRow]:
        """Return the checkpoints below all roots, by key."""
        return self._rows(CheckpointRow, schema.checkpoints)

    def recorded_states(self, nbytes: int) -> dict[str, tuple[str, Step]]:
        """Return attempt and step of the checkpoints of at most so many bytes, by key."""
        table = schema.checkpoints.c
        query = sa.select(table.key, table.attempt, table.step).where(table.nbytes <= nbytes)
        return {key: (attempt, step) for key, attempt, step in self._ask(query)}

    def checkpoint_keys(self) -> set[str]:
        """Return the keys of the checkpoints below all roots."""
        return {key for (key,) in self._ask(sa.select(schema.checkpoints.c.key))}

    def stages(self, study_id: int) -> Iterator[StageRow]:
        """Return the stages of a study, by attempt."""
        return self._rows(StageRow, schema.stages, schema.stages.c.study_id == study_id)

    def stage_ends(self, study_id: int, after: float) -> Iterator[tuple[list[int], float]]:
        """Yield (trials, end) of the stages of a study that ended after a time."""
        table = schema.stages.c
        is_newer = (table.study_id == study_id, table.ended > after)
        trials = sa.type_coerce(table.trials, sa.Text)
        query = sa.select(trials, table.ended).where(*is_newer)
        rows = self._run(partial(_tuples, query))
        trials_of = JsonText().values_of(text for text, _ in rows)
        ends = [ended for _, ended in rows]
        check_cells(StageRow, table.trials, trials_of)
        check_cells(StageRow, table.ended, ends)
        return zip(trials_of, ends, strict=True)

    def close(self) -> None:
        """Close all connections; all writes are durable already."""
        self._connections.close()

    # ------------------------------------------------------------------------ pages

    def _rows(
        self, kind: type[Row], table: sa.Table, *conditions: sa.ColumnElement[bool]
    ) -> Iterator[Row]:
        """Read rows page by page in the order of the primary key.

        Between pages no transaction is open, so the caller may take long and write.
        """
        columns = columns_of(kind, table)
        names = [column.name for column in columns]
        order = list(table.primary_key.columns)
        places = [names.index(column.name) for column in order]
        plain = [sa.type_coerce(item, sa.Text) if _decoder(item) else item for item in columns]
        query = sa.select(*plain).where(*conditions).order_by(*order).limit(_PAGE)
        page = self._ask(query)
        while page:
            # Decode column by column: one `json.loads` for a whole column is much faster.
            series = [
                decode(cells) if (decode := _decoder(column)) else cells
                for column, cells in zip(columns, zip(*page, strict=True), strict=True)
            ]
            for column, cells in zip(columns, series, strict=True):
                check_cells(kind, column, cells)
            for values in zip(*series, strict=True):
                yield kind(**dict(zip(names, values, strict=True)))
            if len(page) < _PAGE:
                return
            last = [page[-1][place] for place in places]
            page = self._ask(query.where(sa.tuple_(*order) > sa.tuple_(*last)))

    def _tuner_events(self, study_id: int, kind: str) -> sa.Select[Any]:
        table = schema.events
        # As text: with a parameter SQLite would not use the partial index.
        is_kind = table.c.kind == sa.literal(kind, literal_execute=True)
        return sa.select(*columns_of(EventRow, table)).where(table.c.study_id == study_id, is_kind)

    def _first(self, kind: type[Row], table: sa.Table, query: sa.Select[Any]) -> Row | None:
        return next(iter(self._made(kind, table, self._ask(query.limit(1)))), None)

    def _made(self, kind: type[Row], table: sa.Table, rows: Sequence[Any]) -> list[Row]:
        """Return rows of a query for `columns_of` a table, with their values checked."""
        columns = columns_of(kind, table)
        for column, cells in zip(columns, zip(*rows, strict=True), strict=False):
            check_cells(kind, column, cells)
        return [kind(**row._mapping) for row in rows]

    def _ask(self, query: sa.Select[Any]) -> Sequence[Any]:
        return self._run(lambda connection: connection.execute(query).all())

    def _do(self, change: sa.Delete | sa.Update | sa.Insert, keys: Sequence[str] = ()) -> None:
        """Make a change; one to the checkpoints of keys is kept."""

        def work(connection: sa.Connection) -> None:
            connection.execute(change)

        self._run(work)
        if keys:
            self.kept.add(work, rows=[keys])

    def _run(
        self, work: Work[Row], *, recover: Work[Row | None] | None = None, restores: bool = False
    ) -> Row:
        """Do work in one transaction, after what was lost is written again.

        A loss is looked for on each new connection, and in any case before work that `restores`:
        a proxy may keep its connection to this process, and lose that to the server.
        """
        made = self._checked

        def checked(connection: sa.Connection) -> Row:
            nonlocal made
            made = self._connections.made
            if made != self._checked or restores:
                self.kept.restore(connection, is_new=made != self._checked)
            return work(connection)

        result = self._connections.run(checked, recover=recover)
        self._checked = made
        return result


def _whole(total: object) -> int:
    """Return a sum of steps; one that is not finite is of damaged cells."""
    try:
        return int(total)  # type: ignore[call-overload, no-any-return]
    except (OverflowError, TypeError, ValueError):
        raise CorruptRecordError(
            f"the database must hold whole numbers of steps, got {total!r} in all"
        ) from None


def _find_events(events: Sequence[EventRow], connection: sa.Connection) -> bool | None:
    """Return True if all of these events are in the event log, else None."""
    table = schema.events
    for event in events:
        same = (table.c.study_id == event.study_id, table.c.number == event.number)
        rows = connection.execute(sa.select(table.c.payload).where(*same)).all()
        if [to_text(row[0]) for row in rows] != [to_text(event.payload)]:
            return None
    return bool(events) or None


def _tuples(query: sa.Select[Any], connection: sa.Connection) -> Sequence[tuple[Any, ...]]:
    """Return rows as the driver gives them, without SQLAlchemy's work for each row."""
    cursor: Any = connection.execute(query).cursor
    rows: Sequence[tuple[Any, ...]] = cursor.fetchall()
    return rows


def _decoder(column: sa.Column[Any]) -> Callable[[Iterable[str]], list[Any]] | None:
    """Return the function that decodes the texts of a JSON column; None for other columns."""
    return column.type.values_of if isinstance(column.type, JsonText) else None


def _parts(keys: Iterable[Key]) -> Iterator[list[Key]]:
    """Yield keys in lists that fit into one statement."""
    left = iter(keys)
    while some := list(islice(left, _KEYS)):
        yield some


def _warn_of_network(file: Path, mounts: Mounts) -> None:
    """Warn, once per file and process, of a SQLite file on a network file system."""
    if file in _warned:
        return
    _warned.add(file)
    kind = network_kind(file, mounts)
    if kind is not None:
        logger.warning(
            "database %s is on a network file system (%s), where SQLite's locks do not hold "
            "and it may be destroyed: give a file on a local disk, database='/local/x.db', "
            "or PostgreSQL for several machines, database='postgresql+psycopg://...'",
            file,
            kind,
        )


_DELETED = "deleted study"
"""Name in ``dasktune_meta`` of the highest number of a study that was deleted (SQLite only)."""


def _keep_number(study_id: int) -> sa.Executable:
    """Return the statement that keeps the number of a study from being given again.

    SQLite would give the highest one again. A driver of the deleted study that was stopped, and
    wakes later, would then write into the study that has its number.
    """
    insert = INSERTS["sqlite"](schema.meta).values(name=_DELETED, number=study_id)
    highest = sa.func.max(schema.meta.c.number, insert.excluded.number)
    return insert.on_conflict_do_update(index_elements=["name"], set_={"number": highest})


def _unused_number() -> sa.ColumnElement[int]:
    """Return the number after those of all studies that are, or were, in a SQLite file."""
    number, name = schema.meta.c.number, schema.meta.c.name
    present = sa.select(sa.func.coalesce(sa.func.max(schema.studies.c.id), 0))
    deleted = sa.select(sa.func.coalesce(sa.func.max(number), 0)).where(name == _DELETED)
    return sa.func.max(present.scalar_subquery(), deleted.scalar_subquery()) + 1

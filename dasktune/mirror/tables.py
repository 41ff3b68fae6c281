"""Writer of trials as rows of Optuna's tables, many in one transaction.

Optuna's own interface queries the database twice before it writes one number, and commits each
number by itself: 1 ms or more per report. As rows, 100 reports take less time than that. The
tables are Optuna's format on disk. `understands` checks their version; for other versions
`dasktune.mirror.writers.CallWriter` is the writer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import Any, Final

import sqlalchemy as sa
from optuna.distributions import distribution_to_json, json_to_distribution
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState
from sqlalchemy.dialects import postgresql, sqlite

from dasktune.errors import StorageError
from dasktune.mirror.background import in_parts
from dasktune.mirror.frozen import NUMBER
from dasktune.mirror.writers import Contents, Written, misnumbered

VERSIONS: Final = frozenset({"v3.2.0.a"})
"""Versions of Optuna's tables that `TableWriter` writes."""

MOST_TRIALS: Final = 500
"""Most trials in one transaction, so that other processes wait a short time only."""

_INSERTS: Final[Mapping[str, Callable[[sa.Table], sqlite.Insert | postgresql.Insert]]] = {
    "sqlite": sqlite.insert,
    "postgresql": postgresql.insert,
}
_UNIQUE: Final[Mapping[str, tuple[str, str]]] = {
    "trial_params": ("trial_id", "param_name"),
    "trial_system_attributes": ("trial_id", "key"),
    "trial_user_attributes": ("trial_id", "key"),
    "trial_values": ("trial_id", "objective"),
    "trial_intermediate_values": ("trial_id", "step"),
}
"""Tables with rows of a trial, and the columns that identify a row."""

Row = dict[str, Any]


def understands(storage: RDBStorage) -> bool:
    """Return whether `TableWriter` can write tables of this kind and version."""
    return storage.engine.name in _INSERTS and storage.get_current_version() in VERSIONS


def contents_by_tables(storage: RDBStorage, study_id: int) -> Contents:
    """Return the contents of a study, read with a few queries, without reports of ended trials."""
    with storage.engine.connect() as connection:
        reader = _TrialReader(connection, _tables(storage.engine), study_id)
        marks = reader.rows("trial_system_attributes", "key", "value_json")
        numbers = {number: json.loads(text) for number, name, text in marks if name == NUMBER}
        params = reader.rows("trial_params", "param_name", "distribution_json")
        texts = {name: text for _, name, text in params}
        written = reader.written()
    return Contents(
        written=written,
        foreign=[number for number in written if numbers.get(number) != number],
        distributions={name: json_to_distribution(text) for name, text in texts.items()},
    )


class _TrialReader:
    """Reads the rows of the trials of a study."""

    def __init__(
        self, connection: sa.Connection, tables: Mapping[str, sa.Table], study_id: int
    ) -> None:
        self._connection = connection
        self._tables = tables
        self._trials = tables["trials"]
        self._of_study = self._trials.c.study_id == study_id

    def written(self) -> dict[int, Written]:
        """Return the written part of each trial, by number."""
        columns = (self._trials.c.number, self._trials.c.trial_id, self._trials.c.state)
        written = {
            number: Written(trial_id, OptunaState[state], None)
            for number, trial_id, state in self._connection.execute(
                sa.select(*columns).where(self._of_study)
            )
        }
        is_live = self._trials.c.state == OptunaState.RUNNING.name
        for number, step in self.rows("trial_intermediate_values", "step", only=is_live):
            written[number].steps.add(step)
        for number, name, text in self.rows("trial_user_attributes", "key", "value_json"):
            written[number].attributes[name] = hash(text)
        values = self.rows("trial_values", "objective", "value", "value_type")
        for number, _, value, kind in sorted(values, key=lambda row: row[:2]):
            there = written[number]
            there.values = [*(there.values or ()), _loaded(kind, value)]
        return written

    def rows(
        self, name: str, *columns: str, only: sa.ColumnElement[bool] | None = None
    ) -> list[tuple[Any, ...]]:
        """Return the trial's number and these columns of each row of a table."""
        table, trials = self._tables[name], self._trials
        query = sa.select(trials.c.number, *(table.c[column] for column in columns))
        query = query.join_from(trials, table, trials.c.trial_id == table.c.trial_id)
        query = query.where(self._of_study if only is None else sa.and_(self._of_study, only))
        return [tuple(row) for row in self._connection.execute(query)]


class TableWriter:
    """Writes the rows of trials.

    If a trial goes on after its end, the writer changes its rows in place, which Optuna's own
    interface forbids. A dashboard that has the trial in memory shows the change after a restart.

    Parameters
    ----------
    storage
        The storage; `understands` must return True for it.
    study_id
        Optuna's number of the study.
    written
        The written part of each trial, by number; the writer keeps it up to date.
    """

    def __init__(self, storage: RDBStorage, study_id: int, written: dict[int, Written]) -> None:
        self._engine = storage.engine
        self._study_id = study_id
        self._written = written
        tables = _tables(self._engine)
        self._studies, self._trials = tables["studies"], tables["trials"]
        self._values = tables["trial_values"]
        self._state_update = (
            self._trials.update()
            .where(self._trials.c.trial_id == sa.bindparam("at"))
            .values(state=sa.bindparam("state"), datetime_complete=sa.bindparam("end"))
        )
        self._upserts = {name: self._upsert(tables[name]) for name in _UNIQUE}

    def write(self, trials: Sequence[FrozenTrial]) -> None:
        """Write the changes of trials.

        Raises
        ------
        StorageError
            If the study is missing, or another program has added trials to it.
        """
        news = [trial for trial in trials if self._has_news(trial)]
        for part in in_parts(news, MOST_TRIALS):
            with self._engine.begin() as connection:
                self._lock(connection)
                new = self._create(connection, [t for t in part if t.number not in self._written])
                there = {t.number: new.get(t.number) or self._written[t.number] for t in part}
                self._change(connection, [t for t in part if t.number not in new])
                self._fill(connection, [(there[trial.number], trial) for trial in part])
            self._written |= new
            for trial in part:
                there[trial.number].take(trial)

    def _has_news(self, trial: FrozenTrial) -> bool:
        there = self._written.get(trial.number)
        return there is None or not there.state.is_finished() or there.differs(trial)

    def _lock(self, connection: sa.Connection) -> None:
        """Lock the study: Optuna numbers a new trial by the count of trials."""
        is_study, name = self._studies.c.study_id == self._study_id, self._studies.c.study_name
        update = self._studies.update().where(is_study).values(study_name=name)
        if not connection.execute(update).rowcount:
            raise StorageError("the study does not exist any more")

    def _create(
        self, connection: sa.Connection, trials: Sequence[FrozenTrial]
    ) -> dict[int, Written]:
        """Add trials with their parameters, and return their written parts by number."""
        if not trials:
            return {}
        is_study = self._trials.c.study_id == self._study_id
        count = connection.execute(
            sa.select(sa.func.count()).select_from(self._trials).where(is_study)
        ).scalar_one()
        if [trial.number for trial in trials] != list(range(count, count + len(trials))):
            raise StorageError(misnumbered(trials[0].number, count))
        insert = self._trials.insert().returning(
            self._trials.c.trial_id, sort_by_parameter_order=True
        )
        ids = connection.execute(insert, [self._trial_row(trial) for trial in trials]).scalars()
        created = {
            trial.number: Written(trial_id, trial.state, None)
            for trial, trial_id in zip(trials, ids, strict=True)
        }
        pairs = [(created[trial.number].trial_id, trial) for trial in trials]
        params = (_param_rows(at, trial) for at, trial in pairs)
        attributes = (_attribute_rows(at, trial.system_attrs.items()) for at, trial in pairs)
        self._put(connection, "trial_params", params)
        self._put(connection, "trial_system_attributes", attributes)
        return created

    def _change(self, connection: sa.Connection, trials: Sequence[FrozenTrial]) -> None:
        """Change the state of existing trials."""
        rows: list[Row] = []
        emptied: list[int] = []
        for trial in trials:
            there, end = self._written[trial.number], _utc(trial.datetime_complete)
            if there.state is not trial.state:
                rows.append({"at": there.trial_id, "state": trial.state.name, "end": end})
            if there.values is not None and trial.values is None:
                emptied.append(there.trial_id)
        if rows:
            connection.execute(self._state_update, rows)
        if emptied:
            column = self._values.c.trial_id
            connection.execute(self._values.delete().where(column.in_(emptied)))

    def _fill(
        self, connection: sa.Connection, pairs: Sequence[tuple[Written, FrozenTrial]]
    ) -> None:
        """Write the values and attributes of existing trials."""
        attributes = (_attribute_rows(old.trial_id, old.new_attributes(new)) for old, new in pairs)
        reports = (_report_rows(old.trial_id, old.new_steps(new)) for old, new in pairs)
        values = (_value_rows(old.trial_id, new) for old, new in pairs)
        self._put(connection, "trial_user_attributes", attributes)
        self._put(connection, "trial_intermediate_values", reports)
        self._put(connection, "trial_values", values)

    def _put(self, connection: sa.Connection, table: str, rows: Iterable[Iterable[Row]]) -> None:
        if inserted := list(chain.from_iterable(rows)):
            connection.execute(self._upserts[table], inserted)

    def _trial_row(self, trial: FrozenTrial) -> Row:
        return {
            "number": trial.number,
            "study_id": self._study_id,
            "state": trial.state.name,
            "datetime_start": _utc(trial.datetime_start),
            "datetime_complete": _utc(trial.datetime_complete),
        }

    def _upsert(self, table: sa.Table) -> sa.Insert:
        insert = _INSERTS[self._engine.dialect.name](table)
        keys = _UNIQUE[table.name]
        own = {column.name for column in table.primary_key.columns}
        others = [column.name for column in table.columns if column.name not in {*keys, *own}]
        return insert.on_conflict_do_update(
            index_elements=keys, set_={name: insert.excluded[name] for name in others}
        )


def _tables(engine: sa.Engine) -> Mapping[str, sa.Table]:
    tables = sa.MetaData()
    tables.reflect(engine, only=["studies", "trials", *_UNIQUE])
    return tables.tables


def _param_rows(at: int, trial: FrozenTrial) -> Iterator[Row]:
    for name, value in trial.params.items():
        distribution = trial.distributions[name]
        yield {
            "trial_id": at,
            "param_name": name,
            "param_value": distribution.to_internal_repr(value),
            "distribution_json": distribution_to_json(distribution),
        }


def _attribute_rows(at: int, attributes: Iterable[tuple[str, Any]]) -> Iterator[Row]:
    for name, value in attributes:
        yield {"trial_id": at, "key": name, "value_json": json.dumps(value)}


def _report_rows(at: int, reports: Iterable[tuple[int, float]]) -> Iterator[Row]:
    for step, value in reports:
        kind, stored = _stored(value)
        yield {
            "trial_id": at,
            "step": step,
            "intermediate_value": stored,
            "intermediate_value_type": kind,
        }


def _value_rows(at: int, trial: FrozenTrial) -> Iterator[Row]:
    for objective, value in enumerate(trial.values or ()):
        kind, stored = _stored(value)
        yield {"trial_id": at, "objective": objective, "value": stored, "value_type": kind}


def _loaded(kind: str, value: float | None) -> float:
    """Return the number that `_stored` converted."""
    return math.inf if kind == "INF_POS" else -math.inf if value is None else value


def _stored(value: float) -> tuple[str, float | None]:
    """Return Optuna's kind of a number, and the number itself if it is finite."""
    if math.isfinite(value):
        return "FINITE", value
    if math.isnan(value):
        return "NAN", None
    return ("INF_POS" if value > 0 else "INF_NEG"), None


def _utc(local: datetime | None) -> datetime | None:
    """Convert local time without zone, as in Optuna's trials, to UTC, as in its tables."""
    return None if local is None else local.astimezone(UTC).replace(tzinfo=None)

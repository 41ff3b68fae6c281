"""Writes that a database acknowledged and lost are written again, as far as they were kept."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from dasktune.errors import FencedError, StorageError
from dasktune.storage.database import schema
from dasktune.storage.database.database import Batch, Database
from dasktune.storage.database.rows import (
    CheckpointRow,
    EventRow,
    LogRow,
    MetricRow,
    StageRow,
    TrialRow,
)
from tests import services
from tests.effort import examples

TABLES = [
    *(schema.events, schema.trials, schema.metrics, schema.checkpoints, schema.stages),
    *(schema.logs, schema.notes),
]

Rows = dict[str, list[tuple[object, ...]]]


class Server:
    """A database whose rows a test may set back, as a crash of a server does."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._engine = sa.create_engine(f"sqlite:///{file}", poolclass=sa.NullPool)

    def open(self, kept_bytes: int = 2**20) -> Database:
        """Return the database as one driver has it."""
        return Database(self.file, kept_bytes=kept_bytes)

    def rows(self) -> Rows:
        """Return all rows that drivers write; the numbers of notes do not count."""
        with self._engine.connect() as connection:
            return {
                table.name: [
                    tuple(row)[table is schema.notes :]
                    for row in connection.execute(sa.select(table).order_by(*table.primary_key))
                ]
                for table in TABLES
            }

    def set_back(self, rows: Rows) -> None:
        """Lose all that was written after these rows."""
        with self._engine.begin() as connection:
            for table in TABLES:
                connection.execute(table.delete())
                names = table.columns.keys()[table is schema.notes :]
                plain = sa.table(table.name, *map(sa.column, names))
                for row in rows[table.name]:
                    values = {
                        name: table.c[name].type.process_bind_param(cell, None)
                        if isinstance(table.c[name].type, sa.types.TypeDecorator)
                        else cell
                        for name, cell in zip(names, row, strict=True)
                    }
                    connection.execute(plain.insert().values(values))


@pytest.fixture
def server(tmp_path: Path) -> Server:
    made = Server(tmp_path / "x.db")
    with closing(made.open()) as database:
        assert database.create_study("digits", root="r", spec={}, created=0.0)
    return made


def event(number: int, by: str = "me") -> EventRow:
    return EventRow(study_id=1, number=number, payload={"kind": "report", "by": by})


def batch(number: int, by: str = "me") -> Batch:
    """Return a batch with a row for each table."""
    return Batch(
        events=[event(number, by)],
        trials=[
            TrialRow(study_id=1, number=0, state="RUNNING", steps=number, value=None, record={})
        ],
        metrics=[MetricRow(key=f"m{number}", root="r", step=number, values={"loss": 0.5})],
        checkpoints=[
            CheckpointRow(
                key=f"c{number}", root="r", step=1, attempt="a", digest="d", nbytes=1, seconds=0.1
            )
        ],
        stages=[stage(number)],
        logs=[LogRow(study_id=1, attempt="a", text=f"line {number}")],
    )


def stage(steps: int, status: str = "running") -> StageRow:
    return StageRow(
        study_id=1, attempt="a", key="k", start=0, stop=99, worker="w", status=status,
        started=1.0, ended=None, steps=steps, repeated=0,
    )  # fmt: skip


def connect_anew(database: Database) -> None:
    """Close the connection, as a server that crashes does."""
    database.connections.engine.dispose()


WRITES: list[Callable[[Database], None]] = [
    lambda database: database.write(Batch(stages=[stage(77, "completed")])),
    lambda database: database.note(1, {"kind": "audited", "steps": 3}),
    lambda database: database.touch_checkpoints(["c0"], 7.0),
    lambda database: database.forget_checkpoints(["c1"]),
]


@given(
    kinds=st.lists(st.integers(0, len(WRITES) + 2), min_size=1, max_size=12),
    data=st.data(),
)
@settings(max_examples=examples(25), deadline=None)
def test_lost_rows_are_all_written_again(
    tmp_path_factory: pytest.TempPathFactory, kinds: Sequence[int], data: st.DataObject
) -> None:
    server = Server(tmp_path_factory.mktemp("lost") / "x.db")
    with closing(server.open()) as database:
        database.create_study("digits", root="r", spec={}, created=0.0)
        number, copies = 0, []
        for kind in (len(WRITES), *kinds):
            if kind < len(WRITES):
                WRITES[kind](database)
            else:
                database.write(batch(number))
                number += 1
            copies.append(server.rows())
        server.set_back(data.draw(st.sampled_from(copies)))
        connect_anew(database)
        assert database.next_event(1) == number
        assert server.rows() == copies[-1]
        database.write(batch(number))
        assert [row.number for row in database.events(1)] == list(range(number + 1))


def test_loss_behind_a_proxy_leaves_no_gap(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(server.open()) as database, caplog.at_level(logging.WARNING, "dasktune"):
        database.write(batch(0))
        copy = server.rows()
        database.write(batch(1))
        database.write(batch(2))
        server.set_back(copy)  # and the connection stays
        database.write(batch(3))
        assert [row.number for row in database.events(1)] == [0, 1, 2, 3]
        assert {row.key for row in database.metrics("r")} == {"m0", "m1", "m2", "m3"}
    (line,) = [record.message for record in caplog.records]
    assert "has lost 2 events of study 'digits' that it had acknowledged, from event 1 on" in line


def test_loss_of_more_than_was_kept_stops_the_driver(server: Server) -> None:
    with closing(server.open(kept_bytes=3 * 4400)) as database:
        database.write(batch(0))
        copy = server.rows()
        for number in range(1, 9):
            database.write(batch(number))
        server.set_back(copy)
        for _ in range(2):  # it stays so: no event is written after the gap
            with pytest.raises(
                StorageError, match=r"has lost 8 events .* from event 1 on.*keeps only"
            ):
                database.write(batch(9))
        assert [row.number for row in server.open().events(1)] == [0]


def test_writes_without_events_are_forgotten_in_their_turn(server: Server) -> None:
    with closing(server.open(kept_bytes=3 * 4400)) as database:
        database.write(batch(0))
        for _ in range(9):
            database.note(1, {"kind": "audited", "steps": 3})
        database.write(batch(1))
        copy = server.rows()
        database.write(batch(2))
        server.set_back(copy)
        connect_anew(database)
        assert [row.number for row in database.events(1)] == [0, 1, 2]


def test_events_of_another_driver_stand_after_a_loss(server: Server) -> None:
    with closing(server.open()) as database, closing(server.open()) as other:
        database.write(batch(0))
        copy = server.rows()
        for number in (1, 2, 3):
            database.write(batch(number))
        server.set_back(copy)
        other.write(batch(1, by="another"))
        connect_anew(database)
        with pytest.raises(FencedError, match="'digits': another process is running this study"):
            database.write(batch(4))
        assert [row.payload["by"] for row in other.events(1)] == ["me", "another"]


def test_rows_of_a_later_driver_are_left_alone(server: Server) -> None:
    with closing(server.open()) as database, closing(server.open()) as other:
        database.write(batch(0))
        database.write(Batch(stages=[stage(5)]))
        other.write(batch(1, by="another"))
        rows = server.rows()
        connect_anew(database)
        assert database.next_event(1) == 2
        assert server.rows() == rows


def test_a_deleted_study_is_not_written_again(server: Server) -> None:
    with closing(server.open()) as database, closing(server.open()) as other:
        database.write(batch(0))
        other.delete_study(1, roots=["r"])
        with pytest.raises(StorageError, match="no longer has the study of this run"):
            database.write(batch(1))
        assert not any(server.rows().values())


@pytest.fixture
def deleted(server: Server) -> Iterator[Database]:
    with closing(server.open()) as database:
        database.write(batch(0))
        database.delete_study(1, roots=["r"])
        yield database


def test_a_driver_that_deletes_its_study_goes_on(deleted: Database) -> None:
    connect_anew(deleted)
    assert list(deleted.studies()) == []


def test_sqlite_keeps_no_writes(server: Server) -> None:
    with closing(Database(server.file)) as database:
        for number in range(3):
            database.write(batch(number))
        server.set_back({table.name: [] for table in TABLES})
        connect_anew(database)
        assert database.next_event(1) == 0


@pytest.mark.postgresql
def test_crashes_of_a_server_without_fsync_leave_no_gap(caplog: pytest.LogCaptureFixture) -> None:
    # What was acknowledged waits 10 seconds for the disk, unless another write takes it along.
    with (
        services.postgresql(synchronous_commit="off", wal_writer_delay="10s") as server,
        closing(Database(server.url)) as database,
        caplog.at_level("WARNING", "dasktune"),
    ):
        assert database.create_study("digits", root="r", spec={}, created=0.0)
        with database.connections.engine.begin() as connection:
            connection.exec_driver_sql("CHECKPOINT")
        for count in range(5, 200, 5):
            for number in range(count - 5, count):
                database.write(batch(number))
                database.note(1, {"kind": "audited", "steps": number})
            server.crash()
            server.start()
            assert database.next_event(1) == count
            if "has lost" in caplog.text:
                break
        assert "has lost" in caplog.text
        assert [row.number for row in database.events(1)] == list(range(count))
        assert [row.payload["steps"] for row in database.notes(1)] == list(range(count))
        assert {row.step for row in database.metrics("r")} == set(range(count))
        assert [row.steps for row in database.trials(1)] == [count - 1]

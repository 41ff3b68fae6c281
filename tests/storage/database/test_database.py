"""The database returns rows exactly, at a cost that does not grow."""

import itertools
import math
import sqlite3
import subprocess
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex, CreateTable

from dasktune.errors import ConfigurationError, StorageError
from dasktune.storage.database import schema
from dasktune.storage.database.database import Batch, Database, FailedStages
from dasktune.storage.database.insertions import statement
from dasktune.storage.database.rows import (
    CheckpointRow,
    EventRow,
    MetricRow,
    RunRow,
    StageRow,
    TrialRow,
)
from tests.effort import examples

TRIAL = TrialRow(
    study_id=1, number=0, state="RUNNING", steps=3, value=0.1 + 0.2, record={"lr": [0.1, None]}
)
CHECKPOINT = CheckpointRow(
    key="a1", root="r0", step=3, attempt="1-aa", digest="dd", nbytes=2**40, seconds=0.1
)
STAGE = StageRow(
    study_id=1,
    attempt="1-aa",
    key="a1",
    start=0,
    stop=10,
    worker="tcp://w:1",
    status="running",
    started=1.5,
    ended=None,
    steps=0,
    repeated=0,
)


SERVER = pytest.param("server", marks=pytest.mark.postgresql)


@pytest.fixture(params=["file", "url", "memory", SERVER])
def database(request, tmp_path):
    urls = {"file": tmp_path / "runs" / "x.db", "url": f"sqlite:///{tmp_path}/y.db"}
    if request.param == "server":
        urls["server"] = request.getfixturevalue("own_schema")
    opened = Database(urls.get(request.param, "sqlite://"))
    yield opened
    opened.close()


@pytest.fixture
def own_schema(postgresql):
    """Return the URL of tables of the test's own on the server."""
    admin = sa.create_engine(postgresql, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.exec_driver_sql("CREATE SCHEMA mine")
    try:
        yield f"{postgresql}&options=-csearch_path%3Dmine"
    finally:
        with admin.connect() as connection:
            connection.exec_driver_sql("DROP SCHEMA mine CASCADE")
        admin.dispose()


def event(number, payload=None, study_id=1):
    return EventRow(study_id=study_id, number=number, payload=payload)


def metric(key, step=1, root="r0", **values):
    return MetricRow(key=key, root=root, step=step, values=values or {"loss": 0.5})


def test_study_is_returned_by_name(database):
    spec = {"metric": "loss", "space": [1, 1.0, True, None, "ä"], "limit": math.inf}
    first = database.create_study("digits", root="r0", spec=spec, created=1722.25)
    second = database.create_study("other", root="r1", spec={}, created=1.0)
    assert database.study("digits") == first
    assert first.spec == spec
    assert [type(value) for value in first.spec["space"]] == [int, float, bool, type(None), str]
    assert list(database.studies()) == [first, second]
    assert database.study("digit") is None


def test_create_study_with_a_taken_name_returns_none(database):
    database.create_study("digits", root="r0", spec={}, created=0.0)
    assert database.create_study("digits", root="r1", spec={}, created=0.0) is None
    assert [study.root for study in database.studies()] == ["r0"]


def test_the_number_of_a_deleted_study_is_not_given_again(database: Database) -> None:
    numbers = []
    for name in ("first", "second", "third"):
        study = database.create_study(name, root=name, spec={}, created=0.0)
        assert study is not None
        numbers.append(study.id)
        database.delete_study(study.id, roots=[name])
    assert len(set(numbers)) == 3


def test_concurrent_create_study_adds_one_row(tmp_path):
    databases = [Database(tmp_path / "x.db") for _ in range(8)]
    barrier = threading.Barrier(8, timeout=60)

    def create(database):
        barrier.wait()
        return database.create_study("digits", root="r0", spec={}, created=0.0)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(create, databases))
    for database in databases:
        database.close()
    assert [study.id for study in found if study is not None] == [1]


def test_every_kind_of_row_comes_back(database):
    batch = Batch(
        events=[event(0, {"kind": "report", "loss": 0.1}), event(1, [1, None])],
        trials=[TRIAL, replace(TRIAL, number=1, value=None)],
        metrics=[metric("a1", loss=math.pi, accuracy=-0.0)],
        checkpoints=[CHECKPOINT],
        stages=[STAGE, replace(STAGE, attempt="2-bb", ended=2.5)],
    )
    database.write(batch)
    assert list(database.events(1)) == batch.events
    assert list(database.trials(1)) == batch.trials
    assert list(database.metrics("r0")) == batch.metrics
    assert math.copysign(1, next(database.metrics("r0")).values["accuracy"]) == -1
    assert list(database.checkpoints("r0")) == batch.checkpoints
    assert list(database.stages(1)) == batch.stages


@pytest.mark.parametrize("others", [1, 9000])
def test_known_metrics_equal_metrics(database, others):
    many = [metric(f"{at * 7 % 2000:04}", loss=at / 7) for at in range(2000)]
    more = [metric(f"b{at}", root="r1") for at in range(others)]
    database.write(Batch(metrics=[*more, *many, metric("x", loss=math.inf)]))
    expected = [(row.key, row.step, row.values) for row in database.metrics("r0")]
    assert sorted(database.known_metrics("r0"), key=lambda one: one[0]) == expected
    assert len(expected) == 2001
    assert list(database.known_metrics("r3")) == []


def test_reads_leave_out_other_studies_and_roots(database):
    database.write(
        Batch(
            events=[event(0), event(0, study_id=2)],
            trials=[TRIAL, replace(TRIAL, study_id=2)],
            metrics=[metric("a1"), metric("b1", root="r1")],
            checkpoints=[CHECKPOINT, replace(CHECKPOINT, key="b1", root="r1")],
            stages=[STAGE, replace(STAGE, study_id=2)],
        )
    )
    assert [row.study_id for row in database.events(2)] == [2]
    assert [row.study_id for row in database.trials(2)] == [2]
    assert [row.key for row in database.metrics("r1")] == ["b1"]
    assert [row.key for row in database.checkpoints("r1")] == ["b1"]
    assert [row.study_id for row in database.stages(2)] == [2]
    assert list(database.events(3)) == list(database.metrics("r3")) == []


@given(st.dictionaries(st.text(), st.floats(), max_size=4), st.floats())
@settings(deadline=None, max_examples=examples(50))
def test_every_float_comes_back(values, value):
    database = Database("sqlite://")
    database.write(
        Batch(
            metrics=[metric("a1", **values)],
            trials=[replace(TRIAL, value=value, record={"value": value})],
            events=[event(0, [value])],
        )
    )
    (row,) = database.metrics("r0")
    (trial,) = database.trials(1)
    (logged,) = database.events(1)
    database.close()
    assert repr(row.values) == repr(values or {"loss": 0.5})
    assert repr(trial.value) == repr(trial.record["value"]) == repr(logged.payload[0])
    assert repr(trial.value) == repr(value)


def test_first_metrics_of_a_key_are_kept(database):
    database.write(Batch(metrics=[metric("a1", loss=0.5), metric("a1", loss=0.6)]))
    database.write(Batch(metrics=[metric("a1", loss=0.7), metric("a2", loss=0.8)]))
    assert [row.values["loss"] for row in database.metrics("r0")] == [0.5, 0.8]


def test_later_rows_replace_trials_checkpoints_and_stages(database):
    database.write(Batch(trials=[TRIAL], checkpoints=[CHECKPOINT], stages=[STAGE]))
    after = Batch(
        trials=[replace(TRIAL, state="COMPLETE", steps=9, value=math.inf, record={})],
        checkpoints=[replace(CHECKPOINT, attempt="2-bb", digest="ee", nbytes=1)],
        stages=[replace(STAGE, status="done", ended=2.5, steps=10, repeated=2)],
    )
    database.write(after)
    assert list(database.trials(1)) == after.trials
    assert list(database.checkpoints("r0")) == after.checkpoints
    assert list(database.stages(1)) == after.stages


def test_a_checkpoint_is_forgotten(database):
    database.write(Batch(checkpoints=[CHECKPOINT, replace(CHECKPOINT, key="a2")]))
    database.forget_checkpoints(["a1", "none"])
    database.forget_checkpoints(["a1"])
    database.forget_checkpoints([])
    assert [row.key for row in database.checkpoints("r0")] == ["a2"]


def test_taken_event_number_refuses_the_whole_batch(database):
    study = database.create_study("digits", root="r0", spec={}, created=0.0)
    assert study.id == 1
    database.write(Batch(events=[event(0, "first")]))
    with pytest.raises(StorageError) as caught:
        database.write(Batch(events=[event(1), event(0, "second")], trials=[TRIAL]))
    assert str(caught.value).startswith("study 'digits': another process is running this study; ")
    assert "INSERT" not in "".join(traceback.format_exception(caught.value))
    assert list(database.events(1)) == [event(0, "first")]
    assert list(database.trials(1)) == []


def test_notes_are_ordered_and_numbered_apart_from_events(database):
    database.note(1, {"a": math.inf})
    database.note(2, "of another study")
    database.note(1, [0.1, None])
    database.write(Batch(events=[event(0), event(1)]))
    assert [note.payload for note in database.notes(1)] == [{"a": math.inf}, [0.1, None]]
    assert [note.payload for note in database.notes(2)] == ["of another study"]
    with pytest.raises(StorageError, match="Object of type object is not JSON serializable"):
        database.note(1, object())
    assert sum(1 for _ in database.notes(1)) == 2


def test_concurrent_notes_are_all_kept(tmp_path):
    databases = [Database(tmp_path / "x.db") for _ in range(4)]

    def write(number):
        for turn in range(20):
            databases[number].note(1, [number, turn])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    notes = [tuple(note.payload) for note in databases[0].notes(1)]
    for opened in databases:
        opened.close()
    assert len(notes) == len(set(notes)) == 80
    for number in range(4):
        assert [note for note in notes if note[0] == number] == [(number, n) for n in range(20)]


def test_a_payload_that_is_not_json_is_refused(database):
    with pytest.raises(StorageError, match="Object of type object is not JSON serializable"):
        database.write(Batch(events=[event(0), event(1, object())]))
    assert list(database.events(1)) == []


@pytest.mark.parametrize("count", [999, 1000, 1001, 2500])
def test_long_logs_are_read_whole_and_in_order(count):
    database = Database("sqlite://")
    numbers = list(range(count))
    database.write(Batch(events=[event(number, number) for number in reversed(numbers)]))
    assert [row.payload for row in database.events(1)] == numbers
    assert [row.number for row in database.events(1, after=count - 3)] == numbers[-2:]
    database.close()


def test_rows_can_be_written_during_a_read(database):
    database.write(Batch(events=[event(number) for number in range(1500)]))
    seen = 0
    for row in database.events(1):
        seen += 1
        if row.number < 1000:
            database.write(Batch(events=[event(row.number + 1500)]))
    assert seen == 2500


def test_threads_write_together(database):
    def write(study_id):
        for number in range(20):
            database.write(Batch(events=[event(number, study_id=study_id)]))
            assert sum(1 for _ in database.events(study_id)) == number + 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert [sum(1 for _ in database.events(number)) for number in range(4)] == [20] * 4


def test_rows_survive_closing(tmp_path):
    database = Database(tmp_path / "x.db")
    study = database.create_study("digits", root="r0", spec={}, created=0.0)
    database.write(Batch(events=[event(0, "x", study.id)]))
    database.close()
    again = Database(f"sqlite:///{tmp_path}/x.db")
    assert again.study("digits") == study
    assert [row.payload for row in again.events(study.id)] == ["x"]
    again.close()


READER = """
import sys
from dasktune.storage.database.database import Database
database = Database(sys.argv[1])
print("open", flush=True)
last = shown = -1
while last < int(sys.argv[2]):
    for row in database.events(1, after=last):
        assert row.number == last + 1, (row.number, last)
        last = row.number
    if last > shown:
        print(last, flush=True)
    shown = last
database.close()
"""


@pytest.mark.process
def test_two_processes_read_while_one_writes(tmp_path):
    database = Database(tmp_path / "x.db")
    command = [sys.executable, "-c", READER, str(tmp_path / "x.db"), "299"]
    readers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [reader.stdout.readline() for reader in readers] == ["open\n"] * 2
    for number in range(150):
        database.write(Batch(events=[event(number)]))
    assert all(int(reader.stdout.readline()) < 150 for reader in readers)  # they see it grow
    for number in range(150, 300):
        database.write(Batch(events=[event(number)]))
    database.close()
    last = [reader.communicate(timeout=60)[0].split()[-1] for reader in readers]
    assert [reader.returncode for reader in readers] == [0, 0]
    assert last == ["299", "299"]


def test_two_processes_write_one_file(tmp_path):
    first, second = (Database(tmp_path / "x.db") for _ in range(2))
    for number in range(10):
        first.write(Batch(events=[event(number)]))
        second.write(Batch(events=[event(number, study_id=2)]))
    assert sum(1 for _ in first.events(2)) == sum(1 for _ in second.events(1)) == 10
    first.close()
    second.close()


def test_locked_file_is_an_error(tmp_path):
    database = Database(tmp_path / "x.db", timeout=0.05)
    other = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageError, match=r"x\.db: database is locked"):
        database.write(Batch(events=[event(0)]))
    other.execute("ROLLBACK")
    other.close()
    database.write(Batch(events=[event(0)]))
    database.close()


def test_file_of_another_kind_is_an_error(tmp_path):
    (tmp_path / "x.db").write_bytes(b"no database at all" * 100)
    with pytest.raises(StorageError, match=r"x\.db: file is not a database"):
        Database(tmp_path / "x.db")


@pytest.mark.parametrize("name", ["file/x.db", "folder"])
def test_unwritable_folder_is_an_error(tmp_path, name):
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError, match=f"cannot use database {tmp_path}/{name}: "):
        Database(tmp_path / name)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("mysql://host/x", "database must be one of sqlite, postgresql, got mysql"),
        ("postgresql+nonsense://host/x", "cannot use database postgresql"),
        ("://", "database URL cannot be read"),
    ],
)
def test_other_urls_are_refused(url, reason):
    with pytest.raises((ConfigurationError, StorageError), match=reason):
        Database(url)


def test_password_is_hidden_in_repr():
    with pytest.raises(StorageError) as caught:
        Database("postgresql+nonsense://me:secret@host/x")
    assert "secret" not in str(caught.value)


def test_file_is_in_wal_mode_and_tables_have_a_prefix(tmp_path):
    Database(tmp_path / "x.db").close()
    connection = sqlite3.connect(tmp_path / "x.db")
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    connection.close()
    assert len(tables) == 14
    assert all(name.startswith("dasktune_") for (name,) in tables)


def plan_of(database, query, *parameters):
    connection = sqlite3.connect(database)
    rows = connection.execute(f"EXPLAIN QUERY PLAN {query}", parameters).fetchall()
    connection.close()
    return " ".join(row[-1] for row in rows)


def test_stages_of_a_path_are_found_by_indexes(tmp_path):
    file, asked = tmp_path / "x.db", []
    with closing(Database(file)) as database:

        @sa.event.listens_for(sa.Engine, "before_cursor_execute")
        def note(connection, cursor, statement, parameters, context, executemany):
            asked.append((statement, parameters))

        try:
            database.stages_to([STAGE.key], [STAGE.attempt])
        finally:
            sa.event.remove(sa.Engine, "before_cursor_execute", note)
    plans = [plan_of(file, statement, *parameters) for statement, parameters in asked]
    assert ["dasktune_stages_key" in plans[0], "attempt=?" in plans[1]] == [True, True]


def run_of(name, **changes):
    values = {"study_id": 1, "host": "h", "pid": 7, "version": "1", "began": 1.0, "seen": 1.0}
    return RunRow(run=name, **{**values, **changes})


def test_last_run_returns_its_last_heartbeat(database):
    assert database.last_run(1) is None
    database.write_run(run_of("b", began=2.0))
    database.write_run(run_of("a", began=1.0))
    database.write_run(run_of("c", began=3.0, study_id=2))
    later = run_of(
        "b",
        began=2.0,
        seen=7.5,
        ended=8.0,
        how="failed",
        message='it\'s "so"; DROP TABLE dasktune_runs',
        seconds_left=1.5,
        waits=[{"kind": "store", "text": "ä", "since": None}],
        workers={"usable": 2},
        positions={"1-aa": 3},
    )
    database.write_run(later)
    assert database.last_run(1) == later
    assert database.last_run(2) == run_of("c", began=3.0, study_id=2)


def test_open_stages_are_of_the_run_and_without_end(database):
    mine = replace(STAGE, run="a", trials=[3, 4])
    ended = replace(mine, attempt="2-aa", ended=2.0)
    others = [replace(mine, attempt="3-aa", run="b"), replace(mine, study_id=2)]
    database.write(Batch(stages=[mine, ended, *others]))
    assert database.open_stages(1, "a") == [mine]


def test_failed_stages_are_grouped_by_step_and_message(database):
    first = replace(STAGE, status="failed", steps=3, trials=[1], message="no", ended=5.0)
    rows = [first, replace(first, attempt="2-aa", start=1, steps=2, ended=9.0)]
    rows += [replace(first, attempt="3-aa", steps=4, ended=7.0)]
    rows += [replace(first, attempt="4-aa", ended=None, status="running")]
    rows += [replace(first, attempt="5-aa", study_id=2)]
    database.write(Batch(stages=rows))
    twice, once = database.failed_stages(1, 10)
    assert twice == FailedStages(step=3, message="no", trials=(1,), count=2, last=9.0)
    assert once == FailedStages(step=4, message="no", trials=(1,), count=1, last=7.0)
    assert database.failed_stages(1, 1) == [twice]


def test_failed_trials_are_ordered_by_number(database):
    failed = [replace(TRIAL, number=number, state="FAIL") for number in (5, 2, 9)]
    database.write(Batch(trials=[TRIAL, *failed, replace(TRIAL, study_id=2, state="FAIL")]))
    assert [one.number for one in database.failed_trials(1, 2)] == [2, 5]
    named = [one.number for one in database.failed_trials(1, 1, named=[9, 0, 7, 2])]
    assert named == [2, 9]


@pytest.mark.parametrize(
    ("table", "column"),
    [(table, "study_id") for table in ("events", "notes", "trials", "stages")]
    + [(table, "root") for table in ("metrics", "checkpoints")],
)
def test_reads_use_indexes_and_never_sort(tmp_path, table, column):
    Database(tmp_path / "x.db").close()
    order = ", ".join(c.name for c in schema.metadata.tables[f"dasktune_{table}"].primary_key)
    query = f"SELECT * FROM dasktune_{table} WHERE {column} = ? ORDER BY {order} LIMIT 9"
    plan = plan_of(tmp_path / "x.db", query, "1")
    assert "SEARCH" in plan
    assert "INDEX" in plan
    assert "SCAN" not in plan
    assert "TEMP B-TREE" not in plan


def test_write_cost_does_not_grow_with_the_log(tmp_path):
    database = Database(tmp_path / "x.db")
    reader = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM dasktune_meta").fetchall()  # from now on the log only grows

    def size_after(number):
        database.write(Batch(events=[event(number)], trials=[TRIAL]))
        return (tmp_path / "x.db-wal").stat().st_size

    early = [size_after(number) for number in range(20)]
    database.write(Batch(events=[event(number) for number in range(100, 30_100)]))
    late = [size_after(number) for number in range(40_000, 40_020)]
    growth = [[b - a for a, b in itertools.pairwise(sizes)] for sizes in (early, late)]
    reader.close()
    database.close()
    assert min(growth[0] + growth[1]) > 0
    assert max(growth[1]) <= 2 * max(growth[0])


def test_statements_compile_for_postgresql():
    dialect = postgresql.dialect()
    for table in schema.metadata.sorted_tables:
        assert str(CreateTable(table, if_not_exists=True).compile(dialect=dialect))
        for index in table.indexes:
            assert str(CreateIndex(index, if_not_exists=True).compile(dialect=dialect))
    trials = statement("postgresql", "trials")
    assert "ON CONFLICT (study_id, number) DO UPDATE SET state = excluded.state" in trials
    metrics = statement("postgresql", "metrics")
    assert metrics.endswith("ON CONFLICT DO NOTHING")
    assert "CONFLICT" not in statement("postgresql", "events")
    assert isinstance(schema.checkpoints.c.nbytes.type, sa.BigInteger)


def test_opening_a_missing_database_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="there is no database"):
        Database(tmp_path / "none" / "here.db", create=False)
    assert list(tmp_path.iterdir()) == []


def test_file_without_tables_is_not_changed(tmp_path: Path) -> None:
    file = tmp_path / "empty.db"
    file.touch()
    with pytest.raises(StorageError, match="holds no studies of dasktune"):
        Database(file, create=False)
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("select * from sqlite_master").fetchall() == []


def test_checkpoints_keep_study_and_time_of_use(database):
    keys = [f"k{number:04}" for number in range(1200)]
    rows = [replace(CHECKPOINT, key=key, created=5.0, study_id=7) for key in keys]
    database.write(Batch(checkpoints=[*rows, replace(CHECKPOINT, key="other", root="r9")]))
    database.touch_checkpoints(keys[:1100], 9.0)
    database.touch_checkpoints(keys[:1], 8.0)
    found = {row.key: row for row in database.storage_rows()}
    assert list(found) == sorted([*keys, "other"])
    assert {row.used for row in found.values()} == {0.0, 9.0}
    assert sum(row.used == 9.0 for row in found.values()) == 1100
    assert (found["k0000"].created, found["k0000"].study_id, found["other"].study_id) == (
        5,
        7,
        None,
    )
    database.forget_checkpoints(keys[:1199])
    assert [row.key for row in database.storage_rows()] == ["k1199", "other"]


def tuner_event(number, kind, place, study_id=1):
    return event(number, {"kind": kind, "place": place}, study_id)


def test_events_are_read_by_kind_and_tuner(database):
    kinds = ["tuner", "ask", "tuner", "snapshot", "tell", "snapshot", "widen", "tell"]
    places = [0, 0, 1, 0, 1, 0, 1, 0]
    pairs = enumerate(zip(kinds, places, strict=True))
    database.write(
        Batch(
            events=[
                *(tuner_event(number, kind, place) for number, (kind, place) in pairs),
                tuner_event(9, "tuner", 5, study_id=2),
            ]
        )
    )
    assert [row.number for row in database.tuner_events(1, "tuner")] == [0, 2]
    assert [row.number for row in database.tuner_events(1, "tuner", after=0)] == [2]
    assert database.last_tuner_event(1, "snapshot", 0) == tuner_event(5, "snapshot", 0)
    assert database.last_tuner_event(1, "snapshot", 1) is None
    assert [row.number for row in database.events(1, 1, place=0)] == [3, 5, 7]
    assert [database.next_event(study) for study in (1, 2, 3)] == [8, 10, 0]


def test_tuner_events_use_an_index(tmp_path):
    database = Database(tmp_path / "x.db")
    seen = []
    sa.event.listen(
        database.connections.engine,
        "before_cursor_execute",
        lambda connection, cursor, statement, values, *rest: seen.append((statement, values)),
    )
    database.tuner_events(1, "tuner")
    database.last_tuner_event(1, "snapshot", 0)
    database.next_event(1)
    plans = [plan_of(tmp_path / "x.db", query, *values) for query, values in seen]
    assert ["dasktune_events_landmarks" in plan for plan in plans] == [True, True, False]
    assert all("SEARCH" in plan and "TEMP B-TREE" not in plan for plan in plans)
    database.close()


def test_best_trial_follows_the_direction_and_did_not_fail(database):
    values = [2.0, 1.0, 9.0, 0.1, math.nan, 1.0, None]
    failed = {2, 3}
    rows = [
        TrialRow(
            study_id=1,
            number=number,
            state="FAIL" if number in failed else "COMPLETE",
            steps=1,
            value=value,
            record={},
        )
        for number, value in enumerate(values)
    ]
    database.write(Batch(trials=rows))
    assert database.best_trial(1, is_maximized=True).number == 0
    assert database.best_trial(1, is_maximized=False).number == 1, "the first of equal ones"
    assert database.best_trial(2, is_maximized=False) is None

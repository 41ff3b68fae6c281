"""An older database becomes a new one: whole, once, a copy kept; a newer one is left alone."""

from __future__ import annotations

import logging
import math
import resource
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata

from dasktune.errors import StorageError
from dasktune.storage.database import schema
from dasktune.storage.database.database import Database
from dasktune.storage.migrations import back_up, context_of, migrate, scripts

OLD = (Path(__file__).parent / "tables_of_version_2.sql").read_text()
"""What the last release before migrations has made and written."""

NEWEST = schema.REVISIONS[-1]


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Return a database of version 2."""
    file = tmp_path / "x.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(OLD)
    return file


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Return the URL of a database without tables."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/empty.db"
        return
    url = request.getfixturevalue("postgresql")
    admin = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.exec_driver_sql("CREATE DATABASE migrated")
    try:
        yield url.replace("/postgres?", "/migrated?")
    finally:
        with admin.connect() as connection:
            connection.exec_driver_sql("DROP DATABASE migrated WITH (FORCE)")
        admin.dispose()


def dump(file: Path) -> list[str]:
    with closing(sqlite3.connect(file)) as connection:
        return list(connection.iterdump())


def make_old(url: str) -> None:
    """Make the tables and rows of version 2, as they were before Alembic knew of them."""
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        migrate(connection, None, to="0001")
        connection.exec_driver_sql("DELETE FROM dasktune_meta")
        schema.revision.drop(connection)
        for line in OLD.splitlines():
            if line.startswith("INSERT"):
                connection.execute(sa.text(line.replace(":", "\\:")))
    engine.dispose()


def contents(database: Database) -> dict[str, list[Any]]:
    return {
        "studies": list(database.studies()),
        "events": list(database.events(1)),
        "notes": list(database.notes(1)),
        "trials": list(database.trials(1)),
        "metrics": list(database.metrics("r0")),
        "checkpoints": list(database.checkpoints("r0")),
        "stages": list(database.stages(1)),
    }


def test_the_revisions_are_those_of_the_scripts() -> None:
    found = [one.revision for one in scripts().walk_revisions()]
    assert tuple(reversed(found)) == schema.REVISIONS
    assert scripts().get_heads() == [NEWEST]


@pytest.mark.parametrize("way", ["made", "migrated"])
def test_tables_are_those_of_the_schema(server: str, way: str) -> None:
    if way == "migrated":
        make_old(server)
    Database(server).close()
    engine = sa.create_engine(server)
    with engine.begin() as connection:
        # SQLite has no identity columns, and takes one for a default.
        has_identity = connection.dialect.name == "postgresql"
        context = context_of(connection, compare_server_default=has_identity)
        assert compare_metadata(context, schema.metadata) == []
        assert context.get_current_heads() == (NEWEST,)
        migrate(connection, NEWEST)  # nothing is left to do
    engine.dispose()


def test_migration_keeps_all_rows(server: str) -> None:
    make_old(server)
    database = Database(server)
    found = contents(database)
    assert [study.name for study in found["studies"]] == ["digits"]
    assert [one.payload["kind"] for one in found["events"]] == [
        *("tuner", "ask", "tell", "snapshot", "added")
    ]
    assert math.isnan(found["events"][2].payload["metrics"]["loss"])
    assert [repr(one.value) for one in found["trials"]] == ["0.25", "nan", "None", "-inf"]
    assert found["notes"][0].payload["value"] == "to know"
    assert found["metrics"][0].values == {"loss": 0.25, "rate": math.inf}
    (checkpoint,) = found["checkpoints"]
    assert (checkpoint.created, checkpoint.used, checkpoint.study_id) == (0, 0, None)
    assert [one.number for one in database.tuner_events(1, "tuner")] == [0]
    assert [one.number for one in database.events(1, place=0)] == [0, 1, 2, 3]
    snapshot = database.last_tuner_event(1, "snapshot", 0)
    assert snapshot is not None
    assert snapshot.number == 3
    (stage,) = found["stages"]
    assert (stage.run, stage.trials, stage.message) == ("", [], "")
    assert (database.last_run(1), database.failed_stages(1, 9)) == (None, [])
    best = database.best_trial(1, is_maximized=False)
    assert best is not None
    assert best.number == 0
    figures = database.figures(1)
    assert (figures.steps_requested, figures.steps_executed) == (9 + 3 + 3 + 3, 3)
    database.close()
    again = Database(server)
    assert repr(contents(again)) == repr(found)
    again.close()


def test_migration_from_the_last_revision_keeps_all_rows(server: str) -> None:
    make_old(server)
    engine = sa.create_engine(server)
    with engine.begin() as connection:
        migrate(connection, "0001", to="0002")
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE dasktune_checkpoints SET used = 7.5")
    engine.dispose()
    database = Database(server)
    assert [one.used for one in database.storage_rows()] == [7.5]
    assert [(one.trials, one.kind, one.workers) for one in database.stages(1)] == [([], "", 1)]
    assert {one.kind for one in database.metrics("r0")} == {None}
    database.close()


def test_migration_keeps_a_copy_of_the_file(old: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = dump(old)
    with caplog.at_level(logging.WARNING, "dasktune"):
        Database(old).close()
    copy = old.with_name("x.db.before-0011.bak")
    assert dump(copy) == before
    assert dump(old) != before
    (line,) = (one for one in caplog.messages if "brought up to date" in one)
    assert str(copy) in line
    assert "from revision 0001 to 0011" in line
    Database(old).close()
    assert [one.name for one in old.parent.glob("*.bak")] == [copy.name]


def test_migration_overwrites_no_earlier_copy(old: Path) -> None:
    first, second = back_up(old, NEWEST), back_up(old, NEWEST)
    assert [first.name, second.name] == ["x.db.before-0011.bak", "x.db.before-0011.2.bak"]
    assert dump(first) == dump(second) == dump(old)


def test_migration_without_copy_changes_nothing(old: Path) -> None:
    file = old.rename(old.with_name("x" * 240 + ".db"))  # the name of a copy is too long
    before = dump(file)
    with pytest.raises(StorageError, match="File name too long"):
        Database(file)
    assert dump(file) == before


def test_copy_on_a_full_disk_is_an_error_and_is_removed(old: Path) -> None:
    before = dump(old)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, limits[1]))
    try:
        with pytest.raises(StorageError, match=r"it cannot be copied to .*x\.db\.before-0011\.bak"):
            Database(old)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert dump(old) == before
    assert list(old.parent.glob("*.bak*")) == []


def test_failed_migration_changes_nothing(old: Path) -> None:
    with closing(sqlite3.connect(old)) as connection:
        connection.execute("UPDATE dasktune_trials SET record = 'no JSON' WHERE number = 3")
        connection.commit()
    before = dump(old)
    with pytest.raises(StorageError, match="cannot be brought up to date"):
        Database(old)
    assert dump(old) == before
    assert dump(old.with_name("x.db.before-0011.bak")) == before


MIGRATE = """
import sys
from dasktune.storage.database.database import Database
print("ready", flush=True)
sys.stdin.readline()
database = Database(sys.argv[1])
print(sum(1 for _ in database.events(1)), flush=True)
database.close()
"""


@pytest.mark.process
@pytest.mark.parametrize("is_old", [True, False])
def test_concurrent_starts_make_or_migrate_once(server: str, is_old: bool) -> None:
    if is_old:
        make_old(server)
    command = [sys.executable, "-c", MIGRATE, server]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    drivers = [subprocess.Popen(command, text=True, **pipes) for _ in range(3)]
    for driver in drivers:
        assert driver.stdout.readline() == "ready\n"
    for driver in drivers:
        driver.stdin.write("\n")
        driver.stdin.flush()
    said = [driver.communicate(timeout=60) for driver in drivers]
    assert [driver.returncode for driver in drivers] == [0] * 3, said
    assert [out for out, _ in said] == ["5\n" if is_old else "0\n"] * 3
    assert sum("brought up to date" in log for _, log in said) == int(is_old)


@pytest.mark.parametrize("turn", range(5))
def test_threads_open_a_new_file_concurrently(tmp_path: Path, turn: int) -> None:
    barrier = threading.Barrier(4, timeout=60)

    def open_it(number: int) -> None:
        barrier.wait()
        Database(tmp_path / "x.db").close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(open_it, range(4)))


def test_reader_does_not_migrate(old: Path) -> None:
    before, files = old.read_bytes(), sorted(old.parent.iterdir())
    with pytest.raises(StorageError, match=r"older version .*revision 0001.* dasktune migrate"):
        Database(old, create=False)
    assert old.read_bytes() == before
    assert sorted(old.parent.iterdir()) == files


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize(
    ("change", "got"),
    [
        ("UPDATE dasktune_alembic_version SET version_num = '9999'", "got 9999"),
        ("UPDATE dasktune_meta SET number = 4", "got version 4"),
        ("UPDATE dasktune_meta SET number = 1", "got version 1"),
    ],
)
def test_another_version_is_refused(tmp_path: Path, change: str, got: str, create: bool) -> None:
    file = tmp_path / "x.db"
    Database(file).close()
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(change)
        connection.commit()
    before = dump(file)
    with pytest.raises(StorageError, match=f"{got}: it was made by another version"):
        Database(file, create=create)
    assert dump(file) == before


def test_older_releases_refuse_a_migrated_database(old: Path) -> None:
    Database(old).close()
    with closing(sqlite3.connect(old)) as connection:
        ((number,),) = connection.execute("SELECT number FROM dasktune_meta")
    assert number == schema.META_VERSION > 2


@pytest.mark.process
def test_a_new_database_is_made_without_alembic(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from dasktune.storage.database.database import Database\n"
        f"Database({str(tmp_path / 'x.db')!r}).close()\n"
        f"Database({str(tmp_path / 'x.db')!r}).close()\n"
        "sys.exit('alembic' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

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
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata

from dasktune.errors import StorageError
from dasktune.storage.database import schema
from dasktune.storage.database.database import Batch, Database
from dasktune.storage.database.rows import CheckpointRow, EventRow, MetricRow, TrialRow
from dasktune.storage.migrations import back_up, context_of, migrate, scripts
from tests.storage.database.later import NEWEST, later_version

ROOT = Path(__file__).parents[3]

BEFORE = schema.REVISIONS[-1]


@pytest.fixture
def later() -> Iterator[None]:
    """Make this process one of a later version of dasktune."""
    with later_version():
        yield


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Return a database of the version before."""
    file = tmp_path / "x.db"
    make_old(str(file))
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


def make_old(url: str, name: str = "digits") -> None:
    """Make a database of the version before, with a row of each kind."""
    with closing(Database(url)) as database:
        study = database.create_study(name, root="r0", spec={"n": 1}, created=1.5)
        assert study is not None
        trial = TrialRow(
            study_id=study.id, number=0, state="RUNNING", steps=3, value=None, record={}
        )
        database.write(
            Batch(
                events=[
                    EventRow(study_id=study.id, number=n, payload={"kind": kind, "place": 0})
                    for n, kind in enumerate(("tuner", "ask", "tell", "snapshot", "added"))
                ],
                trials=[
                    replace(trial, number=n, value=value)
                    for n, value in enumerate((0.25, math.nan, None, -math.inf))
                ],
                metrics=[MetricRow(key="a", root="r0", step=1, values={"loss": math.inf})],
                checkpoints=[CHECKPOINT],
            )
        )
        database.note(study.id, {"value": "to know"})


CHECKPOINT = CheckpointRow(
    key="a", root="r0", step=1, attempt="1", digest="d", nbytes=1, seconds=0.5, used=7.5
)


def contents(database: Database) -> str:
    (study,) = database.studies()
    return repr(
        (
            study,
            list(database.events(study.id)),
            list(database.notes(study.id)),
            list(database.trials(study.id)),
            list(database.metrics("r0")),
            list(database.checkpoints("r0")),
        )
    )


def titles(url: str) -> list[str]:
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        found = connection.exec_driver_sql("SELECT title FROM dasktune_studies").scalars().all()
    engine.dispose()
    return list(found)


def test_the_revisions_are_those_of_the_scripts() -> None:
    known = [each.revision for each in scripts().walk_revisions()]
    assert tuple(reversed(known)) == schema.REVISIONS
    assert scripts().get_heads() == [BEFORE]


def test_tables_are_those_of_the_schema(server: str) -> None:
    Database(server).close()
    engine = sa.create_engine(server)
    with engine.begin() as connection:
        # SQLite has no identity columns, and takes one for a default; so does alembic before 1.18.
        has_identity = connection.dialect.name == "postgresql"
        context = context_of(connection, compare_server_default=has_identity)
        differences = compare_metadata(context, schema.metadata)
        if not has_identity:
            differences = [each for each in differences if each[0][0] != "modify_default"]
        assert differences == []
        assert context.get_current_heads() == (BEFORE,)
        migrate(connection, BEFORE)  # nothing is left to do
    engine.dispose()


def test_migration_keeps_all_rows(server: str) -> None:
    make_old(server)
    with closing(Database(server)) as database:
        before = contents(database)
    with later_version():
        for _ in range(2):
            with closing(Database(server)) as database:
                assert contents(database) == before
    assert titles(server) == ["DIGITS"]


@pytest.mark.usefixtures("old", "later")
def test_migration_keeps_a_copy_of_the_file(old: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = dump(old)
    with caplog.at_level(logging.WARNING, "dasktune"):
        Database(old).close()
    copy = old.with_name("x.db.before-0013.bak")
    assert dump(copy) == before
    assert dump(old) != before
    (line,) = (one for one in caplog.messages if "brought up to date" in one)
    assert str(copy) in line
    assert "from revision 0012 to 0013" in line
    Database(old).close()
    assert [one.name for one in old.parent.glob("*.bak")] == [copy.name]


@pytest.mark.usefixtures("old", "later")
def test_migration_overwrites_no_earlier_copy(old: Path) -> None:
    first, second = back_up(old, NEWEST), back_up(old, NEWEST)
    assert [first.name, second.name] == ["x.db.before-0013.bak", "x.db.before-0013.2.bak"]
    assert dump(first) == dump(second) == dump(old)


@pytest.mark.usefixtures("old", "later")
def test_migration_without_copy_changes_nothing(old: Path) -> None:
    file = old.rename(old.with_name("x" * 240 + ".db"))  # the name of a copy is too long
    before = dump(file)
    with pytest.raises(StorageError, match="File name too long"):
        Database(file)
    assert dump(file) == before


@pytest.mark.usefixtures("old", "later")
def test_copy_on_a_full_disk_is_an_error_and_is_removed(old: Path) -> None:
    before = dump(old)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, limits[1]))
    try:
        with pytest.raises(StorageError, match=r"it cannot be copied to .*x\.db\.before-0013\.bak"):
            Database(old)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert dump(old) == before
    assert list(old.parent.glob("*.bak*")) == []


def test_failed_migration_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "x.db"
    make_old(str(file), "wrong")
    before = dump(file)
    with later_version(), pytest.raises(StorageError, match="cannot be brought up to date"):
        Database(file)
    assert dump(file) == before
    assert dump(file.with_name("x.db.before-0013.bak")) == before


MIGRATE = """
import sys
from dasktune.storage.database.database import Batch, Database
from tests.storage.database.later import later_version
print("ready", flush=True)
sys.stdin.readline()
with later_version():
    database = Database(sys.argv[1])
    print(sum(1 for each in database.studies() for _ in database.events(each.id)), flush=True)
    database.close()
"""


@pytest.mark.process
@pytest.mark.parametrize("is_old", [True, False])
def test_concurrent_starts_make_or_migrate_once(server: str, is_old: bool) -> None:
    if is_old:
        make_old(server)
    command = [sys.executable, "-c", MIGRATE, server]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    drivers = [subprocess.Popen(command, text=True, cwd=ROOT, **pipes) for _ in range(3)]
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


@pytest.mark.usefixtures("old", "later")
def test_reader_does_not_migrate(old: Path) -> None:
    before, files = old.read_bytes(), sorted(old.parent.iterdir())
    with pytest.raises(StorageError, match=r"older version .*revision 0012.* dasktune migrate"):
        Database(old, create=False)
    assert old.read_bytes() == before
    assert sorted(old.parent.iterdir()) == files


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize(
    ("change", "got"),
    [
        ("UPDATE dasktune_alembic_version SET version_num = '9999'", "got 9999"),
        ("UPDATE dasktune_alembic_version SET version_num = '0011'", "got 0011"),
        ("UPDATE dasktune_meta SET number = 4", "got version 4"),
        ("UPDATE dasktune_meta SET number = 2", "got version 2"),
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


def test_older_version_refuses_a_migrated_database(old: Path) -> None:
    with later_version():
        Database(old).close()
    before = dump(old)
    with pytest.raises(StorageError, match="got 0013: it was made by another version"):
        Database(old)
    assert dump(old) == before


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

"""Connections meet killed processes, lost servers and wrong passwords."""

from __future__ import annotations

import logging
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from dasktune.errors import ConfigurationError, StorageError
from dasktune.storage.database import connection as module
from dasktune.storage.database.database import Batch, Database
from dasktune.storage.database.rows import EventRow, MetricRow, TrialRow

SECRET = "s3cr3t-w0rd"
WRONG = "wr0ng-w0rd"


@pytest.fixture
def admin(postgresql: str) -> Iterator[Callable[[str], list[Any]]]:
    """Return a function that executes a statement on the server's first database."""
    engine = sa.create_engine(postgresql, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)

    def execute(statement: str) -> list[Any]:
        with engine.connect() as connection:
            found = connection.exec_driver_sql(statement)
            return list(found) if found.returns_rows else []

    execute("CREATE DATABASE mine")
    yield execute
    execute("DROP DATABASE mine WITH (FORCE)")
    engine.dispose()


@pytest.fixture
def server(postgresql: str, admin: object) -> str:
    """Return the URL of an empty database on a server."""
    return postgresql.replace("/postgres?", "/mine?")


END = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'mine'"
CLIENTS = (
    "SELECT pid FROM pg_stat_activity WHERE datname = 'mine' AND backend_type = 'client backend'"
)


def batch(number: int, *, size: int = 1, by: str = "me") -> Batch:
    first = number * size
    return Batch(
        events=[
            EventRow(study_id=1, number=n, payload={"by": by}) for n in range(first, first + size)
        ],
        trials=[
            TrialRow(study_id=1, number=0, state="RUNNING", steps=number, value=None, record={})
        ],
        metrics=[
            MetricRow(key=f"{n}", root="r", step=n, values={"loss": float(n)})
            for n in range(first, first + size)
        ],
    )


# ----------------------------------------------------------------------------- kills

WRITER = """
import sys
sys.path.insert(0, sys.argv[2])
from test_connection import batch
from dasktune.storage.database.database import Database
database = Database(sys.argv[1])
number = 0
while True:
    database.write(batch(number, size=20))
    print(number, flush=True)
    number += 1
"""


@pytest.mark.process
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("server", marks=pytest.mark.postgresql)])
@pytest.mark.parametrize("after", [1, 7, 40])
def test_acknowledged_rows_survive_a_kill(
    kind: str, after: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = str(tmp_path / "x.db") if kind == "sqlite" else request.getfixturevalue("server")
    command = [sys.executable, "-c", WRITER, url, str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        for line in writer.stdout:
            if int(line) == after:
                writer.send_signal(signal.SIGKILL)
                break
        rest = writer.stdout.read().splitlines(keepends=True)
    assert writer.returncode == -signal.SIGKILL
    if kind == "server":
        admin = request.getfixturevalue("admin")
        while admin(CLIENTS):
            pass  # the server may yet commit what it was sent last
    acknowledged = max([after, *(int(line) for line in rest if line.endswith("\n"))])
    with closing(Database(url)) as database:
        events = [row.number for row in database.events(1)]
        assert events == list(range(len(events)))
        assert len(events) >= (acknowledged + 1) * 20
        assert len(events) % 20 == 0, "a batch is there as a whole or not at all"
        assert {row.step for row in database.metrics("r")} == set(events)
        assert [row.steps for row in database.trials(1)] == [len(events) // 20 - 1]


# ------------------------------------------------------------------------ reading only


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("server", marks=pytest.mark.postgresql)])
def test_a_database_that_is_read_only_refuses_changes(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = str(tmp_path / "x.db") if kind == "sqlite" else request.getfixturevalue("server")
    with (
        closing(Database(url)) as writer,
        closing(Database(url, create=False, reads_only=True)) as reader,
    ):
        writer.write(batch(0))
        with pytest.raises(StorageError, match=r"readonly database|read-only transaction"):
            reader.write(batch(1))
        writer.write(batch(1))
        assert [event.number for event in reader.events(1)] == [0, 1]


# ------------------------------------------------------------------------ lost servers


@pytest.mark.postgresql
def test_lost_connection_is_replaced(
    server: str, admin: Callable[[str], list[Any]], caplog: pytest.LogCaptureFixture
) -> None:
    with closing(Database(server)) as database, caplog.at_level(logging.WARNING, "dasktune"):
        database.write(batch(0))
        admin(END)
        database.write(batch(1))
        admin(END)
        assert [row.number for row in database.events(1)] == [0, 1]
        admin(END)
        database.note(1, "x")
        assert [note.payload for note in database.notes(1)] == ["x"]
    said = [one.message for one in caplog.records if one.name.startswith("dasktune")]
    assert len(said) == 3
    assert all("the connection was lost; trying again" in line for line in said)


def lose_commits(database: Database, end: Callable[[], object], *, is_committed: bool) -> None:
    """Make the server end the next committing connection, before or after the commit."""
    engine = database.connections.engine

    def lose(connection: sa.Connection) -> None:
        if is_committed:
            connection.connection.commit()
            connection.connection.cursor().execute("SELECT 1")  # something to commit again
        end()

    sa.event.listen(engine, "commit", lose, once=True)


@pytest.mark.postgresql
@pytest.mark.parametrize("is_committed", [True, False])
def test_unanswered_commit_is_applied_once(
    server: str, admin: Callable[[str], list[Any]], is_committed: bool
) -> None:
    with closing(Database(server)) as database:
        database.write(batch(0))
        for call in (
            lambda: database.write(batch(1)),
            lambda: database.write(Batch(trials=batch(2).trials)),
            lambda: database.note(1, {"kind": "x"}),
            lambda: database.touch_checkpoints(["a"], 1.0),
        ):
            lose_commits(database, lambda: admin(END), is_committed=is_committed)
            call()
        lose_commits(database, lambda: admin(END), is_committed=is_committed)
        study = database.create_study("digits", root="r", spec={}, created=1.5)
        assert study == database.study("digits") is not None
        assert [row.number for row in database.events(1)] == [0, 1]
        assert [row.steps for row in database.trials(1)] == [2]
        assert sum(1 for _ in database.notes(1)) == 1


@pytest.mark.postgresql
def test_write_after_another_driver_took_over_is_refused(
    server: str, admin: Callable[[str], list[Any]]
) -> None:
    with closing(Database(server)) as database, closing(Database(server)) as other:

        def overtake() -> None:
            admin(END)
            other.write(batch(0, by="another"))

        lose_commits(database, overtake, is_committed=False)
        with pytest.raises(StorageError, match="another process is running this study"):
            database.write(batch(0))
        assert [row.payload for row in other.events(1)] == [{"by": "another"}]


@pytest.mark.postgresql
def test_lost_server_is_retried_until_it_answers(
    server: str, admin: Callable[[str], list[Any]]
) -> None:
    with closing(Database(server)) as database:
        admin("ALTER DATABASE mine ALLOW_CONNECTIONS false")
        admin(END)
        back = threading.Timer(0.5, admin, ["ALTER DATABASE mine ALLOW_CONNECTIONS true"])
        back.start()
        database.write(batch(0))
        back.join()
        admin("ALTER DATABASE mine ALLOW_CONNECTIONS false")
        admin(END)
        database.connections.patience = 0.2
        with pytest.raises(StorageError, match="not currently accepting connections"):
            database.write(batch(1))
        admin("ALTER DATABASE mine ALLOW_CONNECTIONS true")
        assert [row.number for row in database.events(1)] == [0]


@pytest.mark.postgresql
def test_server_ends_transactions_of_vanished_clients(
    server: str,
) -> None:
    with closing(Database(server)) as lost:
        transaction = lost.connections.engine.connect()
        transaction.execute(sa.text("LOCK TABLE dasktune_events"))
        limit = transaction.scalar(sa.text("SHOW idle_in_transaction_session_timeout"))
        assert limit == f"{module.DATABASE_IDLE_SECONDS // 60}min"
        # Not before it is to be lost: a machine that stands still would lose it earlier.
        transaction.execute(sa.text("SET idle_in_transaction_session_timeout = 1000"))
        with closing(Database(server)) as successor:
            successor.write(batch(0))  # waits until the first one's second is over
            assert [row.number for row in successor.events(1)] == [0]
        transaction.invalidate()
        transaction.close()


# ---------------------------------------------------------------------- who may come in


@pytest.fixture
def with_password(server: str, admin: Callable[[str], list[Any]]) -> Iterator[str]:
    """Return the URL of a user who needs a password, without it."""
    rules = Path(re.sub(r".*host=", "", server)) / "data" / "pg_hba.conf"
    before = rules.read_text()
    admin(f"CREATE ROLE guest LOGIN PASSWORD '{SECRET}'")
    admin("ALTER DATABASE mine OWNER TO guest")
    rules.write_text(f"local all guest scram-sha-256\n{before}")
    admin("SELECT pg_reload_conf()")
    yield server.replace("dasktune@", "guest:PASSWORD@")
    rules.write_text(before)
    admin("SELECT pg_reload_conf()")
    admin("ALTER DATABASE mine OWNER TO dasktune")
    admin("REASSIGN OWNED BY guest TO dasktune")
    admin(END)
    admin("DROP DATABASE mine")
    admin("DROP ROLE guest")
    admin("CREATE DATABASE mine")


@pytest.mark.postgresql
def test_password_is_used_and_hidden(with_password: str, caplog: pytest.LogCaptureFixture) -> None:
    url = with_password.replace("PASSWORD", SECRET)
    with closing(Database(url)) as database, caplog.at_level(logging.DEBUG, "dasktune"):
        database.write(batch(0))
        with pytest.raises(StorageError) as taken:
            database.write(batch(0))
        shown = [repr(database), *traceback.format_exception(taken.value), caplog.text]
    assert "guest:***@" in shown[0]
    assert SECRET not in "".join(shown)


@pytest.mark.postgresql
def test_wrong_password_is_refused_at_once_and_hidden(
    with_password: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(StorageError, match="password authentication failed for user") as caught:
        Database(with_password.replace("PASSWORD", WRONG))
    assert "trying again" not in caplog.text
    assert WRONG not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("where", ["password in its place", "password as an option"])
def test_silent_server_is_an_error(where: str) -> None:
    began = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        url = f"postgresql://me:{SECRET}@127.0.0.1:{port}/x?connect_timeout=2"
        if "option" in where:
            url = f"postgresql://127.0.0.1:{port}/x?user=me&password={SECRET}&connect_timeout=2"
        with pytest.raises(StorageError, match="cannot use database postgresql") as caught:
            Database(url)
    assert time.monotonic() - began < 30
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql+psycopg://me:{SECRET}",
        f"postgresql://me:{SECRET}@host:port/x",
        f"postgresql+psycopg://me@host:{SECRET}/x",
        f"mysql://me:{SECRET}@host/x",
        f"postgresql+psycopg://me:p@{SECRET}@host/x",
        f"postgresql:/me:{SECRET}@host/x",
        f"postgres:me:{SECRET}@host/x",
        f"postgresql+nonsense://me:{SECRET}@host/x?password={SECRET}",
    ],
)
def test_error_of_a_wrong_url_hides_the_password(url: str) -> None:
    with pytest.raises((ConfigurationError, StorageError)) as caught:
        Database(url)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_error_of_an_unreachable_server_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"Connection refused|No such file") as caught:
        Database(f"postgresql://me@/x?host={tmp_path}&port=1")
    assert len(str(caught.value).splitlines()) == 1


def test_database_in_a_read_only_folder_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Root may write anywhere, so that the folder says no where it would to others.
    file = tmp_path / "their 100% #1" / "x.db"
    made = Database(file)
    made.create_study("digits", root="a1f0", spec={}, created=0.0)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != file.parent)
    with closing(Database(file, create=False)) as read_while_open:
        assert [one.name for one in read_while_open.studies()] == ["digits"]
    made.close()
    before = {one.name: one.stat().st_mtime_ns for one in [file.parent, *file.parent.iterdir()]}
    with closing(Database(file, create=False)) as read:
        assert [one.name for one in read.studies()] == ["digits"]
        with pytest.raises(StorageError, match="readonly"):
            read.create_study("mine", root="a1f0", spec={}, created=0.0)
        now = {one.name: one.stat().st_mtime_ns for one in [file.parent, *file.parent.iterdir()]}
    assert now == before


def test_cell_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "x.db"
    with closing(Database(file)) as database:
        database.create_study("digits", root="a1f0", spec={"text": "x" * 200_000}, created=0.0)
    monkeypatch.setattr(module, "MOST_CELL_NBYTES", 100_000)
    with (
        closing(Database(file)) as read,
        pytest.raises(StorageError, match="a cell must have at most 100,000 bytes"),
    ):
        read.study("digits")


def test_full_disk_is_an_error_at_once(tmp_path: Path) -> None:
    began = time.monotonic()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(StorageError, match=r"cannot use database .*x\.db: "):
            Database(tmp_path / "x.db", timeout=60.0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert time.monotonic() - began < 30


def test_connect_timeout_is_seconds_unless_the_url_sets_it() -> None:
    given = []

    def connect(dialect: object, record: object, arguments: object, options: dict[str, Any]) -> Any:
        given.append(options["connect_timeout"])
        assert options["tcp_user_timeout"] == module.DATABASE_SILENT_SECONDS * 1000
        raise OSError("not now")

    for url in ("postgresql://h/x", "postgresql://h/x?connect_timeout=77"):
        connections = module.Connections(url, timeout=1, create=True)
        sa.event.listen(connections.engine, "do_connect", connect)
        with pytest.raises(StorageError, match="not now"):
            connections.run(lambda connection: None)
        connections.close()
    assert given == [module.DATABASE_CONNECT_SECONDS, "77"]


# ------------------------------------------------------------- lost connections, in-process


class Lost:
    """Connections as those to a server, but to a file; statements that fail lose them."""

    def __init__(self, file: Path) -> None:
        self.connections = module.Connections("postgresql://h/x", timeout=1, create=True)
        self.connections.engine = sa.create_engine(f"sqlite:///{file}")
        sa.event.listen(self.connections.engine, "handle_error", self._handle)
        self.failing: set[int] = set()
        self.is_lost = True
        self.calls = 0

    def _handle(self, context: sa.engine.ExceptionContext) -> None:
        context.is_disconnect = self.is_lost

    def work(self, connection: sa.Connection) -> int:
        """Return the number of the call; fail in those that the test has chosen."""
        self.calls += 1
        connection.exec_driver_sql("SELECT 1" if self.calls not in self.failing else "LOSE")
        return self.calls

    def lose_commit(self) -> None:
        """Lose the connection of the next commit, before it."""

        def lose(connection: sa.Connection) -> None:
            raise sa.exc.OperationalError(None, None, OSError(), connection_invalidated=True)

        sa.event.listen(self.connections.engine, "commit", lose, once=True)


@pytest.fixture
def lost(tmp_path: Path) -> Iterator[Lost]:
    made = Lost(tmp_path / "lost.db")
    yield made
    made.connections.close()


def test_work_is_repeated_once_its_connection_was_lost(lost: Lost) -> None:
    lost.failing = {2}
    assert lost.connections.run(lost.work) == 1
    assert lost.connections.run(lost.work) == 3
    lost.failing = {4}
    assert lost.connections.run(lost.work) == 5


def test_server_that_never_answered_is_refused_at_once(lost: Lost) -> None:
    lost.failing = {1}
    with pytest.raises(StorageError, match="cannot use database"):
        lost.connections.run(lost.work)
    assert lost.calls == 1


def test_statement_that_is_wrong_is_not_repeated(lost: Lost) -> None:
    assert lost.connections.run(lost.work) == 1
    lost.failing, lost.is_lost = {2}, False
    with pytest.raises(StorageError, match="syntax error"):
        lost.connections.run(lost.work)
    assert lost.calls == 2


@pytest.mark.parametrize(("known", "result"), [(77, 77), (None, 3)])
def test_lost_commit_is_looked_up_before_it_is_repeated(
    lost: Lost, known: int | None, result: int
) -> None:
    assert lost.connections.run(lost.work) == 1
    lost.lose_commit()
    assert lost.connections.run(lost.work, recover=lambda connection: known) == result


def test_work_lost_before_its_commit_is_not_looked_up(lost: Lost) -> None:
    assert lost.connections.run(lost.work) == 1
    lost.failing = {2}
    assert lost.connections.run(lost.work, recover=lambda connection: 77) == 3


def test_lost_commit_is_looked_up_after_a_second_loss(lost: Lost) -> None:
    assert lost.connections.run(lost.work) == 1
    lost.lose_commit()
    lookups = 0

    def known(connection: sa.Connection) -> int:
        nonlocal lookups
        lookups += 1
        connection.exec_driver_sql("LOSE" if lookups == 1 else "SELECT 1")
        return 77

    assert lost.connections.run(lost.work, recover=known) == 77
    assert lookups == 2


def test_commit_lost_at_the_second_try_is_looked_up(lost: Lost) -> None:
    assert lost.connections.run(lost.work) == 1
    lost.failing = {2}

    def work(connection: sa.Connection) -> int:
        result = lost.work(connection)
        lost.lose_commit()
        return result

    assert lost.connections.run(work, recover=lambda connection: 77) == 77

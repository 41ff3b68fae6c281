"""Tests that credentials of stores and databases stay where the user put them."""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

import dasktune as dt
from dasktune import logs
from dasktune._cluster.local import local_client
from dasktune.cli.commands import app
from dasktune.errors import ConfigurationError, StorageError
from dasktune.sequences import Constant
from tests.services import S3Server
from tests.toy_trainers import Adding

SECRET, TOKEN, PASSWORD = "wJalrXUtnFEMIsecret", "IQoJb3JpZ2luTOKEN", "letmein-please%21now"


class Signing(Adding):
    """Says, where its rate is negative, what it has signed with."""

    def train(self) -> None:
        super().train()
        if self.lr < 0:
            raise ValueError(f"{self.config['says']}: signed with {os.environ.get('PGPASSWORD')}")


class Commands(dt.Callback):
    """Notes what `ps` shows of this process and those that it has started."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_report(self, *_: object) -> None:
        me = psutil.Process()
        for process in (me, *me.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):  # it has just ended
                self.seen += process.cmdline()


def everything_below(folder: Path) -> bytes:
    return b"".join(one.read_bytes() for one in folder.rglob("*") if one.is_file())


def objects_of(server: S3Server, bucket: str) -> bytes:
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{server.port}",
        aws_access_key_id=server.key,
        aws_secret_access_key=server.secret,
        region_name="us-east-1",
    )
    try:
        names = [one["Key"] for one in client.list_objects_v2(Bucket=bucket)["Contents"]]
        read = [client.get_object(Bucket=bucket, Key=name)["Body"].read() for name in names]
        return b"".join(read) + "".join(names).encode()
    finally:
        client.close()


@pytest.mark.s3
@pytest.mark.cluster
def test_keys_of_a_bucket_are_found_nowhere(
    moto: S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    secrets = {"AWS_SECRET_ACCESS_KEY": SECRET, "AWS_SESSION_TOKEN": TOKEN}
    for name, value in {**moto.environment(), **secrets}.items():
        monkeypatch.setenv(name, value)
    bucket, commands = moto.create_bucket(), Commands()
    caplog.set_level(logging.DEBUG)
    with local_client(1) as client, logs.configure("all.log", "json", "DEBUG"):
        study = dt.create_study(
            Signing,
            name="secrets",
            storage=f"s3://{bucket}/tuning",
            metric="loss",
            config={"says": "no"},
        )
        tuner = dt.algos.Grid(dt.Space(lr=[Constant(0.1), Constant(-1.0)]), max_steps=3)
        study.optimize(tuner, client=client, progress=False, callbacks=[commands])
        study.report("report.html")
        study.export(0, "model.npz")
        study.close()
    for command in (["status", "dasktune.db"], ["status", "dasktune.db", "--json"]):
        assert CliRunner().invoke(app, command).exit_code == 0
    listing = CliRunner().invoke(app, ["ls", f"s3://{bucket}/tuning", "--database=dasktune.db"])
    assert listing.exit_code == 0, listing.output
    with pytest.raises(StorageError) as caught:
        dt.create_study(None, name="x", storage="s3://no-such-bucket-at-all/x", metric="loss")
    told = "".join(traceback.format_exception(caught.value)) + listing.output
    ours = [one.getMessage() for one in caplog.records if one.name.startswith("dasktune")]
    kept = everything_below(tmp_path) + objects_of(moto, bucket)
    assert len(kept) > 10_000
    assert commands.seen
    for secret in (SECRET, TOKEN):
        assert secret.encode() not in kept
        assert secret not in "".join([told, *capfd.readouterr(), *commands.seen, *ours])
    assert SECRET not in caplog.text, "not even the libraries' own words at DEBUG have it"


SECRETS = ("PGPASSWORD", "WANDB_API_KEY", "HF_TOKEN", "MLFLOW_TRACKING_TOKEN", "AZURE_STORAGE_KEY")


class Printing(Adding):
    """Prints all secrets of its environment, then fails with them."""

    def train(self) -> None:
        values = [f"{name} {os.environ.get(name)}" for name in SECRETS]
        header = {"Authorization": "Bearer a1b2c3d4-letmein-e5f6"}
        print("printed:", *values, header)
        raise ValueError(f"denied: signed with {values} and {header}")


@pytest.mark.cluster
def test_stored_prints_and_errors_have_no_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, f"{name.lower()}-letmein-1")
    study = dt.create_study(Printing, name="told", storage=tmp_path, metric="loss")
    space = dt.Space(lr=[Constant(-1.0)])
    with logs.configure(tmp_path / "all.log", "json", "DEBUG"):
        study.optimize(dt.algos.Grid(space, max_steps=1), workers=1, progress=False, check=False)
    study.report()
    study.close()
    kept = everything_below(tmp_path)
    assert b"denied: signed with" in kept
    assert b"printed: PGPASSWORD" in kept
    assert b"letmein" not in kept


# ------------------------------------------------------------------------- databases


@pytest.fixture
def locked(postgresql: str) -> Iterator[Callable[[str], str]]:
    """Return a function that gives the URL of a database by password; one alone is right."""
    engine = sa.create_engine(postgresql, isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            access = Path(str(connection.scalar(sa.text("show hba_file"))))
            before = access.read_text()
            literal = PASSWORD.replace("%21", "!")
            connection.exec_driver_sql(f"create role locked login superuser password '{literal}'")
            access.write_text(f"local all locked scram-sha-256\n{before}")
            connection.exec_driver_sql("select pg_reload_conf()")
            # A database of its own: the studies of other tests must not change what is printed.
            connection.exec_driver_sql("create database secrets owner locked")
            place = postgresql.partition("@")[2].replace("/postgres?", "/secrets?")
            yield lambda password: f"postgresql+psycopg://locked:{password}@{place}"
            access.write_text(before)
            connection.exec_driver_sql("drop database secrets with (force)")
            connection.exec_driver_sql("drop owned by locked")
            connection.exec_driver_sql("drop role locked")
    finally:
        engine.dispose()


def rows_of(url: str) -> str:
    engine = sa.create_engine(url)
    try:
        with engine.connect() as connection:
            names = sa.inspect(connection).get_table_names()
            return "\n".join(
                str(connection.execute(sa.text(f'select * from "{name}"')).all()) for name in names
            )
    finally:
        engine.dispose()


@pytest.mark.postgresql
def test_the_password_of_a_database_is_found_nowhere(
    locked: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.DEBUG)
    url, plain = locked(PASSWORD), PASSWORD.replace("%21", "!")
    with logs.configure("all.log", "text", "DEBUG"):
        study = dt.create_study(None, name="own", storage="store", database=url, metric="loss")
        tuner = dt.algos.Random(dt.Space(x=dt.Float(-1, 1)), trials=2, max_steps=1)
        while asked := study.ask(tuner):
            study.tell(asked, 1.0)
        study.report()
        study.close()
    outputs = []
    for command in (
        ["status", url],
        ["ls", url, "--storage=store"],
        ["gc", url, "--storage=store", "--dry-run"],
        ["status", locked("wrong-" + PASSWORD)],
        ["ls", locked("wrong-" + PASSWORD), "--storage=store"],
        ["status", url.replace("/secrets?", "/no_such?")],
        ["status", f"postgresql+psycopg://locked:{PASSWORD}@127.0.0.1:1/x"],
        ["status", f"postgresql+psycopg://locked:{PASSWORD}@db:port/x"],
    ):
        done = CliRunner().invoke(app, command)
        outputs.append((command[0], done.exit_code, done.output))
    assert [code for _, code, _ in outputs] == [0, 0, 0, 1, 1, 1, 1, 2]
    assert "password authentication failed" in outputs[3][2]
    told = str(outputs) + "".join(capfd.readouterr()) + caplog.text
    kept = everything_below(tmp_path).decode(errors="replace") + rows_of(url)
    assert "own" in kept
    for secret in (PASSWORD, plain):
        assert secret not in told
        assert secret not in kept


@pytest.mark.postgresql
def test_no_error_tells_a_wrong_password_nor_does_its_cause(
    locked: Callable[[str], str],
) -> None:
    url = locked("wrong-" + PASSWORD)
    with pytest.raises(StorageError, match="password authentication failed") as caught:
        dt.create_study(None, name="own", storage="memory://", database=url, metric="loss")
    assert "letmein" not in "".join(traceback.format_exception(caught.value))
    with pytest.raises((ConfigurationError, StorageError)) as caught:
        dt.create_study(None, name="own", storage="memory://", metric="loss").optuna_study(url)
    assert "letmein" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("url", "words"),
    [
        (f"postgresql+psycopg://ann:{PASSWORD}@db:port/x", "cannot be read"),
        (f"postgresql+psycopg://ann:let:{PASSWORD}@letmein:x@db/x", "cannot be read"),
        (f"postgresql+nothing://ann:{PASSWORD}@db/x", "cannot write study"),
        (f"postgresql+psycopg://ann:{PASSWORD}@127.0.0.1:1/x", "cannot write study"),
    ],
)
def test_no_optuna_storage_that_does_not_open_tells_its_password(
    url: str, words: str, tmp_path: Path
) -> None:
    study = dt.create_study(None, name="own", storage=tmp_path, metric="loss")
    with pytest.raises((ConfigurationError, StorageError), match=words) as caught:
        study.optuna_study(url)
    assert "letmein" not in "".join(traceback.format_exception(caught.value))
    study.close()


def test_what_a_storage_must_not_be_is_said_without_its_password(tmp_path: Path) -> None:
    url = f"s3://AKIAIOSFODNN7EXAMPLE:{PASSWORD}/x@bucket/tuning"
    (tmp_path / "study.py").write_text(
        "import dasktune as dt\n"
        "def study():\n"
        f"    return dt.create_study(None, name='x', storage={url!r}, metric='loss')\n"
        "def tuner():\n    return dt.algos.Random(dt.Space(x=[0.0, 1.0]), trials=1, max_steps=1)\n"
    )
    done = CliRunner().invoke(app, ["run", str(tmp_path / "study.py"), "--no-report"])
    assert done.exit_code == 2
    assert "storage must not name a user or password" in done.output
    assert "letmein" not in done.output
    assert "AKIA" not in done.output
    for command in (["ls", url], ["gc", url], ["status", url]):
        told = CliRunner().invoke(app, command)
        assert told.exit_code in (1, 2)
        assert "letmein" not in told.output


# ----------------------------------------------------------------------- files of results


def modes_of(folder: Path) -> dict[str, int]:
    """Return the modes of the database, log and report of a study that is made in a folder."""
    with logs.configure(folder / "all.log", level="DEBUG"):
        study = dt.create_study(None, name="own", storage=folder, metric="loss")
        tuner = dt.algos.Random(dt.Space(x=dt.Float(-1, 1)), trials=1, max_steps=1)
        while asked := study.ask(tuner):
            study.tell(asked, 1.0)
        study.report(folder / "report.html")
        names = ("dasktune.db", "dasktune.db-wal", "all.log", "report.html")
        modes = {name: (folder / name).stat().st_mode & 0o777 for name in names}
        study.close()
    return modes


@pytest.fixture
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("usual_umask")
def test_results_are_for_their_user_alone(tmp_path: Path) -> None:
    assert set(modes_of(tmp_path).values()) == {0o600}


@pytest.mark.usefixtures("usual_umask")
def test_results_in_a_folder_of_a_group_have_its_mode(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o2775)
    os.umask(0o002)
    assert set(modes_of(shared).values()) == {0o664}


@pytest.mark.usefixtures("usual_umask")
def test_files_that_are_there_keep_their_mode(tmp_path: Path) -> None:
    for name in ("dasktune.db", "all.log", "report.html"):
        (tmp_path / name).touch(0o640)
    modes = modes_of(tmp_path)
    assert {modes[name] for name in ("dasktune.db", "all.log", "report.html")} == {0o640}

"""A store that lacks all that the database lists is refused, unless it was emptied on purpose."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import dasktune as dt
from dasktune.cli.commands import app
from dasktune.errors import ConfigurationError
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.codec import encode
from dasktune.storage.database.database import Batch, Database
from dasktune.storage.database.rows import CheckpointRow


def train(run: dt.Run) -> None:
    for _ in run.steps():
        run.report(loss=1.0)


Create = Callable[..., None]


@pytest.fixture
def create(tmp_path: Path) -> Create:
    """Return a function that opens a study, and closes it."""

    def create(name: str = "digits", store: str = "store") -> None:
        dt.create_study(
            train,
            name=name,
            storage=str(tmp_path / store),
            database=str(tmp_path / "studies.db"),
            metric="loss",
            load_if_exists=True,
        ).close()

    return create


def save(folder: Path, key: str, *, database: Path, study: str = "digits") -> None:
    """Store a state of a study, as its workers and its driver do."""
    commit = CheckpointStore(str(folder)).save(encode({"w": 1.0}), key=key, attempt="1-aa", step=1)
    opened = Database(database)
    row = opened.study(study)
    assert row is not None
    listed = CheckpointRow(
        key=key, root=row.root, step=1, attempt="1-aa", digest=commit.digest, nbytes=1, seconds=0.1,
        study_id=row.id,
    )  # fmt: skip
    opened.write(Batch(checkpoints=[listed]))
    opened.close()


@pytest.fixture
def gone(create: Create, tmp_path: Path) -> Path:
    """Return the folder of a store that is gone, while its database lists two states."""
    create()
    for key in ("f0", "f1"):
        save(tmp_path / "store", key, database=tmp_path / "studies.db")
    shutil.rmtree(tmp_path / "store")
    return tmp_path / "store"


REFUSED = r"store .*store must have the checkpoints .* 1 study \(digits\).*mounted.*--emptied'"


@pytest.mark.parametrize("name", ["digits", "another"])
def test_a_store_that_is_not_mounted_is_refused(create: Create, gone: Path, name: str) -> None:
    for mount in (lambda: None, gone.mkdir):  # no folder, and an empty one
        mount()
        with pytest.raises(ConfigurationError, match=REFUSED):
            create(name)
        assert not gone.exists() or not list(gone.iterdir()), "no store is made in its place"


def test_a_store_made_where_another_was_is_refused(create: Create, gone: Path) -> None:
    CheckpointStore(str(gone)).check()  # by a study of another database
    for name in ("digits", "another"):
        with pytest.raises(ConfigurationError, match=REFUSED):
            create(name)


def test_a_store_emptied_on_purpose_is_used(create: Create, gone: Path, tmp_path: Path) -> None:
    database = tmp_path / "studies.db"
    command = ["gc", str(database), "--storage", str(gone), "--emptied"]
    result = CliRunner().invoke(app, command)
    assert (result.exit_code, result.output) == (
        0,
        f"{gone}: the database has forgotten 2 checkpoints missing here\n",
    )
    create()
    create("another")
    save(gone, "f2", database=database)
    create()
    create("third")
    assert "forgotten 0 checkpoints missing here" in CliRunner().invoke(app, command).output


def test_a_part_of_a_store_may_be_gone(create: Create, tmp_path: Path) -> None:
    create()
    for key in ("f0", "f1"):
        save(tmp_path / "store", key, database=tmp_path / "studies.db")
    shutil.rmtree(tmp_path / "store" / "checkpoints" / "f0")
    create()
    (tmp_path / "store" / "dasktune.json").unlink()
    create()
    create("another")


def test_a_mistyped_store_of_a_study_is_not_made(create: Create, tmp_path: Path) -> None:
    create()
    with pytest.raises(ConfigurationError, match=r"must have the store .*/store, got .*/stroe"):
        create(store="stroe")
    assert not (tmp_path / "stroe").exists()


def test_gc_of_an_emptied_store_needs_its_database(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["gc", str(tmp_path), "--emptied"])
    assert result.exit_code == 2
    assert "--emptied needs the database that lists the checkpoints" in result.output

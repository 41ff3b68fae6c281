"""Tests that planted database rows are read or refused, and never executed."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

import dasktune as dt
from dasktune.cli.commands import app
from dasktune.errors import DasktuneError

COMMAND = 'import os; os.system("touch pwned")'
PLANTED = {
    "pickle": "cos\nsystem\n(S'touch pwned'\ntR.",
    "deep": "[" * 100_000 + "]" * 100_000,
    "a number of 5000 digits": "1" * 5000,
    "infinite": '{"metric": 1e999, "merge": true}',
    "cut": '{"metric": "lo',
    "more than one": "{}, {}",
    "null": "null",
    "list": "[]",
    "names of code": json.dumps(
        {
            "__reduce__": ["os.system", ["touch pwned"]],
            "py/object": "os.system",
            "$type": "os.system",
            "!!python/object/apply:os.system": ["touch pwned"],
            "family": "os.system",
            "sequences": {"x": {"family": "__import__('os').system", "value": COMMAND}},
            "values": [COMMAND],
            "metric": f"__import__('os').system({COMMAND!r})",
            "direction": "minimize",
        }
    ),
}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the storage of a small study."""
    folder = tmp_path_factory.mktemp("planted")
    study = dt.create_study(None, name="own", storage=folder, metric="loss")
    tuner = dt.algos.Random(dt.Space(x=dt.Float(-1, 1)), trials=3, max_steps=1)
    while asked := study.ask(tuner):
        study.tell(asked, 1.0)
    study.set_user_attr("a", 1)
    study.close()
    return folder


@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED)
@pytest.mark.parametrize(
    "column", ["studies.spec", "events.payload", "trials.record", "notes.payload"]
)
def test_it_is_read_or_refused_in_words(
    original: Path, column: str, planted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(original, "store")
    table, field = column.split(".")
    with sqlite3.connect("store/dasktune.db") as connection:
        connection.execute(f"update dasktune_{table} set {field} = ?", (planted,))
    connection.close()
    for command in (["status", "store"], ["ls", "store"], ["gc", "store", "--dry-run"]):
        done = CliRunner().invoke(app, command)
        assert done.exit_code in (0, 1, 2)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        assert (done.exit_code == 0) == (not done.stderr.startswith("error: "))
    with suppress(DasktuneError):
        study = dt.create_study(
            None, name="own", storage="store", metric="loss", load_if_exists=True
        )
        assert len(study.trials) == study.summary()["trials"]
        study.close()
    assert not list(tmp_path.rglob("pwned"))


def test_no_trigger_of_a_database_reaches_beyond_it(original: Path, tmp_path: Path) -> None:
    database = shutil.copy(original / "dasktune.db", tmp_path)
    with sqlite3.connect(database) as connection:
        connection.execute(
            "create trigger planted after insert on dasktune_notes begin "
            "select load_extension('/tmp/planted.so'); end"
        )
    connection.close()
    study = dt.create_study(
        None, name="new", storage=tmp_path / "store", database=database, metric="loss"
    )
    with pytest.raises(DasktuneError, match=r"cannot use database .*load_extension"):
        study.set_user_attr("a", 1)
    study.close()

"""Tests that every damaged cell of a database is read or refused in words, by all that read it."""

from __future__ import annotations

import itertools
import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from distributed import Client
from typer.testing import CliRunner

import dasktune as dt
from dasktune._dashboard.studies import Studies
from dasktune._dashboard.study_view import json_of
from dasktune.cli.commands import app
from dasktune.errors import DasktuneError
from dasktune.storage.database.database import Database
from dasktune.storage.database.schema import metadata
from tests.toy_trainers import Adding

VALUES: list[object] = [
    "x",
    "",
    -1,
    2**62,
    "1e999",
    float("inf"),
    -5.5,
    b"\xff\x00",
    "{}",
    '"\\ud800"',
    '{"\\ud800": "\\ud800"}',
    "[]",
    "null",
    "[[[1]]]",
    '{"a": {"b": [1]}}',
    "[1e999]",
    "1" * 5000,
    "a\x1b[31m\n",
]
COMMANDS = [
    ["status", "store"],
    ["status", "store", "--json"],
    ["status", "store", "--study", "own", "--verbose"],
    ["status", "store", "--study", "own", "--trial", "2"],
    ["ls", "store", "--checkpoints"],
    ["gc", "store", "--dry-run", "--grace", "0s"],
    ["logs", "store", "--study", "own", "--trial", "2"],
    ["report", "store", "--study", "own", "--output", "report.html"],
    ["export", "store", "--study", "own", "--optuna", "sqlite://"],
]
TABLES = {
    table.name: [column.name for column in table.columns]
    for table in metadata.sorted_tables
    if table.name not in ("dasktune_meta", "dasktune_packing")
}


@pytest.fixture
def original(two_threads: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the store of two studies, one of which has trained trials, in the working folder."""
    monkeypatch.chdir(tmp_path)
    for name, lr in (("own", [0.1, 0.2, 0.3]), ("other", [0.1])):
        study = dt.create_study(Adding, name=name, storage="store", metric="loss")
        tuner = dt.algos.Grid(dt.Space(lr=lr), max_steps=2)
        study.optimize(tuner, client=two_threads, progress=False)
        study.close()
    return tmp_path / "store"


def ask_page(file: Path) -> None:
    """Ask for all parts of the page of all studies, also after one is refused in words."""
    with closing(Database(file, create=False, reads_only=True)) as database:
        studies = Studies(database)
        json_of(studies.listing())
        for view in studies.views():
            asked = (view.overview, view.tree, view.points, view.pending, view.importance)
            of_trials = (lambda view=view: view.trials(0), lambda view=view: view.trial(2))
            for ask in (*asked, *of_trials):
                with suppress(DasktuneError):
                    json_of(ask())


def damaged(file: Path, table: str, column: str, value: object) -> Iterator[bool]:
    """Yield whether a database takes a value in the first row, and in the last row of a table."""
    for which in ("min", "max"):
        rows = f"select {which}(rowid) from {table}"
        with closing(sqlite3.connect(file)) as connection:
            try:
                connection.execute(
                    f'update {table} set "{column}" = ? where rowid = ({rows})', (value,)
                )
                connection.commit()
            except sqlite3.Error:
                yield False
                continue
        yield True


@pytest.mark.parametrize("table", TABLES)
def test_damaged_cells_are_read_or_refused_in_words(original: Path, table: str) -> None:
    file = original / "dasktune.db"
    whole = shutil.copy(file, "whole.db")
    values, commands = itertools.cycle(VALUES), itertools.cycle(COMMANDS)
    # Each column has another value than its neighbours, and other readers.
    for column in TABLES[table]:
        value = next(values)
        for is_taken in damaged(file, table, column, value):
            if not is_taken:
                continue
            command = next(commands)
            done = CliRunner().invoke(app, command)
            where = f"{command}: {table}.{column} = {value!r:.40}"
            assert done.exception is None or isinstance(done.exception, SystemExit), where
            assert (done.exit_code == 0) == (not done.stderr.startswith("error: ")), where
        with suppress(DasktuneError):
            ask_page(file)
        shutil.copy(whole, file)


@pytest.mark.parametrize(
    ("table", "column", "value", "problem"),
    [
        ("studies", "spec", "null", "must be a JSON object"),
        ("studies", "spec", "{", "invalid JSON"),
        ("studies", "root", "1e999", "root of study 'own' must be hexadecimal digits"),
        ("trials", "steps", "x", "trials.steps of the database must hold whole numbers"),
        ("trials", "value", "\\ud800", "must hold a number"),
        ("trials", "record", "{}", "trial 0 cannot be read"),
    ],
)
def test_unreadable_study_is_named_beside_the_others(
    original: Path, table: str, column: str, value: str, problem: str
) -> None:
    file = original / "dasktune.db"
    key = "id" if table == "studies" else "study_id"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(f"update dasktune_{table} set {column} = ? where {key} = 1", (value,))
        connection.commit()
    done = CliRunner().invoke(app, ["ls", "store"])
    assert done.exit_code == 0, done.stderr
    assert "other" in done.output
    assert "study 'own' cannot be read: " in done.output
    assert problem in done.output
    alone = CliRunner().invoke(app, ["ls", "store", "--study", "own"])
    assert alone.exit_code == 1
    assert problem in alone.stderr
    removal = CliRunner().invoke(app, ["rm", "other", "store", "--yes"])
    assert removal.exit_code != 0, "its states may be those of the other study"
    with closing(Database(file, create=False, reads_only=True)) as database:
        listed = Studies(database).listing()["studies"]
    assert "other" in str(listed)
    if table == "studies":
        words = CliRunner().invoke(app, ["status", "store"])
        assert words.exit_code == 0, words.stderr
        assert "other" in words.output
        document = json.loads(CliRunner().invoke(app, ["status", "store", "--json"]).stdout)
        assert {each["study"] for each in document} == {"other", "own"}

"""Requests to stop a run, as notes in the database."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dasktune._driver.history import History
from dasktune._driver.stop_notes import StopNotes, note_stop
from dasktune._study.from_elsewhere import stop_study
from dasktune.errors import ConfigurationError
from dasktune.storage.database.database import Database
from dasktune.storage.database.rows import RunRow, StudyRow


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with closing(Database(tmp_path / "dasktune.db")) as opened:
        yield opened


@pytest.fixture
def row(database: Database) -> StudyRow:
    created = database.create_study("digits", root="root", spec={}, created=1.0)
    assert created is not None
    return created


def test_a_note_stops_the_run_that_it_names(database: Database, row: StudyRow) -> None:
    history = History(database, row.id)
    first, second = StopNotes(history, "first"), StopNotes(history, "second")
    assert first.read() == ""
    history.note("user_attr", name="run", value="first")
    note_stop(history, "first", "the live page")
    assert second.read() == ""
    assert first.read().startswith("the live page, ")
    assert first.read() == "", "a request is read once"


def test_an_unreadable_database_stops_no_run(
    database: Database, row: StudyRow, tmp_path: Path
) -> None:
    notes = StopNotes(History(database, row.id), "first")
    with closing(sqlite3.connect(tmp_path / "dasktune.db")) as other:
        other.execute("ALTER TABLE dasktune_notes RENAME TO away")
        assert notes.read() == ""
        other.execute("ALTER TABLE away RENAME TO dasktune_notes")
    note_stop(History(database, row.id), "first", "dasktune stop")
    assert notes.read().startswith("dasktune stop, ")


def test_a_study_that_never_ran_cannot_be_stopped(database: Database, row: StudyRow) -> None:
    with pytest.raises(ConfigurationError, match="study 'digits' must run to be stopped; it never"):
        stop_study(database, row, "dasktune stop")


def test_a_study_that_has_ended_cannot_be_stopped(database: Database, row: StudyRow) -> None:
    run = RunRow(
        run="digits-1",
        study_id=row.id,
        host="far",
        pid=1,
        version="1",
        began=1.0,
        seen=2.0,
        ended=2.0,
        how="ended",
    )
    database.write_run(run)
    with pytest.raises(ConfigurationError, match=r"its driver ended .* ago"):
        stop_study(database, row, "dasktune stop")
    assert not list(database.notes(row.id))

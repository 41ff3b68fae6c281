"""A study's history: tuners are found by what they are, notes by their kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dasktune.algos import Grid
from dasktune.history import History, has_ended
from dasktune.space import Space
from dasktune.storage.database import Batch, Database
from dasktune.storage.schema import EventRow

FIRST, SECOND = (Grid(Space(lr=[0.1]), max_steps=steps) for steps in (3, 4))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(tmp_path / "x.db")
    yield opened
    opened.close()


def write(database: Database, number: int, kind: str, place: int, **more: object) -> None:
    payload = {"kind": kind, "place": place, "decisions": [], **more}
    database.write(Batch(events=[EventRow(study_id=1, number=number, payload=payload)]))


def test_a_tuner_is_found_with_its_own_records(database: Database) -> None:
    history = History(database, 1)
    assert history.place_of(FIRST) == (0, [])
    write(database, 0, "tuner", 0, identity=FIRST.identity())
    write(database, 1, "tuner", 1, identity=SECOND.identity())
    write(database, 2, "ask", 0, capacity=2)
    write(database, 3, "remark", 0)
    assert history.read_on() is True
    assert history.read_on() is False
    assert history.next_number == 4
    place, records = history.place_of(FIRST)
    assert (place, [record["kind"] for record in records]) == (0, ["tuner", "ask"])
    assert history.place_of(SECOND)[0] == 1
    assert history.place_of(Grid(Space(lr=[0.1]), max_steps=5)) == (2, [])


def test_what_is_remembered_is_not_read_again(database: Database) -> None:
    history = History(database, 1)
    write(database, 0, "tuner", 0, identity=FIRST.identity())
    (row,) = database.events(1)
    history.remember(row)
    assert history.read_on() is False
    assert len(history.place_of(FIRST)[1]) == 1


def test_notes_of_others_are_seen_and_take_no_number(database: Database) -> None:
    history, other = History(database, 1), History(database, 1)
    other.note("run", wall_seconds=1.5)
    other.note("check", ok=True)
    history.note("run", wall_seconds=2.5)
    assert [note["wall_seconds"] for note in history.notes("run")] == [1.5, 2.5]
    assert [note["ok"] for note in history.notes("check")] == [True]
    assert history.read_on() is False


def test_a_tuner_has_ended_when_it_has_said_so() -> None:
    asked = {"kind": "ask", "decisions": [{"do": "extend"}]}
    assert not has_ended([])
    assert not has_ended([asked])
    assert has_ended([asked, {"kind": "tell", "decisions": [{"do": "stop"}, {"do": "finish"}]}])

"""A study's history: tuners are found by what they are, notes by their kind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from dasktune._driver.history import BEGUN, History
from dasktune._engine.event_log import has_ended
from dasktune._engine.tuner_records import Document, Record, ReportTold, TunerWidened, WorkAsked
from dasktune.algos import Grid, Random
from dasktune.errors import CorruptRecordError, StorageError
from dasktune.space import Float, Space
from dasktune.storage.database.database import Batch, Database
from dasktune.storage.database.rows import EventRow
from dasktune.types import Direction
from tests.storage.full_disk import FullDisk

BEGINNINGS = {"tuner": {"inputs": {}}}
FIRST, SECOND = (Grid(Space(lr=[0.1]), max_steps=steps) for steps in (3, 4))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(tmp_path / "x.db")
    yield opened
    opened.close()


def write(database: Database, number: int, kind: str, place: int, **more: object) -> None:
    payload = {"kind": kind, "place": place, "decisions": [], **BEGINNINGS.get(kind, {}), **more}
    database.write(Batch(events=[EventRow(study_id=1, number=number, payload=payload)]))


def test_a_tuner_is_found_with_its_own_records(database: Database) -> None:
    history = History(database, 1)
    assert (history.place_of(FIRST).number, history.place_of(FIRST).records) == (0, [])
    write(database, 0, "tuner", 0, identity=FIRST.identity())
    write(database, 1, "tuner", 1, identity=SECOND.identity())
    write(database, 2, "ask", 0, capacity=2)
    write(database, 3, BEGUN, 0)
    assert history.read_on() is True
    assert history.read_on() is False
    assert history.next_number == 4
    place = history.place_of(FIRST)
    assert (place.number, [one.cause.kind for one in place.records]) == (0, ["tuner", "ask"])
    assert [one["kind"] for one in history.documents_of(0)] == ["tuner", "ask"]
    assert history.place_of(SECOND).number == 1
    new = history.place_of(Grid(Space(lr=[0.1]), max_steps=5))
    assert (new.number, new.records) == (2, [])


def test_what_is_remembered_is_not_read_again(database: Database) -> None:
    history = History(database, 1)
    write(database, 0, "tuner", 0, identity=FIRST.identity())
    (row,) = database.events(1)
    history.remember(row)
    assert history.read_on() is False
    assert len(history.place_of(FIRST).records) == 1


def test_history_last_driver_to_begin_runs_the_study(database: Database) -> None:
    earlier, later = History(database, 1), History(database, 1)
    assert earlier.begin("a", 0)
    assert not later.begin("b", 0), "what the other one has written must be read first"
    later.read_on()
    assert later.begin("b", 0)
    with pytest.raises(StorageError, match="another process is running"):
        write(database, earlier.next_number, "ask", 0)
    write(database, later.next_number, "ask", 0)


def test_history_full_disk_is_not_reported_as_another_driver(tmp_path: Path) -> None:
    with closing(FullDisk(tmp_path / "x.db")) as database:
        database.is_full = True
        with pytest.raises(StorageError, match="the disk is full"):
            History(database, 1).begin("a", 0)


def test_notes_of_others_are_seen_and_take_no_number(database: Database) -> None:
    history, other = History(database, 1), History(database, 1)
    other.note("run", wall_seconds=1.5)
    other.note("check", ok=True)
    history.note("run", wall_seconds=2.5)
    assert [note["wall_seconds"] for note in history.notes("run")] == [1.5, 2.5]
    assert [note["ok"] for note in history.notes("check")] == [True]
    assert history.read_on() is False


def test_history_record_of_unknown_kind_is_refused(database: Database) -> None:
    write(database, 0, "tuner", 0, identity=FIRST.identity())
    write(database, 1, "remark", 0)
    history = History(database, 1)
    history.read_on()
    with pytest.raises(CorruptRecordError, match=r"tell, .* got 'remark'"):
        history.place_of(FIRST)


EXTENDED: Document = {"do": "extend", "trial": 0}
FINISHED: Document = {"do": "finish"}
TOLD = ReportTold(trial=0, step=1, metrics={"loss": 1.0})


def test_has_ended_needs_a_finish_decision() -> None:
    asked = Record(cause=WorkAsked(capacity=1), place=0, decisions=(EXTENDED,))
    ended = Record(cause=TOLD, place=0, decisions=({"do": "stop", "trial": 0}, FINISHED))
    assert not has_ended([])
    assert not has_ended([asked])
    assert has_ended([asked, ended])


def test_a_tuner_that_was_widened_has_to_end_again() -> None:
    ended = Record(cause=TOLD, place=0, decisions=(FINISHED,))
    widened = Record(cause=TunerWidened(trials=9), place=0, decisions=(EXTENDED,))
    assert not has_ended([ended, widened])
    assert has_ended([ended, widened, ended])
    assert has_ended([replace(widened, decisions=(FINISHED,))])


def test_a_tuner_with_more_trials_is_the_known_one_widened(database: Database) -> None:
    space = Space(lr=Float(0.1, 0.2))
    few, more, most = (Random(space, trials=n, max_steps=3) for n in (2, 5, 9))
    history = History(database, 1)
    write(database, 0, "tuner", 0, identity=few.identity())
    history.read_on()
    place = history.place_of(more)
    assert (place.number, place.widen, place.tuner.identity()) == (0, 5, few.identity())
    write(database, 1, "widen", 0, trials=5)
    history.read_on()
    assert history.place_of(more).widen is None
    assert history.place_of(few).widen is None
    assert history.place_of(most).widen == 9
    between = history.place_of(Random(space, trials=3, max_steps=3))
    assert (between.number, between.widen) == (0, None), "it has more already"
    other_seed = Random(space, trials=9, max_steps=3, seed=1)
    assert history.place_of(other_seed).number == 1


def test_study_without_a_value_has_no_best_trial(database: Database) -> None:
    assert History(database, 1).best_trial(Direction.MINIMIZE) is None


def with_gap(database: Database, *kinds: str) -> History:
    """Return the history of a study whose log has these kinds of events; ``-`` is a missing one."""
    database.create_study("digits", root="r", spec={}, created=0.0)
    write(database, 0, "tuner", 0, identity=FIRST.identity())
    for number, kind in enumerate(kinds, 1):
        if kind != "-":
            more = SNAPSHOT if kind == "snapshot" else {"capacity": 2}
            write(database, number, kind, 0, **more)
    history = History(database, 1)
    history.read_on()
    return history


SNAPSHOT = {"state": {}, "trials": {}, "capacity": 1}


@pytest.mark.parametrize(
    ("kinds", "gaps"),
    [
        ("ask - ask", "event 2 is missing, so decisions are known up to event 1"),
        ("ask - - ask - ask", "events 2 to 3 and 5 are missing, so decisions are known up to"),
        ("snapshot ask - ask", "event 3 is missing, so decisions are known up to event 2"),
        ("- ask " * 7, r"events 1, 3, 5, 7, 9 and 2 more gaps are missing"),
    ],
)
def test_a_tuner_with_a_gap_in_its_log_is_refused(
    database: Database, kinds: str, gaps: str
) -> None:
    history = with_gap(database, *kinds.split())
    for tuner in (FIRST, SECOND):  # the second one may have begun in the gap
        with pytest.raises(StorageError, match=f"'digits' must have all events.*{gaps}"):
            history.place_of(tuner)


def test_a_tuner_goes_on_from_a_snapshot_after_a_gap(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    history = with_gap(database, "ask", "-", "snapshot", "ask")
    with caplog.at_level("WARNING", "dasktune"):
        places = [history.place_of(FIRST) for _ in range(2)]
    assert [record.cause.kind for record in places[0].records] == ["snapshot", "ask"]
    (line,) = [record.message for record in caplog.records]
    assert "goes on from its last snapshot, but cannot be replayed: event 2 is missing" in line
    with pytest.raises(StorageError, match="event 2 is missing"):
        history.refuse_gap()

"""The hold on a study: of one object at a time, and no longer than it and its process live."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from dasktune.storage.database.database import Batch, Database
from dasktune.storage.database.rows import EventRow


def hold_and_wait(url: str, end: Connection) -> None:
    """Take the hold on study 1 in a new process, tell the result, and keep it."""
    hold = Database(url).hold_of(1)
    end.send(hold.take())
    end.recv()


def check_processes(url: str) -> None:
    """Check that the hold of a process ends with it, however it ends."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=hold_and_wait, args=(url, there), daemon=True)
    process.start()
    assert here.recv()
    database = Database(url)
    hold, other = database.hold_of(1), database.hold_of(2)
    assert not hold.take()
    assert other.take(), "it is another study"
    process.kill()
    process.join()
    while not hold.take():  # a server notices the end a moment later
        pass
    assert hold.take()
    hold.release()
    other.release()
    hold.release()
    database.close()


@pytest.mark.process
def test_hold_of_a_file_ends_with_its_process(tmp_path: Path) -> None:
    check_processes(str(tmp_path / "a.db"))


@pytest.mark.process
@pytest.mark.postgresql
def test_hold_of_a_server_ends_with_its_process(postgresql: str) -> None:
    check_processes(postgresql)


def test_database_in_memory_is_held_by_its_process() -> None:
    database = Database("sqlite://")
    assert database.hold_of(1).take()
    database.hold_of(1).release()
    database.close()


def look(url: str, end: Connection) -> None:
    """Open the database in a new process, close it, and send the numbers of its events."""
    end.recv()
    database = Database(url, create=False)
    numbers = [row.number for row in database.events(1)]
    database.close()
    end.send(numbers)


@pytest.mark.process
def test_reader_elsewhere_leaves_the_log_of_a_file_opened_twice(tmp_path: Path) -> None:
    """To close a file drops its locks: the reader would remove the log under this process."""
    url = str(tmp_path / "a.db")
    database, second = Database(url), Database(url)
    database.create_study("first", root="r", spec={}, created=0.0)
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    for count in (1, 2):
        event = EventRow(study_id=1, number=count - 1, payload={"kind": "begun"})
        database.write(Batch(events=[event]))
        process = context.Process(target=look, args=(url, there), daemon=True)
        process.start()
        here.send(None)
        assert here.recv() == [*range(count)]
        process.join()
    second.close()
    database.close()

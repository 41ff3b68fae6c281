"""A driver's leases: what it holds stays its own, and what it waits for comes to an end."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dasktune.driver.leases import (
    PATIENCE,
    CommitsFound,
    LeaseAnswered,
    LeaseChanged,
    LeaseMessage,
    Leasing,
)
from dasktune.engine.timeouts import LEASE_SECONDS
from dasktune.sequences import Constant
from dasktune.storage import layout
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.leases import Lease, Leases

ROOT, KEY = "aa" * 16, "b1" * 16


class Driver:
    """A driver's leasing with a clock that is set by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now = folder, 1000.0
        self.inbox: queue.SimpleQueue[LeaseMessage] = queue.SimpleQueue()
        store = CheckpointStore(str(folder))
        self.leases = Leases(store.files)
        self.leasing = Leasing(store, "study", self.inbox.put, clock=lambda: self.now)

    def lease(self) -> Lease:
        rate = {"lr": Constant(0.1)}
        return self.leasing.lease(key=KEY, root=ROOT, sequences=rate, start=0, stop=10)

    def receive(self) -> LeaseMessage:
        return self.inbox.get(timeout=10)

    def there(self) -> Lease | None:
        return self.leases.read(ROOT, [KEY])[0]

    def settle(self) -> None:
        """Wait until all that was asked for is done."""
        self.leasing.look_up("last", {})
        assert self.receive() == CommitsFound(attempt="last", commits={})


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    made = Driver(tmp_path)
    yield made
    made.leasing.close()


def test_the_next_attempt_at_the_same_steps_keeps_the_lease(driver: Driver) -> None:
    for attempt in ("lost", "next"):
        driver.leasing.ask(attempt, driver.lease())
        assert driver.receive() == LeaseAnswered(attempt=attempt, other=None)
    driver.leasing.release("lost", 4)
    driver.settle()
    held = driver.there()
    assert held is not None
    assert held.is_held(driver.now)
    driver.leasing.release("next", 10)
    driver.settle()
    done = driver.there()
    assert done is not None
    assert done.is_done
    assert done.step == 10


def test_suspended_driver_keeps_lease_of_next_driver(driver: Driver) -> None:
    driver.leasing.ask("mine", driver.lease())
    driver.receive()
    driver.now += LEASE_SECONDS + 1
    theirs = replace(driver.lease(), study="other", holder="h2")
    driver.leases.write(theirs)
    driver.leasing.beat()
    driver.leasing.saved("mine", 5, None)
    driver.settle()
    driver.settle()
    driver.leasing.release("mine", 5)
    driver.settle()
    assert driver.there() == theirs


def test_watched_lease_expires_while_store_is_away(driver: Driver) -> None:
    theirs = replace(driver.lease(), study="other", holder="h2")
    driver.leases.write(theirs)
    folder, files = driver.folder / layout.lease_folder(ROOT), driver.folder / "files"
    folder.rename(files)
    folder.symlink_to(files)
    driver.leasing.watch("mine", theirs)
    driver.settle()
    no_folder, link = driver.folder / "no folder", driver.folder / "link"
    no_folder.write_text("")
    link.symlink_to(no_folder)
    link.replace(folder)  # at once: the lease must never look removed
    driver.now += LEASE_SECONDS + 1
    assert driver.receive() == LeaseChanged(attempt="mine", lease=replace(theirs, is_done=True))


def test_whatever_fails_the_next_question_is_answered(driver: Driver) -> None:
    driver.leasing.look_up("odd", None)  # type: ignore[arg-type]
    assert driver.receive() == CommitsFound(attempt="odd", commits={})
    driver.leasing.ask("mine", driver.lease())
    assert driver.receive() == LeaseAnswered(attempt="mine", other=None)


def test_failed_store_is_not_tried_again_within_patience(
    driver: Driver,
) -> None:
    folder = driver.folder / layout.lease_folder(ROOT)
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("no folder")
    driver.leasing.ask("first", driver.lease())
    assert driver.receive() == LeaseAnswered(attempt="first", other=None)
    driver.settle()
    folder.unlink()
    driver.leasing.ask("second", driver.lease())
    assert driver.receive() == LeaseAnswered(attempt="second", other=None)
    assert driver.there() is None, "many that ask would each wait as long"
    driver.now += PATIENCE.seconds
    driver.leasing.ask("third", driver.lease())
    assert driver.receive() == LeaseAnswered(attempt="third", other=None)
    assert driver.there() is not None

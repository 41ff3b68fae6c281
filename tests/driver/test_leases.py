"""A driver's leases: what it holds stays its own, and what it waits for comes to an end."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dasktune.driver.lease_messages import (
    CommitsFound,
    LeaseAnswered,
    LeaseChanged,
    LeaseMessage,
)
from dasktune.driver.lease_threads import PATIENCE as STORE_PATIENCE
from dasktune.driver.lease_threads import LeaseThreads, Work
from dasktune.driver.leases import Leasing
from dasktune.engine.timeouts import (
    LEASE_LIMIT_SECONDS,
    LEASE_SECONDS,
    RENEW_SECONDS,
    STALE_SECONDS,
)
from dasktune.sequences import Constant
from dasktune.storage import layout
from dasktune.storage.buffers import Buffer
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.files.local import LocalFiles
from dasktune.storage.leases import HeldLeases, HeldLeasesCodec, Lease, Leases, SaveRequest
from tests.call_counter import python_calls
from tests.holding import PATIENCE

ROOT, KEY = "aa" * 16, "b1" * 16


class CountedFiles(LocalFiles):
    """Files that note each operation that an object store answers with one request."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.requests: list[tuple[str, str]] = []

    def create(self, path: str, content: bytes, *, durable: bool = True) -> bool:
        self.requests.append(("create", path))
        return super().create(path, content, durable=durable)

    def replace(self, path: str, content: bytes, *, durable: bool = False) -> None:
        self.requests.append(("replace", path))
        super().replace(path, content, durable=durable)

    def read(self, folder: str, names: Sequence[str]) -> list[Buffer | None]:
        self.requests.append(("read", folder))
        return super().read(folder, names)


class HeldFiles(CountedFiles):
    """Files whose requests wait, once they are held, until the test lets them through."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.holds = False
        self._waiting: list[tuple[str, str]] = []
        self._changed = threading.Condition()

    def create(self, path: str, content: bytes, *, durable: bool = True) -> bool:
        self._wait("create", path)
        return super().create(path, content, durable=durable)

    def replace(self, path: str, content: bytes) -> None:
        self._wait("replace", path)
        super().replace(path, content)

    def read(self, folder: str, names: Sequence[str]) -> list[Buffer | None]:
        self._wait("read", *names)
        return super().read(folder, names)

    def _wait(self, *request: str) -> None:
        with self._changed:
            if self.holds:
                self._waiting.append(request)
                self._changed.notify_all()
                self._changed.wait_for(lambda: request not in self._waiting or not self.holds)

    def expect(self, *requests: tuple[str, str]) -> None:
        """Wait until these requests wait, and no others."""
        with self._changed:
            there = self._changed.wait_for(
                lambda: sorted(self._waiting) == sorted(requests), timeout=PATIENCE
            )
            assert there, self._waiting

    def let_through(self, *requests: tuple[str, str]) -> None:
        """Carry these requests out together as soon as they wait, and no others."""
        self.expect(*requests)
        with self._changed:
            self._waiting.clear()
            self._changed.notify_all()

    def release(self) -> None:
        """Hold no request any longer."""
        with self._changed:
            self.holds = False
            self._changed.notify_all()


class Unrepeated(LeaseThreads):
    """Threads in which nothing is repeated: leases are looked after when a test says so."""

    def repeat(self, work: Callable[[], float]) -> None:
        """Do nothing."""


class Inline(Unrepeated):
    """No threads: each job is done where it is given."""

    def do(self, key: str, work: Work, *, is_question: bool = True) -> Future[None]:
        work()
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def in_turn(self, work: Work) -> None:
        work()


class Driver:
    """A driver's leasing with a clock that is set by hand."""

    def __init__(
        self,
        folder: Path,
        study: str = "study",
        files: CountedFiles | None = None,
        threads: LeaseThreads | None = None,
    ) -> None:
        self.folder, self.now = folder, 1000.0
        self.inbox: queue.SimpleQueue[LeaseMessage] = queue.SimpleQueue()
        store = CheckpointStore(str(folder))
        self.leases, self.files = Leases(store.files), files or CountedFiles(folder)
        self.leasing = Leasing(
            store,
            study,
            self.inbox.put,
            clock=lambda: self.now,
            files=self.files,
            threads=threads,
        )

    def lease(self, key: str = KEY, start: int = 0, stop: int = 10) -> Lease:
        rate = {"lr": Constant(0.1)}
        return self.leasing.lease(key=key, root=ROOT, sequences=rate, start=start, stop=stop)

    def ask(self, attempt: str, lease: Lease | None = None) -> Lease | None:
        """Ask for a lease; return the one that stands in the way."""
        self.leasing.ask(attempt, lease or self.lease())
        answer = self.receive()
        assert isinstance(answer, LeaseAnswered)
        assert answer.attempt == attempt
        return answer.other

    def receive(self) -> LeaseMessage:
        return self.inbox.get(timeout=60)

    def there(self) -> Lease | None:
        return self.leases.read(ROOT, [KEY])[0]

    def settle(self) -> None:
        """Wait until all that was asked for is done."""
        self.leasing.flush()

    def meet_another(self, *leases: Lease) -> None:
        """Write the object of another driver, so that leases have files."""
        other = HeldLeases(
            holder="h2",
            study="other",
            expires=self.now + LEASE_SECONDS,
            leases=tuple(replace(lease, holder="h2", study="other") for lease in leases),
            sees=(self.leasing.holder,),
        )
        self.leases.hold(other)


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    made = Driver(tmp_path)
    yield made
    made.leasing.close()


def test_a_lone_driver_writes_no_lease_file(driver: Driver) -> None:
    for number in range(5):
        assert driver.ask(str(number), driver.lease(f"{number}a" * 16)) is None
        driver.leasing.saved(str(number), 5, None)
    driver.leasing.release("0", 10)
    driver.settle()
    folders = {path.partition("/")[0] for _, path in driver.files.requests}
    assert folders == {layout.DRIVERS}
    held = driver.leases.drivers([driver.leasing.holder])[0]
    driver.settle()
    assert {lease.key for lease in held.leases} <= {f"{number}a" * 16 for number in range(5)}


def test_lone_driver_is_granted_further_leases_at_once(driver: Driver) -> None:
    assert not driver.leasing.grant("first", driver.lease()), "nothing is known of the root yet"
    assert driver.ask("first") is None
    before = list(driver.files.requests)
    assert driver.leasing.grant("second", driver.lease("c1" * 16))
    driver.leasing.release("second", 10)
    assert driver.files.requests == before
    driver.meet_another()
    driver.settle()
    assert not driver.leasing.grant("third", driver.lease("d1" * 16))


class Noted(Unrepeated):
    """Threads that note what their jobs are about."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: list[str] = []

    def do(self, key: str, work: Work, *, is_question: bool = True) -> Future[None]:
        self.keys.append(key)
        return super().do(key, work, is_question=is_question)


def test_release_of_a_granted_lease_follows_its_writes(tmp_path: Path) -> None:
    threads = Noted()
    driver = Driver(tmp_path, threads=threads)
    assert driver.ask("first") is None
    assert driver.leasing.grant("second", driver.lease("c1" * 16))
    driver.meet_another()
    driver.settle()
    assert "c1" * 16 in threads.keys
    threads.keys.clear()
    driver.leasing.release("second", 10)
    assert threads.keys == ["c1" * 16]
    driver.leasing.close()


def test_leases_get_files_once_another_driver_appears(driver: Driver) -> None:
    assert driver.ask("mine") is None
    driver.settle()
    assert driver.there() is None
    driver.meet_another()
    driver.settle()
    mine = driver.there()
    assert mine is not None
    assert mine.is_held(driver.now)
    assert driver.leases.drivers([driver.leasing.holder])[0].sees == ("h2",)


def end_leases(driver: Driver, count: int) -> None:
    for number in range(count):
        key = f"{number:032x}"
        assert driver.ask(key, driver.lease(key, 10 * number, 10 * number + 10)) is None
        driver.leasing.release(key, 10 * number + 10)
    driver.settle()


def test_arrival_of_a_driver_costs_as_much_after_more_leases(tmp_path: Path) -> None:
    def requests(count: int) -> list[str]:
        driver = Driver(tmp_path / f"{count}", threads=Inline())
        end_leases(driver, count)
        driver.meet_another()
        driver.files.requests.clear()
        driver.settle()
        driver.leasing.close()
        return [f"{kind} {path.partition('/')[0]}" for kind, path in driver.files.requests]

    assert requests(2) == requests(200)
    assert requests(3).count("replace ended") == 1


def test_ended_leases_of_a_lone_driver_are_found_later(driver: Driver) -> None:
    end_leases(driver, 3)
    driver.now += 2 * LEASE_SECONDS
    driver.leasing.beat()
    driver.settle()
    assert driver.leases.drivers([driver.leasing.holder])[0].leases == (), "they ended long ago"
    other = Driver(driver.folder, "other")
    other.now = driver.now
    try:
        behind = other.ask("behind", other.lease(KEY, 12, 14))
        assert behind is not None
        assert (behind.start, behind.is_done) == (10, True)
        driver.leasing.close()
        other.settle()
        behind = other.ask("again", other.lease(KEY, 12, 14))
        assert behind is not None
        assert (behind.start, behind.is_done) == (10, True)
    finally:
        other.leasing.close()


def test_driver_is_met_after_its_ended_leases_are_written(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(leases: Leases, held: HeldLeases) -> None:
        raise TypeError("no such file today")

    end_leases(driver, 1)
    driver.meet_another()
    with monkeypatch.context() as patched:
        patched.setattr(Leases, "list_ended", fail)
        driver.settle()
        assert driver.leases.drivers([driver.leasing.holder])[0].sees == ()
    driver.settle()
    met = driver.leases.drivers([driver.leasing.holder])[0]
    assert (met.sees, met.lists_ended) == (("h2",), True)
    assert len(driver.leases.ended([met.holder])[met.holder]) == 1
    driver.leases.leave(met)
    assert driver.leases.ended([met.holder]) == {}


def test_files_are_written_before_another_driver_is_seen(tmp_path: Path) -> None:
    driver = Driver(tmp_path, threads=Unrepeated())
    assert driver.ask("mine") is None
    driver.settle()
    driver.meet_another()
    driver.files.requests.clear()
    driver.settle()
    written = [path for kind, path in driver.files.requests if kind == "replace"]
    assert written == [layout.lease_path(ROOT, KEY), layout.driver_path(driver.leasing.holder)]
    driver.leasing.close()


class Hasty(Unrepeated):
    """Threads that wait for no other driver."""

    def pause(self, seconds: float) -> None:
        raise AssertionError("nobody is there to wait for")


@pytest.mark.parametrize("leases", [[None, 5], [{"holder": "stranger"}], "ab"], ids=str)
def test_newcomer_does_not_wait_for_an_invalid_object(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, leases: object
) -> None:
    driver = Driver(tmp_path, threads=Hasty())
    stranger = HeldLeases(holder="stranger", study="other", expires=driver.now + LEASE_SECONDS)
    document = json.loads(HeldLeasesCodec().encode(stranger))
    content = json.dumps({**document, "leases": leases}).encode()
    driver.files.replace(layout.driver_path("stranger"), content)
    for attempt in ("mine", "next"):
        assert driver.ask(attempt) is None
        driver.settle()
    driver.leasing.close()
    (warning,) = caplog.messages
    assert warning == (
        "leases in 'drivers/stranger' are ignored: the file is corrupt, or of another version"
    )


def test_of_two_drivers_one_gets_each_lease(driver: Driver) -> None:
    other = Driver(driver.folder, "other")
    try:
        first = driver.ask("first")
        second = other.ask("second")
        assert first is None
        assert second is not None
        assert second.holder == driver.leasing.holder
    finally:
        other.leasing.close()


def test_lease_that_begins_inside_another_range_is_refused(driver: Driver) -> None:
    ahead = replace(driver.lease("dd" * 16, 0, 80), step=10)
    driver.meet_another(ahead)
    other = driver.ask("inside", driver.lease(KEY, 6, 60))
    assert other is not None
    assert (other.holder, other.start, other.stop) == ("h2", 0, 80)
    driver.settle()
    assert driver.there() is None, "who waits leaves no lease"


@pytest.mark.parametrize("changes", [{}, {"is_done": True, "step": 20}], ids=str)
def test_lease_that_runs_into_another_range_is_refused(
    driver: Driver, changes: dict[str, Any]
) -> None:
    driver.meet_another(replace(driver.lease("dd" * 16, 6, 80), **changes))
    other = driver.ask("before", driver.lease(KEY, 0, 60))
    assert other is not None
    assert (other.start, other.step) == (6, changes.get("step", 6))
    driver.leasing.ask("before", driver.lease(KEY, 0, 60), heeded={other.mark, ("h2", other.key)})
    assert driver.receive() == LeaseAnswered(attempt="before", other=None)


def test_lease_of_a_driver_that_left_is_heeded(driver: Driver) -> None:
    other = Driver(driver.folder, "other")
    assert other.ask("theirs") is None
    other.leasing.saved("theirs", 10, None)
    other.leasing.release("theirs", 10)
    other.leasing.close()
    left = driver.ask("mine")
    assert left is not None
    assert (left.is_done, left.step, left.saved) == (True, 10, (10,))
    driver.leasing.ask("mine", driver.lease(), heeded={left.mark})
    assert driver.receive() == LeaseAnswered(attempt="mine", other=None)


@pytest.mark.parametrize("is_removed", [False, True])
def test_ended_leases_outlive_the_object_of_their_driver(driver: Driver, is_removed: bool) -> None:
    driver.meet_another(replace(driver.lease("dd" * 16, 0, 80), is_done=True, step=80))
    assert driver.ask("elsewhere", driver.lease("ee" * 16, 90, 95)) is None
    if is_removed:
        driver.leases.leave(*driver.leases.drivers(["h2"]))
    else:
        driver.now += LEASE_SECONDS + LEASE_LIMIT_SECONDS + 1
    driver.leasing.beat()
    driver.settle()
    for attempt in ("inside", "again"):
        other = driver.ask(attempt, driver.lease(KEY, 6, 60))
        assert other is not None
        assert (other.is_done, other.step) == (True, 80)
        driver.settle()


def test_objects_of_drivers_that_ended_long_ago_go(driver: Driver) -> None:
    earlier = [Driver(driver.folder, study) for study in ("study", "other")]
    for each, start in zip(earlier, (10, 20), strict=True):
        assert each.ask("past", each.lease(f"{start}" * 16, start, start + 10)) is None
        each.leasing.release("past", 20)
        each.leasing.close()
    driver.now += STALE_SECONDS - 1
    driver.leasing.beat()
    assert driver.ask("mine") is None
    others = {each.leasing.holder for each in earlier}
    assert others < set(driver.leases.holders())
    driver.now += 2
    driver.leasing.beat()
    driver.settle()
    assert driver.leases.holders() == [driver.leasing.holder]


def test_ended_leases_of_a_driver_that_died_go_with_it(driver: Driver) -> None:
    dead = HeldLeases(holder="h2", study="other", expires=driver.now, leases=())
    driver.leases.hold(dead)
    # It died before its object could say that it lists them.
    driver.leases.list_ended(replace(dead, leases=(driver.lease("dd" * 16, 0, 80),)))
    driver.now += STALE_SECONDS + 1
    assert driver.ask("mine") is None
    driver.leasing.beat()
    driver.settle()
    assert driver.leases.holders() == [driver.leasing.holder]
    assert list(driver.files.entries(layout.ENDED)) == []


@pytest.mark.parametrize(
    "changes",
    [{"is_done": True, "step": 6}, {"sequences": {"lr": Constant(0.2).to_json()}}, {"stop": 6}],
    ids=str,
)
def test_lease_beside_another_range_is_granted(driver: Driver, changes: dict[str, Any]) -> None:
    driver.meet_another(replace(driver.lease("dd" * 16, 0, 80), **changes))
    assert driver.ask("inside", driver.lease(KEY, 6, 60)) is None


def test_renewal_of_many_leases_is_one_request(driver: Driver) -> None:
    driver.meet_another()
    for number in range(50):
        assert driver.ask(str(number), driver.lease(f"{number:02}" * 16)) is None
    driver.settle()
    driver.meet_another()
    driver.now += RENEW_SECONDS
    driver.leasing.beat()
    driver.files.requests.clear()
    driver.settle()
    written = [path for kind, path in driver.files.requests if kind != "read"]
    assert written == [layout.driver_path(driver.leasing.holder)]
    driver.now += LEASE_SECONDS - 1
    assert all(
        lease is not None and lease.is_held(driver.now)
        for lease in driver.leases.read(ROOT, [f"{number:02}" * 16 for number in range(50)])
    )


def test_start_does_as_much_beside_more_leases(tmp_path: Path) -> None:
    """Python functions are counted, not seconds: encoding, reading, searching, and all else."""

    def calls(count: int) -> int:
        folder = tmp_path / str(count)
        driver = Driver(folder, threads=Inline())
        there = [driver.lease(f"{at:032x}", 0, 20 + at % 3) for at in range(count)]
        rates = [{"lr": Constant(0.2 + at).to_json()} for at in range(count)]
        theirs = [replace(lease, sequences=rate) for lease, rate in zip(there, rates, strict=True)]
        driver.meet_another(*theirs)
        for at, lease in enumerate(there):
            assert driver.ask(str(at), lease) is None
            driver.leasing.saved(str(at), 5, None)
            if at % 2:
                driver.leasing.release(str(at), 10)
        driver.settle()
        assert driver.ask("before", driver.lease("bb" * 16)) is None
        theirs[-1] = replace(theirs[-1], step=5)
        driver.meet_another(*theirs)
        made = python_calls(lambda: driver.ask("one more"))
        driver.leasing.close()
        return made

    assert calls(30) == calls(300)


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Driver]:
    made = Driver(tmp_path, files=HeldFiles(tmp_path), threads=Unrepeated())
    made.meet_another()
    assert made.ask("first", made.lease("cc" * 16)) is None
    assert isinstance(made.files, HeldFiles)
    yield made
    made.files.release()
    made.leasing.close()


def test_start_makes_three_requests_beside_others(held: Driver) -> None:
    held.files.requests.clear()
    assert held.ask("second") is None
    create = ("create", layout.lease_path(ROOT, KEY))
    announce = ("replace", layout.driver_path(held.leasing.holder))
    assert sorted(held.files.requests) == sorted([create, announce, ("read", "")])


def test_start_waits_for_three_requests_in_a_row(held: Driver) -> None:
    """A renewal is under way: the lease is created meanwhile, and announced after it."""
    files = held.files
    assert isinstance(files, HeldFiles)
    announce = ("replace", layout.driver_path(held.leasing.holder))
    read = ("read", layout.driver_path("h2"))
    files.holds = True
    held.now += RENEW_SECONDS
    held.meet_another()
    held.leasing.beat()
    renewing = threading.Thread(target=held.settle)
    renewing.start()
    files.let_through(read)
    files.expect(announce)
    held.leasing.ask("second", held.lease())
    files.let_through(announce, ("create", layout.lease_path(ROOT, KEY)))
    files.let_through(announce)
    files.let_through(read)
    assert held.receive() == LeaseAnswered(attempt="second", other=None)
    renewing.join()


def test_starts_at_once_share_announcement_and_reading(held: Driver) -> None:
    files = held.files
    assert isinstance(files, HeldFiles)
    files.requests.clear()
    announce = ("replace", layout.driver_path(held.leasing.holder))
    keys = [f"{number}a" * 16 for number in range(9)]
    files.holds = True
    held.leasing.ask(keys[0], held.lease(keys[0]))
    files.expect(announce, ("create", layout.lease_path(ROOT, keys[0])))
    for key in keys[1:]:
        held.leasing.ask(key, held.lease(key))
    files.let_through(announce, *(("create", layout.lease_path(ROOT, key)) for key in keys))
    files.expect(announce, ("read", layout.driver_path("h2")))
    files.release()
    assert {held.receive().attempt for _ in keys} == set(keys)  # type: ignore[union-attr]
    assert [kind for kind, _ in files.requests].count("read") == 2


def test_reading_that_failed_is_made_again(held: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(held.files, "read", lambda *arguments: 1 / 0)
        assert held.ask("second") is None, "without leases training goes on"
    theirs = replace(held.lease(), sequences={"lr": Constant(0.3).to_json()}, stop=20)
    held.meet_another(theirs)
    inside = replace(held.lease("dd" * 16), sequences=theirs.sequences, start=5)
    assert held.ask("third", inside) is not None


def test_the_next_attempt_at_the_same_steps_keeps_the_lease(driver: Driver) -> None:
    driver.meet_another()
    for attempt in ("lost", "next"):
        assert driver.ask(attempt) is None
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
    driver.meet_another()
    driver.ask("mine")
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


def test_failed_store_is_not_tried_again_within_patience(driver: Driver) -> None:
    folder = driver.folder / layout.DRIVERS
    folder.write_text("no folder")
    assert driver.ask("first") is None
    folder.unlink()
    driver.meet_another()
    assert driver.ask("second") is None
    assert driver.there() is None, "many that ask would each wait as long"
    driver.now += STORE_PATIENCE.seconds
    driver.meet_another()
    assert driver.ask("third") is None
    assert driver.there() is not None


def test_failed_store_is_tried_again_after_a_clock_was_set_back(driver: Driver) -> None:
    folder = driver.folder / layout.DRIVERS
    folder.write_text("no folder")
    assert driver.ask("first") is None
    folder.unlink()
    driver.now -= 3600.0
    driver.meet_another()
    assert driver.ask("second") is None
    assert driver.there() is not None


def test_saved_state_that_was_not_written_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(tmp_path, threads=Unrepeated())
    driver.meet_another()
    assert driver.ask("mine") is None
    replace, fails = driver.files.replace, [OSError("no answer")]

    def failing(path: str, content: bytes, **options: bool) -> None:
        if fails and path == layout.lease_path(ROOT, KEY):
            raise fails.pop()
        replace(path, content, **options)

    monkeypatch.setattr(driver.files, "replace", failing)
    driver.leasing.saved("mine", 5, None)
    driver.settle()
    assert not fails
    driver.now += STORE_PATIENCE.seconds
    driver.meet_another()
    driver.settle()
    there = driver.there()
    assert there is not None
    assert there.saved == (5,)
    driver.leasing.close()


def test_jobs_about_the_same_key_are_done_in_turn() -> None:
    threads, gate = LeaseThreads(), threading.Event()
    done: list[str] = []

    def wait() -> None:
        gate.wait(PATIENCE)
        done.append("first")

    first = threads.do("key", wait)
    second = threads.do("key", lambda: done.append("second"), is_question=False)
    threads.do("other", lambda: done.append("other")).result(PATIENCE)
    before = list(done)
    gate.set()
    threads.settle()
    assert before == ["other"]
    assert done == ["other", "first", "second"]
    assert first.done()
    assert second.done()
    threads.close()


def test_start_makes_no_request_of_a_store_that_just_failed(driver: Driver) -> None:
    driver.meet_another()
    assert driver.ask("before") is None
    driver.settle()
    folder = driver.folder / layout.lease_folder(ROOT)
    aside = driver.folder / "aside"
    folder.rename(aside)
    folder.write_text("no folder")
    assert driver.ask("first", driver.lease("bb" * 16)) is None
    driver.settle()
    folder.unlink()
    aside.rename(folder)
    driver.files.requests.clear()
    assert driver.ask("second", driver.lease("cc" * 16)) is None
    assert driver.files.requests == []
    driver.now += STORE_PATIENCE.seconds
    assert driver.ask("third", driver.lease("dd" * 16)) is None
    assert driver.leases.read(ROOT, ["dd" * 16])[0] is not None


def test_many_save_requests_leave_two_files(driver: Driver) -> None:
    driver.meet_another()
    assert driver.ask("mine") is None
    request = SaveRequest(sequences={"lr": Constant(0.1)}, ends=(5,))
    for _ in range(5):
        driver.leasing.want(ROOT, [request] * 700)
        driver.settle()
    files = driver.files.entries(layout.save_request_folder(ROOT))
    names = sorted(entry.path.rpartition("-")[2] for entry in files)
    assert names == ["3", "4"]
    assert len(list(driver.leases.save_requests(ROOT, {}))) == 1400


NINE_MINUTES = 540.0


def by_store_clock(folder: Path, study: str) -> Driver:
    """Return a driver that goes by its own clock, as drivers of users do."""
    driver = Driver(folder, study)
    driver.leasing.close()
    store = CheckpointStore(str(folder))
    driver.leasing = Leasing(store, study, driver.inbox.put)
    return driver


@pytest.mark.parametrize("skew", [-NINE_MINUTES, NINE_MINUTES])
def test_lease_is_seen_by_a_driver_whose_clock_is_wrong(
    skew: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = by_store_clock(tmp_path, "first")
    assert first.ask("a") is None
    real = time.time
    monkeypatch.setattr("time.time", lambda: real() + skew)
    second = by_store_clock(tmp_path, "second")
    other = second.ask("b")
    second.leasing.close()
    first.leasing.close()
    assert other is not None
    assert other.holder == first.leasing.holder


def test_lease_lasts_when_the_clock_is_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (by_store_clock(tmp_path, study) for study in ("first", "second"))
    assert first.ask("a") is None
    taken = first.leases.drivers([first.leasing.holder])[0]
    real = time.time
    monkeypatch.setattr("time.time", lambda: real() - NINE_MINUTES - 120)
    other = second.ask("b")
    renewed = first.leases.drivers([first.leasing.holder])[0]
    second.leasing.close()
    first.leasing.close()
    assert other is not None
    assert other.holder == first.leasing.holder
    assert renewed.expires >= taken.expires

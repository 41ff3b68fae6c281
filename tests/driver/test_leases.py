"""A driver's leases: what it holds stays its own, and what it waits for comes to an end."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dasktune._driver.lease_messages import (
    CommitsFound,
    LeaseAnswered,
    LeaseChanged,
    LeaseMessage,
    SavesRequested,
)
from dasktune._driver.leases import MOST_LISTED, LeaseThread, Leasing
from dasktune._driver.leases import PATIENCE as STORE_PATIENCE
from dasktune._driver.other_leases import Heeded
from dasktune._engine.timeouts import (
    LEASE_LIMIT_SECONDS,
    LEASE_MEET_SECONDS,
    LEASE_POLL_SECONDS,
    LEASE_SECONDS,
    RENEW_SECONDS,
    STALE_SECONDS,
)
from dasktune.errors import InternalError
from dasktune.sequences import Constant
from dasktune.storage import layout
from dasktune.storage.buffers import Buffer
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.files.base import NO_BOUNDS, Entry, Unreadable
from dasktune.storage.files.local import LocalFiles
from dasktune.storage.leases import HeldLeases, Lease, Leases, SaveRequest
from tests.holding import PATIENCE, wait_until

KEY, FIRST = "b1" * 16, "a1" * 16


class CountedFiles(LocalFiles):
    """Files that note each request, and refuse all of them while the store is away."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.requests: list[str] = []
        self.is_away = False

    def _note(self, request: str) -> None:
        self.requests.append(request)
        if self.is_away:
            raise OSError("no answer")

    def replace(self, path: str, content: bytes, *, durable: bool = False) -> None:
        self._note(f"write {path}")
        super().replace(path, content, durable=durable)

    def read(
        self, folder: str, names: Sequence[str], *, most: Mapping[str, int] = NO_BOUNDS
    ) -> list[Buffer | Unreadable | None]:
        self._note(f"read {len(names)}")
        return super().read(folder, names, most=most)

    def entries(self, folder: str) -> Iterator[Entry]:
        self._note(f"list {folder}")
        return super().entries(folder)


class OnDemand:
    """Rounds that a test makes, one at a time."""

    def __init__(self) -> None:
        self.round: Callable[[bool], float] = lambda is_due: 0.0
        self.is_awake = False

    def repeat(self, work: Callable[[bool], float]) -> None:
        self.round = work

    def wake(self) -> None:
        self.is_awake = True

    def stop(self) -> None:
        """Do nothing: no round is under way."""


class Driver:
    """A driver's leasing with a clock that is set by hand."""

    def __init__(self, folder: Path, study: str = "study", holder: str = "h1") -> None:
        self.folder, self.now = folder, 1000.0
        self.inbox: queue.SimpleQueue[LeaseMessage] = queue.SimpleQueue()
        self.leases, self.files = Leases(LocalFiles(folder)), CountedFiles(folder)
        self.rounds = OnDemand()
        self.leasing = Leasing(
            CheckpointStore(str(folder)),
            study,
            self.inbox.put,
            clock=lambda: self.now,
            files=self.files,
            rounds=self.rounds,
            holder=holder,
        )

    def lease(self, key: str = KEY, start: int = 0, stop: int = 10) -> Lease:
        return self.leasing.lease(
            key=key, first=FIRST, sequences={"lr": Constant(0.1)}, start=start, stop=stop
        )

    def ask(
        self, attempt: str, lease: Lease | None = None, heeded: Heeded = ()
    ) -> LeaseAnswered | None:
        """Take a lease, or ask for it in one round; return the answer if it comes."""
        lease = lease or self.lease()
        answer = self.leasing.take(attempt, lease, heeded)
        if answer is None:
            self.leasing.ask(attempt, lease, heeded)
            self.round()
            messages = self.received()
            answer = next((each for each in messages if isinstance(each, LeaseAnswered)), None)
        assert answer is None or answer.attempt == attempt
        return answer

    def other(self, attempt: str, lease: Lease | None = None, heeded: Heeded = ()) -> Lease | None:
        """Return the lease that is in the way of one that is answered."""
        answer = self.ask(attempt, lease, heeded)
        assert answer is not None
        return answer.other

    def round(self, is_due: bool = True) -> float:
        self.leasing.beat()
        return self.rounds.round(is_due)

    def received(self) -> list[LeaseMessage]:
        return [self.inbox.get() for _ in range(self.inbox.qsize())]

    def file(self, holder: str = "h1") -> HeldLeases:
        return self.leases.drivers([holder])[0]

    def meet(self, *leases: Lease, holder: str = "h2", **more: Any) -> None:
        """Write the file of another driver, and read it."""
        own = tuple(replace(lease, holder=holder) for lease in leases)
        there = HeldLeases(
            holder=holder,
            study="other",
            expires=self.now + LEASE_SECONDS,
            leases=own,
            sees=("h1",),
        )
        self.leases.hold(replace(there, **more))
        self.leasing.take("nothing", self.lease(stop=0))
        self.round()


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(tmp_path)


# ------------------------------------------------------------ alone


def test_lone_driver_takes_its_first_lease_at_once(driver: Driver) -> None:
    assert driver.leasing.take("a", driver.lease()) == LeaseAnswered(attempt="a", other=None)
    assert driver.files.requests == ["write drivers/h1", "list drivers"]


def test_first_lease_in_a_memory_store_is_taken_at_once() -> None:
    leasing = Leasing(CheckpointStore("memory://taken-at-once"), "study", print)
    lease = leasing.lease(key=KEY, first=FIRST, sequences={}, start=0, stop=9)
    assert leasing.take("a", lease) == LeaseAnswered(attempt="a", other=None)
    leasing.close()


def test_lone_driver_makes_no_request_for_a_stage(driver: Driver) -> None:
    assert driver.other("first") is None
    driver.files.requests.clear()
    assert driver.other("second", driver.lease("c1" * 16, 10, 20)) is None
    driver.leasing.saved("second", 15)
    driver.leasing.release("second", 20)
    assert (driver.files.requests, driver.rounds.is_awake) == ([], False)
    driver.round()
    assert driver.files.requests == ["list drivers"]


def test_run_that_leases_nothing_writes_nothing(driver: Driver) -> None:
    driver.leasing.close()
    assert driver.files.requests == []


def test_lone_driver_renews_its_file_with_one_request(driver: Driver) -> None:
    assert driver.other("first") is None
    driver.now += RENEW_SECONDS
    driver.files.requests.clear()
    driver.round()
    assert driver.files.requests == ["write drivers/h1", "list drivers"]
    assert driver.file().expires == driver.now + LEASE_SECONDS


def test_driver_whose_loop_hangs_renews_nothing(driver: Driver) -> None:
    assert driver.other("first") is None
    driver.now += LEASE_SECONDS + 1
    driver.files.requests.clear()
    driver.rounds.round(True)
    assert driver.files.requests == ["list drivers"]


def test_lone_driver_that_sees_another_lists_its_leases(driver: Driver) -> None:
    assert driver.other("first") is None
    driver.leasing.saved("first", 5)
    assert driver.other("second", driver.lease("c1" * 16, 10, 20)) is None
    driver.leasing.release("second", 20)
    driver.meet()
    driver.round()
    file = driver.file()
    assert file.sees == ("h2",)
    done, held = file.leases
    assert (done.key, done.is_done, done.step) == ("c1" * 16, True, 20)
    assert (held.key, held.is_done, held.saved) == (KEY, False, (5,))
    assert driver.leasing.take("third", driver.lease("d1" * 16, 30, 40)) is None
    assert driver.leasing.is_shared


def test_driver_takes_leases_at_once_after_others_have_gone(driver: Driver) -> None:
    driver.meet()
    driver.round()
    driver.leases.leave("h2")
    driver.round()
    assert driver.leasing.take("a", driver.lease()) == LeaseAnswered(attempt="a", other=None)
    driver.round()
    assert driver.file().sees == (), "a driver that comes waits until it is seen"


# ------------------------------------------------------------ beside others


def test_start_makes_two_requests_beside_others(driver: Driver) -> None:
    driver.meet()
    driver.round()
    assert driver.leasing.take("a", driver.lease()) is None
    driver.files.requests.clear()
    driver.leasing.ask("a", driver.lease())
    assert driver.rounds.is_awake
    driver.round(is_due=False)
    assert driver.received() == [LeaseAnswered(attempt="a", other=None)]
    assert driver.files.requests == ["write drivers/h1", "read 1"]


def test_starts_at_once_share_a_round(driver: Driver) -> None:
    driver.meet()
    driver.round()
    driver.files.requests.clear()
    for at in range(9):
        driver.leasing.ask(str(at), driver.lease(f"{at}a" * 16, at, at + 1))
    driver.round(is_due=False)
    assert driver.received() == [LeaseAnswered(attempt=str(at), other=None) for at in range(9)]
    assert driver.files.requests == ["write drivers/h1", "read 1"]


def test_lease_is_written_though_the_loop_turns_meanwhile(driver: Driver) -> None:
    driver.meet()
    driver.round()
    driver.leasing.ask("a", driver.lease())
    driver.now += 0.5
    driver.leasing.beat()  # in the middle of the round, which began half a second before
    driver.now -= 0.5
    driver.rounds.round(False)
    assert driver.received() == [LeaseAnswered(attempt="a", other=None)]
    assert KEY in driver.file().by_key


@pytest.mark.parametrize("is_away", [False, True])
def test_driver_that_only_asks_is_not_waited_for_long(driver: Driver, is_away: bool) -> None:
    """It may be dead: this one goes first by its name."""
    driver.meet(replace(driver.lease(), is_asked=True))
    driver.round()
    driver.received()
    driver.files.is_away = is_away
    driver.leasing.ask("a", driver.lease())
    driver.round()
    if not is_away:
        assert driver.received() == [], "it may give way"
        driver.now += LEASE_MEET_SECONDS
        driver.round()
    assert driver.received() == [LeaseAnswered(attempt="a", other=None)]


def test_renewal_of_many_leases_is_one_request(driver: Driver) -> None:
    driver.meet()
    for at in range(50):
        assert driver.other(str(at), driver.lease(f"{at:02}" * 16, at, at + 1)) is None
    driver.round()
    driver.files.requests.clear()
    driver.now += RENEW_SECONDS
    driver.round()
    assert driver.files.requests == ["write drivers/h1", "list drivers", "read 1"]
    assert len(driver.file().leases) == 50


def test_progress_is_shown_to_others(driver: Driver) -> None:
    driver.meet()
    assert driver.other("a") is None
    driver.leasing.plan_saves("a", [4, 6])
    driver.leasing.reached("a", 3)
    driver.leasing.saved("a", 4)
    driver.round()
    (lease,) = driver.file().leases
    assert (lease.step, lease.saved, lease.saves) == (4, (4,), (4, 6))
    driver.leasing.release("a", 5)
    driver.round()
    (lease,) = driver.file().leases
    assert (lease.step, lease.is_done) == (5, True)


def test_of_two_drivers_one_gets_each_lease(driver: Driver) -> None:
    other = Driver(driver.folder, "other", "h2")
    assert driver.other("first") is None
    assert other.leasing.take("second", other.lease()) is None
    assert driver.round() == LEASE_POLL_SECONDS[0], "the other one waits to be seen"
    driver.round()
    answer = other.other("second")
    assert answer is not None
    assert answer.holder == "h1"


def meeting(folder: Path) -> tuple[Driver, Driver]:
    """Return two drivers that see each other."""
    both = Driver(folder), Driver(folder, "other", "h2")
    for each in (*both, *both, *both):
        each.leasing.take("nothing", each.lease(stop=0))
        each.round()
    return both


def test_of_two_that_ask_at_once_the_later_name_gives_way(tmp_path: Path) -> None:
    first, second = meeting(tmp_path)
    for each in (first, second):
        each.leasing.ask("a", each.lease())
        each.leases.hold(each.leasing._file(each.now + LEASE_SECONDS))
    first.round()
    first.leasing.ask("next", first.lease("cc" * 16, 20, 30))
    first.round()
    assert first.received() == [], "answers come in the order of the questions"
    second.round()
    (refused,) = second.received()
    assert isinstance(refused, LeaseAnswered)
    assert refused.other is not None
    assert (refused.other.holder, refused.other.is_asked) == ("h1", True)
    second.round()
    first.round()
    granted = [LeaseAnswered(attempt=name, other=None) for name in ("a", "next")]
    assert first.received() == granted


def test_asked_lease_that_is_granted_to_the_later_name_stays(tmp_path: Path) -> None:
    first, second = meeting(tmp_path)
    assert second.other("a") is None, "it has read the files before the other one asks"
    refused = first.ask("a")
    assert refused is None
    second.round()
    first.round()
    (answer,) = first.received()
    assert isinstance(answer, LeaseAnswered)
    assert answer.other is not None
    assert (answer.other.holder, answer.other.is_asked) == ("h2", False)


def test_newcomer_waits_until_the_others_see_it(driver: Driver) -> None:
    driver.meet(sees=())
    assert driver.ask("a") is None
    assert driver.round() == LEASE_POLL_SECONDS[0]
    driver.meet()
    assert driver.received() == [LeaseAnswered(attempt="a", other=None)]


def test_newcomer_does_not_wait_long_for_a_silent_driver(driver: Driver) -> None:
    driver.meet(sees=())
    driver.now += LEASE_MEET_SECONDS
    assert driver.other("a") is None


def test_newcomer_does_not_wait_for_an_invalid_file(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    driver.files.replace(layout.driver_path("stranger"), b"[]")
    assert driver.other("a") is None
    driver.round()
    (warning,) = caplog.messages
    assert warning.startswith("leases in 'drivers/stranger' are ignored")


def test_lease_that_begins_inside_another_range_is_refused(driver: Driver) -> None:
    ahead = replace(driver.lease("dd" * 16, 0, 80), step=10)
    driver.meet(ahead)
    assert driver.other("inside", driver.lease(KEY, 6, 60)) == replace(ahead, holder="h2")
    driver.round()
    assert driver.file().leases == (), "a driver that waits has no lease"


@pytest.mark.parametrize("changes", [{}, {"is_done": True, "step": 20}], ids=str)
def test_lease_that_runs_into_another_range_is_refused(
    driver: Driver, changes: Mapping[str, Any]
) -> None:
    driver.meet(replace(driver.lease("dd" * 16, 6, 80), **changes))
    other = driver.other("before", driver.lease(KEY, 0, 60))
    assert other is not None
    assert (other.start, other.step) == (6, changes.get("step", 6))
    assert driver.other("again", driver.lease(KEY, 0, 60), {other.mark}) is None
    assert driver.other("past", driver.lease(KEY, 0, 60), {other.name}) is None


@pytest.mark.parametrize(
    "changes",
    [{"is_done": True, "step": 6}, {"sequences": {"lr": Constant(0.2)}}, {"stop": 6}],
    ids=str,
)
def test_lease_beside_another_range_is_granted(driver: Driver, changes: Mapping[str, Any]) -> None:
    driver.meet(replace(driver.lease("dd" * 16, 0, 80), **changes))
    assert driver.other("inside", driver.lease(KEY, 6, 60)) is None


def test_lease_without_steps_is_always_granted_and_not_held(driver: Driver) -> None:
    driver.meet(driver.lease("dd" * 16, 0, 80))
    assert driver.other("nothing", driver.lease(KEY, 6, 6)) is None
    driver.round()
    assert driver.file().leases == ()


def test_next_driver_of_a_study_takes_its_leases_over(driver: Driver) -> None:
    driver.meet(driver.lease("dd" * 16, 0, 80), study="study")
    assert driver.leasing.take("a", driver.lease()) == LeaseAnswered(attempt="a", other=None)


def test_the_next_attempt_at_the_same_steps_keeps_the_lease(driver: Driver) -> None:
    driver.meet()
    for attempt in ("lost", "next"):
        assert driver.other(attempt) is None
    driver.leasing.release("lost", 4)
    driver.round()
    (held,) = driver.file().leases
    assert not held.is_done
    driver.leasing.release("next", 10)
    driver.round()
    (done,) = driver.file().leases
    assert (done.is_done, done.step) == (True, 10)


# ------------------------------------------------------------ drivers that have ended


def test_lease_of_a_driver_that_left_is_heeded(driver: Driver) -> None:
    other = Driver(driver.folder, "other", "h2")
    assert other.other("theirs") is None
    other.leasing.saved("theirs", 10)
    other.leasing.close()
    left = driver.other("mine")
    assert left is not None
    assert (left.is_done, left.step, left.saved) == (True, 10, (10,))
    assert driver.leasing.is_over(left)
    assert driver.leasing.take("mine", driver.lease(), {left.mark}) == LeaseAnswered(
        attempt="mine", other=None
    )


def test_driver_that_has_trained_nothing_leaves_no_file(driver: Driver) -> None:
    assert driver.other("a") is None
    driver.leasing.want([SaveRequest(root="aa", sequences={"lr": Constant(0.1)}, ends=(5,))])
    driver.meet()
    driver.round()
    assert [path.name for path in (driver.folder / layout.SAVE_REQUESTS).iterdir()] == ["h1"]
    driver.leasing.close()
    assert driver.leases.holders() == ["h2"]
    assert list(driver.files.entries(layout.SAVE_REQUESTS)) == []


def test_latest_ended_leases_are_listed_while_their_driver_lives(driver: Driver) -> None:
    for start in range(MOST_LISTED + 2):
        assert driver.other("a", driver.lease(f"{start:032x}", start, start + 1)) is None
        driver.leasing.release("a", start + 1)
    for _ in range(2):
        driver.now += 2 * LEASE_LIMIT_SECONDS
        driver.meet()
        listed = driver.file().leases
        assert [lease.start for lease in listed] == [*range(2, MOST_LISTED + 2)]
        assert all(lease.is_done for lease in listed)


@pytest.mark.parametrize("is_removed", [False, True])
def test_ended_leases_outlive_the_file_of_their_driver(driver: Driver, is_removed: bool) -> None:
    driver.meet(replace(driver.lease("dd" * 16, 0, 80), is_done=True, step=80))
    if is_removed:
        driver.leases.leave("h2")
    else:
        driver.now += LEASE_SECONDS + LEASE_LIMIT_SECONDS + 1
    for attempt in ("inside", "again"):
        driver.round()
        other = driver.other(attempt, driver.lease(KEY, 6, 60))
        assert other is not None
        assert (other.is_done, other.step) == (True, 80)


@pytest.mark.parametrize("is_lost", [True, False])
def test_steps_of_a_driver_long_dead_are_found_once(driver: Driver, is_lost: bool) -> None:
    """Its attempt trained 8 steps and saved 4: another driver must count the rest as repeated."""
    dead = Driver(driver.folder, "other", "h2")
    assert dead.other("theirs") is None
    dead.leasing.saved("theirs", 4)
    dead.leasing.reached("theirs", 8)
    if is_lost:
        dead.leasing.release("theirs", 8)
    dead.now += RENEW_SECONDS
    dead.round()
    driver.now = dead.now + LEASE_SECONDS + 2 * LEASE_LIMIT_SECONDS
    other = driver.other("mine")
    assert other is not None
    assert (other.is_done, other.step, other.saved) == (True, 8, (4,))
    assert driver.leasing.is_over(other)
    assert driver.other("mine", heeded={other.mark}) is None
    driver.now += STALE_SECONDS
    driver.round()
    assert driver.leases.holders() == ["h1"]
    assert driver.other("again", driver.lease("c1" * 16, 2, 10)) == other


def test_files_of_drivers_that_ended_long_ago_go(driver: Driver) -> None:
    for study, holder in (("study", "h2"), ("other", "h3")):
        driver.meet(holder=holder, study=study, expires=driver.now)
    driver.now += STALE_SECONDS
    driver.round()
    assert sorted(driver.leases.holders()) == ["h1", "h2", "h3"]
    driver.now += 1
    driver.round()
    assert driver.leases.holders() == ["h1"]


# ------------------------------------------------------------ watching, looking up, asking


def test_changes_of_a_watched_lease_are_messages(driver: Driver) -> None:
    there = driver.lease("dd" * 16, 0, 80)
    driver.meet(there)
    other = driver.other("inside", driver.lease(KEY, 6, 60))
    assert other is not None
    driver.leasing.watch("inside", other)
    driver.round()
    assert driver.received() == []
    later = replace(other, step=20, saved=(8,))
    driver.meet(later)
    assert driver.received() == [LeaseChanged(attempt="inside", lease=later)]
    driver.meet()
    assert driver.received() == [LeaseChanged(attempt="inside", lease=later.ended())]
    driver.meet(there)
    assert driver.received() == [], "it is watched no longer"
    driver.leasing.watch("inside", other)
    driver.leasing.ignore("inside")
    driver.meet()
    assert driver.received() == []


def test_watched_lease_expires_while_store_is_away(driver: Driver) -> None:
    driver.meet(driver.lease("dd" * 16, 0, 80))
    other = driver.other("inside", driver.lease(KEY, 6, 60))
    assert other is not None
    driver.leasing.watch("inside", other)
    driver.files.is_away = True
    driver.now += LEASE_SECONDS - 1
    driver.round()
    assert driver.received() == []
    driver.now += 2
    driver.round()
    assert driver.received() == [LeaseChanged(attempt="inside", lease=other.ended())]
    assert driver.leasing.is_over(other)


def test_look_ups_are_answered_whatever_fails(driver: Driver) -> None:
    assert driver.other("a") is None
    driver.leasing.look_up("odd", {1: 7})  # type: ignore[dict-item]
    driver.leasing.look_up("right", {2: "ab" * 16})
    driver.round()
    found = [CommitsFound(attempt=name, commits={}) for name in ("odd", "right")]
    assert driver.received() == found


def test_save_requests_of_others_are_received_once(driver: Driver) -> None:
    other = Driver(driver.folder, "other", "h2")
    wanted = [
        SaveRequest(root="aa", sequences={"lr": Constant(0.1)}, ends=(at,)) for at in (5, 6, 7)
    ]
    other.leasing.want(wanted[:2])
    for each in (driver, other, other, driver):
        each.leasing.take("nothing", each.lease(stop=0))
        each.round()
    assert driver.received() == [SavesRequested(requests=tuple(wanted[:2]))]
    other.leasing.want(wanted[2:])
    assert other.rounds.is_awake
    for each in (other, driver, driver):
        each.round()
    assert driver.received() == [SavesRequested(requests=tuple(wanted[2:]))]


def test_file_of_many_save_requests_has_the_latest(driver: Driver) -> None:
    driver.meet()
    request = SaveRequest(root="aa", sequences={"lr": Constant(0.1)}, ends=(5,))
    driver.leasing.want([request] * 700)
    driver.leasing.want([request] * 700)
    driver.round()
    assert driver.file().requests == 1400
    assert len(driver.leases.save_requests("h1", 0)) == MOST_LISTED


# ------------------------------------------------------------ a store that fails


def test_failed_store_is_not_tried_again_within_patience(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    driver.meet()
    driver.files.is_away = True
    assert driver.other("first") is None, "without leases training goes on"
    driver.files.is_away = False
    driver.files.requests.clear()
    assert driver.leasing.take("second", driver.lease("c1" * 16, 10, 20)) is not None
    driver.round()
    assert driver.files.requests == [], "many that ask would each wait as long"
    driver.now += STORE_PATIENCE.seconds
    driver.round()
    assert [lease.key for lease in driver.file().leases] == [KEY, "c1" * 16]
    (warning,) = caplog.messages
    assert warning.startswith("leases cannot be used")


def test_failed_store_is_tried_again_after_a_clock_was_set_back(driver: Driver) -> None:
    driver.files.is_away = True
    assert driver.other("first") is None
    driver.files.is_away = False
    driver.now -= 3600.0
    driver.round()
    assert [lease.key for lease in driver.file().leases] == [KEY]


def test_first_lease_is_taken_while_the_store_is_away(driver: Driver) -> None:
    driver.files.is_away = True
    assert driver.leasing.take("a", driver.lease()) == LeaseAnswered(attempt="a", other=None)
    driver.leasing.close()


def test_round_that_fails_in_any_way_is_made_again(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.meet(driver.lease("dd" * 16, 0, 80))
    with monkeypatch.context() as patch:
        patch.setattr(driver.files, "read", lambda *arguments: 1 / 0)
        assert driver.other("inside", driver.lease(KEY, 6, 60)) is not None, "as read before"
    driver.now += STORE_PATIENCE.seconds
    driver.meet()
    assert driver.other("again", driver.lease(KEY, 6, 60)) is None


# ------------------------------------------------------------ the thread, and the store's clock


def test_thread_makes_rounds_until_it_is_stopped() -> None:
    rounds: queue.SimpleQueue[bool] = queue.SimpleQueue()
    thread = LeaseThread()

    def work(is_due: bool) -> float:
        rounds.put(is_due)
        return 0.0 if is_due else 1000.0

    thread.repeat(work)
    assert [rounds.get(timeout=PATIENCE) for _ in range(3)] == [True] * 3
    thread.stop()
    count = rounds.qsize()
    thread.wake()
    assert rounds.qsize() == count


def test_thread_that_is_woken_makes_a_round_that_is_not_due() -> None:
    rounds: queue.SimpleQueue[bool] = queue.SimpleQueue()
    thread = LeaseThread()

    def work(is_due: bool) -> float:
        rounds.put(is_due)
        return 1000.0

    thread.repeat(work)
    while not rounds.get(timeout=PATIENCE):
        pass
    thread.wake()
    assert rounds.get(timeout=PATIENCE) is False
    thread.stop()


NINE_MINUTES = 540.0


class RealDriver:
    """A driver that goes by the store's clock and has a thread, as drivers of users do."""

    def __init__(self, folder: Path, study: str) -> None:
        self.inbox: queue.SimpleQueue[LeaseMessage] = queue.SimpleQueue()
        self.leasing = Leasing(CheckpointStore(str(folder)), study, self.inbox.put)
        self.leases = Leases(LocalFiles(folder))

    def other(self, attempt: str) -> Lease | None:
        lease = self.leasing.lease(
            key=KEY, first=FIRST, sequences={"lr": Constant(0.1)}, start=0, stop=10
        )
        answer: LeaseMessage | None = self.leasing.take(attempt, lease)
        if answer is None:
            self.leasing.ask(attempt, lease)
            answer = self.inbox.get(timeout=PATIENCE)
        assert isinstance(answer, LeaseAnswered)
        return answer.other


@pytest.mark.parametrize("skew", [-NINE_MINUTES, NINE_MINUTES])
def test_lease_is_seen_by_a_driver_whose_clock_is_wrong(
    skew: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = RealDriver(tmp_path, "first")
    assert first.other("a") is None
    real = time.time
    monkeypatch.setattr("time.time", lambda: real() + skew)
    second = RealDriver(tmp_path, "second")
    other = second.other("b")
    second.leasing.close()
    first.leasing.close()
    assert other is not None
    assert other.holder == first.leasing.holder


def test_lease_lasts_when_the_clock_is_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (RealDriver(tmp_path, study) for study in ("first", "second"))
    assert first.other("a") is None
    taken = first.leases.drivers([first.leasing.holder])[0]
    real = time.time
    monkeypatch.setattr("time.time", lambda: real() - NINE_MINUTES - 120)
    other = second.other("b")
    wait_until(lambda: first.leases.drivers([first.leasing.holder])[0].sees != ())
    renewed = first.leases.drivers([first.leasing.holder])[0]
    second.leasing.close()
    first.leasing.close()
    assert other is not None
    assert other.holder == first.leasing.holder
    assert renewed.expires >= taken.expires


def test_thread_goes_on_after_a_round_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dasktune._driver.leases.LEASE_POLL_SECONDS", (0.0, 0.0))
    rounds = iter([InternalError("odd"), None])
    done = threading.Event()

    def work(is_due: bool) -> float:
        error = next(rounds, None)
        if error is not None:
            raise error
        done.set()
        return 1.0

    thread = LeaseThread()
    thread.repeat(work)
    assert done.wait(PATIENCE)
    thread.stop()

"""The requests that leases make to a real store, counted between the driver and the store."""

from __future__ import annotations

import queue
import re
from collections.abc import Callable, Iterator

import pytest

from dasktune._driver.lease_messages import LeaseAnswered, LeaseMessage
from dasktune._driver.leases import Leasing
from dasktune._engine.timeouts import RENEW_SECONDS
from dasktune.sequences import Constant
from dasktune.storage import layout
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.files.objects import open_files
from dasktune.storage.leases import HeldLeases, Leases
from tests.services import S3Server
from tests.storage.proxy import Proxy, Request

pytestmark = pytest.mark.s3


class OnDemand:
    """Rounds that a test makes, one at a time."""

    def __init__(self) -> None:
        self.round: Callable[[bool], float] = lambda is_due: 0.0

    def repeat(self, work: Callable[[bool], float]) -> None:
        """Keep the round."""
        self.round = work

    def wake(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing: no round is under way."""


class Driver:
    """A driver's leasing on S3 with a clock that is set by hand."""

    def __init__(self, url: str, proxy: Proxy) -> None:
        self._proxy, self.now = proxy, 1000.0
        self.inbox: queue.SimpleQueue[LeaseMessage] = queue.SimpleQueue()
        self.rounds = OnDemand()
        self.leasing = Leasing(
            CheckpointStore(url),
            "study",
            self.inbox.put,
            clock=lambda: self.now,
            rounds=self.rounds,
        )
        self.others = Leases(open_files(url))

    def start(self, number: int) -> None:
        lease = self.leasing.lease(
            key=f"{number:032x}",
            first=f"{number:032x}",
            sequences={"lr": Constant(float(number))},
            start=0,
            stop=9,
        )
        answer: LeaseMessage | None = self.leasing.take(str(number), lease)
        if answer is None:
            self.leasing.ask(str(number), lease)
            self.rounds.round(False)
            answer = self.inbox.get(timeout=60)
        assert answer == LeaseAnswered(attempt=str(number), other=None)

    def look(self) -> None:
        self.leasing.beat()
        self.rounds.round(True)

    def meet_another(self) -> None:
        self.others.hold(
            HeldLeases(
                holder="h2", study="other", expires=self.now + 60, sees=(self.leasing.holder,)
            )
        )

    def requests(self, *work: Callable[[], None]) -> list[str]:
        """Return the requests of some work: method and folder, in order of the alphabet."""
        self._proxy.requests.clear()
        for each in work:
            each()
        return sorted(map(_text_of, self._proxy.requests))


def _text_of(request: Request) -> str:
    folders = (layout.DRIVERS, layout.SAVE_REQUESTS)
    found = re.search("|".join(folders), request.target)
    method = "LIST" if request.is_listing else request.method
    return f"{method} {found[0] if found else request.target}"


@pytest.fixture
def driver(moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    from s3fs import S3FileSystem

    with Proxy(moto.port) as proxy:
        for name, value in moto.environment(proxy.port).items():
            monkeypatch.setenv(name, value)
        S3FileSystem.clear_instance_cache()
        made = Driver(f"s3://{moto.create_bucket()}/store", proxy)
        yield made
        made.leasing.close()
    S3FileSystem.clear_instance_cache()


def test_lone_driver_makes_no_request_for_a_stage(driver: Driver) -> None:
    assert driver.requests(lambda: driver.start(0)) == ["LIST drivers", "PUT drivers"]
    of_a_stage = driver.requests(
        lambda: driver.start(1),
        lambda: driver.leasing.saved("1", 5),
        lambda: driver.leasing.release("1", 9),
    )
    assert of_a_stage == []


def test_renewal_of_a_lone_driver_is_one_request(driver: Driver) -> None:
    for number in range(20):
        driver.start(number)
    assert driver.requests(driver.look) == ["LIST drivers"]
    driver.now += RENEW_SECONDS
    assert driver.requests(driver.look) == ["LIST drivers", "PUT drivers"]


def test_start_beside_another_makes_two_requests(driver: Driver) -> None:
    driver.meet_another()
    for number in range(20):
        driver.start(number)
    assert driver.requests(lambda: driver.start(20)) == ["GET drivers", "PUT drivers"]


def test_flat_folder_is_listed_with_one_request(driver: Driver) -> None:
    driver.meet_another()
    driver.start(0)
    holders: list[str] = []
    listing = driver.requests(lambda: holders.extend(driver.others.holders()))
    assert listing == ["LIST drivers"]
    assert sorted(holders) == sorted(["h2", driver.leasing.holder])

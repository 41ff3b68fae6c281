"""The order of the messages that one turn of the driver handles."""

from __future__ import annotations

from dasktune._driver.inbox import joins_together
from dasktune._driver.lost_workers import LookUpEnded
from dasktune._worker.messages import LeaveAnnounced
from dasktune.graph.events import Granted, SaveMissed, Tick, WorkerJoined, WorkerLost, WorkersJoined

MISSED = SaveMissed(attempt="0-a", step=1)


def joined(worker: str) -> WorkerJoined:
    return WorkerJoined(worker=worker)


def together(*workers: str) -> WorkersJoined:
    return WorkersJoined(workers=tuple(map(joined, workers)))


def test_joins_of_one_turn_come_first_and_together() -> None:
    messages = [MISSED, joined("a"), Tick(), joined("b")]
    assert joins_together(messages) == [together("a", "b"), MISSED, Tick()]


def test_lone_join_is_an_event_of_its_turn() -> None:
    assert joins_together([joined("a")]) == [together("a")]
    assert joins_together([MISSED]) == [MISSED]


def test_join_stays_behind_the_loss_of_its_address() -> None:
    lost = WorkerLost(worker="a")
    messages = [joined("b"), MISSED, lost, Tick(), joined("a"), joined("c")]
    assert joins_together(messages) == [together("b"), MISSED, lost, together("a", "c"), Tick()]


def test_join_stays_in_order_with_what_is_said_of_workers() -> None:
    for message in (
        LeaveAnnounced(worker="a"),
        LookUpEnded(worker="a"),
        Granted(workers=frozenset({"b"})),
    ):
        assert joins_together([joined("a"), message]) == [together("a"), message]
        assert joins_together([message, joined("a")]) == [message, together("a")]

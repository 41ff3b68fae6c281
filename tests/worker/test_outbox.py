"""The outbox of a worker: few messages, in order, and none that waits for long."""

from __future__ import annotations

from collections.abc import Callable, Collection

import pytest

from dasktune._engine.timeouts import OUTBOX_SECONDS
from dasktune._worker.messages import StageEnded, StageMessage, StageStarted
from dasktune._worker.outbox import Outbox

START, END = (
    StageStarted(attempt="b", at=0.0),
    StageEnded(attempt="a", step=1, status="trained", at=0.0),
)


class Sender:
    """An outbox with a clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sent: list[list[StageMessage]] = []
        self.alarms: list[tuple[float, Callable[[], None]]] = []
        self.outbox = Outbox(self._send, self._later, lambda: self.now)

    def _send(self, messages: Collection[StageMessage]) -> None:
        self.sent.append(list(messages))

    def _later(self, seconds: float, work: Callable[[], None]) -> None:
        self.alarms.append((self.now + seconds, work))

    def ring(self) -> None:
        """Set the clock to the next alarm, and let the alarm ring."""
        self.now, work = self.alarms.pop(0)
        work()


@pytest.fixture
def sender() -> Sender:
    return Sender()


def test_message_that_may_wait_goes_ahead_of_the_next(sender: Sender) -> None:
    sender.outbox.put([END], may_wait=True)
    assert sender.sent == []
    sender.outbox.put([START])
    assert sender.sent == [[END, START]]


def test_message_without_a_next_one_is_sent_in_time(sender: Sender) -> None:
    sender.outbox.put([END], may_wait=True)
    sender.ring()
    assert sender.now == OUTBOX_SECONDS
    assert sender.sent == [[END]]
    assert sender.alarms == []


def test_later_message_waits_for_an_alarm_of_its_own(sender: Sender) -> None:
    sender.outbox.put([END], may_wait=True)
    sender.outbox.put([START])
    sender.now = OUTBOX_SECONDS / 2
    sender.outbox.put([END], may_wait=True)
    sender.ring()
    assert sender.sent == [[END, START]]
    sender.ring()
    assert sender.now == pytest.approx(1.5 * OUTBOX_SECONDS)
    assert sender.sent == [[END, START], [END]]


def test_flushed_outbox_is_empty(sender: Sender) -> None:
    sender.outbox.put([END], may_wait=True)
    sender.outbox.flush()
    sender.outbox.flush()
    assert sender.sent == [[END]]


def test_start_waits_only_if_no_end_does(sender: Sender) -> None:
    sender.outbox.put([START], may_wait=True)
    assert sender.sent == []
    sender.outbox.put([END], may_wait=True)
    assert sender.sent == [], "one message for a small stage"
    sender.outbox.put([START], may_wait=True)
    assert sender.sent == [[START, END, START]]

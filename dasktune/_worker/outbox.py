"""The outbox of a worker: messages that may wait go with the next one that may not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection

from dasktune._engine.timeouts import OUTBOX_SECONDS
from dasktune._worker.messages import StageEnded, StageMessage, StageStarted

Later = Callable[[float, Callable[[], None]], None]
"""Calls a function after so many seconds; may itself be called from any thread."""


class Outbox:
    """Keeps the messages of a worker in order, and sends them together where that delays nobody.

    `send` returns at once; `clock` gives seconds that only grow.

    Examples
    --------
    >>> from dasktune._worker.messages import StageEnded, StageStarted
    >>> sent, alarms = [], []
    >>> outbox = Outbox(sent.append, lambda _, alarm: alarms.append(alarm), lambda: 0.0)
    >>> outbox.put([StageEnded(attempt="a", step=1, status="trained", at=0.0)], may_wait=True)
    >>> outbox.put([StageStarted(attempt="b", at=0.0)])
    >>> [message.attempt for message in sent[0]], len(sent), len(alarms)
    (['a', 'b'], 1, 1)
    """

    def __init__(
        self,
        send: Callable[[Collection[StageMessage]], None],
        later: Later,
        clock: Callable[[], float],
    ) -> None:
        self._send = send
        self._later = later
        self._clock = clock
        self._lock = threading.Lock()  # held while messages are sent: they stay in order
        self._messages: list[StageMessage] = []
        self._since = 0.0
        self._is_set = False

    def put(self, messages: Collection[StageMessage], *, may_wait: bool = False) -> None:
        """Send messages, with those that waited; or keep them for `OUTBOX_SECONDS` at most.

        A stage may end this process, and the driver takes it for the one after the last whose end
        it knows. So a start does not wait together with an end before it.
        """
        with self._lock:
            may_wait &= not (_any(StageEnded, self._messages) and _any(StageStarted, messages))
            if not self._messages:
                self._since = self._clock()
            self._messages += messages
            if not may_wait:
                self._send_all()
            elif not self._is_set:
                self._set_alarm(OUTBOX_SECONDS)

    def flush(self) -> None:
        """Send the messages that wait."""
        with self._lock:
            self._send_all()

    def _set_alarm(self, seconds: float) -> None:
        self._is_set = True
        self._later(seconds, self._ring)

    def _ring(self) -> None:
        """Send what has waited for long; what came since then waits for another alarm."""
        with self._lock:
            self._is_set = False
            left = self._since + OUTBOX_SECONDS - self._clock()
            if self._messages and left > 0:
                self._set_alarm(left)
            else:
                self._send_all()

    def _send_all(self) -> None:
        messages, self._messages = self._messages, []
        if messages:
            self._send(messages)


def _any(kind: type[StageMessage], messages: Collection[StageMessage]) -> bool:
    return any(isinstance(message, kind) for message in messages)

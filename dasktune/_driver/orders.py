"""The orders of a run: none is given out before the decisions that it follows from are durable."""

from __future__ import annotations

from dasktune._driver.recorder import Recorder
from dasktune._engine.outcome import Order, Outcome, with_save_points
from dasktune._engine.timeouts import RECORD_FLUSH_SECONDS


class PendingOrders:
    """Gathers outcomes of the engine; gives out their orders once their records are written.

    Records that hold no decision may wait for `flush_seconds`, and so be written together: after a
    crash the store has what they say.
    """

    def __init__(self, recorder: Recorder, flush_seconds: float = RECORD_FLUSH_SECONDS) -> None:
        self._recorder = recorder
        self._flush_seconds = flush_seconds
        self._flushed_at = 0.0
        self._orders: list[Order] = []
        self._outcomes: list[Outcome] = []
        self._safe: list[Outcome] = []

    def add(self, outcome: Outcome) -> None:
        """Add an outcome."""
        self._recorder.outcome(outcome)
        self._orders.extend(outcome.orders)
        if outcome.reports or outcome.trials:
            self._outcomes.append(outcome)

    def take(self, now: float) -> list[Order]:
        """Return all orders that were gathered; what they follow from is durable.

        Raises a `StorageError` if the records cannot be written; the orders stay.
        """
        if self._recorder.holds_decisions or now - self._flushed_at > self._flush_seconds:
            self.flush()
            self._flushed_at = now
        orders, self._orders = self._orders, []
        return with_save_points(orders)

    def flush(self) -> None:
        """Write all records now, or raise a `StorageError`."""
        self._recorder.flush()
        outcomes, self._outcomes = self._outcomes, []
        if not self._recorder.is_broken:
            self._safe += outcomes

    def take_safe(self) -> list[Outcome]:
        """Return the outcomes with reports or trials that became durable since the last call."""
        safe, self._safe = self._safe, []
        return safe

    def drop(self) -> None:
        """Drop all orders: what they follow from cannot be written."""
        self._orders.clear()

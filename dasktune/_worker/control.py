"""The orders to what a worker trains: where to save, and when to stop."""

from __future__ import annotations

import threading
import time

from dasktune.types import Step


class Control:
    """The orders of other threads to an attempt; they may come before it starts."""

    def __init__(self) -> None:
        #: Whether nobody waits for the attempt any more. The event loop sets it, once.
        self.is_abandoned = False
        #: When the attempt was told to end at its next step (`time.monotonic`); None if it was not.
        #: Set once, under the lock; read without it.
        self.ordered: float | None = None
        #: The lock of the attributes below, which the event loop and the thread that trains change.
        self._lock = threading.Lock()
        self._saves: set[Step] = set()
        self._stop_at: Step | None = None
        self._position = -1

    def save_at(self, step: Step) -> bool:
        """Ask for a save at `step`; return whether the attempt had not passed it yet."""
        with self._lock:
            self._saves.add(step)
            return self._position < step

    def stop(self, at: Step | None) -> None:
        """Ask the attempt to end at step `at`, or at its next step if None."""
        with self._lock:
            at = 0 if at is None else at
            self._stop_at = at if self._stop_at is None else min(at, self._stop_at)
            if self.ordered is None and at <= self._position + 1:
                self.ordered = time.monotonic()

    def passes(self, step: Step) -> tuple[bool, bool]:
        """Record that `step` was reached; return whether to save and whether to stop."""
        with self._lock:
            self._position = step
            return step in self._saves, self._stop_at is not None and step >= self._stop_at

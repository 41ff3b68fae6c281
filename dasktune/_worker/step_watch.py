"""The watch over the steps of a worker: which of them takes too long."""

from __future__ import annotations

import time


class StepWatch:
    """The time at which the trainer began what it does now."""

    def __init__(self) -> None:
        #: When that was (`time.monotonic`); None while the trainer does nothing. The thread that
        #: trains writes it, the event loop reads it: once for each decision, so it needs no lock.
        self.began: float | None = None
        #: When the step that was looked at last began, and how long it could not go on. For the
        #: event loop alone.
        self.still = 0.0, 0.0

    def begin(self) -> float:
        """Note that the trainer begins something now; return the time (`time.monotonic`)."""
        self.began = began = time.monotonic()
        return began

    def end(self) -> None:
        """Note that the trainer does nothing: what follows may wait for the store."""
        self.began = None

    def is_overdue(self, seconds: float, stood_still: float) -> bool:
        """Return whether a step takes longer than so many seconds.

        `stood_still` are those since the last call in which the whole process did nothing.
        """
        began = self.began
        if began is None:
            return False
        step, still = self.still
        still = stood_still + (still if step == began else 0.0)
        self.still = began, still
        return time.monotonic() - began - still > seconds

"""The attempt that is due first, found without looking at all attempts after each event."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush

from dasktune.graph.attempts import Attempt

_FEW = 64
"""This many outdated entries may always stay in the heap."""


class Ends:
    """The attempts that run, and the time at which each is due.

    If an attempt becomes due earlier, `watch` must be called. If it becomes due later, or never,
    no call is needed: `first_due` asks again.

    Parameters
    ----------
    due_at
        Returns the time at which an attempt is due, given the present time; infinity for never.
    """

    def __init__(self, due_at: Callable[[Attempt, float], float]) -> None:
        self._due_at = due_at
        self._heap: list[tuple[float, int, Attempt]] = []
        self._dues: dict[str, float] = {}
        self._count = 0

    def clear(self) -> None:
        """Forget all attempts."""
        self._heap.clear()
        self._dues.clear()

    def watch(self, attempt: Attempt, now: float) -> None:
        """Add an attempt, or note that it is due earlier than before."""
        due = self._due_at(attempt, now)
        if due < self._dues.get(attempt.id, math.inf):
            self._push(attempt, due)

    def first_due(self, now: float) -> float | None:
        """Return the time at which the first attempt is due, if there is an attempt."""
        while self._heap:
            known, _, attempt = self._heap[0]
            if self._dues.get(attempt.id) != known:
                heappop(self._heap)  # outdated
                continue
            due = self._due_at(attempt, now)
            if due <= known:
                return known
            heappop(self._heap)
            del self._dues[attempt.id]
            if due < math.inf:
                self._push(attempt, due)
        return None

    def _push(self, attempt: Attempt, due: float) -> None:
        self._count += 1
        self._dues[attempt.id] = due
        heappush(self._heap, (due, self._count, attempt))
        if len(self._heap) > 2 * len(self._dues) + _FEW:
            # An attempt that is faster than expected is due earlier with each message.
            self._heap = [each for each in self._heap if self._dues.get(each[2].id) == each[0]]
            heapify(self._heap)

    def take_due(self, now: float) -> Iterator[Attempt]:
        """Remove and yield the attempts that are due."""
        while (due := self.first_due(now)) is not None and due <= now:
            _, _, attempt = heappop(self._heap)
            del self._dues[attempt.id]
            yield attempt

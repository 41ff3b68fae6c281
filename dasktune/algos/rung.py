"""One asynchronous rung: which of the trials that have reported are among the best."""

from __future__ import annotations

import math
from collections.abc import Iterable
from heapq import heappop, heappush, heappushpop


class Rung:
    """Ranks the trials that have reported, and names a trial to promote with each arrival.

    The top are the ``floor(n / eta)`` smallest losses of the n that have reported; of equal
    losses the earlier. A trial is promoted when it enters the top for the first time, which
    is at most one trial at each arrival: either the top grows by one place, or the newcomer
    takes a place in it. An infinite loss ranks last, and is never promoted, even where it
    has a place in the top.

    Parameters
    ----------
    eta
        One of `eta` trials is promoted.

    References
    ----------
    Li et al., "A System for Massively Parallel Hyperparameter Tuning", Algorithm 2
    (``top_k(rung k, |rung k| / eta)`` and ``promotable``).

    Examples
    --------
    >>> rung = Rung(eta=2)
    >>> [rung.record(loss, trial) for trial, loss in enumerate([0.3, 0.4, 0.1, 0.2])]
    [None, 0, 2, 3]
    """

    __slots__ = ("_eta", "_rest", "_top")

    def __init__(self, eta: int) -> None:
        self._eta = eta
        # Both hold (loss, arrival, trial); the top is negated, so that its worst comes first.
        self._top: list[tuple[float, int, int]] = []
        self._rest: list[tuple[float, int, int, bool]] = []

    def __len__(self) -> int:
        """Return the number of trials that have reported."""
        return len(self._top) + len(self._rest)

    @property
    def cutoff(self) -> float:
        """The largest loss in the top; while the top is empty, the smallest loss of all."""
        return -self._top[0][0] if self._top else self._rest[0][0]

    def has(self, trial: int) -> bool:
        """Whether a trial has reported; in O(n)."""
        return any(known == trial for _, _, known in self._top) or any(
            known == trial for _, _, known, _ in self._rest
        )

    def record(self, loss: float, trial: int) -> int | None:
        """Add a report, in O(log n); return the trial to promote now, if there is one.

        Parameters
        ----------
        loss
            Smaller is better; infinite for a value that is not finite.
        trial
            Its number; a trial reports once.
        """
        arrival = len(self)
        lowest = heappushpop(self._top, (-loss, -arrival, trial)) if self._top else None
        if lowest is None or lowest[1] == -arrival:
            heappush(self._rest, (loss, arrival, trial, False))
            entered = None
        else:
            heappush(self._rest, (-lowest[0], -lowest[1], lowest[2], True))
            entered = trial
        if len(self) // self._eta > len(self._top):
            loss_of_next, arrival, following, was_in = heappop(self._rest)
            heappush(self._top, (-loss_of_next, -arrival, following))
            if not was_in:
                entered, loss = following, loss_of_next
        return entered if loss < math.inf else None

    def arrivals(self) -> list[tuple[int, float]]:
        """Return trial and loss in the order of arrival."""
        top = [(-arrival, trial, -loss) for loss, arrival, trial in self._top]
        rest = [(arrival, trial, loss) for loss, arrival, trial, _ in self._rest]
        return [(trial, loss) for _, trial, loss in sorted(top + rest)]

    def entered(self) -> list[int]:
        """Return the trials that `record` has named so far, in this order; in O(n log n)."""
        again = Rung(self._eta)
        named = [again.record(loss, trial) for trial, loss in self.arrivals()]
        return [trial for trial in named if trial is not None]

    def to_json(self) -> list[list[object]]:
        """Return trial and loss in the order of arrival, None for an infinite loss."""
        return [[trial, loss if loss < math.inf else None] for trial, loss in self.arrivals()]

    @classmethod
    def from_json(cls, eta: int, arrivals: Iterable[tuple[int, float | None]]) -> Rung:
        """Return the rung at which these trials have arrived in this order."""
        rung = cls(eta)
        for trial, loss in arrivals:
            rung.record(math.inf if loss is None else loss, trial)
        return rung

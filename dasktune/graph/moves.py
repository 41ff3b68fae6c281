"""Which running stages leave their worker, to go on with one of another class.

A stage begins before anything may be known of its model on the class of its worker, which may be
many times as slow as another class. As soon as its progress says so, the rest of the stage may be
worth more elsewhere. There are two reasons to move it:

- A stage that waits is worth more on this worker. By the prices of the market the rest belongs to
  another class, and its worker would be given to the other stage first. Prices move with what is
  learned, so that each stage leaves a class for this reason once: nothing swings.
- It ends earlier elsewhere, although all that waits goes before it, and its state must be loaded.

A stage is reviewed when it has trained a step, 2, 4, ..., if a measured speed has moved by a tenth
since its last review; all are when a worker has nothing to do. Time and steps alone change no
answer, since both ends come nearer alike. Smaller moves of speeds, and prices that follow what
waits, can; they are left for the next review, since looking at each costs more than they bring.

A stage that moves ends at its next step, saved there, so that no step is trained twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from dasktune.graph.attempts import Attempt
from dasktune.graph.frontier import Frontier
from dasktune.graph.market import Market, Terms
from dasktune.graph.plan import Node
from dasktune.graph.speeds import Speeds

GAIN = 0.9
"""A stage moves if it ends within this share of the seconds that it would take where it is.

Of 1.0, 0.9 and 0.7, none was better than the others in `benchmarks/hardware.py`; estimates are
seldom better than to a tenth.
"""

FreeIn = Callable[[str, int], float]
"""Gives the seconds until so many workers of a class are free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestOfStage:
    """The steps of a running stage behind the one that runs.

    Parameters
    ----------
    terms
        The seconds of the rest by class; those on other classes include loading its state.
    stops_in, ends_in
        Seconds until the step that runs has ended, and until all steps have, on their own worker.
    """

    attempt: Attempt
    terms: Terms
    stops_in: float
    ends_in: float


class Moves:
    """Chooses the running stages that leave their workers.

    Parameters
    ----------
    speeds
        How long steps take.
    market
        The classes of workers and their prices.
    attempts
        All attempts under way, by id.
    """

    def __init__(
        self,
        frontier: Frontier,
        speeds: Speeds,
        market: Market,
        attempts: Mapping[str, Attempt],
    ) -> None:
        self._frontier = frontier
        self._speeds = speeds
        self._market = market
        self._attempts = attempts

    def leaving(
        self,
        reviewed: Iterable[Attempt],
        waiting: Callable[[Attempt], Iterable[Node]],
        free_in: FreeIn,
        now: float,
    ) -> Iterator[Attempt]:
        """Yield the attempts, of some that run, which should leave their workers now.

        Those that would end last leave first: workers for which one leaves count as taken for
        the next. What is yielded is marked as on its way.

        Parameters
        ----------
        waiting
            Gives the first of the ready stages of each group that an attempt's worker might begin.
        free_in
            Gives the seconds until workers of a class are free.
        """
        rests = (rest for each in reviewed if (rest := self.rest_of(each, now)) is not None)
        for rest in sorted(rests, key=lambda rest: rest.ends_in, reverse=True):
            attempt = rest.attempt
            target = self._bidden_to(rest, waiting) or self._earlier_on(rest, free_in)
            if target:
                attempt.goes_to = target
                work = self._frontier.work(attempt.node)
                work.left = work.left | {attempt.kind}
                yield attempt

    def rest_of(self, attempt: Attempt, now: float) -> RestOfStage | None:
        """Return the rest of a stage that may go on elsewhere, if there is one.

        It has trained a step, so that each move makes progress. A stage that several workers
        train stays, as does one that begins at step 0 wherever it goes on, and one that raised
        and is tried on certain workers.
        """
        node = attempt.node
        is_steady = attempt.stopping or attempt.ended or attempt.taken or attempt.lenders
        if is_steady or attempt.leaf.is_alone or attempt.position <= attempt.start:
            return None
        if self._frontier.work(node).raised_on:
            return None
        per_step = self._speeds.seconds_per_step(node, attempt.kind)
        since = max(0.0, now - attempt.heard_at)
        step = attempt.position + math.floor(since / per_step) + 1
        if step >= attempt.stop:
            return None
        stops_in = (step - attempt.position) * per_step - since
        return RestOfStage(
            attempt=attempt,
            terms=self._market.terms(node, attempt.kind, step),
            stops_in=stops_in,
            ends_in=stops_in + (attempt.stop - step) * per_step,
        )

    def _bidden_to(
        self, rest: RestOfStage, waiting: Callable[[Attempt], Iterable[Node]]
    ) -> str | None:
        """Return the class where the rest is cheapest, if its worker is worth more to others."""
        attempt, terms = rest.attempt, rest.terms
        levels = self._market.levels(terms)
        if levels[attempt.kind] <= 0 or attempt.kind in self._frontier.work(attempt.node).left:
            return None
        priority, _ = self._frontier.urgency(attempt.node)
        others = (
            (self._frontier.urgency(node)[0], self._market.terms(node, None))
            for node in waiting(attempt)
        )
        is_outbid = self._market.is_outbid((priority, terms), attempt.kind, others)
        return min(levels, key=levels.__getitem__) if is_outbid else None

    def _earlier_on(self, rest: RestOfStage, free_in: FreeIn) -> str | None:
        """Return the class on which the rest ends earlier than on its own worker, if any."""
        own, limit = rest.attempt.kind, rest.ends_in * GAIN
        hopes = {
            kind: seconds
            for kind, seconds in rest.terms.seconds.items()
            if kind != own and rest.stops_in + seconds < limit
        }
        before = self._market.seconds_of_all if hopes else 0.0
        ends = {
            kind: max(rest.stops_in, free_in(kind, 1 + self._going_to(kind))) + before + seconds
            for kind, seconds in hopes.items()
            if rest.stops_in + before + seconds < limit
        }
        first = min(ends, key=ends.__getitem__, default=None)
        return first if first is not None and ends[first] < limit else None

    def _going_to(self, kind: str) -> int:
        """Return how many attempts are on their way to a class."""
        return sum(each.goes_to == kind for each in self._attempts.values())

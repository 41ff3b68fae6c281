"""The policy of unlike workers: each class trains the stages for which it is the cheapest.

What a second on each class costs is computed in `dasktune.graph.market`, and which running stages
move to another class in `dasktune.graph.moves`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from operator import itemgetter
from typing import Literal

from dasktune.graph.attempts import Attempt, Slot
from dasktune.graph.events import WorkerJoined
from dasktune.graph.frontier import Group
from dasktune.graph.market import Market, Terms, importance
from dasktune.graph.matching import Wanted
from dasktune.graph.moves import Moves
from dasktune.graph.placement import Placing
from dasktune.graph.plan import Node
from dasktune.graph.policy import Policy
from dasktune.types import Step


class ComputeClasses(Policy):
    """Chooses the class of each stage, and whether the stage waits for it.

    Attributes
    ----------
    market
        The classes, and what a second on each costs.
    """

    def __init__(self, placing: Placing) -> None:
        self.placing = placing
        self.market = Market(placing.frontier, placing.speeds, self._kinds_for, loads=placing.loads)
        self._moves = Moves(placing.frontier, placing.speeds, self.market, placing.attempts)
        self._sizes: dict[str, tuple[float, ...]] = {}
        self._free: dict[str, float] = {}
        self._news: dict[str, Attempt] = {}
        """The attempts that were heard of since the last review: their steps have doubled."""
        self._were_idle: frozenset[str] = frozenset()

    @property
    def is_open(self) -> bool:
        """Whether there are several classes."""
        return self.market.is_open

    # ------------------------------------------------------------------- what happens

    def joined(self, slot: Slot, event: WorkerJoined) -> None:
        """Note what the workers of a class have."""
        self._sizes[slot.kind] = event.offer.size

    def cleared(self) -> None:
        """Forget the attempts of before."""
        self._news.clear()

    def placing_begins(self, now: float) -> None:
        """Forget what followed from the work and the workers of before."""
        self._free.clear()
        self.market.changed()

    def changed(self) -> None:
        """Forget what followed from the stages and the workers of before."""
        self.market.changed()

    def launched(self, attempt: Attempt) -> None:
        """Note that a class has something more to do."""
        self._free.pop(attempt.kind, None)
        self.market.launched(attempt.node, attempt.kind)

    def progressed(self, attempt: Attempt, step: Step) -> None:
        """Note an attempt for the next review each time that its steps have doubled."""
        trained = attempt.position - attempt.start
        if trained >= 2 * attempt.reviewed:
            attempt.reviewed = trained
            self._news[attempt.id] = attempt

    # --------------------------------------------------------------- what it is asked

    def due(self) -> float | None:
        """Return when a stage has waited for long enough."""
        if not self.placing.idle:
            return None
        return self.market.next_end_of_patience(self.placing.filled_at)

    def chosen(
        self, workers: Collection[str], now: float
    ) -> tuple[Node, Collection[str]] | Literal["kernel"] | None:
        """Return the best pair of a ready stage and a class, by the workers of that class.

        That is the tuner's priority first (all negative ones count alike), then a class that is as
        good as any for the stage, then the class that fits the rank of its model, then the order of
        negative priorities, then the longest path, then the fastest of the classes. For each group
        and class the first stage is looked at. If it should rather wait for a faster class, the
        next one is, and so on. They are few: only as many wait as the faster class trains in less
        time than one of them takes here.
        """
        frontier, slots = self.placing.frontier, self.placing.slots
        heads = list(frontier.heads())
        by_kind: dict[str, list[str]] = {}
        holders: dict[Node | None, str] = {}
        for worker in workers if heads else ():
            slot = slots[worker]
            by_kind.setdefault(slot.kind, []).append(worker)
            holders[slot.last] = slot.kind
        for group, kind in self._in_order(heads, by_kind, holders):
            same = by_kind[kind]
            may_take = partial(self._may_take, workers=same, kind=kind, holders=holders, now=now)
            node = frontier.best_of(group, may_take)
            if node is not None:
                return node, same
        return None

    def may_carry_on(self, attempt: Attempt, child: Node, now: float) -> bool:
        """Whether the stage after an attempt should be trained by the same worker.

        If not, it is ready when the attempt has ended, and the workers that are idle then are
        compared. On its own worker its state need not be loaded.
        """
        kind = self.placing.slots[attempt.worker].kind
        terms = self.market.terms(child, kind)
        if self.market.levels(terms)[kind] > 0:
            return False
        left = self.placing.remaining_seconds(attempt, now)
        return not (
            self.market.ends_later(terms, kind, lambda each: self._free_in(each, now) - left)
            and self.market.is_patient(child, terms, kind, now + left)
        )

    def moving(self, now: float) -> list[Attempt]:
        """Return the attempts whose stages should go on elsewhere; see `dasktune.graph.moves`."""
        placing, news = self.placing, self._news
        has_new = not placing.idle.keys() <= self._were_idle
        if has_new or len(placing.idle) < len(self._were_idle):
            self._were_idle = frozenset(placing.idle)
        if not (has_new or news):
            return []
        self._news = {}
        if not self.is_open or placing.keeps_in_place():
            return []
        if has_new:
            reviewed = [slot.queue[0] for slot in placing.slots.values() if slot.queue]
        else:
            reviewed = [*filter(self._has_news, news.values())]
        if not reviewed:
            return []
        moves = self._moves.leaving(
            reviewed,
            self._might_begin,
            lambda kind, count: self._free_in(kind, now, count),
            now,
        )
        return list(moves)

    # ------------------------------------------------------------------------- moves

    def _has_news(self, attempt: Attempt) -> bool:
        """Return whether a speed has moved since an attempt was reviewed; note this review.

        An attempt that its worker does not run yet has none.
        """
        slot, moved = self.placing.slots.get(attempt.worker), self.placing.speeds.moved
        is_running = slot is not None and bool(slot.queue) and slot.queue[0] is attempt
        if not is_running or attempt.knew == moved:
            return False
        attempt.knew = moved
        return True

    def _might_begin(self, attempt: Attempt) -> Iterator[Node]:
        """Yield the first ready stage of each group, if an attempt's worker may begin it."""
        for _, node in self.placing.frontier.heads():
            if self.placing.may_start(node, [attempt.worker]):
                yield node

    # ----------------------------------------------------------------------- choices

    def _kinds_for(self, needs: Wanted, count: int = 1) -> frozenset[str] | None:
        """Return the own classes with so many workers that fit a stage; None for all."""
        placing = self.placing
        if count > 1:
            counts = placing.counts(needs)
            return frozenset(kind for kind in counts if counts[kind] >= count)
        if not needs:
            return None
        able = (each for each in placing.matching.able(needs) if not placing.is_withheld(each))
        return frozenset(placing.slots[worker].kind for worker in able)

    def _in_order(
        self,
        heads: list[tuple[Group, Node]],
        kinds: Collection[str],
        holders: Mapping[Node | None, str],
    ) -> Iterable[tuple[Group, str]]:
        """Return the pairs of a group and a class, the best first, by the first stage of each."""
        if len(heads) == len(kinds) == 1:
            return [(group, kind) for group, _ in heads for kind in kinds]
        ranked = [
            (rank, group, kind)
            for group, node in heads
            for rank, kind in self._ranks(node, kinds, holders)
        ]
        return [(group, kind) for _, group, kind in sorted(ranked, key=itemgetter(0))]

    def _ranks(
        self, node: Node, kinds: Iterable[str], holders: Mapping[Node | None, str]
    ) -> Iterator[tuple[tuple[float, ...], str]]:
        """Yield the rank of a stage on each of some classes: the least of all goes first."""
        priority, then = self.placing.frontier.urgency(node)
        terms = self.market.terms(node, holders.get(node.parent))
        levels = self.market.levels(terms)
        for kind in kinds:
            fit = levels[kind], *self.market.misfit(node, kind, self._sizes)
            order = -priority, -then, terms.seconds[kind], node.number
            yield (-importance(priority), *fit, *order), kind

    def _may_take(
        self,
        node: Node,
        workers: Collection[str],
        kind: str,
        holders: Mapping[Node | None, str],
        now: float,
    ) -> bool:
        """Whether a stage may start on an idle worker of a class, and need not wait for others.

        One that raised before does not wait: not every worker may try it.
        """
        if not self.placing.may_start(node, workers):
            return False
        if self.placing.frontier.work(node).raised_on:
            return True
        terms = self.market.terms(node, holders.get(node.parent))
        if self._waits(node, terms, kind, now):
            return False
        return terms.workers == 1 or not self._may_begin_elsewhere(node, workers, terms, now)

    def _may_begin_elsewhere(
        self, node: Node, workers: Collection[str], terms: Terms, now: float
    ) -> bool:
        """Whether a stage would wait for more workers of a class, but need not on another one."""
        placing = self.placing
        if placing.gathered(node, workers, workers) is not None:
            return False
        for kind in terms.seconds:
            idle = [worker for worker in placing.idle if placing.slots[worker].kind == kind]
            same = placing.not_kept(idle)
            if placing.may_start(node, same) and placing.gathered(node, same, same):
                return not self._waits(node, terms, kind, now)
        return False

    def _waits(self, node: Node, terms: Terms, kind: str, now: float) -> bool:
        """Whether a stage should wait for a faster class rather than start on an idle worker."""
        is_later = terms.is_later.get(kind)
        if is_later is None:
            free_in = partial(self._free_in, now=now, count=terms.workers)
            is_later = terms.is_later[kind] = self.market.ends_later(terms, kind, free_in)
        return is_later and self.market.is_patient(node, terms, kind, now)

    def _free_in(self, kind: str, now: float, count: int = 1) -> float:
        """Return the seconds until so many workers of a class have ended what they were given."""
        if count > 1:
            seconds = sorted(self._seconds_left(kind, now))
            return seconds[count - 1] if len(seconds) >= count else math.inf
        least = self._free.get(kind)
        if least is None:
            least = self._free[kind] = min(self._seconds_left(kind, now), default=math.inf)
        return least

    def _seconds_left(self, kind: str, now: float) -> Iterator[float]:
        """Yield the seconds until each worker of a class has ended what it was given."""
        placing = self.placing
        for worker, slot in placing.slots.items():
            if slot.kind != kind or not placing.is_usable(worker):
                continue
            if slot.queue or placing.has_room(worker):
                attempts = slot.queue or slot.lent_to.values()
                yield sum([placing.remaining_seconds(attempt, now) for attempt in attempts])

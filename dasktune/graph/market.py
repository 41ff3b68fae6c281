"""Which class of workers a stage belongs to, and whether it should wait for one.

Nothing here decides while all workers are of one class.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import mul

from dasktune.graph.frontier import RANK_LEVELS, Frontier, Profile, rank_level, start_of
from dasktune.graph.loads import Loads
from dasktune.graph.matching import Wanted
from dasktune.graph.plan import Node
from dasktune.graph.prices import NEVER, makespan, prices_of
from dasktune.graph.speeds import Speeds
from dasktune.types import LAST, Step

_SAME = 0.3
"""Advantages that differ by less, in natural logarithms, are alike: the longer path goes first."""

_LEAST = 1e-300
"""Seconds of a stage that takes no time."""

_FAR = 1_000
"""The level of a stage on a class that it may not use, and below 0 on the only one it may use."""

_MIX = 4
"""Prices are found anew when a quarter of the ready stages may have changed."""


@dataclass(slots=True)
class Terms:
    """The seconds of a stage on each class, and what follows from them until the market changes.

    Parameters
    ----------
    seconds
        With loading its state, if it must be loaded; infinite where no worker has what it needs.
    doubts
        See `Speeds.doubt`; in the order of the seconds.
    before
        The least seconds of all other stages that wait; None until they are asked for.
    is_later
        Whether it would end later on a class than on a faster one, as far as this was asked for.
    """

    seconds: dict[str, float]
    doubts: tuple[float, ...]
    workers: int = 1
    before: float | None = None
    is_later: dict[str, bool] = field(default_factory=dict)


class Market:
    """The classes of workers, and what a second on each costs.

    Parameters
    ----------
    speeds
        How long they take on each class.
    kinds_for
        Gives the classes with as many workers as a stage takes that have what it needs; None for
        all.
    loads
        How long a worker needs to load a state that it does not hold.
    """

    def __init__(
        self,
        frontier: Frontier,
        speeds: Speeds,
        kinds_for: Callable[[Wanted, int], frozenset[str] | None],
        *,
        loads: Loads,
    ) -> None:
        self._frontier = frontier
        self._kinds_for = kinds_for
        self._speeds = speeds
        self._loads = loads
        self._prices: dict[str, float] = {}
        self._worths: list[float] = []
        """The prices, of which `_prices` are the logarithms."""
        self._worth_of_all = 0.0
        self._terms: dict[tuple[object, ...], Terms] = {}
        self._patience: dict[Node, float] = {}
        self._active = 0
        self._launches = 0
        self._makespan: float | None = None
        self._is_current = False

    @property
    def is_open(self) -> bool:
        """Whether there are several classes."""
        return len(self._speeds.slots) > 1

    def changed(self) -> None:
        """Note that the work that waits, or the workers, may have changed."""
        self._is_current, self._makespan = False, None
        self._terms.clear()

    def _renew(self) -> None:
        """Find the prices anew if enough has changed."""
        self._is_current = True
        active, slots = self._frontier.active_count, self._speeds.slots
        changed = max(abs(active - self._active), self._launches)
        if changed * _MIX <= self._active and self._prices.keys() == slots.keys():
            return
        prices = prices_of(self.backlog(), tuple(slots.values()))
        self._prices = dict(zip(slots, prices, strict=True))
        self._worths = [math.exp(price) for price in prices]
        self._worth_of_all = sum(map(mul, slots.values(), self._worths))
        self._active, self._launches = active, 0
        self._patience = {
            node: until for node, until in self._patience.items() if self._frontier.is_active(node)
        }

    def backlog(self) -> dict[Profile, float]:
        """Return the seconds of the ready stages by profile, with the classes that they need."""
        backlog: dict[Profile, float] = defaultdict(float)
        for (profile, needs, _, workers), seconds in self._frontier.backlog.items():
            kinds = self._kinds_for(needs, workers)
            if kinds is not None and not kinds:
                continue  # it waits for workers that may come
            if kinds is not None:
                pairs = zip(self._speeds.slots, profile, strict=True)
                profile = tuple(log if kind in kinds else NEVER for kind, log in pairs)
            backlog[profile] += seconds
        return backlog

    def launched(self, node: Node, kind: str) -> None:
        """Note that a stage was given to a worker of a class."""
        self._speeds.began(node, kind)
        self._launches += 1
        self.changed()
        self._patience.pop(node, None)

    def terms(self, node: Node, held_by: str | None, start: Step | None = None) -> Terms:
        """Return the terms of a stage; stages that are alike share them.

        Parameters
        ----------
        held_by
            The class of the worker that holds the state which the stage starts from, if any.
        start
            The step that it starts from, if it is the rest of a stage that runs.
        """
        start = start_of(node) if start is None else start
        estimates = self._speeds.by_class(node)
        alike = estimates, node.stop - start, start > 0, held_by, node.needs
        terms = self._terms.get(alike)
        if terms is None:
            workers = self._frontier.workers_of(node)
            kinds, seconds = self._kinds_for(node.needs, workers), {}
            for kind, each in zip(self._speeds.slots, estimates.seconds, strict=True):
                load = self._loads.seconds(kind) if start and kind != held_by else 0.0
                is_able = kinds is None or kind in kinds
                seconds[kind] = (node.stop - start) * each + load if is_able else math.inf
            terms = self._terms[alike] = Terms(seconds, estimates.doubts, workers)
        return terms

    def levels(self, terms: Terms) -> dict[str, int]:
        """Return how much dearer a stage is on each class than on the cheapest other one.

        It is below 0 where the class has an advantage: the lower, the greater it is. A class that
        nobody has tried yet for a model counts as cheap as it may well be.
        """
        if not self._is_current:
            self._renew()
        offers = zip(self._prices.items(), terms.seconds.values(), terms.doubts, strict=True)
        costs = [
            (price + math.log(max(seconds, _LEAST)) - doubt, kind)
            for (kind, price), seconds, doubt in offers
        ]
        (least, cheapest), (second, _), *_ = sorted(costs)
        return {kind: _level(cost, second if kind == cheapest else least) for cost, kind in costs}

    def misfit(self, node: Node, kind: str, sizes: Mapping[str, object]) -> tuple[int, float]:
        """Return how badly the rank of a stage's model fits a class: the least fits best.

        The better classes choose first. The best takes the highest rank that waits, the worst the
        lowest, and one between them the rank that is as high as the share of the other slots that
        are worse [1]. It decides between stages of equal `level` only: those for which no measured
        speed prefers one class to another.

        Parameters
        ----------
        sizes
            What the workers of each class have; it orders classes whose speeds are equal.

        References
        ----------
        [1] Kinnison et al., "SHADHO: Massively Scalable Hardware-Aware Distributed Hyperparameter
        Optimization", section 4.3.
        """
        level = rank_level(node)
        if level < 0:
            return 0, 0.0
        goodness = {
            each: (-self._speeds.seconds_per_step(node, each), sizes[each])
            for each in self._speeds.slots
        }
        own, slots = goodness[kind], self._speeds.slots
        worse = sum(slots[each] for each, good in goodness.items() if good < own)
        equal = sum(slots[each] for each, good in goodness.items() if good == own)
        others = sum(slots.values()) - equal
        if not others:
            return 0, 0.0
        return -worse, abs(level / (RANK_LEVELS - 1) - worse / others)

    def ends_later(self, terms: Terms, kind: str, free_in: Callable[[str], float]) -> bool:
        """Whether a stage would end later on an idle worker than on one of a faster class.

        It ends there when a worker is free, all that waits has been shared out as fast as can
        be, and the stage is trained.

        Parameters
        ----------
        terms
            Its seconds by class.
        free_in
            Gives the seconds until a worker of a class is free.
        """
        here = terms.seconds[kind]
        if here <= min(terms.seconds.values()):
            return False
        if terms.before is None:
            terms.before = self._before(terms)
        before = terms.before
        return any(
            before + taken < here and max(0.0, free_in(each)) + before + taken < here
            for each, taken in terms.seconds.items()
        )

    def is_patient(self, node: Node, terms: Terms, kind: str, now: float) -> bool:
        """Whether a stage may wait for a faster class; note when it first could have started.

        It waits no longer than it would have taken on a class: others might go first for ever.
        """
        return now < self._patience.setdefault(node, now + terms.seconds[kind])

    def is_outbid(
        self, rest: tuple[float, Terms], kind: str, others: Iterable[tuple[float, Terms]]
    ) -> bool:
        """Whether a stage that waits would be given a worker before the rest of the one it trains.

        Only a stage for which another class is better is outbid.

        Parameters
        ----------
        rest
            The priority and the terms of the rest of the stage that the worker trains.
        others
            The priorities and the terms of stages that wait.
        """
        priority, terms = rest
        level = self.levels(terms)[kind]
        return level > 0 and any(
            (-importance(urgent), self.levels(other)[kind]) < (-importance(priority), level)
            for urgent, other in others
        )

    def next_end_of_patience(self, now: float) -> float | None:
        """Return when the next stage has waited for long enough, if one waits."""
        return min((until for until in self._patience.values() if until > now), default=None)

    def _before(self, terms: Terms) -> float:
        """Return the least seconds of all that waits, but for one stage."""
        cost = terms.workers * min(map(mul, self._worths, terms.seconds.values()), default=0.0)
        return max(0.0, self.seconds_of_all - cost / self._worth_of_all)

    @property
    def seconds_of_all(self) -> float:
        """The least seconds in which the workers of all classes train all that waits."""
        if not self._is_current:
            self._renew()
        if self._makespan is None:
            slots, prices = self._speeds.slots, self._prices
            self._makespan = makespan(self.backlog(), tuple(slots.values()), tuple(prices.values()))
        return self._makespan


def importance(priority: float) -> float:
    """Return the weight of a priority between classes of workers.

    All negative ones count alike, but for those that go behind all others.
    Negative priorities are the order of new trials that a tuner wants equally. If that order came
    before the classes, each trial in turn would take the idle worker, whatever its class.
    """
    return priority if priority < LAST else max(priority, 0.0)


def _level(cost: float, least_other: float) -> int:
    if math.isinf(cost) or math.isinf(least_other):
        return _FAR if math.isinf(cost) else -_FAR
    return math.floor((cost - least_other) / _SAME + 0.5)

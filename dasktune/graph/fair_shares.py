"""Which study has which workers, where several studies run on one cluster.

Each study says how many workers it can use. The workers are shared out fairly by weight under
these maxima, and what no study can use is granted all the same, since it may be taken back at once.
A worker that trains is taken back at a step border: its study saves the stage, then gives it up.

Studies with one store train no step twice: a study may wait for a stage that another one trains.
Such a stage counts in equal parts for the study that trains it and for those that wait for it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heapify, heappop, heapreplace
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

from dasktune._numbers import real_of
from dasktune.errors import refuse, shown

LEAST_WEIGHT, MOST_WEIGHT = 1e-6, 1e6
"""The least and the greatest weight of a study: beyond them shares would not be exact."""

PATIENCE_SECONDS = 5.0
"""How long a study must have too few workers before one that trains is taken from another.

Demand changes at each report of a tuner, and a worker that changes hands must save one stage and
load another.
"""

TURN_SECONDS = 30.0
"""Worker seconds that a study must have got too few before it gets its turn with a worker.

Three studies on two workers take turns: a share of two thirds of a worker is that much of its time.
"""

MOST_OWED_SECONDS = 2 * TURN_SECONDS
"""What a study got too few or too many beyond this is forgotten."""

_ALMOST = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The demand of a study.

    Parameters
    ----------
    workers
        How many workers it can use now: its maximum parallelism.
    weight
        With a weight of 2 it gets twice as many workers as one with 1, as long as it can use them.
    least
        With fewer workers it can train nothing: its stages take so many together.

    Raises
    ------
    ConfigurationError
        If `workers` is not an int >= 0, or `weight` is not finite and > 0, or `least` is not an int
        from 1 to `workers`.
    """

    workers: int
    weight: float = 1.0
    least: int = 1

    def __post_init__(self) -> None:
        refuse(weight_problems(self.weight))
        if type(self.workers) is not int or self.workers < 0:
            refuse([f"workers must be an int >= 0, got {self.workers!r}"])
        most = max(1, self.workers)
        if type(self.least) is not int or not 1 <= self.least <= most:
            refuse([f"least must be an int from 1 to {most}, got {shown(self.least)}"])


def weight_problems(weight: object) -> list[str]:
    """Return the problems of the weight of a study."""
    if LEAST_WEIGHT <= real_of(weight) <= MOST_WEIGHT:
        return []
    return [
        f"a study's weight must be a finite number > 0, from {LEAST_WEIGHT:g} to {MOST_WEIGHT:g}, "
        f"got {shown(weight)}"
    ]


def even_shares(
    claims: Mapping[str, Claim],
    workers: float,
    has: Mapping[str, float] | None = None,
    gains: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Share out workers by water-filling: max-min fair by weight, under each study's maximum.

    Shares are parts of workers: the mean over time, as studies take turns with a worker.

    Parameters
    ----------
    claims
        What each study asks for, by name.
    has
        What each study has of other workers; None if they have nothing.
    gains
        What each study gets from workers of others, less what others get from its own; None if
        they share no stage. Its workers and its gain together are its fair part.

    Returns
    -------
    dict
        The workers of each study in `claims`, those that it had included: at most what it claims,
        unless it had more.

    Examples
    --------
    >>> even_shares({"first": Claim(workers=32)}, 32)
    {'first': 32.0}
    >>> even_shares({"first": Claim(workers=32), "second": Claim(workers=64)}, 32)
    {'first': 16.0, 'second': 16.0}

    The second study waits for 8 stages of the first one, which count for both by half:

    >>> both = {"first": Claim(workers=32), "second": Claim(workers=64)}
    >>> even_shares(both, 32, gains={"first": -4.0, "second": 4.0})
    {'first': 20.0, 'second': 12.0}

    References
    ----------
    Li et al., "A System for Massively Parallel Hyperparameter Tuning", section 5.3.
    """
    had = {name: 0.0 if has is None else float(has[name]) for name in claims}
    gain = {name: 0.0 if gains is None else gains[name] for name in claims}
    spans = {
        name: ((had[name] + gain[name]) / claim.weight, (claim.workers + gain[name]) / claim.weight)
        for name, claim in claims.items()
        if had[name] < claim.workers
    }
    levels = sorted({level for span in spans.values() for level in span})
    reached = -math.inf
    for low, high in pairwise(levels):
        rising = (claims[name].weight for name, (at, end) in spans.items() if at <= low < end)
        weight = math.fsum(rising)
        reached = min(high, low + workers / weight) if weight else high
        workers -= (reached - low) * weight
        if reached < high:
            break
    rises = {
        name: max(
            had[name], min(float(claims[name].workers), reached * claims[name].weight - gain[name])
        )
        for name in spans
    }
    return {**had, **rises}


def _fill(
    has: dict[str, int], most: Mapping[str, float], claims: Mapping[str, Claim], workers: int
) -> list[str]:
    """Give workers to studies below their maxima, one by one; return which study got each."""
    weights = {name: claim.weight for name, claim in claims.items()}
    queue = [
        ((has[name] + 1) / weight, place, name)
        for place, (name, weight) in enumerate(weights.items())
        if has[name] < most[name]
    ]
    heapify(queue)
    given: list[str] = []
    while queue and len(given) < workers:
        _, place, name = queue[0]
        has[name] += 1
        given.append(name)
        if has[name] < most[name]:
            heapreplace(queue, ((has[name] + 1) / weights[name], place, name))
        else:
            heappop(queue)
    return given


def _fill_in_turn(
    has: dict[str, int], claims: Mapping[str, Claim], workers: int, gains: Mapping[str, float]
) -> list[str]:
    """Give workers to studies below their claims; return which study got each.

    Each gets the whole part of its even share. What is left of the workers goes to the first
    studies that miss a part of a worker: all of them get it in turn, also the lightest.
    """
    even = even_shares(claims, workers, has, gains)
    whole = {name: math.floor(even[name] + _ALMOST) - has[name] for name in claims}
    given = [name for name, count in whole.items() for _ in range(count)]
    parted = [name for name in claims if even[name] - math.floor(even[name] + _ALMOST) > _ALMOST]
    given += parted[: workers - len(given)]
    for name in given:
        has[name] += 1
    return given


class AwaitedStage(NamedTuple):
    """A stage that a study waits for: the study that trains it, and a name for it."""

    study: str
    stage: str


@dataclass(slots=True)
class _Borrower:
    """A study: what it claims, its workers in the order in which it got them, those it must return.

    `usable` are those that it can use, of all workers; None for all. `wanted` are those of them
    that its stages of now can use; None for all. `busy` are those that have a stage now; `awaits`
    are the stages of other studies that it waits for; `short_since` is when its workers became too
    few.
    `owed` is how many worker seconds it got too few, less those that it got too many.
    """

    claim: Claim
    workers: dict[str, None] = field(default_factory=dict)
    recalled: dict[str, None] = field(default_factory=dict)
    usable: frozenset[str] | None = None
    wanted: frozenset[str] | None = None
    busy: frozenset[str] = frozenset()
    awaits: frozenset[AwaitedStage] = frozenset()
    short_since: float | None = None
    owed: float = 0.0

    def keeps(self, workers: Mapping[str, None]) -> list[str]:
        """Return those of some workers that it has and need not return, the first granted first."""
        return [each for each in self.workers if each in workers and each not in self.recalled]

    def can_use(self, worker: str) -> bool:
        """Whether stages of the study may run on a worker."""
        return self.usable is None or worker in self.usable

    def wants(self, worker: str) -> bool:
        """Whether a stage that the study has now may run on a worker."""
        return self.can_use(worker) and (self.wanted is None or worker in self.wanted)


class _Users(NamedTuple):
    """The studies that can use some workers, and those of them that can use them now."""

    able: tuple[str, ...]
    wanting: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Pool:
    """The workers that the same studies can use, and how many of them each shall have."""

    workers: Mapping[str, None]
    wanting: tuple[str, ...]
    targets: Mapping[str, int]


class _Sharing:
    """Workers that are being shared out: what each study has of all, and of each pool."""

    def __init__(self, pools: Mapping[_Users, Mapping[str, None]], has: dict[str, int]) -> None:
        self.has = has
        self.targets = {users: dict.fromkeys(users.able, 0) for users in pools}
        self._pools = pools

    def add(
        self,
        fill: Callable[..., list[str]],
        those: Callable[[_Users], tuple[str, ...]],
        claims: Mapping[str, Claim],
    ) -> None:
        """Share out what is left of each pool; those of few studies go first.

        Parameters
        ----------
        fill
            Gives a number of workers to studies by their claims; returns which study got each.
        those
            Gives the studies that get workers of a pool.
        claims
            The claims of those that get any.
        """
        for users in sorted(self._pools, key=lambda users: len(those(users))):
            of_users = {name: claims[name] for name in those(users) if name in claims}
            left = len(self._pools[users]) - sum(self.targets[users].values())
            for name in fill(self.has, claims=of_users, workers=left):
                self.targets[users][name] += 1


class StudyShares:
    """Lends the workers of a cluster to the studies that run there.

    All times are seconds on one clock that never goes back.

    Parameters
    ----------
    patience_seconds
        How long a study must have too few workers before one that trains is taken from another.
    """

    def __init__(self, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._patience = patience_seconds
        self._studies: dict[str, _Borrower] = {}
        self._free: dict[str, None] = {}
        self._settled = -math.inf

    def join(self, worker: str, now: float) -> None:
        """Add a worker."""
        if worker not in self._free and self._holder(worker) is None:
            self._free[worker] = None
            self._settle(now)

    def lose(self, worker: str, now: float) -> None:
        """Remove a worker that is gone."""
        self._free.pop(worker, None)
        for borrower in self._studies.values():
            borrower.workers.pop(worker, None)
            borrower.recalled.pop(worker, None)
        self._settle(now)

    def claim(
        self,
        study: str,
        claim: Claim,
        now: float,
        busy: frozenset[str] = frozenset(),
        usable: frozenset[str] | None = None,
        awaits: frozenset[AwaitedStage] = frozenset(),
        wanted: frozenset[str] | None = None,
    ) -> frozenset[str]:
        """Set what a study asks for; return the workers that it may use now.

        Parameters
        ----------
        study
            Names the study among all on the cluster.
        now
            Seconds.
        busy
            The workers on which it has a stage. All others that it shall return are returned.
        usable
            The workers that have what its stages need; None for all. The study is
            granted no others.
        awaits
            The stages of other studies that it waits for, instead of training them itself.
        wanted
            The workers of `usable` that its stages can use now, those that are busy included; None
            for all. Others do not count for its claim. They are granted to it only while no study
            wants them.

        Returns
        -------
        frozenset
            It shall save what it trains on others, and call this again when they are not busy.
        """
        borrower = self._studies.setdefault(study, _Borrower(claim))
        borrower.claim, borrower.busy, borrower.usable = claim, busy, usable
        borrower.awaits, borrower.wanted = awaits, wanted
        useless = [worker for worker in borrower.workers if not borrower.can_use(worker)]
        borrower.recalled.update(dict.fromkeys(useless))
        self._take_back(borrower)
        self._settle(now)
        return self.granted(study)

    def leave(self, study: str, now: float) -> None:
        """Take back all workers of a study that has ended."""
        borrower = self._studies.pop(study, None)
        if borrower is not None:
            self._free.update(borrower.workers)
            self._settle(now)

    def granted(self, study: str) -> frozenset[str]:
        """Return the workers that a study may use."""
        borrower = self._studies[study]
        return frozenset(borrower.workers.keys() - borrower.recalled.keys())

    def gains(self) -> dict[str, float]:
        """Return the workers of others that serve each study, less its own that serve others.

        A stage counts in equal parts for the study that trains it and for those that wait for it.
        """
        waiting: dict[AwaitedStage, list[str]] = {}
        for name, borrower in self._studies.items():
            for awaited in borrower.awaits:
                if awaited.study in self._studies and awaited.study != name:
                    waiting.setdefault(awaited, []).append(name)
        stages = Counter(awaited.study for awaited in waiting)
        gains = dict.fromkeys(self._studies, 0.0)
        for (study, _), names in waiting.items():
            # A worker has one stage or two: it trains one of them, and the other one is next.
            workers = min(1.0, len(self._studies[study].busy) / stages[study])
            part = workers / (1 + len(names))
            gains[study] -= part * len(names)
            for name in names:
                gains[name] += part
        return gains

    def _holder(self, worker: str) -> _Borrower | None:
        return next((each for each in self._studies.values() if worker in each.workers), None)

    def _take_back(self, borrower: _Borrower) -> None:
        for worker in [each for each in borrower.recalled if each not in borrower.busy]:
            del borrower.recalled[worker], borrower.workers[worker]
            self._free[worker] = None

    def _settle(self, now: float) -> None:
        """Lend what is free, and recall workers for studies that have too few."""
        self._take_turns(now)
        pools = self._pools()
        for pool in pools:
            self._keep_again(pool)
            self._lend_free(pool)
        for name, borrower in self._studies.items():
            wanted = [pool for pool in pools if name in pool.wanting]
            keeps = [len(borrower.keeps(pool.workers)) for pool in wanted]
            has_too_few = any(
                pool.targets[name] > count for pool, count in zip(wanted, keeps, strict=True)
            )
            if not has_too_few or sum(keeps) >= borrower.claim.workers:
                borrower.short_since = None
            elif borrower.short_since is None:
                borrower.short_since = now
        for pool in pools:
            self._recall(pool, now)

    def _take_turns(self, now: float) -> None:
        """Note what each study got, and let those go first that got too little."""
        seconds, self._settled = now - self._settled, now
        if not 0 < seconds < math.inf:
            return
        for name, share in self._even_shares().items():
            borrower = self._studies[name]
            gets = min(sum(map(borrower.wants, borrower.workers)), borrower.claim.workers)
            if gets < borrower.claim.least:
                gets = 0
            owed = borrower.owed + (share - gets) * seconds
            borrower.owed = min(MOST_OWED_SECONDS, max(-MOST_OWED_SECONDS, owed))
        most = -math.inf
        for borrower in reversed(self._studies.values()):
            if most - borrower.owed >= TURN_SECONDS:
                in_turn = sorted(self._studies.items(), key=lambda item: -item[1].owed)
                self._studies = dict(in_turn)
                return
            most = max(most, borrower.owed)

    def _even_shares(self) -> dict[str, float]:
        """Return the mean over time of the workers of each study, of those that it can use."""
        claims, shares = self._claims(), dict.fromkeys(self._studies, 0.0)
        gains = self.gains()
        pools = self._workers_by_users()
        for users in sorted(pools, key=lambda users: len(users.wanting)):
            of_users = {name: claims[name] for name in users.wanting}
            shares |= even_shares(of_users, len(pools[users]), shares, gains)
        return shares

    def _claims(self) -> dict[str, Claim]:
        return {name: each.claim for name, each in self._studies.items()}

    def _workers_by_users(self) -> dict[_Users, dict[str, None]]:
        """Return the workers by the studies that can use them."""
        pools: dict[_Users, dict[str, None]] = {}
        granted = [worker for each in self._studies.values() for worker in each.workers]
        for worker in (*self._free, *granted):
            users = _Users(
                tuple(name for name, each in self._studies.items() if each.can_use(worker)),
                tuple(name for name, each in self._studies.items() if each.wants(worker)),
            )
            pools.setdefault(users, {})[worker] = None
        return pools

    def _pools(self) -> list[_Pool]:
        """Return the workers by the studies that can use them, and what each study shall have.

        The workers of few studies are shared out first, so that a study with workers of its own
        gets the fewer of those that others can use, too. A worker that is of no use to the stages
        of a study must not count for its claim: it would wait for others for ever, while a second
        study waits for this worker. In the end all workers are granted, also those of no use.
        """
        pools, claims = self._workers_by_users(), self._claims()
        shared = self._shared_out(pools, claims)
        lend_rest = partial(_fill, most=dict.fromkeys(claims, math.inf))
        shared.add(lend_rest, attrgetter("able"), claims)
        return [_Pool(pools[users], users.wanting, each) for users, each in shared.targets.items()]

    def _shared_out(
        self, pools: Mapping[_Users, Mapping[str, None]], claims: Mapping[str, Claim]
    ) -> _Sharing:
        """Return the workers that each study shall have.

        Two studies whose stages take two workers each must not hold one each for ever. So the study
        whose turn it is gets as many as it needs at least, and one that would have too few gets
        none: it is owed them, and has its turn later.
        """
        claims, is_served = dict(claims), False
        first = next(iter(claims), "")
        in_turn = partial(_fill_in_turn, gains=self.gains())
        while True:
            sharing = _Sharing(pools, dict.fromkeys(claims, 0))
            if is_served:
                serve = partial(_fill, most={first: claims[first].least})
                sharing.add(serve, attrgetter("wanting"), {first: claims[first]})
            sharing.add(in_turn, attrgetter("wanting"), claims)
            short = [name for name, claim in claims.items() if 0 < sharing.has[name] < claim.least]
            if not short:
                return sharing
            if short[0] == first and not is_served:
                is_served = True
            else:
                is_served &= short[-1] != first
                claims[short[-1]] = replace(claims[short[-1]], workers=0, least=1)

    def _keep_again(self, pool: _Pool) -> None:
        """Leave workers to studies that were recalled and are no longer to be returned."""
        for name, target in pool.targets.items():
            borrower = self._studies[name]
            missing = target - len(borrower.keeps(pool.workers))
            recalled = [worker for worker in borrower.recalled if worker in pool.workers]
            for worker in recalled[: max(0, missing)]:
                del borrower.recalled[worker]

    def _lend_free(self, pool: _Pool) -> None:
        has = {name: len(self._studies[name].keeps(pool.workers)) for name in pool.targets}
        free = [worker for worker in self._free if worker in pool.workers]
        claims = {name: self._studies[name].claim for name in pool.targets}
        for name in _fill(has, pool.targets, claims, len(free)):
            worker = free.pop()
            del self._free[worker]
            self._studies[name].workers[worker] = None

    def _recall(self, pool: _Pool, now: float) -> None:
        """Recall workers until those that are on their way back are as many as are missing.

        Idle workers come at once. Of those that train, those that were granted last
        are recalled first: they have trained the shortest time since then.
        """
        keeps = {name: each.keeps(pool.workers) for name, each in self._studies.items()}
        excess = {name: len(each) - pool.targets.get(name, 0) for name, each in keeps.items()}
        recalled = (worker for each in self._studies.values() for worker in each.recalled)
        coming = sum(worker in pool.workers for worker in (*self._free, *recalled))
        missing = sum(max(0, -count) for count in excess.values()) - coming
        for busy_too in (False, True):
            if busy_too and not self._is_urgent(now):
                return
            for name, borrower in self._studies.items():
                for worker in reversed(keeps[name]):
                    is_kept = worker in borrower.busy and not busy_too
                    if missing <= 0 or excess[name] <= 0:
                        break
                    if not is_kept and worker not in borrower.recalled:
                        borrower.recalled[worker] = None
                        missing, excess[name] = missing - 1, excess[name] - 1

    def _is_urgent(self, now: float) -> bool:
        """Whether a study has had fewer workers than it can use, and than its share, for long."""
        return any(
            each.short_since is not None and now - each.short_since >= self._patience
            for each in self._studies.values()
        )

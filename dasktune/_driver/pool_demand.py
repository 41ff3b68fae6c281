"""How many workers of each pool a run can use.

A stage counts for one pool: the first one whose workers it fits and that has room. So the order of
the pools says which one is preferred. Stages that fit fewer pools count first, so that stages that
fit all pools leave them the room. Where workers share devices, a stage needs all workers of one,
until stages train there together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from dasktune._cluster.pools import WorkerPool
from dasktune._driver.worker_demand import MOST, open_stages, running_steps, yet_to_begin
from dasktune._engine.timeouts import OTHER_NODE_SECONDS
from dasktune.graph.matching import Wanted
from dasktune.graph.view import RunView
from dasktune.needs import Needs, NumericClass, Offer


class PoolDemand:
    """The demand of a run for the workers of each pool.

    A pool knows the tags that users gave it. Its workers may have more, by their hardware, and
    they have numeric classes: those of each worker that was there are remembered. As long as a
    pool has had no worker, a stage may fit it that misses tags or a numeric class only. A stage
    whose numeric class no pool has had asks for another worker from time to time: a pool may have
    unlike nodes.
    """

    def __init__(self) -> None:
        self._offers: dict[str, Offer] = {}
        self._classes: dict[str, set[NumericClass | None]] = {}
        self._seen: set[str] = set()
        self._grown_at: dict[str, float] = {}
        """When the last new worker of each pool was seen."""

    def of(
        self, view: RunView, pools: Sequence[WorkerPool], now: float, *, left: int | None
    ) -> dict[str, int]:
        """Return how many workers of each pool would have something to do now or soon.

        The preferred pool comes first; `left` is that of `dasktune._driver.worker_demand`.
        """
        self._learn(view, pools, now)
        together = {pool.name: _together(view, pool) for pool in pools}
        rooms = {pool.name: pool.room // pool.sharers * together[pool.name] for pool in pools}
        counts = {
            pool.name: sum(1 for worker in pool.workers if _is_busy(view, worker)) for pool in pools
        }
        stages = open_stages(view, now)
        # Their needs are not known yet: they may fit every pool that fits the study.
        stages[frozenset()] += yet_to_begin(view, left)
        fitting = [(self._fitting(view, wanted, pools), stages[wanted]) for wanted in stages]
        tried: set[str] = set()
        for suitable, count in sorted(fitting, key=lambda each: len(each[0])):
            tried |= _share_out(count, suitable, counts, rooms)
        for wanted, (suitable, count) in zip(stages, fitting, strict=True):
            if count and not suitable:
                needs = [view.needs, *wanted]
                tried.update(pool.name for pool in pools if self._may_renew(needs, pool, view, now))
        return {
            pool.name: min(
                -(-(counts[pool.name] + (pool.name in tried)) // together[pool.name])
                * pool.sharers,
                MOST,
            )
            for pool in pools
        }

    def _learn(self, view: RunView, pools: Sequence[WorkerPool], now: float) -> None:
        """Remember what the workers of each pool have."""
        for pool in pools:
            for worker in pool.workers & view.offers.keys():
                if worker not in self._seen:
                    self._seen.add(worker)
                    self._grown_at[pool.name] = now
                known, offer = self._offers.get(pool.name, pool.offer), view.offers[worker]
                self._classes.setdefault(pool.name, set()).add(offer.numerics)
                if not offer.tags <= known.tags or pool.name not in self._offers:
                    amounts = {**dict(known.amounts), **dict(offer.amounts)}
                    tags = known.tags | offer.tags
                    self._offers[pool.name] = Offer.of(amounts, known.kind, tags)

    def _fitting(
        self, view: RunView, wanted: Wanted, pools: Sequence[WorkerPool]
    ) -> list[WorkerPool]:
        """Return the pools whose workers a stage fits, as `dasktune.graph.matching` would judge.

        If it fits none, those without a worker so far that it may fit.
        """
        needs = [view.needs, *wanted]
        fits = [pool for pool in pools if self._fits(needs, pool)]
        if fits:
            return fits
        new = [pool for pool in pools if pool.name not in self._offers]
        may_fit = [pool for pool in new if all(map(pool.may_fit, needs))]
        if may_fit or len(wanted) < 2:
            return may_fit
        # Trials with unlike needs share the stage, and no pool is for all of them.
        by_needs = [self._fitting(view, frozenset({each}), pools) for each in wanted]
        return [pool for pool in pools if any(pool in fitting for fitting in by_needs)]

    def _fits(self, needs: Sequence[Needs], pool: WorkerPool) -> bool:
        """Whether workers of a pool, of one of its numeric classes, meet all of some needs."""
        known = self._offers.get(pool.name, pool.offer)
        return _fits_on(self._classes.get(pool.name, {None}), needs, known)

    def _may_renew(
        self, needs: Sequence[Needs], pool: WorkerPool, view: RunView, now: float
    ) -> bool:
        """Whether a pool may be asked for another worker, in the hope of another numeric class.

        Not while one of its workers is idle: it would be taken for the one that is asked for.
        """
        grown_at = self._grown_at.get(pool.name, math.inf)
        if now < grown_at + OTHER_NODE_SECONDS or len(pool.workers) >= pool.room:
            return False
        known, beside = self._offers[pool.name], {*view.beside}
        classes = {need.numerics for each in needs for need in each.alternatives}
        return _fits_on(classes, needs, known) and all(
            _is_busy(view, worker) or worker in beside for worker in pool.workers
        )


def slowest_steps(view: RunView, pools: Sequence[WorkerPool]) -> dict[str, float]:
    """Return the seconds per step of the slowest running stage of each pool; 0 if none runs."""
    steps = running_steps(view)
    return {
        pool.name: max((steps.get(worker, 0.0) for worker in pool.workers), default=0.0)
        for pool in pools
    }


def _fits_on(classes: Iterable[NumericClass | None], needs: Sequence[Needs], offer: Offer) -> bool:
    """Whether workers with an offer, on one of some numeric classes, meet all of some needs."""
    offers = [replace(offer, numerics=numerics) for numerics in classes]
    return any(all(each.fits(each_offer) for each in needs) for each_offer in offers)


def _is_busy(view: RunView, worker: str) -> bool:
    return worker in view.slots and view.is_busy(worker)


def _together(view: RunView, pool: WorkerPool) -> int:
    """Return how many stages a shared device of a pool trains now, where it trains most; 1 else."""
    if pool.sharers == 1:
        return 1
    return max(
        (1 + view.company(worker) for worker in pool.workers if _is_busy(view, worker)), default=1
    )


def _share_out(
    count: int,
    suitable: Sequence[WorkerPool],
    counts: dict[str, int],
    rooms: Mapping[str, int],
) -> set[str]:
    """Count stages for the first of the suitable pools that have room for so many stages.

    Return the pools that are to be asked for one worker more, since they may have room again. The
    stages count for another pool until such a worker is there: its job may stand in a long queue.
    """
    tried = set()
    for pool in suitable:
        taken = min(count, max(0, rooms[pool.name] - counts[pool.name]))
        counts[pool.name] += taken
        count -= taken
        if count and pool.is_tried:
            tried.add(pool.name)
    if count and suitable:
        # The pool keeps to its maximum. If SLURM refuses its jobs, it asks again.
        counts[suitable[0].name] += count
        tried.discard(suitable[0].name)
    return tried

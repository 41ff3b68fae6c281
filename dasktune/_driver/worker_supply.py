"""The supply of workers: a pool is asked for as many as the run can use, or others are awaited."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from dasktune._cluster.pools import ElasticCluster
from dasktune._driver.connection import Connection
from dasktune._driver.demand import RunDemand
from dasktune._driver.lost_workers import LostWorkers
from dasktune._driver.parts import Following, Part
from dasktune._driver.pool_demand import PoolDemand, slowest_steps
from dasktune.errors import ClusterError
from dasktune.graph.view import RunView

logger = logging.getLogger(__name__)


class WorkerSupply(Part):
    """Asks an elastic cluster for workers; without one, gives up when all are gone for long."""

    def __init__(
        self,
        view: RunView,
        cluster: Connection,
        lost: LostWorkers,
        demand: RunDemand,
        *,
        patience: float,
    ) -> None:
        self._view = view
        self._cluster = cluster
        self._lost = lost
        self._demand = demand
        self._patience = patience
        self._pool_demand = PoolDemand()
        self._deserted_at: float | None = None

    def turn(self, now: float) -> Iterable[Following]:
        """Tell pools the demand; raise a `ClusterError` if the run has no workers to come."""
        # Among the workers are those whose addresses are being looked up.
        has_workers = bool(self._view.slots) or self._lost.any_joined
        if self._cluster.elastic is not None:
            self._ask(self._cluster.elastic, now)
        elif has_workers:
            self._deserted_at = None
        elif self._deserted_at is None:
            self._deserted_at = now
            logger.warning("all workers are gone; waiting %.0f s for others", self._patience)
        elif now - self._deserted_at > self._patience:
            raise ClusterError(
                "the cluster must have a worker that can run stages; all are gone since "
                f"{self._patience:.0f} s. Start some and run this again: it goes on where it was"
            )
        return ()

    def _ask(self, cluster: ElasticCluster, now: float) -> None:
        """Tell the cluster how many workers of each pool can be used, and which are idle."""
        view = self._view
        # Workers may be there that fit none of the stages that are left.
        is_still = view.is_idle and not self._lost.any_joined
        if is_still and (trouble := cluster.trouble()) is not None:
            raise ClusterError(f"{trouble}. Run this again when it is mended: it goes on")
        kept = {*view.withheld, *view.paused}
        unused = (worker for worker in view.slots if not view.is_busy(worker))
        idle = [worker for worker in unused if worker not in kept]
        pools = cluster.pools()
        wanted = self._pool_demand.of(view, pools, now, left=self._demand.left)
        cluster.use(wanted, idle, slowest_steps(view, pools))

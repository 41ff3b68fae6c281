"""Clusters of users that a run scales by itself: up by demand, down to what it uses.

Dask's own adaptive scaling counts the tasks that the scheduler has. A run gives the scheduler few
of its stages at a time, so Dask would start too few workers; and Dask ends a worker without asking
whether it has a stage.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from inspect import isawaitable
from typing import Any

from distributed import Client
from distributed.core import Status

from dasktune._cluster.demand import Demand, are_at_rest, unused
from dasktune._cluster.pools import ElasticCluster, PoolStatus, WorkerPool, worker_bounds
from dasktune._engine.timeouts import (
    IDLE_SECONDS,
    RELEASE_SECONDS,
    RESUBMIT_SECONDS,
    SCALE_SECONDS,
)
from dasktune._words import counted
from dasktune.errors import ConfigurationError
from dasktune.needs import Offer

logger = logging.getLogger(__name__)

MOST_WORKERS = 1000
"""The most workers of a cluster whose `adapt` has no maximum."""


@contextmanager
def growing(
    client: Client,
    workers: int | str | None,
    *,
    releases: bool = True,
    idle_seconds: float = IDLE_SECONDS,
) -> Iterator[None]:
    """Have runs of a client scale its cluster within the bounds of `workers`.

    Without `workers`, this takes the place of the cluster's own `adapt`, if that is on, and keeps
    its bounds. `adapt` goes on afterwards; without it the workers beyond the least are ended then,
    if it `releases` them.

    Raises a `ConfigurationError` if no job of the cluster has as few workers as `workers` allows.
    """
    cluster: Any = client.cluster
    adaptive = getattr(cluster, "_adaptive", None)
    if adaptive is not None and adaptive.periodic_callback is None:
        adaptive = None  # it was stopped
    if isinstance(cluster, ElasticCluster) or (workers is None and adaptive is None):
        yield
        return
    bounds = worker_bounds(workers) or _bounds_of(adaptive)
    elastic = GrowingCluster(cluster, *bounds, idle_seconds=idle_seconds)
    if adaptive is not None:
        logger.info("%s.adapt() rests: the study itself asks for workers", elastic.name)
        elastic.stop(adaptive)
    client.cluster = elastic
    try:
        yield
    finally:
        client.cluster = cluster
        if adaptive is not None:
            least, most = adaptive.minimum, adaptive.maximum
            cluster.adapt(Adaptive=type(adaptive), minimum=least, maximum=most)
        elif releases:
            elastic.release()


class GrowingCluster:
    """A cluster of Dask with as many workers as a run can use, within bounds.

    Parameters
    ----------
    cluster
        Has `scale`, and where a run may choose the workers that end, `scale_down`.
    least, most
        Bounds of the number of workers.
    idle_seconds
        How long an idle worker, or a job without use, is kept.
    """

    def __init__(self, cluster: Any, least: int, most: int, *, idle_seconds: float) -> None:
        self.name = type(cluster).__name__
        self._cluster = cluster
        self._most = most
        # Of a job with several workers, all come and go together.
        self._width = _width(getattr(cluster, "new_spec", None) or {})
        if most < self._width:
            raise ConfigurationError(
                f"workers must allow the {self._width} workers of one job, got at most {most}"
            )
        self._demand = Demand(least=least, most=most, idle_seconds=idle_seconds)
        self._least = least
        self._wanted = least
        self._asked = 0
        """The number of workers that a cluster was asked for that does not tell it."""
        self._leaving: set[Any] = set()
        """The names of the jobs whose workers accept no more stages."""
        self._amounts: dict[str, float] | None = None
        """The most that workers have had of each amount; None before the first worker."""
        self._problem = ""
        self._next = 0.0
        self._not_before = 0.0
        self._adjusting: Future[None] | None = None

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the cluster itself: clients of Dask read its status."""
        return getattr(self._cluster, name)

    # ------------------------------------------------------------------- for the driver

    def use(
        self, wanted: Mapping[str, int], idle: Collection[str], step_seconds: Mapping[str, float]
    ) -> None:
        """Record the number of usable workers and the idle ones; adjust the cluster to them."""
        now = time.monotonic()
        self._wanted = sum(wanted.values())
        self._demand.note(self._wanted, idle, now)
        is_done = self._adjusting is None or self._adjusting.done()
        if is_done and now >= self._next:
            self._next = now + SCALE_SECONDS
            self._adjusting = self._in_loop(self._adjust())

    def trouble(self) -> str | None:
        """Return why no worker comes; None while one may come."""
        if self._problem and not self._size(self._jobs()):
            return f"{self.name} cannot start workers: {self._problem}"
        return None

    def waiting(self) -> str:
        """Return the number of workers that are awaited, in words."""
        jobs = self._jobs()
        asked, here = self._size(jobs), sum(map(len, jobs.values()))
        return f"{self.name} has {here:,} of {counted(asked, 'worker')} that it was asked for"

    def pools(self) -> Sequence[WorkerPool]:
        """Return the one pool: all workers of the cluster are alike."""
        jobs, workers = self._jobs(), self._workers()
        for info in workers.values():
            self._amounts = self._amounts or {}
            for name, amount in (info.get("resources") or {}).items():
                self._amounts[name] = max(amount, self._amounts.get(name, 0.0))
        status = PoolStatus(
            name=self.name,
            workers=len(workers),
            most=self._most,
            wanted=self._wanted,
            queued=max(0, self._size(jobs) - len(workers)),
            running=len(workers),
            reason="" if workers else self.trouble() or self.waiting(),
            is_refused=self.trouble() is not None,
        )
        return [
            WorkerPool(
                name="",
                offer=Offer.of(self._amounts or {}, self.name),
                workers=frozenset(workers),
                room=self._most,
                is_known=self._amounts is not None,
                status=status,
            )
        ]

    def release(self) -> None:
        """End the workers beyond the least that have nothing to do; the run has ended."""
        try:
            if self._adjusting is not None:
                self._adjusting.cancel()
            self._in_loop(self._shrink_to_least()).result(RELEASE_SECONDS)
        except TimeoutError:
            logger.info("%s still ends its idle workers", self.name)
        except Exception as error:  # noqa: BLE001 - whatever a cluster raises, the run has ended
            logger.warning("%s did not end its idle workers: %r", self.name, error)

    def stop(self, adaptive: Any) -> None:
        """Stop the adaptive scaling of the cluster."""

        async def stop() -> None:
            adaptive.stop()

        self._in_loop(stop()).result()

    # ---------------------------------------------------------- in the cluster's event loop

    def _in_loop(self, work: Any) -> Future[None]:
        return asyncio.run_coroutine_threadsafe(work, self._cluster.loop.asyncio_loop)

    async def _adjust(self) -> None:
        """Ask for missing workers, or end some that nothing needs."""
        now = time.monotonic()
        try:
            await self._fit(self._demand.target, set(self._demand.long_idle(now)), now)
        except Exception as error:  # noqa: BLE001 - the cluster may be of any kind
            problem = f"{type(error).__name__}: {error}"
            if problem != self._problem:
                logger.warning("%s cannot be scaled: %s", self.name, problem)
            self._problem, self._not_before = problem, now + RESUBMIT_SECONDS

    async def _fit(self, target: int, idle: Collection[str], now: float) -> None:
        jobs = self._jobs()
        # Whole jobs, within the bounds also while some leave.
        most = self._most // self._width * self._width
        target = min(-(-target // self._width) * self._width, most)
        staying = {name: here for name, here in jobs.items() if name not in self._leaving}
        missing = target - self._size(staying)
        if missing < 0:
            await self._shrink(-missing, staying, idle)
        elif now >= self._not_before:
            size = min(self._size(jobs) + missing, most)
            if size > self._size(jobs) or self._lost_jobs():
                await self._grow(max(size, self._size(jobs)))
                self._problem = ""
        await self._end_those_at_rest()

    def _lost_jobs(self) -> list[Any]:
        """Return the jobs that Dask has given up, since their workers were away for long."""
        return [name for name in self._spec() or () if name not in self._cluster.workers]

    async def _grow(self, size: int) -> None:
        """Ask for workers; jobs that cannot be started are forgotten."""
        cluster = self._cluster
        await _done(cluster.scale(size))
        self._asked = size
        if (spec := self._spec()) is None:
            return
        try:
            # This raises what `scale` keeps for itself. It is shielded from the end of the run.
            await asyncio.shield(cluster)
        except Exception:
            failed = [
                name
                for name in spec
                if name in cluster.workers and cluster.workers[name].status != Status.running
            ]
            for name in failed:
                if cluster.workers[name].status == Status.created:
                    # A cluster of dask-jobqueue would wonder about it when it is closed.
                    cluster.workers[name].status = Status.failed
            await _done(cluster.scale_down(failed))
            raise

    async def _shrink(
        self, surplus: int, jobs: Mapping[Any, Sequence[str]], idle: Collection[str]
    ) -> None:
        """Choose jobs to end: those that wait in a queue first, then those long idle."""
        unused = [name for name in reversed(jobs) if not jobs[name]]
        unused += [name for name, here in jobs.items() if here and set(idle).issuperset(here)]
        if hasattr(self._cluster, "scale_down"):
            self._leaving.update(unused[: surplus // self._width])
            return
        # Such a cluster chooses by itself: workers that have not come yet, or idle ones.
        size = self._size(jobs)
        fewer = min(surplus, size - len(jobs) + len(unused))
        if fewer:
            self._asked = size - fewer
            await _done(self._cluster.scale(self._asked))

    async def _end_those_at_rest(self) -> None:
        """End the workers of leaving jobs: never one that trains."""
        jobs, scheduler = self._jobs(), self._cluster.scheduler_comm
        self._leaving &= jobs.keys()
        resting = {
            name: jobs[name]
            for name in self._leaving
            if jobs[name] and await are_at_rest(scheduler, jobs[name])
        }
        if resting:
            # Results of the user's other tasks there go to other workers; the cluster closes these.
            workers = [worker for here in resting.values() for worker in here]
            await scheduler.retire_workers(workers=workers, close_workers=False, remove=False)
        # Of a job that waited, workers may have come meanwhile.
        jobs = self._jobs()
        gone = [name for name in self._leaving if name in resting or not jobs.get(name)]
        if gone:
            await _done(self._cluster.scale_down(gone))
            self._leaving.difference_update(gone)

    async def _shrink_to_least(self) -> None:
        # Not those of another study, which may be between two stages.
        idle = await unused(self._cluster.scheduler_comm, [*self._workers()])
        staying = {name: here for name, here in self._jobs().items() if name not in self._leaving}
        await self._shrink(max(0, self._size(staying) - self._least), staying, idle)
        while self._leaving:  # they accept nothing more, of any study
            await self._end_those_at_rest()
            if self._leaving:
                await asyncio.sleep(SCALE_SECONDS)

    def _spec(self) -> dict[Any, dict[str, Any]] | None:
        """Return the jobs that the cluster should have, if it tells them."""
        spec: dict[Any, dict[str, Any]] | None = getattr(self._cluster, "worker_spec", None)
        return spec

    def _workers(self) -> dict[str, Mapping[str, Any]]:
        """Return the scheduler's description of each worker, by address."""
        return dict(self._cluster.scheduler_info.get("workers", {}))

    def _jobs(self) -> dict[Any, list[str]]:
        """Return the addresses of the workers of each job, by the job's name in the cluster."""
        spec, workers = self._spec(), self._workers()
        if spec is None:
            return {info["name"]: [address] for address, info in workers.items()}
        by_name = {str(info["name"]): address for address, info in workers.items()}
        # A copy: the driver's thread asks, too, while the cluster's own changes it.
        names = {job: [f"{job}{end}" for end in _group(each)] for job, each in dict(spec).items()}
        return {job: [by_name[n] for n in names[job] if n in by_name] for job in names}

    def _size(self, jobs: Mapping[Any, Sequence[str]]) -> int:
        """Return the number of workers of some jobs, those included that are awaited."""
        if self._spec() is None:
            return max(len(jobs), self._asked)
        return len(jobs) * self._width


def _bounds_of(adaptive: Any) -> tuple[int, int]:
    """Return the bounds of Dask's adaptive scaling."""
    return adaptive.minimum, int(min(adaptive.maximum, MOST_WORKERS))


async def _done(call: object) -> None:
    """Wait for a call of a cluster, which may be asynchronous."""
    if isawaitable(call):
        await call


def _group(job: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the endings of the names of a job's workers."""
    return tuple(job.get("group", ("",)))


def _width(job: Mapping[str, Any]) -> int:
    return len(_group(job))

"""The jobs of a cluster in pools; a job is replaced once SLURM reports its end."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from dask_jobqueue.slurm import SLURMCluster, SLURMJob
from distributed.deploy.spec import ProcessInterface

from dasktune._cluster.demand import drain
from dasktune._cluster.pools import WorkerPool
from dasktune._engine.timeouts import JOB_LIST_SECONDS
from dasktune.errors import ClusterError
from dasktune.slurm.commands import job_states, words
from dasktune.slurm.job_pool import PENDING, JobPool

logger = logging.getLogger(__name__)


class WorkerJob(SLURMJob):
    """A job of workers; it keeps the text of SLURM's refusal."""

    refusal = ""

    async def start(self) -> None:
        """Submit the job."""
        try:
            await super().start()  # type: ignore[no-untyped-call]
        except (RuntimeError, OSError) as error:
            self.refusal = words(str(error).rpartition("stderr:\n")[2])
            await ProcessInterface.start(self)


class SlurmWorkers(SLURMCluster):
    """A Dask cluster of jobs; their number follows the demand within the bounds of each pool.

    Parameters
    ----------
    pools
        The pools, the preferred one first.
    jobs
        Arguments of the jobs of each pool, by its name.
    keywords
        Arguments of ``SLURMCluster``.
    """

    job_cls = WorkerJob

    def __init__(
        self, *, pools: Sequence[JobPool], jobs: Mapping[str, Mapping[str, Any]], **keywords: Any
    ) -> None:
        self._pools = {pool.name: pool for pool in pools}
        self._pool_of: dict[str, JobPool] = {}
        self._workers: dict[str, str] = {}
        """The names of the jobs of the workers, by the workers' addresses."""
        self._has_ended = threading.Event()
        self._numbers = count()
        super().__init__(**keywords)
        self._specs = {name: self._spec(jobs[name]) for name in self._pools}

    def _spec(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the specification from which Dask starts a job with these options."""
        workers = range(options["processes"])
        group = {"group": [f"-{number}" for number in workers]} if len(workers) > 1 else {}
        return {"cls": self.job_cls, "options": {**self._job_kwargs, **options}, **group}

    def use(
        self, wanted: Mapping[str, int], idle: Collection[str], step_seconds: Mapping[str, float]
    ) -> None:
        """Record the usable workers and the slowest step by pool, and the idle workers."""
        now = time.monotonic()
        for name, pool in self._pools.items():
            pool.use(wanted.get(name, 0), idle, step_seconds.get(name, 0.0), now)

    def trouble(self) -> str | None:
        """Return why no worker that can be used comes; None while one may come."""
        pools = list(self._pools.values())
        wanted = [pool for pool in pools if pool.is_wanted] or pools
        troubles = [pool.trouble() for pool in wanted]
        return None if None in troubles else "\n".join(filter(None, troubles))

    def waiting(self) -> str:
        """Return the states of the jobs, in words."""
        return "; ".join(pool.waiting() for pool in self._pools.values())

    def pools(self) -> list[WorkerPool]:
        """Return the pools; a stage is for the first one that it fits and that has room."""
        workers: dict[str, list[str]] = {}
        for address, job in list(self._workers.items()):
            if (pool := self._pool_of.get(job)) is not None:
                workers.setdefault(pool.name, []).append(address)
        now = time.monotonic()
        return [
            pool.seen(frozenset(workers.get(name, ())), now) for name, pool in self._pools.items()
        ]

    def _add_job(self, pool: JobPool) -> None:
        """Have Dask start a job of a pool."""
        # Dask would take a job with a used name for the earlier job.
        name = "-".join(filter(None, ("dasktune", str(next(self._numbers)), pool.name)))
        self._pool_of[name] = pool
        self.worker_spec[name] = self._specs[pool.name]

    def _update_worker_status(self, op: str, msg: Any) -> None:
        """Note a worker that came or went; Dask calls this."""
        if op == "add":
            for address, worker in msg["workers"].items():
                job = self._job_of(worker["name"])
                self._workers[address] = job
                if job in self._pool_of:
                    self._pool_of[job].arrived(job)
        elif op == "remove":
            self._workers.pop(msg, None)
        super()._update_worker_status(op, msg)  # type: ignore[no-untyped-call]

    def _job_of(self, worker: str) -> str:
        """Return the name of a worker's job."""
        return worker if worker in self._pool_of else str(worker).rpartition("-")[0]

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Manage the jobs in a thread until the block ends."""
        thread = threading.Thread(target=self._look_often, name="dasktune-slurm", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._has_ended.set()
            thread.join()

    def _look_often(self) -> None:
        problem = ""
        while not self._has_ended.is_set():
            # Read before the query: its answer lacks jobs that are submitted meanwhile.
            submitted = {name: job.job_id for name, job in [*self.workers.items()] if job.job_id}
            try:
                states = job_states()
            except ClusterError as error:
                if not problem:
                    logger.warning("%s; jobs are left as they are until it answers", error)
                problem = str(error)
            else:
                problem = ""
                self._mend_now(submitted, states)
            self._has_ended.wait(JOB_LIST_SECONDS)

    def _mend_now(self, submitted: Mapping[str, str], states: Mapping[str, str]) -> None:
        try:
            self.sync(self._mend, submitted, states)  # type: ignore[no-untyped-call]
        except Exception:
            # An exception would end the thread, and with it the management of all jobs.
            logger.exception("the jobs could not be managed; dasktune tries again")

    async def _mend(self, submitted: Mapping[str, str], states: Mapping[str, str]) -> None:
        """Forget ended jobs, cancel those without use, and submit missing ones."""
        for pool in self._pools.values():
            own = {name: job for name, job in submitted.items() if self._pool_of[name] is pool}
            pool.listed(own.values(), states)
        now = time.monotonic()
        for name, job in list(self.workers.items()):
            if name in self.worker_spec:
                is_gone = name in submitted and submitted[name] not in states
                self._check(name, job, now, is_gone=is_gone)
        is_hopeless = self.trouble() is not None
        for pool in self._pools.values():
            surplus = len(self._jobs_of(pool)) - len(pool.leaving) - pool.target
            await self._reduce(pool, surplus, now, states)
            for _ in range(pool.missing(len(self._jobs_of(pool)), now, is_hopeless=is_hopeless)):
                self._add_job(pool)
        self.scale(jobs=len(self.worker_spec))  # type: ignore[no-untyped-call]

    def _jobs_of(self, pool: JobPool) -> list[str]:
        """Return the names of a pool's jobs, the oldest first."""
        return [name for name in self.worker_spec if self._pool_of[name] is pool]

    def _check(self, name: str, job: WorkerJob, now: float, *, is_gone: bool) -> None:
        """Forget a job that SLURM refused or that has ended."""
        pool = self._pool_of[name]
        if job.refusal:
            pool.refused(job.refusal, now)
        elif is_gone:
            pool.ended(name, str(job.job_id), Path(job.log_directory), now)
        else:
            return
        del self.worker_spec[name]

    async def _reduce(
        self, pool: JobPool, surplus: int, now: float, states: Mapping[str, str]
    ) -> None:
        """Cancel jobs in the queue, the last first, and ask idle workers to leave."""
        if surplus <= 0:
            return
        jobs = [name for name in reversed(self._jobs_of(pool)) if name not in pool.leaving]
        waiting = [name for name in jobs if self._is_pending(name, states)]
        for name in waiting[:surplus]:
            del self.worker_spec[name]
        for name, workers in list(self._idle_jobs(pool, now))[: max(0, surplus - len(waiting))]:
            pool.leaving.add(name)
            if self.scheduler is None or not await drain(self.scheduler, workers):
                pool.leaving.discard(name)

    def _is_pending(self, name: str, states: Mapping[str, str]) -> bool:
        job = self.workers.get(name)
        return job is not None and states.get(job.job_id, "").startswith(PENDING)

    def _idle_jobs(self, pool: JobPool, now: float) -> Iterator[tuple[str, list[str]]]:
        """Yield the jobs whose workers were all idle for long, with the workers' addresses."""
        workers: dict[str, list[str]] = {}
        for address, job in self._workers.items():
            workers.setdefault(job, []).append(address)
        idle = set(pool.demand.long_idle(now))
        for name in self._jobs_of(pool):
            here = workers.get(name, [])
            if here and idle.issuperset(here) and name not in pool.leaving:
                yield name, here

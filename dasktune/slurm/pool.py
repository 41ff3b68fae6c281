"""The jobs of a cluster: replaced when SLURM says that they have ended, and no sooner."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any

from dask_jobqueue.slurm import SLURMCluster, SLURMJob
from distributed.deploy.spec import ProcessInterface

from dasktune.errors import ClusterError
from dasktune.slurm.commands import call, words
from dasktune.slurm.demand import Demand
from dasktune.slurm.options import SlurmOptions

logger = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
"""How often SLURM is asked how the jobs stand."""

AGAIN_SECONDS = 30.0
"""How long nothing is submitted after SLURM has refused a job."""

STILLBORN = 3
"""Jobs one after the other that ended before their worker was there: more would, too."""


class WorkerJob(SLURMJob):
    """A job of one worker; a refusal of SLURM is kept, for whoever submits the next."""

    refusal = ""

    async def start(self) -> None:
        """Submit it."""
        try:
            await super().start()  # type: ignore[no-untyped-call]
        except (RuntimeError, OSError) as error:
            self.refusal = words(str(error).rpartition("stderr:\n")[2])
            await ProcessInterface.start(self)


class SlurmWorkers(SLURMCluster):
    """A Dask cluster of jobs, as many as can be used within bounds.

    Parameters
    ----------
    options
        What is asked of SLURM.
    keywords
        Those of ``SLURMCluster``.
    """

    job_cls = WorkerJob

    def __init__(self, *, options: SlurmOptions, **keywords: Any) -> None:
        self._demand = Demand(least=options.least, most=options.most)
        self._states: Mapping[str, str] = {}
        self._met: set[str] = set()
        self._stillborn = 0
        self._refusal = ""
        self._not_before = 0.0
        self._has_ended = threading.Event()
        self._numbers = count()
        super().__init__(**keywords)

    def use(self, wanted: int, idle: Collection[str]) -> None:
        """Take in how many workers could be used, and which have nothing to do."""
        self._demand.note(wanted, idle, time.monotonic())

    def trouble(self) -> str | None:
        """Return why there will be no worker; None if one may come."""
        if self._stillborn >= STILLBORN:
            return (
                f"{self._stillborn} jobs of SLURM ended before their worker was there; "
                f"{self._dummy_job.log_directory} says why"
            )
        if self._refusal and not self._states:
            return f"SLURM refuses jobs: {self._refusal}"
        return None

    def waiting(self) -> str:
        """Return in words how the jobs stand."""
        jobs = (f"{job} {state}" for job, state in sorted(self._states.items()))
        return f"jobs of SLURM: {', '.join(jobs) or 'none yet'}"

    def _new_worker_name(self, worker_number: int) -> str:
        """Return a name that no job has had: Dask takes a new one of an old name for the old."""
        return f"dasktune-{next(self._numbers)}"

    def _update_worker_status(self, op: str, msg: Any) -> None:
        """Take in that a worker came or went; called by Dask."""
        if op == "add":
            self._met |= {worker["name"] for worker in msg["workers"].values()}
        super()._update_worker_status(op, msg)  # type: ignore[no-untyped-call]

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Look after the jobs meanwhile."""
        thread = threading.Thread(target=self._look_often, name="dasktune-slurm", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._has_ended.set()
            thread.join()

    def _look_often(self) -> None:
        while not self._has_ended.is_set():
            # Before SLURM is asked: of a job that is submitted meanwhile it says nothing.
            submitted = {job.job_id for job in list(self.workers.values()) if job.job_id}
            try:
                self._states = job_states()
            except ClusterError as error:
                logger.warning("%s", error)
            else:
                gone = submitted - self._states.keys()
                self.sync(self._mend, gone)  # type: ignore[no-untyped-call]
            self._has_ended.wait(LOOK_SECONDS)

    async def _mend(self, gone: set[str]) -> None:
        """Let go of jobs that have ended or are not needed, and submit those that are."""
        now = time.monotonic()
        workers = self.scheduler_info["workers"]
        present = {worker["name"] for worker in workers.values()}
        if present:
            self._stillborn, self._refusal = 0, ""
        for name, job in list(self.workers.items()):
            if job.refusal or job.job_id in gone:
                self._take_leave(name, job, now)
        target = self._demand.target
        names = {address: worker["name"] for address, worker in workers.items()}
        idle = [names[one] for one in self._demand.long_idle(now) if one in names]
        absent = [name for name in self.worker_spec if name not in present]
        for name in [*absent, *idle][: max(0, len(self.worker_spec) - target)]:
            del self.worker_spec[name]
        can_submit = now >= self._not_before and self._stillborn < STILLBORN
        wanted = max(len(self.worker_spec), target if can_submit else 0)
        self.scale(wanted)  # type: ignore[no-untyped-call]

    def _take_leave(self, name: str, job: WorkerJob, now: float) -> None:
        self.worker_spec.pop(name, None)
        if job.refusal:
            if job.refusal != self._refusal:
                logger.warning("SLURM refuses a job: %s", job.refusal)
            self._refusal, self._not_before = job.refusal, now + AGAIN_SECONDS
        elif name not in self._met:
            self._stillborn += 1
            logger.warning("job %s ended before its worker was there", job.job_id)


def job_states() -> dict[str, str]:
    """Return the state of each job of this user that has not ended, with its reason, by id.

    Raises
    ------
    ClusterError
        If SLURM does not answer.
    """
    done = call("squeue", "-h", "-u", str(os.getuid()), "-o", "%i %T (%r)")
    if done.returncode:
        raise ClusterError(f"squeue: {words(done.stderr)}")
    found = (line.partition(" ") for line in done.stdout.splitlines())
    return {job: state.removesuffix(" (None)") for job, _, state in found}

"""The jobs of a cluster; a job is replaced once SLURM reports its end."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from dask_jobqueue.slurm import SLURMCluster, SLURMJob
from distributed.deploy.spec import ProcessInterface

from dasktune.engine.timeouts import JOB_LIST_SECONDS, RESUBMIT_SECONDS
from dasktune.errors import ClusterError
from dasktune.needs import Offer
from dasktune.slurm.commands import job_states, words
from dasktune.slurm.options import SlurmOptions
from dasktune.slurm.scaling import Demand, drain

logger = logging.getLogger(__name__)

STILLBORN = 3
"""Number of successive jobs without a worker after which further ones seem useless."""

LAST_LINES = 10
"""Lines of the log of a job that ended too soon, for the message."""


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
    """A Dask cluster of jobs; their number follows the demand within bounds.

    Parameters
    ----------
    options
        Options of the jobs.
    keywords
        Arguments of ``SLURMCluster``.
    """

    job_cls = WorkerJob

    def __init__(self, *, options: SlurmOptions, **keywords: Any) -> None:
        self._options = options
        self._demand = Demand(
            least=options.least, most=options.most, idle_seconds=options.idle_seconds
        )
        self._states: Mapping[str, str] = {}
        self._accepted: set[str] = set()
        self._met: set[str] = set()
        self._leaving: set[str] = set()
        self._stillborn = 0
        self._last_words = ""
        self._refusal = ""
        self._not_before = 0.0
        self._is_slow = False
        self._has_ended = threading.Event()
        self._numbers = count()
        super().__init__(**keywords)

    def use(self, wanted: int, idle: Collection[str], step_seconds: float = 0.0) -> None:
        """Record the number of usable workers, the idle ones and the time of a step."""
        self._demand.note(wanted, idle, time.monotonic())
        if step_seconds > self._options.margin_seconds and not self._is_slow:
            self._is_slow = True
            logger.warning(
                "a step takes %.0f s, and workers stop %d s before their walltime ends: margin "
                "must be longer, or the last steps of each job are lost",
                step_seconds,
                self._options.margin_seconds,
            )

    def trouble(self) -> str | None:
        """Return why no worker can come; None while one may come."""
        if self._stillborn >= STILLBORN and not self._met:
            return (
                f"{self._stillborn} jobs of SLURM ended before their worker was there; "
                f"{self._last_words}"
            )
        if self._refusal and not self._met and not self._living:
            return f"SLURM refuses jobs: {self._refusal}"
        return None

    def waiting(self) -> str:
        """Return the states of the jobs, in words."""
        jobs = (f"{job} {state}" for job, state in sorted(self._living.items()))
        refused = f"; SLURM refuses more: {self._refusal}" if self._refusal else ""
        return f"jobs of SLURM: {', '.join(jobs) or 'none yet'}{refused}"

    def offers(self) -> list[Offer]:
        """Return the offer of its workers; their hardware may give them more tags."""
        gpus = self._options.gpus_per_worker
        tags = [tag.lower() for tag in self._options.tags]
        return [Offer.of({"GPU": gpus} if gpus else {}, "jobs of SLURM", tags)]

    @property
    def _living(self) -> dict[str, str]:
        """The states of this cluster's jobs that have not ended, by id."""
        return {job: state for job, state in self._states.items() if job in self._accepted}

    def _new_worker_name(self, worker_number: int) -> str:
        """Return a new name: Dask would take a job with a used name for the earlier job."""
        return f"dasktune-{next(self._numbers)}"

    def _update_worker_status(self, op: str, msg: Any) -> None:
        """Note a worker that came or went; Dask calls this."""
        if op == "add":
            new = {self._job_of(worker["name"]) for worker in msg["workers"].values()} - self._met
            self._met |= new
            self._stillborn = 0 if new else self._stillborn
        super()._update_worker_status(op, msg)  # type: ignore[no-untyped-call]

    def _job_of(self, worker: str) -> str:
        """Return the name of a worker's job."""
        return worker if self._options.workers_per_job == 1 else str(worker).rpartition("-")[0]

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
            submitted = {job.job_id for job in list(self.workers.values()) if job.job_id}
            try:
                self._states = job_states()
            except ClusterError as error:
                if not problem:
                    logger.warning("%s; jobs are left as they are until it answers", error)
                problem = str(error)
            else:
                problem = ""
                self._mend_now(submitted)
            self._has_ended.wait(JOB_LIST_SECONDS)

    def _mend_now(self, submitted: set[str]) -> None:
        try:
            self.sync(self._mend, submitted)  # type: ignore[no-untyped-call]
        except Exception:
            # An exception would end the thread, and with it the management of all jobs.
            logger.exception("the jobs could not be managed; dasktune tries again")

    async def _mend(self, submitted: set[str]) -> None:
        """Forget ended jobs, cancel those without use, and submit missing ones."""
        now = time.monotonic()
        if submitted - self._accepted:
            self._refusal = ""
        self._accepted |= submitted
        gone = submitted - self._states.keys()
        for name, job in list(self.workers.items()):
            has_ended = job.refusal or job.job_id in gone
            if has_ended and name in self.worker_spec:
                self._forget(name, job, now)
        target = -(-self._demand.target // self._options.workers_per_job)
        await self._reduce(len(self.worker_spec) - len(self._leaving) - target, now)
        is_hopeless = self._stillborn >= STILLBORN and not self._met
        can_submit = now >= self._not_before and not is_hopeless
        wanted = target + len(self._leaving) if can_submit else 0
        self.scale(jobs=max(len(self.worker_spec), wanted))  # type: ignore[no-untyped-call]

    def _forget(self, name: str, job: WorkerJob, now: float) -> None:
        """Forget a job that SLURM refused or that has ended."""
        del self.worker_spec[name]
        was_leaving = name in self._leaving
        self._leaving.discard(name)
        if job.refusal:
            if job.refusal != self._refusal:
                logger.warning(
                    "SLURM refuses a job, and is asked again every %.0f s: %s",
                    RESUBMIT_SECONDS,
                    job.refusal,
                )
            self._refusal, self._not_before = job.refusal, now + RESUBMIT_SECONDS
        elif name not in self._met and not was_leaving:
            self._stillborn += 1
            self._last_words = last_words(Path(job.log_directory), str(job.job_id))
            logger.warning(
                "job %s ended before its worker was there; %s", job.job_id, self._last_words
            )
            if self._stillborn >= STILLBORN:
                self._not_before = now + RESUBMIT_SECONDS

    async def _reduce(self, surplus: int, now: float) -> None:
        """Cancel jobs in the queue, the last first, and ask idle workers to leave."""
        if surplus <= 0:
            return
        waiting = [name for name in reversed(self.worker_spec) if self._is_pending(name)]
        for name in waiting[:surplus]:
            del self.worker_spec[name]
        for name, workers in list(self._idle_jobs(now))[: max(0, surplus - len(waiting))]:
            self._leaving.add(name)
            if self.scheduler is None or not await drain(self.scheduler, workers):
                self._leaving.discard(name)

    def _is_pending(self, name: str) -> bool:
        job = self.workers.get(name)
        state = "" if job is None else self._states.get(job.job_id, "")
        return state.startswith("PENDING") and name not in self._leaving

    def _idle_jobs(self, now: float) -> Iterator[tuple[str, list[str]]]:
        """Yield the jobs whose workers were all idle for long, with the workers' addresses."""
        workers: dict[str, list[str]] = {}
        for address, worker in self.scheduler_info["workers"].items():
            workers.setdefault(self._job_of(worker["name"]), []).append(address)
        idle = set(self._demand.long_idle(now))
        for name in self.worker_spec:
            here = workers.get(name, [])
            if here and idle.issuperset(here) and name not in self._leaving:
                yield name, here


def last_words(folder: Path, job: str) -> str:
    """Return the last lines of a job's log."""
    for path in sorted(folder.glob(f"*-{job}.*"), key=lambda path: path.suffix != ".err"):
        try:
            lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
        except OSError:
            continue
        if lines:
            return "\n".join([f"{path} ends:", *lines[-LAST_LINES:]])
    return f"{folder} says why"

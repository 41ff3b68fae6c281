"""One pool of jobs: its options, its demand, and what became of its jobs."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from pathlib import Path

from dasktune._cluster.demand import Demand
from dasktune._cluster.pools import PoolStatus, WorkerPool
from dasktune._engine.timeouts import RESUBMIT_SECONDS
from dasktune.needs import Offer
from dasktune.slurm.options import SlurmOptions

logger = logging.getLogger(__name__)

STILLBORN = 3
"""Number of successive jobs without a worker after which further ones seem useless."""

LAST_LINES = 10
"""Lines of the log of a job that ended too soon, for the message."""

PENDING = "PENDING"
"""The state of a job in the queue, with which SLURM's text begins."""


class JobPool:
    """The jobs of one pool, as far as they are known.

    Parameters
    ----------
    name
        Its name among the pools of the cluster; empty if there is no other.
    refusal
        Why SLURM would refuse its jobs; empty if it would accept them.

    Attributes
    ----------
    demand
        The number of workers that it should have.
    living
        The states of its jobs that have not ended, by id.
    met
        The names of the jobs whose workers were there.
    leaving
        The names of the jobs whose workers were asked to leave.
    """

    def __init__(self, name: str, options: SlurmOptions, refusal: str = "") -> None:
        self.name, self.options = name, options
        self.demand = Demand(
            least=options.least, most=options.most, idle_seconds=options.idle_seconds
        )
        self.living: Mapping[str, str] = {}
        self.met: set[str] = set()
        self.leaving: set[str] = set()
        self._accepted: set[str] = set()
        self._wanted = options.least
        self._stillborn = 0
        self._last_words = ""
        self._refusal = refusal
        self._not_before = 0.0
        self._refused_at: float | None = None
        self._is_slow = False

    @property
    def target(self) -> int:
        """The number of jobs that there should be."""
        return -(-self.demand.target // self.options.processes)

    @property
    def is_wanted(self) -> bool:
        """Whether something can be done on its workers."""
        return self._wanted > 0

    @property
    def title(self) -> str:
        """Its name in words."""
        return f"pool {self.name} of SLURM" if self.name else "jobs of SLURM"

    def use(self, wanted: int, idle: Collection[str], step_seconds: float, now: float) -> None:
        """Record the number of usable workers, idle workers, and the slowest step in seconds."""
        self._wanted = wanted
        if self._refusal and self._refused_at is None:
            self._refused_at = now  # it was refused before the first use
        self.demand.note(wanted, idle, now)
        if step_seconds > self.options.margin_seconds and not self._is_slow:
            self._is_slow = True
            logger.warning(
                "%sa step takes %.0f s, and workers stop %d s before their walltime ends: margin "
                "must be longer, or the last steps of each job are lost",
                self._prefix,
                step_seconds,
                self.options.margin_seconds,
            )

    def trouble(self) -> str | None:
        """Return why it can have no worker; None while one may come."""
        if self._stillborn >= STILLBORN and not self.met:
            text = f"{self._stillborn} jobs of SLURM ended before their worker was there"
            return f"{self._prefix}{text}; {self._last_words}"
        if self._refusal and not self.met and not self.living:
            return f"{self._prefix}SLURM refuses jobs: {self._refusal}"
        return None

    def waiting(self) -> str:
        """Return the states of the jobs, in words."""
        jobs = (f"{job} {state}" for job, state in sorted(self.living.items()))
        refused = f"; SLURM refuses more: {self._refusal}" if self._refusal else ""
        return f"{self.title}: {', '.join(jobs) or 'none yet'}{refused}"

    def offer(self) -> Offer:
        """Return the offer of its workers; their hardware may give them more tags."""
        gpus = self.options.gpus_per_worker
        tags = [tag.lower() for tag in self.options.tags]
        return Offer.of({"GPU": gpus} if gpus else {}, self.title, tags)

    def seen(self, workers: frozenset[str], now: float) -> WorkerPool:
        """Return the pool as a run sees it, with the addresses of its workers.

        `now` is in seconds, by the clock of `use`.
        """
        is_refused = bool(self._refusal) or self.trouble() is not None
        here = max(len(workers), len(self.living) * self.options.processes)
        queued = sum(1 for state in self.living.values() if state.startswith(PENDING))
        return WorkerPool(
            name=self.name,
            offer=self.offer(),
            workers=workers,
            sharers=self.options.trials_per_gpu,
            room=min(here, self.options.most) if is_refused else self.options.most,
            is_tried=is_refused and here < self.options.most and self._may_try(now),
            status=PoolStatus(
                name=self.title,
                workers=len(workers),
                most=self.options.most,
                wanted=self._wanted,
                queued=queued,
                running=len(self.living) - queued,
                reason="" if workers else self._reason(),
                is_refused=is_refused,
            ),
        )

    def _may_try(self, now: float) -> bool:
        """Whether it is time to submit one job more than were accepted.

        Its stages count for another pool meanwhile, so they would never ask for this job.
        """
        is_paused = self._refused_at is None or now < self._refused_at + RESUBMIT_SECONDS
        is_trying = self._stillborn >= STILLBORN and bool(self.living)
        return not is_paused and not is_trying

    def _reason(self) -> str:
        """Return why it has no worker."""
        if (trouble := self.trouble()) is not None:
            return trouble.removeprefix(self._prefix)
        if self._refusal:
            return f"SLURM refuses jobs: {self._refusal}"
        if self.living:
            return f"its jobs: {', '.join(sorted(set(self.living.values())))}"
        return "its jobs are not submitted yet" if self.target else "no stage is for it"

    @property
    def _prefix(self) -> str:
        """Begins a message of one pool among several."""
        return f"pool {self.name}: " if self.name else ""

    # ---------------------------------------------------------------- what becomes of its jobs

    def listed(self, submitted: Collection[str], states: Mapping[str, str]) -> None:
        """Note its submitted jobs, by id, and the states of all jobs of this user."""
        if not self._accepted.issuperset(submitted):
            self._refusal = ""
        self._accepted.update(submitted)
        self.living = {job: state for job, state in states.items() if job in self._accepted}

    def arrived(self, name: str) -> None:
        """Note that a worker of a job is there, by the job's name."""
        if name not in self.met:
            self.met.add(name)
            self._stillborn = 0

    def refused(self, text: str, now: float) -> None:
        """Note that SLURM refused a job."""
        if text != self._refusal:
            logger.warning(
                "%sSLURM refuses a job, and is asked again every %.0f s: %s",
                self._prefix,
                RESUBMIT_SECONDS,
                text,
            )
        self._refusal = text
        self._pause(now)

    def ended(self, name: str, job: str, folder: Path, now: float) -> None:
        """Note that a job has ended, by its name, its id and the folder of its log."""
        if name in self.leaving:
            self.leaving.discard(name)
        elif name not in self.met:
            self._stillborn += 1
            self._last_words = last_words(folder, job)
            logger.warning("job %s ended before its worker was there; %s", job, self._last_words)
            if self._stillborn >= STILLBORN:
                self._pause(now)

    def _pause(self, now: float) -> None:
        """Submit no job for a while."""
        self._refused_at, self._not_before = now, now + RESUBMIT_SECONDS

    def missing(self, jobs: int, now: float, *, is_hopeless: bool) -> int:
        """Return how many jobs are to be submitted now.

        Parameters
        ----------
        jobs
            Number of its jobs, those included whose workers leave.
        now
            Seconds, by the clock of `use`.
        is_hopeless
            Whether no pool that is wanted can have workers.
        """
        has_failed = self._stillborn >= STILLBORN and not self.met
        if now < self._not_before or (has_failed and is_hopeless):
            return 0
        missing = max(0, self.target + len(self.leaving) - jobs)
        return min(missing, 1) if has_failed else missing


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

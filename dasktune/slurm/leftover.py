"""Cancel jobs whose driver has ended: no study will use them.

The comment of a job names the process that submitted it. Only the host of that process, or
SLURM if the process was a job, knows for certain whether it still runs. Jobs of other drivers
stay: their workers end by themselves after a minute without a scheduler.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import Self

import psutil

from dasktune.slurm.commands import call, job_comments, job_states

PREFIX = "dasktune"


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """A process that submits jobs.

    Parameters
    ----------
    host
        The host, with the namespace of processes that see each other.
    pid, born
        Number of the process, and its start (epoch seconds), because numbers are reused.
    job, restarts
        The SLURM job of the process, and its number of requeues; empty without a job.
    """

    host: str
    pid: int
    born: int
    job: str = ""
    restarts: str = ""

    @classmethod
    def this(cls) -> Self:
        """Return this process."""
        return cls(
            host=_host(),
            pid=os.getpid(),
            born=int(psutil.Process().create_time()),
            job=os.environ.get("SLURM_JOB_ID", ""),
            restarts=os.environ.get("SLURM_RESTART_COUNT", "0"),
        )

    @classmethod
    def read(cls, comment: str) -> Self | None:
        """Return the driver in a comment of a job, if there is one."""
        match comment.split("/"):
            case [prefix, host, pid, born, job, restarts] if prefix == PREFIX:
                if pid.isdecimal() and born.isdecimal():
                    return cls(host=host, pid=int(pid), born=int(born), job=job, restarts=restarts)
        return None

    @property
    def comment(self) -> str:
        """The comment of the driver's jobs; `read` is its inverse."""
        return "/".join((PREFIX, self.host, str(self.pid), str(self.born), self.job, self.restarts))

    def is_gone(self, states: dict[str, str], here: Driver) -> bool:
        """Return whether the process has ended for certain.

        Parameters
        ----------
        states
            The states of all jobs of this user.
        """
        if self.host == here.host:
            return not _runs(self.pid, self.born)
        if self.job and self.job == here.job:
            return self.restarts != here.restarts
        return bool(self.job) and not states.get(self.job, "").startswith("RUNNING")


def cancel_leftover(here: Driver) -> list[str]:
    """Cancel the jobs of drivers that have ended, and return their ids.

    Raises
    ------
    ClusterError
        If SLURM does not answer.
    """
    states, leftover = job_states(), []
    for job, comment in job_comments().items():
        driver = Driver.read(comment)
        if driver is not None and driver != here and driver.is_gone(states, here):
            leftover.append(job)
    if leftover:
        call("scancel", *leftover)
    return leftover


def _runs(pid: int, born: int) -> bool:
    try:
        # 60 s, because the clock of the host may have been set since the job began.
        return bool(abs(psutil.Process(pid).create_time() - born) < 60)
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True


def _host() -> str:
    try:
        # A container may have the host's name, but numbers its processes itself.
        return f"{socket.gethostname()}-{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return socket.gethostname()

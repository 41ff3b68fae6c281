"""Jobs whose driver is gone: nobody will ever use them, and they are cancelled.

Each job says in its comment which process submitted it. Whether that still runs can be told
for certain on its own host, and for one that was a job itself; of others nothing is said, and
their workers end by themselves once they have found no scheduler for a minute.
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
        Names the host, and there those processes that see each other.
    pid, born
        Number of the process, and when it began (epoch seconds): numbers are used again.
    job, restarts
        The job of SLURM that it runs in, and how often that had been requeued; empty if none.
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
        """Return the driver that a comment names; None if it names none."""
        match comment.split("/"):
            case [prefix, host, pid, born, job, restarts] if prefix == PREFIX:
                if pid.isdecimal() and born.isdecimal():
                    return cls(host=host, pid=int(pid), born=int(born), job=job, restarts=restarts)
        return None

    @property
    def comment(self) -> str:
        """What `read` reads."""
        return "/".join((PREFIX, self.host, str(self.pid), str(self.born), self.job, self.restarts))

    def is_gone(self, states: dict[str, str], here: Driver) -> bool:
        """Whether it is certain that the process has ended.

        Parameters
        ----------
        states
            Of all jobs of this user.
        here
            This process.
        """
        if self.host == here.host:
            return not _runs(self.pid, self.born)
        if self.job and self.job == here.job:
            return self.restarts != here.restarts
        return bool(self.job) and not states.get(self.job, "").startswith("RUNNING")


def cancel_leftover(here: Driver) -> list[str]:
    """Cancel the jobs of drivers that are gone; return their ids.

    Raises
    ------
    ClusterError
        If SLURM does not answer.
    """
    states, found = job_states(), []
    for job, comment in job_comments().items():
        driver = Driver.read(comment)
        if driver is not None and driver != here and driver.is_gone(states, here):
            found.append(job)
    if found:
        call("scancel", *found)
    return found


def _runs(pid: int, born: int) -> bool:
    try:
        # The clock of a host may have been set meanwhile.
        return bool(abs(psutil.Process(pid).create_time() - born) < 60)
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True


def _host() -> str:
    try:
        # Containers may have the host's name and processes of their own.
        return f"{socket.gethostname()}-{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return socket.gethostname()

"""In the place of the thread of a driver's leases: rounds that stop before each request.

One thread runs all. Each job is a greenlet, and the simulation decides which of them goes on to its
next request to the store: so every order of requests may happen, and happens again with its seed.
"""

from __future__ import annotations

from collections.abc import Callable

from greenlet import getcurrent, greenlet


class Turns:
    """The rounds of one driver's leases; see `dasktune._driver.leases.Rounds`."""

    def __init__(self) -> None:
        self._main = getcurrent()
        self._round: Callable[[bool], float] | None = None
        self._jobs: list[greenlet] = []

    # ------------------------------------------------------------ as `Rounds`

    def repeat(self, work: Callable[[bool], float]) -> None:
        """Keep the round that `look` begins."""
        self._round = work

    def wake(self) -> None:
        """Do nothing: the simulation looks again in any case."""

    def stop(self) -> None:
        """End the rounds after the one that is under way."""
        self._round = None
        while any(job is not getcurrent() for job in self._jobs):
            self.give_way()

    # ------------------------------------------------------------ the schedule

    def before_request(self) -> None:
        """Pause a job before its next request: others act."""
        if getcurrent() is not self._main:
            self._main.switch()

    def give_way(self) -> None:
        """Pause a job; outside of all jobs, carry each of them on to its next request."""
        self.before_request()
        if getcurrent() is self._main:
            for place in range(len(self._jobs)):
                self.go_on(place)

    def do(self, work: Callable[[], object]) -> None:
        """Do a job beside the rounds."""
        self._jobs.append(greenlet(work, self._main))

    def look(self) -> None:
        """Begin a round, unless one is under way."""
        if self._round is not None and not self._jobs:
            work = self._round
            self.do(lambda: work(True))

    def go_on(self, place: int) -> None:
        """Carry one of the jobs on to its next request."""
        if self._jobs:
            job = self._jobs[place % len(self._jobs)]
            job.switch()
            if job.dead:
                self._jobs.remove(job)

    def kill(self) -> None:
        """End all jobs where they are."""
        for job in self._jobs:
            job.throw()
        self._jobs.clear()
        self._round = None

    @property
    def is_busy(self) -> bool:
        """Whether any job is not done."""
        return bool(self._jobs)

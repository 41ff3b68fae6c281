"""In the place of the threads of a driver's leases: jobs that stop before each request.

One thread runs all. Each job is a greenlet, and the simulation decides which of them goes on to its
next request to the store: so every order of requests may happen, and happens again with its seed.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass

from greenlet import getcurrent, greenlet

LOOK, TURN = "look", "turn"

MOMENT = 0.1
"""Seconds that pass for jobs while the simulation waits for them."""


@dataclass(slots=True, eq=False)
class _Job:
    """A job, and what it is about: those about the same are done in order."""

    key: str
    task: greenlet

    @property
    def is_current(self) -> bool:
        """Whether it is this job that asks."""
        return self.task is getcurrent()


class Turns:
    """The jobs of one driver's leases; see `dasktune.driver.lease_threads.Threads`.

    Parameters
    ----------
    now
        Gives seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._main = getcurrent()
        self._look: Callable[[], float] = lambda: 0.0
        self._is_stopped = False
        self._paused = 0.0
        self._jobs: list[_Job] = []

    # ------------------------------------------------------------ as `Threads`

    def do(self, key: str, work: Callable[[], None], *, is_question: bool = True) -> Future[None]:
        """Do a job after those that were given before it about the same key."""
        done: Future[None] = Future()

        def run() -> None:
            work()
            done.set_result(None)

        self._add(f"about {key}", run)
        return done

    def in_turn(self, work: Callable[[], None]) -> None:
        """Do a job after all others that were given here."""
        self._add(TURN, work)

    def lock(self) -> AbstractContextManager[object]:
        """Return a lock that a job may hold during requests."""
        return _Lock(self)

    def repeat(self, work: Callable[[], float]) -> None:
        """Keep the job that `look` begins."""
        self._look = work

    def wake(self) -> None:
        """Do nothing: the simulation looks again in any case."""

    def wait(self, job: Future[None]) -> None:
        """Wait for a job; raise what it raised."""
        while not job.done():
            self.give_way()
        job.result()

    def settle(self) -> None:
        """Wait until all jobs that were given by `do` are done."""
        while any(job.key not in (LOOK, TURN) and not job.is_current for job in self._jobs):
            self.give_way()

    def pause(self, seconds: float) -> None:
        """Wait in a job."""
        self.give_way()

    def monotonic(self) -> float:
        """Return seconds that only grow."""
        return self._now() + self._paused

    def stop(self) -> None:
        """End the repetition."""
        self._is_stopped = True
        while any(job.key == LOOK for job in self._jobs):
            self.give_way()

    def close(self) -> None:
        """Do nothing: all jobs are done."""

    # ------------------------------------------------------------ the schedule

    def before_request(self) -> None:
        """Pause a job before its next request: others act."""
        if getcurrent() is not self._main:
            self._main.switch()

    def give_way(self) -> None:
        """Pause a job; outside of all jobs, carry each of them on to its next request.

        A moment passes for them then, so that none waits for other drivers for ever.
        """
        if getcurrent() is not self._main:
            self._main.switch()
            return
        self._paused += MOMENT
        for job in self._ready():
            self._go_on(job)

    def look(self) -> None:
        """Begin to look after the leases, unless that is under way."""
        if not self._is_stopped and all(job.key != LOOK for job in self._jobs):
            self._add(LOOK, self._look)

    def go_on(self, place: int) -> None:
        """Carry one of the jobs on to its next request."""
        ready = self._ready()
        if ready:
            self._go_on(ready[place % len(ready)])

    def kill(self) -> None:
        """End all jobs where they are."""
        for job in self._jobs:
            job.task.throw()
        self._jobs.clear()
        self._is_stopped = True

    @property
    def is_busy(self) -> bool:
        """Whether any job is not done."""
        return bool(self._jobs)

    def _add(self, key: str, work: Callable[[], object]) -> None:
        self._jobs.append(_Job(key, greenlet(work, self._main)))

    def _ready(self) -> list[_Job]:
        """Return the first job about each thing."""
        first: dict[str, _Job] = {}
        for job in self._jobs:
            first.setdefault(job.key, job)
        return list(first.values())

    def _go_on(self, job: _Job) -> None:
        job.task.switch()
        if job.task.dead:
            self._jobs.remove(job)


class _Lock:
    """A lock that lets other jobs go on while it waits."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._is_held = False

    def __enter__(self) -> None:
        while self._is_held:
            self._turns.give_way()
        self._is_held = True

    def __exit__(self, *error: object) -> None:
        self._is_held = False

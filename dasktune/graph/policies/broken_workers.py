"""Which workers are trusted with stages: one on which stage after stage raises is put aside.

A node that lacks its data directory raises within milliseconds, and is idle again at once: it
would be given nearly every stage, and ruin the study. So a failure is blamed on the trial only if
workers that are trusted agree, and a worker is put aside when `IN_A_ROW` stages in a row raised
on it, and either

- it has never trained a step, or
- as many of these stages got further somewhere else.

It is tried again after a while; if the next stage raises there, too, it is put aside for twice as
long. Everything follows from the events and their times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from dasktune.graph.plan import Place

IN_A_ROW = 3
"""Stages in a row that raise on a worker before it is put aside."""

ASIDE_SECONDS = 60.0
"""How long a worker is put aside for the first time; each time after that twice as long."""

LONGEST_ASIDE_SECONDS = 3600.0
"""How long a worker is put aside at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aside:
    """A worker that is put aside.

    Parameters
    ----------
    worker, host
        Its address, and its host; empty if that is not known.
    raised
        Number of stages that raised on it in a row.
    message
        The last error.
    until
        When it is tried again, on the runner's clock (seconds).
    """

    worker: str
    host: str
    raised: int
    message: str
    until: float


@dataclass(slots=True)
class _Conduct:
    """The conduct of one worker: what it trained, and what raised on it in a row."""

    host: str
    number: int
    has_trained: bool = False
    raised: dict[Place, None] = field(default_factory=dict)
    message: str = ""
    times_aside: int = 0
    until: float | None = None

    @property
    def is_on_trial(self) -> bool:
        """Whether it was put aside and has not ended a stage since."""
        return self.times_aside > 0


class Trust:
    """The conduct of all workers that are there.

    Parameters
    ----------
    got_past
        Whether the step after a place in the plan was trained at some time.
    """

    def __init__(self, got_past: Callable[[Place], bool]) -> None:
        self._got_past = got_past
        self.joins = 0
        """The number of workers that have joined so far."""
        self._conduct: dict[str, _Conduct] = {}
        self._aside: dict[str, None] = {}

    def join(self, worker: str, host: str) -> None:
        """Add a worker of which nothing is known yet."""
        self.joins += 1
        self._conduct[worker] = _Conduct(host, self.joins)

    def lose(self, worker: str) -> None:
        """Forget a worker."""
        self._conduct.pop(worker, None)
        self._aside.pop(worker, None)

    def clear(self) -> None:
        """Forget all workers."""
        self._conduct.clear()
        self._aside.clear()

    def host_of(self, worker: str) -> str:
        """Return the host of a worker; empty if it is not known."""
        conduct = self._conduct.get(worker)
        return "" if conduct is None else conduct.host

    def is_aside(self, worker: str) -> bool:
        """Whether a worker is put aside."""
        return worker in self._aside

    def is_on_trial(self, worker: str) -> bool:
        """Whether a worker was put aside, and has not ended a stage since."""
        conduct = self._conduct.get(worker)
        return conduct is not None and conduct.is_on_trial

    def has_joined_since(self, worker: str, joins: int) -> bool:
        """Whether a worker is there that joined after so many others."""
        conduct = self._conduct.get(worker)
        return conduct is not None and conduct.number > joins

    def has_trained(self, worker: str) -> bool:
        """Whether a worker is there that has trained a step."""
        conduct = self._conduct.get(worker)
        return conduct is not None and conduct.has_trained

    @property
    def any_aside(self) -> bool:
        """Whether a worker is put aside."""
        return bool(self._aside)

    @property
    def aside(self) -> Iterator[Aside]:
        """Yield the workers that are put aside."""
        for worker in self._aside:
            conduct = self._conduct[worker]
            yield Aside(
                worker=worker,
                host=conduct.host,
                raised=len(conduct.raised),
                message=conduct.message,
                until=conduct.until or 0.0,
            )

    def trained(self, worker: str) -> None:
        """Note that a worker has trained a step."""
        conduct = self._conduct.get(worker)
        if conduct is not None:
            conduct.has_trained = True

    def ended_well(self, worker: str) -> None:
        """Trust a worker again that has ended a stage."""
        conduct = self._conduct.get(worker)
        if conduct is not None:
            conduct.has_trained, conduct.times_aside, conduct.until = True, 0, None
            conduct.raised.clear()
            self._aside.pop(worker, None)

    def raised(self, worker: str, place: Place, message: str) -> None:
        """Note that the step after a place raised on a worker."""
        conduct = self._conduct.get(worker)
        if conduct is not None:
            conduct.raised[place] = None
            conduct.message = message

    def is_doubtful(self, worker: str) -> bool:
        """Whether what raised on a worker speaks for putting it aside."""
        conduct = self._conduct.get(worker)
        if conduct is None or worker in self._aside:
            return False
        if conduct.is_on_trial:
            return True
        if not conduct.has_trained:
            return len(conduct.raised) >= IN_A_ROW
        return sum(map(self._got_past, conduct.raised)) >= IN_A_ROW

    def put_aside(self, worker: str, now: float) -> list[Place]:
        """Put a worker aside; return the places after which it raised, which prove nothing."""
        conduct = self._conduct[worker]
        seconds = min(ASIDE_SECONDS * 2 ** min(conduct.times_aside, 10), LONGEST_ASIDE_SECONDS)
        conduct.times_aside, conduct.until = conduct.times_aside + 1, now + seconds
        self._aside[worker] = None
        return list(conduct.raised)

    @property
    def next_return(self) -> float | None:
        """When the next worker is tried again; None if all workers are trusted."""
        return min((self._conduct[worker].until or 0.0 for worker in self._aside), default=None)

    def returning(self, now: float) -> list[str]:
        """Return the workers that are to be tried again at time `now`."""
        return [worker for worker in self._aside if (self._conduct[worker].until or 0.0) <= now]

    def take_back(self, workers: Iterable[str]) -> None:
        """Give workers that were put aside stages again."""
        for worker in workers:
            self._aside.pop(worker, None)

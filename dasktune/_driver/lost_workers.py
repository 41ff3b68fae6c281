"""Lost workers, while a thread looks up what they have saved without a message.

The engine is told at once that a worker is gone: nobody counts on it any more. That its attempts
are lost is told once the look-up has ended: what need not be trained again must be known first. The
loop goes on meanwhile, also if the store is away: only the stages of these workers wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from dasktune._driver.look_ups import Commits
from dasktune.graph.events import WorkerJoined


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUpEnded:
    """The states of a lost worker were looked up."""

    worker: str


@dataclass(slots=True)
class LostWorker:
    """A lost worker whose attempts the engine does not know to be lost yet."""

    is_blameless: bool
    """See `dasktune.graph.events.WorkerLost`."""
    commits: Future[Commits]
    """Those that the store has, once they are looked up."""
    joined: WorkerJoined | None = None
    """The worker at the same address that has joined since."""
    at: float = field(default_factory=time.time)
    """Epoch seconds of the loss."""


class LostWorkers:
    """The workers that were lost and are being looked up; `put` takes messages from threads."""

    def __init__(self, put: Callable[[LookUpEnded], None]) -> None:
        self._put = put
        self._lost: dict[str, LostWorker] = {}

    def __contains__(self, worker: str) -> bool:
        """Whether a worker is being looked up."""
        return worker in self._lost

    @property
    def any_joined(self) -> bool:
        """Whether a worker has joined at the address of one that is being looked up."""
        return any(lost.joined is not None for lost in self._lost.values())

    def add(self, worker: str, commits: Future[Commits], *, is_blameless: bool) -> None:
        """Add a worker that was lost; a message follows when its commits are looked up."""
        self._lost[worker] = LostWorker(is_blameless, commits)
        commits.add_done_callback(lambda _: self._put(LookUpEnded(worker=worker)))

    def join(self, event: WorkerJoined) -> None:
        """Keep the event that a worker has joined at the address of a lost one.

        The attempts of the two must not be taken for each other's: it is used after the look-up.
        """
        self._lost[event.worker].joined = event

    def take(self, worker: str) -> LostWorker | None:
        """Return a worker whose look-up has ended; it is forgotten here."""
        lost = self._lost.get(worker)
        return self._lost.pop(worker) if lost is not None and lost.commits.done() else None

"""The policy of broken workers: one on which stage after stage raises is put aside.

A machine that lacks its data directory raises within milliseconds, and is idle again at once: it
would be given nearly every stage, and ruin the study. So a failure is blamed on the trial only if
workers that are trusted agree, and a worker is put aside when `IN_A_ROW` stages in a row raised
on it, and either

- it has never trained a step, or
- `IN_A_ROW` of these stages got further on another worker.

It is tried again after a while; if the next stage raises there, too, it is put aside for twice as
long. Everything follows from the events and their times.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

from dasktune.graph.attempts import Attempt, Slot
from dasktune.graph.events import WorkerJoined
from dasktune.graph.placement import Placing
from dasktune.graph.plan import Node, NodeStep
from dasktune.graph.policy import Policy
from dasktune.types import Step

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

    has_trained: bool = False
    raised: dict[NodeStep, None] = field(default_factory=dict)
    message: str = ""
    times_aside: int = 0
    until: float = 0.0

    @property
    def is_on_trial(self) -> bool:
        """Whether it was put aside and has not ended a stage since."""
        return self.times_aside > 0


class BrokenWorkers(Policy):
    """Gives stages to the workers that are trusted, as long as there are such."""

    def __init__(self, placing: Placing) -> None:
        self.placing = placing
        self._conduct: dict[str, _Conduct] = {}
        self._aside: dict[str, None] = {}

    @property
    def aside(self) -> Iterator[Aside]:
        """Yield the workers that are put aside."""
        for worker in self._aside:
            conduct = self._conduct[worker]
            yield Aside(
                worker=worker,
                host=self.placing.host_of(worker),
                raised=len(conduct.raised),
                message=conduct.message,
                until=conduct.until,
            )

    # ------------------------------------------------------------------- what happens

    def joined(self, slot: Slot, event: WorkerJoined) -> None:
        """Add a worker of which nothing is known yet."""
        self._conduct[slot.worker] = _Conduct()

    def worker_gone(self, worker: str) -> None:
        """Forget a worker."""
        self._conduct.pop(worker, None)
        self._aside.pop(worker, None)

    def cleared(self) -> None:
        """Forget all workers."""
        self._conduct.clear()
        self._aside.clear()

    def advanced(self, attempt: Attempt) -> None:
        """Note that workers have trained a step."""
        for worker in attempt.workers:
            if worker in self._conduct:
                self._conduct[worker].has_trained = True

    def ended_well(self, worker: str) -> None:
        """Trust a worker again."""
        conduct = self._conduct.get(worker)
        if conduct is None:
            return
        conduct.has_trained, conduct.times_aside = True, 0
        conduct.raised.clear()
        if worker in self._aside:
            del self._aside[worker]
            self.placing.note_idle(worker)

    def raised(self, worker: str, at: NodeStep, message: str, now: float) -> Collection[NodeStep]:
        """Put a worker aside if too much raised there; return the errors that then do not count.

        A worker is not put aside if no other trusted one remains. Paused workers, and those that
        another study has now, count as remaining.
        """
        conduct = self._conduct.get(worker)
        if conduct is not None:
            conduct.raised[at] = None
            conduct.message = message
        if worker in self._aside:
            return [at]
        others = any(other != worker for other in self._trusted())
        if conduct is None or not others or not self._is_doubtful(conduct):
            return []
        self.put_aside(worker, now)
        return list(conduct.raised)

    def put_aside(self, worker: str, now: float) -> None:
        """Give a worker nothing for a while."""
        conduct = self._conduct[worker]
        seconds = min(ASIDE_SECONDS * 2 ** min(conduct.times_aside, 10), LONGEST_ASIDE_SECONDS)
        conduct.times_aside, conduct.until = conduct.times_aside + 1, now + seconds
        self._aside[worker] = None
        self.placing.idle.pop(worker, None)

    def placing_begins(self, now: float) -> None:
        """Try workers again that were put aside for long enough, or all if no other is left."""
        if not self._aside:
            return
        back = [worker for worker in self._aside if self._conduct[worker].until <= now]
        if not any(self._trusted()):
            back = list(self._aside)
        for worker in back:
            del self._aside[worker]
        for worker in back:
            self.placing.note_idle(worker)
        self._try_last_resort(now)

    def _try_last_resort(self, now: float) -> None:
        """Give stages that raised on all other workers to those that are put aside.

        They may have been put aside for trials that are wrong, and those that are left may be
        the broken ones.
        """
        placing = self.placing
        for worker in list(self._aside):
            if placing.is_busy(worker) or not placing.may_have_stages(worker):
                continue
            slot = placing.slots[worker]
            node = placing.frontier.best_raised(partial(placing.may_run, slot=slot))
            choice = None if node is None else placing.gathered(node, [worker], placing.idle)
            if choice is not None and placing.is_prepared(choice.node, slot):
                placing.launch(*choice, None, now)

    # --------------------------------------------------------------- what it is asked

    def is_trusted(self, worker: str) -> bool:
        """Whether a worker is not put aside."""
        return worker not in self._aside

    def may_run(self, node: Node, slot: Slot) -> bool:
        """Whether a worker is trusted; a stage that raised is tried on another host first."""
        raised_on = self.placing.frontier.work(node).raised_on
        if not raised_on:
            return slot.worker not in self._aside
        return slot in self._next_to_try(node, raised_on)

    def due(self) -> float | None:
        """Return when the next worker is tried again."""
        return min((self._conduct[worker].until for worker in self._aside), default=None)

    def is_hopeless(self, node: Node, step: Step) -> bool | None:
        """Whether the step after `step` raised on so many workers that its trials fail.

        Workers that are put aside prove nothing; one that has trained nothing yet proves little.
        """
        frontier, options = self.placing.frontier, self.placing.options
        work = frontier.work(node)
        if frontier.workers_of(node) > 1:
            return None
        errors = work.errors.get(step, ())
        if len(errors) < options.least_tries:
            return False
        if sum(map(self._has_trained, {*chain.from_iterable(errors)})) >= options.workers_tried:
            return True
        if len(work.raised_on) >= options.most_workers_tried:
            return True
        if any(map(self.placing.may_have_stages, self.placing.untried(node))):
            return False
        is_last = work.tries.get(step, 0) >= options.most_workers_tried
        return is_last or not self.placing.may_try_later(node)

    def _trusted(self) -> Iterator[str]:
        """Yield the workers that stay and are trusted, also those that get nothing now."""
        for worker in self.placing.slots:
            if worker not in self._aside and not self.placing.is_leaving(worker):
                yield worker

    def _has_trained(self, worker: str) -> bool:
        """Whether a worker is there that has trained a step."""
        conduct = self._conduct.get(worker)
        return conduct is not None and conduct.has_trained

    def _is_doubtful(self, conduct: _Conduct) -> bool:
        """Whether what raised on a worker that is trusted speaks for putting it aside."""
        if conduct.is_on_trial:
            return True
        if not conduct.has_trained:
            return len(conduct.raised) >= IN_A_ROW
        return sum(map(self.placing.frontier.got_past, conduct.raised)) >= IN_A_ROW

    def _next_to_try(self, node: Node, raised_on: Mapping[str, str]) -> list[Slot]:
        """Return the slots on which a stage that raised may be tried next.

        These are others than before, on other hosts if there are such, and at last those that
        are put aside. A stage that has raised everywhere is tried on any.
        """
        placing = self.placing
        usable = [slot for slot in placing.usable() if placing.fits(node, slot)]
        if placing.frontier.workers_of(node) > 1:
            return usable  # those that are gathered for it are chosen otherwise
        untried = [slot for slot in usable if slot.worker not in raised_on]
        hosts = set(raised_on.values())
        if untried:
            return [slot for slot in untried if slot.host not in hosts] or untried
        if placing.may_try_later(node) and any(map(self._is_new_here, placing.frontier.ready())):
            return []  # the others show whether the workers that are here are broken
        last_resort = [
            placing.slots[worker]
            for worker in self._aside
            if worker not in raised_on
            and placing.may_have_stages(worker)
            and placing.fits(node, placing.slots[worker])
        ]
        trusted = [slot for slot in usable if not self._conduct[slot.worker].is_on_trial]
        return last_resort or trusted or usable

    def _is_new_here(self, node: Node) -> bool:
        """Whether a stage has not raised yet, and fits a worker that is given stages."""
        placing = self.placing
        is_new = not placing.frontier.work(node).raised_on
        return is_new and any(placing.fits(node, slot) for slot in placing.usable())

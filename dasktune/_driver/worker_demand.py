"""How many workers a run can use: those at work, and those for stages that can start soon.

A pool whose workers come and go asks this often. So it looks at running stages and at stages
that can start, never at the whole plan.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from dasktune._engine.timeouts import SOON_SECONDS
from dasktune.graph.matching import Wanted
from dasktune.graph.view import AttemptView, RunView

MOST = 1000
"""Stages that can start are counted up to here: no pool has as many workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDemand:
    """How many workers a run can use, and which."""

    workers: int
    """See `usable_slots`."""
    wanted: frozenset[str] | None = None
    """The workers that its stages of now can use, those at work included; None for all. Of workers
    that share a device, one stands for all."""
    least: int = 1
    """With fewer workers it can train nothing: its stages take so many together."""


def usable_slots(
    view: RunView,
    now: float,
    *,
    left: int | None,
    most: int = MOST,
    soon_seconds: float = SOON_SECONDS,
) -> int:
    """Return how many workers would have something to do now or within `soon_seconds`.

    Each worker at work counts, each that was lost and whose stages cannot start again yet, each
    stage that can start, and each branch that another worker could take where a running stage is
    about to pass. To that comes what the tuner has not asked for yet, unless workers have nothing
    to do although it was asked: `left` trials, or as many as are at work if that is None. The
    result is at most `most`.
    """
    stages = open_stages(view, now, most=most, soon_seconds=soon_seconds)
    return min(view.busy_workers + stages.total() + yet_to_begin(view, left), most)


def demand_of(view: RunView, now: float, *, left: int | None, least: int = 1) -> WorkerDemand:
    """Return the demand of a run; parameters are those of `usable_slots` and `WorkerDemand`."""
    # No more than all workers can be lent.
    workers = usable_slots(view, now, left=left, most=len(view.slots))
    wanted = _wanted(view, now, left)
    if least > 1 and not view.busy_workers:
        wanted = _of_one_class(view, wanted, least)
    return WorkerDemand(workers=workers, wanted=wanted, least=min(least, max(1, workers)))


def _wanted(view: RunView, now: float, left: int | None) -> frozenset[str] | None:
    """Return the workers that the stages of now can use: see `WorkerDemand`.

    They are all while the tuner may begin trials, since nobody knows the needs of those. Stages
    of trials without needs of their own can use all, too.
    """
    stages = open_stages(view, now, most=1)
    if yet_to_begin(view, left) or not all(stages):
        return None
    fitting = (
        worker for worker in view.claimable if any(view.meets(worker, each) for each in stages)
    )
    return frozenset(view.busy_claims).union(fitting)


def _of_one_class(
    view: RunView, wanted: frozenset[str] | None, least: int
) -> frozenset[str] | None:
    """Return the workers to want where each stage takes several of one class, and has too few.

    Two studies with a worker of each of two classes could both begin nothing, and would wait for
    each other. So each wants the workers of the class of which it has most.
    """
    withheld, claimable = frozenset(view.withheld), frozenset(view.claimable)
    has: Counter[str] = Counter()
    classes: dict[str, set[str]] = {}
    for worker in claimable if wanted is None else claimable & wanted:
        kind = view.slots[worker].kind
        classes.setdefault(kind, set()).add(worker)
        has[kind] += worker not in withheld
    large = {kind: workers for kind, workers in classes.items() if len(workers) >= least}
    if not large or max(has.values()) >= least:
        return wanted
    return frozenset(large[max(large, key=lambda kind: (has[kind], len(large[kind]), kind))])


def open_stages(
    view: RunView, now: float, *, most: int = MOST, soon_seconds: float = SOON_SECONDS
) -> Counter[Wanted]:
    """Return how many stages other workers than those at work could take, by their needs.

    These are the stages that can start, those of lost workers, and those that can start within
    `soon_seconds`. Of equal needs, those that can start are counted up to `most`.
    """
    stages = view.ready_by_needs(most)
    lost: dict[str, Wanted] = {}
    for attempt in view.attempts.values():
        if not attempt.ended and attempt.worker not in view.slots:
            # What they ran can start once it is known what they have saved.
            lost.setdefault(attempt.worker, attempt.node.needs)
    stages.update(lost.values())
    return stages + _opening_soon(view, now, soon_seconds)


def yet_to_begin(view: RunView, left: int | None) -> int:
    """Return how many trials the tuner would begin if there were more workers.

    There are none if workers have nothing to do although the tuner was asked. Parameters are those
    of `usable_slots`.
    """
    busy = view.busy_workers
    paused = (worker for worker in view.paused if not view.is_busy(worker))
    if busy < len(view.slots) - len({*view.withheld, *paused, *view.beside}):
        return 0
    return max(1, busy) if left is None else left


def running_steps(view: RunView) -> dict[str, float]:
    """Return the seconds per step of the running stages by worker, as measured."""
    running = (slot.queue[0] for slot in view.slots.values() if slot.queue)
    return {each.worker: view.seconds_per_step(each.node, each.kind) for each in running}


def _opening_soon(view: RunView, now: float, seconds: float) -> Counter[Wanted]:
    """Return how many branches of running paths open soon that their own workers do not take."""
    stages: Counter[Wanted] = Counter()
    for slot in view.slots.values():
        left = seconds
        for attempt in slot.queue:
            per_step = view.seconds_per_step(attempt.node, attempt.kind)
            left += 0.0 if attempt.started is None else now - attempt.started
            is_last = attempt is slot.queue[-1]
            stages.update(_opening(attempt, view, left / per_step, is_last=is_last))
            left -= (attempt.stop - attempt.start) * per_step
    return stages


def _opening(
    attempt: AttemptView, view: RunView, steps: float, *, is_last: bool
) -> Counter[Wanted]:
    """Return how many stages wait for states that an attempt makes in its first `steps` steps."""
    stages: Counter[Wanted] = Counter()
    for node in attempt.covered() if steps > 0 else ():
        if node.stop - attempt.start <= steps:
            following = view.following(node)
            if is_last and node is attempt.node:
                # Its own worker goes on with one of them, if it may.
                own = (each for each in +following if view.meets(attempt.worker, each))
                following.subtract([*own][:1])
            stages.update(following)
    return stages

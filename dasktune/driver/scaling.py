"""How many workers can be used: those at work, what can start, and what soon can.

A pool whose workers come and go asks this often, so it looks at the stages that can start
and at what runs, never at the whole plan.
"""

from __future__ import annotations

from dasktune.graph.view import AttemptView, RunView

SOON_SECONDS = 60.0
"""A worker is worth its start for what will be there to do in so much time."""

MOST = 1000
"""Stages that can start are counted up to here: no pool has as many workers."""


def usable_slots(view: RunView, now: float, *, left: int | None, most: int = MOST) -> int:
    """Return how many workers would have something to do now or within `SOON_SECONDS`.

    Each worker at work counts, each stage that can start, and each branch that another worker
    could take where a running stage is about to pass. To that comes what the tuner has not
    asked for yet, unless workers have nothing to do although it was asked.

    Parameters
    ----------
    view
        The stages and the slots.
    now
        Seconds, by the run's clock.
    left
        How many trials the tuner would still begin for workers that have nothing to do; None
        if it does not say: as many as are at work then.
    most
        Counted up to here, and no further.
    """
    busy = view.busy_workers
    found = busy + view.count_ready(most) + _soon(view, now)
    if busy == len(view.slots):
        found += max(1, busy) if left is None else left
    return min(found, most)


def slowest_step(view: RunView) -> float:
    """Return the seconds per step of the slowest stage that runs, by the speeds measured so far.

    0 if nothing runs.
    """
    seconds = view.seconds_per_step
    queues = (slot.queue for slot in view.slots.values())
    return max((seconds(queue[0].node) for queue in queues if queue), default=0.0)


def _soon(view: RunView, now: float) -> int:
    """Return how many branches of running paths open soon, beyond those that are gone on with."""
    found = 0
    for slot in view.slots.values():
        left = SOON_SECONDS
        for attempt in slot.queue:
            per_step = view.seconds_per_step(attempt.node)
            left += 0.0 if attempt.started is None else now - attempt.started
            is_last = attempt is slot.queue[-1]
            found += _opening(attempt, view, left / per_step, is_last=is_last)
            left -= (attempt.stop - attempt.start) * per_step
    return found


def _opening(attempt: AttemptView, view: RunView, steps: float, *, is_last: bool) -> int:
    """Return how many stages wait for states that an attempt makes in its first so many steps."""
    if steps <= 0:
        return 0
    found = 0
    for node in attempt.covered():
        if node.stop - attempt.start <= steps:
            pulls = view.count_following(node)
            found += pulls - (is_last and node is attempt.node and pulls > 0)
    return found

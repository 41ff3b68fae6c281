"""How many workers a run can use: those at work, and those for stages that can start soon.

A pool whose workers come and go asks this often. So it looks at running stages and at stages
that can start, never at the whole plan.
"""

from __future__ import annotations

from dasktune.engine.timeouts import SOON_SECONDS
from dasktune.graph.view import AttemptView, RunView

MOST = 1000
"""Stages that can start are counted up to here: no pool has as many workers."""


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
    to do although it was asked.

    Parameters
    ----------
    view
        The run.
    now
        Seconds, by the run's clock.
    left
        How many trials the tuner would still begin for idle workers; None if it does not say:
        then as many as are at work.
    most
        The result is at most this.
    soon_seconds
        Within this time a branch must open for another worker to be of use.
    """
    busy = view.busy_workers
    lost = {attempt.worker for attempt in view.attempts.values() if not attempt.ended}
    lost -= view.slots.keys()  # what they ran can start once it is known what they have saved
    usable = busy + len(lost) + view.count_ready(most) + _opening_soon(view, now, soon_seconds)
    if busy >= len(view.slots) - sum(1 for _ in view.withheld):
        usable += max(1, busy) if left is None else left
    return min(usable, most)


def slowest_step(view: RunView) -> float:
    """Return the seconds per step of the slowest running stage, as measured; 0 if none runs."""
    running = (slot.queue[0] for slot in view.slots.values() if slot.queue)
    return max((view.seconds_per_step(each.node, each.kind) for each in running), default=0.0)


def _opening_soon(view: RunView, now: float, seconds: float) -> int:
    """Return how many branches of running paths open soon that their own workers do not take."""
    count = 0
    for slot in view.slots.values():
        left = seconds
        for attempt in slot.queue:
            per_step = view.seconds_per_step(attempt.node, attempt.kind)
            left += 0.0 if attempt.started is None else now - attempt.started
            is_last = attempt is slot.queue[-1]
            count += _opening(attempt, view, left / per_step, is_last=is_last)
            left -= (attempt.stop - attempt.start) * per_step
    return count


def _opening(attempt: AttemptView, view: RunView, steps: float, *, is_last: bool) -> int:
    """Return how many stages wait for states that an attempt makes in its first `steps` steps."""
    if steps <= 0:
        return 0
    count = 0
    for node in attempt.covered():
        if node.stop - attempt.start <= steps:
            following = view.count_following(node)
            count += following - (is_last and node is attempt.node and following > 0)
    return count

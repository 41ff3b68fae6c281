"""The rules that a dispatcher keeps after each event, whatever happened before."""

from __future__ import annotations

from collections.abc import Iterator

from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.tree import build_stage_tree


def violations(dispatcher: Dispatcher) -> Iterator[str]:
    """Yield in words what does not hold; nothing if all is well.

    A run does not call this: it looks at all nodes of the plan.
    """
    yield from _of_plan(dispatcher)
    yield from _of_requests(dispatcher)
    yield from _of_attempts(dispatcher)
    yield from _of_workers(dispatcher)


def _of_plan(dispatcher: Dispatcher) -> Iterator[str]:
    frontier = dispatcher.frontier
    expected = build_stage_tree(dispatcher.plan, frontier.is_running)
    if frontier.tree() != expected:
        yield "the stage tree is another one than the tree that the plan and the attempts give"
    if frontier.active_count != len(expected):
        yield f"{len(expected)} stages must be trained, {frontier.active_count} are counted"
    for node in dispatcher.plan:
        for step in (*node.checkpoints, *node.metrics):
            if not node.start < step <= node.stop:
                yield f"{node} holds a state or metrics of step {step}, outside its own steps"


def _of_requests(dispatcher: Dispatcher) -> Iterator[str]:
    for trial, nodes in dispatcher.wanted.items():
        if nodes[0].stop in nodes[0].metrics:
            yield f"trial {trial} waits for step {nodes[0].stop}, whose metrics are known"
        for node in nodes:
            asks, is_known = trial in node.requests, node.stop in node.metrics
            if asks and is_known:
                yield f"trial {trial} asks for step {node.stop}, whose metrics are known"
            elif not asks and not is_known:
                yield f"trial {trial} waits for step {node.stop}, for which it does not ask"
    for node in dispatcher.plan:
        for trial in node.requests:
            if node not in dispatcher.wanted.get(trial, ()):
                yield f"{node} is asked for by trial {trial}, which does not wait for it"


def _of_attempts(dispatcher: Dispatcher) -> Iterator[str]:
    slots = dispatcher.slots
    queued = {attempt.id: attempt for slot in slots.values() for attempt in slot.queue}
    training = {
        attempt.id
        for attempt in dispatcher.attempts.values()
        if not attempt.ended and attempt.worker in slots
    }
    if queued.keys() != training:
        yield f"queues have the attempts {sorted(queued)}, those under way are {sorted(training)}"
    for attempt in dispatcher.attempts.values():
        if not attempt.start <= attempt.position <= attempt.leaf.stop:
            low, high = attempt.start, attempt.leaf.stop
            yield f"attempt {attempt.id} must be between {low} and {high}, is at {attempt.position}"
        if attempt.taken and (attempt.worker or attempt.lenders):
            yield f"attempt {attempt.id} is another driver's, and has workers here"
    for attempt in queued.values():
        for lender in attempt.lenders:
            if lender in slots and attempt.id not in slots[lender].lent_to:
                yield f"attempt {attempt.id} uses worker {lender}, which is not lent to it"


def _of_workers(dispatcher: Dispatcher) -> Iterator[str]:
    placing = dispatcher.placing
    for worker, slot in placing.slots.items():
        if len(slot.queue) > placing.queue_length:
            most = placing.queue_length
            yield f"worker {worker} may have {most} stages in its queue, has {len(slot.queue)}"
        if slot.queue and slot.lent_to:
            yield f"worker {worker} trains a stage, and is lent to others"
        for attempt in slot.lent_to:
            if attempt not in dispatcher.attempts:
                yield f"worker {worker} is lent to attempt {attempt}, which is over"
        is_idle = not placing.is_busy(worker) and placing.is_usable(worker)
        if is_idle is not (worker in placing.idle):
            yield f"worker {worker} counts as {'busy' if is_idle else 'idle'}, and is not"
    if gone := placing.idle.keys() - placing.slots.keys():
        yield f"workers that are gone count as idle: {sorted(gone)}"

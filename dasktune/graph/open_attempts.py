"""The attempts under way: how far each is, where it shall end, and when nothing more comes of it.

An attempt is shortened when the trials that want its last steps withdraw their requests. It is
released once all that it trained is durable, or once no more of it will arrive. Then its other
steps are wanted again.
"""

from __future__ import annotations

from collections.abc import Iterator

from dasktune.graph.attempts import Attempt
from dasktune.graph.events import Instruction, SavePoint, StopStage
from dasktune.graph.frontier import Frontier
from dasktune.graph.placement import Placing
from dasktune.graph.plan import Node, NodeStep
from dasktune.types import Step


class OpenAttempts:
    """Changes the attempts under way; what workers must do about it is appended to `out`.

    Parameters
    ----------
    frontier, placing
        Where the steps and the slots of attempts are noted; `placing` adds new attempts.
    out
        The instructions that the dispatcher will return, in their order.
    """

    def __init__(self, frontier: Frontier, placing: Placing, out: list[Instruction]) -> None:
        self._frontier = frontier
        self._placing = placing
        self._out = out
        self.by_id = placing.attempts
        self.steps_executed = 0
        self.steps_repeated = 0

    @property
    def starts(self) -> Iterator[NodeStep]:
        """Yield the states, with the node that holds each, that attempts may still have to load."""
        for attempt in self.by_id.values():
            if not attempt.ended and attempt.position == attempt.start > 0:
                yield attempt.node.holder(attempt.start), attempt.start

    def halt(self, attempt: Attempt) -> None:
        """Stop an attempt at its next step; the states that it does not make are wanted again."""
        if not attempt.stopping:
            attempt.become("stopping")
            self.say(StopStage(attempt=attempt.id, worker=attempt.worker))

    def say(self, instruction: StopStage | SavePoint) -> None:
        """Give a worker an instruction unless it is gone."""
        if instruction.worker in self._placing.slots:
            self._out.append(instruction)

    def release(self, attempt: Attempt) -> None:
        """Forget an attempt; what it did not make is wanted again."""
        self.by_id.pop(attempt.id, None)
        self._placing.leave(attempt)
        for node in list(attempt.covered()):
            if self._frontier.work(node).attempt == attempt.id:
                self._frontier.assign(node, None)

    def advance(self, attempt: Attempt, step: Step) -> None:
        """Set the position of an attempt, and count its steps that had been trained before."""
        low = attempt.position
        if step <= low:
            return
        attempt.position = step
        self._placing.advanced(attempt)
        for node in attempt.leaf.up():
            if node.stop <= low:
                return
            first, last = max(low, node.start), min(step, node.stop)
            if first < last:
                work = self._frontier.work(node)
                attempt.repeated += max(0, min(last, work.trained) - first)
                work.trained = max(work.trained, last)

    def close(self, attempt: Attempt) -> None:
        """End the training of an attempt: free its slot and count its steps."""
        if not attempt.ended:
            attempt.become("ended")
            self._placing.leave(attempt)
            self.steps_executed += attempt.trained_to - attempt.start
            self.steps_repeated += attempt.repeated

    def on(self, node: Node) -> Attempt | None:
        """Return the attempt that covers the end of a node, if there is one."""
        attempt_id = self._frontier.attempt_on(node)
        return None if attempt_id is None else self.by_id.get(attempt_id)

    def _above(self, node: Node) -> Iterator[Attempt]:
        """Yield the attempts that end at a node or one of its ancestors."""
        for above in node.up():
            attempt = self.on(above)
            is_open = attempt is not None and (attempt.taken or not attempt.ended)
            if attempt is not None and is_open and attempt.node is above:
                yield attempt

    def shorten_above(self, node: Node) -> None:
        """Shorten the attempts on the way to a node to the steps that trials still want."""
        for attempt in list(self._above(node)):
            self.shorten(attempt)

    def shorten(self, attempt: Attempt) -> None:
        """Shorten an attempt to the steps that trials still want."""
        if attempt.stopping:
            return
        needed = (node for node in attempt.covered() if self._is_needed(node, attempt))
        last = next(needed, None)
        if attempt.taken:
            if last is None:
                self.release(attempt)
            return
        if last is not None:
            self._end_at(attempt, last)
            return
        self.halt(attempt)

    def _is_needed(self, node: Node, attempt: Attempt) -> bool:
        work = self._frontier.work(node)
        if work.attempt == attempt.id and (node.requests or work.pulls > 0):
            return True
        return node is attempt.node and any(
            other.after == attempt.id and not other.stopping for other in self.by_id.values()
        )

    def _end_at(self, attempt: Attempt, node: Node) -> None:
        if node is attempt.node:
            return
        for below in list(attempt.covered()):
            if below is node:
                break
            self._frontier.assign(below, None)
        attempt.node, attempt.stop = node, node.stop
        self._placing.watch(attempt)
        self.say(StopStage(attempt=attempt.id, worker=attempt.worker, at=node.stop))

    def split(self, top: Node, bottom: Node) -> None:
        """Handle a split of an edge of the plan: a running stage saves its state where it parts."""
        attempt = self.on(bottom)
        if attempt is not None and attempt.start < top.stop and attempt.position < top.stop:
            # Also one that is ending waits for its last state: work goes on from there.
            self._frontier.work(top).attempt = attempt.id
            if not attempt.ended and not attempt.stopping:
                self.say(SavePoint(attempt=attempt.id, worker=attempt.worker, step=top.stop))
        self._frontier.move(top, bottom)

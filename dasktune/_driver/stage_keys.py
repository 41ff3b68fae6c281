"""The keys of stages, computed before the stages are leased and sent to their workers.

A value that changes at every step costs one hash a step: 10 million steps cost seconds. The
driver's loop computes few keys in each turn, and a thread computes the others. A stage whose keys
are not known yet waits, and so do the stages that go on from it; other stages do not. The thread
gets immutable values, and its results are messages: the search plan is the loop's alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from dasktune.graph.events import RunStage, TrainingEnded
from dasktune.graph.keys import BLOCK_STEPS, Mark
from dasktune.graph.plan import Node
from dasktune.graph.value_cache import ValueCache
from dasktune.types import Sequences, Step

CHANGES_PER_TURN = 4096
"""Changes of values that the loop hashes in one turn, and at most a block more: about 3 ms."""

CHANGES_PER_JOB = 65_536
"""Changes of values that the thread hashes for one stage before it goes on to another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysHashed:
    """The thread has computed some of the keys on the path that goes on from a node."""

    node: Node


@dataclass(frozen=True, slots=True)
class _Job:
    """A part of the path to a node, whose keys the thread computes."""

    node: Node
    marks: Future[list[Mark]]


class StageKeys:
    """Stands between the orders of a run and their keys; `put` takes messages from the thread.

    `attempts` are those of the run, at any time: others are not to be started any more.
    """

    def __init__(self, attempts: Container[str], put: Callable[[KeysHashed], None]) -> None:
        self._attempts = attempts
        self._put = put
        self._left = CHANGES_PER_TURN
        self._waiting: dict[str, RunStage] = {}
        self._jobs: dict[Node, _Job] = {}
        """By the node in which each begins."""
        self.value_cache = ValueCache()  # the thread's own: those of the plan are the loop's
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="dasktune-keys")

    def turn(self) -> None:
        """Begin a turn of the loop, in which some keys may be computed at once."""
        self._left = CHANGES_PER_TURN

    def start(self, order: RunStage) -> list[RunStage]:
        """Return a stage whose keys are known; any other follows from a message."""
        if order.after not in self._waiting and self._compute(order):
            return [order]
        self._waiting[order.attempt] = order
        self._hash(order)
        return []

    def receive(self, message: KeysHashed) -> list[RunStage]:
        """Return the stages whose keys are known now, in the order in which they were started.

        Raises a `ConfigurationError` if a value overflows.
        """
        job = self._jobs.pop(message.node)
        job.node.learn_positions(job.marks.result())
        ready = []
        for attempt, order in list(self._waiting.items()):
            if attempt not in self._attempts:
                del self._waiting[attempt]  # its worker is gone
            elif order.after in self._waiting:
                continue
            elif order.node.known_position(order.stop).step == order.stop:
                ready.append(self._waiting.pop(attempt))
            else:
                self._hash(order)
        return ready

    def give_up(self) -> list[TrainingEnded]:
        """Return the ends of all stages that wait: none of them is started any more."""
        orders = list(self._waiting.values())
        self._waiting.clear()
        return [
            TrainingEnded(attempt=order.attempt, step=order.start, status="skipped")
            for order in orders
        ]

    def close(self) -> None:
        """End the thread."""
        self._pool.shutdown(cancel_futures=True)

    def _compute(self, order: RunStage) -> bool:
        """Compute keys of a stage if they are few; return whether all are known."""
        known = order.node.known_position(order.stop)
        marks = _marks(order.node.sequences, known, _cuts(order, known), order.node.value_cache)
        before = self._left
        while known.step < order.stop and before - self._left < BLOCK_STEPS and self._left > 0:
            known = next(marks)
            self._left -= known.changes
            order.node.learn_positions([known])
        return known.step == order.stop

    def _hash(self, order: RunStage) -> None:
        """Give the thread the next keys of a stage, unless it computes them for another stage."""
        node = order.node
        known = node.known_position(order.stop)
        begin = node.holder(known.step + 1)
        if begin in self._jobs:
            return
        marks = self._pool.submit(self._part, node.sequences, known, _cuts(order, known))
        self._jobs[begin] = _Job(node, marks)
        marks.add_done_callback(lambda _: self._put(KeysHashed(node=begin)))

    def _part(self, sequences: Sequences, known: Mark, cuts: Collection[Step]) -> list[Mark]:
        """Return the next positions; runs in the thread."""
        marks: list[Mark] = []
        left = CHANGES_PER_JOB
        for mark in _marks(sequences, known, cuts, self.value_cache):
            marks.append(mark)
            left -= mark.changes
            if left <= 0:
                break
        return marks


def _cuts(order: RunStage, known: Mark) -> list[Step]:
    """Return the steps after a position at which nodes end on the way to the end of a stage."""
    ends = {node.stop for node in order.node.up()} | {order.stop}
    return [step for step in sorted(ends) if known.step < step <= order.stop]


def _marks(
    sequences: Sequences, known: Mark, cuts: Collection[Step], value_cache: ValueCache
) -> Iterator[Mark]:
    """Yield positions after a known one, and at each of the cuts."""
    for cut in cuts:
        for mark in known.chain.marks(sequences, known.step, cut, value_cache):
            yield mark
        known = mark

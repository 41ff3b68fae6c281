"""Which stage runs on which worker next.

A worker is given two stages of a *path* at a time: the one to run and the child with the
longest path below it, which it is told of while the first still runs. What it does after
them is chosen `lookahead_seconds` before it would run dry: the longest path goes first
[Hippo 4.3].
"""

from __future__ import annotations

from dasktune.graph.attempts import QUEUE_LENGTH, Attempt, DispatchOptions, Slot
from dasktune.graph.events import RunStage
from dasktune.graph.frontier import Frontier, start_of
from dasktune.graph.plan import Node
from dasktune.graph.speeds import Speeds


class Placing:
    """The slots, and the choice of what they run.

    Parameters
    ----------
    frontier
        The stages that must be trained.
    speeds
        How long they will take.
    options
        How to decide.
    attempts
        All attempts under way by id; new ones are added to it.
    """

    def __init__(
        self,
        frontier: Frontier,
        speeds: Speeds,
        options: DispatchOptions,
        attempts: dict[str, Attempt],
    ) -> None:
        self.slots: dict[str, Slot] = {}
        self._frontier = frontier
        self._speeds = speeds
        self._options = options
        self._attempts = attempts
        self._idle: dict[str, None] = {}
        self._leaving: set[str] = set()
        self._launched = 0
        self._out: list[RunStage] = []

    @property
    def idle_workers(self) -> int:
        """Number of idle workers."""
        return len(self._idle)

    def fill(self, now: float) -> list[RunStage]:
        """Give idle workers the best stages, and running ones what comes next."""
        while self._idle:
            node = self._best_for_idle()
            if node is None:
                break
            self._launch(node, self._slot_for(node), None, now)
        self._continue_paths(now)
        if self._looks_ahead:
            self._look_ahead(now)
        launched, self._out = self._out, []
        return launched

    def next_tick(self, now: float) -> float | None:
        """Return when `fill` is due: the next worker is about to run dry."""
        if not self._looks_ahead:
            return None
        ends = [
            now + self._remaining_seconds(slot.queue[0], now) - self._options.lookahead_seconds
            for slot in self._running_last()
        ]
        return min(ends, default=None)

    def join(self, worker: str) -> None:
        """Add an idle worker."""
        if worker not in self.slots:
            self.slots[worker] = Slot(worker)
            self._idle[worker] = None

    def retire(self, worker: str) -> None:
        """Give a worker nothing more to do."""
        if worker in self.slots:
            self._leaving.add(worker)
            self._idle.pop(worker, None)

    def is_leaving(self, worker: str) -> bool:
        """Whether a worker was said to be gone soon."""
        return worker in self._leaving

    def lose(self, worker: str) -> bool:
        """Remove a worker that is gone; return whether it was known."""
        self._idle.pop(worker, None)
        self._leaving.discard(worker)
        return self.slots.pop(worker, None) is not None

    def leave(self, attempt: Attempt) -> None:
        """Remove an attempt from its slot."""
        slot = self.slots.get(attempt.worker)
        if slot is not None and attempt in slot.queue:
            slot.queue.remove(attempt)
            slot.last = attempt.node
            if slot.queue:
                self._frontier.continued.append(slot.queue[-1].id)
            elif slot.worker not in self._leaving:
                self._idle[slot.worker] = None

    def clear(self) -> None:
        """Forget all workers."""
        self.slots.clear()
        self._leaving.clear()
        self._idle.clear()

    def _best_for_idle(self) -> Node | None:
        only = next(iter(self._idle)) if len(self._idle) == 1 and not self._is_alone else None
        return self._frontier.best_ready(avoiding=only)

    def _slot_for(self, node: Node) -> Slot:
        """Return the idle slot that holds the stage's start state, else any that may."""
        avoid = self._frontier.work(node).avoid
        allowed = [worker for worker in self._idle if worker != avoid] or list(self._idle)
        for worker in allowed:
            if self.slots[worker].last is node.parent:
                return self.slots[worker]
        return self.slots[allowed[0]]

    def _continue_paths(self, now: float) -> None:
        """Queue the best child behind a stage that begins a lease.

        A lease is two stages of a path. After it the worker takes what is longest then,
        be it the path's next stage or another's: following a path to its end would leave
        longer ones waiting.
        """
        while self._frontier.continued:
            attempt = self._attempts.get(self._frontier.continued.popleft())
            if attempt is not None and attempt.after is None and not attempt.ended:
                self._continue_with(self._next_of(attempt), attempt, now)

    def _next_of(self, attempt: Attempt) -> Node | None:
        """Return the stage that would carry an attempt on, if it may be queued behind it."""
        slot = self.slots[attempt.worker]
        if (
            attempt.stopping
            or attempt.worker in self._leaving
            or self._is_suspect(attempt)
            or not slot.queue
            or slot.queue[-1] is not attempt
        ):
            return None
        child = self._frontier.best_child(attempt.node) if len(slot.queue) < QUEUE_LENGTH else None
        return child if child is not None and self._may_run(child, slot) else None

    def _continue_with(self, child: Node | None, attempt: Attempt, now: float) -> None:
        if child is not None:
            self._launch(child, self.slots[attempt.worker], attempt, now)

    def _is_suspect(self, attempt: Attempt) -> bool:
        """Whether a stage was lost with a worker before.

        It runs alone until its state is durable: a worker that is lost again while the next
        stage begins would leave open which of the two it was.
        """
        return self._frontier.work(attempt.node).losses > 0

    @property
    def _is_alone(self) -> bool:
        """Whether one worker has to do everything."""
        return len(self.slots) - len(self._leaving) == 1

    def _may_run(self, node: Node, slot: Slot) -> bool:
        """Whether a stage never failed on this worker, or it is the only worker."""
        return self._is_alone or self._frontier.work(node).avoid != slot.worker

    @property
    def _looks_ahead(self) -> bool:
        """Whether stages are chosen before workers run dry: once it is known when they do.

        By a guess, a stage would wait behind a long one that others could take meanwhile.
        """
        return self._options.lookahead_seconds > 0 and self._speeds.is_known and not self._idle

    def _look_ahead(self, now: float) -> None:
        """Queue the best stage on workers that are about to run dry."""
        for slot in self._running_last():
            last = slot.queue[0]
            if self._remaining_seconds(last, now) > self._options.lookahead_seconds:
                continue
            child, other = self._next_of(last), self._frontier.best_ready(avoiding=slot.worker)
            if other is None or (child is not None and not self._frontier.goes_first(other, child)):
                self._continue_with(child, last, now)
            else:
                self._launch(other, slot, None, now)

    def _running_last(self) -> list[Slot]:
        """Return the slots whose last stage runs, and that could be given another."""
        any_ready = self._frontier.best_ready() is not None
        return [
            slot
            for slot in self.slots.values()
            if len(slot.queue) == 1
            and slot.worker not in self._leaving
            and not slot.queue[0].stopping
            and not self._is_suspect(slot.queue[0])
            and (any_ready or self._next_of(slot.queue[0]) is not None)
        ]

    def _launch(self, node: Node, slot: Slot, after: Attempt | None, now: float) -> None:
        start = node.start if after is not None else start_of(node)
        order = self._launched
        self._launched += 1
        attempt = Attempt(
            id=f"{order}-{self._options.attempt_prefix}",
            node=node,
            leaf=node,
            start=start,
            stop=node.stop,
            worker=slot.worker,
            after=None if after is None else after.id,
            launched=now,
            position=start,
        )
        self._attempts[attempt.id] = attempt
        slot.queue.append(attempt)
        self._idle.pop(slot.worker, None)
        self._frontier.assign(node, attempt.id)
        self._frontier.continued.append(attempt.id)
        self._out.append(
            RunStage(
                attempt=attempt.id,
                order=order,
                worker=slot.worker,
                after=attempt.after,
                node=node,
                start=start,
                stop=node.stop,
                saves=self._options.saves.steps_of(node, start),
                needs=self._options.needs,
            )
        )

    def _remaining_seconds(self, attempt: Attempt, now: float) -> float:
        """Return how long an attempt will still run, by the speeds measured so far."""
        per_step = self._speeds.seconds_per_step(attempt.node)
        whole = (attempt.stop - attempt.position) * per_step
        if attempt.started is None:
            return whole
        by_clock = attempt.started + (attempt.stop - attempt.start) * per_step - now
        return max(0.0, min(whole, by_clock))

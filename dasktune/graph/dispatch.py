"""The dispatcher: a state machine from events and decisions to instructions.

It holds the search plan, the frontier of stages, the slots and the attempts, and knows no
Dask, file or clock: ``handle(event, now) -> instructions``. A runner carries out what it
says and tells it what happened; a simulated one is enough to run a whole study.

A worker is given two stages of a *path* at a time: the one to run and the child with the
longest path below it, which it is told of while the first still runs. What it does after
them is chosen `lookahead_seconds` before it would run dry: the longest path goes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from dasktune.graph.events import (
    Deliver,
    Ended,
    Event,
    Failed,
    FailTrial,
    Instruction,
    Progress,
    Reports,
    RunStage,
    Saved,
    SaveMissed,
    SavePoint,
    Started,
    StopStage,
    Tick,
    WorkerJoined,
    WorkerLost,
)
from dasktune.graph.frontier import Failure, Frontier, start_of
from dasktune.graph.plan import Node, SearchPlan
from dasktune.graph.saves import SavePolicy
from dasktune.graph.speeds import Speeds
from dasktune.types import Report, Sequences, Step

QUEUE_LENGTH = 2
"""Stages that a worker knows of at most: the one that runs and the next."""


@dataclass(slots=True)
class Attempt:
    """One try at training a stage on one worker.

    `node` is where it shall end and `leaf` where it was first sent to: it may be told to
    end earlier after it has passed there. `position` is the last step it was heard of at,
    `repeated` how many of its steps had been trained before.
    """

    id: str
    node: Node
    leaf: Node
    start: Step
    stop: Step
    worker: str
    after: str | None
    launched: float
    position: Step
    started: float | None = None
    saved: Step = -1
    repeated: int = 0
    begun: bool = False
    stopping: bool = False
    ended: bool = False

    @property
    def has_begun(self) -> bool:
        """Whether its worker was seen to train it."""
        return self.begun or self.position > self.start

    def node_at(self, step: Step) -> Node:
        """Return the node on its way that holds `step`: start < step <= stop."""
        for node in self.leaf.up():
            if node.start < step:
                return node
        return self.leaf

    def covered(self) -> Iterator[Node]:
        """Yield the nodes that it shall train, the last first."""
        for node in self.node.up():
            yield node
            if node.start <= self.start:
                return


@dataclass(slots=True)
class Slot:
    """A worker process that runs one stage at a time."""

    worker: str
    queue: list[Attempt] = field(default_factory=list)
    last: Node | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchOptions:
    """How a dispatcher decides.

    Parameters
    ----------
    attempt_prefix
        Makes attempt ids unique among drivers that know nothing of each other.
    needs
        Resources that each stage occupies.
    saves
        Where running stages save their state on the way.
    lookahead_seconds
        How long before the end of a path the next one is chosen; about the time that an
        instruction takes to reach a worker.
    merge
        Whether trials share what they have in common.
    errors_allowed, losses_allowed
        How often one stage may raise, and be lost with its worker, before its trials fail.
    """

    attempt_prefix: str = "a"
    needs: Mapping[str, float] = field(default_factory=dict)
    saves: SavePolicy = field(default_factory=SavePolicy)
    lookahead_seconds: float = 0.0
    merge: bool = True
    errors_allowed: int = 1
    losses_allowed: int = 20

    def with_prefix(self, attempt_prefix: str) -> DispatchOptions:
        """Return the same options with other attempt ids."""
        return replace(self, attempt_prefix=attempt_prefix)


class Dispatcher:
    """Decides what runs where, from the requests of trials and the events of workers.

    Parameters
    ----------
    root_key
        The state key before any step.
    options
        How it decides.
    on_new
        Called with each new node of the plan, to fill in what is known of it already:
        checkpoints and metrics of earlier runs.
    """

    def __init__(
        self,
        root_key: str,
        options: DispatchOptions | None = None,
        *,
        on_new: Callable[[Node], None] | None = None,
    ) -> None:
        self.options = options or DispatchOptions()
        self.plan = SearchPlan(
            root_key, merge=self.options.merge, on_split=self._split, on_new=on_new
        )
        self.speeds = Speeds()
        self.frontier = Frontier(self.speeds.seconds_per_step)
        self.slots: dict[str, Slot] = {}
        self.attempts: dict[str, Attempt] = {}
        self.steps_executed = 0
        self.steps_repeated = 0
        self._draining = False
        self._idle: dict[str, None] = {}
        self._wanted: dict[int, Node] = {}
        self._launched = 0
        self._out: list[Instruction] = []

    # ------------------------------------------------------------------- decisions

    def register(self, trial: int, sequences: Sequences, max_steps: Step) -> list[Instruction]:
        """Make a trial known up to `max_steps`, without asking for its training."""
        self.plan.register(trial, sequences, max_steps)
        return self._take()

    def extend(self, trial: int, until: Step, priority: float, now: float) -> list[Instruction]:
        """Ask for a trial to be trained up to `until` and reported there."""
        self._withdraw(trial)
        path = self.plan.paths[trial]
        node = self.plan.register(trial, path.sequences, until)
        failure = self.frontier.failure_above(node)
        if failure is not None:
            self._fail_trial(trial, failure)
        elif node.stop in node.metrics:
            self._deliver(trial, node)
        else:
            self._wanted[trial] = node
            self.frontier.request(node, trial, priority)
            self._fill(now)
        return self._take()

    def rank(self, trial: int, priority: float) -> list[Instruction]:
        """Change the priority of what a trial asks for."""
        node = self._wanted.get(trial)
        if node is not None:
            self.frontier.withdraw(node, trial)
            self.frontier.request(node, trial, priority)
        return self._take()

    def stop(self, trial: int, now: float) -> list[Instruction]:
        """Withdraw what a trial asks for; a stage that nobody else wants is stopped."""
        node = self._withdraw(trial)
        if node is not None:
            self._shorten_above(node)
            self._fill(now)
        return self._take()

    def drain(self) -> list[Instruction]:
        """Let every stage end at its next step, and start no more; requests stay."""
        self._draining = True
        for attempt in self.attempts.values():
            if not attempt.ended and not attempt.stopping:
                attempt.stopping = True
                self._out.append(StopStage(attempt=attempt.id, worker=attempt.worker))
        return self._take()

    def dismiss(self) -> None:
        """Forget all workers, requests, and attempts of which nothing more can be heard."""
        for attempt in reversed(list(self.attempts.values())):
            self._close(attempt)
            self._release(attempt)
        for trial in list(self._wanted):
            self._withdraw(trial)
        self.slots.clear()
        self._idle.clear()
        self._draining = False

    # ---------------------------------------------------------------------- events

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Take in one event at time `now` (seconds); return what must be done."""
        match event:
            case WorkerJoined():
                self._worker_joined(event)
            case WorkerLost():
                self._worker_lost(event.worker)
            case Started():
                self._started(event.attempt, now)
            case Progress():
                self._progress(event)
            case Saved():
                self._saved(event)
            case SaveMissed():
                self._save_missed(event)
            case Ended():
                self._ended(event, now)
            case Failed():
                self._failed(event)
            case Tick():
                pass
        self._fill(now)
        return self._take()

    def next_tick(self, now: float) -> float | None:
        """Return when a `Tick` is due: the next worker is about to run dry."""
        lookahead = self.options.lookahead_seconds
        if lookahead <= 0 or self._idle:
            return None
        ends = [
            now + self._remaining_seconds(slot.queue[0], now) - lookahead
            for slot in self._running_last()
        ]
        return min(ends, default=None)

    @property
    def idle_workers(self) -> int:
        """How many workers have nothing to do."""
        return 0 if self._draining else len(self._idle)

    @property
    def is_idle(self) -> bool:
        """Whether no attempt is under way."""
        return not self.attempts

    @property
    def wanted(self) -> Mapping[int, Node]:
        """The node that each trial with a live request waits for."""
        return self._wanted

    # --------------------------------------------------------------------- workers

    def _worker_joined(self, event: WorkerJoined) -> None:
        fits = all(
            event.resources.get(name, 0.0) >= amount for name, amount in self.options.needs.items()
        )
        if fits and event.worker not in self.slots:
            self.slots[event.worker] = Slot(event.worker)
            self._idle[event.worker] = None

    def _worker_lost(self, worker: str) -> None:
        if self.slots.pop(worker, None) is None:
            return
        self._idle.pop(worker, None)
        lost = [attempt for attempt in self.attempts.values() if attempt.worker == worker]
        blamed = [attempt for attempt in lost if attempt.has_begun and not attempt.ended]
        for attempt in reversed(lost):
            self._close(attempt)
            self._release(attempt)
        for attempt in blamed:
            self._blame(attempt)

    def _blame(self, attempt: Attempt) -> None:
        """Count that a worker was lost while it trained the step after the last one heard of."""
        node = attempt.node_at(min(attempt.position + 1, attempt.stop))
        work = self.frontier.work(node)
        work.losses += 1
        if work.losses > self.options.losses_allowed:
            message = f"lost with its worker {work.losses} times, last on {attempt.worker}"
            self._fail_node(node, Failure(step=attempt.position, message=message))

    # -------------------------------------------------------------------- attempts

    def _started(self, attempt_id: str, now: float) -> None:
        attempt = self.attempts.get(attempt_id)
        if attempt is not None and not attempt.begun:
            attempt.begun, attempt.started = True, now

    def _progress(self, event: Progress) -> None:
        attempt = self.attempts.get(event.attempt)
        if attempt is not None:
            self._advance(attempt, event.step)

    def _saved(self, event: Saved) -> None:
        attempt = self.attempts.get(event.attempt)
        if attempt is None:
            return
        self._advance(attempt, event.step)
        attempt.saved = max(attempt.saved, event.step)
        node = attempt.node_at(event.step)
        node.checkpoints[event.step] = None
        rival = None
        if event.step == node.stop:
            rival = self._attempt_on(node)
            self.frontier.work(node).attempt = None
        self._take_reports(attempt, event.reports)
        self.frontier.state_arrived(node)
        if rival is not None and rival is not attempt and not rival.ended:
            self._shorten(rival)
        if attempt.ended and event.step >= attempt.position:
            self._release(attempt)

    def _take_reports(self, attempt: Attempt, reports: Reports) -> None:
        """Keep metrics at their nodes and answer with them; what was recorded first stands."""
        node = attempt.leaf
        answered = []
        for step, metrics in reversed(reports):
            while step <= node.start and node.parent is not None:
                node = node.parent
            node.metrics.setdefault(step, metrics)
            if step == node.stop and node.requests:
                answered.append(node)
        for node in answered:
            for trial in list(node.requests):
                self._withdraw(trial)
                self._deliver(trial, node)
            self._shorten_above(node)

    def _save_missed(self, event: SaveMissed) -> None:
        attempt = self.attempts.get(event.attempt)
        if attempt is None or event.step >= attempt.leaf.stop:
            return
        self._advance(attempt, event.step)
        node = attempt.node_at(event.step)
        if node.stop == event.step and self.frontier.work(node).attempt == attempt.id:
            self.frontier.assign(node, None)

    def _ended(self, event: Ended, now: float) -> None:
        attempt = self.attempts.get(event.attempt)
        if attempt is None:
            return
        if attempt.ended:
            if event.status == "lost":
                self._release(attempt)
            return
        self._advance(attempt, event.step)
        self._close(attempt)
        slot = self.slots.get(attempt.worker)
        if slot is not None and slot.queue and slot.queue[0].started is None:
            # Its worker will go on with it now, whenever that is heard of.
            slot.queue[0].started = now
        steps = event.step - attempt.start
        if self.speeds.observe(attempt.leaf, steps=steps, seconds=event.seconds):
            self.frontier.reweigh()
        nothing_to_save = event.step == attempt.start and event.status == "stopped"
        is_saved = attempt.saved >= event.step
        if event.status == "missing":
            self._forget_state(attempt)
        if (
            event.status in ("skipped", "lost", "superseded", "missing")
            or nothing_to_save
            or is_saved
        ):
            self._release(attempt)

    def _forget_state(self, attempt: Attempt) -> None:
        """Take in that the state that an attempt starts from does not exist after all."""
        for node in attempt.node.up():
            if node.checkpoints.pop(attempt.start, ()) is None:
                self.frontier.update(node)
                failure = self.frontier.failure_above(node)
                if failure is not None:
                    # A step that could not be trained again did not matter while it was there.
                    self._fail_below(node, failure)
                return

    def _failed(self, event: Failed) -> None:
        attempt = self.attempts.get(event.attempt)
        if attempt is None:
            return
        self._advance(attempt, event.step)
        self._close(attempt)
        node = attempt.node_at(min(event.step + 1, attempt.leaf.stop))
        work = self.frontier.work(node)
        work.errors[event.step] = work.errors.get(event.step, 0) + 1
        work.avoid = attempt.worker
        self._release(attempt)
        if work.errors[event.step] > self.options.errors_allowed:
            self._fail_node(
                node,
                Failure(step=event.step, message=event.message, traceback=event.traceback),
            )

    def _fail_node(self, node: Node, failure: Failure) -> None:
        """Fail every trial whose request needs the step that cannot be trained."""
        self.frontier.work(node).failed = failure
        self._fail_below(node, failure)
        self.frontier.update(node)

    def _fail_below(self, node: Node, failure: Failure) -> None:
        for below in list(self.frontier.needing(node)):
            for trial in list(below.requests):
                self._fail_trial(trial, failure)
            self._shorten_above(below)

    def _fail_trial(self, trial: int, failure: Failure) -> None:
        self._withdraw(trial)
        self._out.append(
            FailTrial(
                trial=trial,
                step=failure.step,
                message=failure.message,
                traceback=failure.traceback,
            )
        )

    def _leave_slot(self, attempt: Attempt) -> None:
        slot = self.slots.get(attempt.worker)
        if slot is not None and attempt in slot.queue:
            slot.queue.remove(attempt)
            slot.last = attempt.node
            if slot.queue:
                self.frontier.continued.append(slot.queue[-1].id)
            else:
                self._idle[slot.worker] = None

    def _release(self, attempt: Attempt) -> None:
        """Forget an attempt; what it did not make is wanted again."""
        self.attempts.pop(attempt.id, None)
        self._leave_slot(attempt)
        for node in list(attempt.covered()):
            if self.frontier.work(node).attempt == attempt.id:
                self.frontier.assign(node, None)

    def _advance(self, attempt: Attempt, step: Step) -> None:
        """Take in how far an attempt has come, and what of that had been trained before."""
        low = attempt.position
        if step <= low:
            return
        attempt.position = step
        for node in attempt.leaf.up():
            if node.stop <= low:
                return
            first, last = max(low, node.start), min(step, node.stop)
            if first < last:
                work = self.frontier.work(node)
                attempt.repeated += max(0, min(last, work.trained) - first)
                work.trained = max(work.trained, last)

    def _close(self, attempt: Attempt) -> None:
        """Take in that an attempt trains no further: its slot is free, its steps count."""
        if not attempt.ended:
            attempt.ended = True
            self._leave_slot(attempt)
            self.steps_executed += attempt.position - attempt.start
            self.steps_repeated += attempt.repeated

    def _attempt_on(self, node: Node) -> Attempt | None:
        attempt_id = self.frontier.attempt_on(node)
        return None if attempt_id is None else self.attempts.get(attempt_id)

    def _attempts_above(self, node: Node) -> Iterator[Attempt]:
        """Yield the attempts that end at a node or one of its ancestors."""
        for above in node.up():
            attempt = self._attempt_on(above)
            if attempt is not None and attempt.node is above and not attempt.ended:
                yield attempt

    # -------------------------------------------------------------------- requests

    def _withdraw(self, trial: int) -> Node | None:
        node = self._wanted.pop(trial, None)
        if node is not None:
            self.frontier.withdraw(node, trial)
        return node

    def _deliver(self, trial: int, node: Node) -> None:
        report = Report(trial=trial, step=node.stop, metrics=node.metrics[node.stop])
        self._out.append(Deliver(report=report))

    def _shorten_above(self, node: Node) -> None:
        """Let attempts on the way to a node end where nobody wants them to go further."""
        for attempt in list(self._attempts_above(node)):
            self._shorten(attempt)

    def _shorten(self, attempt: Attempt) -> None:
        """Let an attempt end where nobody wants it to go further."""
        if attempt.stopping:
            return
        for node in attempt.covered():
            if self._is_needed(node, attempt):
                self._end_at(attempt, node)
                return
        attempt.stopping = True
        self._out.append(StopStage(attempt=attempt.id, worker=attempt.worker))

    def _is_needed(self, node: Node, attempt: Attempt) -> bool:
        work = self.frontier.work(node)
        if work.attempt == attempt.id and (node.requests or work.pulls > 0):
            return True
        return node is attempt.node and any(
            other.after == attempt.id and not other.stopping for other in self.attempts.values()
        )

    def _end_at(self, attempt: Attempt, node: Node) -> None:
        if node is attempt.node:
            return
        for below in list(attempt.covered()):
            if below is node:
                break
            self.frontier.assign(below, None)
        attempt.node, attempt.stop = node, node.stop
        self._out.append(StopStage(attempt=attempt.id, worker=attempt.worker, at=node.stop))

    def _split(self, top: Node, bottom: Node) -> None:
        """Take in that the plan split an edge: a running stage saves where it parts."""
        attempt = self._attempt_on(bottom)
        if attempt is not None and attempt.start < top.stop and attempt.position < top.stop:
            # Also one that is ending waits for its last state: work goes on from there.
            self.frontier.work(top).attempt = attempt.id
            if not attempt.ended and not attempt.stopping:
                self._out.append(
                    SavePoint(attempt=attempt.id, worker=attempt.worker, step=top.stop)
                )
        self.frontier.move(top, bottom)

    # --------------------------------------------------------------------- placing

    def _fill(self, now: float) -> None:
        """Give idle workers the best stages, and running ones what comes next."""
        if self._draining:
            return
        while self._idle:
            node = self._best_for_idle()
            if node is None:
                break
            self._launch(node, self._slot_for(node), None, now)
        self._continue_paths(now)
        if self.options.lookahead_seconds > 0 and not self._idle:
            self._look_ahead(now)

    def _best_for_idle(self) -> Node | None:
        only = next(iter(self._idle)) if len(self._idle) == 1 and len(self.slots) > 1 else None
        return self.frontier.best_ready(avoiding=only)

    def _slot_for(self, node: Node) -> Slot:
        """Return the idle slot that holds the stage's start state, else any that may."""
        avoid = self.frontier.work(node).avoid
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
        while self.frontier.continued:
            attempt = self.attempts.get(self.frontier.continued.popleft())
            if attempt is not None and attempt.after is None and not attempt.ended:
                self._continue_with(self._next_of(attempt), attempt, now)

    def _next_of(self, attempt: Attempt) -> Node | None:
        """Return the stage that would carry an attempt on, if it may be queued behind it."""
        slot = self.slots[attempt.worker]
        if attempt.stopping or not slot.queue or slot.queue[-1] is not attempt:
            return None
        child = self.frontier.best_child(attempt.node) if len(slot.queue) < QUEUE_LENGTH else None
        return child if child is not None and self._may_run(child, slot) else None

    def _continue_with(self, child: Node | None, attempt: Attempt, now: float) -> None:
        if child is not None:
            self._launch(child, self.slots[attempt.worker], attempt, now)

    def _may_run(self, node: Node, slot: Slot) -> bool:
        """Whether a stage did not fail on this worker before, or there is no other."""
        return len(self.slots) == 1 or self.frontier.work(node).avoid != slot.worker

    def _look_ahead(self, now: float) -> None:
        """Queue the best stage on workers that are about to run dry."""
        for slot in self._running_last():
            last = slot.queue[0]
            if self._remaining_seconds(last, now) > self.options.lookahead_seconds:
                continue
            child, other = self._next_of(last), self.frontier.best_ready(avoiding=slot.worker)
            if other is None or (child is not None and not self.frontier.goes_first(other, child)):
                self._continue_with(child, last, now)
            else:
                self._launch(other, slot, None, now)

    def _running_last(self) -> list[Slot]:
        """Return the slots whose last stage runs, and that could be given another."""
        any_ready = self.frontier.best_ready() is not None
        return [
            slot
            for slot in self.slots.values()
            if len(slot.queue) == 1
            and not slot.queue[0].stopping
            and (any_ready or self._next_of(slot.queue[0]) is not None)
        ]

    def _launch(self, node: Node, slot: Slot, after: Attempt | None, now: float) -> None:
        start = node.start if after is not None else start_of(node)
        order = self._launched
        self._launched += 1
        attempt = Attempt(
            id=f"{order}-{self.options.attempt_prefix}",
            node=node,
            leaf=node,
            start=start,
            stop=node.stop,
            worker=slot.worker,
            after=None if after is None else after.id,
            launched=now,
            position=start,
        )
        self.attempts[attempt.id] = attempt
        slot.queue.append(attempt)
        self._idle.pop(slot.worker, None)
        self.frontier.assign(node, attempt.id)
        self.frontier.continued.append(attempt.id)
        self._out.append(
            RunStage(
                attempt=attempt.id,
                order=order,
                worker=slot.worker,
                after=attempt.after,
                node=node,
                start=start,
                stop=node.stop,
                saves=self.options.saves.steps_of(node, start),
                needs=self.options.needs,
            )
        )

    def _remaining_seconds(self, attempt: Attempt, now: float) -> float:
        """Return how long an attempt will still run, by the speeds measured so far."""
        per_step = self.speeds.seconds_per_step(attempt.node)
        whole = (attempt.stop - attempt.position) * per_step
        if attempt.started is None:
            return whole
        by_clock = attempt.started + (attempt.stop - attempt.start) * per_step - now
        return max(0.0, min(whole, by_clock))

    def _take(self) -> list[Instruction]:
        out, self._out = self._out, []
        return out

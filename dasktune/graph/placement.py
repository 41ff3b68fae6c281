"""Which stage runs on which worker next.

A worker is given two stages of a *path* at a time: the one to run and the child with the
longest path below it, which it is told of while the first still runs. What it does after
them is chosen `lookahead_seconds` before it would run dry: the longest path goes first
[Hippo 4.3].

This is the kernel: it knows slots and paths. Whatever else decides is a `Policy`, in a file of its
own in `dasktune.graph.policies`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import TypeVar

from dasktune.graph.attempts import QUEUE_LENGTH, Attempt, DispatchOptions, Slot
from dasktune.graph.ends import Ends
from dasktune.graph.events import Event, RunStage, SavePoint, TrainingEnded, WorkerJoined
from dasktune.graph.frontier import Frontier, start_of
from dasktune.graph.loads import Loads
from dasktune.graph.matching import Matching, Wanted
from dasktune.graph.plan import Node, NodeStep
from dasktune.graph.policy import Placement, Policy
from dasktune.graph.speeds import Speeds
from dasktune.needs import NumericClass
from dasktune.types import Step

P = TypeVar("P", bound=Policy)
PolicyMaker = Callable[["Placing"], Policy]
"""A class of policies, called with the kernel that asks it."""


class Placing:
    """The slots, and the choice of what they run.

    Parameters
    ----------
    bind
        Chooses the numeric class of a stage's lineage; called with the class of the worker on
        which it is about to begin.
    may_place
        Whether a stage may begin.
    policies
        What else decides, in this order.
    """

    queue_length = QUEUE_LENGTH

    def __init__(
        self,
        frontier: Frontier,
        speeds: Speeds,
        options: DispatchOptions,
        bind: Callable[[Node, NumericClass], None] = lambda node, numerics: None,
        may_place: Callable[[], bool] = lambda: True,
        policies: Iterable[PolicyMaker] = (),
    ) -> None:
        self.frontier = frontier
        self.speeds = speeds
        self.options = options
        self.attempts: dict[str, Attempt] = {}
        """The attempts under way, by id."""
        self.matching = Matching(options.needs)
        self.loads = Loads(options.load_seconds)
        self.slots: dict[str, Slot] = {}
        self.idle: dict[str, None] = {}
        """The workers that have no stage, and may have one."""
        self.joins = 0
        """The number of workers that have joined so far."""
        self.now = 0.0
        """The time of the event that is being handled."""
        self.filled_at = 0.0
        self.bind = bind
        self._may_place = may_place
        self._leaving: set[str] = set()
        self._counts: dict[Wanted, Counter[str]] = {}
        self._launched = 0
        self._ends = Ends(self._look_at)
        """The attempts that are the last of their workers, unless they end soon."""
        self._ending: dict[str, Attempt] = {}
        """Those that end soon: each `fill` looks for what follows them."""
        self._speeds_of_ends: int | None = None
        """How often speeds had moved when the ends were computed; None if they are not known."""
        self._out: list[RunStage] = []
        self._open: list[Policy] = []
        self.policies = [policy(self) for policy in policies]
        self.reopen()

    # -------------------------------------------------------------------- policies

    def policy(self, kind: type[P]) -> P | None:
        """Return the policy of a type; None if it was left out."""
        return next((policy for policy in self.policies if isinstance(policy, kind)), None)

    def reopen(self) -> None:
        """Note which policies are open; called wherever that may have changed."""
        self._open = [policy for policy in self.policies if policy.is_open]

    def receive(self, event: Event) -> None:
        """Tell policies of an event that is about workers and not about an attempt."""
        for policy in self.policies:
            policy.received(event)
        self.reopen()

    def request(self, node: Node) -> None:
        """Tell policies of a stage that a trial asks for."""
        for policy in self.policies:
            policy.requested(node)
        self.reopen()

    def registered(self, leaf: Node) -> list[SavePoint]:
        """Tell policies of a trial; return the states that it needs of running stages."""
        return [point for policy in self._open for point in policy.registered(leaf)]

    def begin_run(self, present: Collection[NumericClass]) -> None:
        """Tell policies of the numeric classes of the workers with which a run begins."""
        for policy in self.policies:
            policy.run_began(present)
        self.reopen()

    # --------------------------------------------------------------------- workers

    def join(self, joined: Iterable[WorkerJoined]) -> None:
        """Add idle workers: those that have what every stage needs."""
        before = len(self.slots)
        for event in joined:
            worker = event.worker
            if worker in self.slots or not self.matching.join(worker, event.offer):
                continue
            self.joins += 1
            slot = Slot(worker, event.offer.kind, host=event.host, number=self.joins)
            self.slots[worker] = slot
            for policy in self.policies:
                policy.joined(slot, event)
            self.reopen()
            self.note_idle(worker)
        if len(self.slots) > before:
            self.count_slots()

    def retire(self, worker: str) -> None:
        """Give a worker nothing more to do."""
        if worker in self.slots:
            self._leaving.add(worker)
            self.matching.retire(worker)
            self.idle.pop(worker, None)

    def lose(self, worker: str) -> None:
        """Remove a worker that is gone, if it is known."""
        self.idle.pop(worker, None)
        self._leaving.discard(worker)
        self.matching.lose(worker)
        for policy in self.policies:
            policy.worker_gone(worker)
        self.slots.pop(worker, None)
        self.count_slots()

    def clear(self) -> None:
        """Forget all workers."""
        self.slots.clear()
        self.idle.clear()
        self._leaving.clear()
        self._counts.clear()
        self.matching.clear()
        for policy in self.policies:
            policy.cleared()
        self.count_slots()

    def is_leaving(self, worker: str) -> bool:
        """Whether a worker was said to be gone soon."""
        return worker in self._leaving

    def is_busy(self, worker: str) -> bool:
        """Whether a worker has a stage, or is lent to one."""
        slot = self.slots[worker]
        return bool(slot.queue or slot.lent_to)

    def host_of(self, worker: str) -> str:
        """Return the host of a worker; empty if it is not known."""
        slot = self.slots.get(worker)
        return "" if slot is None else slot.host

    def may_have_stages(self, worker: str) -> bool:
        """Whether a worker stays, and may be given stages."""
        if worker in self._leaving:
            return False
        return all(policy.may_have_stages(worker) for policy in self._open)

    def is_trusted(self, worker: str) -> bool:
        """Whether a worker is given also stages that have not raised elsewhere."""
        return all(policy.is_trusted(worker) for policy in self._open)

    def is_usable(self, worker: str) -> bool:
        """Whether a worker is given any stage that it fits."""
        return self.may_have_stages(worker) and self.is_trusted(worker)

    def usable(self) -> Iterator[Slot]:
        """Yield the slots that are given any stage that they fit."""
        for worker, slot in self.slots.items():
            if self.is_usable(worker):
                yield slot

    def is_withheld(self, worker: str) -> bool:
        """Whether a worker is another study's."""
        return any(policy.is_withheld(worker) for policy in self._open)

    def is_extra(self, worker: str) -> bool:
        """Whether a worker is not counted, since another one stands for it."""
        return any(policy.is_extra(worker) for policy in self.policies)

    def company(self, worker: str) -> int:
        """Return how many other workers of the same device have something to do."""
        return sum(policy.company(worker) for policy in self.policies)

    def may_join(self, worker: str, wanted: Wanted) -> bool:
        """Whether a worker may train a stage with these needs together with others."""
        may_join = all(policy.may_join(worker) for policy in self.policies)
        return may_join and self.matching.may_run(worker, wanted)

    def devices_for(self, wanted: Wanted) -> Counter[str]:
        """Return how many devices may train a stage with these needs, by compute class.

        Those of workers that are put aside do not count: others would wait for them, for long.
        """
        usable = (slot for slot in self.usable() if self.may_join(slot.worker, wanted))
        return Counter(slot.kind for slot in usable)

    def counts(self, wanted: Wanted) -> Counter[str]:
        """Return `devices_for`, which is kept until stages are placed again or one raises."""
        counts = self._counts.get(wanted)
        if counts is None:
            counts = self._counts[wanted] = self.devices_for(wanted)
        return counts

    def note_idle(self, worker: str) -> None:
        """Give a worker stages again if it has none and may have some."""
        if worker in self.slots and not self.is_busy(worker) and self.is_usable(worker):
            self.idle.setdefault(worker)

    def note_all_idle(self) -> None:
        """Note anew which workers are idle: others than before may have stages."""
        self.reopen()
        for worker in self.slots:
            if self.may_have_stages(worker):
                self.note_idle(worker)
            else:
                self.idle.pop(worker, None)

    def note_change(self) -> None:
        """Have policies forget what followed from the stages and the workers of before."""
        self.reopen()
        for policy in self.policies:
            policy.changed()

    def count_slots(self) -> None:
        """Tell the speeds how many slots there are of each class; a new class changes profiles."""
        self.note_change()
        own = (
            slot.kind
            for worker, slot in self.slots.items()
            if not self.is_withheld(worker) and not self.is_extra(worker)
        )
        is_other = self.speeds.set_slots(Counter(own))
        self.reopen()
        if is_other and self.speeds.is_known:
            self.frontier.reweigh()
        elif is_other:
            self.frontier.sort_ready()

    @property
    def idle_workers(self) -> int:
        """Number of idle workers that may begin a stage beside those that run or wait for more."""
        idle = self.not_kept(self.idle)
        return min((policy.count_startable(idle) for policy in self._open), default=len(idle))

    # --------------------------------------------------------------------- filling

    def fill(self, now: float) -> list[RunStage]:
        """Give idle workers the best stages, and running ones what comes next."""
        for policy in self.policies:
            policy.placing_begins(now)
        self.now = self.filled_at = now
        self._counts.clear()
        while workers := self._with_room(self.idle):
            choice = self._choice(workers, now)
            if choice is None:
                break
            if self.is_prepared(choice.node, choice.slot):
                self.launch(*choice, None, now)
        for policy in self._open:
            policy.idle_served()
        self._continue_paths(now)
        if self._looks_ahead:
            self._look_ahead(now)
        else:
            self._speeds_of_ends = None
        for policy in self._open:
            policy.placing_ends()
        launched, self._out = self._out, []
        return launched

    def leaving(self, now: float) -> list[Attempt]:
        """Return the attempts whose stages should go on elsewhere.

        This is asked after `fill`: idle workers are those for which nothing waits.
        """
        return [attempt for policy in self.policies for attempt in policy.moving(now)]

    def next_tick(self, now: float) -> float | None:
        """Return when `fill` is due: a worker is about to run dry, or a policy asks for it."""
        dues = [policy.due() for policy in self._open]
        if self._looks_ahead:
            # Time alone brings no stage to those that end soon: `fill` looks after each event.
            self._watch_all(now)
            dues.append(self._ends.first_due(now))
        return min((due for due in dues if due is not None), default=None)

    def raised(self, worker: str, at: NodeStep, message: str, now: float) -> list[NodeStep]:
        """Note that the step after `at` raised on a worker.

        Returns
        -------
        list
            The places at which an error of this worker is no evidence against the trial.
        """
        self._counts.clear()
        answers = [policy.raised(worker, at, message, now) for policy in self.policies]
        return [each for answer in answers for each in answer]

    def is_hopeless(self, node: Node, step: Step) -> bool:
        """Whether the step after `step` raised so often that its trials fail."""
        answers = (policy.is_hopeless(node, step) for policy in self._open)
        verdict = next((answer for answer in answers if answer is not None), None)
        if verdict is None:
            return len(self.frontier.work(node).errors.get(step, ())) >= self.options.least_tries
        return verdict

    def leave(self, attempt: Attempt) -> None:
        """Remove an attempt from its slot, and give its lenders back."""
        slot = self.slots.get(attempt.worker)
        if slot is not None and attempt in slot.queue:
            slot.queue.remove(attempt)
            slot.last = attempt.node
            if slot.queue:
                self.frontier.continued.append(slot.queue[-1].id)
                self._enter(slot.queue[0])
                self.watch(slot.queue[0])
            else:
                self._free(slot.worker, attempt)
            self.note_idle(slot.worker)
        for lender in attempt.lenders:
            lent = self.slots.get(lender)
            if lent is None or attempt.id not in lent.lent_to:
                continue
            del lent.lent_to[attempt.id]
            if not lent.lent_to:
                self._free(lender, attempt)
                self.note_idle(lender)

    # ------------------------------------------------------------- what stages become

    def started(self, attempt: Attempt) -> None:
        """Note that a worker has begun an attempt."""
        for policy in self.policies:
            policy.started(attempt)

    def advanced(self, attempt: Attempt) -> None:
        """Note that an attempt has trained steps."""
        self.watch(attempt)
        for policy in self.policies:
            policy.advanced(attempt)

    def progressed(self, attempt: Attempt, step: Step, now: float) -> None:
        """Note how far an attempt is, as its worker says."""
        attempt.heard_at = now
        for policy in self.policies:
            policy.progressed(attempt, step)

    def ended(self, attempt: Attempt, event: TrainingEnded) -> None:
        """Note the end of a training, whose slot is not free yet."""
        for policy in self.policies:
            policy.ended(attempt, event)

    def ended_well(self, worker: str) -> None:
        """Note that a worker has trained a stage as it should."""
        for policy in self.policies:
            policy.ended_well(worker)

    def outgrew(self, attempt: Attempt, node: Node, *, is_sure: bool) -> bool:
        """Note that memory was not enough; return whether the trials are not to blame."""
        answers = [policy.outgrew(attempt, node, is_sure=is_sure) for policy in self.policies]
        return any(answers)

    def untried(self, node: Node) -> Iterator[str]:
        """Yield the workers that fit a stage and on which it has not raised."""
        raised_on = self.frontier.work(node).raised_on
        for worker, slot in self.slots.items():
            if worker not in raised_on and self.fits(node, slot):
                yield worker

    def may_try_later(self, node: Node) -> bool:
        """Whether a stage has not raised on some worker that stays, and may have stages later."""
        staying = (each for each in self.untried(node) if each not in self._leaving)
        return not all(map(self.may_have_stages, staying))

    def _enter(self, attempt: Attempt) -> None:
        for policy in self.policies:
            policy.entered(attempt)

    def _free(self, worker: str, attempt: Attempt) -> None:
        for policy in self.policies:
            policy.freed(worker, attempt)

    # --------------------------------------------------------------------- choices

    def not_kept(self, workers: Collection[str]) -> Collection[str]:
        """Return those of some idle workers that are not kept for a stage that waits for more."""
        for kept in [policy.kept for policy in self._open if policy.kept]:
            workers = [worker for worker in workers if worker not in kept]
        return workers

    def keeps_in_place(self) -> bool:
        """Whether running stages stay where they are."""
        return any(policy.keeps_in_place() for policy in self._open)

    def has_room(self, worker: str) -> bool:
        """Whether a worker without a stage has room for one."""
        return all(policy.with_room([worker]) for policy in self.policies)

    def is_prepared(self, node: Node, slot: Slot) -> bool:
        """Whether all is chosen that a stage needs; if not, it is chosen now."""
        return all(policy.is_prepared(node, slot) for policy in self._open)

    def _with_room(self, workers: Collection[str]) -> Collection[str]:
        """Return those of some idle workers that have room for one stage more."""
        for policy in self._open:
            workers = policy.with_room(workers)
        return workers

    def _choice(self, workers: Collection[str], now: float) -> Placement | None:
        """Return the stage that should start next on some workers, if one may.

        Where it takes more workers than are idle, those are kept for it, and others get the rest.
        """
        for policy in self._open:
            policy.release_kept()
        while self._may_place():
            chosen = self._best(workers, now)
            if chosen is None:
                return None
            node, able = chosen
            choice = self.gathered(node, able, workers)
            if choice is not None:
                return choice
            for policy in self._open:
                policy.keep(node, workers, self._slots_for(node, able)[0].kind)
            workers = self.not_kept(workers)
        return None

    def _best(self, workers: Collection[str], now: float) -> tuple[Node, Collection[str]] | None:
        """Return the stage that should go first on some workers, and workers that may run it."""
        for policy in self._open:
            chosen = policy.chosen(workers, now)
            if chosen != "kernel":
                return chosen
        may_start = partial(self.may_start, workers=workers)
        node = self.frontier.best_ready(may_start, partial(self.may_meet, workers=workers))
        return None if node is None else (node, workers)

    def gathered(
        self, node: Node, able: Collection[str], workers: Collection[str]
    ) -> Placement | None:
        """Return a stage with its own worker and what it takes else; None if it must wait.

        Parameters
        ----------
        able
            Workers of one class, of which one shall be its own; at least one of them may run it.
        workers
            Those that may be lent to it.
        """
        if self.frontier.workers_of(node) > 1:
            for policy in self._open:
                if policy.gathers:
                    return policy.gather(node, self._slots_for(node, able), workers)
        slots = [self.slots[worker] for worker in able]
        if any(policy.prefers for policy in self._open):
            slots = self._slots_for(node, able)
        holding = (slot for slot in slots if slot.last is node.parent)
        # Few are asked: there may be a thousand idle workers.
        return Placement(
            node, next(each for each in chain(holding, slots) if self.may_run(node, each))
        )

    def may_meet(self, wanted: Wanted, workers: Collection[str]) -> bool:
        """Whether one of some workers meets needs."""
        return not wanted or any(self.matching.may_run(worker, wanted) for worker in workers)

    def may_start(self, node: Node, workers: Collection[str]) -> bool:
        """Whether one of some workers may run a stage."""
        if not all(policy.may_start(node) for policy in self._open):
            return False
        return any(self.may_run(node, self.slots[worker]) for worker in workers)

    def _slots_for(self, node: Node, able: Collection[str]) -> list[Slot]:
        """Return the slots of some workers that may run a stage, as policies prefer them."""
        slots = (self.slots[worker] for worker in able)
        allowed = [slot for slot in slots if self.may_run(node, slot)]
        for policy in self._open:
            allowed = policy.preferred(allowed)
        return allowed

    def may_run(self, node: Node, slot: Slot) -> bool:
        """Whether a worker fits a stage, and may train it now."""
        if not self.fits(node, slot):
            return False
        return all(policy.may_run(node, slot) for policy in self._open)

    def fits(self, node: Node, slot: Slot) -> bool:
        """Whether a worker has what a stage needs, and could train it at some time."""
        if not self.matching.may_run(slot.worker, node.needs):
            return False
        return all(policy.fits(node, slot) for policy in self._open)

    def other(self, slot: Slot, now: float) -> Node | None:
        """Return the stage that a worker would begin if it went on with no path."""
        choice = self._choice([slot.worker], now)
        return None if choice is None else choice.node

    # -------------------------------------------------------------- what comes next

    def _continue_paths(self, now: float) -> None:
        """Queue the best child behind a stage that begins a pair.

        A worker is given two stages of a path. After them it takes what is longest then,
        be it the path's next stage or another's: following a path to its end would leave
        longer ones waiting.
        """
        while self.frontier.continued:
            attempt = self.attempts.get(self.frontier.continued.popleft())
            if attempt is not None and attempt.after is None and not attempt.ended:
                self._continue_with(self._next_of(attempt, now), attempt, now)

    def _next_of(self, attempt: Attempt, now: float) -> Node | None:
        """Return the stage that would carry an attempt on, if it may be queued behind it."""
        slot = self.slots.get(attempt.worker)
        if (
            slot is None
            or attempt.stopping
            or not all(map(self.may_have_stages, attempt.workers))
            or self._is_suspect(attempt)
            or not slot.queue
            or slot.queue[-1] is not attempt
        ):
            return None
        is_full = len(slot.queue) >= self.queue_length
        child = None if is_full else self.frontier.best_child(attempt.node)
        if child is None or not self.may_run(child, slot):
            return None
        may = all(policy.may_carry_on(attempt, child, now) for policy in self._open)
        return child if may else None

    def _continue_with(self, child: Node | None, attempt: Attempt, now: float) -> None:
        if child is not None:
            self.launch(child, self.slots[attempt.worker], attempt.lenders, attempt, now)

    def _is_suspect(self, attempt: Attempt) -> bool:
        """Whether a stage was lost with a worker before.

        It runs alone until its state is durable: a worker that is lost again while the next
        stage begins would leave open which of the two it was.
        """
        return self.frontier.work(attempt.node).losses > 0

    @property
    def _looks_ahead(self) -> bool:
        """Whether stages are chosen before workers run dry: once it is known when they do.

        By a guess, a stage would wait behind a long one that others could take meanwhile.
        """
        return self.options.lookahead_seconds > 0 and self.speeds.is_settled and not self.idle

    def watch(self, attempt: Attempt) -> None:
        """Note that an attempt may end earlier than was expected."""
        if self._speeds_of_ends is not None:
            self._ends.watch(attempt, self.filled_at)

    def _look_at(self, attempt: Attempt, now: float) -> float:
        """Return the time at which the stage after an attempt is chosen; infinity if it is."""
        slot = self.slots.get(attempt.worker)
        if slot is None or len(slot.queue) != 1 or slot.queue[0] is not attempt:
            return math.inf
        return now + self.remaining_seconds(attempt, now) - self.options.lookahead_seconds

    def _watch_all(self, now: float) -> None:
        """Compute all ends anew if they are not known, or if a speed has moved since."""
        if self._speeds_of_ends == self.speeds.moved:
            return
        self._speeds_of_ends = self.speeds.moved
        self._ends.clear()
        self._ending.clear()
        for slot in self.slots.values():
            for attempt in slot.queue:
                self._ends.watch(attempt, now)

    def _look_ahead(self, now: float) -> None:
        """Queue the best stage on workers that are about to run dry."""
        self._watch_all(now)
        self._ending.update((attempt.id, attempt) for attempt in self._ends.take_due(now))
        for last in list(self._ending.values()):
            if self._look_at(last, now) > now:
                del self._ending[last.id]
                self._ends.watch(last, now)
            elif not last.stopping and self.is_usable(last.worker) and not self._is_suspect(last):
                self._follow(self.slots[last.worker], last, now)

    def _follow(self, slot: Slot, last: Attempt, now: float) -> None:
        """Queue the best stage behind the last one of a worker."""
        child, other = self._next_of(last, now), self.other(slot, now)
        while other is not None and (child is None or self.frontier.goes_first(other, child)):
            if self.is_prepared(other, slot):
                self.launch(other, slot, (), None, now)
                return
            child, other = self._next_of(last, now), self.other(slot, now)
        if child is None or not any(policy.must_yield(child) for policy in self._open):
            self._continue_with(child, last, now)

    def remaining_seconds(self, attempt: Attempt, now: float) -> float:
        """Return how long an attempt will still run, by the speeds measured so far."""
        per_step = self.speeds.seconds_per_step(attempt.node, attempt.kind)
        whole = (attempt.stop - attempt.position) * per_step
        if attempt.started is None:
            return whole
        by_clock = attempt.started + (attempt.stop - attempt.start) * per_step - now
        return max(0.0, min(whole, by_clock))

    # ------------------------------------------------------------------- launching

    def launch(
        self,
        node: Node,
        slot: Slot,
        lenders: tuple[str, ...],
        after: Attempt | None,
        now: float,
    ) -> None:
        """Give a stage to a worker, alone or behind an attempt."""
        attempt = self._new_attempt(node, slot, lenders, after, now)
        self.attempts[attempt.id] = attempt
        for policy in self.policies:
            policy.launching(node, slot, after, now)
        slot.queue.append(attempt)
        if slot.queue[0] is attempt:
            self._enter(attempt)
        self.watch(attempt)
        for lender in lenders:
            lent = self.slots[lender]
            lent.last = None  # its own state gives way
            lent.lent_to[attempt.id] = attempt
            for policy in self.policies:
                policy.lender_added(lender, attempt)
        for worker in attempt.workers:
            self.idle.pop(worker, None)
        for policy in self.policies:
            policy.launched(attempt)
        for above in attempt.covered():
            self.frontier.assign(above, attempt.id)
        self.frontier.continued.append(attempt.id)
        self._out.append(self._instruction(attempt))

    def _new_attempt(
        self,
        node: Node,
        slot: Slot,
        lenders: tuple[str, ...],
        after: Attempt | None,
        now: float,
    ) -> Attempt:
        start = node.start if after is not None else start_of(node)
        order, self._launched = self._launched, self._launched + 1
        attempt = Attempt(
            id=f"{order}-{self.options.attempt_prefix}",
            order=order,
            node=node,
            leaf=node,
            start=start,
            stop=node.stop,
            worker=slot.worker,
            after=None if after is None else after.id,
            launched=now,
            position=start,
            kind=slot.kind,
            lenders=lenders,
        )
        if lenders:
            attempt.hosts = {each: self.host_of(each) for each in attempt.workers}
        return attempt

    def _instruction(self, attempt: Attempt) -> RunStage:
        node, start = attempt.node, attempt.start
        saves = {*self.options.saves.steps_of(node, start)}
        # Of a trial that is trained alone, one stage trains all nodes from step 0 on.
        saves.update(above.stop for above in list(attempt.covered())[1:] if above.requests)
        for policy in self._open:
            saves.update(policy.more_saves(node, start))
        return RunStage(
            attempt=attempt.id,
            order=attempt.order,
            worker=attempt.worker,
            after=attempt.after,
            node=node,
            start=start,
            stop=node.stop,
            saves=tuple(sorted(saves)),
            needs=self.matching.claims(attempt.worker, node.needs),
            lenders=attempt.lenders,
            is_last=not node.children and not node.is_alone,
        )

"""The read-only view of a run: all that parts outside the engine may see of its dispatcher.

The view is live and costs nothing to keep: each property reads what it needs when it is asked.
Attempts and slots are given as read-only protocols, so that the type checker refuses a write.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.frontier import is_ready, start_of
from dasktune.graph.invariants import violations
from dasktune.graph.kept_speeds import KeptMeasurements
from dasktune.graph.matching import Wanted
from dasktune.graph.packing import FactorChange, PackedModel
from dasktune.graph.plan import Node, NodeStep, SearchPlan, nodes_along
from dasktune.graph.policies.broken_workers import Aside, BrokenWorkers
from dasktune.graph.policies.paused_workers import PausedWorkers
from dasktune.graph.policies.several_workers import SeveralWorkers
from dasktune.graph.policies.shared_devices import SharedDevices
from dasktune.graph.policies.unchecked_trainer import UncheckedTrainer
from dasktune.needs import Needs, Offer
from dasktune.types import Sequences, Step


class AttemptView(Protocol):
    """One attempt at a stage; its fields are explained in `dasktune.graph.attempts.Attempt`."""

    @property
    def id(self) -> str:
        """Its id, which is never used again."""

    @property
    def node(self) -> Node:
        """The node where it shall end."""

    @property
    def leaf(self) -> Node:
        """The node to which it was first sent."""

    @property
    def start(self) -> Step:
        """The step that it starts from."""

    @property
    def stop(self) -> Step:
        """The step at which it shall end."""

    @property
    def worker(self) -> str:
        """The address of its worker."""

    @property
    def kind(self) -> str:
        """The compute class of its worker."""

    @property
    def position(self) -> Step:
        """The last step that its worker reported."""

    @property
    def trained_to(self) -> Step:
        """The last step that was trained: its position, unless its trainer had ended before."""

    @property
    def started(self) -> float | None:
        """Time at which it began to train; None if it waits behind another attempt."""

    @property
    def saved(self) -> Step:
        """Its last durable step; -1 if there is none."""

    @property
    def repeated(self) -> int:
        """Number of its steps that had been trained before."""

    @property
    def begun(self) -> bool:
        """Whether its worker reported that it started."""

    @property
    def ended(self) -> bool:
        """Whether its training has ended, though the store may still lack its last states."""

    @property
    def taken(self) -> bool:
        """Whether another driver trains its steps."""

    @property
    def uprooted(self) -> bool:
        """Whether the state that it starts from is known to be gone."""

    @property
    def lenders(self) -> Sequence[str]:
        """The addresses of the workers that have lent it their devices."""

    @property
    def has_begun(self) -> bool:
        """Whether its worker was seen to train it."""

    def node_at(self, step: Step) -> Node:
        """Return the node on its way that holds `step`: start < step <= stop."""

    def covered(self) -> Iterator[Node]:
        """Yield the nodes that it shall train, the last first."""


class SlotView(Protocol):
    """One worker, and the attempts that it was given."""

    @property
    def worker(self) -> str:
        """The address of the worker."""

    @property
    def kind(self) -> str:
        """The name of its compute class."""

    @property
    def queue(self) -> Sequence[AttemptView]:
        """The attempt that runs, then the one that follows it."""


@dataclass(frozen=True, slots=True)
class RunView:
    """A run as parts outside the engine may see it."""

    _dispatcher: Dispatcher

    @property
    def plan(self) -> SearchPlan:
        """The search plan; `SearchPlan.learn` is the only way to add to it from outside."""
        return self._dispatcher.plan

    @property
    def attempts(self) -> Mapping[str, AttemptView]:
        """The attempts under way, by id."""
        return self._dispatcher.attempts

    @property
    def slots(self) -> Mapping[str, SlotView]:
        """The slots by worker."""
        return self._dispatcher.slots

    @property
    def needs(self) -> Needs:
        """The needs of every stage."""
        return self._dispatcher.options.needs

    @property
    def offers(self) -> Mapping[str, Offer]:
        """The offers of all workers, by worker, also of those that may run nothing."""
        return self._dispatcher.placing.matching.offers

    @property
    def classes(self) -> Mapping[str, int]:
        """Number of workers by compute class."""
        return Counter(slot.kind for slot in self._dispatcher.slots.values())

    def may_run(self, worker: str, node: Node) -> bool:
        """Whether a worker has what the stage of a node needs."""
        return self.meets(worker, node.needs)

    def meets(self, worker: str, wanted: Wanted) -> bool:
        """Whether a worker has what a stage with these needs of its trials needs."""
        return self._dispatcher.placing.matching.may_run(worker, wanted)

    def claims(self, worker: str, node: Node) -> dict[str, float]:
        """Return the amounts that the stage of a node uses up on a worker."""
        return self._dispatcher.placing.matching.claims(worker, node.needs)

    def devices_for(self, node: Node) -> Counter[str]:
        """Return how many devices of this study may train a stage, by compute class.

        Workers that share a device count once.
        """
        return self._dispatcher.placing.devices_for(node.needs)

    def idle_for(self, node: Node) -> Counter[str]:
        """Return how many idle workers may train a stage together, by compute class."""
        several = self._dispatcher.placing.policy(SeveralWorkers)
        if several is None or self._dispatcher.is_held:
            return Counter()
        return several.idle_for(node)

    def load_seconds(self, kind: str) -> float:
        """Return the seconds of loading a state on a class, as measured so far."""
        return self._dispatcher.placing.loads.seconds(kind)

    @property
    def measurements(self) -> int:
        """Number of times that speeds were measured in this run."""
        return self._dispatcher.speeds.measurements

    def speedups(
        self, sequences: Sequences, step: Step, numbers: Iterable[int]
    ) -> dict[int, float]:
        """Return the measured speedups of several devices; see `Speeds.speedups`."""
        return self._dispatcher.speeds.speedups(sequences, step, numbers)

    def made_until(self, trial: int, sequences: Sequences, until: Step) -> Step:
        """Return up to which step a path is trained, or will be for other trials.

        Parameters
        ----------
        trial
            A registered trial that asks for nothing.
        sequences, until
            The path of the trial, perhaps on other devices than before, and its last step.
        """
        frontier, made = self._dispatcher.frontier, 0
        lineage = self.plan.paths[trial].leaf.lineage
        for node, part in nodes_along(lineage.parent or lineage, sequences, until):
            is_wanted = frontier.is_active(node) or frontier.is_running(node)
            if is_wanted or node.reached > node.start:
                made = part if is_wanted else min(part, node.reached)
        return made

    def running_attempt(self, trial: int) -> AttemptView | None:
        """Return the attempt at a stage that a trial waits for, if a worker has it."""
        nodes = self._dispatcher.wanted.get(trial)
        for node in nodes[0].up() if nodes else ():
            attempt = self._dispatcher.frontier.attempt_on(node)
            if attempt is not None:
                return self.attempts.get(attempt)
            if is_ready(node):
                return None
        return None

    def running_groups(self) -> Iterator[tuple[AttemptView, list[int]]]:
        """Yield the attempts that train, each with the trials that wait for it.

        Left out are those that shall end soon, and those whose worker goes on with stages of
        other paths.
        """
        waiting: dict[str, list[int]] = {}
        for trial in self._dispatcher.wanted:
            attempt = self.running_attempt(trial)
            if attempt is not None:
                waiting.setdefault(attempt.worker, []).append(trial)
        for worker, trials in waiting.items():
            slot = self._dispatcher.slots.get(worker)
            if slot is None or not slot.queue:
                continue
            first, behind = slot.queue[0], slot.queue[1:]
            is_followed = any(each.after != first.id for each in behind)
            if first.has_begun and not (first.stopping or is_followed):
                yield first, trials

    def last_state(self, trial: int, start: Step) -> Step | None:
        """Return the last step of a trial from `start` on with a state.

        None as long as an attempt may save further ones.
        """
        nodes = [node for node in self.plan.nodes_of(trial) if node.stop > start]
        if any(map(self.is_running, nodes)):
            return None
        return max((step for node in nodes for step in node.checkpoints), default=start)

    def waiting_stage(self, trial: int) -> Node | None:
        """Return the stage that a trial waits for and no worker trains; None if one does."""
        nodes = self._dispatcher.wanted.get(trial)
        for node in nodes[0].up() if nodes else ():
            if self.is_running(node):
                return None
            if is_ready(node):
                return node
        return None

    @property
    def busy_workers(self) -> int:
        """Number of workers that have a stage, or are lent to one."""
        return sum(1 for _ in filter(self.is_busy, self._dispatcher.slots))

    def is_busy(self, worker: str) -> bool:
        """Whether a worker of `slots` has a stage, or is lent to one."""
        return self._dispatcher.placing.is_busy(worker)

    def workers_of(self, node: Node) -> int:
        """Return how many workers the stage of a node takes."""
        return self._dispatcher.frontier.workers_of(node)

    @property
    def short_of_workers(self) -> Iterator[tuple[Node, int]]:
        """Yield the ready stages that take more workers than a class has, and the most it has."""
        for node in self._dispatcher.frontier.ready():
            workers = self.workers_of(node)
            most = max(self.devices_for(node).values(), default=0) if workers > 1 else 1
            if 0 < most < workers:
                yield node, most

    @property
    def least_workers(self) -> int:
        """The least workers that a stage takes that runs or could start now; 1 without stages."""
        running = (1 + len(each.lenders) for each in self.attempts.values() if not each.ended)
        ready = self._dispatcher.frontier.least_ready_workers()
        return min((*running, *([] if ready is None else [ready])), default=1)

    @property
    def gathering(self) -> Sequence[Node]:
        """The ready stages for which idle workers are kept until enough are idle."""
        several = self._dispatcher.placing.policy(SeveralWorkers)
        return () if several is None else several.waiting

    @property
    def idle_workers(self) -> int:
        """Number of idle workers that may be given a stage, and are not kept for one."""
        return self._dispatcher.idle_workers

    def capacity(self, now: float) -> int:
        """Return the number of workers for which the tuner may be asked for more.

        Workers may be idle although stages are ready: those that ask for other workers. Once there
        are as many as workers, the tuner is asked no more, or it would begin trial after trial.
        Stages that have fitted no worker for long do not count: their workers may never come.

        Parameters
        ----------
        now
            Seconds, by the clock of the run.
        """
        idle, total = self.idle_workers, len(self._dispatcher.slots)
        if not idle:
            return 0
        without_workers = self._dispatcher.unplaced_long(now)
        return min(idle, total - self.count_ready(total + without_workers) + without_workers)

    @property
    def unplaced(self) -> Iterator[Node]:
        """Yield the ready stages whose needs no worker meets."""
        return self._dispatcher.unplaced

    @property
    def aside(self) -> Iterator[Aside]:
        """Yield the workers that are put aside, because stages raised on them."""
        broken = self._dispatcher.placing.policy(BrokenWorkers)
        return iter(()) if broken is None else broken.aside

    @property
    def claimable(self) -> Iterator[str]:
        """Yield the workers that a study may claim: one of those that share a device.

        A paused worker is of no use to it, unless it has a stage.
        """
        paused, placing = {*self.paused}, self._dispatcher.placing
        able = (each for each in self.slots if each not in paused or self.is_busy(each))
        return (worker for worker in able if not placing.is_extra(worker))

    @property
    def busy_claims(self) -> Iterator[str]:
        """Yield the workers of `claimable` that have a stage, or whose device has one."""
        shared = self._dispatcher.placing.policy(SharedDevices)
        busy = filter(self.is_busy, self.slots)
        return iter(dict.fromkeys(busy if shared is None else map(shared.stand_in, busy)))

    @property
    def factor_changes(self) -> Sequence[FactorChange]:
        """The changes so far of the number of stages that run together on shared devices."""
        shared = self._dispatcher.placing.policy(SharedDevices)
        return () if shared is None else shared.changes

    @property
    def beside(self) -> Iterator[str]:
        """Yield the workers without a stage whose device a stage uses, or another stands for."""
        placing = self._dispatcher.placing
        for worker, slot in placing.slots.items():
            is_beside = slot.lent_to or placing.is_extra(worker) or placing.company(worker)
            if not slot.queue and is_beside:
                yield worker

    @property
    def packed(self) -> list[PackedModel]:
        """The models that share devices, with the number of their stages that run together."""
        shared = self._dispatcher.placing.policy(SharedDevices)
        return [] if shared is None else shared.packed

    def company(self, worker: str) -> int:
        """Return how many other workers of the same device have a stage or an audit."""
        return self._dispatcher.placing.company(worker)

    @property
    def withheld(self) -> Iterator[str]:
        """Yield the workers that other studies have."""
        return filter(self._dispatcher.placing.is_withheld, self.slots)

    @property
    def paused(self) -> Iterator[str]:
        """Yield the workers that Dask has paused."""
        policy = self._dispatcher.placing.policy(PausedWorkers)
        return filter(policy.workers.__contains__, self.slots) if policy else iter(())

    @property
    def is_checked(self) -> bool:
        """Whether no check of the trainer runs."""
        policy = self._dispatcher.placing.policy(UncheckedTrainer)
        return policy is None or not policy.is_open

    @property
    def is_idle(self) -> bool:
        """Whether no attempt is under way."""
        return self._dispatcher.is_idle

    @property
    def wanted(self) -> Mapping[int, Sequence[Node]]:
        """The nodes that each trial with live requests waits for, in the order of steps."""
        return self._dispatcher.wanted

    @property
    def is_under_way(self) -> bool:
        """Whether a trial waits for a report, or an attempt for its end."""
        return bool(self._dispatcher.wanted) or not self._dispatcher.is_idle

    @property
    def stages_waiting(self) -> int:
        """Number of stages that must be trained and have no attempt."""
        return self._dispatcher.frontier.active_count

    @property
    def steps_executed(self) -> int:
        """Steps that attempts have trained that have ended."""
        return self._dispatcher.open.steps_executed

    @property
    def steps_repeated(self) -> int:
        """Those of them that had been trained before."""
        return self._dispatcher.open.steps_repeated

    @property
    def steps_unsaved(self) -> int:
        """Steps that attempts of this driver have trained and not saved yet."""
        return sum(
            max(0, attempt.trained_to - max(attempt.start, attempt.saved))
            for attempt in self._dispatcher.attempts.values()
            if not attempt.taken
        )

    @property
    def steps_left(self) -> int:
        """Steps that trials ask for and that were not trained; shared steps count once."""
        seen: set[Node] = set()
        left = 0
        for nodes in self._dispatcher.wanted.values():
            for node in nodes[-1].up():
                if node in seen:
                    break
                seen.add(node)
                reached = max(node.starts, default=node.start)
                left += node.stop - reached
                above = node.parent
                if reached > node.start or (above is not None and above.stop in above.starts):
                    break
        return max(0, left - self.steps_unsaved)

    def needed_states(self) -> Iterator[NodeStep]:
        """Yield the states that must not be evicted.

        These are the start states of attempts that may not have loaded them, and of the stage
        that comes next: or its start might be evicted each time before it is its turn.
        """
        yield from self._dispatcher.open.starts
        following = self._dispatcher.frontier.best_ready()
        if following is not None:
            step = start_of(following)
            yield following.holder(step), step

    def violations(self) -> Iterator[str]:
        """Yield what must always hold of a dispatcher, and does not; see `invariants`."""
        return violations(self._dispatcher)

    def is_running(self, node: Node) -> bool:
        """Whether an attempt is making the state at the node's end."""
        return self._dispatcher.frontier.is_running(node)

    def along(self, root_key: str, sequences: Sequences, until: Step) -> Iterator[str]:
        """Yield the attempts that make states on a path, or on an edge that it leaves.

        Parameters
        ----------
        root_key
            As `SearchPlan.root_key_of` gives it for nodes on the path.
        sequences, until
            The path, and its last step.
        """
        plan, frontier = self._dispatcher.plan, self._dispatcher.frontier
        for root in plan.roots:
            if plan.root_key_of(root) == root_key:
                for node, _ in nodes_along(root, sequences, until):
                    attempt = frontier.attempt_on(node)
                    if attempt is not None:
                        yield attempt

    def is_waiting(self, node: Node) -> bool:
        """Whether the node's stage must be trained and has no attempt."""
        return self._dispatcher.frontier.is_active(node)

    def seconds_per_step(self, node: Node, kind: str | None = None) -> float:
        """Return the seconds that a step of a node takes, as measured or guessed so far.

        That is on a class of workers, or on an average slot.
        """
        return self._dispatcher.speeds.seconds_per_step(node, kind)

    @property
    def kept(self) -> KeptMeasurements:
        """The measurements of the run by model and class, for later runs."""
        return self._dispatcher.kept

    def count_ready(self, most: int) -> int:
        """Return how many stages could start now, counted up to `most`."""
        return sum(1 for _ in islice(self._dispatcher.frontier.ready(), most))

    def ready_by_needs(self, most: int) -> Counter[Wanted]:
        """Return how many workers stages could take now by their needs, counted up to `most`."""
        return self._dispatcher.frontier.ready_by_needs(most)

    def following(self, node: Node) -> Counter[Wanted]:
        """Return how many stages wait for the state at the node's end, by their needs."""
        return self._dispatcher.frontier.following(node)

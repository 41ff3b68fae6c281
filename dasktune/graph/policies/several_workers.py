"""The policy of stages that several workers train together.

A stage takes one worker, unless more devices shall train it than its needs ask of one worker. Then
it takes a *gang*: its own worker, and *lenders* of the same compute class, which leave their
devices to it. A gang is together until the last attempt that carries on from its first one has
ended; none of its workers is in another gang, or gets another stage, meanwhile.

A gang begins once enough workers of a class are idle. Until then the first stage that waits for a
gang keeps the idle workers: else stages of one worker would take each of them, and a gang would
never find enough. At most one of the workers on a GPU may be in a gang: NCCL refuses two processes
on one GPU. A gang takes no worker that trains an audit, and waits until that has ended: a second
process may find no memory there.

Where a stage raises on a gang, nobody knows which of its workers is broken, if one is. An
*explanation* is a small set of workers such that each gang that failed had at least one of them: if
these are broken, all failures are explained. The next gang avoids as many explanations as can be.
If no explanation is left, the trial is the reason. Workers that were in every such gang are
*suspects*: the stage waits for other workers. So one or two broken workers fail no trial that
others can train, if few gangs must be tried for that. Where a stage is lost with a worker, that
worker is known, but it may come back under another name: the next gang has as few workers as
possible that joined since, or that are of the same host.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import combinations

from dasktune.graph.attempts import Attempt, Slot
from dasktune.graph.devices import DEVICES, devices_at
from dasktune.graph.events import AuditsRun, Event, SavePoint, WorkerJoined
from dasktune.graph.matching import Wanted
from dasktune.graph.partings import parting, partings
from dasktune.graph.placement import Placing
from dasktune.graph.plan import Node, NodeStep
from dasktune.graph.policy import Placement, Policy
from dasktune.needs import Needs
from dasktune.types import Step

_MOST_DOUBTED = 3
"""More than the doubt of a worker that joined after a loss, on the host of a lost one."""


def workers_of(node: Node, study: Needs) -> int:
    """Return how many workers a stage takes.

    It takes one worker if its needs ask one worker for as many devices as train it. Else it takes
    a worker for each device. Trials that share the stage may ask one worker for unlike numbers:
    the largest counts.
    """
    if DEVICES not in node.sequences:
        return 1
    known = (needs for needs in (study, *node.needs) if not needs.device_problems())
    each = max((needs.devices() for needs in known), default=1)
    devices = devices_at(node.sequences, node.start)
    return 1 if devices <= each else devices


class SeveralWorkers(Policy):
    """Gathers the workers of stages that take several, and keeps idle ones for them.

    Attributes
    ----------
    waiting
        The stages that wait until enough workers are idle, as the last choice saw them.
    """

    gathers = True

    def __init__(self, placing: Placing) -> None:
        self.placing = placing
        placing.frontier.workers_of = self._workers_of
        self.waiting: list[Node] = []
        self.kept: set[str] = set()
        self._kept_idle: set[str] = set()
        self._is_asked = False
        self._audited: Collection[str] = ()
        self._gpus: dict[str, str] = {}
        """The GPU of each worker, as far as they are known."""
        self._doubles: frozenset[str] | None = None
        """The usable workers on whose GPU another one may be in gangs; None if not yet known."""

    @property
    def is_open(self) -> bool:
        """Whether a stage for several workers was asked for."""
        return self._is_asked

    # ------------------------------------------------------------------- what happens

    def joined(self, slot: Slot, event: WorkerJoined) -> None:
        """Add a worker that trains on a GPU; its name is empty if it is not known."""
        if event.gpu:
            self._gpus[slot.worker] = event.gpu
        self._doubles = None

    def worker_gone(self, worker: str) -> None:
        """Remove a worker that is gone."""
        self._gpus.pop(worker, None)
        self._doubles = None

    def cleared(self) -> None:
        """Forget all workers, and that any stage took several."""
        self._gpus.clear()
        self._audited = ()
        self._renew()
        self._is_asked = False

    def received(self, event: Event) -> None:
        """Note the workers that train an audit."""
        if isinstance(event, AuditsRun):
            self._audited = event.nodes.keys()

    def requested(self, node: Node) -> None:
        """Note whether a requested stage, or a stage before it, takes several workers."""
        if not self._is_asked and DEVICES in node.sequences:
            self._is_asked = any(self._workers_of(above) > 1 for above in node.up())

    def registered(self, leaf: Node) -> Iterator[SavePoint]:
        """Yield where running stages on other devices must save: there a new trial parts."""
        for attempt in [] if leaf.is_alone else self.placing.attempts.values():
            node, is_over = attempt.node, attempt.ended or attempt.stopping or attempt.taken
            if is_over or node.lineage.parent is not leaf.lineage.parent:
                continue
            step = parting(node, leaf.sequences, 0, min(leaf.stop, attempt.stop))
            is_inside = attempt.position < step < attempt.stop
            if is_inside and step < leaf.stop and node.holder(step).stop > step:
                yield SavePoint(attempt=attempt.id, worker=attempt.worker, step=step)

    def placing_begins(self, now: float) -> None:
        """Forget what was seen of workers, and which stages wait for them."""
        self._renew()

    def raised(self, worker: str, at: NodeStep, message: str, now: float) -> Collection[NodeStep]:
        """Forget what was seen of workers: one may be put aside now."""
        self._renew()
        return ()

    def idle_served(self) -> None:
        """Note the workers that are kept, of those that are idle."""
        self._kept_idle = self.kept & self.placing.idle.keys()

    def placing_ends(self) -> None:
        """Keep the idle workers again that were kept before running ones were looked at."""
        self.kept = self._kept_idle

    def release_kept(self) -> None:
        """Keep no workers: the stages are compared anew."""
        self.waiting.clear()
        self.kept.clear()

    def _renew(self) -> None:
        self._doubles = None
        self.release_kept()

    # --------------------------------------------------------------- what it is asked

    def may_start(self, node: Node) -> bool:
        """Whether a stage does not wait for more workers."""
        return node not in self.waiting

    def fits(self, node: Node, slot: Slot) -> bool:
        """Whether a slot's class has as many workers as a stage takes, be they idle or not."""
        count = self._workers_of(node)
        if count == 1:
            return True
        is_able = self.placing.may_join(slot.worker, node.needs)
        return is_able and self.placing.counts(node.needs)[slot.kind] >= count

    def may_join(self, worker: str) -> bool:
        """Whether no other worker of its class on the same GPU may train with others."""
        return worker not in self._on_taken_gpus()

    def may_carry_on(self, attempt: Attempt, child: Node, now: float) -> bool:
        """Whether a child's stage takes just the workers of an attempt, and they are there."""
        is_whole = all(lender in self.placing.slots for lender in attempt.lenders)
        return is_whole and self._workers_of(child) == 1 + len(attempt.lenders)

    def must_yield(self, child: Node) -> bool:
        """Whether a stage that waits for workers goes before one that would carry a path on."""
        return any(self.placing.frontier.goes_first(node, child) for node in self.waiting)

    def more_saves(self, node: Node, start: Step) -> Iterable[Step]:
        """Return the steps at which trials part whose devices may change."""
        return () if node.is_alone else partings(node, start)

    def is_hopeless(self, node: Node, step: Step) -> bool | None:
        """Whether a stage raised on so many gangs that its trials fail."""
        options, work = self.placing.options, self.placing.frontier.work(node)
        if self._workers_of(node) == 1:
            return None
        if work.tries.get(step, 0) >= options.most_workers_tried:
            return True  # each gang may have a worker that is put aside again and again
        if len(work.errors.get(step, ())) < options.least_tries:
            return False
        may_wait = self.placing.may_try_later(node)
        return not (may_wait or self._may_try_another(node, work.gangs))

    def idle_for(self, node: Node) -> Counter[str]:
        """Return how many idle workers may train a stage together, by compute class."""
        slots, idle = self.placing.slots, self.placing.idle
        free = (each for each in idle if each not in self.kept and self._is_free(each, node.needs))
        return Counter(slots[worker].kind for worker in free)

    def keep(self, node: Node, workers: Collection[str], kind: str) -> None:
        """Keep the idle workers of a class that could train a stage for that stage.

        Doubted workers are not kept if it waits for others.
        """
        self.waiting.append(node)
        doubts = self._doubts(node).keys()
        waits_for_others = len(self._able(node, kind) - doubts) >= self._workers_of(node)
        self.kept.update(
            worker
            for worker in workers
            if self.placing.slots[worker].kind == kind
            and self.placing.matching.may_run(worker, node.needs)
            and worker not in self._on_taken_gpus()
            and not (waits_for_others and worker in doubts)
        )

    def gather(self, node: Node, slots: list[Slot], workers: Collection[str]) -> Placement | None:
        """Return a stage with its own worker and its lenders; None if too few are idle.

        A host that has enough workers goes before the worker that holds the stage's start state: a
        state is loaded once, but devices exchange gradients in each step. Gangs on which the stage
        raised, and workers that are doubted, are tried only where no others can be waited for.
        """
        placing = self.placing
        work = placing.frontier.work(node)
        failed = work.gangs if work.errors else ()
        doubts = self._doubts(node)
        own = {slot.worker: slot for slot in slots if self._is_free(slot.worker, node.needs)}
        kinds = {slot.kind for slot in own.values()}
        free = [
            worker
            for worker in workers
            if placing.slots[worker].kind in kinds and self._is_free(worker, node.needs)
        ]
        count = self._workers_of(node)
        if not own or len({*own, *free}) < count:
            return None
        there = Counter(map(placing.host_of, free))
        broken = explanations(failed, self._most_broken)
        blame = Counter(doubts)
        blame.update(worker for reason in broken for worker in reason)

        def distance(slot: Slot) -> tuple[int, int, bool, int]:
            near = there[slot.host]
            return (
                blame[slot.worker],
                max(0, count - near),
                slot.last is not node.parent,
                near,
            )

        first = min(own.values(), key=distance)

        def remoteness(worker: str) -> tuple[int, bool, int]:
            at = placing.host_of(worker)
            return blame[worker], at != first.host, -there[at]

        others = sorted((each for each in free if each != first.worker), key=remoteness)
        if not failed and not doubts:
            return Placement(node, first, tuple(others[: count - 1]))
        able = self._able(node, first.kind)
        lenders = least_blamed(first.worker, others, count - 1, broken)
        if {first.worker, *lenders} in failed and self._has_untried(node, able, failed):
            choices = combinations(others, count - 1)  # the best first; few of them have failed
            untried = (each for each in choices if {first.worker, *each} not in failed)
            lenders = next(untried, ())
        suspects = doubts.keys() | (frozenset.intersection(*failed) if failed else ())
        least = max(0, count - len(able - suspects))
        waits = not lenders or len(suspects & {first.worker, *lenders}) > least
        return None if waits else Placement(node, first, lenders)

    # ----------------------------------------------------------------------- in detail

    @property
    def _most_broken(self) -> int:
        """Number of broken workers that may be why a stage raises on several gangs."""
        return self.placing.options.workers_tried - 1

    def _workers_of(self, node: Node) -> int:
        return workers_of(node, self.placing.options.needs)

    def _doubts(self, node: Node) -> Counter[str]:
        """Return the workers that are doubted for a stage which was lost with workers of its gang.

        A broken worker that is lost may come back under another name. So those are doubted that
        joined after the first loss, and those of the hosts of the lost ones if their class has
        other hosts. As long as the driver has not heard which worker of a gang is gone, all of its
        lenders are doubted most.
        """
        doubts: Counter[str] = Counter()
        slots, lost, hosts = self.placing.slots, self.placing.frontier.work(node).lost, set()
        for loss in lost:
            gone = {host for worker, host in loss.suspects.items() if worker not in slots}
            hosts |= gone - {""}
            if not gone:
                doubts.update(dict.fromkeys(loss.suspects, _MOST_DOUBTED))
        there = {worker for worker, slot in slots.items() if slot.host in hosts}
        others = {slots[worker].kind for worker in slots.keys() - there}
        doubts.update(worker for worker in there if slots[worker].kind in others)
        if lost:
            since = lost[0].joins
            doubts.update(worker for worker, slot in slots.items() if slot.number > since)
        return doubts

    def _may_try_another(self, node: Node, failed: Collection[frozenset[str]]) -> bool:
        """Whether a stage that raised on some gangs shall be tried on another one."""
        most = self.placing.options.most_workers_tried
        if len(failed) >= most or not explanations(failed, self._most_broken):
            return False
        kinds = dict.fromkeys(slot.kind for slot in self.placing.usable())
        return any(self._has_untried(node, self._able(node, kind), failed) for kind in kinds)

    def _has_untried(
        self, node: Node, able: frozenset[str], failed: Collection[frozenset[str]]
    ) -> bool:
        """Whether some workers make a gang on which a stage has not raised."""
        return math.comb(len(able), self._workers_of(node)) > sum(gang <= able for gang in failed)

    def _able(self, node: Node, kind: str) -> frozenset[str]:
        """Return the workers of a class that may train a stage together."""
        return frozenset(
            slot.worker
            for slot in self.placing.usable()
            if slot.kind == kind and self.placing.may_join(slot.worker, node.needs)
        )

    def _on_taken_gpus(self) -> frozenset[str]:
        """Return the usable workers on whose GPU another worker of their class joined earlier.

        Of the workers that share a device, only the worker that stands for it counts.
        """
        if self._doubles is None:
            known = [slot for slot in self.placing.usable() if slot.worker in self._gpus]
            slots = [slot for slot in known if not self.placing.is_extra(slot.worker)]
            first: dict[tuple[str, str], str] = {}
            for slot in slots:
                first.setdefault((self._gpus[slot.worker], slot.kind), slot.worker)
            self._doubles = frozenset(slot.worker for slot in slots) - {*first.values()}
        return self._doubles

    def _is_free(self, worker: str, wanted: Wanted) -> bool:
        is_used = worker in self._audited or self.placing.company(worker)
        return not is_used and self.placing.may_join(worker, wanted)


def explanations(failed: Collection[frozenset[str]], most: int) -> set[frozenset[str]]:
    """Return the smallest sets of up to so many workers that are why some gangs failed, if broken.

    Examples
    --------
    >>> gangs = [frozenset("ab"), frozenset("cd"), frozenset("bc")]
    >>> sorted(map(sorted, explanations(gangs, 2)))
    [['a', 'c'], ['b', 'c'], ['b', 'd']]
    >>> explanations(gangs, 1)
    set()
    """
    sizes = (set(_explanations(failed, size)) for size in range(most + 1))
    return next(filter(None, sizes), set())


def _explanations(failed: Collection[frozenset[str]], most: int) -> Iterator[frozenset[str]]:
    gang = next(iter(failed), None)
    if gang is None:
        yield frozenset()
        return
    for worker in gang if most else ():
        others = [other for other in failed if worker not in other]
        for rest in _explanations(others, most - 1):
            yield rest | {worker}


def least_blamed(
    first: str, others: Sequence[str], count: int, broken: Iterable[frozenset[str]]
) -> tuple[str, ...]:
    """Return so many workers which, with a first one, train a stage under most explanations.

    They are chosen one after the other, of equal ones the first.

    Examples
    --------
    >>> least_blamed("a", ["b", "c", "d"], 1, map(frozenset, ("ac", "bc", "bd")))
    ('c',)
    """
    left = [reason for reason in broken if first not in reason]
    chosen: list[str] = []
    for _ in range(min(count, len(others))):
        blame = Counter(worker for reason in left for worker in reason)
        worker = min((each for each in others if each not in chosen), key=lambda at: blame[at])
        left = [reason for reason in left if worker not in reason]
        chosen.append(worker)
    return tuple(chosen)

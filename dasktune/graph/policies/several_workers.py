"""Stages that several workers train together.

A stage takes one worker, unless more devices shall train it than its needs ask of one worker. Then
it takes a *gang*: its own worker, and *lenders* of the same compute class, which leave their
devices to it. A gang is together until the last attempt that carries on from its first one has
ended; none of its workers is in another gang, or gets another stage, meanwhile.

A gang begins once enough workers of a class are idle. Until then the first stage that waits for
a gang keeps the idle workers: else stages of one worker would take each of them, and a gang would
never find enough. At most one of the workers on a GPU may be in a gang: NCCL refuses two processes
on one GPU. A gang waits for a worker with an audit: a second process may find no memory there.

Where a stage raises on a gang, nobody knows which of its workers is broken, if one is. The next
gang is the one that trains the stage under most of the *explanations*: sets of a few workers, of
which each gang that failed had one. If there is none left, the trial is the reason. Those that were
in every such gang are *suspects*: others are waited for. So one or two broken workers fail no trial
that others can train, if few gangs must be tried for that. Where a stage is lost with a worker,
that worker is known, but it may come back under another name: the next gang has as few workers as
possible that joined since, or that are of the same host.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations

from dasktune.graph.attempts import Attempt, Slot
from dasktune.graph.devices import DEVICES, devices_at
from dasktune.graph.matching import Matching, Wanted
from dasktune.graph.packing import Packing
from dasktune.graph.plan import Node
from dasktune.needs import Needs


def workers_of(node: Node, study: Needs) -> int:
    """Return how many workers a stage takes.

    It takes one worker if its needs ask one worker for as many devices as train it. Else it takes
    a worker for each device. Trials that share the stage may ask one worker for unlike numbers:
    the largest counts.

    Parameters
    ----------
    study
        The needs of every stage.
    """
    if DEVICES not in node.sequences:
        return 1
    known = (needs for needs in (study, *node.needs) if not needs.device_problems())
    each = max((needs.devices() for needs in known), default=1)
    devices = devices_at(node.sequences, node.start)
    return 1 if devices <= each else devices


class Gangs:
    """The workers that are lent to stages, and those that are kept for stages that wait.

    Parameters
    ----------
    needs
        The needs of every stage.
    slots
        The slots by worker.
    usable
        Yields the slots that are given stages.
    matching, packing
        What workers have, and which of them share a device: of each device a gang has one.
    host_of
        Gives the host of a worker; empty if it is not known.
    most_broken
        Number of broken workers that may be why a stage raises on several gangs. If there must be
        more of them, its trial is the reason.

    Attributes
    ----------
    is_open
        Whether a stage for several workers was asked for. Otherwise nothing here is of any effect.
    waiting
        The stages that wait until enough workers are idle, as the last choice saw them.
    kept
        The idle workers that are kept for them.
    audited
        The workers that train an audit.
    """

    def __init__(
        self,
        needs: Needs,
        slots: Mapping[str, Slot],
        usable: Callable[[], Iterable[Slot]],
        *,
        matching: Matching,
        packing: Packing,
        host_of: Callable[[str], str],
        most_broken: int,
    ) -> None:
        self.is_open = False
        self.waiting: list[Node] = []
        self.kept: set[str] = set()
        self.audited: Collection[str] = ()
        self._needs = needs
        self._slots = slots
        self._usable = usable
        self._matching = matching
        self._packing = packing
        self._host_of = host_of
        self._most_broken = most_broken
        self._lent: dict[str, dict[str, Attempt]] = {}
        """The attempts that have each lender, by their ids: one, and those that carry it on."""
        self._counts: dict[Wanted, Counter[str]] = {}
        self._gpus: dict[str, str] = {}
        """The GPU of each worker, as far as they are known."""
        self._doubles: frozenset[str] | None = None
        """The usable workers on whose GPU another one may be in gangs; None if not yet known."""

    def join(self, worker: str, gpu: str) -> None:
        """Add a worker that trains on a GPU; its name is empty if it is not known."""
        if gpu:
            self._gpus[worker] = gpu
        self._doubles = None

    def meet(self, node: Node) -> None:
        """Handle a stage that a trial asks for, with those that it starts from."""
        if not self.is_open and DEVICES in node.sequences:
            self.is_open = any(self.workers_of(above) > 1 for above in node.up())

    def workers_of(self, node: Node) -> int:
        """Return how many workers a stage takes."""
        return workers_of(node, self._needs)

    # -------------------------------------------------------------------- lenders

    @property
    def lenders(self) -> Collection[str]:
        """The workers that are lent to stages now."""
        return self._lent.keys()

    def enter(self, attempt: Attempt) -> None:
        """Lend the lenders of an attempt to it."""
        for lender in attempt.lenders:
            self._slots[lender].last = None  # their own states give way
            self._lent.setdefault(lender, {})[attempt.id] = attempt
            self._packing.occupy(lender, attempt)

    def leave(self, attempt: Attempt) -> Iterator[str]:
        """Take the lenders of an attempt back; yield those that no other attempt has."""
        for lender in attempt.lenders:
            attempts = self._lent.get(lender, {})
            if attempts.pop(attempt.id, None) is not None and not attempts:
                del self._lent[lender]
                self._packing.vacate(lender)
                yield lender

    def lose(self, worker: str) -> None:
        """Remove a worker that is gone."""
        self._lent.pop(worker, None)
        self._gpus.pop(worker, None)
        self._doubles = None

    def clear(self) -> None:
        """Forget all workers, and that any stage took several."""
        self._lent.clear()
        self._gpus.clear()
        self.audited = ()
        self.renew()
        self.is_open = False

    def busy_with(self, slot: Slot) -> Collection[Attempt]:
        """Return the attempts after which a worker is free: its own, or those that have it."""
        return slot.queue or self._lent.get(slot.worker, {}).values()

    def may_carry_on(self, attempt: Attempt, child: Node) -> bool:
        """Whether a child's stage takes just the workers of an attempt, and they are there."""
        is_whole = all(lender in self._slots for lender in attempt.lenders)
        return is_whole and self.workers_of(child) == 1 + len(attempt.lenders)

    # -------------------------------------------------------------------- choices

    def renew(self) -> None:
        """Forget what was seen of workers, and which stages wait for them."""
        self._counts.clear()
        self._doubles = None
        self.release()

    def release(self) -> None:
        """Keep no workers: the stages are compared anew."""
        self.waiting.clear()
        self.kept.clear()

    def counts(self, wanted: Wanted) -> Counter[str]:
        """Return how many workers may train a stage with such needs together, by class."""
        counts = self._counts.get(wanted)
        if counts is None:
            able = (slot.kind for slot in self._usable() if self.may_join(slot.worker, wanted))
            counts = self._counts[wanted] = Counter(able)
        return counts

    def may_begin(self, node: Node, slot: Slot) -> bool:
        """Whether a slot's class has as many workers as a stage takes, be they idle or not."""
        count = self.workers_of(node)
        if count == 1:
            return True
        is_able = self.may_join(slot.worker, node.needs)
        return is_able and self.counts(node.needs)[slot.kind] >= count

    def free(self, node: Node, workers: Iterable[str]) -> Counter[str]:
        """Return how many of some idle workers may join a gang for a stage now, by class."""
        return Counter(
            self._slots[worker].kind
            for worker in workers
            if worker not in self.kept and self._is_free(worker, node.needs)
        )

    def keep(
        self, node: Node, workers: Iterable[str], kind: str, doubts: Collection[str] = ()
    ) -> None:
        """Keep the idle workers of a class that could train a stage for that stage.

        Doubted workers are not kept if it waits for others.
        """
        self.waiting.append(node)
        waits_for_others = len(self._able(node, kind) - {*doubts}) >= self.workers_of(node)
        self.kept.update(
            worker
            for worker in workers
            if self._slots[worker].kind == kind
            and self._matching.may_run(worker, node.needs)
            and worker not in self._on_taken_gpus()
            and not (waits_for_others and worker in doubts)
        )

    def gather(
        self,
        node: Node,
        workers: Iterable[str],
        allowed: Iterable[Slot],
        failed: Collection[frozenset[str]],
        doubts: Mapping[str, int],
    ) -> tuple[Slot, tuple[str, ...]] | None:
        """Return the own worker of a stage, and its lenders; None if too few are idle.

        A host that has enough workers goes before the worker that holds the stage's start state: a
        state is loaded once, but devices exchange gradients in each step.

        Parameters
        ----------
        workers
            Idle workers.
        allowed
            The slots of one class of which one may be its own.
        failed
            The gangs on which the stage raised: others are waited for, if there are others.
        doubts
            How much each worker is doubted with which the stage may be lost again: others are
            waited for, if there are others.
        """
        own = {slot.worker: slot for slot in allowed if self._is_free(slot.worker, node.needs)}
        kinds = {slot.kind for slot in own.values()}
        free = [
            worker
            for worker in workers
            if self._slots[worker].kind in kinds and self._is_free(worker, node.needs)
        ]
        count = self.workers_of(node)
        if not own or len({*own, *free}) < count:
            return None
        there = Counter(map(self._host_of, free))
        broken = explanations(failed, self._most_broken)
        blame = Counter(doubts)
        blame.update(worker for reason in broken for worker in reason)

        def distance(slot: Slot) -> tuple[int, int, bool, int]:
            near = there[self._host_of(slot.worker)]
            return (
                blame[slot.worker],
                max(0, count - near),
                slot.last is not node.parent,
                near,
            )

        first = min(own.values(), key=distance)
        host = self._host_of(first.worker)

        def remoteness(worker: str) -> tuple[int, bool, int]:
            at = self._host_of(worker)
            return blame[worker], at != host, -there[at]

        others = sorted((each for each in free if each != first.worker), key=remoteness)
        if not failed and not doubts:
            return first, tuple(others[: count - 1])
        able = self._able(node, first.kind)
        lenders = least_blamed(first.worker, others, count - 1, broken)
        if {first.worker, *lenders} in failed and self._has_untried(node, able, failed):
            choices = combinations(others, count - 1)  # the best first; few of them have failed
            untried = (each for each in choices if {first.worker, *each} not in failed)
            lenders = next(untried, ())
        suspects = doubts.keys() | (frozenset.intersection(*failed) if failed else ())
        least = max(0, count - len(able - suspects))
        waits = not lenders or len(suspects & {first.worker, *lenders}) > least
        return None if waits else (first, lenders)

    def may_try_another(self, node: Node, failed: Collection[frozenset[str]], *, most: int) -> bool:
        """Whether a stage that raised on some gangs shall be tried on another one.

        Parameters
        ----------
        most
            The number of gangs that are tried at most.
        """
        if len(failed) >= most or not explanations(failed, self._most_broken):
            return False
        kinds = dict.fromkeys(slot.kind for slot in self._usable())
        return any(self._has_untried(node, self._able(node, kind), failed) for kind in kinds)

    def _has_untried(
        self, node: Node, able: frozenset[str], failed: Collection[frozenset[str]]
    ) -> bool:
        """Whether some workers make a gang on which a stage has not raised."""
        return math.comb(len(able), self.workers_of(node)) > sum(gang <= able for gang in failed)

    def _able(self, node: Node, kind: str) -> frozenset[str]:
        """Return the workers of a class that may train a stage together."""
        return frozenset(
            slot.worker
            for slot in self._usable()
            if slot.kind == kind and self.may_join(slot.worker, node.needs)
        )

    def may_join(self, worker: str, wanted: Wanted) -> bool:
        """Whether a worker may be one of a gang for a stage with these needs of its trials."""
        is_double = self._packing.is_extra(worker) or worker in self._on_taken_gpus()
        return not is_double and self._matching.may_run(worker, wanted)

    def _on_taken_gpus(self) -> frozenset[str]:
        """Return the usable workers on whose GPU another worker of their class joined earlier.

        Of the workers that share a device, only the worker that stands for it counts.
        """
        if self._doubles is None:
            known = [slot for slot in self._usable() if slot.worker in self._gpus]
            slots = [slot for slot in known if not self._packing.is_extra(slot.worker)]
            first: dict[tuple[str, str], str] = {}
            for slot in slots:
                first.setdefault((self._gpus[slot.worker], slot.kind), slot.worker)
            self._doubles = frozenset(slot.worker for slot in slots) - {*first.values()}
        return self._doubles

    def _is_free(self, worker: str, wanted: Wanted) -> bool:
        is_used = worker in self.audited or self._packing.company(worker)
        return not is_used and self.may_join(worker, wanted)


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

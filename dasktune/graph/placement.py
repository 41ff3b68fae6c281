"""Which stage runs on which worker next.

A worker is given two stages of a *path* at a time: the one to run and the child with the
longest path below it, which it is told of while the first still runs. What it does after
them is chosen `lookahead_seconds` before it would run dry: the longest path goes first
[Hippo 4.3]. Which workers are given stages at all is decided in `dasktune.graph.trust`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from operator import itemgetter
from typing import NamedTuple

from dasktune.graph.attempts import QUEUE_LENGTH, Attempt, DispatchOptions, Slot
from dasktune.graph.ends import Ends
from dasktune.graph.events import RunStage, WorkerJoined
from dasktune.graph.frontier import Frontier, Group, start_of
from dasktune.graph.gangs import Gangs
from dasktune.graph.loads import Loads
from dasktune.graph.market import Market, Terms, importance
from dasktune.graph.matching import Matching, Wanted
from dasktune.graph.moves import Moves
from dasktune.graph.packing import Packing
from dasktune.graph.partings import partings
from dasktune.graph.plan import Node, Place
from dasktune.graph.speeds import Speeds
from dasktune.graph.trust import Trust
from dasktune.needs import NumericClass

_MOST_DOUBTED = 3
"""More than the doubt of a worker that joined after a loss, on the host of a lost one."""


class Placement(NamedTuple):
    """A stage that shall begin, the slot that it gets, and the workers that are lent to it."""

    node: Node
    slot: Slot
    lenders: tuple[str, ...] = ()


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
    bind
        Chooses the numeric class of a stage's lineage; called with the class of the worker on
        which it is about to begin.
    may_place
        Whether a stage may begin.
    """

    queue_length = QUEUE_LENGTH

    def __init__(
        self,
        frontier: Frontier,
        speeds: Speeds,
        options: DispatchOptions,
        attempts: dict[str, Attempt],
        bind: Callable[[Node, NumericClass], None] = lambda node, numerics: None,
        may_place: Callable[[], bool] = lambda: True,
    ) -> None:
        self.slots: dict[str, Slot] = {}
        self.trust = Trust(frontier.got_past)
        self.matching = Matching(options.needs)
        self.packing = Packing(speeds.model_of)
        self.gangs = Gangs(
            *(options.needs, self.slots, self._usable),
            matching=self.matching,
            packing=self.packing,
            host_of=self.trust.host_of,
            most_broken=options.workers_tried - 1,
        )
        self._frontier = frontier
        self._speeds = speeds
        self._options = options
        self._attempts = attempts
        self._sizes: dict[str, tuple[float, ...]] = {}
        self._bind = bind
        self._may_place = may_place
        self.is_mixed = False
        """Whether keys name the numeric class of some worker: then each lineage has a class."""
        self._idle: dict[str, None] = {}
        self._leaving: set[str] = set()
        self._lent: frozenset[str] | None = None
        self.paused: frozenset[str] = frozenset()
        """The workers that Dask has paused: a stage that they were sent would not begin."""
        self.loads = Loads(options.load_seconds)
        self._market = Market(frontier, speeds, self._kinds_for, loads=self.loads)
        self._moves = Moves(frontier, speeds, self._market, attempts)
        self._heard_of: dict[str, Attempt] = {}
        """The attempts that were heard of since the last review: their steps have doubled."""
        self._were_idle: frozenset[str] = frozenset()
        self._launched = 0
        self._filled = 0.0
        self._ends = Ends(self._look_at)
        """The attempts that are the last of their workers, unless they end soon."""
        self._ending: dict[str, Attempt] = {}
        """Those that end soon: each `fill` looks for what follows them."""
        self._speeds_of_ends: int | None = None
        """How often speeds had moved when the ends were computed; None if they are not known."""
        self._free: dict[str, float] = {}
        self._out: list[RunStage] = []

    @property
    def idle_workers(self) -> int:
        """Number of idle workers that may begin a stage beside those that run or wait for more."""
        idle: Collection[str] = self._idle
        if self.gangs.kept:
            idle = [worker for worker in idle if worker not in self.gangs.kept]
        if not self.packing.is_open:
            return len(idle)
        most = len(idle)
        counts = self._frontier.ready_by_needs(most)
        ready = sum(n for wanted, n in counts.items() if self._may_meet(wanted, idle))
        return self.packing.idle_workers(idle, min(ready, most))

    def fill(self, now: float) -> list[RunStage]:
        """Give idle workers the best stages, and running ones what comes next."""
        if self.trust.any_aside:
            self._take_back(now)
            self._try_last_resort(now)
        self._filled = self.packing.now = now
        self._free.clear()
        self.gangs.renew()
        self._market.changed()
        while workers := self._with_room(self._idle):
            choice = self._choice(workers, now)
            if choice is None:
                break
            if self._is_bound(choice.node, choice.slot):
                self._launch(*choice, None, now)
        kept = self.gangs.kept & self._idle.keys()
        self._continue_paths(now)
        if self._looks_ahead:
            self._look_ahead(now)
        else:
            self._speeds_of_ends = None
        self.gangs.kept = kept
        launched, self._out = self._out, []
        return launched

    def leaving(self, now: float) -> list[Attempt]:
        """Return the attempts whose stages should go on elsewhere; see `dasktune.graph.moves`.

        This is asked after `fill`: idle workers are those for which nothing waits. With workers
        that share a device, stages stay.
        """
        idle, heard_of = self._idle.keys(), self._heard_of
        has_new = not idle <= self._were_idle
        if has_new or len(idle) < len(self._were_idle):
            self._were_idle = frozenset(idle)
        if not (has_new or heard_of):
            return []
        self._heard_of = {}
        if not self._market.is_open or self.packing.is_open:
            return []
        if has_new:
            reviewed = [slot.queue[0] for slot in self.slots.values() if slot.queue]
        else:
            reviewed = [*filter(self._has_news, heard_of.values())]
        if not reviewed:
            return []
        moves = self._moves.leaving(
            reviewed,
            self._might_begin,
            lambda kind, count: self._free_in(kind, now, count),
            now,
        )
        return list(moves)

    def heard_of(self, attempt: Attempt, now: float) -> None:
        """Note that a worker has said how far an attempt is."""
        attempt.heard_at = now
        trained = attempt.position - attempt.start
        if trained >= 2 * attempt.reviewed:
            attempt.reviewed = trained
            self._heard_of[attempt.id] = attempt

    def _has_news(self, attempt: Attempt) -> bool:
        """Return whether a speed has moved since an attempt was reviewed; note this review.

        An attempt that its worker does not run yet has none.
        """
        slot = self.slots.get(attempt.worker)
        is_running = slot is not None and bool(slot.queue) and slot.queue[0] is attempt
        if not is_running or attempt.knew == self._speeds.moved:
            return False
        attempt.knew = self._speeds.moved
        return True

    def _might_begin(self, attempt: Attempt) -> Iterator[Node]:
        """Yield the first ready stage of each group, if an attempt's worker may begin it."""
        for _, node in self._frontier.heads():
            if self._may_start(node, [attempt.worker]):
                yield node

    def next_tick(self, now: float) -> float | None:
        """Return when `fill` is due: a worker is about to run dry, or is to be tried again."""
        dues = [] if self.trust.next_return is None else [self.trust.next_return]
        if self._looks_ahead:
            # Time alone brings no stage to those that end soon: `fill` looks after each event.
            self._watch_all(now)
            due = self._ends.first_due(now)
            dues += [] if due is None else [due]
        if self._idle and self._market.is_open:
            patience = self._market.next_end_of_patience(self._filled)
            dues += [] if patience is None else [patience]
        return min(dues, default=None)

    def join(self, joined: Iterable[WorkerJoined]) -> None:
        """Add idle workers: those that have what every stage needs."""
        before = len(self.slots)
        for event in joined:
            worker, offer = event.worker, event.offer
            self.is_mixed |= offer.numerics is not None and offer.numerics.in_keys
            if worker not in self.slots and self.matching.join(worker, offer):
                self.slots[worker] = Slot(worker, offer.kind)
                self._sizes[offer.kind] = offer.size
                self.trust.join(worker, event.host)
                if event.device:
                    self.packing.join(worker, event.device, event.device_bytes)
                self.gangs.join(worker, event.gpu)
                self._note_idle(worker)
        if len(self.slots) > before:
            self._count_slots()

    def raised(self, worker: str, place: Place, message: str, now: float) -> list[Place]:
        """Note that the step after a place raised on a worker, which may be put aside for that.

        The last worker that is left is never put aside. One that is paused, or that another study
        has, is left.

        Returns
        -------
        list
            The places after which the worker raised, if it is put aside: that proves nothing.
        """
        self.gangs.renew()
        self.trust.raised(worker, place, message)
        if self.trust.is_aside(worker):
            return [place]
        others = any(other != worker for other in self._trusted())
        if not others or not self.trust.is_doubtful(worker):
            return []
        self._idle.pop(worker, None)
        return self.trust.put_aside(worker, now)

    def ended_well(self, worker: str) -> None:
        """Trust a worker that has ended a stage."""
        was_aside = self.trust.is_aside(worker)
        self.trust.ended_well(worker)
        if was_aside:
            self._note_idle(worker)

    def may_try_elsewhere(self, node: Node) -> bool:
        """Whether there is a worker on which a stage has not raised yet."""
        return any(map(self._may_have_stages, self._untried(node)))

    def may_try_later(self, node: Node) -> bool:
        """Whether a stage has not raised on some worker that is paused or another study's."""
        staying = (each for each in self._untried(node) if each not in self._leaving)
        return not all(map(self._may_have_stages, staying))

    def _untried(self, node: Node) -> Iterator[str]:
        """Yield the workers that fit a stage and on which it has not raised."""
        raised_on = self._frontier.work(node).raised_on
        for worker, slot in self.slots.items():
            if worker not in raised_on and self._fits(node, slot):
                yield worker

    def may_try_other_gang(self, node: Node) -> bool:
        """Whether a stage that raised on several workers may be trained by others together."""
        return self.gangs.may_try_another(
            *(node, self._frontier.work(node).gangs),
            most=self._options.most_workers_tried,
        )

    def retire(self, worker: str) -> None:
        """Give a worker nothing more to do."""
        if worker in self.slots:
            self._leaving.add(worker)
            self.matching.retire(worker)
            self._idle.pop(worker, None)

    def is_leaving(self, worker: str) -> bool:
        """Whether a worker was said to be gone soon."""
        return worker in self._leaving

    def lend(self, workers: frozenset[str] | None) -> None:
        """Use these workers alone from now on; all if None."""
        self._lent = workers
        self._count_slots()
        self._note_all_idle()

    def pause(self, workers: frozenset[str]) -> None:
        """Give nothing to these workers, and something to all others again."""
        self.paused = workers
        self._note_all_idle()

    def is_withheld(self, worker: str) -> bool:
        """Whether another study has a worker, or may have others of its device.

        Idle processes of that study hold memory of the device, of which nothing is known here. So
        only the worker that stands for the device trains while there are other studies.
        """
        if self._lent is None:
            return False
        return worker not in self._lent or self.packing.is_extra(worker)

    def audit(self, nodes: Mapping[str, Node]) -> None:
        """Note the audits under way, by worker: each counts as a stage of its device."""
        self.gangs.audited = nodes.keys()
        known = {worker: self.slots[worker] for worker in nodes if worker in self.slots}
        self.packing.audit({worker: (nodes[worker], slot.kind) for worker, slot in known.items()})

    def lose(self, worker: str) -> None:
        """Remove a worker that is gone, if it is known."""
        self._idle.pop(worker, None)
        self._leaving.discard(worker)
        self.trust.lose(worker)
        self.matching.lose(worker)
        self.packing.lose(worker)
        self.gangs.lose(worker)
        self.slots.pop(worker, None)
        self._count_slots()

    def leave(self, attempt: Attempt) -> None:
        """Remove an attempt from its slot, and give its lenders back."""
        slot = self.slots.get(attempt.worker)
        if slot is not None and attempt in slot.queue:
            slot.queue.remove(attempt)
            slot.last = attempt.node
            if slot.queue:
                self._frontier.continued.append(slot.queue[-1].id)
                self.packing.enter(slot.queue[0])
                self.watch(slot.queue[0])
            else:
                self.packing.leave(attempt)
            self._note_idle(slot.worker)
        for lender in self.gangs.leave(attempt):
            self._note_idle(lender)

    def clear(self) -> None:
        """Forget all workers."""
        self.slots.clear()
        self._leaving.clear()
        self._lent = None
        self.paused = frozenset()
        self.is_mixed = False
        self._idle.clear()
        self._heard_of.clear()
        self.trust.clear()
        self.matching.clear()
        self.packing.clear()
        self.gangs.clear()
        self._count_slots()

    def devices_for(self, wanted: Wanted) -> Counter[str]:
        """Return how many devices may train a stage with these needs, by compute class.

        Those of workers that are put aside do not count: a gang would wait for them, for long.
        """
        return Counter(
            slot.kind for slot in self._usable() if self.gangs.may_join(slot.worker, wanted)
        )

    def idle_for(self, node: Node) -> Counter[str]:
        """Return how many idle workers may train a stage together, by compute class."""
        return self.gangs.free(node, self._idle)

    def _count_slots(self) -> None:
        """Tell the speeds how many slots there are of each class; a new class changes profiles."""
        self._market.changed()
        own = (
            slot
            for slot in self.slots.values()
            if not self.is_withheld(slot.worker) and not self.packing.is_extra(slot.worker)
        )
        if not self._speeds.set_slots(Counter(slot.kind for slot in own)):
            return
        if self._speeds.is_known:
            self._frontier.reweigh()
        else:
            self._frontier.sort_ready()

    def _note_idle(self, worker: str) -> None:
        """Give a worker stages again if it has none and may have some."""
        is_wanted = self._may_have_stages(worker) and not self.trust.is_aside(worker)
        if worker in self.slots and not self.is_busy(worker) and is_wanted:
            self._idle.setdefault(worker)

    def _note_all_idle(self) -> None:
        """Note anew which workers are idle: others than before may have stages."""
        for worker in self.slots:
            if self._may_have_stages(worker):
                self._note_idle(worker)
            else:
                self._idle.pop(worker, None)

    def is_busy(self, worker: str) -> bool:
        """Whether a worker has a stage, or is lent to one."""
        return bool(self.slots[worker].queue) or worker in self.gangs.lenders

    def _may_have_stages(self, worker: str) -> bool:
        """Whether a worker stays, is this study's, and would begin a stage."""
        would_begin = worker not in self._leaving and worker not in self.paused
        return would_begin and not self.is_withheld(worker)

    def _take_back(self, now: float) -> None:
        """Try workers again that were put aside for long enough, or all if no other is left."""
        back = self.trust.returning(now)
        if not any(self._trusted()):
            back = [aside.worker for aside in self.trust.aside]
        self.trust.take_back(back)
        for worker in back:
            self._note_idle(worker)

    def _try_last_resort(self, now: float) -> None:
        """Give stages that raised on all other workers to those that are put aside.

        They may have been put aside for trials that are wrong, and those that are left may be
        the broken ones.
        """
        for aside in list(self.trust.aside):
            slot = self.slots[aside.worker]
            if self.is_busy(slot.worker) or not self._may_have_stages(slot.worker):
                continue
            node = self._frontier.best_raised(partial(self._may_run, slot=slot))
            choice = None if node is None else self._gathered(node, [slot], self._idle)
            if choice is not None and self._is_bound(choice.node, slot):
                self._launch(*choice, None, now)

    def _trusted(self) -> Iterator[str]:
        """Yield the workers that stay and are trusted, also those that get nothing now."""
        for worker in self.slots:
            if worker not in self._leaving and not self.trust.is_aside(worker):
                yield worker

    def _usable(self) -> Iterator[Slot]:
        """Yield the slots that are given stages."""
        for worker, slot in self.slots.items():
            if self._is_usable(worker):
                yield slot

    def _is_usable(self, worker: str) -> bool:
        """Whether a worker is given stages."""
        return self._may_have_stages(worker) and not self.trust.is_aside(worker)

    def _choice(self, workers: Collection[str], now: float) -> Placement | None:
        """Return the stage that should start next on some workers, if one may.

        Where it takes more workers than are idle, those are kept for it, and others get the rest.
        """
        self.gangs.release()
        while self._may_place():
            best = self._best_by_class if self._market.is_open else self._best
            chosen = best(workers, now)
            if chosen is None:
                return None
            node, slots = chosen
            choice = self._gathered(node, slots, workers)
            if choice is not None:
                return choice
            self.gangs.keep(node, workers, slots[0].kind, doubts=self._doubts(node))
            workers = [worker for worker in workers if worker not in self.gangs.kept]
        return None

    def _gathered(
        self, node: Node, slots: list[Slot], workers: Collection[str]
    ) -> Placement | None:
        """Return a stage with one of some slots and what it takes else; None if it must wait."""
        if self.gangs.is_open and self.gangs.workers_of(node) > 1:
            work = self._frontier.work(node)
            failed = work.gangs if work.errors else ()
            gang = self.gangs.gather(node, workers, slots, failed, doubts=self._doubts(node))
            return None if gang is None else Placement(node, *gang)
        return Placement(node, next((slot for slot in slots if slot.last is node.parent), slots[0]))

    def _doubts(self, node: Node) -> Counter[str]:
        """Return the workers that are doubted for a stage which was lost with workers of its gang.

        A broken worker that is lost may come back under another name. So those are doubted that
        joined after the first loss, and those of the hosts of the lost ones if their class has
        other hosts. As long as the driver has not heard which worker of a gang is gone, all of its
        lenders are doubted most.
        """
        doubts: Counter[str] = Counter()
        lost, hosts = self._frontier.work(node).lost, set()
        for loss in lost:
            gone = {host for worker, host in loss.suspects.items() if worker not in self.slots}
            hosts |= gone - {""}
            if not gone:
                doubts.update(dict.fromkeys(loss.suspects, _MOST_DOUBTED))
        there = {each for each in self.slots if hosts and self.trust.host_of(each) in hosts}
        others = {self.slots[worker].kind for worker in self.slots.keys() - there}
        doubts.update(worker for worker in there if self.slots[worker].kind in others)
        if lost:
            since = lost[0].joins
            doubts.update(each for each in self.slots if self.trust.has_joined_since(each, since))
        return doubts

    def _best(self, workers: Collection[str], now: float) -> tuple[Node, list[Slot]] | None:
        """Return the stage that should go first on some workers of one class, and the slots."""
        may_start = partial(self._may_start, workers=workers)
        node = self._frontier.best_ready(may_start, partial(self._may_meet, workers=workers))
        return None if node is None else (node, self._slots_for(node, workers))

    def _with_room(self, workers: Collection[str]) -> Collection[str]:
        """Return the workers whose devices have room for one stage more."""
        if not self.packing.is_open:
            return workers
        return [worker for worker in workers if self.packing.has_room(worker)]

    def _is_in_turn(self, node: Node, slot: Slot, after: Attempt | None, now: float) -> bool:
        """Whether a stage would be the next one if none had to run alone on its device."""
        if not self.packing.company(slot.worker):
            return True
        with self.packing.ignored():
            first = self._other(slot, now)
        if first is None or first is node:
            return True
        return after is not None and not self._frontier.goes_first(first, node)

    def _may_meet(self, wanted: Wanted, workers: Collection[str]) -> bool:
        """Whether one of some workers meets needs."""
        return not wanted or any(self.matching.may_run(worker, wanted) for worker in workers)

    def _best_by_class(
        self, workers: Collection[str], now: float
    ) -> tuple[Node, list[Slot]] | None:
        """Return the best pair of a ready stage and a class, by the slots that it may have there.

        That is the tuner's priority first (all negative ones count alike), then a class that is as
        good as any for the stage, then the class that fits the rank of its model, then the order
        of negative priorities, then the longest path, then the fastest of the classes. There is one
        stage to look at for each group and class, and those behind it while it should rather wait:
        so few that they would keep a faster class busy for less time than one of them takes here.
        """
        heads = list(self._frontier.heads())
        by_kind: dict[str, list[str]] = {}
        holders: dict[Node | None, str] = {}
        for worker in workers if heads else ():
            slot = self.slots[worker]
            by_kind.setdefault(slot.kind, []).append(worker)
            holders[slot.last] = slot.kind
        for group, kind in self._in_order(heads, by_kind, holders):
            same = by_kind[kind]
            may_take = partial(self._may_take, workers=same, kind=kind, holders=holders, now=now)
            node = self._frontier.best_of(group, may_take)
            if node is not None:
                return node, self._slots_for(node, same)
        return None

    def _kinds_for(self, needs: Wanted, count: int = 1) -> frozenset[str] | None:
        """Return the own classes with so many workers that fit a stage; None for all."""
        if count > 1:
            counts = self.gangs.counts(needs)
            return frozenset(kind for kind in counts if counts[kind] >= count)
        if not needs:
            return None
        able = (worker for worker in self.matching.able(needs) if not self.is_withheld(worker))
        return frozenset(self.slots[worker].kind for worker in able)

    def _in_order(
        self,
        heads: list[tuple[Group, Node]],
        kinds: Collection[str],
        holders: Mapping[Node | None, str],
    ) -> Iterable[tuple[Group, str]]:
        """Return the pairs of a group and a class, the best first, by the first stage of each."""
        if len(heads) == len(kinds) == 1:
            return [(group, kind) for group, _ in heads for kind in kinds]
        ranked = [
            (rank, group, kind)
            for group, node in heads
            for rank, kind in self._ranks(node, kinds, holders)
        ]
        return [(group, kind) for _, group, kind in sorted(ranked, key=itemgetter(0))]

    def _ranks(
        self, node: Node, kinds: Iterable[str], holders: Mapping[Node | None, str]
    ) -> Iterator[tuple[tuple[float, ...], str]]:
        """Yield the rank of a stage on each of some classes: the least of all goes first."""
        priority, then = self._frontier.urgency(node)
        terms = self._market.terms(node, holders.get(node.parent))
        levels = self._market.levels(terms)
        for kind in kinds:
            fit = levels[kind], *self._market.misfit(node, kind, self._sizes)
            order = -priority, -then, terms.seconds[kind], node.number
            yield (-importance(priority), *fit, *order), kind

    def _may_take(
        self,
        node: Node,
        workers: Collection[str],
        kind: str,
        holders: Mapping[Node | None, str],
        now: float,
    ) -> bool:
        """Whether a stage may start on an idle worker of a class, and need not wait for others.

        One that raised before does not wait: not every worker may try it.
        """
        if not self._may_start(node, workers):
            return False
        if self._frontier.work(node).raised_on:
            return True
        terms = self._market.terms(node, holders.get(node.parent))
        if self._waits(node, terms, kind, now):
            return False
        return terms.workers == 1 or not self._may_begin_elsewhere(node, workers, terms, now)

    def _may_begin_elsewhere(
        self, node: Node, workers: Collection[str], terms: Terms, now: float
    ) -> bool:
        """Whether a stage would wait for more workers of a class, but need not on another one."""
        if self._gathered(node, self._slots_for(node, workers), workers) is not None:
            return False
        for kind in terms.seconds:
            idle = [worker for worker in self._idle if self.slots[worker].kind == kind]
            same = [worker for worker in idle if worker not in self.gangs.kept]
            if self._may_start(node, same) and self._gathered(
                node, self._slots_for(node, same), same
            ):
                return not self._waits(node, terms, kind, now)
        return False

    def _waits(self, node: Node, terms: Terms, kind: str, now: float) -> bool:
        """Whether a stage should wait for a faster class rather than start on an idle worker."""
        is_later = terms.is_later.get(kind)
        if is_later is None:
            free_in = partial(self._free_in, now=now, count=terms.workers)
            is_later = terms.is_later[kind] = self._market.ends_later(terms, kind, free_in)
        return is_later and self._market.is_patient(node, terms, kind, now)

    def _free_in(self, kind: str, now: float, count: int = 1) -> float:
        """Return the seconds until so many workers of a class have ended what they were given."""
        if count > 1:
            seconds = sorted(self._seconds_left(kind, now))
            return seconds[count - 1] if len(seconds) >= count else math.inf
        least = self._free.get(kind)
        if least is None:
            least = self._free[kind] = min(self._seconds_left(kind, now), default=math.inf)
        return least

    def _seconds_left(self, kind: str, now: float) -> Iterator[float]:
        """Yield the seconds until each worker of a class has ended what it was given."""
        for worker, slot in self.slots.items():
            if slot.kind != kind or not self._is_usable(worker):
                continue
            if slot.queue or self.packing.has_room(worker):
                attempts = self.gangs.busy_with(slot)
                yield sum([self._remaining_seconds(attempt, now) for attempt in attempts])

    def _may_start(self, node: Node, workers: Collection[str]) -> bool:
        """Whether one of some workers may run a stage."""
        if node in self.gangs.waiting:
            return False
        return any(self._may_run(node, self.slots[worker]) for worker in workers)

    def _slots_for(self, node: Node, workers: Collection[str]) -> list[Slot]:
        """Return the slots of some workers of a class that may run a stage and share it least."""
        slots = (self.slots[worker] for worker in workers)
        allowed = [slot for slot in slots if self._may_run(node, slot)]
        if self.packing.is_open:
            allowed.sort(key=lambda slot: self.packing.rank(slot.worker))
            least = self.packing.company(allowed[0].worker)
            allowed = [slot for slot in allowed if self.packing.company(slot.worker) == least]
        return allowed

    def _continue_paths(self, now: float) -> None:
        """Queue the best child behind a stage that begins a lease.

        A lease is two stages of a path. After it the worker takes what is longest then,
        be it the path's next stage or another's: following a path to its end would leave
        longer ones waiting.
        """
        while self._frontier.continued:
            attempt = self._attempts.get(self._frontier.continued.popleft())
            if attempt is not None and attempt.after is None and not attempt.ended:
                self._continue_with(self._next_of(attempt, now), attempt, now)

    def _next_of(self, attempt: Attempt, now: float) -> Node | None:
        """Return the stage that would carry an attempt on, if it may be queued behind it."""
        slot = self.slots.get(attempt.worker)
        if (
            slot is None
            or attempt.stopping
            or not all(map(self._may_have_stages, attempt.workers))
            or self._is_suspect(attempt)
            or not slot.queue
            or slot.queue[-1] is not attempt
        ):
            return None
        is_full = len(slot.queue) >= self.queue_length
        child = None if is_full else self._frontier.best_child(attempt.node)
        if child is None or not self._may_run(child, slot):
            return None
        if self.gangs.is_open and not self.gangs.may_carry_on(attempt, child):
            return None
        return child if self._stays(child, attempt, slot, now) else None

    def _stays(self, child: Node, attempt: Attempt, slot: Slot, now: float) -> bool:
        """Whether the stage after an attempt should be trained by the same worker.

        If not, it is ready when the attempt has ended, and the workers that are idle then are
        compared. On its own worker it needs not be loaded.
        """
        if not self._market.is_open:
            return True
        terms = self._market.terms(child, slot.kind)
        if self._market.levels(terms)[slot.kind] > 0:
            return False
        left = self._remaining_seconds(attempt, now)
        return not (
            self._market.ends_later(terms, slot.kind, lambda kind: self._free_in(kind, now) - left)
            and self._market.is_patient(child, terms, slot.kind, now + left)
        )

    def _continue_with(self, child: Node | None, attempt: Attempt, now: float) -> None:
        if child is not None:
            self._launch(child, self.slots[attempt.worker], attempt.lenders, attempt, now)

    def _is_suspect(self, attempt: Attempt) -> bool:
        """Whether a stage was lost with a worker before.

        It runs alone until its state is durable: a worker that is lost again while the next
        stage begins would leave open which of the two it was.
        """
        return self._frontier.work(attempt.node).losses > 0

    def _may_run(self, node: Node, slot: Slot) -> bool:
        """Whether a worker fits a stage, which is tried on another host first if it raised."""
        if not self._fits(node, slot):
            return False
        if self.packing.is_open and not self.packing.may_run(node, slot.worker, slot.kind):
            return False
        raised_on = self._frontier.work(node).raised_on
        if not raised_on:
            return not self.trust.is_aside(slot.worker)
        return slot in self._next_to_try(node, raised_on)

    def _fits(self, node: Node, slot: Slot) -> bool:
        """Whether a worker has what a stage needs, and its class has as many as it takes."""
        if not self.matching.may_run(slot.worker, node.needs):
            return False
        return not self.gangs.is_open or self.gangs.may_begin(node, slot)

    def _next_to_try(self, node: Node, raised_on: Mapping[str, str]) -> list[Slot]:
        """Return the slots on which a stage that raised may be tried next.

        These are others than before, on other hosts if there are such, and at last those that
        are put aside. A stage that has raised everywhere is tried on any.
        """
        fits = partial(self._fits, node)
        usable = [slot for slot in self._usable() if fits(slot)]
        if self.gangs.is_open and self.gangs.workers_of(node) > 1:
            return usable  # `Gangs.gather` chooses
        untried = [slot for slot in usable if slot.worker not in raised_on]
        hosts = set(raised_on.values())
        on_other_hosts = [slot for slot in untried if self.trust.host_of(slot.worker) not in hosts]
        if untried:
            return on_other_hosts or untried
        if self.may_try_later(node) and any(map(self._is_new_here, self._frontier.ready())):
            return []  # the others show whether the workers that are here are broken
        aside = [self.slots[aside.worker] for aside in self.trust.aside]
        last_resort = [
            slot
            for slot in aside
            if slot.worker not in raised_on and self._may_have_stages(slot.worker) and fits(slot)
        ]
        trusted = [slot for slot in usable if not self.trust.is_on_trial(slot.worker)]
        return last_resort or trusted or usable

    def _is_new_here(self, node: Node) -> bool:
        """Whether a stage has not raised yet, and fits a worker that is given stages."""
        is_new = not self._frontier.work(node).raised_on
        return is_new and any(self._fits(node, slot) for slot in self._usable())

    @property
    def _looks_ahead(self) -> bool:
        """Whether stages are chosen before workers run dry: once it is known when they do.

        By a guess, a stage would wait behind a long one that others could take meanwhile.
        """
        return self._options.lookahead_seconds > 0 and self._speeds.is_settled and not self._idle

    def watch(self, attempt: Attempt) -> None:
        """Note that an attempt may end earlier than was expected."""
        if self._speeds_of_ends is not None:
            self._ends.watch(attempt, self._filled)

    def _look_at(self, attempt: Attempt, now: float) -> float:
        """Return the time at which the stage after an attempt is chosen; infinity if it is."""
        slot = self.slots.get(attempt.worker)
        if slot is None or len(slot.queue) != 1 or slot.queue[0] is not attempt:
            return math.inf
        return now + self._remaining_seconds(attempt, now) - self._options.lookahead_seconds

    def _watch_all(self, now: float) -> None:
        """Compute all ends anew if they are not known, or if a speed has moved since."""
        if self._speeds_of_ends == self._speeds.moved:
            return
        self._speeds_of_ends = self._speeds.moved
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
            elif self._may_be_followed(last):
                self._follow(self.slots[last.worker], last, now)

    def _follow(self, slot: Slot, last: Attempt, now: float) -> None:
        """Queue the best stage behind the last one of a worker."""
        child, other = self._next_of(last, now), self._other(slot, now)
        while other is not None and (child is None or self._frontier.goes_first(other, child)):
            if self._is_bound(other, slot):
                self._launch(other, slot, (), None, now)
                return
            child, other = self._next_of(last, now), self._other(slot, now)
        if child is None or not self._is_kept_from(child):
            self._continue_with(child, last, now)

    def _is_kept_from(self, child: Node) -> bool:
        """Whether a stage that waits for several workers goes before what would carry on here."""
        return any(self._frontier.goes_first(node, child) for node in self.gangs.waiting)

    def _other(self, slot: Slot, now: float) -> Node | None:
        """Return the stage that a worker would begin if it went on with no path."""
        choice = self._choice([slot.worker], now)
        return None if choice is None else choice.node

    def _is_bound(self, node: Node, slot: Slot) -> bool:
        """Whether the numeric class of a stage's lineage is chosen.

        If not, it is chosen now, and the stage to begin must be chosen anew: more may be known of
        the lineage, and it may belong to other workers.
        """
        numerics = self.matching.offers[slot.worker].numerics
        if not self.is_mixed or numerics is None or node.numerics is not None:
            return True
        self._bind(node, numerics)
        self._market.changed()
        return False

    def _may_be_followed(self, last: Attempt) -> bool:
        """Whether a stage may be queued behind the last one of a worker."""
        return (
            self._may_have_stages(last.worker)
            and not self.trust.is_aside(last.worker)
            and not last.stopping
            and not self._is_suspect(last)
        )

    def _launch(
        self,
        node: Node,
        slot: Slot,
        lenders: tuple[str, ...],
        after: Attempt | None,
        now: float,
    ) -> None:
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
            kind=slot.kind,
            lenders=lenders,
        )
        if lenders:
            attempt.hosts = {each: self.trust.host_of(each) for each in attempt.workers}
        self._attempts[attempt.id] = attempt
        if not self._is_in_turn(node, slot, after, now):
            self.packing.jump_queue(slot.worker)
        if not slot.queue:
            self.packing.enter(attempt)
        slot.queue.append(attempt)
        self.watch(attempt)
        self.gangs.enter(attempt)
        for worker in attempt.workers:
            self._idle.pop(worker, None)
        self._free.pop(slot.kind, None)
        self._market.launched(node, slot.kind)
        covered = list(attempt.covered())
        saves = {*self._options.saves.steps_of(node, start)}
        # Of a trial that is trained alone, one stage trains all nodes from step 0 on.
        saves.update(above.stop for above in covered[1:] if above.requests)
        if self.gangs.is_open and not node.is_alone:
            saves |= partings(node, start)
        for above in covered:
            self._frontier.assign(above, attempt.id)
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
                saves=tuple(sorted(saves)),
                needs=self.matching.claims(slot.worker, node.needs),
                lenders=attempt.lenders,
                is_last=not node.children and not node.is_alone,
            )
        )

    def _remaining_seconds(self, attempt: Attempt, now: float) -> float:
        """Return how long an attempt will still run, by the speeds measured so far."""
        per_step = self._speeds.seconds_per_step(attempt.node, attempt.kind)
        whole = (attempt.stop - attempt.position) * per_step
        if attempt.started is None:
            return whole
        by_clock = attempt.started + (attempt.stop - attempt.start) * per_step - now
        return max(0.0, min(whole, by_clock))

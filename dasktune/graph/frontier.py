"""The stage tree kept incrementally: the cost of one event is what the event changed.

For each node of the plan that matters now, the frontier knows whether its stage must be
trained, from which step, and how long the longest path through it is. A change walks up
from the changed node and ends where nothing changes any more. Stages that can start now
lie in heaps, one for each group: the tuner's priority first, then the longest path
[Hippo 4.3]. A group are those with equal needs that take equally many workers, for which the
classes of workers are equally fast, and whose models rank alike.

The *active* nodes are exactly those in `dasktune.graph.tree.build_stage_tree`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import chain
from types import MappingProxyType
from typing import Any

from dasktune.graph.matching import Wanted
from dasktune.graph.plan import NONE as NO_NEEDS
from dasktune.graph.plan import Node, NodeStep
from dasktune.graph.tree import StageTree, stage_tree_of
from dasktune.types import Step

StepCost = Callable[[Node], float]
"""Estimated seconds per step of a node."""

Profile = tuple[int, ...]
"""How fast the classes of workers are for a node, relative to each other; empty on one class."""

Group = tuple[Profile, Wanted, int, int]
"""What decides for which workers a stage is: its profile, its needs, its rank level, and how many
workers it takes."""

RANK_LEVELS = 4
"""Ranks of models are sorted into as many levels: each is a group of its own."""

NO_ERRORS: Mapping[Any, Any] = MappingProxyType({})
"""The errors of a node that never raised: almost every node, so they share it."""

NO_CLASSES: frozenset[str] = frozenset()
"""The empty set that all stages share which have left no class; these are almost all."""

NO_LEVEL = -1
"""The rank level of a stage whose model has no rank, and of all where workers are alike."""

Entry = tuple[float, float, int, int, Node]
"""Heap entry: -priority, -length, node number, version of the node's work, node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why the step after `step` cannot be trained."""

    step: Step
    message: str
    traceback: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """The loss of a stage with one of its workers.

    Parameters
    ----------
    joins
        The number of workers that had joined by then (`dasktune.graph.placement.Placing.joins`).
    suspects
        The worker, with its host, which is empty if it is not known; several workers of a gang as
        long as the driver has not heard which of them is gone.
    """

    joins: int
    suspects: Mapping[str, str]


class Work:
    """The knowledge of the frontier about one node.

    Attributes
    ----------
    attempt
        The attempt that is making the state at the node's end, if any.
    active
        Whether the node's stage is in the stage tree: wanted, and no worker trains it.
    drawn
        Whether the active stage needs the state at its parent's end.
    priority, length
        Highest priority of the requests served, and seconds from the stage's start to
        the end of the path that goes on with the best child each time.
    seconds
        Seconds of the stage alone, without those below it.
    asked
        Highest priority of the node's own requests.
    trained
        Step up to which the node has been trained at least once.
    failed
        Why the node cannot be trained; None if it can, as far as is known.
    raised_on
        The workers on which its training raised, with the host of each.
    errors
        The gangs on which it raised and whose workers are trusted, by the step after which it did;
        a gang is there as often as it raised, its own worker first.
    tries
        How often it raised, on trusted workers or not, by the step after which it did.
    lost
        The times that it was lost with a worker in a row, no further than at `lost_at`.
    lost_at
        The furthest step at which it was lost with a worker.
    backlog
        The group and the seconds with which the ready stage counts in the backlog.
    left
        The classes of the workers that its stage has left for another one.
    """

    __slots__ = (
        "active",
        "asked",
        "attempt",
        "backlog",
        "drawn",
        "errors",
        "failed",
        "heap",
        "left",
        "length",
        "lost",
        "lost_at",
        "priority",
        "pulls",
        "raised_on",
        "seconds",
        "trained",
        "tries",
        "version",
    )

    def __init__(self, trained: Step) -> None:
        self.attempt: str | None = None
        self.asked = 0.0
        self.trained = trained
        self.active = False
        self.drawn = False
        self.pulls = 0
        self.priority = 0.0
        self.length = 0.0
        self.seconds = 0.0
        self.failed: Failure | None = None
        self.raised_on: Mapping[str, str] = NO_ERRORS
        self.errors: Mapping[Step, Ordered[tuple[str, ...]]] = NO_ERRORS
        self.tries: Mapping[Step, int] = NO_ERRORS
        self.lost: tuple[Loss, ...] = ()
        self.lost_at: Step = -1
        self.version = 0
        self.heap: list[Entry] | None = None
        self.backlog: tuple[Group, float] | None = None
        self.left = NO_CLASSES

    @property
    def gangs(self) -> frozenset[frozenset[str]]:
        """The gangs of several trusted workers on which it raised."""
        errors = chain.from_iterable(self.errors.values())
        return frozenset(frozenset(gang) for gang in errors if len(gang) > 1)

    @property
    def losses(self) -> int:
        """How often in a row it was lost with a worker."""
        return len(self.lost)


class Frontier:
    """The stages that must be trained, ordered by what should go first.

    Parameters
    ----------
    step_cost
        Estimated seconds per step of a node; may change as speeds are learned.
    profile_of
        Gives the profile of a node; may change with the speeds.

    Attributes
    ----------
    active_count
        Number of active nodes.
    backlog
        Seconds that the ready stages take up average slots, by group.
    continued
        Attempts whose stage got a child since the list was last emptied.
    workers_of
        Gives the number of workers that a node's stage takes: one, unless a policy says otherwise.
    """

    def __init__(
        self,
        step_cost: StepCost,
        profile_of: Callable[[Node], Profile] = lambda node: (),
    ) -> None:
        self._step_cost = step_cost
        self._profile_of = profile_of
        self.workers_of: Callable[[Node], int] = lambda node: 1
        self._work: dict[Node, Work] = {}
        self._ready: dict[Group, list[Entry]] = {}
        self._passed_over: list[Entry] = []
        """Those that are out of their heap while it is looked for one that may run."""
        self._deepest_first = False
        self._raised: dict[Node, None] = {}
        self.active_count = 0
        self.backlog: dict[Group, float] = {}
        self.continued: deque[str] = deque()

    def work(self, node: Node) -> Work:
        """Return the knowledge of the frontier about a node."""
        work = self._work.get(node)
        if work is None:
            work = self._work[node] = Work(node.reached)
        return work

    def attempt_on(self, node: Node) -> str | None:
        """Return the attempt that is making the state at the node's end, if any."""
        work = self._work.get(node)
        return None if work is None else work.attempt

    def is_running(self, node: Node) -> bool:
        """Whether an attempt is making the state at the node's end."""
        return self.attempt_on(node) is not None

    def is_active(self, node: Node) -> bool:
        """Whether the node's stage is wanted, and no worker trains it."""
        work = self._work.get(node)
        return work is not None and work.active

    def tree(self) -> StageTree:
        """Return the stage tree as it is now."""
        active = [(node, start_of(node)) for node, work in self._work.items() if work.active]
        return stage_tree_of(active, self.is_running)

    def request(self, node: Node, trial: int, priority: float) -> None:
        """Add the request of a trial for training up to the node's end."""
        work = self.work(node)
        work.asked = max(work.asked, priority) if node.requests else priority
        node.request(trial, priority)
        self.update(node)

    def withdraw(self, node: Node, trial: int) -> None:
        """Remove the request of a trial for the node's end."""
        work = self.work(node)
        if node.withdraw(trial) == work.asked:
            work.asked = max(node.requests.values(), default=0.0)
        self.update(node)

    def rank(self, nodes: Ordered[Node], trial: int, priority: float) -> None:
        """Change the priority of the requests of a trial for the ends of nodes, from the top down.

        All requests change before any node is updated, the deepest first. So a node is computed
        anew when all below it are, and not once for each request below it.
        """
        for node in nodes:
            work = self.work(node)
            before = node.requests.pop(trial)
            others = node.requests
            if before == work.asked:
                work.asked = max(others.values(), default=priority)
            others[trial] = priority
            work.asked = max(work.asked, priority)
        for node in reversed(nodes):
            self.update(node)

    def update(self, node: Node) -> None:
        """Handle a change at a node: of its requests, checkpoints, attempt or failure."""
        current: Node | None = node
        while current is not None and current.parent is not None:
            if not self._refresh(current):
                break
            current = current.parent

    def failure_above(self, node: Node) -> Failure | None:
        """Return why a node cannot be reached, None if it can as far as is known."""
        for above in node.up():
            if above is not node and above.stop in above.starts:
                return None
            failure = self._blocked(above)
            if failure is not None or above.starts:
                return failure
        return None

    def needing(self, node: Node) -> Iterator[Node]:
        """Yield a node and those below it that cannot be reached without training it."""
        stack = [node]
        while stack:
            current = stack.pop()
            if current is node or not current.starts:
                yield current
                if current.stop not in current.starts:
                    stack.extend(current.children.values())

    def _blocked(self, node: Node) -> Failure | None:
        """Return the failure of a step that the node's stage would have to train."""
        work = self._work.get(node)
        if work is None or work.failed is None or work.failed.step < start_of(node):
            return None
        return work.failed

    def got_past(self, at: NodeStep) -> bool:
        """Whether the step after `at` was trained at some time."""
        node, step = at
        return self.work(node.holder(step + 1)).trained > step

    def forgive(self, node: Node) -> None:
        """Forget that training of a node raised."""
        work = self.work(node)
        work.failed, work.lost, work.lost_at = None, (), -1
        work.raised_on = work.errors = work.tries = NO_ERRORS
        self._raised.pop(node, None)
        self.update(node)

    def state_arrived(self, node: Node) -> None:
        """Handle a new state of a node; if it is at the node's end, the children can start."""
        self.update(node)
        if node.stop not in node.checkpoints:
            return
        for child in node.children.values():
            work = self._work.get(child)
            if work is not None and work.drawn:
                self._make_ready(child, work)

    def assign(self, node: Node, attempt: str | None) -> None:
        """Set the attempt that makes the state at the node's end; None removes it."""
        self.work(node).attempt = attempt
        self.update(node)

    def move(self, top: Node, bottom: Node) -> None:
        """Handle a split of the plan: `top` now covers the first steps of `bottom`."""
        above = top.parent
        work = self._work.get(bottom)
        if work is None or above is None:
            if bottom.reached > bottom.start:
                self.work(top).trained = top.stop
            return
        if work.drawn:
            work.drawn = False
            self.work(above).pulls -= 1
        work.version += 1
        if work.active:
            work.active = False
            self.active_count -= 1
        self._leave_backlog(work)
        self._divide(self.work(top), work, top.stop)
        if work.raised_on:
            self._raised[top] = None
        self.update(bottom)
        self.update(top)

    def _divide(self, top: Work, bottom: Work, step: Step) -> None:
        """Share what is known of an edge between its two parts."""
        top.trained = min(bottom.trained, step)
        bottom.trained = max(bottom.trained, step)
        if bottom.lost_at < step:  # what it was lost in is the step after that
            top.lost, top.lost_at = bottom.lost, bottom.lost_at
            bottom.lost, bottom.lost_at = (), -1
        top.left = bottom.left
        top.raised_on = bottom.raised_on
        if bottom.errors:
            top.errors = {at: on for at, on in bottom.errors.items() if at < step}
        top.tries = bottom.tries
        if bottom.failed is not None and bottom.failed.step < step:
            top.failed, bottom.failed = bottom.failed, None

    def settle(self, node: Node) -> None:
        """Handle the arrival of the state at a node's end: forget its attempt and its losses."""
        work = self.work(node)
        work.attempt, work.lost, work.lost_at = None, (), -1
        self._raised.pop(node, None)

    def order(self, *, deepest_first: bool) -> None:
        """Set which stage starts first: the one with the longest path, or with the deepest start.

        The longest first keeps all workers busy to the end. The deepest first ends one branch
        before it begins the next, so that few states wait for what goes on from them: that is
        for stores that cannot hold many.
        """
        if deepest_first != self._deepest_first:
            self._deepest_first = deepest_first
            self.sort_ready()

    def reweigh(self) -> None:
        """Recompute every length and profile, after the estimated speeds have changed."""
        active = [node for node, work in self._work.items() if work.active]
        # Groups may change for all stages, also for those whose length stays.
        sorts_all = bool(self.backlog) or (bool(active) and bool(self._profile_of(active[0])))
        for node in sorted(active, key=lambda node: -node.start):
            self._refresh(node, sorts=not sorts_all)
        if sorts_all:
            self.sort_ready()

    def sort_ready(self) -> None:
        """Sort the ready stages into heaps anew, after profiles have changed."""
        self._ready, self.backlog = {}, {}
        for node, work in self._work.items():
            work.backlog = None
            if work.active and is_ready(node):
                group = self._enter_group(node, work)
                self._ready.setdefault(group, []).append(self._entry_of(node, work))
        for heap in self._ready.values():
            heapify(heap)

    def best_child(self, node: Node) -> Node | None:
        """Return the child whose stage should follow the node's, if any must be trained."""
        work = self._work.get(node)
        heap = None if work is None else work.heap
        return None if heap is None else self._peek(heap, needs_ready=False)

    def best_ready(
        self,
        may_run: Callable[[Node], bool] = lambda node: True,
        may_meet: Callable[[Wanted], bool] = lambda wanted: True,
    ) -> Node | None:
        """Return the stage that should start next, if any can.

        Parameters
        ----------
        may_run
            Whether a stage may start now: others are passed over.
        may_meet
            Whether stages with these needs may start now: all others are left out at once.
        """
        groups = [group for group in self._ready if may_meet(group[1])]
        heads = [self._head(group, may_run) for group in groups]
        best = min((head for head in heads if head is not None), default=None)
        return None if best is None else best[-1]

    def best_of(self, group: Group, may_run: Callable[[Node], bool]) -> Node | None:
        """Return the stage of a group that should start next, if any can."""
        head = self._head(group, may_run) if group in self._ready else None
        return None if head is None else head[-1]

    def heads(self) -> Iterator[tuple[Group, Node]]:
        """Yield the first ready stage of each group that has one, with the group."""
        for group in list(self._ready):
            node = self.best_of(group, lambda node: True)
            if node is not None:
                yield group, node

    def _head(self, group: Group, may_run: Callable[[Node], bool]) -> Entry | None:
        """Return the first entry of the ready stages of a group that may start now."""
        heap = self._ready[group]
        node = self._peek(heap, needs_ready=True)
        while node is not None and not (_belongs(node, group) and may_run(node)):
            entry = heappop(heap)
            if _belongs(node, group):  # others have been sorted anew by `group_again`
                self._passed_over.append(entry)
            node = self._peek(heap, needs_ready=True)
        head = None if node is None else heap[0]
        while self._passed_over:
            heappush(heap, self._passed_over.pop())
        if not heap:
            del self._ready[group]
        return head

    def moved(self, nodes: Iterable[Node], *, anew: bool) -> None:
        """Handle other states and needs of nodes, each of which comes before those below it.

        Parameters
        ----------
        anew
            Whether their steps are to be trained by other keys: none was trained before.
        """
        known = [(node, self._work[node]) for node in nodes if node in self._work]
        for node, work in reversed(known):
            work.trained = node.reached if anew else max(work.trained, node.reached)
            self.update(node)
        for node, work in known:
            if work.active and is_ready(node):
                self._make_ready(node, work)

    def group_again(self, node: Node) -> None:
        """Sort a ready stage anew, and those above it, after needs or ranks of its path changed."""
        for above in node.up():
            work = self._work.get(above)
            if work is None or not work.active or not is_ready(above):
                continue
            group = self._group_of(above)
            known = ((), NO_NEEDS, NO_LEVEL, 1) if work.backlog is None else work.backlog[0]
            if group != known:
                self._make_ready(above, work)

    def urgency(self, node: Node) -> tuple[float, float]:
        """Return the priority and the length of a node's path, or its start: higher goes first."""
        return self._urgency(node, self.work(node))

    def best_raised(self, may_run: Callable[[Node], bool]) -> Node | None:
        """Return the stage that should start next of those that raised before, if any can.

        Parameters
        ----------
        may_run
            Whether a stage may start now.
        """
        ready = [
            (self._urgency(node, work), -node.number, node)
            for node in self._raised
            if (work := self._work[node]).active and is_ready(node) and may_run(node)
        ]
        return max(ready)[-1] if ready else None

    def raised(self, node: Node, step: Step, hosts: Mapping[str, str]) -> None:
        """Note that the step after `step` raised on a gang.

        Parameters
        ----------
        hosts
            The host of each of its workers, its own worker first.
        """
        work = self.work(node)
        work.raised_on = {**work.raised_on, **hosts}
        work.errors = {**work.errors, step: (*work.errors.get(step, ()), tuple(hosts))}
        work.tries = {**work.tries, step: work.tries.get(step, 0) + 1}
        self._raised[node] = None

    def excuse(self, at: NodeStep, worker: str) -> None:
        """Take back an error after `at`: its worker is put aside, so it proves nothing."""
        node, step = at
        work = self.work(node.holder(step + 1))
        proving = tuple(gang for gang in work.errors.get(step, ()) if worker not in gang)
        work.errors = {**work.errors, step: proving}

    def ready(self) -> Iterator[Node]:
        """Yield the stages that could start now, in no order."""
        seen: set[int] = set()
        for *_, version, node in chain(*self._ready.values(), self._passed_over):
            # The version is looked at first: it tells most entries that are out of date.
            if self._work[node].version == version and node.number not in seen and is_ready(node):
                seen.add(node.number)
                yield node

    def ready_by_needs(self, most: int) -> Counter[Wanted]:
        """Return how many workers stages could take now by their needs, counted up to `most`."""
        seen: set[int] = set()
        counts: Counter[Wanted] = Counter()
        for (_, wanted, _, workers), heap in self._ready.items():
            for *_, version, node in heap:
                if counts[wanted] >= most:
                    break
                is_current = self._work[node].version == version and node.needs == wanted
                if is_current and node.number not in seen and is_ready(node):
                    seen.add(node.number)
                    counts[wanted] += workers
        return counts

    def least_ready_workers(self) -> int | None:
        """Return the least number of workers that a ready stage takes; None if all stages wait."""
        return min(
            (
                workers
                for (_, _, _, workers), heap in self._ready.items()
                if any(
                    self._work[node].version == version and is_ready(node)
                    for *_, version, node in heap
                )
            ),
            default=None,
        )

    def following(self, node: Node) -> Counter[Wanted]:
        """Return how many stages wait for the state at a node's end, by their needs."""
        work = self.work(node)
        if not node.needs:  # then no trial that passes has needs of its own
            return Counter({node.needs: work.pulls})
        return Counter(child.needs for child in node.children.values() if self._is_drawn(child))

    def _is_drawn(self, node: Node) -> bool:
        work = self._work.get(node)
        return work is not None and work.drawn

    def goes_first(self, node: Node, other: Node) -> bool:
        """Whether a node should be trained before another."""
        return self.urgency(node) > self.urgency(other)

    def _urgency(self, node: Node, work: Work) -> tuple[float, float]:
        return work.priority, start_of(node) if self._deepest_first else work.length

    def _peek(self, heap: list[Entry], *, needs_ready: bool) -> Node | None:
        while heap:
            *_, version, node = heap[0]
            work = self._work[node]
            if work.version == version and (is_ready(node) if needs_ready else work.drawn):
                return node
            heappop(heap)
        return None

    def _push_below(self, above: Work, node: Node, work: Work) -> None:
        if above.heap is None:
            above.heap = []
        heappush(above.heap, (-work.priority, -work.length, node.number, work.version, node))

    def _make_ready(self, node: Node, work: Work) -> None:
        group = self._enter_group(node, work)
        heappush(self._ready.setdefault(group, []), self._entry_of(node, work))

    def _entry_of(self, node: Node, work: Work) -> Entry:
        priority, then = self._urgency(node, work)
        return -priority, -then, node.number, work.version, node

    def _enter_group(self, node: Node, work: Work) -> Group:
        """Return the group of a ready stage, in whose backlog it counts from now on."""
        group = self._group_of(node)
        if group[0]:
            if work.backlog is not None:
                self._leave_backlog(work)
            seconds = work.seconds * group[3]
            work.backlog = group, seconds
            self.backlog[group] = self.backlog.get(group, 0.0) + seconds
        return group

    def _group_of(self, node: Node) -> Group:
        profile = self._profile_of(node)
        level = rank_level(node) if profile else NO_LEVEL
        return profile, node.needs, level, self.workers_of(node)

    def _leave_backlog(self, work: Work) -> None:
        """Take the stage of a node out of the backlog."""
        if work.backlog is not None:
            group, seconds = work.backlog
            self.backlog[group] = max(0.0, self.backlog[group] - seconds)
            work.backlog = None

    def _refresh(self, node: Node, *, sorts: bool = True) -> bool:
        """Recompute one node from its children; return whether its parent must be, too.

        Unless it `sorts`, the caller sorts all ready stages anew.
        """
        work = self.work(node)
        above = node.parent
        if above is None:
            return False
        has_state = node.stop in node.checkpoints
        wanted = bool(node.requests) or (work.pulls > 0 and not has_state)
        active = wanted and work.attempt is None and self._blocked(node) is None
        start = start_of(node)
        drawn = active and start == node.start and above.parent is not None
        before = (work.active, work.drawn, work.priority, work.length)
        if active:
            self._weigh(node, work, start, has_state)
        after = (active, drawn, work.priority, work.length)
        if after == before:
            return False
        work.version += 1
        self.active_count += active - work.active
        parent_work = self.work(above)
        parent_work.pulls += drawn - work.drawn
        work.active, work.drawn = active, drawn
        if work.backlog is not None:
            self._leave_backlog(work)
        if drawn:
            self._push_below(parent_work, node, work)
            if parent_work.attempt is not None:
                self.continued.append(parent_work.attempt)
        if sorts and active and is_ready(node):
            self._make_ready(node, work)
        return True

    def _weigh(self, node: Node, work: Work, start: Step, has_state: bool) -> None:
        """Compute priority and length of an active node."""
        work.length = work.seconds = (node.stop - start) * self._step_cost(node)
        best = None if has_state else self.best_child(node)
        if best is None:
            work.priority = work.asked
            return
        below = self.work(best)
        work.length += below.length
        work.priority = max(work.asked, below.priority) if node.requests else below.priority


def _belongs(node: Node, group: Group) -> bool:
    """Whether a stage is still of the group in whose heap it lies, whatever was measured since."""
    return node.needs == group[1] and (not group[0] or rank_level(node) == group[2])


def rank_level(node: Node) -> int:
    """Return the level of the rank of a stage's model, from 0; `NO_LEVEL` without a rank."""
    rank = node.model_rank
    return NO_LEVEL if rank is None else round(rank * (RANK_LEVELS - 1))


def start_of(node: Node) -> Step:
    """Return the step that a node's stage would start from."""
    return node.stage_start


def is_ready(node: Node) -> bool:
    """Whether the state that a node's stage starts from exists."""
    above = node.parent
    if above is None or node.is_alone:
        return node.is_alone
    return above.stop in above.starts or start_of(node) > node.start

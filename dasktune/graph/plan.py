"""The search plan: every trial of every tuner as one radix tree of value sequences.

An edge is a run of steps under one set of value functions; a node stands where trials
part or were asked to stop [Hippo 3.2]. The plan says what is wanted and what exists
(checkpoints, metrics). It has no run states: those are the `dasktune.graph.frontier`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

from dasktune.errors import InternalError
from dasktune.graph.devices import DEVICES, devices_of
from dasktune.graph.keys import (
    BLOCK_STEPS,
    Chain,
    Mark,
    Positions,
    SeededRoots,
    encode_at,
    root_key,
)
from dasktune.graph.known import Measured, Steps
from dasktune.graph.value_cache import ValueCache
from dasktune.needs import NO_NEEDS, Needs, NumericClass
from dasktune.sequences import first_difference
from dasktune.types import Metrics, Sequences, Step

NONE: frozenset[Needs] = frozenset()
"""The needs of trials that have no needs of their own."""

NOTHING = cast(MutableMapping[Any, Any], MappingProxyType({}))
"""The children or requests of all nodes that have none: most nodes never have children."""


class Node:
    """The steps [start, stop) under one set of value functions, and what is known there.

    Attributes
    ----------
    number
        Unique in the plan, in order of creation.
    start, stop
        Its first step, and the first step after it.
    parent
        The node that ends where this one starts; None for the root.
    sequences
        Hyper-parameters of the trial that made the node: all trials that pass through it
        have the same values on [0, stop).
    children
        Nodes that start at `stop`, by the canonical bytes of their values there.
    checkpoints
        Steps in (start, stop] whose state is in the store (the root's is 0).
    metrics
        Metrics by step in (start, stop].
    requests
        Priority by trial, for trials that want training up to `stop` and its metrics.
    passing
        How many registered trials pass through, those that end here included.
    needs
        The different needs of the trials that have passed through; empty if none had its own.
    model_rank
        The highest rank of the models of the trials that have passed through, from 0 to 1; None if
        none had one.
    value_cache
        Keeps the values of all sequences of the plan.
    is_alone
        Whether it belongs to a trial that is trained alone: each of its stages begins at step 0,
        whatever is stored, since its trainer does not resume exactly.
    numerics
        The numeric class on which all steps of its lineage are trained; None before that is
        chosen. A *lineage* is all trials with the same values at step 0.
    """

    __slots__ = (
        "_end",
        "_inside",
        "checkpoints",
        "children",
        "is_alone",
        "metrics",
        "model_rank",
        "needs",
        "number",
        "numerics",
        "parent",
        "passing",
        "requests",
        "sequences",
        "start",
        "stop",
        "value_cache",
    )

    def __init__(
        self, number: int, parent: Node | None, span: tuple[Step, Step], sequences: Sequences
    ) -> None:
        self.number = number
        self.parent = parent
        self.start, self.stop = span
        self.sequences = sequences
        self.children: MutableMapping[bytes, Node] = NOTHING
        self.checkpoints = Steps()
        self.metrics = Measured()
        self.requests: MutableMapping[int, float] = NOTHING
        self.passing = 0
        self.needs: frozenset[Needs] = NONE
        self.model_rank: float | None = None
        self.value_cache: ValueCache = ValueCache() if parent is None else parent.value_cache
        self.is_alone: bool = parent is not None and parent.is_alone
        self.numerics: NumericClass | None = None if parent is None else parent.numerics
        self._end: Chain | None = None
        self._inside: Positions | None = None

    def __repr__(self) -> str:
        return f"Node({self.number}, steps {self.start}-{self.stop})"

    @property
    def starts(self) -> Collection[Step]:
        """The steps in (start, stop] from whose state a stage may start."""
        return () if self.is_alone else self.checkpoints

    @property
    def stage_start(self) -> Step:
        """The step from which a stage to the node's end starts."""
        if self.is_alone:
            return 0
        last = self.checkpoints.last
        return self.start if last is None else last

    @property
    def reached(self) -> Step:
        """The last step that was trained at some time, as far as is known; `start` if none was.

        Where there are metrics, there was a state, also if it was not saved.
        """
        lasts = (self.checkpoints.last, self.metrics.last)
        return max((each for each in lasts if each is not None), default=self.start)

    def chain_at(self, step: Step) -> Chain:
        """Return the position in the chain of keys at a step up to `stop`."""
        if step < self.start and self.parent is not None:
            return self.parent.chain_at(step)
        if step == self.stop and self._end is not None:
            return self._end
        if self.parent is None:
            raise InternalError("the root's position must be set when the plan is made")
        missing = [self]
        while (above := missing[-1].parent) is not None and above._end is None:
            missing.append(above)
        for node in reversed(missing[1:]):
            node._end = node._advance_to(node.stop)
        chain = self._advance_to(step)
        if step == self.stop:
            self._end = chain
        return chain

    def _advance_to(self, step: Step) -> Chain:
        """Return the position at a step, from the nearest one that is known."""
        nearest = self._nearest(step)
        if nearest is None:
            raise InternalError(f"{self!r} has no position to start from")
        chain = nearest.chain
        keeps = step < self.stop or step - nearest.step > BLOCK_STEPS
        for mark in chain.marks(self.sequences, nearest.step, step, self.value_cache):
            chain = mark.chain
            if keeps:
                self._keep(mark)
        return chain

    def _keep(self, mark: Mark) -> None:
        if self._inside is None:
            self._inside = Positions(self.start)
        self._inside.add(mark)

    def _nearest(self, step: Step) -> Mark | None:
        """Return the last known position up to a step > `start`, if there is any."""
        if step == self.stop and self._end is not None:
            return Mark(step, self._end)
        inside = None if self._inside is None else self._inside.nearest(step)
        if inside is not None:
            return inside
        above = self.parent
        return None if above is None or above._end is None else Mark(self.start, above._end)

    def known_position(self, step: Step) -> Mark:
        """Return the last known position on the way to this node, up to `step`."""
        node = self.holder(step)
        while (above := node.parent) is not None:
            mark = node._nearest(step)
            if mark is not None:
                return mark
            node, step = above, above.stop
        if node._end is None:
            raise InternalError("the root's position must be set when the plan is made")
        return Mark(node.stop, node._end)

    def learn_positions(self, marks: Iterable[Mark]) -> None:
        """Keep positions on the way to this node, ascending, that were computed elsewhere."""
        for mark in marks:
            node = self.holder(mark.step)
            if mark.step < node.stop:
                node._keep(mark)
            elif node._end is None:
                node._end = mark.chain

    def key_at(self, step: Step) -> str:
        """Return the state key (hex) after `step` steps of this path, up to `stop`."""
        return self.chain_at(step).key

    def up(self) -> Iterator[Node]:
        """Yield this node and its ancestors, the root left out."""
        node: Node | None = self
        while node is not None and node.parent is not None:
            yield node
            node = node.parent

    @property
    def lineage(self) -> Node:
        """The first node on the way to this one, which begins at step 0; itself for the root."""
        node = self
        for above in self.up():
            node = above
        return node

    def bind(self, numerics: NumericClass, home: Node) -> None:
        """Have this lineage trained on a numeric class.

        Parameters
        ----------
        home
            The state before any step, as the keys of that class have it.
        """
        root = self.parent
        if root is None:
            raise InternalError("the root is no lineage")
        if root is not home:
            first = encode_at(self.sequences, 0)
            del root.children[first]
            home.adopt(first, self)
            self.parent = home
        for node in self.below():
            node.numerics = numerics
            node.needs = on_class(node.needs, numerics)
            if root is not home:  # the keys are others
                node._end, node._inside = None, None
                node.checkpoints, node.metrics = Steps(), Measured()

    def adopt(self, first: bytes, child: Node) -> None:
        """Put a child below this node, or in the place of one with the same values there."""
        if not self.children:
            self.children = {}
        self.children[first] = child

    def request(self, trial: int, priority: float) -> None:
        """Add the request of a trial, or change its priority."""
        if not self.requests:
            self.requests = {}
        self.requests[trial] = priority

    def withdraw(self, trial: int) -> float | None:
        """Remove the request of a trial; return the priority that it had, if there was one."""
        priority = self.requests.pop(trial) if trial in self.requests else None
        if not self.requests:
            self.requests = NOTHING
        return priority

    def holder(self, step: Step) -> Node:
        """Return the node on the way to this one that holds `step`, the root for step 0.

        It is another one than before if an edge was split since.
        """
        node = self
        while step <= node.start and node.parent is not None:
            node = node.parent
        return node

    def below(self) -> Iterator[Node]:
        """Yield this node and all nodes below it."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())


def on_class(needs: frozenset[Needs], numerics: NumericClass | None) -> frozenset[Needs]:
    """Return the needs of a node whose lineage is trained on a numeric class, if it is bound."""
    if numerics is None:
        return needs
    return frozenset(each.on(numerics) for each in needs or (NO_NEEDS,))


NodeStep = tuple[Node, Step]
"""A state in the plan: its node, or a node below it, and its step."""


@dataclass(slots=True)
class Path:
    """A registered trial.

    Parameters
    ----------
    leaf
        The node where its known steps end.
    sequences
        Its hyper-parameters by name.
    needs
        Its needs; empty if it has none of its own.
    model_rank
        The rank of its model, from 0 to 1; None if it has none.
    """

    leaf: Node
    sequences: Sequences
    needs: frozenset[Needs]
    model_rank: float | None = None


_States = tuple[Node, Collection[Step], Mapping[Step, Metrics]]
"""The checkpoints and metrics of the nodes on the way to one, as they were."""


class SearchPlan:
    """All registered trials, merged by value.

    Parameters
    ----------
    key
        The state key before any step (`dasktune.graph.keys.root_key`).
    merge
        Whether trials share what they have in common. False gives each trial a tree and
        keys of its own: the control for every claim about merging.
    alone_key
        The state key before any step of trials that are trained alone in a plan that merges, before
        it is joined with their numbers; `key` if None.
    on_split
        Called with ``(top, bottom)`` after an edge was split; `bottom` is the old node.
    on_new
        Called with every node that covers steps which no trial had before.
    seeded
        The states before any step for other training seeds; made from `key` if None.
    """

    def __init__(
        self,
        key: str,
        *,
        merge: bool = True,
        alone_key: str | None = None,
        on_split: Callable[[Node, Node], None] | None = None,
        on_new: Callable[[Node], None] | None = None,
        seeded: SeededRoots | None = None,
    ) -> None:
        self.root_key = key
        self.alone_key = alone_key or key
        self.merge = merge
        self.paths: dict[int, Path] = {}
        self.value_cache = ValueCache()
        """The values of the curves of all trials."""
        self._roots: dict[tuple[int | None, int], Node] = {}
        self._seeds: dict[Node, int] = {}
        self._of_class: dict[tuple[Node, NumericClass], Node] = {}
        """The roots whose keys name a numeric class, by the root without it."""
        self._homes: dict[tuple[Node, bytes], Node] = {}
        """The roots of the lineages that were moved there, by root and values at step 0."""
        self._forgotten: dict[tuple[Node, bytes], list[_States]] = {}
        """Forgotten states of the plain class, by root and values at step 0 of their lineage."""
        self.looks_up = True
        """Whether new nodes that no class is chosen for are told what is known by keys without."""
        self._seeded = seeded or SeededRoots(fingerprint=key)
        self._count = 0
        self._on_split = on_split
        self._on_new = on_new

    def __iter__(self) -> Iterator[Node]:
        """Yield every node, the root left out."""
        for root in self.roots:
            nodes = root.below()
            next(nodes)
            yield from nodes

    @property
    def roots(self) -> tuple[Node, ...]:
        """The states before any step: one a seed, or one for each trial if nothing is merged.

        Of each there is another one for each numeric class that keys name.
        """
        return (*self._roots.values(), *self._of_class.values())

    def seed_of(self, node: Node) -> int:
        """Return the number that is added to the study's training seed on the way to a node."""
        return self._seeds[self._root_above(node)]

    def root_key_of(self, node: Node) -> str:
        """Return the key under which what is known of a node's states is filed."""
        if node.is_alone:
            return self.alone_key
        return self._root_above(node).key_at(0) if self.merge else self.root_key

    def register(
        self,
        trial: int,
        sequences: Sequences,
        steps: Step,
        seed: int = 0,
        *,
        is_alone: bool = False,
        needs: Needs | None = None,
        model_rank: float | None = None,
        numerics: NumericClass | None = None,
    ) -> Node:
        """Make a trial known up to `steps`; return the node that ends there.

        A trial that is known already is carried on if `steps` lie beyond its end. No node
        that others hold is removed or rewritten; an edge may be split.

        Parameters
        ----------
        trial, sequences, steps, seed
            The trial, and how far it is known.
        is_alone
            Whether a new trial is trained alone, with keys of its own (`Node.is_alone`).
        needs
            What its stages ask of their workers; None if it has no needs of its own.
        model_rank
            The rank of its model, as in `dasktune.types.Register`.
        numerics
            The numeric class that the keys of a new trial name; None if they name none, or it is
            not chosen.
        """
        path = self.paths.get(trial)
        if path is None:
            own = NONE if needs is None else frozenset({needs})
            root = self._root_of(trial, seed, is_alone)
            if numerics is not None or self._homes:
                root = self._home_of(root, encode_at(sequences, 0), numerics)
            path = Path(root, sequences, own, model_rank)
            leaf = path.leaf = self._insert(path, steps)
            self.paths[trial] = path
        elif path.leaf.stop < steps:
            leaf = path.leaf = self._insert(path, steps)
        else:
            leaf = self.cut(self.node_at(trial, steps), steps)
        if needs is not None and needs not in path.needs:
            self._need(path, needs)
        if model_rank is not None and path.model_rank is None:
            self._rank(path, model_rank)
        return leaf

    def _need(self, path: Path, needs: Needs) -> None:
        """Add the needs of a trial that was known without them."""
        path.needs = frozenset({needs})
        for node in path.leaf.up():
            node.needs |= on_class(path.needs, node.numerics)

    def _rank(self, path: Path, model_rank: float) -> None:
        """Add the rank of a trial's model to a trial that was known without it."""
        path.model_rank = model_rank
        for node in path.leaf.up():
            node.model_rank = _higher(node.model_rank, model_rank)

    def forget_needs(self) -> None:
        """Forget the needs of all trials: another run may give them others.

        A numeric class is forgotten, too, unless keys name it.
        """
        if any(node.needs for node in self):
            for node in self:
                if node.numerics is not None and not node.numerics.in_keys:
                    node.numerics = None
                node.needs = on_class(NONE, node.numerics)
            for path in self.paths.values():
                path.needs = NONE

    def bind(self, node: Node, numerics: NumericClass) -> list[Node]:
        """Have the lineage of a node trained on a numeric class; return its nodes.

        If the keys name the class, the lineage gets these keys, and is told what is known of them.
        """
        lineage = node.lineage
        root = self._root_above(lineage)
        lineage.bind(numerics, self._root_of_class(root, numerics))
        if lineage.parent is root:
            self._recall_states(lineage)
        else:
            self._homes[root, encode_at(lineage.sequences, 0)] = self._root_above(lineage)
        nodes = list(lineage.below())
        if self._on_new is not None:
            for each in nodes:
                self._on_new(each)
        return nodes

    def forget_states(self, lineage: Node) -> None:
        """Forget the states of a lineage, from which no worker here may go on.

        They are known again once it may be trained where they were made.
        """
        nodes = list(lineage.below())
        known = [
            (each, each.checkpoints, each.metrics)
            for each in nodes
            if each.checkpoints or each.metrics
        ]
        if lineage.parent is not None and known:
            place = lineage.parent, encode_at(lineage.sequences, 0)
            self._forgotten[place] = [*self._forgotten.get(place, ()), *known]
        for each in nodes:
            each.checkpoints, each.metrics = Steps(), Measured()

    def forget_state(self, node: Node, step: Step, reports: Iterable[tuple[Step, Metrics]]) -> None:
        """Forget a state without a class and its metrics at once, as `forget_states` does."""
        lineage = node.lineage
        if lineage.parent is not None:
            place = lineage.parent, encode_at(lineage.sequences, 0)
            state = node, (step,), dict(reports)
            self._forgotten[place] = [*self._forgotten.get(place, ()), state]

    def _recall_states(self, lineage: Node) -> None:
        """Learn again what was forgotten of the states of a lineage."""
        if lineage.parent is None or not self._forgotten:
            return
        place = lineage.parent, encode_at(lineage.sequences, 0)
        for node, checkpoints, metrics in self._forgotten.pop(place, ()):
            for step in checkpoints:
                self.learn(node, step, is_stored=True)
            for step, values in metrics.items():
                self.learn(node, step, metrics=values)

    @property
    def unbound(self) -> list[Node]:
        """The first nodes of the lineages for which no numeric class is chosen."""
        lineages = (each for root in self._roots.values() for each in root.children.values())
        return [lineage for lineage in lineages if lineage.numerics is None]

    def look_up(self, *, plain: bool) -> None:
        """Set whether nodes of unbound lineages are told what is known by keys without a class."""
        if plain and not self.looks_up:
            for lineage in self.unbound:
                self._recall_states(lineage)
                if self._on_new is not None:
                    for node in list(lineage.below()):
                        self._on_new(node)
        self.looks_up = plain

    def _home_of(self, root: Node, first: bytes, numerics: NumericClass | None) -> Node:
        """Return the root of a lineage, after binding it to a numeric class if one is given."""
        if numerics is not None and (root, first) not in self._homes:
            lineage = root.children.get(first)
            if lineage is not None and lineage.numerics is None:
                self.bind(lineage, numerics)
            elif lineage is None:
                self._homes[root, first] = self._root_of_class(root, numerics)
        return self._homes.get((root, first), root)

    def _root_of_class(self, root: Node, numerics: NumericClass) -> Node:
        """Return the state before any step that keys of a numeric class begin with."""
        if not numerics.in_keys:
            return root
        home = self._of_class.get((root, numerics))
        if home is None:
            home = self._of_class[root, numerics] = Node(self._count, None, (0, 0), {})
            self._count += 1
            self._seeds[home] = self._seeds[root]
            home.value_cache, home.is_alone, home.numerics = (
                self.value_cache,
                root.is_alone,
                numerics,
            )
            home.checkpoints.add(0)
            home._end = root.chain_at(0).named(numerics.facts)
        return home

    def remove(self, trial: int) -> list[Node]:
        """Forget a trial; return its nodes, which stay with all that is known of them."""
        nodes = self.nodes_of(trial)
        del self.paths[trial]
        for node in nodes:
            node.passing -= 1
        return nodes

    def node_at(self, trial: int, step: Step) -> Node:
        """Return the trial's node that holds `step`: start < step <= stop."""
        for node in self.paths[trial].leaf.up():
            if node.start < step <= node.stop:
                return node
        raise InternalError(f"trial {trial} is not registered up to step {step}")

    def nodes_of(self, trial: int) -> list[Node]:
        """Return the trial's nodes, from the first step on; empty for an unregistered trial."""
        path = self.paths.get(trial)
        return [] if path is None else list(path.leaf.up())[::-1]

    def cut(self, node: Node, step: Step) -> Node:
        """Return the node that ends at `step`, splitting `node` if it passes it."""
        if step == node.stop:
            return node
        if not node.start < step < node.stop:
            raise InternalError(f"{node!r} cannot be cut at step {step}")
        return self._split(node, step)

    def learn(
        self,
        node: Node,
        step: Step,
        *,
        is_stored: bool = False,
        metrics: Metrics | None = None,
    ) -> None:
        """Add what earlier runs left of a step on the way to a node.

        This is for steps that no trial has requested yet; while a study runs, events report
        states and metrics.

        Parameters
        ----------
        node
            Holds the step, or is below the node that does.
        step
            A step > 0.
        is_stored
            Whether the store has the state.
        metrics
            Metrics at the step; metrics that are known already stand.
        """
        node = node.holder(step)
        if node.parent is None:
            return
        if is_stored:
            node.checkpoints.add(step)
        if metrics is not None:
            node.metrics.add(step, metrics)

    def _root_of(self, trial: int, seed: int, is_alone: bool) -> Node:
        """Return the state before any step, made when first asked for."""
        owner = trial if is_alone or not self.merge else None
        root = self._roots.get((owner, seed))
        if root is None:
            root = self._roots[owner, seed] = Node(self._count, None, (0, 0), {})
            self._seeds[root] = seed
            root.value_cache, root.is_alone = self.value_cache, is_alone
            self._count += 1
            root.checkpoints.add(0)
            key = self._seeded.key(seed) if seed else self.root_key
            key = self.alone_key if is_alone else key
            root._end = Chain(key if owner is None else root_key(key, owner))
        return root

    def _root_above(self, node: Node) -> Node:
        while node.parent is not None:
            node = node.parent
        return node

    def _insert(self, path: Path, steps: Step) -> Node:
        """Carry a path on from its end up to `steps`; return the node that ends there."""
        at, sequences, needs = path.leaf, path.sequences, path.needs
        while at.stop < steps:
            first = encode_at(sequences, at.stop)
            child = at.children.get(first)
            if child is None:
                at = self._add_below(at, first, sequences, steps)
                at.passing, at.model_rank = 1, path.model_rank
                at.needs = on_class(needs, at.numerics)
                if self._on_new is not None and (self.looks_up or at.numerics is not None):
                    self._on_new(at)
                continue
            limit = min(child.stop, steps)
            part = shared_until(child.sequences, sequences, child.start, limit)
            at = child if part == child.stop else self._split(child, part)
            at.passing += 1
            if needs and not needs <= at.needs:
                at.needs |= on_class(needs, at.numerics)
            at.model_rank = _higher(at.model_rank, path.model_rank)
        return at

    def _add_below(self, at: Node, first: bytes, sequences: Sequences, steps: Step) -> Node:
        """Add a child that ends at `steps`, or before it where the number of devices changes."""
        change = devices_of(sequences).constant_until(at.stop)
        stop = steps if change is None else min(steps, change)
        child = self._new_node(at, (at.stop, stop), sequences)
        at.adopt(first, child)
        return child

    def _new_node(self, parent: Node, span: tuple[Step, Step], sequences: Sequences) -> Node:
        node = Node(self._count, parent, span, sequences)
        self._count += 1
        return node

    def _split(self, node: Node, step: Step) -> Node:
        """Put a new node over [start, step) above `node`, which keeps its identity."""
        above = node.parent
        if above is None:
            raise InternalError("the root cannot be split")
        top = self._new_node(above, (node.start, step), node.sequences)
        top.passing, top.needs, top.numerics = node.passing, node.needs, node.numerics
        top.model_rank = node.model_rank
        above.adopt(encode_at(node.sequences, node.start), top)
        top.adopt(encode_at(node.sequences, step), node)
        node.parent, node.start = top, step
        top.checkpoints, node.checkpoints = node.checkpoints.split(step)
        if node._inside is not None:
            top._inside, node._inside = node._inside.split(step)
        top.metrics, node.metrics = node.metrics.split(step)
        if self._on_split is not None:
            self._on_split(top, node)
        return top


def _higher(rank: float | None, other: float | None) -> float | None:
    """Return the higher of two ranks of models; None counts as lower than any."""
    if rank is None or other is None:
        return other if rank is None else rank
    return max(rank, other)


def shared_until(ours: Sequences, theirs: Sequences, start: Step, limit: Step) -> Step:
    """Return the first step from `start`, up to `limit`, at which two paths have other values."""
    part = alike_until(ours, theirs, start, limit)
    if DEVICES in ours or DEVICES in theirs:
        return first_difference(devices_of(ours), devices_of(theirs), start, part)
    return part


def alike_until(ours: Sequences, theirs: Sequences, start: Step, limit: Step) -> Step:
    """Return the same step for two paths that may be trained on unlike numbers of devices."""
    pairs = ((sequence, theirs[name]) for name, sequence in ours.items() if name != DEVICES)
    return min((first_difference(*pair, start, limit) for pair in pairs), default=limit)


def nodes_along(root: Node, sequences: Sequences, stop: Step) -> Iterator[tuple[Node, Step]]:
    """Yield the nodes on a path below a root, each with the step up to which the path is on it.

    The last one may be a node that the path leaves, or that goes on beyond `stop`.
    """
    at: Node | None = root
    while at is not None and at.stop < stop:
        child = at.children.get(encode_at(sequences, at.stop))
        if child is None:
            return
        part = shared_until(child.sequences, sequences, child.start, min(child.stop, stop))
        yield child, part
        at = child if part == child.stop else None

"""Reuse of states: checkpoints and metrics of earlier runs, found again by state key.

What a database knows of a state is in memory when a trial meets it. Commits that no database knows
are read from the store as trials meet their states: by a thread while a study runs.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

from dasktune.graph.events import Found, StatesRead
from dasktune.graph.keys import Chain, runs
from dasktune.graph.plan import Node, SearchPlan
from dasktune.storage.checkpoints import SMALL_NBYTES, CheckpointStore, Commit
from dasktune.storage.database.database import Database
from dasktune.types import Metrics, Step


class KnownStates:
    """Known checkpoints and metrics by step and state key.

    Keys are computed only for steps at which something is known that no node has yet, so that
    a fresh study pays nothing, and one that is opened again what there is to find: if the trials
    that got furthest are registered first.

    A state that no database knows counts only once its commit was read: `unread` has those that
    nodes have met, and `receive` takes the commits. No stage should be placed before.
    """

    def __init__(self, database: Database, store: CheckpointStore) -> None:
        self._database = database
        self._store = store
        recorded = database.recorded_states(SMALL_NBYTES)
        self._stored = {
            stored.key: stored.step
            for stored in store.inventory(recorded)
            if stored.is_committed and stored.attempts
        }
        self._roots: set[str] = set()
        self._checkpoints: dict[Step, set[str]] = defaultdict(set)
        self._metrics: dict[Step, dict[str, Metrics]] = defaultdict(dict)
        self._unrecorded: set[str] = set()
        self._unread: dict[str, Node] = {}
        self._found: list[tuple[Node, Commit]] = []
        self._steps: list[Step] = []
        self._emptied: list[Step] = []

    @classmethod
    def open(cls, database: Database, store: CheckpointStore, root: str) -> KnownStates:
        """Read what is known below a root: from the database, and states only the store has.

        A driver that was killed may have left states whose rows it could not write any
        more: the store is the truth about what exists, also where rows say otherwise. It
        may hold states of other databases, too.
        """
        known_states = cls(database, store)
        unrecorded = sorted(known_states._stored.keys() - database.checkpoint_keys())
        for key in unrecorded:
            known_states._checkpoints[known_states._stored[key]].add(key)
        known_states._unrecorded.update(unrecorded)
        known_states.read(root)
        return known_states

    def read(self, root: str) -> None:
        """Read what the database knows below a further root, once."""
        if root in self._roots:
            return
        self._roots.add(root)
        for row in self._database.checkpoints(root):
            if row.key in self._stored:
                self._checkpoints[row.step].add(row.key)
        for key, step, metrics in self._database.known_metrics(root):
            self._metrics[step][key] = metrics
        self._steps = sorted({*self._checkpoints, *self._metrics})

    def fill(self, plan: SearchPlan, node: Node) -> None:
        """Tell a plan what is known of a new node's steps; no other node has the same states."""
        first, last = bisect_right(self._steps, node.start), bisect_right(self._steps, node.stop)
        if first == last or node.parent is None:
            return
        chain, step = node.parent.chain_at(node.start), node.start
        for until, values in runs(node.sequences, node.start, node.stop):
            end = bisect_right(self._steps, until, first, last)
            if first < end:
                self._fill_run(plan, node, chain, step, values, self._steps[first:end])
            if end == last:
                break
            chain, step, first = chain.extend(values, until - step), until, end
        self._forget_empty()

    def _fill_run(
        self,
        plan: SearchPlan,
        node: Node,
        chain: Chain,
        start: Step,
        values: bytes,
        wanted: list[Step],
    ) -> None:
        """Fill steps of a node at which it has the same values as at `start`."""
        keys = chain.keys(values, [step - start for step in wanted])
        for step, key in zip(wanted, keys, strict=True):
            if key in self._checkpoints.get(step, ()) or key in self._metrics.get(step, ()):
                self._fill_step(plan, node, step, key)

    def _fill_step(self, plan: SearchPlan, node: Node, step: Step, key: str) -> None:
        checkpoints, metrics = self._checkpoints.get(step, set()), self._metrics.get(step, {})
        if key in checkpoints:
            checkpoints.remove(key)
            if key in self._unrecorded:
                self._unread[key] = node
            else:
                plan.learn(node, step, is_stored=True)
        if key in metrics:
            plan.learn(node, step, metrics=metrics.pop(key))
        if not checkpoints and not metrics:
            self._emptied.append(step)

    def _forget_empty(self) -> None:
        """Look no more at steps of which all that is known has found its node."""
        for step in self._emptied:
            self._checkpoints.pop(step, None)
            self._metrics.pop(step, None)
            del self._steps[bisect_left(self._steps, step)]
        self._emptied.clear()

    def take_found(self) -> list[tuple[Node, Commit]]:
        """Return the commits that no database knew, each with its node, since the last call.

        Who goes on from them must write them down: the store may let go of them.
        """
        commits, self._found = self._found, []
        return commits

    @property
    def unread(self) -> Collection[str]:
        """The keys of states that nodes have met and whose commits must be read."""
        return self._unread.keys()

    def read_commits(self, keys: Collection[str]) -> dict[str, Commit]:
        """Return the commits of keys that can be read; any thread may call it.

        Raises a `StorageError` if the store cannot be read.
        """
        return self._store.commits(keys)

    def receive(self, keys: Collection[str], commits: Mapping[str, Commit]) -> StatesRead:
        """Return the event that follows from the commits that were read for keys."""
        nodes = {key: self._unread.pop(key) for key in keys}
        read = [(nodes[key], key, commits[key]) for key in keys if key in commits]
        # A trial may have bound the node's lineage to a numeric class since: its keys are others.
        there = [
            (node, commit)
            for node, key, commit in read
            if node.holder(commit.step).key_at(commit.step) == key
        ]
        self._found += there
        states = [
            Found(node=node, step=commit.step, reports=commit.reports) for node, commit in there
        ]
        return StatesRead(states=tuple(states))


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitsRead:
    """The commits of states that no database knows, which trials have met."""

    keys: tuple[str, ...]
    commits: Future[dict[str, Commit]]

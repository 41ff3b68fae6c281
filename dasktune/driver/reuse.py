"""Reuse of states: checkpoints and metrics of earlier runs, found again by state key."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict

from dasktune.graph.keys import Chain, runs
from dasktune.graph.plan import Node, SearchPlan
from dasktune.storage.checkpoints import CheckpointStore, Commit
from dasktune.storage.database.database import Database
from dasktune.types import Metrics, Step

MOST_READ_AHEAD = 2000
"""Commits that no database knows of are read together, many at a time, if they are so few."""


class KnownStates:
    """Known checkpoints and metrics by step and state key.

    Keys are computed only for steps at which something is known that no node has yet, so that
    a fresh study pays nothing, and one that is opened again what there is to find: if the trials
    that got furthest are registered first.
    """

    def __init__(self, database: Database, store: CheckpointStore) -> None:
        self._database = database
        self._store = store
        self._stored = {
            stored.key: stored.step
            for stored in store.inventory()
            if stored.is_committed and stored.attempts
        }
        self._roots: set[str] = set()
        self._checkpoints: dict[Step, set[str]] = defaultdict(set)
        self._metrics: dict[Step, dict[str, Metrics]] = defaultdict(dict)
        self._unrecorded: set[str] = set()
        self._commits: dict[str, Commit | None] = {}
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
        if len(unrecorded) <= MOST_READ_AHEAD:
            known_states._commits = {**dict.fromkeys(unrecorded), **store.commits(unrecorded)}
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
        commit = self._commit_of(key) if key in self._unrecorded else None
        checkpoints, metrics = self._checkpoints.get(step, set()), self._metrics.get(step, {})
        if key in checkpoints:
            checkpoints.remove(key)
            if commit or key not in self._unrecorded:
                plan.learn(node, step, is_stored=True)
        if key in metrics:
            plan.learn(node, step, metrics=metrics.pop(key))
        if not checkpoints and not metrics:
            self._emptied.append(step)
        if commit is not None:
            for at, values in commit.reports:
                plan.learn(node, at, metrics=values)
            self._found.append((node, commit))

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

    def _commit_of(self, key: str) -> Commit | None:
        """Return the commit of a key, or None if it is missing or unreadable."""
        if key not in self._commits:
            self._commits.update({key: None, **self._store.commits([key])})
        return self._commits[key]

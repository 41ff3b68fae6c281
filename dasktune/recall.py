"""What earlier runs left, found again by state key while trials are registered."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable

from dasktune.errors import CorruptCheckpointError
from dasktune.graph.keys import runs
from dasktune.graph.plan import Node
from dasktune.storage.checkpoints import CheckpointStore, Commit
from dasktune.storage.database import Database
from dasktune.types import Metrics, Step


class Recall:
    """Known checkpoints and metrics by step and state key.

    Keys are computed only for steps at which something is known, so that a fresh study
    pays nothing.
    """

    def __init__(self) -> None:
        self._checkpoints: dict[Step, set[str]] = defaultdict(set)
        self._metrics: dict[Step, dict[str, Metrics]] = defaultdict(dict)
        self._unrecorded: dict[str, Commit] = {}
        self._steps: list[Step] = []

    @classmethod
    def open(cls, database: Database, store: CheckpointStore, root: str) -> Recall:
        """Read what is known below a root: from the database, and states only the store has.

        A driver that was killed may have left states whose rows it could not write any
        more: the store is the truth about what exists, also where rows say otherwise.
        """
        recall = cls()
        stored = set(store.keys())
        known = set()
        for row in database.checkpoints(root):
            known.add(row.key)
            if row.key in stored:
                recall._checkpoints[row.step].add(row.key)
        for metrics in database.metrics(root):
            recall._metrics[metrics.step][metrics.key] = metrics.values
        for commit in _commits(store, stored - known):
            recall._checkpoints[commit.step].add(commit.key)
            recall._unrecorded[commit.key] = commit
        recall._steps = sorted({*recall._checkpoints, *recall._metrics})
        return recall

    def fill(self, node: Node) -> None:
        """Put what is known of a new node's steps into it."""
        first, last = bisect_right(self._steps, node.start), bisect_right(self._steps, node.stop)
        if first == last or node.parent is None:
            return
        wanted = iter(self._steps[first:last])
        target = next(wanted)
        chain, step = node.parent.chain_at(node.start), node.start
        for until, values in runs(node.sequences, node.start, node.stop):
            while target <= until:
                self._fill_step(node, target, chain.extend(values, target - step).key)
                following = next(wanted, None)
                if following is None:
                    return
                target = following
            chain, step = chain.extend(values, until - step), until

    def _fill_step(self, node: Node, step: Step, key: str) -> None:
        if key in self._checkpoints[step]:
            node.checkpoints[step] = None
        metrics = self._metrics[step].get(key)
        if metrics is not None:
            node.metrics[step] = metrics
        commit = self._unrecorded.get(key)
        if commit is not None:
            _fill_reports(node, commit)


def _fill_reports(node: Node, commit: Commit) -> None:
    """Put the metrics of a commit, also those of steps before it, where they belong."""
    for step, values in commit.reports:
        at = next((above for above in node.up() if above.start < step), None)
        if at is not None:
            at.metrics.setdefault(step, values)


def _commits(store: CheckpointStore, keys: Iterable[str]) -> Iterable[Commit]:
    for key in sorted(keys):
        try:
            commit = store.commit_of(key)
        except CorruptCheckpointError:
            continue
        if commit is not None:
            yield commit

"""The world that outlives a driver: the store, the database and the clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dasktune.engine.event_log import Record
from dasktune.engine.outcome import Outcome
from dasktune.engine.trials import TrialRecord
from dasktune.graph.events import RunStage
from dasktune.graph.plan import Node
from dasktune.storage.checkpoints import Commit, Stored
from dasktune.types import Metrics, Step
from tests.torture.ways import State


class Store:
    """States by key, as a checkpoint store keeps them: the first commit of a key stands."""

    def __init__(self) -> None:
        self.states: dict[str, State] = {}
        self.committed: set[State] = set()
        self._commits: dict[str, Commit] = {}

    def save(
        self,
        key: str,
        state: State,
        *,
        attempt: str,
        step: Step,
        reports: tuple[tuple[Step, Metrics], ...],
    ) -> Commit:
        """Commit a state; return the commit that stands."""
        commit = self._commits.get(key)
        if commit is None:
            self.states[key] = state
            self.committed.add(state)
            commit = Commit(
                key=key, attempt=attempt, step=step, digest=f"{state:x}", nbytes=1, reports=reports
            )
            self._commits[key] = commit
        return commit

    def lose(self, key: str) -> None:
        """Remove a state."""
        self.states.pop(key, None)
        self._commits.pop(key, None)

    def commit_of(self, key: str) -> Commit | None:
        """Return the commit of a key, or None."""
        return self._commits.get(key)

    def commits(self, keys: Iterable[str]) -> dict[str, Commit]:
        """Return the commits of keys that have one."""
        return {key: self._commits[key] for key in keys if key in self._commits}

    def inventory(self) -> Iterator[Stored]:
        """Yield what there is."""
        for key, one in self._commits.items():
            attempts = {one.attempt: (1, 0.0)}
            yield Stored(key=key, step=one.step, is_committed=True, attempts=attempts)


@dataclass(frozen=True, slots=True)
class Row:
    """A checkpoint or metrics that the database knows of."""

    key: str
    step: Step
    values: Metrics


@dataclass(slots=True)
class Batch:
    """One transaction of the database."""

    records: list[Record] = field(default_factory=list)
    trials: dict[int, TrialRecord] = field(default_factory=dict)
    metrics: list[tuple[str, Row]] = field(default_factory=list)
    checkpoints: list[tuple[str, Row]] = field(default_factory=list)


class Ledger:
    """The database: what was flushed before a driver died, and nothing else."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.trials: dict[int, TrialRecord] = {}
        self._metrics: dict[str, dict[str, Row]] = {}
        self._checkpoints: dict[str, dict[str, Row]] = {}

    def write(self, batch: Batch) -> None:
        """Make a batch durable, all of it or nothing."""
        self.records.extend(batch.records)
        self.trials.update(batch.trials)
        for root, row in batch.metrics:
            self._metrics.setdefault(root, {}).setdefault(row.key, row)
        for root, row in batch.checkpoints:
            self._checkpoints.setdefault(root, {})[row.key] = row

    def forget_checkpoints(self, keys: Iterable[str]) -> None:
        """Record that states do not exist."""
        for key in keys:
            for rows in self._checkpoints.values():
                rows.pop(key, None)

    def checkpoint_keys(self) -> set[str]:
        """Return all keys."""
        return {key for rows in self._checkpoints.values() for key in rows}

    def checkpoints(self, root: str) -> Iterable[Row]:
        """Return the rows below a root."""
        return self._checkpoints.get(root, {}).values()

    def metrics(self, root: str) -> Iterable[Row]:
        """Return the rows below a root."""
        return self._metrics.get(root, {}).values()

    def known_metrics(self, root: str) -> Iterable[tuple[str, Step, Metrics]]:
        """Return them as tuples."""
        return ((row.key, row.step, row.values) for row in self.metrics(root))

    def copy_of_trials(self) -> dict[int, TrialRecord]:
        """Return the trials as they are written, for a driver to go on with."""
        return {number: replace(one) for number, one in sorted(self.trials.items())}


class Notes:
    """In the place of `dasktune.driver.recorder.Recorder`: gathers what a driver writes."""

    def __init__(
        self,
        ledger: Ledger,
        root_of: Any,
        take_found: Callable[[], Iterable[tuple[Node, Commit]]],
    ) -> None:
        self._ledger = ledger
        self._root_of = root_of
        self._take_found = take_found
        self.batch = Batch()
        self.holds_decisions = False

    def outcome(self, outcome: Outcome) -> None:
        """Take the engine's records and the trials that changed."""
        for record in outcome.records:
            self.batch.records.append(record)
            self.holds_decisions |= bool(record.get("decisions", True))
        for trial in outcome.trials:
            self.batch.trials[trial.number] = replace(trial)

    def flush(self) -> Batch:
        """Make durable what was gathered; return it."""
        for node, commit in self._take_found():
            self.metrics(node, [(at, node.key_at(at), found) for at, found in commit.reports])
            self.checkpoint(node, commit)
        batch, self.batch, self.holds_decisions = self.batch, Batch(), False
        self._ledger.write(batch)
        return batch

    def metrics(
        self,
        node: Node,
        reports: Iterable[tuple[Step, str, Metrics]],
        paces: Mapping[Step, float] | None = None,
    ) -> None:
        """Take metrics that are final now; here no step takes time."""
        root = self._root_of(node)
        self.batch.metrics.extend((root, Row(key, step, metrics)) for step, key, metrics in reports)

    def checkpoint(
        self,
        node: Node,
        commit: Commit,
        *,
        hold_up: float | None = None,
        latency: float | None = None,
    ) -> None:
        """Take a commit."""
        row = Row(commit.key, commit.step, {})
        self.batch.checkpoints.append((self._root_of(node), row))

    def forget(self, key: str) -> None:
        """Record that a checkpoint does not exist."""
        self._ledger.forget_checkpoints([key])

    # What only reports are made of is not kept.

    def launched(self, order: RunStage, key: str) -> None:
        """Keep nothing."""

    def started(self, attempt: str, at: float) -> None:
        """Keep nothing."""

    def seconds_of(self, attempt: str, at: float) -> float:
        """Return 0: the clock of the database is not modelled."""
        return 0.0

    def saved(self, attempt: str, step: Step) -> None:
        """Keep nothing."""

    def ended(
        self,
        attempt: str,
        at: float,
        *,
        status: str,
        step: Step,
        repeated: int,
        message: str = "",
    ) -> None:
        """Keep nothing."""

    def settled(self, attempt: str) -> None:
        """Keep nothing."""

    def unsaved(self, attempt: str, step: Step) -> None:
        """Keep nothing."""

"""The recorder of a run: it gathers rows from events and outcomes, and writes them together."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dasktune._driver.history import History
from dasktune._driver.reuse import KnownStates
from dasktune._driver.waiting import MOST_TRIALS, trials_of
from dasktune._engine.alike import user_line
from dasktune._engine.outcome import Outcome
from dasktune._engine.timeouts import WAITS
from dasktune._engine.trials import ADDED, TrialRecord
from dasktune._engine.tuner_records import document_of
from dasktune.errors import FencedError, StorageError
from dasktune.graph.events import RunStage
from dasktune.graph.plan import Node, SearchPlan
from dasktune.logs import about, trials_text
from dasktune.storage.checkpoints import Commit
from dasktune.storage.database.columns import Encoded, to_text
from dasktune.storage.database.database import Batch
from dasktune.storage.database.rows import (
    CheckpointRow,
    EventRow,
    LogRow,
    MetricRow,
    StageRow,
    TrialRow,
)
from dasktune.storage.redaction import redacted
from dasktune.types import Metrics, Step, TrialState

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Tally:
    """Counts of a run so far; they grow, so the class is not frozen."""

    stages: Counter[str] = field(default_factory=Counter)
    """Stages that have ended, by how."""
    nbytes: int = 0
    """Bytes of the states that were saved."""
    worker_seconds: float = 0.0
    """Time that workers had stages, that of lenders included."""


class Recorder:
    """Writes the rows that a study must find again; one transaction for each `flush`.

    `known_states` has the commits that only the store had: they are written down as well. Between
    two writes of the states that were used lie `used_seconds`. `clock` gives epoch seconds. `tally`
    has the counts so far.
    """

    def __init__(
        self,
        history: History,
        plan: SearchPlan,
        known_states: KnownStates | None = None,
        run: str = "",
        *,
        used_seconds: float = WAITS.used_seconds,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.tally = Tally()
        self._clock = clock
        self._used_seconds = used_seconds
        self._run = run
        self._failed: set[int] = set()
        self._history = history
        self._database, self._study_id = history.database, history.study_id
        self._plan = plan
        self._known_states = known_states
        self._batch = Batch()
        self.holds_decisions = False
        """Whether a decision is gathered that must be durable before it is carried out."""
        self.is_broken = False
        """Whether a write failed, so that no event is written any more."""
        self._is_fenced = False
        self._stages: dict[str, StageRow] = {}
        self._ended: dict[str, StageRow] = {}  # those whose last state may not be durable yet
        self._trials: dict[int, TrialRow] = {}
        self._lasting: dict[int, str] = {}  # by trial: the end of its document as text
        self._used: set[str] = set()
        self._used_written = time.monotonic()

    def outcome(self, outcome: Outcome) -> None:
        """Add the engine's events and the trials that changed."""
        for record in outcome.records:
            self._add_event(document_of(record))
            self.holds_decisions |= bool(record.decisions)
        self._take(outcome.trials)
        self._log_failed(outcome.trials)

    def add(self, trials: Iterable[TrialRecord]) -> None:
        """Write trials that were added with their results; an event of the log fences them."""
        added = list(trials)
        numbers = [trial.number for trial in added]
        payload = {"kind": "added", "place": ADDED, "trials": numbers, "decisions": []}
        self._add_event(payload)
        self._take(added)
        self.flush()

    def metrics(
        self,
        node: Node,
        reports: Iterable[tuple[Step, str, Metrics]],
        paces: Mapping[Step, float] | None = None,
        kind: str = "",
    ) -> None:
        """Add metrics at or above a node that are final now, as (step, key, metrics).

        `paces` are the seconds per step up to those of `reports` for which they are known, on
        workers of a compute class, `kind`.
        """
        root, paces = self._plan.root_key_of(node), paces or {}
        self._batch.metrics.extend(
            MetricRow(
                key=key,
                root=root,
                step=step,
                values=metrics,
                seconds=paces.get(step),
                kind=kind or None,
            )
            for step, key, metrics in reports
        )

    def checkpoint(
        self,
        node: Node,
        commit: Commit,
        *,
        hold_up: float | None = None,
        latency: float | None = None,
    ) -> None:
        """Add a commit at or above a node that this run has made.

        Training waited for `hold_up` seconds; after `latency` seconds the state was durable.
        """
        self.tally.nbytes += commit.nbytes
        self._add_checkpoint(node, commit, hold_up, latency)

    def _add_checkpoint(
        self,
        node: Node,
        commit: Commit,
        hold_up: float | None = None,
        latency: float | None = None,
    ) -> None:
        self._batch.checkpoints.append(
            CheckpointRow(
                key=commit.key,
                root=self._plan.root_key_of(node),
                step=commit.step,
                attempt=commit.attempt,
                digest=commit.digest,
                nbytes=commit.nbytes,
                seconds=commit.seconds,
                created=self._clock(),
                study_id=self._study_id,
                hold_up=hold_up,
                latency=latency,
            )
        )

    def found(self, node: Node, commit: Commit) -> None:
        """Add a commit of another driver at or above a node, with the metrics in it."""
        reports = [(step, node.key_at(step), metrics) for step, metrics in commit.reports]
        self.metrics(node, reports)
        self._add_checkpoint(node, commit)

    def forget(self, key: str) -> None:
        """Forget a checkpoint that is not in the store."""
        self._database.forget_checkpoints([key])

    def launched(self, order: RunStage, key: str, kind: str = "") -> None:
        """Add an attempt that was sent to a worker of a class, and the state it starts from."""
        if order.start and order.after is None:
            self._used.add(order.node.key_at(order.start))
        self._stages[order.attempt] = StageRow(
            study_id=self._study_id,
            attempt=order.attempt,
            key=key,
            start=order.start,
            stop=order.stop,
            worker=order.worker,
            status="queued",
            started=0.0,
            ended=None,
            steps=0,
            repeated=0,
            run=self._run,
            trials=trials_of(order.node),
            kind=kind,
            workers=len(order.workers),
        )

    def started(self, attempt: str, at: float) -> None:
        """Record the wall-clock time (epoch seconds) at which an attempt began.

        The row is written now, so that others see it while it runs, and after a driver died.
        """
        row = self._stages.get(attempt)
        if row is not None:
            row = self._stages[attempt] = replace(row, started=at, status="running")
            self._batch.stages.append(row)

    def held(self, attempt: str, seconds: float) -> None:
        """Record the seconds until an attempt had its trainer."""
        row = self._stages.get(attempt)
        if row is not None:
            self._stages[attempt] = replace(row, start_seconds=seconds)

    def worker_seconds(self, attempt: str, at: float) -> float:
        """Return the time of its workers that an attempt has used at a time (epoch seconds)."""
        row = self._stages.get(attempt)
        return 0.0 if row is None else max(0.0, replace(row, ended=at).worker_seconds)

    def saved(self, attempt: str, step: Step) -> None:
        """Record that a running attempt has a durable state: its steps are not lost."""
        row = self._stages.get(attempt)
        if row is not None and row.start < step < row.stop:
            self._batch.stages.append(replace(row, steps=step - row.start))

    def suspended(self, attempt: str, seconds: float, nbytes: int | None) -> None:
        """Record how long it took to put an attempt's state aside, and its bytes."""
        for rows in (self._stages, self._ended):
            if attempt in rows:
                rows[attempt] = replace(
                    rows[attempt],
                    suspend_seconds=seconds,
                    snapshot_bytes=nbytes,
                )
        if attempt in self._ended:  # else it is written with its end
            self._batch.stages.append(self._ended[attempt])

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
        """Record an attempt's end, and why it failed; the row is written now."""
        seconds = self.worker_seconds(attempt, at)
        row = self._stages.pop(attempt, None)
        if row is not None:
            self.tally.stages[status] += 1
            self.tally.worker_seconds += seconds
            steps, message = max(0, step - row.start), redacted(message) if message else ""
            row = replace(row, ended=at, status=status, steps=steps, repeated=repeated)
            row = replace(row, message=message) if message else row
            self._ended[attempt] = row
            self._batch.stages.append(row)

    def printed(self, attempt: str, text: str) -> None:
        """Record the log of an attempt so far; it replaces an earlier one."""
        row = LogRow(study_id=self._study_id, attempt=attempt, text=redacted(text))
        self._batch.logs.append(row)

    def settled(self, attempt: str) -> None:
        """Record that an ended attempt has all its states in the store, or needs none."""
        self._ended.pop(attempt, None)

    def unsaved(self, attempt: str, step: Step) -> None:
        """Record that no state of an attempt after `step` will come to the store.

        As after a kill, such steps do not count: the next run trains them.
        """
        row = self._ended.pop(attempt, None)
        if row is not None:
            steps = max(0, min(row.steps, step - row.start))
            repeated = min(row.repeated, steps)
            self._batch.stages.append(replace(row, status="lost", steps=steps, repeated=repeated))

    def flush(self) -> None:
        """Write all rows that were gathered; after this they are durable.

        If that fails (a `StorageError`) or is interrupted, no event is written any more: a study
        can be continued after the end of its log, but not after a gap in it. A driver that was
        fenced still writes which of its stages have ended: their steps were trained, for the driver
        that follows as well.
        """
        self._write_used()
        if self._known_states is not None:
            for node, commit in self._known_states.take_found():
                self.found(node, commit)
        batch = self._batch
        batch.trials = list(self._trials.values())
        rows = (batch.events, batch.trials, batch.metrics, batch.checkpoints, batch.stages)
        parts = (*rows, batch.logs)
        if self._is_fenced:
            self._write_ended()
        if self.is_broken or not any(parts):
            return
        self.is_broken = True
        try:
            self._database.write(batch)
        except FencedError:
            self._is_fenced = True
            self._write_ended()
            raise
        self.is_broken = False
        self._batch, self._trials = Batch(), {}
        self.holds_decisions = False
        for row in batch.events:
            self._history.remember(row)

    def _write_ended(self) -> None:
        """Write the stages that have ended, if that is possible, and nothing else."""
        ended = [row for row in self._batch.stages if row.ended is not None]
        self._batch.stages.clear()
        if not ended:
            return
        try:
            self._database.write(Batch(stages=ended))
        except StorageError as error:
            logger.warning("the last stages of this driver cannot be written: %s", error)

    def _write_used(self) -> None:
        """Write now and then which states were begun from: states in use are not evicted."""
        now = time.monotonic()
        is_due = now - self._used_written >= self._used_seconds
        if self._used and not self.is_broken and is_due:
            self._used_written = now
            used, self._used = self._used, set()
            self._database.touch_checkpoints(used, self._clock())

    def _log_failed(self, trials: Iterable[TrialRecord]) -> None:
        """Log which trials have failed, and why; many at once in one line."""
        groups: dict[str, list[int]] = {}
        places: dict[str, str] = {}
        for trial in trials:
            if trial.state is TrialState.FAIL and trial.number not in self._failed:
                self._failed.add(trial.number)
                groups.setdefault(trial.message, []).append(trial.number)
                places.setdefault(trial.message, user_line(trial.traceback))
        for message, numbers in groups.items():
            named, more = numbers[:MOST_TRIALS], len(numbers) - MOST_TRIALS
            who = trials_text(named) + (f" and {more:,} more" if more > 0 else "")
            place = f" ({places[message]})" if places[message] else ""
            logger.warning("%s failed: %s%s", who, message, place, extra=about(trials=named))

    def _add_event(self, payload: dict[str, Any]) -> None:
        number = self._history.next_number + len(self._batch.events)
        row = EventRow(study_id=self._study_id, number=number, payload=payload)
        self._batch.events.append(row)

    def _take(self, trials: Iterable[TrialRecord]) -> None:
        """Add trials as they are now; of each, only the last state is written."""
        for trial in trials:
            self._trials[trial.number] = TrialRow(
                study_id=self._study_id,
                number=trial.number,
                state=trial.state.value,
                steps=trial.reached,
                value=trial.value,
                record=self._document(trial),
                until=trial.until,
            )

    def _document(self, trial: TrialRecord) -> Encoded:
        """Return a trial's document as text; most of it is the same with every report."""
        lasting = self._lasting.get(trial.number)
        if lasting is None:
            lasting = self._lasting[trial.number] = to_text(trial.lasting_json())[1:]
        if trial.state.is_finished:
            del self._lasting[trial.number]
        return Encoded(f"{to_text(trial.changing_json())[:-1]},{lasting}")

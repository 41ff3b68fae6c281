"""The heartbeat of a run: its status, every few seconds, for people who look from elsewhere.

It goes to the database, for ``dasktune status``, and to the scheduler, for Prometheus. No decision
rests on it: if it cannot be written, the driver logs that, and the run goes on. The same holds of
the measurements, which are kept with it for later runs. With each heartbeat the driver also
reads whether somebody asked it to stop.
"""

from __future__ import annotations

import logging
import os
import socket
import time
import traceback
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Protocol

from distributed import Client

import dasktune
from dasktune._cluster.pools import PoolStatus, elastic_of
from dasktune._cluster.workers import paused_workers
from dasktune._driver import prometheus
from dasktune._driver.audit_notes import AuditDifferenceError
from dasktune._driver.history import History
from dasktune._driver.parts import Following, Part, StopRequested
from dasktune._driver.recorder import Recorder
from dasktune._driver.run_status import RunCounts, RunStatus, Wait
from dasktune._driver.speed_keeper import SpeedKeeper
from dasktune._driver.stop_notes import StopNotes
from dasktune._driver.waiting import Delays, Surroundings, in_words, waits_of
from dasktune._engine.engine import Engine
from dasktune._engine.timeouts import WAITS, Waits
from dasktune._engine.trials import best_of
from dasktune.errors import StorageError
from dasktune.logs import about, within
from dasktune.needs import Offer
from dasktune.storage.database.database import Database
from dasktune.storage.database.rows import RunRow
from dasktune.storage.redaction import redacted

logger = logging.getLogger(__name__)

RATE_SECONDS = 120.0
"""Span over which the speed is measured that gives the time left."""


class OtherDrivers(Protocol):
    """A view of the stages that other drivers train; see `dasktune._driver.shared_stages`."""

    def holders(self) -> list[str]:
        """Return the driver of each stage that another one trains."""

    def unanswered(self) -> float | None:
        """Return the age in seconds of the oldest lease request without answer, or None."""


class NoHeartbeat(Part):
    """Writes no run status."""

    sharing: OtherDrivers | None = None

    def use(self, client: Client) -> None:
        """Do nothing."""


class Heartbeat(Part):
    """Writes the status of a run from its beginning to its end: a context in which it runs.

    A `keeper` keeps what the run measures.
    """

    def __init__(
        self,
        database: Database,
        *,
        study_id: int,
        study: str,
        run: str,
        engine: Engine,
        recorder: Recorder,
        client: Client,
        waits: Waits = WAITS,
        keeper: SpeedKeeper | None = None,
    ) -> None:
        self.ending = "ended", ""
        """The end of a run that raises no exception: ``ended``, ``limit`` or ``interrupted``, and
        the reason in words."""
        self.sharing: OtherDrivers | None = None
        """The stages that other drivers train; None if nothing is shared, or not yet."""
        self._database = database
        self._keeper = keeper
        self._waits = waits
        self._study = study
        self._engine = engine
        self._recorder = recorder
        self._client = client
        self._elastic = elastic_of(client)
        self._within = within(study)
        now = time.time()
        self._stop_notes = StopNotes(History(database, study_id), run)
        self._row = RunRow(
            run=run,
            study_id=study_id,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=dasktune.__version__,
            began=now,
            seen=now,
        )
        self._due = 0.0
        self._is_served = False
        self._is_broken = False
        self._has_unmet = False
        self._steps_before = engine.view.steps_executed
        self._repeated_before = engine.view.steps_repeated
        self._deserted: float | None = now
        self._gone_since: float | None = None
        self._delays = Delays()
        self._speeds: deque[tuple[float, int]] = deque()
        self._status = RunStatus(seen=now)
        self._classes: Mapping[str, int] = {}
        """The number of workers by compute class, when there were most."""

    def __enter__(self) -> Heartbeat:
        self._within.__enter__()
        logger.info("run %s of study %s began", self._row.run, self._study, extra=self._about())
        self._is_served = prometheus.serve(self._client)
        self._write(self._row)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._end(error)
        finally:
            self._within.__exit__(kind, error, trace)

    def _end(self, error: BaseException | None) -> None:
        """Write how the run has ended."""
        how, message = _ending_of(error) or self.ending
        logger.info(  # an error is raised as well, and shown once
            "run %s of study %s ended (%s)",
            *(self._row.run, self._study, f"{how}: {message}" if message else how),
            extra=self._about(),
        )
        now = time.time()
        last = RunStatus(
            seen=now,
            workers=self._status.workers,
            classes=self._classes,
            pools=self._status.pools,
            counts=self._counts(),
            models=tuple(self._engine.model_weights),
            packing=tuple(self._engine.view.packed),
        )
        row = replace(self._row, ended=now, how=how, message=message)
        self._write(last.to_row(row))
        if self._keeper is not None and not self._is_broken:
            self._keeper.keep(self._engine.view.kept)
        self._send(last, is_last=True)

    def use(self, client: Client) -> None:
        """Send through a client, which is a new one after the scheduler was lost."""
        if client is self._client:
            return
        self._client = client
        self._is_served = prometheus.serve(client)

    def turn(self, now: float) -> list[Following]:
        """Write the status, if it is time to; return the request to stop since the last time."""
        began, view = time.monotonic(), self._engine.view
        if len(view.slots) > sum(self._classes.values()):
            if not self._classes:
                # While the run waited for its workers, a status without any was written.
                self._due = began
            self._classes = view.classes
        if began < self._due:
            return []
        self._status = self._look(self.sharing)
        self._write(self._status.to_row(self._row))
        self._send(self._status)
        if self._keeper is not None and not self._is_broken and self._keeper.is_due:
            self._keeper.keep(view.kept)
        took, waits = time.monotonic() - began, self._waits
        pause = max(waits.heartbeat_seconds, took / waits.heartbeat_share)
        self._due = time.monotonic() + pause
        by = "" if self._is_broken else self._stop_notes.read()
        return [StopRequested(by=by)] if by else []

    def _write(self, row: RunRow) -> None:
        self._row = row
        try:
            self._database.write_run(row)
            self._is_broken = False
        except StorageError as error:
            if not self._is_broken:
                logger.warning("how the run stands cannot be written: %s", error)
            self._is_broken = True

    # -------------------------------------------------------------------------- looking

    def _look(self, sharing: OtherDrivers | None) -> RunStatus:
        """Return the status of the run now."""
        view, now = self._engine.view, time.time()
        waits = tuple(waits_of(view, self._surroundings(sharing, now)))
        self._warn_of_needs(waits)
        aside = {each.worker for each in view.aside}
        unused = {*aside, *view.withheld, *view.paused}
        return RunStatus(
            seen=now,
            seconds_left=self._seconds_left(now),
            waits=waits,
            workers={
                "usable": len(view.slots) - len(unused),
                "aside": len(aside),
                "busy": view.busy_workers,
                "stages_waiting": view.stages_waiting,
            },
            classes=view.classes,
            pools=self._pools(),
            positions={
                attempt.id: attempt.position
                for attempt in view.attempts.values()
                if attempt.begun and not attempt.ended
            },
            counts=self._counts(),
            models=tuple(self._engine.model_weights),
            packing=tuple(self._engine.view.packed),
        )

    def _warn_of_needs(self, waits: Iterable[Wait]) -> None:
        """Log that no worker meets the needs of stages, once until workers meet them again."""
        unmet = [wait.text for wait in waits if wait.kind == "resources"]
        if unmet and not self._has_unmet:
            logger.warning("stages wait: %s", "; ".join(unmet), extra=self._about())
        self._has_unmet = bool(unmet)

    def _counts(self) -> RunCounts:
        view, tally = self._engine.view, self._recorder.tally
        trials, objective = self._engine.trials.values(), self._engine.objective
        best = best_of(trials, objective.directions[0]) if len(objective.metrics) == 1 else None
        return RunCounts(
            steps=view.steps_executed - self._steps_before,
            repeated=view.steps_repeated - self._repeated_before,
            stages=tally.stages,
            nbytes=tally.nbytes,
            worker_seconds=tally.worker_seconds,
            trials=Counter(trial.state.value for trial in trials),
            best=None if best is None else best.value,
        )

    def _surroundings(self, sharing: OtherDrivers | None, now: float) -> Surroundings:
        view = self._engine.view
        present: Mapping[str, Offer] = {}
        paused: Collection[str] = ()
        if view.slots:
            self._deserted = None
        else:
            self._deserted = self._deserted or now
            present, paused = self._present()
        self._delays = self._delays.at(view, now)
        is_gone = self._client.status != "running"
        self._gone_since = (self._gone_since or now) if is_gone else None
        asked = None if sharing is None else sharing.unanswered()
        return Surroundings(
            now=now,
            needs=view.needs,
            present=present,
            paused=paused,
            pool=None if self._elastic is None or view.slots else self._elastic.waiting(),
            pools=self._pools(),
            deserted=self._deserted,
            others={} if sharing is None else in_words(sharing.holders()),
            unanswered=None if asked is None else now - asked,
            disconnected=self._gone_since,
            unbegun=self._delays.unbegun,
            unsaved=self._delays.unsaved,
        )

    def _pools(self) -> tuple[PoolStatus, ...]:
        """Return the pools of a cluster that starts its workers itself."""
        return () if self._elastic is None else tuple(p.status for p in self._elastic.pools())

    def _present(self) -> tuple[dict[str, Offer], list[str]]:
        """Return the offers of all workers that Dask has, and the addresses of paused ones.

        The run has no slot while this is called. So each of these workers misses something: a
        resource, a tag, an answer to the greeting, or it is paused.
        """
        if self._client.status != "running":
            return {}, []
        try:
            workers = self._client.scheduler_info(n_workers=-1)["workers"]
        except (OSError, ValueError):
            return {}, []  # the run itself notices that the scheduler is gone
        known = self._engine.view.offers
        present = {
            address: known.get(address) or Offer.of(has.get("resources") or {})
            for address, has in workers.items()
        }
        return present, [*paused_workers(workers)]

    def _seconds_left(self, now: float) -> float | None:
        """Return an estimate of the time for all requests, at the speed of the last minutes."""
        view, speeds = self._engine.view, self._speeds
        speeds.append((now, view.steps_executed + view.steps_unsaved))
        while len(speeds) > 2 and speeds[1][0] < now - RATE_SECONDS:
            speeds.popleft()
        (since, before), (_, steps) = speeds[0], speeds[-1]
        if now - since < self._waits.heartbeat_seconds or steps <= before:
            return None
        return view.steps_left * (now - since) / (steps - before)

    def _send(self, status: RunStatus, *, is_last: bool = False) -> None:
        """Send the figures for Prometheus to the scheduler."""
        if self._is_served:
            message = {"study": self._study, "run": self._row.run, "figures": status.to_figures()}
            prometheus.send(self._client, {**message, "ended": is_last}, waits=is_last)

    def _about(self) -> dict[str, object]:
        return about(run=self._row.run)


def _ending_of(error: BaseException | None) -> tuple[str, str] | None:
    """Return how an exception ended a run, and why; None for a run that ended in order."""
    if error is None:
        return None
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", ""
    if isinstance(error, AuditDifferenceError):
        return "interrupted", "an audit found a difference"
    return "failed", redacted(traceback.format_exception_only(error)[-1].strip())

"""Signs of life: what a driver says of its run, every few seconds, to who looks from elsewhere.

They go to the database, for ``dasktune status``, and to the scheduler, for Prometheus. Nothing
rests on them: one that cannot be written is said in the log, and the run goes on.
"""

from __future__ import annotations

import logging
import os
import socket
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Protocol

from distributed import Client

import dasktune
from dasktune.cluster.workers import pool_of
from dasktune.driver import prometheus
from dasktune.driver.recorder import Recorder
from dasktune.driver.waiting import Sight, Wait, in_words, waits_of
from dasktune.engine.engine import Engine
from dasktune.engine.trials import best_of
from dasktune.errors import StorageError
from dasktune.logs import about, within
from dasktune.storage.database.database import Database
from dasktune.storage.database.schema import RunRow
from dasktune.storage.redaction import redacted
from dasktune.types import Direction

logger = logging.getLogger(__name__)

SIGN_SECONDS = 5.0
"""Time between two signs of life."""

SHARE_OF_TIME = 0.02
"""Part of the loop's time that they may take; they come less often if they take longer."""

RATE_SECONDS = 120.0
"""How far back the speed that the estimate of the time left rests on is measured."""


class Waiting(Protocol):
    """What a run waits for from other drivers: `dasktune.driver.shared_stages.Sharing`."""

    def holders(self) -> list[str]:
        """Return the driver of each stage that another one trains."""

    def unanswered(self) -> float | None:
        """Return for how many seconds a lease has been asked for; None if none is."""


class Signs:
    """Says how a run stands, from its beginning to its end: a context in which it runs.

    Parameters
    ----------
    database
        Where to.
    study_id, study
        The study's number there, and its name.
    run
        Names the run.
    engine
        What is run.
    recorder
        Has counted what was done.
    client
        Of the run, connected.
    ending
        Says how a run came to its end that no exception has ended: ``ended``, ``limit`` or
        ``interrupted``, and what there is to say about it.
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
        ending: Callable[[], tuple[str, str]],
    ) -> None:
        self._database = database
        self._study = study
        self._engine = engine
        self._recorder = recorder
        self._client = client
        self._pool = pool_of(client)
        self._ending = ending
        self._within = within(study)
        now = time.time()
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
        self._steps_before = engine.view.steps_executed
        self._repeated_before = engine.view.steps_repeated
        self._deserted: float | None = now
        self._gone_since: float | None = None
        self._unbegun: dict[str, float] = {}
        self._unsaved: dict[str, float] = {}
        self._speeds: deque[tuple[float, int]] = deque()

    def __enter__(self) -> Signs:
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
        """Say how the run has ended."""
        how, message = _ending_of(error) or self._ending()
        logger.log(
            logging.WARNING if how == "failed" else logging.INFO,
            "run %s of study %s ended (%s)",
            *(self._row.run, self._study, f"{how}: {message}" if message else how),
            extra=self._about(),
        )
        now = time.time()
        row = replace(self._row, ended=now, seen=now, how=how, message=message)
        self._write(replace(row, waits=[], positions={}, seconds_left=None))
        self._say(is_last=True)

    def use(self, client: Client) -> None:
        """Speak through a client: another one than before if the scheduler had been lost."""
        if client is self._client:
            return
        self._client = client
        self._is_served = prometheus.serve(client)

    def turn(self, sharing: Waiting | None = None) -> None:
        """Give a sign, if it is time to.

        Parameters
        ----------
        sharing
            Knows which stages other drivers train; None if nothing is shared, or not yet.
        """
        began = time.monotonic()
        if began < self._due:
            return
        self._write(self._seen(sharing))
        self._say()
        took = time.monotonic() - began
        self._due = time.monotonic() + max(SIGN_SECONDS, took / SHARE_OF_TIME)

    def _write(self, row: RunRow) -> None:
        self._row = row
        try:
            self._database.write_run(row)
            self._is_broken = False
        except StorageError as error:
            if not self._is_broken:
                logger.warning("how the run stands cannot be written: %s", error)
            self._is_broken = True

    # ------------------------------------------------------------------- what is seen

    def _seen(self, sharing: Waiting | None) -> RunRow:
        """Return how the run stands now."""
        view, now = self._engine.view, time.time()
        waits = waits_of(view, self._sight(sharing, now))
        attempts = view.attempts.values()
        return replace(
            self._row,
            seen=now,
            seconds_left=self._seconds_left(now),
            waits=[_to_json(wait) for wait in waits],
            workers={
                "usable": len(view.slots),
                "busy": view.busy_workers,
                "stages_waiting": view.stages_waiting,
            },
            positions={one.id: one.position for one in attempts if one.begun and not one.ended},
        )

    def _sight(self, sharing: Waiting | None, now: float) -> Sight:
        view = self._engine.view
        present: Mapping[str, Mapping[str, float]] = {}
        if view.slots:
            self._deserted = None
        else:
            self._deserted = self._deserted or now
            present = self._present()
        self._remember(now)
        is_gone = self._client.status != "running"
        self._gone_since = (self._gone_since or now) if is_gone else None
        asked = None if sharing is None else sharing.unanswered()
        return Sight(
            now=now,
            needs=view.needs,
            present=present,
            pool=None if self._pool is None or view.slots else self._pool.waiting(),
            deserted=self._deserted,
            others={} if sharing is None else in_words(sharing.holders()),
            unanswered=None if asked is None else now - asked,
            disconnected=self._gone_since,
            unbegun=self._unbegun,
            unsaved=self._unsaved,
        )

    def _remember(self, now: float) -> None:
        """Take note since when attempts have not begun, or are not in the store."""
        view = self._engine.view
        first = {slot.queue[0].id for slot in view.slots.values() if slot.queue}
        attempts = view.attempts.values()
        waiting = [one.id for one in attempts if one.id in first and not one.has_begun]
        ended = [one.id for one in attempts if one.ended and not one.taken]
        self._unbegun = {one: self._unbegun.get(one, now) for one in waiting}
        self._unsaved = {one: self._unsaved.get(one, now) for one in ended}

    def _present(self) -> dict[str, Mapping[str, float]]:
        """Return the resources of the workers of the cluster: none of them can be used."""
        if self._client.status != "running":
            return {}
        try:
            workers = self._client.scheduler_info()["workers"]
        except (OSError, ValueError):
            return {}  # the run itself hears of it
        return {address: dict(one.get("resources") or {}) for address, one in workers.items()}

    def _seconds_left(self, now: float) -> float | None:
        """Return an estimate for what is asked for now, at the speed of the last while."""
        view, speeds = self._engine.view, self._speeds
        speeds.append((now, view.steps_executed + view.steps_unsaved))
        while len(speeds) > 2 and speeds[1][0] < now - RATE_SECONDS:
            speeds.popleft()
        (since, before), (_, steps) = speeds[0], speeds[-1]
        if now - since < SIGN_SECONDS or steps <= before:
            return None
        return view.steps_left * (now - since) / (steps - before)

    # ----------------------------------------------------------------- to the scheduler

    def _say(self, *, is_last: bool = False) -> None:
        if self._is_served:
            message = {"study": self._study, "run": self._row.run, "figures": self._figures()}
            prometheus.tell(self._client, {**message, "ended": is_last}, waits=is_last)

    def _figures(self) -> dict[str, Any]:
        """Return the figures that Prometheus is given."""
        view, tally = self._engine.view, self._recorder.tally
        workers = self._row.workers
        trials = self._engine.trials.values()
        found = {
            "steps": view.steps_executed - self._steps_before,
            "repeated": view.steps_repeated - self._repeated_before,
            "stages": dict(tally.stages),
            "failures": tally.stages["failed"],
            "bytes": tally.nbytes,
            "worker_seconds": tally.worker_seconds,
            "trials": Counter(trial.state.value for trial in trials),
            "slots": workers.get("usable", 0),
            "busy": workers.get("busy", 0),
            "waiting": workers.get("stages_waiting", 0),
        }
        objective = self._engine.objective
        direction: Direction = objective.directions[0]
        best = best_of(trials, direction) if len(objective.metrics) == 1 else None
        return found if best is None else {**found, "best": best.value}

    def _about(self) -> dict[str, object]:
        return about(run=self._row.run)


def _ending_of(error: BaseException | None) -> tuple[str, str] | None:
    """Return how an exception ended a run, and why; None if there was none."""
    if error is None:
        return None
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", ""
    return "failed", redacted(traceback.format_exception_only(error)[-1].strip())


def _to_json(wait: Wait) -> dict[str, object]:
    return {"kind": wait.kind, "text": redacted(wait.text), "since": wait.since}

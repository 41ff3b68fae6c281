"""The status of a run has its workers as soon as the first ones have joined."""

from __future__ import annotations

from contextlib import closing
from types import SimpleNamespace
from typing import Any, cast

from dasktune._driver.heartbeat import Heartbeat
from dasktune._driver.run_status import RunStatus
from dasktune._engine.engine import Engine
from dasktune._engine.timeouts import Waits
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.events import WorkerJoined
from dasktune.storage.database.database import Database
from dasktune.types import Objective

HOURS = Waits(heartbeat_seconds=36_000.0)
"""No second heartbeat is due while a test runs."""


def status_of(database: Database) -> RunStatus:
    row = database.last_run(1)
    assert row is not None
    return RunStatus.from_row(row)


def test_heartbeat_shows_the_first_workers_at_once() -> None:
    objective = Objective.single("loss", "minimize")
    engine = Engine(Dispatcher("root"), objective=objective, trials={})
    tally = SimpleNamespace(stages={}, nbytes=0, worker_seconds=0.0)
    with closing(Database("sqlite://")) as database:
        beats = Heartbeat(
            database,
            study_id=1,
            study="s",
            run="r",
            engine=engine,
            recorder=cast(Any, SimpleNamespace(tally=tally)),
            client=cast(Any, SimpleNamespace(status="closed", cluster=None)),
            waits=HOURS,
        )
        beats.turn(0.0)
        assert status_of(database).classes == {}
        for number, shown in enumerate((1, 1)):
            engine.handle(WorkerJoined(worker=f"w{number}"), 0.0)
            beats.turn(0.0)
            assert sum(status_of(database).classes.values()) == shown
            assert status_of(database).workers["usable"] == shown

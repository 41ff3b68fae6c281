"""Looking at a run takes a small share of the driver's loop, however large the run is."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dasktune._driver import heartbeat
from dasktune._driver.heartbeat import Heartbeat
from dasktune._engine.engine import Engine
from dasktune._engine.timeouts import Waits
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.view import RunView
from dasktune.storage.database.database import Database
from dasktune.types import Objective

TURN_SECONDS, LOOK_SECONDS, SHARE = 0.5, 4.0, 0.02


def test_looks_take_a_share_of_the_loop_only(monkeypatch: pytest.MonkeyPatch) -> None:
    now, looks = 0.0, 0

    def look(view: RunView) -> int:
        nonlocal now, looks
        now, looks = now + LOOK_SECONDS, looks + 1
        return 0

    clock = SimpleNamespace(monotonic=lambda: now, time=time.time)
    monkeypatch.setattr(heartbeat, "time", clock)
    monkeypatch.setattr(RunView, "busy_workers", property(look))
    objective = Objective.single("loss", "minimize")
    tally = SimpleNamespace(stages=0, nbytes=0, worker_seconds=0.0)
    database = Database("sqlite://")
    beats = Heartbeat(
        database,
        study_id=1,
        study="s",
        run="r",
        engine=Engine(Dispatcher("root"), objective=objective, trials={}),
        recorder=cast(Any, SimpleNamespace(tally=tally)),
        client=cast(Any, SimpleNamespace(status="closed", cluster=None)),
        waits=Waits(heartbeat_seconds=1.0, heartbeat_share=SHARE),
    )
    while now < 1000:
        beats.turn(0.0)
        now += TURN_SECONDS
    database.close()
    assert 3 <= looks <= SHARE * now / LOOK_SECONDS + 1

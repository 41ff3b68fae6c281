"""The recorder of a driver: what it writes after another driver has begun."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dasktune._driver.history import History
from dasktune._driver.recorder import Recorder
from dasktune._engine.outcome import Outcome
from dasktune._engine.tuner_records import Record, WorkAsked
from dasktune.errors import FencedError
from dasktune.graph.attempts import DispatchOptions
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.events import RunStage, WorkerJoined
from dasktune.graph.keys import root_key
from dasktune.sequences import Constant
from dasktune.storage.database.database import Batch, Database
from dasktune.storage.database.rows import CheckpointRow
from dasktune.types import Finish

ASKED = Record(cause=WorkAsked(capacity=1), place=0, decisions=(Finish(),))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(tmp_path / "x.db")
    yield opened
    opened.close()


def stages(count: int) -> tuple[Dispatcher, list[RunStage]]:
    """Return a dispatcher and the orders for stages of 9 steps that have nothing in common."""
    dispatcher = Dispatcher(root_key("recorder", 0), DispatchOptions(attempt_prefix="a"))
    orders = []
    for trial in range(count):
        dispatcher.register(trial, {"lr": Constant(float(trial))}, 9)
        dispatcher.extend(trial, 9, 0.0, 0.0)
    for trial in range(count):
        orders += dispatcher.handle(WorkerJoined(worker=f"w{trial}"), 0.0)
    return dispatcher, [order for order in orders if isinstance(order, RunStage)]


def test_fenced_recorder_still_writes_which_stages_ended(database: Database) -> None:
    dispatcher, (first, second, third) = stages(3)
    history, later = History(database, 1), History(database, 1)
    recorder = Recorder(history, dispatcher.plan, run="fenced")
    assert history.begin("fenced", 0)
    later.read_on()
    assert later.begin("later", 0)
    for order in (first, second, third):
        recorder.launched(order, order.node.key_at(order.stop))
        recorder.started(order.attempt, 100.0)
    recorder.ended(first.attempt, 101.0, status="trained", step=9, repeated=0)
    recorder.outcome(Outcome((), (ASKED,), ()))
    with pytest.raises(FencedError, match="another process is running this study"):
        recorder.flush()
    assert {row.attempt: row.steps for row in database.stages(1)} == {first.attempt: 9}
    recorder.ended(second.attempt, 102.0, status="stopped", step=4, repeated=1)
    recorder.outcome(Outcome((), (ASKED,), ()))
    recorder.flush()
    written = {row.attempt: (row.steps, row.repeated, row.run) for row in database.stages(1)}
    assert written == {first.attempt: (9, 0, "fenced"), second.attempt: (4, 1, "fenced")}
    kinds = [row.payload["kind"] for row in database.events(1)]
    assert kinds == ["begun", "begun"], "no event of the fenced driver"


def test_stage_of_several_workers_counts_the_time_of_each(database: Database) -> None:
    dispatcher, (order,) = stages(1)
    order = replace(order, lenders=("w1", "w2"))
    recorder = Recorder(History(database, 1), dispatcher.plan, run="r")
    recorder.launched(order, order.node.key_at(order.stop))
    assert recorder.worker_seconds(order.attempt, 102.0) == 0.0
    recorder.started(order.attempt, 100.0)
    assert recorder.worker_seconds(order.attempt, 102.0) == 6.0
    recorder.ended(order.attempt, 104.0, status="trained", step=9, repeated=0)
    assert recorder.tally.worker_seconds == 12.0
    recorder.flush()
    assert [(row.workers, row.worker_seconds) for row in database.stages(1)] == [(3, 12.0)]


@pytest.mark.parametrize(("used_seconds", "is_written"), [(0.0, True), (3600.0, False)])
def test_state_that_a_stage_loads_counts_as_used(
    database: Database, used_seconds: float, is_written: bool
) -> None:
    dispatcher, orders = stages(3)
    loads, continues, begins = (
        replace(orders[0], start=3),
        replace(orders[1], start=3, after=orders[0].attempt),
        orders[2],
    )
    rows = [
        CheckpointRow(
            key=order.node.key_at(3),
            root="r",
            step=3,
            attempt="1-aa",
            digest="d",
            nbytes=1,
            seconds=1,
        )
        for order in orders
    ]
    database.write(Batch(checkpoints=rows))
    recorder = Recorder(History(database, 1), dispatcher.plan, run="r", used_seconds=used_seconds)
    for order in (loads, continues, begins):
        recorder.launched(order, order.node.key_at(order.stop))
    recorder.flush()
    used = {row.key for row in database.storage_rows() if row.used > 0}
    loaded = {loads.node.key_at(3)}
    assert used == (loaded if is_written else set()), "not what a worker holds in memory"

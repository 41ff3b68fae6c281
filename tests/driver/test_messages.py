"""Messages to workers: a run that ends leaves none behind."""

from __future__ import annotations

import logging
import queue
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster

from dasktune._driver.connection import Connection
from dasktune._driver.predictions import Predictions
from dasktune._engine.outcome import RunPrediction
from dasktune._engine.timeouts import Timeouts
from dasktune._worker.job import JobPlan
from dasktune.algos.curves import Curve, Persistence, Prediction, Question
from dasktune.needs import NO_NEEDS
from dasktune.trainer.code import pack
from dasktune.types import Step
from tests.driver import driver_process as driver
from tests.holding import Gate, pass_gate

pytestmark = pytest.mark.cluster


@dataclass(frozen=True)
class Held:
    """Writes that it was asked, and passes a gate before it predicts."""

    folder: str

    def predict(self, curve: Curve, steps: tuple[Step, ...], *, seed: int = 0) -> Prediction:
        folder = Path(self.folder)
        (folder / f"asked {seed}").touch()
        pass_gate(folder / "gate")
        return Persistence().predict(curve, steps, seed=seed)

    def identity(self) -> dict[str, object]:
        return {"predictor": "Held"}


@pytest.fixture
def warnings() -> Iterator[list[str]]:
    """Return the warnings of Dask, but for those about garbage collection."""
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.name != "distributed.gc":
                lines.append(record.getMessage())

    handler, log = Lines(logging.WARNING), logging.getLogger("distributed")
    log.addHandler(handler)
    yield lines
    log.removeHandler(handler)


def ask(connection: Connection, folder: Path, count: int) -> None:
    """Ask the only worker so many questions, of which each passes the gate."""
    curve = Curve(steps=(1, 2), scores=(0.1, 0.2), max_steps=10)
    predictions = Predictions()
    (worker,) = connection.client.scheduler_info(n_workers=-1)["workers"]
    for number in range(count):
        question = Question(predictor=Held(str(folder)), curve=curve, steps=(5,), seed=number)
        predictions.add(RunPrediction(trial=number, question=question))
    for asked in predictions.due([worker], now=0.0):
        connection.messages.predict(asked.worker, asked.number, asked.question)


def test_a_run_that_ends_with_open_questions_leaves_none_behind(
    tmp_path: Path, warnings: list[str]
) -> None:
    plan = JobPlan(
        run="slow-1",
        code=pack(driver.Follow),
        config={},
        seed=0,
        store=str(tmp_path),
        report_every=1,
        needs=NO_NEEDS,
    )
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    cluster = LocalCluster(
        processes=False,
        n_workers=1,
        threads_per_worker=1,
        host="127.0.0.1",
        protocol="tcp://",
        dashboard_address="127.0.0.1:0",
    )
    with Gate(tmp_path / "gate"), cluster, Client(cluster) as client:
        connection = Connection(client, plan, inbox.put, Timeouts())
        for _ in connection.open():
            pass  # the worker is waited for
        ask(connection, tmp_path, 30)
        connection.close()
    assert warnings == []
    assert len(list(tmp_path.glob("asked *"))) <= 1, "one at a time, and none after the end"
    assert inbox.empty()

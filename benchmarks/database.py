"""The cost of the database: writing reports next to its database driver alone."""

from __future__ import annotations

import gc
import sqlite3
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import sqlalchemy as sa
from figures import Figure, main

from dasktune._driver.history import History
from dasktune._driver.recorder import Recorder
from dasktune._engine.outcome import Outcome
from dasktune._engine.trials import TrialRecord
from dasktune._engine.tuner_records import Record, ReportTold
from dasktune.graph.plan import Node, SearchPlan
from dasktune.space import Float, Int, Space
from dasktune.storage.database.database import Batch, Database
from dasktune.storage.database.insertions import insertions
from dasktune.types import Extend, TrialState

REPORTS, SHORT_REPORTS = 10_000, 200
TOGETHER = (1, 10, 100)
"""Reports in one transaction."""

ROUNDS, SHORT_ROUNDS = 5, 1
MOST = 1 / 0.3
"""Time to write next to that of the driver alone: at least 0.3 of its speed."""

TRIALS = 100
SPACE = Space(
    lr=Float(1e-4, 1.0, log=True),
    momentum=Float(0.0, 1.0),
    batch=Int(16, 256),
    kind=["sgd", "adam"],
)
TABLES = ("events", "trials", "metrics")


def measure(short: bool, postgresql: Path | None = None) -> list[Figure]:
    """Measure on SQLite, and on the PostgreSQL server whose URL is in a file."""
    with tempfile.TemporaryDirectory() as folder:
        figures = _of_server(f"sqlite:///{folder}/x.db", "SQLite", short)
    if postgresql is not None:
        figures += _of_server(postgresql.read_text().strip(), "PostgreSQL", short)
    return figures


def _of_server(url: str, name: str, short: bool) -> list[Figure]:
    """Return how fast reports are written, next to the driver's ``executemany``."""
    reports = SHORT_REPORTS if short else REPORTS
    figures = []
    for together in TOGETHER:
        batches = _outcomes(reports, together)
        rows = _rows_of(url, batches)
        ours, raw = [], []
        for _ in range(SHORT_ROUNDS if short else ROUNDS):
            ours.append(_write(url, batches))
            raw.append(_write_raw(url, rows))
        ratios = [own / plain for own, plain in zip(ours, raw, strict=True)]
        value, each = median(ratios), ", ".join(f"{ratio:.2f}" for ratio in ratios)
        note = (
            f"{reports / min(ours):,.0f} reports per second, {reports / min(raw):,.0f} by the "
            f"driver alone; each {each}"
        )
        figures.append(
            Figure(
                name=f"time to write reports over the driver's, {name}, {together} together",
                value=value,
                unit="x",
                at_most=MOST,
                note=note,
            )
        )
    return figures


def _outcomes(reports: int, together: int) -> list[list[tuple[Outcome, str]]]:
    """Return an engine's outcomes of reports by transaction, with their state keys."""
    trials = [_trial(number, reports) for number in range(TRIALS)]
    transactions: list[list[tuple[Outcome, str]]] = []
    for number in range(reports):
        if number % together == 0:
            transactions.append([])
        trial, step = trials[number % len(trials)], number // len(trials) + 1
        cause = ReportTold(trial=trial.local, step=step, metrics={"loss": 1 / (number + 1)})
        extend = Extend(trial=trial.local, until=step + 1)
        record = Record(cause=cause, place=0, decisions=(extend,))
        transactions[-1].append((Outcome((), (record,), (trial,)), f"{number:064x}"))
    return transactions


def _record(database: Database, batches: list[list[tuple[Outcome, str]]]) -> None:
    """Write what an engine says, as a runner does."""
    plan = SearchPlan("r" * 64)
    recorder = Recorder(History(database, 1), plan)
    node = plan.register(0, {}, 1)
    for batch in batches:
        for outcome, key in batch:
            _tell(recorder, node, outcome, key)
        recorder.flush()


def _tell(recorder: Recorder, node: Node, outcome: Outcome, key: str) -> None:
    cause, trial = outcome.records[0].cause, outcome.trials[0]
    if not isinstance(cause, ReportTold):
        raise TypeError(f"each record must be a report, got {cause}")
    trial.steps, trial.values = cause.step, (cause.metrics["loss"],)
    recorder.outcome(outcome)
    recorder.metrics(node, [(cause.step, key, cause.metrics)])


def _write(url: str, batches: list[list[tuple[Outcome, str]]]) -> float:
    database = _emptied(url)
    gc.collect()
    began = time.perf_counter()
    _record(database, batches)
    took = time.perf_counter() - began
    database.close()
    return took


class _Noting(Database):
    """Keeps what it is given, and writes nothing."""

    batches: list[Batch]

    def write(self, batch: Batch) -> None:
        self.batches.append(batch)


def _rows_of(url: str, batches: list[list[tuple[Outcome, str]]]) -> list[list[tuple[str, Any]]]:
    """Return statements and rows of each transaction, as `Database.write` would give them."""
    database = _Noting("sqlite://")
    database.batches = []
    _record(database, batches)
    database.close()
    made = insertions(sa.make_url(url).get_backend_name())

    def rows(batch: Batch, name: str) -> tuple[str, Any]:
        return made[name].sql, made[name].values(getattr(batch, name))

    return [[rows(batch, name) for name in TABLES] for batch in database.batches]


def _write_raw(url: str, batches: list[list[tuple[str, Any]]]) -> float:
    """Write the same rows with the driver alone: same statements, transactions, durability."""
    _emptied(url).close()
    with closing(_driver(url)) as connection:
        gc.collect()
        began = time.perf_counter()
        for batch in batches:
            cursor = connection.cursor()
            for sql, rows in batch:
                cursor.executemany(sql, rows)
            connection.commit()
        return time.perf_counter() - began


def _driver(url: str) -> Any:
    address = sa.make_url(url)
    if address.get_backend_name() == "sqlite":
        connection = sqlite3.connect(str(address.database))
        connection.execute("PRAGMA synchronous=NORMAL")
        return connection
    import psycopg

    return psycopg.connect(
        address.set(drivername="postgresql").render_as_string(hide_password=False)
    )


def _emptied(url: str) -> Database:
    database = Database(url)
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for name in TABLES:
            connection.exec_driver_sql(f"DELETE FROM dasktune_{name}")
    engine.dispose()
    return database


def _trial(number: int, steps: int) -> TrialRecord:
    configuration = SPACE.sample(np.random.default_rng(number))
    return TrialRecord(
        number=number,
        tuner=0,
        local=number,
        params=configuration.params,
        sequences=configuration.sequences,
        max_steps=steps,
        state=TrialState.RUNNING,
        until=steps,
        point=configuration.point,
        domains=configuration.domains,
    )


if __name__ == "__main__":
    postgresql = {"type": Path, "help": "a file with the URL of an empty database"}
    sys.exit(main("database", measure, postgresql=postgresql))

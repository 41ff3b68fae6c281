"""The cost of the database: writing reports, opening a study, and reading its status."""

from __future__ import annotations

import gc
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa
from figures import Figure, main

import dasktune as dt
from dasktune.cli.status import read
from dasktune.driver.history import History
from dasktune.driver.recorder import Recorder
from dasktune.engine.outcome import Outcome
from dasktune.engine.trials import TrialRecord
from dasktune.graph.plan import Node, SearchPlan
from dasktune.space import Float, Int, Space
from dasktune.storage.database.database import Batch, Database
from dasktune.storage.database.insertions import insertions
from dasktune.storage.database.schema import EventRow, MetricRow, StageRow, TrialRow
from dasktune.types import TrialState

REPORTS, SHORT_REPORTS = 10_000, 200
TOGETHER = (1, 10, 100)
"""Reports in one transaction."""

ROUNDS, SHORT_ROUNDS = 5, 1
MOST = 1 / 0.3
"""Time to write next to that of the driver alone: at least 0.3 of its speed."""

TRIALS, SHORT_TRIALS = 1_000, 20
FEW, MANY = 10, 1_000
"""Reports of each trial."""

TURNS, SHORT_TURNS = 9, 3
GROWTH = 3.0
STATUS_SECONDS = 1.0
SPACE = Space(
    lr=Float(1e-4, 1.0, log=True),
    momentum=Float(0.0, 1.0),
    batch=Int(16, 256),
    kind=["sgd", "adam"],
)
TABLES = ("events", "trials", "metrics")


def measure(short: bool, postgresql: Path | None = None) -> list[Figure]:
    """Measure on SQLite, and on PostgreSQL where its programs or a URL are at hand."""
    with tempfile.TemporaryDirectory() as folder:
        figures = _of_server(f"sqlite:///{folder}/x.db", "SQLite", short)
        figures += _of_sizes(f"sqlite:///{folder}", "SQLite", short)
    with _postgresql(postgresql) as url:
        if url is not None:
            figures += _of_server(url, "PostgreSQL", short)
            figures += _of_sizes(url, "PostgreSQL", short)
    return figures


# ------------------------------------------------------------------------------- writing


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
        value, each = statistics.median(ratios), ", ".join(f"{ratio:.2f}" for ratio in ratios)
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
    trials = [_trial(number, reports) for number in range(100)]
    transactions: list[list[tuple[Outcome, str]]] = []
    for number in range(reports):
        if number % together == 0:
            transactions.append([])
        trial, step = trials[number % len(trials)], number // len(trials) + 1
        record = {
            "kind": "tell",
            "trial": trial.local,
            "step": step,
            "metrics": {"loss": 1 / (number + 1)},
            "place": 0,
            "decisions": [{"do": "extend", "trial": trial.local, "until": step + 1, "priority": 0}],
        }
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
    record, trial = outcome.records[0], outcome.trials[0]
    trial.steps, trial.values = record["step"], (record["metrics"]["loss"],)
    recorder.outcome(outcome)
    recorder.metrics(node, [(record["step"], key, record["metrics"])])


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


# -------------------------------------------------------------------------------- sizes


def _of_sizes(url: str, name: str, short: bool) -> list[Figure]:
    """Return how opening and status depend on how many reports there are."""
    trials = SHORT_TRIALS if short else TRIALS
    if not url.startswith("sqlite"):
        _emptied(url).close()
    places = {
        reports: f"{url}/{reports}.db" if url.startswith("sqlite") else url
        for reports in (FEW, MANY)
    }
    calls: dict[str, Callable[[str, str, str], object]] = {
        "opening": lambda *of: _open(*of).close(),
        "status": lambda name, place, folder: read(place, name),
        "best": _best,
    }
    with tempfile.TemporaryDirectory() as folder:
        for reports, place in places.items():
            _open(f"of {reports}", place, folder).close()
            _fill(place, f"of {reports}", trials, reports)
        # One after the other and again: what else this machine does falls on all alike.
        least = {(call, reports): float("inf") for call in calls for reports in places}
        for _ in range(SHORT_TURNS if short else TURNS):
            for (call, reports), before in least.items():
                began = time.perf_counter()
                calls[call](f"of {reports}", places[reports], folder)
                least[call, reports] = min(before, time.perf_counter() - began)
    opening, status, best = (
        {reports: least[call, reports] for reports in places} for call in calls
    )
    few, many = f"{trials * FEW:,}", f"{trials * MANY:,}"
    return [
        Figure(
            name=f"opening a study of {many} reports over one of {few}, {name}",
            value=opening[MANY] / opening[FEW],
            unit="x",
            at_most=GROWTH,
            note=f"{opening[MANY] * 1e3:.0f} ms and {opening[FEW] * 1e3:.0f} ms; {trials:,} trials",
        ),
        Figure(
            name=f"status of {many} reports, {name}",
            value=status[MANY],
            unit="s",
            at_most=STATUS_SECONDS,
            note=f"{status[FEW] * 1e3:.0f} ms with {few}",
        ),
        Figure(
            name=f"opening, and its best value, {many} reports, {name}",
            value=best[MANY],
            unit="s",
            note=f"{best[FEW] * 1e3:.0f} ms with {few}",
        ),
    ]


def _open(name: str, url: str, folder: str) -> dt.Study:
    return dt.create_study(
        None, name=name, metric="loss", storage=folder, database=url, load_if_exists=True
    )


def _best(name: str, url: str, folder: str) -> None:
    study = _open(name, url, folder)
    if study.best_value != 0.0:
        raise RuntimeError(f"the best value must be 0, got {study.best_value}")
    study.close()


def _fill(url: str, name: str, trials: int, reports: int) -> None:
    """Write a study's rows as if it had run, a trial at a time."""
    database = Database(url)
    study = database.study(name)
    if study is None:
        raise RuntimeError("the study must be there")
    first = {"kind": "tuner", "identity": {}, "inputs": {}, "place": 0, "decisions": []}
    database.write(Batch(events=[EventRow(study_id=study.id, number=0, payload=first)]))
    for number in range(trials):
        _fill_trial(database, study.id, number, reports)
    database.close()


def _fill_trial(database: Database, study_id: int, number: int, reports: int) -> None:
    trial, batch = _trial(number, reports), Batch()
    trial.state, trial.steps, trial.values = TrialState.COMPLETE, reports, (float(number),)
    for step in range(1, reports + 1):
        metrics = {"loss": number + reports - step}
        payload = {"kind": "tell", "trial": number, "step": step, "metrics": metrics}
        payload |= {"place": 0, "decisions": []}
        event = number * reports + step
        batch.events.append(EventRow(study_id=study_id, number=event, payload=payload))
        key = f"{study_id:032x}{event:032x}"
        batch.metrics.append(MetricRow(key=key, root=f"r{study_id}", step=step, values=metrics))
    batch.trials.append(
        TrialRow(
            study_id=study_id,
            number=number,
            state=trial.state.value,
            steps=trial.steps,
            value=trial.value,
            record=trial.to_json(),
        )
    )
    batch.stages.append(
        StageRow(
            study_id=study_id,
            attempt=f"{number}",
            key=f"{number:064x}",
            start=0,
            stop=reports,
            worker="tcp://127.0.0.1:1234",
            status="trained",
            started=1.0,
            ended=2.0,
            steps=reports,
            repeated=0,
        )
    )
    database.write(batch)


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


# --------------------------------------------------------------------------- PostgreSQL


@contextmanager
def _postgresql(given: Path | None) -> Iterator[str | None]:
    """Yield the URL of an empty database: in the file that was given, or on a server of our own."""
    if given is not None:
        yield given.read_text().strip()
        return
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    program_path = shutil.which(
        "initdb", path=os.pathsep.join([*map(str, places), *os.get_exec_path()])
    )
    if program_path is None:
        yield None
        return
    folder = Path(tempfile.mkdtemp(prefix="postgresql-"))
    # The server refuses to be root.
    owner: dict[str, Any] = {}
    if os.geteuid() == 0:
        owner = {"user": "postgres", "group": "postgres", "extra_groups": []}
        shutil.chown(folder, "postgres", "postgres")

    def call(program: str, *options: str) -> None:
        command = [Path(program_path).parent / program, "-D", folder / "data", *options]
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.STDOUT}
        subprocess.run(command, check=True, cwd=folder, timeout=60, **quiet, **owner)

    call("initdb", "-U", "dasktune", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "-N")
    options = f"-k {folder} -c listen_addresses="
    call("pg_ctl", "-w", "-l", str(folder / "log"), "-o", options, "start")
    try:
        yield f"postgresql+psycopg://dasktune@/postgres?host={folder}"
    finally:
        call("pg_ctl", "-m", "immediate", "stop")
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main("database", measure, postgresql="a file with the URL of an empty database"))

"""Speeds and packing factors of a run are those that the next study of the trainer begins with."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from distributed import Client

import dasktune as dt
from dasktune._driver.speed_keeper import MOST_SPEEDS, SpeedKeeper
from dasktune._engine.timeouts import SPEEDS_SECONDS
from dasktune.graph.kept_speeds import NOTHING_KEPT, KeptFactor, KeptMeasurements, KeptSpeed
from dasktune.storage.database.database import Database
from tests.toy_trainers import Adding


def speed(number: int, seconds: float = 1.0, steps: float = 2.0) -> KeptSpeed:
    return KeptSpeed(model=(("width", number),), kind="cpu", seconds=seconds, steps=steps)


def factor(number: int, together: int = 2, most: int | None = None) -> KeptFactor:
    model = (("width", number),)
    rates = ((1, 0.1 + 0.2), (together, 1e-9))
    return KeptFactor(
        model=model, kind="H100", together=together, most=most, rates=rates, nbytes=2**40
    )


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(tmp_path / "x.db")
    yield opened
    opened.close()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    is_file = request.param == "sqlite"
    opened = Database(tmp_path / "x.db" if is_file else request.getfixturevalue("postgresql"))
    yield opened
    opened.close()


def test_kept_factors_are_recalled_by_fingerprint(server: Database) -> None:
    name = uuid4().hex
    factors = [factor(0), factor(1, 3, 3), replace(factor(2, 1), fits=1, rates=())]
    SpeedKeeper(server, name).keep(KeptMeasurements((speed(0),), tuple(factors)))
    SpeedKeeper(server, f"{name} other").keep(KeptMeasurements(factors=(factor(0, 4),)))
    recalled = SpeedKeeper(server, name).recall()
    assert sorted(recalled.factors, key=lambda each: each.model) == factors
    assert recalled.speeds == (speed(0),)
    SpeedKeeper(server, name).keep(KeptMeasurements(factors=(factor(1, 4, 4),)))
    recalled = SpeedKeeper(server, name).recall()
    assert recalled.factors[0] == factor(1, 4, 4), "the latest comes first"
    assert (len(recalled.factors), len(recalled.speeds)) == (3, 1)


def test_kept_speeds_are_recalled_by_fingerprint(database: Database) -> None:
    speeds = [speed(0, 0.1 + 0.2), speed(1, steps=1e-3)]
    SpeedKeeper(database, "f").keep(KeptMeasurements(tuple(speeds)))
    SpeedKeeper(database, "g").keep(KeptMeasurements((speed(0, 9.0),)))
    recalled = SpeedKeeper(database, "f").recall().speeds
    assert sorted(recalled, key=lambda each: each.model) == speeds
    SpeedKeeper(database, "f").keep(KeptMeasurements((speed(1, 7.0),)))
    assert SpeedKeeper(database, "f").recall().speeds[0] == speed(1, 7.0), "the latest comes first"
    assert len(SpeedKeeper(database, "f").recall().speeds) == 2
    assert SpeedKeeper(database, "h").recall() == NOTHING_KEPT


def test_speeds_with_the_most_steps_are_kept(database: Database) -> None:
    keeper = SpeedKeeper(database, "f")
    keeper.keep(
        KeptMeasurements(
            tuple(speed(number, steps=1.0 + number) for number in range(MOST_SPEEDS + 7))
        )
    )
    assert {each.steps for each in keeper.recall().speeds} == {8.0 + n for n in range(MOST_SPEEDS)}


def test_measurements_are_due_each_minute(database: Database) -> None:
    now, asked = [100.0], list[float]()
    keeper = SpeedKeeper(database, "f", clock=lambda: now[0])

    def measured() -> KeptMeasurements:
        asked.append(now[0])
        return KeptMeasurements((speed(0, now[0]),))

    for later in (0.0, 1.0, SPEEDS_SECONDS - 1.0, 1.0, SPEEDS_SECONDS):
        now[0] += later
        if keeper.is_due:
            keeper.keep(measured())
    assert asked == [100.0 + SPEEDS_SECONDS, 101.0 + 2 * SPEEDS_SECONDS]
    assert keeper.recall().speeds == (speed(0, asked[-1]),)


def test_rows_of_other_programs_are_left_alone(
    database: Database, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    keeper = SpeedKeeper(database, "f")
    keeper.keep(KeptMeasurements((speed(0),)))
    with closing(sqlite3.connect(tmp_path / "x.db")) as connection, connection:
        connection.execute("UPDATE dasktune_speeds SET seconds = -1")
    assert keeper.recall() == NOTHING_KEPT
    assert "cannot be read: seconds must be positive" in caplog.text


def study(folder: Path, name: str) -> dt.Study:
    return dt.create_study(Adding, name=name, storage=folder, metric="loss")


def train(opened: dt.Study, client: Client, lr: float) -> None:
    tuner = dt.algos.Grid(dt.Space(lr=[lr], width=[8, 16]), max_steps=4)
    opened.optimize(tuner, client=client, progress=False, last_line=False, check=False)


def begun(folder: Path) -> list[dict[str, Any]]:
    with closing(Database(folder / "dasktune.db")) as database:
        rows = [row for each in database.studies() for row in database.events(each.id)]
    return [row.payload for row in rows if row.payload["kind"] == "begun"]


def test_next_study_begins_with_the_speeds_of_the_first(
    tmp_path: Path, two_threads: Client
) -> None:
    for name, lr in (("first", 0.1), ("second", 0.2)):
        with closing(study(tmp_path, name)) as opened:
            train(opened, two_threads, lr)
    first, second = begun(tmp_path)
    assert "speeds" not in first
    speeds = [KeptSpeed.from_json(document) for document in second["speeds"]]
    assert sorted(dict(each.model)["width"] for each in speeds) == [8, 16]
    assert {each.steps for each in speeds} == {4.0}


def test_loads_of_stages_are_measured(tmp_path: Path, two_threads: Client) -> None:
    with closing(study(tmp_path, "branches")) as opened:
        rates = [dt.sequences.MultiStep(0.1, milestones=[2], gamma=gamma) for gamma in (0.5, 0.1)]
        tuner = dt.algos.Grid(dt.Space(lr=rates), max_steps=4)
        opened.optimize(tuner, client=two_threads, progress=False, last_line=False, check=False)
        loads = opened.parts.memory.dispatcher().placing.loads
        assert 0 < loads.seconds("any") < 60, "one of the branches was loaded by the other worker"


def test_run_goes_on_where_speeds_cannot_be_kept(
    tmp_path: Path, two_threads: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="dasktune")
    with closing(study(tmp_path, "first")) as opened:
        with closing(sqlite3.connect(tmp_path / "dasktune.db")) as connection, connection:
            connection.execute("DROP TABLE dasktune_speeds")
        train(opened, two_threads, 0.1)
        assert {trial.state.value for trial in opened.trials} == {"COMPLETE"}
    assert "the speeds of earlier runs cannot be read" in caplog.text
    assert "the speeds of this run cannot be kept" in caplog.text

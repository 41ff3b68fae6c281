"""Speeds that a run measures are those that the next study of the trainer begins with."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import dasktune as dt
from dasktune.driver.speed_keeper import MOST_SPEEDS, SpeedKeeper
from dasktune.engine.timeouts import SPEEDS_SECONDS
from dasktune.graph.kept_speeds import KeptSpeed
from dasktune.storage.database.database import Database
from tests.toy_trainers import Adding


def speed(number: int, seconds: float = 1.0, steps: float = 2.0) -> KeptSpeed:
    return KeptSpeed(model=(("width", number),), kind="cpu", seconds=seconds, steps=steps)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(tmp_path / "x.db")
    yield opened
    opened.close()


def test_kept_speeds_are_recalled_by_fingerprint(database: Database) -> None:
    speeds = [speed(0, 0.1 + 0.2), speed(1, steps=1e-3)]
    SpeedKeeper(database, "f").keep(speeds)
    SpeedKeeper(database, "g").keep([speed(0, 9.0)])
    recalled = SpeedKeeper(database, "f").recall()
    assert sorted(recalled, key=lambda each: each.model) == speeds
    SpeedKeeper(database, "f").keep([speed(1, 7.0)])
    assert SpeedKeeper(database, "f").recall()[0] == speed(1, 7.0), "the latest comes first"
    assert len(SpeedKeeper(database, "f").recall()) == 2
    assert SpeedKeeper(database, "h").recall() == []


def test_speeds_with_the_most_steps_are_kept(database: Database) -> None:
    keeper = SpeedKeeper(database, "f")
    keeper.keep([speed(number, steps=1.0 + number) for number in range(MOST_SPEEDS + 7)])
    assert {each.steps for each in keeper.recall()} == {8.0 + n for n in range(MOST_SPEEDS)}


def test_turn_keeps_speeds_each_minute(database: Database) -> None:
    now, asked = [100.0], list[float]()
    keeper = SpeedKeeper(database, "f", clock=lambda: now[0])

    def speeds() -> list[KeptSpeed]:
        asked.append(now[0])
        return [speed(0, now[0])]

    for later in (0.0, 1.0, SPEEDS_SECONDS - 1.0, 1.0, SPEEDS_SECONDS):
        now[0] += later
        keeper.turn(speeds)
    assert asked == [100.0 + SPEEDS_SECONDS, 101.0 + 2 * SPEEDS_SECONDS]
    assert keeper.recall() == [speed(0, asked[-1])]


def test_rows_of_other_programs_are_left_alone(
    database: Database, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    keeper = SpeedKeeper(database, "f")
    keeper.keep([speed(0)])
    with closing(sqlite3.connect(tmp_path / "x.db")) as connection, connection:
        connection.execute("UPDATE dasktune_speeds SET seconds = -1")
    assert keeper.recall() == []
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
        loads = opened.results.dispatcher()._placing.loads
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

"""How studies stand is added up from their rows, the same as from all of their trials."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dasktune._driver.history import AUDITED, History
from dasktune.cli import app
from dasktune.cli.status import MOST_FAILED, read
from dasktune.storage.database.database import Batch, Database
from dasktune.storage.database.rows import StageRow, TrialRow
from tests.storage.database.later import later_version


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(tmp_path / "dasktune.db")
    for name, direction in (("low", "minimize"), ("high", "maximize")):
        spec = {"metric": "loss", "direction": direction}
        opened.create_study(name, root=name, spec=spec, created=100.0)
    yield opened
    opened.close()


def trial(number: int, state: str, steps: int, value: float | None, until: int | None) -> TrialRow:
    record = {"params": {"lr": number}}
    return TrialRow(
        study_id=1, number=number, state=state, steps=steps, value=value, record=record, until=until
    )


def stage(attempt: str, status: str, ended: float | None, steps: int, repeated: int) -> StageRow:
    return StageRow(
        study_id=1,
        attempt=attempt,
        key="a1",
        start=0,
        stop=9,
        worker="tcp://w:1",
        status=status,
        started=1.5,
        ended=ended,
        steps=steps,
        repeated=repeated,
    )


TRIALS = [
    trial(0, "COMPLETE", 9, 0.5, None),
    trial(1, "RUNNING", 3, 0.25, 9),
    trial(2, "PAUSED", 3, math.nan, None),
    trial(3, "FAIL", 2, -5.0, None),
    trial(4, "RUNNING", 0, None, 3),
    trial(5, "PRUNED", 3, 0.25, None),
    trial(6, "PRUNED", 3, -math.inf, None),
]
STAGES = [
    stage("1", "trained", 150.0, 9, 0),
    stage("2", "trained", 250.0, 5, 2),
    stage("3", "lost", 200.0, 1, 1),
    stage("4", "running", None, 4, 0),
]


def test_it_is_added_up(database: Database, tmp_path: Path) -> None:
    database.write(Batch(trials=TRIALS, stages=STAGES))
    low, high = read(str(tmp_path))
    assert low.trials == {"COMPLETE": 1, "RUNNING": 2, "PAUSED": 1, "FAIL": 1, "PRUNED": 2}
    assert low.steps_requested == 9 + 9 + 3 + 2 + 3 + 3 + 3
    assert (low.steps_executed, low.steps_repeated, low.steps_audited) == (15, 3, 0)
    assert low.stages == {"trained": 2, "lost": 1}
    assert low.last_activity == 250.0
    assert low.best == {"number": 1, "value": 0.25, "steps": 3, "params": {"lr": 1}}
    assert (high.trials, high.best, high.steps_requested, high.last_activity) == (
        {},
        None,
        0,
        100.0,
    )


def test_steps_of_checks_are_counted_apart(database: Database, tmp_path: Path) -> None:
    database.write(Batch(trials=TRIALS, stages=STAGES))
    for steps in (18, 0, 5):
        History(database, 1).note_audited(steps)
    low, high = read(str(tmp_path))
    assert (low.steps_executed, low.steps_audited, high.steps_audited) == (15, 23, 0)
    assert "15 trained of 32 asked for, 3 of them repeated, 23 more by checks" in str(low)
    assert low.to_json()["steps_audited"] == 23
    assert "by checks" not in str(high)
    assert "by audits" not in str(low)


def test_steps_of_checks_and_audits_are_told_apart(database: Database, tmp_path: Path) -> None:
    database.write(Batch(trials=TRIALS, stages=STAGES))
    history = History(database, 1)
    history.note_audited(18)
    history.note(AUDITED, audit="identical", text="", steps=20)
    low, _ = read(str(tmp_path))
    assert "3 of them repeated, 18 more by checks, 20 more by audits" in str(low)
    document = low.to_json()
    assert (document["steps_audited"], document["audits"]["steps"]) == (38, 20)


@pytest.mark.parametrize(("number", "best"), [(1, 1), (2, 0)])
def test_the_best_is_the_first_in_the_studys_direction(
    database: Database, number: int, best: int
) -> None:
    database.write(
        Batch(
            trials=[
                TrialRow(study_id=number, number=n, state="PAUSED", steps=1, value=v, record={})
                for n, v in enumerate([0.1 + 0.2, 0.3, 0.3, 0.1 + 0.2])
            ]
        )
    )
    found = database.best_trial(number, is_maximized=number == 2)
    assert found is not None
    assert found.number == best


def test_the_best_trial_names_its_devices(database: Database, tmp_path: Path) -> None:
    record = {"devices": [[0, 1], [20, 2]]}
    best = TrialRow(study_id=1, number=3, state="PAUSED", steps=40, value=0.5, record=record)
    database.write(Batch(trials=[best]))
    (status, *_) = read(str(tmp_path))
    assert status.best == {**(status.best or {}), "devices": [[0, 1], [20, 2]]}
    assert "0.5 (trial 3, 40 steps, devices: 1, 2 from step 20)" in str(status)


def test_it_does_not_read_the_log(database: Database, tmp_path: Path) -> None:
    database.write(Batch(trials=TRIALS, stages=STAGES))
    with closing(sqlite3.connect(tmp_path / "dasktune.db")) as connection:
        connection.executescript("DROP TABLE dasktune_events; DROP TABLE dasktune_metrics")
    assert len(read(str(tmp_path))) == 2


def test_an_older_database_is_read_after_it_was_migrated(
    database: Database, tmp_path: Path
) -> None:
    database.close()
    with later_version():
        refused = CliRunner().invoke(app, ["status", str(tmp_path)])
        assert refused.exit_code == 1
        assert "run: dasktune migrate DATABASE" in refused.stderr
        for _ in range(2):
            done = CliRunner().invoke(app, ["migrate", str(tmp_path)])
            assert (done.exit_code, done.stdout) == (0, "up to date\n")
        statuses = read(str(tmp_path))
    assert [status.study for status in statuses] == ["low", "high"]


def test_migrating_makes_nothing(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["migrate", str(tmp_path)])
    assert (done.exit_code, "there is no database" in done.stderr) == (1, True)
    assert list(tmp_path.iterdir()) == []


def test_status_many_final_failures_are_not_shown_as_retried(
    database: Database, tmp_path: Path
) -> None:
    numbers = range(MOST_FAILED + 50)
    record = {"message": "", "params": {}}
    trials = [
        replace(trial(n, "FAIL", 3, None, None), record={**record, "message": f"no {n}"})
        for n in numbers
    ]
    stages = [
        replace(stage(f"{n}", "failed", 5.0 + n, 2, 0), trials=[n], message=f"no {n}")
        for n in numbers
    ]
    again = replace(stage("again", "failed", 9999.0, 7, 0), trials=[7777], message="once")
    database.write(Batch(trials=trials, stages=[*stages, again]))
    (low, _) = read(str(tmp_path))
    tried_again = [one for one in low.failures if not one.is_final]
    assert [(one.trials, one.step, one.tries) for one in tried_again] == [((7777,), 7, 1)]
    assert low.in_words().splitlines()[-1].split()[0] == "and"
    assert len(low.in_words(verbose=True).splitlines()) > MOST_FAILED

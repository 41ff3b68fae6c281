"""The table of trials: it follows the database."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dasktune._dashboard.trial_table import TrialTable
from dasktune.storage.database.database import Batch, Database
from dasktune.storage.database.rows import StageRow, TrialRow
from dasktune.types import Objective

LOSS = Objective.single("loss", "minimize")


def row(number: int, state: str, value: float | None, **params: object) -> TrialRow:
    record = {"params": params, "values": None if value is None else [value]}
    return TrialRow(
        study_id=1, number=number, state=state, steps=number, value=value, record=record
    )


ROWS = [
    row(0, "COMPLETE", 0.5, lr=0.1, optimizer="adam"),
    row(1, "FAIL", None, lr=0.5, optimizer="=cmd|' /C calc'!A0"),
    row(2, "RUNNING", 0.25, lr=0.01, optimizer="sgd"),
    row(3, "PRUNED", 0.75, lr=None, optimizer="adam"),
]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(tmp_path / "dasktune.db")
    opened.create_study("s", root="r", spec={}, created=0.0)
    opened.write(Batch(trials=ROWS))
    yield opened
    opened.close()


@pytest.fixture
def table(database: Database) -> TrialTable:
    made = TrialTable(database, 1, LOSS)
    made.refresh()
    return made


def numbers(changes: dict[str, object]) -> list[int]:
    return [cells[0] for cells in changes["rows"]]  # type: ignore[attr-defined]


def ends(changes: dict[str, object]) -> dict[int, float]:
    return {cells[0]: cells[-1] for cells in changes["rows"]}  # type: ignore[attr-defined]


def test_rows_have_a_cell_for_each_column(table: TrialTable) -> None:
    changes = table.changes()
    assert changes["columns"] == ["number", "state", "steps", "loss", "lr", "optimizer", "ended"]
    assert changes["rows"][3] == [3, "PRUNED", 3, 0.75, None, "adam", None]  # type: ignore[index]
    assert numbers(table.changes(numbers=[2, 0])) == [2, 0]


def test_devices_have_a_column_where_several_train_a_trial(
    database: Database, table: TrialTable
) -> None:
    record = {**ROWS[0].record, "devices": [[0, 1], [4, 2]]}
    database.write(Batch(trials=[replace(ROWS[0], steps=9, record=record)]))
    table.refresh()
    changes = table.changes()
    assert changes["columns"][-2:] == ["devices", "ended"]  # type: ignore[index]
    cells = [row[-2] for row in changes["rows"]]  # type: ignore[attr-defined]
    assert cells == ["1, 2 from step 4", "1", "1", "1"]


def test_refresh_reads_only_what_changed(database: Database, table: TrialTable) -> None:
    before = table.version
    assert table.refresh() == before
    assert numbers(table.changes(before)) == []
    database.write(
        Batch(trials=[replace(ROWS[2], state="COMPLETE", steps=9), row(4, "RUNNING", 1)])
    )
    assert table.refresh() == before + 1
    changes = table.changes(before)
    assert [row[:2] for row in changes["rows"]] == [[2, "COMPLETE"], [4, "RUNNING"]]  # type: ignore[attr-defined]
    assert changes["version"] == before + 1
    assert numbers(table.changes()) == [0, 1, 2, 3, 4]


def test_the_end_of_a_stage_reaches_its_trials(database: Database, table: TrialTable) -> None:
    before = table.version
    stage = StageRow(
        study_id=1,
        attempt="a",
        key="k",
        start=0,
        stop=2,
        worker="w",
        status="trained",
        started=5.0,
        ended=7.0,
        steps=2,
        repeated=0,
        trials=[0, 3],
    )
    database.write(Batch(stages=[stage]))
    table.refresh()
    assert ends(table.changes(before)) == {0: 7.0, 3: 7.0}
    # A stage of another worker may be written late, with an earlier end.
    database.write(Batch(stages=[replace(stage, attempt="b", ended=6.0, trials=[2, 3])]))
    table.refresh()
    assert ends(table.changes(before)) == {0: 7.0, 2: 6.0, 3: 7.0}


def test_sample_has_the_best_and_others_spread_evenly(database: Database) -> None:
    more = [row(10 + at, "COMPLETE", 1.0 + at) for at in range(100)]
    database.write(Batch(trials=more))
    table = TrialTable(database, 1, LOSS)
    table.refresh()
    sample = [entry.number for entry in table.sampled(10)]
    assert sample[:3] == [2, 0, 3]
    assert len(sample) == len(set(sample)) == 10
    assert max(sample) > 80

"""The table of trials: it follows the database, filters, sorts, and writes harmless CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dasktune.dashboard.filters import parse_filter
from dasktune.dashboard.trial_table import TrialTable
from dasktune.errors import ConfigurationError
from dasktune.storage.database.database import Batch, Database
from dasktune.storage.database.schema import StageRow, TrialRow
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


def numbers(table: TrialTable, **selection: object) -> list[int]:
    page = table.page(**selection)  # type: ignore[arg-type]
    return [cells[0] for cells in page["rows"]]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", [0, 1, 2, 3]),
        ("adam", [0, 3]),
        ("ADAM state=complete", [0]),
        ("lr>=0.1", [0, 1]),
        ("lr<0.1", [2]),
        ("lr=0.10", [0]),
        ("state!=FAIL", [0, 2, 3]),
        ("loss>0.3 loss<=0.5", [0]),
        ("number=2", [2]),
        ("nothing-like-this", []),
    ],
)
def test_filter_selects_rows(table: TrialTable, text: str, expected: list[int]) -> None:
    assert numbers(table, text=text) == expected


def test_sort_puts_empty_cells_last_in_both_directions(table: TrialTable) -> None:
    assert numbers(table, sort="loss") == [2, 0, 3, 1]
    assert numbers(table, sort="loss", is_descending=True) == [3, 0, 2, 1]
    assert numbers(table, sort="lr") == [2, 0, 1, 3]


def test_page_has_a_window_and_both_counts(table: TrialTable) -> None:
    page = table.page(text="state!=FAIL", offset=1, limit=1)
    assert (page["total"], page["count"]) == (4, 3)
    assert [cells[0] for cells in page["rows"]] == [2]  # type: ignore[attr-defined]


def test_unknown_column_is_refused_with_the_known_ones(table: TrialTable) -> None:
    with pytest.raises(ConfigurationError, match=r"unknown column 'rate'; known: .*lr"):
        table.page(text="rate>1")
    with pytest.raises(ConfigurationError, match="unknown column 'rate'"):
        table.page(sort="rate")
    with pytest.raises(ConfigurationError, match="a number must follow <, got 'high'"):
        parse_filter("lr<high", ["lr"])


def test_csv_has_all_columns_and_no_formula(table: TrialTable) -> None:
    lines = list(csv.reader(io.StringIO(table.to_csv(sort="number"))))
    assert lines[0] == ["number", "state", "steps", "loss", "lr", "optimizer", "ended"]
    assert len(lines) == 5
    assert lines[2][5] == "'=cmd|' /C calc'!A0"
    assert lines[4][4] == ""


def test_refresh_reads_only_what_changed(database: Database, table: TrialTable) -> None:
    before = table.version
    assert table.refresh() == before
    assert table.changes(before)["number"] == []
    database.write(
        Batch(trials=[replace(ROWS[2], state="COMPLETE", steps=9), row(4, "RUNNING", 1)])
    )
    assert table.refresh() == before + 1
    changes = table.changes(before)
    assert changes["number"] == [2, 4]
    assert changes["state"] == ["COMPLETE", "RUNNING"]
    assert changes["version"] == before + 1
    assert table.changes(0)["number"] == [0, 1, 2, 3, 4]


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
    changes = table.changes(before)
    assert (changes["number"], changes["ended"]) == ([0, 3], [7.0, 7.0])
    # A stage of another worker may be written late, with an earlier end.
    database.write(Batch(stages=[replace(stage, attempt="b", ended=6.0, trials=[2, 3])]))
    table.refresh()
    assert table.changes(before)["ended"] == [7.0, 6.0, 7.0]


def test_sample_has_the_best_and_others_spread_evenly(database: Database) -> None:
    more = [row(10 + at, "COMPLETE", 1.0 + at) for at in range(100)]
    database.write(Batch(trials=more))
    table = TrialTable(database, 1, LOSS)
    table.refresh()
    sample = [entry.number for entry in table.sampled(10)]
    assert sample[:3] == [2, 0, 3]
    assert len(sample) == len(set(sample)) == 10
    assert max(sample) > 80

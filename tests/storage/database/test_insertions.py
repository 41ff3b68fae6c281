"""Insertions: the parameters of rows."""

from __future__ import annotations

import pytest

from dasktune.storage.database.insertions import insertions
from dasktune.storage.database.schema import MetricRow
from dasktune.storage.metrics import metrics_to_text
from tests.call_counter import python_calls

METRICS = {"loss": 0.5}


def _rows(count: int) -> list[MetricRow]:
    return [
        MetricRow(key=f"k{step}", root="r", step=step, values=METRICS, seconds=0.25)
        for step in range(count)
    ]


def test_values_of_more_reports_call_only_their_encoder() -> None:
    values_of = insertions("sqlite")["metrics"].values
    few, many = _rows(2), _rows(200)
    values_of(few)  # quotes the names of metrics, once
    calls = [python_calls(lambda r=rows: values_of(r)) for rows in (few, many)]
    own = python_calls(lambda: metrics_to_text(METRICS)) - 1  # the lambda
    assert calls[1] - calls[0] == (len(many) - len(few)) * own


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"])
def test_values_of_no_rows_are_none(dialect: str) -> None:
    assert all(insertion.values([]) == [] for insertion in insertions(dialect).values())


def test_values_of_rows_are_those_of_each_in_order() -> None:
    rows = _rows(3)
    values_of = insertions("sqlite")["metrics"].values
    assert values_of(rows) == [("k0", "r", 0, '{"loss":0.5}', 0.25), *values_of(rows[1:])]

"""Insertions: the parameters of rows."""

from __future__ import annotations

import pytest

from dasktune.errors import CorruptRecordError
from dasktune.storage.database.columns import Encoded, ExactFloat, JsonText, MetricsText
from dasktune.storage.database.insertions import insertions
from dasktune.storage.database.rows import MetricRow
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
    first = ("k0", "r", 0, '{"loss":0.5}', 0.25, None)
    assert values_of(rows) == [first, *values_of(rows[1:])]


@pytest.mark.parametrize("kind", [JsonText(), MetricsText()])
def test_text_of_one_value_is_that_of_many(kind: JsonText) -> None:
    values = [{"loss": 0.5}, {"loss": float("inf")}]
    texts = [kind.process_bind_param(value, None) for value in values]
    assert texts == kind.texts_of(values)
    assert [kind.process_result_value(text, None) for text in texts] == values
    assert kind.values_of(texts) == values


def test_text_that_is_json_already_is_written_as_it_is() -> None:
    encoded = Encoded('{"a": 1}')
    assert JsonText().process_bind_param(encoded, None) == '{"a": 1}'
    assert JsonText().texts_of([encoded, {"a": 1}]) == [
        '{"a": 1}',
        JsonText().texts_of([{"a": 1}])[0],
    ]
    assert JsonText().process_bind_param("a", None) == '"a"'


@pytest.mark.parametrize("value", [None, -0.0, 0.1, float("inf")])
def test_exact_float_comes_back(value: float | None) -> None:
    kind = ExactFloat()
    text = kind.process_bind_param(value, None)
    assert [text] == kind.texts_of([value])
    assert repr(kind.process_result_value(text, None)) == repr(value)


@pytest.mark.parametrize("texts", [["1", "{"], ["1,2"], ["1", ""]])
def test_invalid_json_is_a_corrupt_record(texts: list[str]) -> None:
    with pytest.raises(CorruptRecordError, match="the database holds invalid JSON"):
        JsonText().values_of(texts)

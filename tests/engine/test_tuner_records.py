"""The records of the event log: each kind is read from JSON and written with the same bytes."""

from __future__ import annotations

import json
import math
from typing import get_args

import pytest

from dasktune._engine.tuner_records import KINDS, Cause, document_of, read_record
from dasktune.errors import CorruptRecordError
from dasktune.storage.database.columns import to_text

TEXTS = (
    '{"kind":"tuner","identity":{"tuner":"Grid"},"inputs":{},"place":0,"decisions":[]}',
    '{"kind":"ask","capacity":2,"place":0,"decisions":[{"do":"extend","trial":0,"until":4,'
    '"priority":0.0}],"proposals":[{"lr":0.1}]}',
    '{"kind":"tell","trial":0,"step":2,"metrics":{"loss":NaN,"acc":1},"place":1,"decisions":[]}',
    '{"kind":"tell","trial":0,"step":2,"metrics":{"loss":0.1},"now":{"seconds":3.0,'
    '"step_seconds":0.5,"workers":2},"place":1,"decisions":[{"do":"finish"}]}',
    '{"kind":"tell","trial":0,"step":2,"metrics":{"loss":0.1},"now":{"seconds":3,"step_seconds":'
    '0.5,"workers":2,"between":[[1,[0.5,null]]]},"place":1,"decisions":[{"do":"finish"}]}',
    '{"kind":"fail","trial":3,"message":"boom","traceback":"tb","place":0,"decisions":[]}',
    '{"kind":"retry","trial":3,"step":2,"place":0,"decisions":[]}',
    '{"kind":"widen","trials":9,"place":0,"decisions":[]}',
    '{"kind":"predicted","trial":3,"prediction":null,"seconds":2.5,"place":0,"decisions":[]}',
    '{"kind":"predicted","trial":3,"prediction":{"after":2,"steps":[4],"scores":[[0.1,0.2,0.3,0.4,'
    '0.5,0.6,0.7,0.8,0.9,1.0,1.1,1.2,1.3,1.4,1.5]],"deviations":[0.1]},"seconds":2.5,"place":0,'
    '"decisions":[]}',
    '{"kind":"assessed","model":1,"priority":null,"place":0,"decisions":[]}',
    '{"kind":"assessed","model":1,"priority":{"shortest":0.25,"longest":8.0},"place":0,'
    '"decisions":[]}',
    '{"kind":"time","seconds":7,"place":0,"decisions":[]}',
    '{"kind":"clock","seconds":7.5,"place":0,"decisions":[]}',
    '{"kind":"snapshot","place":2,"state":{"finished":false,"stopped":[]},"decisions":[]}',
    '{"kind":"retrain","trial":3,"step":2,"place":0,"decisions":[]}',
    '{"kind":"retrained","trial":3,"step":2,"metrics":{"loss":Infinity},"place":0,"decisions":[]}',
    '{"kind":"retrained","trial":3,"step":2,"message":"boom","traceback":"","place":0,'
    '"decisions":[]}',
    '{"kind":"devices","trial":3,"devices":[[0,1],[4,2]],"place":0,"decisions":[]}',
)


@pytest.mark.parametrize("text", TEXTS)
def test_record_is_written_with_the_bytes_that_were_read(text: str) -> None:
    record = read_record(json.loads(text))
    assert to_text(document_of(record)) == text
    assert record.cause.kind == json.loads(text)["kind"]


def test_each_kind_of_record_is_among_the_texts() -> None:
    assert {json.loads(text)["kind"] for text in TEXTS} == set(KINDS)
    assert len(set(KINDS)) == len(get_args(Cause)) == 14


def test_record_of_unknown_kind_names_the_known() -> None:
    with pytest.raises(CorruptRecordError, match=r"among tuner, ask, .*, got 'guess'"):
        read_record({"kind": "guess", "place": 0, "decisions": []})


@pytest.mark.parametrize(
    "document",
    [
        {"kind": "ask", "capacity": 1, "place": 0},
        {"kind": "ask", "place": 0, "decisions": []},
        {"place": 0, "decisions": []},
        {"kind": "predicted", "trial": 0, "prediction": {"after": 1}, "seconds": 0.0, "place": 0},
        {"kind": "devices", "trial": 0, "devices": [3], "place": 0, "decisions": []},
    ],
)
def test_record_without_its_fields_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(CorruptRecordError, match="a record of the event log cannot be read"):
        read_record(document)


def test_record_keeps_what_json_has_no_number_for() -> None:
    document = {"kind": "tell", "trial": 0, "step": 1, "metrics": {"loss": math.inf}}
    record = read_record({**document, "place": 0, "decisions": []})
    assert "Infinity" in to_text(document_of(record))

"""The record of a trial is read back from its document as it was."""

from __future__ import annotations

import json

import pytest

from dasktune.engine.trials import TrialRecord
from dasktune.errors import CorruptRecordError
from dasktune.sequences import Constant, Piecewise
from dasktune.types import TrialState

NEW = TrialRecord(
    number=3,
    tuner=1,
    local=2,
    params={"lr": 0.1},
    sequences={"lr": Piecewise([0.1, 0.2], [4]), "size": Constant(8)},
    max_steps=9,
)
ENDED = TrialRecord(
    number=4,
    tuner=0,
    local=0,
    params={},
    sequences={"lr": Constant(0.1)},
    max_steps=9,
    state=TrialState.FAIL,
    until=7,
    steps=5,
    values=(0.25, 3.0),
    message="boom",
    traceback="tb",
    user_attrs={"who": "me"},
    point={"lr": 0.1},
    domains={"lr": {"low": 0, "high": 1}},
    seed=6,
)


@pytest.mark.parametrize("record", [NEW, ENDED], ids=["new", "ended"])
def test_record_is_read_back_from_its_document(record: TrialRecord) -> None:
    document = json.loads(json.dumps(record.to_json()))
    columns = {"number": record.number, "state": record.state.value, "steps": record.steps}
    assert TrialRecord.from_json(document, **columns) == record


def test_value_is_the_first_of_its_values() -> None:
    assert (NEW.value, ENDED.value) == (None, 0.25)


@pytest.mark.parametrize(
    "changes", [{"sequences": None}, {"sequences": {"lr": {}}}, {"unknown": 1}, {"user": 1}]
)
def test_invalid_document_is_a_corrupt_record(changes: dict[str, object]) -> None:
    with pytest.raises(CorruptRecordError, match="trial 3 cannot be read"):
        TrialRecord.from_json({**NEW.to_json(), **changes}, number=3, state="PAUSED", steps=0)

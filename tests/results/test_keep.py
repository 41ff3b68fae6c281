"""The states that other studies keep, as far as these studies can be read."""

from __future__ import annotations

import logging

import pytest

from dasktune._engine.trials import TrialRecord
from dasktune._results.keep import kept_elsewhere
from dasktune.graph.keys import root_key
from dasktune.sequences import Constant
from dasktune.storage.database.database import Batch, Database
from dasktune.storage.database.rows import StudyRow, TrialRow
from dasktune.types import TrialState

SPEC = {
    "fingerprint": "f",
    "metric": "loss",
    "direction": "minimize",
    "seed": 0,
    "merge": True,
}


def study(database: Database, name: str, **spec: object) -> StudyRow:
    row = database.create_study(name, root=root_key("f", 0), spec={**SPEC, **spec}, created=0.0)
    assert row is not None
    record = TrialRecord(
        number=0,
        tuner=0,
        local=0,
        params={"lr": 0.1},
        sequences={"lr": Constant(0.1)},
        max_steps=3,
        state=TrialState.COMPLETE,
        steps=3,
        values=(0.5,),
    )
    trial = TrialRow(
        study_id=row.id, number=0, state="COMPLETE", steps=3, value=0.5, record=record.to_json()
    )
    database.write(Batch(trials=[trial]))
    return row


def test_kept_elsewhere_unreadable_study_is_only_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    database = Database("sqlite://")
    mine, _ = study(database, "mine"), study(database, "theirs")
    found = kept_elsewhere(database, mine.id)
    assert len(found) == 1
    study(database, "odd", direction="sideways")
    study(database, "odder", metric=None)
    with caplog.at_level(logging.WARNING):
        assert kept_elsewhere(database, mine.id) == found
    assert "what study 'odd' keeps cannot be read" in caplog.text
    assert "what study 'odder' keeps cannot be read" in caplog.text
    database.close()

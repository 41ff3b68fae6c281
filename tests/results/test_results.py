"""Results of a study that was opened: what is read of it, and what that gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dasktune._engine.trials import TrialRecord
from dasktune._results.results import StudyResults
from dasktune._results.rows import registered
from dasktune._results.trial_paths import keys_of
from dasktune._study.memory import StudyMemory
from dasktune.graph.attempts import DispatchOptions
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.codec import encode
from dasktune.storage.database.database import Batch, Database
from dasktune.storage.database.rows import TrialRow
from dasktune.types import TrialState
from tests.dashboard.made_study import Made, made_database


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[StudyMemory]:
    """Yield the memory of a study whose trials share their beginnings."""
    database = Database(made_database(tmp_path, shared=Made(fails_every=10, running=3)))
    (row,) = database.studies()
    options = DispatchOptions(merge=True)
    yield StudyMemory(row, database, CheckpointStore(str(tmp_path / "store")), options)
    database.close()


@pytest.fixture
def results(memory: StudyMemory) -> StudyResults:
    """Return the reader of that study."""
    return StudyResults(memory)


def test_best_trial_is_the_same_without_the_other_trials(
    memory: StudyMemory, results: StudyResults
) -> None:
    best = results.best_trial
    assert not memory.has_plan, "no other trial was read"
    assert best == results.trials[best.number]
    assert (len(best.metrics), best.duration is None) == (20, False)
    assert results.best_trial == best


def test_few_trials_are_the_same_as_among_all(memory: StudyMemory, results: StudyResults) -> None:
    few = results._shown([results.records[number] for number in (1, 2, 9, 36)])
    assert not memory.has_plan
    assert few == [results.trials[number] for number in (1, 2, 9, 36)]


def test_stopped_trial_has_times_of_a_stage_that_goes_on(
    memory: StudyMemory, results: StudyResults
) -> None:
    record = replace(results.records[0], state=TrialState.PRUNED, steps=5, values=(-1.0,))
    write(memory, record)
    best = results.best_trial
    assert not memory.has_plan
    assert (best.number, best.steps, best.duration is None) == (0, 5, False)
    assert best == results.trials[0]


def test_trial_to_go_on_has_what_only_the_store_knows(
    memory: StudyMemory, results: StudyResults
) -> None:
    record = replace(results.records[39], values=(-1.0,))
    write(memory, record)
    ((step, key),) = keys_of(registered(results.row, [record]), 39, [15])
    reports = [(step, {"loss": 0.5})]
    results.store.save(encode({}), key=key, attempt="1-aa", step=step, reports=reports)
    assert results.best_trial.metrics[step] == {"loss": 0.5}


def write(memory: StudyMemory, record: TrialRecord) -> None:
    """Write a trial of a study, which is read anew."""
    row = TrialRow(
        study_id=memory.row.id,
        number=record.number,
        state=record.state.value,
        steps=record.steps,
        value=record.value,
        record=record.to_json(),
        until=record.until,
    )
    memory.database.write(Batch(trials=[row]))
    memory.forget()

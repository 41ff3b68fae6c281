"""Results of a study that was opened: what is read of it, and what that gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dasktune.graph.attempts import DispatchOptions
from dasktune.results.results import StudyResults
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.database.database import Database
from tests.dashboard.made_study import Made, made_database


@pytest.fixture
def results(tmp_path: Path) -> Iterator[StudyResults]:
    """Yield the results of a study whose trials share their beginnings."""
    database = Database(made_database(tmp_path, shared=Made(fails_every=10, running=3)))
    (row,) = database.studies()
    options = DispatchOptions(merge=True)
    yield StudyResults(row, database, CheckpointStore(str(tmp_path / "store")), options)
    database.close()


def test_best_trial_is_the_same_without_the_other_trials(results: StudyResults) -> None:
    best = results.best_trial
    assert results._dispatcher is None, "no other trial was read"
    assert best == results.trials[best.number]
    assert (len(best.metrics), best.duration is None) == (20, False)
    assert results.best_trial == best


def test_few_trials_are_the_same_as_among_all(results: StudyResults) -> None:
    few = results._shown([results.records[number] for number in (1, 2, 9, 39)])
    assert results._dispatcher is None
    assert few == [results.trials[number] for number in (1, 2, 9, 39)]

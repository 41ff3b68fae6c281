"""The states that studies keep in a crowded store: the last ones of their best trials."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from dasktune._driver.history import record_of
from dasktune._driver.retention.value import winners
from dasktune._results.rows import objective_of, plan_of, register
from dasktune.errors import CorruptRecordError
from dasktune.storage.database.database import Database
from dasktune.storage.database.rows import StudyRow, TrialRow
from dasktune.storage.retention import Keep
from dasktune.types import Direction, Objective

logger = logging.getLogger(__name__)

DEFAULT = "best:1"
"""The default of `keep`."""

_NOTE = "keep"


def keep_of(database: Database, study_id: int) -> Keep:
    """Return the last noted `keep` of a study."""
    notes = [row.payload["keep"] for row in database.notes(study_id) if row.kind == _NOTE]
    return Keep.parse(notes[-1] if notes else DEFAULT)


def note_keep(database: Database, study_id: int, keep: Keep) -> None:
    """Note what a study keeps for the drivers of other studies, if it has changed."""
    if keep_of(database, study_id) != keep:
        database.note(study_id, {"kind": _NOTE, "keep": str(keep)})


def kept_elsewhere(database: Database, study_id: int | None = None) -> frozenset[str]:
    """Return the keys of the states that all studies but `study_id` keep."""
    keys: set[str] = set()
    for row in database.studies():
        if row.id != study_id:
            try:
                keys.update(kept_keys(database, row, keep_of(database, row.id)))
            except (
                ArithmeticError,
                CorruptRecordError,
                LookupError,
                TypeError,
                ValueError,
            ) as error:
                # Perhaps a study of another version: no reason to end this run.
                logger.warning("what study %r keeps cannot be read: %s", row.name, error)
    return frozenset(keys)


def kept_keys(database: Database, row: StudyRow, keep: Keep) -> list[str]:
    """Return the keys of the last states of a study's best trials, the best trial's first."""
    objective = objective_of(row.spec)
    records = map(record_of, _candidates(database, row, objective, keep))
    plan = plan_of(row)
    best = (trial for trial in winners(records, objective, keep) if trial.steps)
    return [register(plan, trial, trial.steps).key_at(trial.steps) for trial in best]


def _candidates(
    database: Database, row: StudyRow, objective: Objective, keep: Keep
) -> Iterable[TrialRow]:
    """Return the trials among which the best are; the database itself finds a single best."""
    if keep.best == 0:
        return []
    if keep.best == 1 and len(objective.metrics) == 1:
        is_maximized = objective.directions[0] is Direction.MAXIMIZE
        best = database.best_trial(row.id, is_maximized=is_maximized)
        return [] if best is None else [best]
    return database.trials(row.id)

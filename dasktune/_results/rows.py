"""The objective, keys and search plans that follow from the row of a study in the database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dasktune._engine.trials import TrialRecord
from dasktune._results.trial_paths import last_step
from dasktune.errors import CorruptRecordError, shown
from dasktune.graph.keys import SeededRoots, root_key
from dasktune.graph.plan import Node, SearchPlan
from dasktune.storage.database.rows import StudyRow
from dasktune.types import Direction, Objective, Step


def objective_of(spec: Mapping[str, Any]) -> Objective:
    """Return the objective of a study's description: a name, or a list of them.

    Raises
    ------
    CorruptRecordError
        If it describes none.
    """
    try:
        metrics, directions = spec["metric"], spec["direction"]
        if isinstance(metrics, str):
            metrics, directions = [metrics], [directions]
        return Objective(metrics=tuple(metrics), directions=tuple(map(Direction, directions)))
    except (LookupError, TypeError, ValueError) as error:
        raise CorruptRecordError(f"the description of a study cannot be read: {error!r}") from error


def seeded_roots_of(row: StudyRow) -> SeededRoots:
    """Return the states of a study before any step by added seed.

    Raises
    ------
    CorruptRecordError
        If the study's root is no state key, or its description has no fingerprint or no seed.
    """
    try:
        bytes.fromhex(row.root)
    except ValueError:
        raise CorruptRecordError(
            f"root of study {row.name!r} must be hexadecimal digits, got {shown(row.root)}"
        ) from None
    if not row.spec.get("merge"):
        return SeededRoots(fingerprint=row.root)
    try:
        return SeededRoots(fingerprint=str(row.spec["fingerprint"]), seed=row.spec["seed"])
    except LookupError as error:
        raise CorruptRecordError(f"the description of a study cannot be read: {error!r}") from error


def alone_key_of(row: StudyRow) -> str:
    """Return the state key before any step that a study's trials have which are trained alone.

    It is joined with their numbers. Other studies have others, also of the same trainer.
    """
    return root_key(f"alone {row.root} {row.created!r}", 0)


def plan_of(row: StudyRow) -> SearchPlan:
    """Return the plan of a study, without trials."""
    return SearchPlan(
        row.root,
        merge=bool(row.spec.get("merge")),
        seeded=seeded_roots_of(row),
        alone_key=alone_key_of(row),
    )


def registered(
    row: StudyRow, records: Iterable[TrialRecord], *, in_full: bool = False
) -> SearchPlan:
    """Return a plan with trials of a study, each up to the last step that a stage may reach.

    `in_full` takes them to the last step that they may ever reach.
    """
    plan = plan_of(row)
    for record in records:
        until = record.max_steps if in_full else last_step(record)
        if until and record.was_trained_here:
            register(plan, record, until)
    return plan


def register(plan: SearchPlan, record: TrialRecord, until: Step) -> Node:
    """Make a trial known to a plan up to a step, as its study has it; return its last node."""
    return plan.register(
        *(record.number, record.keyed_sequences, until, record.seed),
        is_alone=record.alone is not None,
        numerics=record.numeric_class,
    )

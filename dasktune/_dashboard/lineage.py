"""The lineage of a trial: who trained the states that it rests on, and who uses them now.

A state key names the same state in all studies. So the stages and checkpoints with the keys on a
trial's path, of any study of the database, are its origins; and the trials of other studies whose
paths begin alike use the same states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dasktune._engine.trials import TrialRecord
from dasktune._results.trial_paths import last_reported, rows_on_path
from dasktune.graph.plan import Node, SearchPlan, nodes_along
from dasktune.storage.database.database import Database
from dasktune.storage.redaction import redacted
from dasktune.types import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPlan:
    """The plan of a study, with its name and number.

    `records` are its trials, and `first` the first few of them below each node.
    """

    id: int
    name: str
    plan: SearchPlan
    records: Sequence[TrialRecord]
    first: Mapping[Node, tuple[int, ...]]


def origins(
    database: Database,
    plan: SearchPlan,
    record: TrialRecord,
    names: Mapping[int, str],
    offset: int = 0,
) -> dict[str, object]:
    """Return the stages and the checkpoints on a trial's path, of any study.

    Parameters
    ----------
    plan
        A plan in which the trial is registered.
    names
        Names of the studies by number.
    offset
        Added to the number of a study in the database; the sum is its number on the page.
    """
    stages, stored = rows_on_path(database, plan, record)
    logs = {row.attempt: row.text for row in database.logs_of(row.attempt for row in stages)}
    return {
        "stages": [
            {
                "study": names.get(row.study_id, "(deleted)"),
                "study_id": row.study_id + offset,
                "trials": row.trials,
                "start": row.start,
                "stop": row.stop,
                "steps": row.steps,
                "status": row.status,
                "message": redacted(row.message),
                "worker": row.worker,
                "kind": row.kind,
                "started": row.started,
                "ended": row.ended,
                "log": redacted(logs.get(row.attempt, "")),
            }
            for row in stages
        ],
        "states": [
            {
                "key": row.key,
                "step": row.step,
                "nbytes": row.nbytes,
                "created": row.created,
                "used": row.used,
                "study": None if row.study_id is None else names.get(row.study_id, "(deleted)"),
            }
            for row in stored
        ],
    }


def users(record: TrialRecord, root: str, plans: Sequence[StudyPlan]) -> list[dict[str, object]]:
    """Return the spans of a trial's steps that trials of studies pass through, too.

    Parameters
    ----------
    root
        The key of its state before any step.
    """
    spans = []
    for each in plans:
        for above in each.plan.roots:
            if above.key_at(0) != root:
                continue
            start: Step = 0
            for node, stop in nodes_along(above, record.keyed_sequences, last_reported(record)):
                span = {"study": each.name, "study_id": each.id, "start": start, "stop": stop}
                spans.append({**span, "trials": node.passing, "first": each.first[node]})
                start = stop
    return spans

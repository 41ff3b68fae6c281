"""The log of a trial: the last lines that the stages on its path printed.

A log belongs to the stage, as the states that the stage made do. So trials that share a stage share
its log, also between studies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from dasktune._engine.trials import TrialRecord
from dasktune._results.trial_paths import rows_on_path
from dasktune.graph.plan import SearchPlan
from dasktune.logs import trials_text
from dasktune.storage.database.database import Database
from dasktune.storage.redaction import redacted
from dasktune.types import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLog:
    """The last lines that an attempt printed.

    Parameters
    ----------
    study
        The name of the study that trained the stage; None if the study was deleted.
    trials
        Some of the trials of that study that requested it.
    start, stop
        The steps that it trained.
    status
        How it ended, such as ``trained`` or ``failed``; ``running`` before.
    text
        The lines, without secrets.
    """

    study: str | None
    trials: tuple[int, ...]
    start: Step
    stop: Step
    status: str
    worker: str
    text: str

    @property
    def heading(self) -> str:
        """The stage in a line."""
        who = f"{trials_text(self.trials)} of {self.study or 'a deleted study'}"
        return f"steps {self.start:,} to {self.stop:,}, {self.status} for {who} on {self.worker}"

    def to_json(self) -> dict[str, object]:
        """Return it as a JSON document."""
        return asdict(self)


def stage_logs(database: Database, plan: SearchPlan, record: TrialRecord) -> Iterator[StageLog]:
    """Yield the logs of the stages on a trial's path, of any study, from its first step on."""
    rows, _ = rows_on_path(database, plan, record)
    texts = {log.attempt: log.text for log in database.logs_of(row.attempt for row in rows)}
    names = {study.id: study.name for study in database.studies()}
    for row in rows:
        if row.attempt in texts:
            yield StageLog(
                study=names.get(row.study_id),
                trials=tuple(row.trials),
                start=row.start,
                stop=row.start + row.steps,
                status=row.status,
                worker=row.worker,
                text=redacted(texts[row.attempt]),
            )

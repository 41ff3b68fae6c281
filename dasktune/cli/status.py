"""How studies stand, read from their database: while they run, and after they died."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from dasktune.cli.results import shown
from dasktune.cli.study_file import load
from dasktune.errors import ConfigurationError, unknown
from dasktune.opening import default_database, locate
from dasktune.results import objective_of
from dasktune.storage.database import Database
from dasktune.storage.schema import StageRow, StudyRow, TrialRow
from dasktune.types import Direction, TrialState

DATABASES = ("sqlite", "postgresql")
"""How URLs of databases begin; other URLs are those of checkpoint stores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """How one study stands.

    Parameters
    ----------
    study, metric, direction
        As it was created; several with commas between.
    trials
        Number of trials by state.
    best
        Number, value, steps and params of the best trial; None if there is none, or there are
        several metrics to be traded off.
    steps_requested
        Steps asked for by now.
    steps_executed, steps_repeated
        Steps of the stages that have ended.
    stages
        Number of stages that have ended, by how.
    last_activity
        When the study was created or its last stage ended (epoch seconds).
    """

    study: str
    metric: str
    direction: str
    trials: Mapping[str, int]
    best: Mapping[str, object] | None
    steps_requested: int
    steps_executed: int
    steps_repeated: int
    stages: Mapping[str, int]
    last_activity: float

    def to_json(self) -> dict[str, object]:
        """Return it as a JSON document."""
        return asdict(self)

    def __str__(self) -> str:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.last_activity))
        lines = [
            f"{self.study} ({self.direction} {self.metric})",
            f"  trials  {_counts(self.trials)}",
            f"  best    {_best_text(self.best)}",
            f"  steps   {self.steps_executed:,} trained of {self.steps_requested:,} asked for"
            + (f", {self.steps_repeated:,} of them repeated" if self.steps_repeated else ""),
            f"  stages  {_counts(self.stages)}",
            f"  last    {when}",
        ]
        return "\n".join(lines)


def read(target: str, name: str | None = None, settings: Sequence[str] = ()) -> list[Status]:
    """Return how studies stand; nothing is made or changed.

    Parameters
    ----------
    target
        A study file, a storage folder or URL, or a database's file or URL.
    name
        The only study to look at; all of the database if None, or the file's own.
    settings
        As for `dasktune.cli.study_file.load`, if the target is a study file.

    Raises
    ------
    ConfigurationError
        If the target is none of these, or has no study of that name.
    StorageError
        If there is no database, or it cannot be read.
    """
    path = Path(target)
    if path.suffix == ".py":
        url, own = _asked_of_file(path, settings)
    elif settings:
        raise ConfigurationError(f"config is for a study file, got {target!r}")
    else:
        url, own = _database_of(target), None
    name = name if name is not None else own
    database = Database(url, create=False)
    try:
        rows = list(database.studies())
        known = [row.name for row in rows]
        if name is not None and name not in known:
            raise ConfigurationError(unknown("study", name, known))
        return [_status(database, row) for row in rows if name in (None, row.name)]
    finally:
        database.close()


def _database_of(target: str) -> str:
    """Return the database of a store, or the one that was given."""
    if "://" in target:
        is_database = target.partition(":")[0].partition("+")[0] in DATABASES
        return target if is_database else default_database(target)
    if Path(target).is_dir():
        return default_database(target)
    if Path(target).is_file():
        return target
    raise ConfigurationError(
        f"target must be a study file, a storage folder or a database that exists, got {target!r}"
    )


def _asked_of_file(path: Path, settings: Sequence[str]) -> tuple[str, str]:
    """Return database and name of the study that a file would create or open."""
    found = locate(lambda: load(path, settings).study())
    if found is None:
        raise ConfigurationError(
            f"{path} does not call create_study; give its storage folder instead"
        )
    return found


def _status(database: Database, row: StudyRow) -> Status:
    objective = objective_of(row.spec)
    trials = list(database.trials(row.id))
    stages = [stage for stage in database.stages(row.id) if stage.ended is not None]
    return Status(
        study=row.name,
        metric=", ".join(objective.metrics),
        direction=", ".join(one.value for one in objective.directions),
        trials=dict(Counter(trial.state for trial in trials)),
        best=_best(trials, objective.directions[0]) if len(objective.metrics) == 1 else None,
        steps_requested=_requested(database, row, trials),
        steps_executed=sum(stage.steps for stage in stages),
        steps_repeated=sum(stage.repeated for stage in stages),
        stages=dict(Counter(stage.status for stage in stages)),
        last_activity=max([row.created, *(_end(stage) for stage in stages)]),
    )


def _end(stage: StageRow) -> float:
    return 0.0 if stage.ended is None else stage.ended


def _requested(database: Database, row: StudyRow, trials: Iterable[TrialRow]) -> int:
    """Return how many steps trials ask for: what was reported, or what is still wanted."""
    wanted: dict[tuple[int, int], int] = {}
    for event in database.events(row.id):
        for decision in event.payload.get("decisions", ()):
            if decision["do"] == "extend":
                key = event.payload["place"], decision["trial"]
                wanted[key] = max(wanted.get(key, 0), decision["until"])
    return sum(
        trial.steps
        if TrialState(trial.state).is_finished
        else max(trial.steps, wanted.get((trial.record["tuner"], trial.record["local"]), 0))
        for trial in trials
    )


def _best(trials: Iterable[TrialRow], direction: Direction) -> dict[str, object] | None:
    sign = -1 if direction is Direction.MAXIMIZE else 1
    values = [
        (sign * trial.value, trial.number, trial)
        for trial in trials
        if trial.state != TrialState.FAIL.value
        and trial.value is not None
        and math.isfinite(trial.value)
    ]
    if not values:
        return None
    best = min(values, key=lambda one: one[:2])[2]
    return {
        "number": best.number,
        "value": best.value,
        "steps": best.steps,
        "params": best.record["params"],
    }


def _best_text(best: Mapping[str, object] | None) -> str:
    if best is None:
        return "none yet"
    return f"{shown(best['value'])} (trial {best['number']}, {best['steps']} steps)"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} {name}" for name, number in sorted(counts.items())) or "none"

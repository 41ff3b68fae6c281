"""The status of a study, read from its database: while it runs, and after it ended."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from textwrap import indent
from typing import Any

from dasktune._driver.audit_notes import AuditFigures, differences_of, figures_of
from dasktune._driver.history import History
from dasktune._driver.run_status import RunStatus
from dasktune._results.rows import objective_of
from dasktune._results.state_words import states_text
from dasktune._results.withdrawn import Withdrawn, withdrawn_of
from dasktune._words import counted
from dasktune.algos.forest.ranks import lines_of
from dasktune.graph.classes import classes_text
from dasktune.graph.devices import devices_text
from dasktune.report.formats import duration, printable
from dasktune.report.status_report import (
    MOST_SHOWN,
    DriverStatus,
    ReportedFailure,
    RunningStage,
    driver_of,
    failures_of,
    folded,
    running_of,
    waits_text,
)
from dasktune.storage.database.database import Database
from dasktune.storage.database.rows import RunRow, StudyRow
from dasktune.types import Direction

MOST_FAILED = 200
"""Failed trials, and groups of failed stages, that are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyStatus:
    """The status of one study.

    Parameters
    ----------
    study, metric, direction
        Those of the study; several metrics and directions with commas between.
    trials
        Number of trials by stored state; a trial of a study that nobody runs may be ``RUNNING``.
    best
        Number, value, steps and params of the best trial; None if there is none, or several
        metrics.
    steps_requested
        Steps that were requested so far.
    steps_executed, steps_repeated
        Steps of the stages that have ended.
    steps_audited
        Steps that checks and audits have trained, in no other figure.
    audits
        The results of audits of resumed stages.
    withdrawn
        The results that rest on withdrawn metrics.
    stages
        Number of ended stages, by how they ended.
    last_activity
        When the study was created or its last stage ended (epoch seconds).
    read_at
        When all this was read (epoch seconds).
    driver
        The driver of the last run; None if there was none.
    running
        The stages that run, or ran when the driver died, the longest first.
    run
        The status of the last run at its last heartbeat; None if there was none.
    failures
        Failed trials and stages; of very many only the first.
    """

    study: str
    metric: str
    direction: str
    trials: Mapping[str, int]
    best: Mapping[str, object] | None
    steps_requested: int
    steps_executed: int
    steps_repeated: int
    steps_audited: int
    audits: AuditFigures
    withdrawn: Withdrawn
    stages: Mapping[str, int]
    last_activity: float
    read_at: float
    driver: DriverStatus | None = None
    running: Sequence[RunningStage] = ()
    run: RunStatus | None = None
    failures: Sequence[ReportedFailure] = ()

    def to_json(self) -> dict[str, object]:
        """Return it as a JSON document."""
        document = asdict(self)
        del document["run"]
        run = self.run or RunStatus(seen=0.0)
        waits = [asdict(wait) for wait in run.waits]
        return {
            **document,
            "waits": waits,
            "workers": dict(run.workers),
            "classes": dict(run.classes),
            "models": [asdict(model) for model in run.models],
            "packing": [asdict(model) for model in run.packing],
            "pools": [pool.to_json() for pool in run.pools],
            "seconds_left": run.seconds_left,
        }

    @property
    def _is_driven(self) -> bool:
        return self.driver is not None and self.driver.is_alive

    def __str__(self) -> str:
        return self.in_words()

    def in_words(self, *, verbose: bool = False) -> str:
        """Return it as text.

        Parameters
        ----------
        verbose
            Leave nothing out, and add the tracebacks of failures.
        """
        audited = self.audits.steps
        checked = self.steps_audited - audited
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.last_activity))
        lines = [
            printable(f"{self.study} ({self.direction} {self.metric})"),
            f"  trials  {states_text(self.trials, is_driven=self._is_driven)}",
            f"  best    {_best_text(self.best, self.withdrawn)}",
            f"  steps   {self.steps_executed:,} trained of {self.steps_requested:,} asked for"
            + (f", {self.steps_repeated:,} of them repeated" if self.steps_repeated else "")
            + (f", {self.withdrawn.steps:,} of them withdrawn" if self.withdrawn.steps else "")
            + (f", {checked:,} more by checks" if checked else "")
            + (f", {audited:,} more by audits" if audited else ""),
            f"  stages  {_counts(self.stages)}",
            *self._audit_lines(),
            f"  last    {when}",
            *self._driver_lines(),
            *self._model_lines(verbose),
        ]
        parts = {
            "runs" if self.driver is None or self.driver.is_alive else "ran": map(
                str, self.running
            ),
            "waits": () if self.run is None else waits_text(self.run.waits, self.read_at),
            "failed": self._failures(verbose),
        }
        failed = self.trials.get("FAIL", 0) - sum(
            len(failure.trials) for failure in self.failures if failure.is_final
        )
        for name, texts in parts.items():
            more = max(0, failed) if name == "failed" else 0
            shown_lines = folded(list(texts), shows_all=verbose, more=more)
            lines += [
                f"  {name if not at else '':<7} {line}" for at, line in enumerate(shown_lines)
            ]
        return "\n".join(lines)

    def _audit_lines(self) -> Iterator[str]:
        """Yield the lines about audits: the figures, and what differed."""
        if text := str(self.audits):
            yield f"  audits  {text}"
        for difference in self.audits.differences:
            yield from (f"{'':10}{printable(line)}" for line in difference.splitlines())
        if text := str(self.withdrawn):
            yield f"{'':10}{text}"

    def _driver_lines(self) -> list[str]:
        """Return the lines about the driver and its workers."""
        if self.driver is None:
            return []
        lines = [f"  driver  {self.driver.in_words(self.read_at)}"]
        if self.run is None:
            return lines
        lines += [f"  packing {printable(str(model))}" for model in self.run.packing]
        if not self.driver.is_alive:
            return lines
        if workers := self.run.workers:
            aside = workers.get("aside", 0)
            aside_text = f"{aside:,} put aside, " if aside else ""
            waiting = workers["stages_waiting"]
            lines.append(
                f"  workers {workers['busy']:,} of {workers['usable']:,} busy, {aside_text}"
                f"{counted(waiting, 'stage')} {'waits' if waiting == 1 else 'wait'} for one"
            )
        if self.run.classes:
            lines.append(f"{'':10}{printable(classes_text(self.run.classes))}")
        lines += [f"  pool    {printable(str(pool))}" for pool in self.run.pools]
        if self.run.seconds_left is not None:
            left = duration(self.run.seconds_left)
            lines.append(f"  left    about {left} for what is asked for now")
        return lines

    def _model_lines(self, verbose: bool) -> Iterator[str]:
        """Yield the models of the last run's forest, the largest weight first."""
        models = () if self.run is None else self.run.models
        most = len(models) if verbose else MOST_SHOWN
        for at, line in enumerate(lines_of(models, most)):
            yield f"  {'' if at else 'models':<7} {printable(line)}"

    def _failures(self, verbose: bool) -> Iterator[str]:
        for failure in self.failures:
            text = failure.in_words(self.read_at)
            shows = verbose and failure.traceback
            yield f"{text}\n{indent(failure.traceback.rstrip(), ' ' * 10)}" if shows else text


def status_of(database: Database, row: StudyRow) -> StudyStatus:
    """Return the status of a study, without creating or changing anything."""
    objective = objective_of(row.spec)
    figures, history = database.figures(row.id), History(database, row.id)
    is_single = len(objective.metrics) == 1
    now, run = time.time(), database.last_run(row.id)
    stages = database.failed_stages(row.id, MOST_FAILED)
    named = {number for stage in stages for number in stage.trials}
    differences = differences_of(history)
    failed = database.failed_trials(row.id, MOST_FAILED, named=named)
    return StudyStatus(
        study=row.name,
        metric=", ".join(objective.metrics),
        direction=", ".join(direction.value for direction in objective.directions),
        trials=dict(figures.trials),
        best=_best(database, row.id, objective.directions[0]) if is_single else None,
        steps_requested=figures.steps_requested,
        steps_executed=figures.steps_executed,
        steps_repeated=figures.steps_repeated,
        steps_audited=history.steps_audited,
        audits=figures_of(history),
        withdrawn=withdrawn_of(differences, history.trials().values() if differences else ()),
        stages=dict(figures.stages),
        last_activity=max(row.created, figures.last_end or 0.0),
        read_at=now,
        failures=failures_of(failed, stages),
        **({} if run is None else _of_run(database, run, now)),
    )


def _of_run(database: Database, run: RunRow, now: float) -> dict[str, Any]:
    """Return the fields about the last run, at its last heartbeat if its driver is dead."""
    driver = driver_of(run, now)
    status = RunStatus.from_row(run)
    at = now if driver.is_alive else run.seen
    stages = [] if run.ended is not None else database.open_stages(run.study_id, run.run)
    return {
        "driver": driver,
        "running": running_of(run, stages, at),
        "run": status if driver.is_alive else replace(status, waits=(), seconds_left=None),
    }


def _best(database: Database, study_id: int, direction: Direction) -> dict[str, object] | None:
    best = database.best_trial(study_id, is_maximized=direction is Direction.MAXIMIZE)
    if best is None:
        return None
    record = best.record if isinstance(best.record, dict) else {}
    return {
        "number": best.number,
        "value": best.value,
        "steps": best.steps,
        "params": record.get("params"),
        **({"devices": record["devices"]} if "devices" in record else {}),
    }


def _best_text(best: Mapping[str, object] | None, withdrawn: Withdrawn) -> str:
    if best is None:
        return "none yet"
    periods: Any = best.get("devices")
    devices = f", devices: {devices_text(periods)}" if periods else ""
    steps = counted(int(str(best["steps"])), "step")
    text = f"{_shown(best['value'])} (trial {best['number']}, {steps}{devices})"
    is_withdrawn = best["number"] in withdrawn.trials
    return f"{text}, rests on a withdrawn metric" if is_withdrawn else text


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} {name}" for name, number in sorted(counts.items())) or "none"


def _shown(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else printable(str(value))

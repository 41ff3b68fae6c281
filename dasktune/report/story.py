"""The story of a trial: the decisions about it, and the stages that trained it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from textwrap import indent

from dasktune._driver.history import History
from dasktune._engine.event_log import in_words
from dasktune._engine.trials import TrialRecord
from dasktune._engine.tuner_records import (
    Document,
    FailureTold,
    LoggedRecord,
    OfTrial,
    ReportTold,
    RetrainingEnded,
    TunerWidened,
)
from dasktune._results.rows import registered
from dasktune._results.trial_paths import rows_on_path
from dasktune._words import counted
from dasktune.errors import ConfigurationError
from dasktune.report.formats import duration, printable
from dasktune.storage.database.database import Database
from dasktune.storage.database.rows import StageRow, StudyRow
from dasktune.storage.redaction import redacted
from dasktune.types import Step


def story_of(database: Database, row: StudyRow, number: int) -> str:
    """Return the story of a trial of a study in lines.

    Raises
    ------
    ConfigurationError
        If the study has no such trial.
    """
    history = History(database, row.id)
    records = history.trials()
    if not records:
        raise ConfigurationError(f"the study has no trials yet, so it has no trial {number}")
    if number not in records:
        raise ConfigurationError(f"trial must be 0 to {max(records)}, got {number}")
    record = records[number]
    parts = ["\n".join(_now(record))]
    if record.was_trained_here:
        calls = list(_calls(history, records, record))
        decided = (in_words(call) + _reason(call) for call in calls)
        parts.append(_section("calls of the tuner about it, each with what was decided", decided))
        plan, steps = registered(row, [record], in_full=True), _steps(calls, record)
        stages, _ = rows_on_path(database, plan, record, steps)
        names = {study.id: study.name for study in database.studies() if study.id != row.id}
        trained = (_stage(stage, names.get(stage.study_id, "")) for stage in stages)
        parts.append(_section("trained in stages, which other trials may share", trained))
    else:
        parts.append(
            "added with its results: no tuner has decided about it, no stage has trained it"
        )
    return "\n".join(map(printable, redacted("\n".join(parts)).splitlines()))


def _section(title: str, lines: Iterable[str]) -> str:
    text = "\n".join(lines) or "nothing yet"
    return f"{title}:\n{indent(text, '  ')}"


def _now(record: TrialRecord) -> Iterator[str]:
    """Yield the state of the trial at present."""
    asked = "" if record.until is None else f", asked to train up to step {record.until:,}"
    yield (
        f"trial {record.number}: {record.state.value} after {record.reached:,} of "
        f"{counted(record.max_steps, 'step')}{asked}"
    )
    if record.params:
        yield indent(", ".join(f"{name}={value!r}" for name, value in record.params.items()), "  ")
    if record.message:
        yield indent(record.message, "  ")
    if record.alone is not None:
        yield "  trained alone, from step 0; the stages that it shared before are not shown"


def _calls(
    history: History, records: Mapping[int, TrialRecord], record: TrialRecord
) -> Iterator[LoggedRecord]:
    """Yield the calls of its tuner that were about the trial or all trials, or decided about it."""
    numbers = {each.local: each.number for each in records.values() if each.tuner == record.tuner}
    for call in history.records_of(record.tuner):
        cause = call.cause
        decisions = tuple(
            _with_number(decision, numbers)
            for decision in call.decisions
            if decision.get("trial") == record.local or decision["do"] == "finish"
        )
        is_own = isinstance(cause, OfTrial) and cause.trial == record.local
        if decisions or is_own or isinstance(cause, TunerWidened):
            if isinstance(cause, OfTrial):
                cause = replace(cause, trial=numbers.get(cause.trial, cause.trial))
            yield replace(call, cause=cause, decisions=decisions)


def _with_number(decision: Document, numbers: Mapping[int, int]) -> Document:
    """Return a decision with the number of its trial in the study."""
    if "trial" not in decision:
        return decision
    return {**decision, "trial": numbers.get(decision["trial"], decision["trial"])}


def _reason(call: LoggedRecord) -> str:
    """Return the first line of the reason of a failure, for the end of a text; empty without."""
    if not isinstance(call.cause, FailureTold | RetrainingEnded):
        return ""
    first = call.cause.message.partition("\n")[0]
    return f"\n  reason: {first}" if first else ""


def _steps(calls: Iterable[LoggedRecord], record: TrialRecord) -> set[Step]:
    """Return the steps up to which the trial was asked for, or at which it has reported."""
    steps = set[Step]()
    for call in calls:
        if isinstance(call.cause, ReportTold):
            steps.add(call.cause.step)
        for decision in call.decisions:
            if decision["do"] == "extend":
                steps |= {decision["until"], *decision.get("reports", ())}
    return {step for step in steps if 0 < step <= record.max_steps}


def _stage(row: StageRow, study: str) -> str:
    """Return an attempt at a stage in a line; `study` is that of another study that trained it."""
    stop = row.stop if row.ended is None else row.start + row.steps
    again = f", {row.repeated:,} of them repeated" if row.repeated else ""
    seconds = f" in {duration(row.ended - row.started)}" if row.ended and row.started else ""
    more = f" and {counted(row.workers - 1, 'other worker')}" if row.workers > 1 else ""
    whose = f", trained by study {study}" if study else ""
    why = f": {row.message}" if row.message else ""
    where = f"{row.worker}{more}{whose}{why}"
    return f"steps {row.start:,} to {stop:,}{again}, {row.status}{seconds} on {where}"

"""The story of a trial: what was decided about it, and what trained it, from the database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from textwrap import indent

from dasktune.driver.history import History
from dasktune.engine.event_log import Record, in_words
from dasktune.engine.trials import TrialRecord
from dasktune.errors import ConfigurationError
from dasktune.report.formats import duration, printable
from dasktune.results.results import registered
from dasktune.results.trial_paths import rows_on_path
from dasktune.storage.database.database import Database
from dasktune.storage.database.schema import StageRow, StudyRow
from dasktune.words import counted


def story_of(database: Database, row: StudyRow, number: int) -> str:
    """Return the story of a trial in lines.

    Parameters
    ----------
    database, row
        Where its study is.
    number
        The number of the trial.

    Raises
    ------
    ConfigurationError
        If the study has no such trial.
    """
    history = History(database, row.id)
    records = history.trials()
    if number not in records:
        known = f"0 to {max(records)}" if records else "a trial of the study, which has none"
        raise ConfigurationError(f"trial must be {known}, got {number}")
    record = records[number]
    stages, _ = rows_on_path(database, registered(row, [record]), record)
    names = {study.id: study.name for study in database.studies()}
    parts = [
        "\n".join(_now(record)),
        _section("decided by its tuner", _decisions(history, records, record)),
        _section("trained in stages, which other trials may share", _stages(stages, row, names)),
    ]
    return "\n".join(map(printable, "\n".join(parts).splitlines()))


def _section(title: str, lines: Iterator[str]) -> str:
    text = "\n".join(lines) or "nothing yet"
    return f"{title}:\n{indent(text, '  ')}"


def _now(record: TrialRecord) -> Iterator[str]:
    """Yield what the trial is at present."""
    asked = "" if record.until is None else f", asked for up to step {record.until:,}"
    yield (
        f"trial {record.number}: {record.state.value} after {record.steps:,} of "
        f"{counted(record.max_steps, 'step')}{asked}"
    )
    yield indent(", ".join(f"{name}={value!r}" for name, value in record.params.items()), "  ")
    if record.message:
        yield indent(record.message, "  ")
    if record.alone is not None:
        yield "  trained alone, without sharing steps"


def _decisions(
    history: History, records: Mapping[int, TrialRecord], record: TrialRecord
) -> Iterator[str]:
    """Yield the calls of its tuner that were about the trial, or decided about it."""
    numbers = {each.local: each.number for each in records.values() if each.tuner == record.tuner}
    for each in history.records_of(record.tuner) if record.was_trained_here else ():
        decisions = [what for what in each["decisions"] if what.get("trial") == record.local]
        if decisions or each.get("trial") == record.local:
            yield in_words(_renumbered({**each, "decisions": decisions}, numbers))


def _renumbered(record: Record, numbers: Mapping[int, int]) -> Record:
    """Return a record with the study's numbers of trials in place of the tuner's own."""
    decisions = [
        {**each, "trial": numbers.get(each["trial"], each["trial"])} if "trial" in each else each
        for each in record["decisions"]
    ]
    own = {"trial": numbers.get(record["trial"], record["trial"])} if "trial" in record else {}
    return {**record, **own, "decisions": decisions}


def _stages(stages: list[StageRow], study: StudyRow, names: Mapping[int, str]) -> Iterator[str]:
    """Yield the attempts at the trial's stages, of any study, by their first steps."""
    for row in stages:
        whose = "" if row.study_id == study.id else f" of {names.get(row.study_id, 'no study')}"
        seconds = f" in {duration(row.ended - row.started)}" if row.ended and row.started else ""
        again = f", {row.repeated:,} of them again" if row.repeated else ""
        why = f": {row.message}" if row.message else ""
        yield (
            f"steps {row.start:,} to {row.start + row.steps:,}{again}, {row.status}{seconds} on "
            f"{row.worker}{whose}{why}"
        )

"""Changes to a study from outside of its driver: by the command line and by the live page.

Each is a note in the database. The driver reads requests to stop as it runs; the next run takes
failed trials back, and the next new tuner takes queued points.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import dasktune.algos
from dasktune._driver.history import History
from dasktune._driver.retry_notes import note_retry, trials_to_retry
from dasktune._driver.stop_notes import note_stop
from dasktune._study.additions import NOTHING_QUEUED, clear_queue, queue_point, queued_points
from dasktune.errors import ConfigurationError, refuse, unknown
from dasktune.report.status_report import DriverStatus, driver_of
from dasktune.storage.database.database import Database
from dasktune.storage.database.rows import StudyRow, TrialRow
from dasktune.types import TrialState, Value

MOST_LOOKED_AT = 500
"""The newest trials, from which the coordinates of the space are known."""

Domains = Mapping[str, Sequence[Mapping[str, Any]]]
"""The domains of each coordinate, as JSON documents: several if spaces differ."""


def stop_study(database: Database, row: StudyRow, where: str) -> DriverStatus:
    """Ask the driver of a study to save what runs and to end; return the driver.

    It sees the request with its next heartbeat, and `where` it was made: a command or a page. The
    same command or call continues the study.

    Raises
    ------
    ConfigurationError
        If no driver runs the study.
    """
    run = database.last_run(row.id)
    if run is None:
        raise ConfigurationError(f"study {row.name!r} must run to be stopped; it never did")
    now = time.time()
    driver = driver_of(run, now)
    if not driver.is_alive:
        raise ConfigurationError(
            f"study {row.name!r} must run to be stopped; its driver {driver.in_words(now)}"
        )
    note_stop(History(database, row.id), run.run, where)
    return driver


def retry_trials(database: Database, row: StudyRow, numbers: Collection[int] = ()) -> list[int]:
    """Have the next run of their tuner train failed trials again; return their numbers.

    All that failed if no numbers are given.

    Raises
    ------
    ConfigurationError
        If one of them has not failed, none has, or their tuner takes no failed trial back.
    """
    states = {mark[0]: mark[1] for mark in database.trial_marks(row.id)}
    failed = {number for number, state in states.items() if state == TrialState.FAIL.value}
    refuse(
        f"trial {number} must have failed to be trained again, it is {states[number]}"
        if number in states
        else f"there is no trial {number}"
        for number in sorted(set(numbers) - failed)
    )
    if not failed:
        raise ConfigurationError(f"study {row.name!r} has no failed trial")
    history = _read(database, row)
    trials = list(database.some_trials(row.id, sorted(numbers or failed)))
    taken, refused = [], set()
    for trial in trials:
        tuner = _tuner_of(history, trial)
        kind = getattr(dasktune.algos, tuner, None)
        if kind is None or kind.takes_back:
            taken.append(trial.number)
        else:
            refused.add(tuner)
    if not taken:
        names = ", ".join(sorted(refused))
        raise ConfigurationError(
            f"{names} cannot take a failed trial back: it has decided without it"
        )
    note_retry(history, taken)
    return taken


def enqueue_point(database: Database, row: StudyRow, params: Mapping[str, Value]) -> None:
    """Queue values by coordinate: the next new tuner that draws configurations tries them first.

    Raises
    ------
    ConfigurationError
        If there is no such coordinate, or a value lies outside of its domain.
    """
    domains = known_domains(database, row)
    if not domains:
        raise ConfigurationError(
            f"study {row.name!r} has drawn no trial yet, so its coordinates are not known"
        )
    if not isinstance(params, Mapping):
        raise ConfigurationError(f"params must be values by name, got {params!r}")
    if not params:
        raise ConfigurationError(NOTHING_QUEUED)
    refuse(_problems(params, domains))
    queue_point(_read(database, row), params)


def empty_queue(database: Database, row: StudyRow) -> None:
    """Forget the queued points of a study."""
    clear_queue(_read(database, row))


def pending_changes(database: Database, row: StudyRow) -> dict[str, object]:
    """Return, as JSON, the changes that wait for a run, and the known coordinates."""
    history = _read(database, row)
    return {
        "queued": queued_points(history),
        "retry": sorted(trials_to_retry(history)),
        "domains": known_domains(database, row),
    }


def known_domains(database: Database, row: StudyRow) -> Domains:
    """Return the domains of the coordinates of the newest trials."""
    count = database.count_trials(row.id)
    known: dict[str, list[Mapping[str, Any]]] = {}
    for trial in database.some_trials(row.id, range(max(0, count - MOST_LOOKED_AT), count)):
        for name, document in trial.record.get("domains", {}).items():
            if document not in known.setdefault(name, []):
                known[name].append(document)
    return known


def _problems(params: Mapping[str, Value], domains: Domains) -> Iterator[str]:
    for name, value in params.items():
        if name not in domains:
            yield unknown("coordinate", name, sorted(domains))
        elif not any(_holds(document, value) for document in domains[name]):
            texts = " or ".join(map(_domain_text, domains[name]))
            yield f"{name} must be {texts}, got {value!r}"


def _holds(document: Mapping[str, Any], value: Value) -> bool:
    """Return whether a value lies in a domain; steps of a range are left to the tuner."""
    if document["domain"] == "Choice":
        options = document["options"]
        return any(type(option) is type(value) and option == value for option in options)
    kinds: tuple[type, ...] = (int,) if document["domain"] == "Int" else (int, float)
    is_number = isinstance(value, kinds) and not isinstance(value, bool)
    return is_number and document["low"] <= value <= document["high"]


def _domain_text(document: Mapping[str, Any]) -> str:
    if document["domain"] == "Choice":
        return f"one of {', '.join(map(repr, document['options']))}"
    kind = "an integer" if document["domain"] == "Int" else "a number"
    return f"{kind} from {document['low']} to {document['high']}"


def _tuner_of(history: History, trial: TrialRow) -> str:
    """Return the name of the class of a trial's tuner; empty if a user added the trial."""
    place = trial.record.get("tuner", -1)
    if place not in history.begun:
        return ""
    return str(history.begun[place].identity.get("tuner", ""))


def _read(database: Database, row: StudyRow) -> History:
    history = History(database, row.id)
    history.read_on()
    return history

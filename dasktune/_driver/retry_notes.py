"""Requests to train failed trials again, as notes in the database: the next run takes them."""

from __future__ import annotations

from collections.abc import Iterable

from dasktune._driver.history import History

RETRY = "retry"
"""Kind of the note that asks the next run to train failed trials again."""

RETRIED = "retried"
"""Kind of the note of a run that has taken such trials."""


def note_retry(history: History, trials: Iterable[int]) -> None:
    """Ask the next run of their tuner to train failed trials again."""
    history.note(RETRY, trials=sorted(trials))


def note_retried(history: History, trials: Iterable[int]) -> None:
    """Note that a run has taken trials: the next one does not take them again."""
    if taken := sorted({*trials} & trials_to_retry(history)):
        history.note(RETRIED, trials=taken)


def trials_to_retry(history: History) -> set[int]:
    """Return the trials that somebody asked to train again, and that no run has taken yet."""
    asked: set[int] = set()
    for row in history.database.notes(history.study_id):
        if row.kind == RETRY:
            asked |= {*row.payload["trials"]}
        elif row.kind == RETRIED:
            asked -= {*row.payload["trials"]}
    return asked

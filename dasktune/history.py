"""The history of a study as its database has it: what tuners decided, and notes beside it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from dasktune.algos.base import Tuner
from dasktune.storage.database import Database
from dasktune.storage.schema import EventRow
from dasktune.trials import TrialRecord

Record = Mapping[str, Any]
"""One entry of the log, or one note; JSON."""

CALLS = ("tuner", "ask", "tell", "fail")
"""Kinds of the entries that say what a tuner was called with."""


class History:
    """The log of one study, kept in memory as far as it has been read, and its notes.

    The log belongs to whoever runs the study: its entries have numbers, and two that write
    the same one collide. Notes are free for all; they are read anew whenever asked for.

    Parameters
    ----------
    database
        Where it is.
    study_id
        The study's number there.
    """

    def __init__(self, database: Database, study_id: int) -> None:
        self._database = database
        self._study_id = study_id
        self._log: list[Record] = []
        self.next_number = 0
        """Number of the next entry."""

    def read_on(self) -> bool:
        """Read the entries that others have added; return whether there were any."""
        before = self.next_number
        for row in self._database.events(self._study_id, after=before - 1):
            self.remember(row)
        return self.next_number > before

    def remember(self, row: EventRow) -> None:
        """Take in an entry that has been written."""
        self._log.append(row.payload)
        self.next_number = row.number + 1

    def place_of(self, tuner: Tuner) -> tuple[int, list[Record]]:
        """Return a tuner's place among the study's, and its records if it is known."""
        identity = json.loads(json.dumps(tuner.identity()))
        places = [record for record in self._log if record["kind"] == "tuner"]
        for record in places:
            if record["identity"] == identity:
                place = record["place"]
                calls = (one for one in self._log if one["kind"] in CALLS)
                return place, [one for one in calls if one["place"] == place]
        return len(places), []

    def trials(self) -> dict[int, TrialRecord]:
        """Return the study's trials as they are written."""
        return {
            one.number: TrialRecord.from_json(
                one.record, number=one.number, state=one.state, steps=one.steps
            )
            for one in self._database.trials(self._study_id)
        }

    def notes(self, kind: str) -> list[Record]:
        """Return the notes of a kind, oldest first."""
        rows = self._database.notes(self._study_id)
        return [row.payload for row in rows if row.payload["kind"] == kind]

    def note(self, kind: str, **content: object) -> None:
        """Add a note."""
        self._database.note(self._study_id, {"kind": kind, **content})


def has_ended(records: Iterable[Record]) -> bool:
    """Return whether a tuner's records say that it has ended."""
    decisions = (decision for record in records for decision in record["decisions"])
    return any(decision["do"] == "finish" for decision in decisions)

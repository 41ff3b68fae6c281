"""The history of a study as its database has it: what tuners decided, and notes beside it."""

from __future__ import annotations

import json
from dataclasses import dataclass

from dasktune.algos.base import Tuner
from dasktune.log import KINDS, Record, has_ended, trials_of
from dasktune.storage.database import Database
from dasktune.storage.schema import EventRow
from dasktune.trials import TrialRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a tuner stands in a study.

    Parameters
    ----------
    number
        Its place among the study's tuners.
    tuner
        The tuner as its records began: with fewer trials, if it was widened.
    records
        Its records; empty if it is new.
    widen
        How many trials in all it is to be given now; None if that is what it has.
    """

    number: int
    tuner: Tuner
    records: list[Record]
    widen: int | None = None

    @property
    def has_ended(self) -> bool:
        """Whether nothing is left to do."""
        return self.widen is None and has_ended(self.records)


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
        if row.payload["kind"] == "snapshot":
            # Only the last one is of use, and each is as large as the tuner.
            place = row.payload["place"]
            self._log[:] = [
                one for one in self._log if (one["kind"], one["place"]) != ("snapshot", place)
            ]
        self._log.append(row.payload)
        self.next_number = row.number + 1

    def place_of(self, tuner: Tuner) -> Place:
        """Return a tuner's place among the study's: known by its identity, or new.

        One that is the same but for the number of trials is the known one: widened, or as
        it is if that has more already.
        """
        identity = json.loads(json.dumps(tuner.identity()))
        begun = [record for record in self._log if record["kind"] == "tuner"]
        for record in begun:
            if record["identity"] == identity:
                return Place(
                    number=record["place"], tuner=tuner, records=self._calls(record["place"])
                )
        for record in begun:
            narrow = tuner.widened_from(record["identity"])
            if narrow is not None:
                number, wanted = record["place"], identity["trials"]
                records = self._calls(number)
                now = trials_of(records) or record["identity"]["trials"]
                widen = wanted if now < wanted else None
                return Place(number=number, tuner=narrow, records=records, widen=widen)
        return Place(number=len(begun), tuner=tuner, records=[])

    def _calls(self, place: int) -> list[Record]:
        calls = (one for one in self._log if one["kind"] in KINDS)
        return [one for one in calls if one["place"] == place]

    @property
    def places(self) -> list[list[Record]]:
        """The records of each of the study's tuners."""
        return [self._calls(one["place"]) for one in self._log if one["kind"] == "tuner"]

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

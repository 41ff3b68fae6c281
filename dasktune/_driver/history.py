"""The history of a study in its database: the event log of its tuners, and notes."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dasktune._engine.event_log import ending_of, has_ended
from dasktune._engine.trials import TrialRecord
from dasktune._engine.tuner_records import (
    Document,
    LoggedRecord,
    SnapshotTaken,
    TunerBegun,
    TunerWidened,
    read_record,
)
from dasktune._words import listed
from dasktune.algos.base import Tuner
from dasktune.errors import StorageError
from dasktune.graph.kept_speeds import NOTHING_KEPT, KeptMeasurements
from dasktune.storage.database.database import Batch, Database
from dasktune.storage.database.rows import EventRow, TrialRow
from dasktune.types import Direction, Step

logger = logging.getLogger(__name__)

MOST_GAPS = 5
"""The most gaps of an event log that a message lists."""

BEGUN = "begun"
"""Kind of the event that a run begins with; it belongs to no tuner."""

AUDITED = "audited"
"""Kind of the note of steps that a check or an audit has trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunerPlace:
    """Where a tuner stands in a study: its place, its records, and what it is asked now."""

    number: int
    """Its place among the study's tuners."""
    tuner: Tuner
    """The tuner as its records began: with fewer trials, if it was widened."""
    records: list[LoggedRecord]
    """The records from the last snapshot on, all if there is none; empty if the tuner is new."""
    widen: int | None = None
    """The number of trials that it is given now, in all; None if it has as many."""
    retry: tuple[int, ...] = ()
    """The failed trials that it takes back now, by its own numbers."""
    retrain: tuple[int, ...] = ()
    """The trials that are trained again now, alone, by its own numbers."""

    @property
    def has_ended(self) -> bool:
        """Whether nothing is left to do."""
        is_asked = self.widen is not None or self.retry or self.retrain
        return not is_asked and has_ended(self.records)

    @property
    def ending(self) -> str:
        """Why nothing is left to do, as the tuner says; empty if it says nothing."""
        return ending_of(self.records) if self.widen is None else ""


class History:
    """The event log of one study and its notes, read as far as they are needed.

    Only the events that tuners began with are in memory. The log belongs to the driver that runs
    the study: events have numbers, and two drivers that write the same one collide. Anyone may
    write notes; they are read anew each time.
    """

    def __init__(self, database: Database, study_id: int) -> None:
        self.database = database
        self.study_id = study_id
        self.begun: dict[int, TunerBegun] = {}
        """The beginning of each of the study's tuners by its place, in their order."""
        self.next_number = 0
        """Number of the next event."""
        self._has_warned = False

    def read_on(self) -> bool:
        """Read the events that other drivers have added; return whether there are any."""
        before, self.next_number = self.next_number, self.database.next_event(self.study_id)
        if self.next_number > before:
            rows = self.database.tuner_events(self.study_id, TunerBegun.kind, after=before - 1)
            for row in rows:
                if row.number < self.next_number:
                    self._note_begun(row.payload)
        return self.next_number > before

    def begin(self, run: str, place: int, kept: KeptMeasurements = NOTHING_KEPT) -> bool:
        """Write that a run begins; return False if others have written since this was read.

        From then on every earlier driver finds the number of its next event taken: whoever
        began last runs the study. The driver before may live on a host that was only silent.
        Stages are placed by the measurements `kept`.
        """
        payload: dict[str, object] = {"kind": BEGUN, "place": place, "run": run, "decisions": []}
        if speeds := [speed.to_json() for speed in kept.speeds]:
            payload["speeds"] = speeds
        if factors := [factor.to_json() for factor in kept.factors]:
            payload["packing"] = factors
        row = EventRow(study_id=self.study_id, number=self.next_number, payload=payload)
        try:
            self.database.write(Batch(events=[row]))
        except StorageError:
            if self.database.next_event(self.study_id) == row.number:
                raise
            return False
        self.remember(row)
        return True

    def remember(self, row: EventRow) -> None:
        """Remember an event that has been written."""
        if row.payload["kind"] == TunerBegun.kind:
            self._note_begun(row.payload)
        self.next_number = row.number + 1

    def _note_begun(self, payload: Document) -> None:
        record = read_record(payload)
        if isinstance(record.cause, TunerBegun):
            # A new dict: another thread of the user may look through the one of before.
            self.begun = {**self.begun, record.place: record.cause}

    def known(self, tuner: Tuner) -> tuple[int, Tuner] | None:
        """Return the number of a tuner among the study's, and the tuner as it was begun.

        One that is the same but for the number of trials is the known one.
        """
        identity = _stored_identity(tuner)
        for number, begun in self.begun.items():
            if begun.identity == identity:
                return number, tuner
        for number, begun in self.begun.items():
            narrow = tuner.widened_from(begun.identity)
            if narrow is not None:
                return number, narrow
        return None

    def place_of(self, tuner: Tuner) -> TunerPlace:
        """Return a tuner's place among the study's, known or new.

        A known one with fewer trials is widened; one that has more already is left as it is.
        """
        known = self.known(tuner)
        if known is None:
            self.refuse_gap()  # the missing events may include the beginning of a tuner
            return TunerPlace(number=len(self.begun), tuner=tuner, records=[])
        number, begun = known
        records, widen = self._last_records(number), None
        if begun is not tuner:
            widened = self.database.last_tuner_event(self.study_id, TunerWidened.kind, number)
            now = (self.begun[number].identity if widened is None else widened.payload)["trials"]
            wanted = _stored_identity(tuner)["trials"]
            widen = wanted if now < wanted else None
        return TunerPlace(number=number, tuner=begun, records=records, widen=widen)

    def records_of(self, place: int, after: int = -1) -> Iterator[LoggedRecord]:
        """Return the records of one of the study's tuners, with a number above `after`."""
        return map(read_record, self.documents_of(place, after))

    def documents_of(self, place: int, after: int = -1) -> Iterator[Document]:
        """Return the records of one of the study's tuners as they are stored."""
        rows = self.database.events(self.study_id, after, place=place)
        return (row.payload for row in rows if row.payload["kind"] != BEGUN)

    def _last_records(self, place: int) -> list[LoggedRecord]:
        """Return the records of a tuner from its last snapshot on."""
        snapshot = self.database.last_tuner_event(self.study_id, SnapshotTaken.kind, place)
        after = -1 if snapshot is None else snapshot.number - 1
        self.refuse_gap(after)
        if not self._has_warned and (gaps := self._gaps()):
            self._has_warned = True
            logger.warning(
                "study %s goes on from its last snapshot, but cannot be replayed: %s",
                *(self.database.name_of(self.study_id), gaps),
            )
        return list(self.records_of(place, after))

    def refuse_gap(self, after: int = -1) -> None:
        """Refuse a log that lacks events above a number: events after a gap cannot be replayed.

        Raises
        ------
        StorageError
            If there is a gap.
        """
        if gaps := self._gaps(after):
            raise StorageError(
                f"study {self.database.name_of(self.study_id)} must have all events of its log: "
                f"{gaps}. Its results can still be read; to go on, create a study with another "
                "name in the same store and database: it uses all stored states"
            )

    def _gaps(self, after: int = -1) -> str:
        """Return in words which events above a number are missing; empty if none are."""
        gaps = self.database.missing_events(self.study_id, after)
        if not gaps:
            return ""
        texts = [f"{low}" if low == high else f"{low} to {high}" for low, high in gaps[:MOST_GAPS]]
        more = [f"{len(gaps) - MOST_GAPS:,} more gaps"] if len(gaps) > MOST_GAPS else []
        missing = f"events {listed([*texts, *more])} are missing"
        if gaps == [(gaps[0][0],) * 2]:
            missing = f"event {texts[0]} is missing"
        known = f"decisions are known up to event {gaps[0][0] - 1}"
        return f"{missing}, so {known if gaps[0][0] else 'no decisions are known'}"

    def trials(self) -> dict[int, TrialRecord]:
        """Return the study's trials as they are written."""
        return {row.number: record_of(row) for row in self.database.trials(self.study_id)}

    def best_trial(self, direction: Direction) -> TrialRecord | None:
        """Return the trial with the best finite value of those that did not fail."""
        row = self.database.best_trial(self.study_id, is_maximized=direction is Direction.MAXIMIZE)
        return None if row is None else record_of(row)

    def count_trials(self) -> int:
        """Return how many trials are written."""
        return self.database.count_trials(self.study_id)

    def notes(self, kind: str) -> list[Document]:
        """Return the notes of a kind, oldest first."""
        rows = self.database.notes(self.study_id)
        return [row.payload for row in rows if row.kind == kind]

    def note(self, kind: str, **content: object) -> None:
        """Add a note."""
        self.database.note(self.study_id, {"kind": kind, **content})

    @property
    def steps_audited(self) -> Step:
        """Number of steps that checks and audits have trained for this study."""
        return sum(note["steps"] for note in self.notes(AUDITED))

    def note_audited(self, steps: Step) -> None:
        """Add to the steps that checks and audits have trained for this study."""
        if steps:
            self.note(AUDITED, steps=steps)


def record_of(row: TrialRow) -> TrialRecord:
    """Return the trial of a row."""
    return TrialRecord.from_json(row.record, number=row.number, state=row.state, steps=row.steps)


def _stored_identity(tuner: Tuner) -> Any:
    """Return the identity of a tuner as the event log gives it back."""
    return json.loads(json.dumps(tuner.identity()))

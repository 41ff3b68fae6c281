"""The log of a tuner at work: its new records, and the replay of those that a study has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dasktune._engine.event_log import call, difference_of, seconds_of
from dasktune._engine.session import Session
from dasktune._engine.trial_keeper import TrialKeeper
from dasktune._engine.tuner_records import (
    Cause,
    LoggedRecord,
    NewRecord,
    Record,
    SnapshotTaken,
    TunerWidened,
)
from dasktune.algos.base import Proposal
from dasktune.errors import ConfigurationError
from dasktune.types import Decision, Objective

SNAPSHOT_EVERY = 1000
"""Records of a tuner between two snapshots of it, unless told otherwise."""


class TunerLog:
    """Gathers the records of a tuner, and its snapshots, until they are taken to be written.

    A snapshot follows after `snapshot_every` records, or after as many as the tuner has trials if
    those are more: so a snapshot's share of the cost of a record does not grow.
    """

    def __init__(self, snapshot_every: int = SNAPSHOT_EVERY) -> None:
        self._snapshot_every = snapshot_every
        self._records: list[NewRecord] = []

    def note(self, session: Session, cause: Cause, decisions: Iterable[Decision] = ()) -> None:
        """Add the record of a cause, with the proposals and decisions that followed."""
        self.add(session, cause, decisions, session.tuner.take_proposals())
        session.since_snapshot += 1
        session.seconds = max(session.seconds, seconds_of(cause))

    def add(
        self,
        session: Session,
        cause: Cause,
        decisions: Iterable[Decision] = (),
        proposals: Sequence[Proposal] = (),
    ) -> None:
        """Add a record that does not count for the next snapshot."""
        self._records.append(
            Record(
                cause=cause,
                place=session.place,
                decisions=tuple(decisions),
                proposals=proposals,
            )
        )

    def take(self, session: Session | None) -> tuple[NewRecord, ...]:
        """Return the records since the last call, with a snapshot if it is time for one."""
        if session is not None and self._is_due(session):
            session.since_snapshot = 0
            self.add(session, SnapshotTaken(state=session.snapshot()))
        records, self._records = tuple(self._records), []
        return records

    def _is_due(self, session: Session) -> bool:
        """Whether the next record is a snapshot."""
        return session.since_snapshot >= max(self._snapshot_every, len(session.numbers))

    def drop(self) -> None:
        """Forget the records since they were last taken."""
        self._records = []


def replay_record(
    session: Session, keeper: TrialKeeper, record: LoggedRecord, objective: Objective
) -> None:
    """Give a recorded cause to the tuner, and compare what it decides.

    Raises
    ------
    ConfigurationError
        If the tuner decides otherwise than it did.
    """
    cause = record.cause
    keeper.replay(session, cause)
    session.seconds = max(session.seconds, seconds_of(cause))
    before = session.tuner.max_steps
    decisions = call(session.tuner, record, objective)
    if isinstance(cause, TunerWidened):
        keeper.lengthen(session, before)
    session.tuner.take_proposals()
    difference = difference_of(record, decisions)
    if difference is not None:
        raise ConfigurationError(f"the tuner must decide as recorded: {difference}")
    for decision in decisions:
        keeper.decide(session, decision)
    is_snapshot = isinstance(cause, SnapshotTaken)
    session.since_snapshot = 0 if is_snapshot else session.since_snapshot + 1

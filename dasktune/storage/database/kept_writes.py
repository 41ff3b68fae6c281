"""The last writes of a driver, kept in memory to be written again if the database loses them.

A server may lose its last transactions although it has acknowledged them: a crash with
`synchronous_commit=off`, or an asynchronous replica that takes over. It loses all transactions
after some moment, and keeps all before. So the last event in the log shows which writes are left.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from dasktune._words import counted
from dasktune.errors import FencedError, StorageError
from dasktune.storage.database import schema
from dasktune.storage.database.columns import to_text
from dasktune.storage.database.rows import EventRow

logger = logging.getLogger(__name__)

KEPT_BYTES = 64 * 2**20
"""Most bytes that the kept writes take, about."""

_WRITE_BYTES = 4096
"""Bytes that a write takes beside the text of its rows, about."""


@dataclass(frozen=True, slots=True)
class KeptWrite:
    """A write that is done: its work, and its events in order."""

    work: Callable[[sa.Connection], object]
    events: Sequence[EventRow]
    nbytes: int


class KeptWrites:
    """The last writes of one driver, from its first event on, up to `most` bytes.

    Writing twice is harmless: rows replace rows with the same key. `most` is 0 for a database that
    keeps everything that it has acknowledged.
    """

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._writes: deque[KeptWrite] = deque()
        self._nbytes = 0
        self._study_id = -1
        self._first = self._next = 0
        """The number of the first event that is kept, and of the next one."""

    def add(
        self,
        work: Callable[[sa.Connection], object],
        events: Sequence[EventRow] = (),
        rows: Iterable[Sequence[object]] = (),
    ) -> None:
        """Keep a write with its rows; forget earlier ones if its events do not follow theirs."""
        if not self._most or not (events or self._writes):
            return
        if events:
            first, last = events[0], events[-1]
            if (first.study_id, first.number) != (self._study_id, self._next):
                self.clear()
                self._study_id, self._first = first.study_id, first.number
            self._next = last.number + 1
        nbytes = sum(len(cell) for row in rows for cell in row if isinstance(cell, str))
        self._writes.append(KeptWrite(work, tuple(events), nbytes + _WRITE_BYTES))
        self._nbytes += self._writes[-1].nbytes
        while self._nbytes > self._most and len(self._writes) > 1:
            dropped = self._writes.popleft()
            self._nbytes -= dropped.nbytes
            if dropped.events:
                self._first = dropped.events[-1].number + 1

    def forget(self, study_id: int) -> None:
        """Forget the writes of a study, which is deleted."""
        if study_id == self._study_id:
            self.clear()

    def clear(self) -> None:
        """Forget all writes."""
        self._writes.clear()
        self._nbytes = 0

    def restore(self, connection: sa.Connection, *, is_new: bool) -> None:
        """Write again what the database has lost, in the transaction of a connection.

        On a new connection, the writes after the last event are always written again: the log
        cannot show whether the database has them.

        Raises
        ------
        StorageError
            If more is lost than was kept, or the study is gone.
        FencedError
            If another driver has written events in the place of lost ones.
        """
        if not self._writes:
            return
        last = last_event(connection, self._study_id)
        # The log has later events: our commit without an answer, or another driver's events. The
        # next event that this driver writes shows which.
        if last >= self._next or (last == self._next - 1 and not is_new):
            return
        if last < self._next - 1:
            self._refuse_unless_all_is_kept(connection, last)
        for write in reversed([*self._writes_after(last)]):
            write.work(connection)

    def _refuse_unless_all_is_kept(self, connection: sa.Connection, last: int) -> None:
        """Refuse to write events after the last one in the log, unless all were kept."""
        names = sa.select(schema.studies.c.name).where(schema.studies.c.id == self._study_id)
        study: str | None = connection.execute(names).scalar()
        if study is None:
            raise StorageError(
                f"database {self._name} no longer has the study of this run: it was deleted, or "
                "the server has lost it; run this again to create the study anew"
            )
        lost = f"{counted(self._next - 1 - last, 'event')} of study {study!r}"
        if last < self._first - 1:
            raise StorageError(
                f"database {self._name} has lost {lost} that it had acknowledged, from event "
                f"{last + 1} on, and this driver keeps only those from event {self._first} on. Run "
                f"this again: the study goes on after event {last}, with all states in the store"
            )
        if last >= self._first and not self._is_own(connection, last):
            raise FencedError(fenced(repr(study)))
        logger.warning(
            "database %s has lost %s that it had acknowledged, from event %d on; they are written "
            "again",
            *(self._name, lost, last + 1),
        )

    def _writes_after(self, last: int) -> Iterator[KeptWrite]:
        """Yield the writes after that of an event, the newest first."""
        for write in reversed(self._writes):
            if write.events and write.events[-1].number <= last:
                return
            yield write

    def _is_own(self, connection: sa.Connection, number: int) -> bool:
        """Return whether the event of a number in the log is the one that was written."""
        table = schema.events.c
        of_study, at = table.study_id == self._study_id, table.number == number
        stored = to_text(connection.execute(sa.select(table.payload).where(of_study, at)).scalar())
        events = (event for write in self._writes for event in write.events)
        return any(event.number == number and to_text(event.payload) == stored for event in events)


def last_event(connection: sa.Connection, study_id: int) -> int:
    """Return the number of the last event of a study; -1 without one."""
    number = schema.events.c.number
    query = sa.select(sa.func.max(number)).where(schema.events.c.study_id == study_id)
    last: int | None = connection.execute(query).scalar()
    return -1 if last is None else last


def fenced(study: str) -> str:
    """Return the message for a driver that another driver has replaced."""
    return (
        f"study {study}: another process is running this study; the decisions of that process are "
        "kept. Run this again when that process has ended: the study goes on from its last event"
    )

"""Studies, and the parts that their drivers share: store, database, both in memory, and clock.

What a driver has not written when it is killed, the next one does not find.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from functools import cache

import sqlalchemy as sa

from dasktune._driver.history import History
from dasktune._engine.tuner_records import LoggedRecord
from dasktune.algos.base import Tuner
from dasktune.graph.attempts import DispatchOptions
from dasktune.graph.fair_shares import StudyShares
from dasktune.storage.database import schema
from dasktune.storage.database.database import Database
from dasktune.storage.retention import MOST_BYTES
from dasktune.types import Objective
from tests.torture.books import Books, Told
from tests.torture.fleet import Fleet
from tests.torture.parts import Parts
from tests.torture.ways import ROOT, State, Ways
from tests.torture.workers import Worker
from tests.torture.world import Store

OBJECTIVE = Objective.single("loss", "minimize")

KEPT_BYTES = 2**20
"""Bytes of the writes that a driver keeps in case they are lost."""

BEGAN = 1e9
"""Epoch seconds at which a simulation begins."""


@cache
def _database() -> Database:
    return Database("sqlite://")


def empty_database() -> Database:
    """Return the database of this process, emptied: opening one takes as long as a study."""
    database = _database()
    with database.connections.engine.begin() as connection:
        for table in schema.metadata.sorted_tables:
            connection.execute(table.delete())
    return database


def _sqlite(connection: sa.Connection) -> sqlite3.Connection:
    raw = connection.connection.driver_connection
    assert isinstance(raw, sqlite3.Connection)
    return raw


@dataclass(slots=True)
class World:
    """The parts that the drivers of all studies share.

    Attributes
    ----------
    epoch
        Epoch seconds.
    budget
        Bytes that the store may have.
    evicts
        Whether drivers keep the store under its budget.
    forgets
        Whether the database may lose rows that it has acknowledged.
    trained
        How often each step was trained, by the state that it makes.
    shares
        Shares the workers between two studies, if they have the same ones.
    sharing
        The studies that run there now.
    seconds
        Seconds since the simulation began; they never go back.
    books
        The books of all drivers so far.
    story
        What went wrong, what engines were told, and what they ordered.
    """

    parts: Parts
    store: Store = field(init=False)
    database: Database = field(default_factory=empty_database)
    ways: Ways = field(default_factory=Ways)
    trained: Counter[State] = field(default_factory=Counter)
    epoch: float = BEGAN
    budget: int = MOST_BYTES
    evicts: bool = False
    forgets: bool = False
    shares: StudyShares | None = None
    sharing: set[str] = field(default_factory=set)
    seconds: float = 0.0
    books: list[Books] = field(default_factory=list)
    story: list[str | tuple[str, object]] = field(default_factory=list)
    _number: int = 0
    _rows: bytes = b""

    def __post_init__(self) -> None:
        self.store = Store(self.parts.files(lambda: self.epoch))

    def database_of_driver(self) -> Database:
        """Return the database as a new driver has it, on the one connection of all."""
        database = copy(self.database)
        database.kept = self.parts.kept("torture", KEPT_BYTES if self.forgets else 0)
        return database

    def keep_rows(self) -> None:
        """Keep a copy of all rows, which `lose_rows` restores."""
        if self.forgets:
            with self.database.connections.engine.connect() as connection:
                self._rows = _sqlite(connection).serialize()

    def lose_rows(self) -> None:
        """Lose all rows that were written after the copy, and the connections of all drivers."""
        with self.database.connections.engine.connect() as connection:
            _sqlite(connection).deserialize(self._rows)
        self.database.connections.made += 1

    def next_number(self) -> int:
        """Return a number that was not returned before."""
        self._number += 1
        return self._number


@dataclass(slots=True)
class Study:
    """A study in the database, and the workers that its drivers have.

    Attributes
    ----------
    offset
        Seconds by which the clock of its drivers is ahead of the world's.
    fleet
        What its workers have, and what its trials need.
    now
        Seconds, by the clock of the driver.
    granted
        Returns the workers that a driver may use when it begins; None for all.
    checked_at
        The time at which the check of its trainer ends, by the clock of the driver.
    """

    world: World
    name: str
    make: Callable[[], Tuner]
    options: DispatchOptions
    snapshot_every: int
    offset: float = 0.0
    fleet: Fleet = field(default_factory=Fleet)
    id: int = field(init=False)
    told: Told = field(default_factory=Told)
    workers: dict[str, Worker] = field(default_factory=dict)
    now: float = 0.0
    granted: Callable[[], frozenset[str] | None] = lambda: None
    checked_at: float = 0.0

    def __post_init__(self) -> None:
        study = self.world.database.create_study(self.name, root=ROOT, spec={}, created=BEGAN)
        assert study is not None
        self.id = study.id

    def clock(self) -> float:
        """Return epoch seconds, by the clock of the driver."""
        return self.world.epoch + self.offset

    def records(self) -> list[LoggedRecord]:
        """Return all durable events of the tuner."""
        return list(History(self.world.database, self.id).records_of(0))

    def tell(self, *happenings: object) -> None:
        """Add to the story."""
        self.world.story.extend((self.name, happening) for happening in happenings)

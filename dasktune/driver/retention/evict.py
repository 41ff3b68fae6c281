"""Keeps a store under its byte budget while a study runs: counts, decides when, and removes.

What may go is said by `dasktune.storage.retention`, what it is worth by
`dasktune.driver.retention.value`. The driver's loop calls `Keeper.turn`; listings and removals
happen in threads behind it. The engine is told first that a state is gone, then its commit goes,
then its data: nobody finds half a checkpoint, and who is just reading one trains it again.
"""

from __future__ import annotations

import logging
import math
import queue
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

from dasktune.driver.retention.listing import COMMIT_NBYTES, Survey, survey
from dasktune.driver.retention.value import ENOUGH, OPEN, Worth, places_in, winners
from dasktune.engine.trials import TrialRecord
from dasktune.errors import StorageError
from dasktune.graph.events import Evicted, StoreCrowded
from dasktune.graph.plan import Node, Place
from dasktune.graph.view import RunView
from dasktune.storage.checkpoints import CheckpointStore, Commit
from dasktune.storage.database.database import Database
from dasktune.storage.retention import Retention, State, evictions, size_text, unknown_state
from dasktune.types import Objective

logger = logging.getLogger(__name__)

LISTING_SECONDS = (5.0, 60.0)
"""The store is listed anew after the longer time; after the shorter if much was written."""

MUCH = 0.25
"""Share of the budget that is much."""

SLACK = 0.05
"""Share of the room by which more is freed than must be: rounds cost something, too."""

CROWDED = (0.5, 0.2)
"""Share of the room taken by states that are waited for: from the first on, branches are ended
one after the other, below the second one the longest path goes first again."""

FORGET_SECONDS = 2.0
"""Age of a removal when the database is told: rows of the same states are written by then."""

FADE = 0.998
"""Share of the most that was written during a removal which still counts a removal later."""

REACTION_SECONDS = 0.5
"""How long the driver may well be held up."""

CAUTION = 0.15
"""Most of the budget that is left free for that alone."""

THREADS = 8
"""Removals at a time."""


@dataclass(slots=True)
class _Held:
    """A checkpoint in the store."""

    nbytes: int
    attempt: str | None
    used: float
    seconds: float | None = None
    of_tensors: int | None = None


@dataclass(slots=True)
class _Leaving:
    """A checkpoint that is being removed."""

    held: _Held
    place: Place | None
    written_before: int
    is_saved_again: bool = False


@dataclass(slots=True)
class _Since:
    """What happened while the store was being listed."""

    saved: set[str] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)


class Keeper:
    """Makes room in a store.

    Parameters
    ----------
    store
        The store; everybody's states in it count.
    database
        Is told what is gone.
    retention
        How much there may be, and what stays in any case.
    view, trials, objective
        What runs, and what its trials are compared by.
    kept_elsewhere
        Gives the keys of states that other studies keep.
    write_down
        Makes durable what is known of states that may be let go: the metrics that came with
        them must outlive them.
    clock
        Gives epoch seconds.
    """

    def __init__(
        self,
        store: CheckpointStore,
        database: Database,
        retention: Retention,
        *,
        view: RunView,
        trials: Mapping[int, TrialRecord],
        objective: Objective,
        kept_elsewhere: Callable[[], frozenset[str]] = frozenset,
        write_down: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.retention = retention
        self.evicted = 0
        """How many states had to go so far."""
        self._store = store
        self._database = database
        self._view = view
        self._trials = trials
        self._objective = objective
        self._ask_kept = kept_elsewhere
        self._write_down = write_down
        self._clock = clock
        self._held: dict[str, _Held] = {}
        self._held_nbytes = 0
        self._places: dict[str, Place] = {}
        self._trials_known = 0
        self._unfinished: dict[str, int] = {}
        self._leaving: dict[tuple[str, str | None], _Leaving] = {}
        self._kept: frozenset[str] = frozenset()
        self._stuck: frozenset[str] = frozenset()
        self._saved_again: set[str] = set()
        self._forget: dict[str, float] = {}
        self._done: queue.SimpleQueue[tuple[str, str | None, bool]] = queue.SimpleQueue()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="dasktune-keeper")
        self._listing: Future[Survey] | None = None
        self._since = _Since()
        self._listed_at = 0.0
        self._written = 0
        self._written_before = 0
        self._written_by_listing = -1
        self._second, self._in_second, self._most_in_second = 0.0, 0, 0
        self._burst = 0.0
        self._largest = 0
        self._overhead = COMMIT_NBYTES
        self._is_full = False
        self._is_crowded = False
        self._told_of_full = False
        self._is_closing = False

    # ------------------------------------------------------------ from the driver's loop

    def open(self) -> None:
        """List the store for the first time.

        Raises
        ------
        StorageError
            If it cannot be read.
        """
        self._take_survey(self._survey())

    def saved(self, node: Node, commit: Commit) -> None:
        """Take in the commit of a state at or above a node."""
        key, of_tensors = commit.key, commit.nbytes
        nbytes = of_tensors + self._overhead
        self._unfinished.pop(key, None)
        self._forget.pop(key, None)
        leaving = self._leaving.get((key, commit.attempt)) or self._leaving.get((key, None))
        if leaving is not None:
            # It was there still when a second attempt had trained it, and is gone soon.
            leaving.is_saved_again = True
            return
        held = _Held(nbytes, commit.attempt, self._clock(), commit.seconds, of_tensors)
        self._hold(key, held)
        self._places[key] = (node, commit.step)
        self._since.saved.add(key)
        self._count(nbytes)
        self._is_full = False

    def turn(self) -> list[Evicted | StoreCrowded]:
        """Make room if there is need; return the events for the engine."""
        gone: list[Evicted | StoreCrowded] = [*self._hear_of_removals(), *self._hear_of_listing()]
        if self._listing is None and self._listing_is_due():
            self._since = _Since()
            self._listing = self._pool.submit(self._survey)
        if not self._is_full and self._excess() > 0:
            gone += self._make_room()
        self._tell_database()
        self._written_before = self._written
        return gone

    def close(self) -> list[Evicted]:
        """Make room a last time, now that nothing runs; tell the database all that is gone.

        Returns the evictions that the engine has not received.
        """
        self._is_closing = True
        events = self._make_room() if self._excess() > 0 else []
        gone = [event for event in events if isinstance(event, Evicted)]
        self._pool.shutdown(wait=True)
        gone += self._hear_of_removals()
        for key in self._saved_again - self._held.keys():
            # It was saved just after it had gone, before that was heard of: nobody knows of it.
            self._discard(key, None)
        try:
            self._database.forget_checkpoints(self._forget)
        except StorageError as error:
            logger.warning("rows of checkpoints that are gone could not be removed: %s", error)
        self._forget.clear()
        return gone

    # ----------------------------------------------------------------------- counting

    @property
    def nbytes(self) -> int:
        """Bytes in the store as far as is known, without those on their way out."""
        return self._held_nbytes + sum(self._unfinished.values())

    @property
    def is_busy(self) -> bool:
        """Whether a listing or a removal is under way that was not heard of yet."""
        return self._listing is not None or bool(self._leaving)

    @property
    def _headroom(self) -> int:
        """Bytes to be left free for what is being written while something is removed."""
        if self._is_closing:
            return 0
        writing = self._largest * self._busy
        likely = REACTION_SECONDS * self._most_in_second
        burst = max(self._burst, min(likely, CAUTION * self.retention.budget))
        return writing + int(burst if self.evicted else max(burst, writing))

    @property
    def _busy(self) -> int:
        return self._view.busy_workers

    @property
    def _room(self) -> int:
        return self.retention.budget - self._headroom

    def _hold(self, key: str, held: _Held) -> None:
        before = self._held.get(key)
        self._held_nbytes += held.nbytes - (0 if before is None else before.nbytes)
        self._held[key] = held

    def _count(self, nbytes: int) -> None:
        """Take in that so much was written."""
        now = self._clock()
        if now - self._second >= 1:
            self._second, self._in_second = now, 0
        self._in_second += nbytes
        self._most_in_second = max(self._most_in_second, self._in_second)
        self._written += nbytes
        self._largest = max(self._largest, nbytes)

    def _excess(self) -> int:
        return self.nbytes - self._room

    def _listing_is_due(self) -> bool:
        shortest, longest = LISTING_SECONDS
        age = self._clock() - self._listed_at
        written = self._written - max(self._written_by_listing, 0)
        is_first = self._written_by_listing < 0 < self._written
        is_much = written > MUCH * self.retention.budget and age > shortest
        return is_first or is_much or age > longest

    def _survey(self) -> Survey:
        return survey(
            self._store,
            self._database,
            own=frozenset(self._places),
            now=self._clock(),
            grace=self.retention.grace,
            kept=self._ask_kept,
        )

    def _hear_of_listing(self) -> list[Evicted]:
        if self._listing is None or not self._listing.done():
            return []
        listing, self._listing = self._listing, None
        try:
            return self._take_survey(listing.result())
        except StorageError as error:
            logger.warning("the store could not be listed, its budget is an estimate: %s", error)
            self._listed_at = self._clock()
            return []

    def _take_survey(self, found: Survey) -> list[Evicted]:
        """Take what a listing shows for what there is, but for what happened meanwhile."""
        before = self._held
        leaving = {key for key, _ in self._leaving}
        removed = (self._since.removed | leaving) - before.keys()
        self._held, self._unfinished = {}, dict(found.unfinished)
        for key, one in found.checkpoints.items():
            if key in removed:
                continue
            mine = before.get(key, _Held(one.nbytes, one.attempt, one.used, one.seconds))
            if mine.of_tensors is not None and mine.attempt == one.attempt:
                self._overhead = max(self._overhead, one.nbytes - mine.of_tensors)
            self._held[key] = replace(mine, nbytes=one.nbytes, attempt=one.attempt)
        for key in self._since.saved & before.keys():
            self._held.setdefault(key, before[key])
            self._unfinished.pop(key, None)
        self._held_nbytes = sum(one.nbytes for one in self._held.values())
        own = [self._held[key].nbytes for key in self._places if key in self._held]
        self._largest = max(own, default=self._largest)
        self._kept, self._stuck = found.kept, frozenset()
        self._listed_at, self._is_full = self._clock(), False
        if self._written:
            self._written_by_listing = self._written
        for key, attempt in found.orphans:
            self._pool.submit(self._remove_orphan, key, attempt)
        lost = [key for key in before if key not in self._held and key not in removed]
        self._find_places()
        return [self._gone(place) for key in lost if (place := self._places.pop(key, None))]

    def _find_places(self) -> None:
        """Find the states in the plan of which only a listing told."""
        self._trials_known = len(self._trials)
        if self._held.keys() - self._places.keys():
            found = places_in(self._view.plan, self._held)
            self._places.update({key: at for key, at in found.items() if key in self._held})

    # -------------------------------------------------------------------- making room

    def _make_room(self) -> list[Evicted | StoreCrowded]:
        """Evict the cheapest states; return the events that follow, for states of this plan."""
        self._write_down()
        now = self._clock()
        states = self._states(now)
        strangers = [one for one in states if one.key not in self._places]
        if strangers and len(self._trials) > self._trials_known:
            # Trials that were registered since may know them.
            self._find_places()
            states = self._states(now)
        events: list[Evicted | StoreCrowded] = [*self._crowding(states)]
        excess = self._excess()
        chosen = _enough(evictions(states, excess + int(SLACK * max(self._room, 0))), excess)
        for state in chosen:
            place = self._places.pop(state.key, None)
            self._remove(state.key, place)
            if place is not None:
                events.append(self._gone(place))
        if self._excess() > 0:
            self._is_full = True
            self._warn()
        return events

    def _states(self, now: float) -> list[State]:
        """Return what is stored as what it is worth."""
        worth = Worth(self._view, self._trials, self._objective)
        places = {key: at for key, at in self._places.items() if key in self._held}
        at = {(place[0].holder(place[1]), place[1]): key for key, place in places.items()}
        stays = {at[place] for place in self._needed() if place in at} | self._stuck
        sizes = {key: one.nbytes for key, one in self._held.items()}
        known = [one.seconds for one in self._held.values() if one.seconds]
        unmoved = self._kept | self._stuck
        typical = sum(known) / len(known) if known else 1.0
        return [
            *worth.states(sizes, places, stays),
            *(
                unknown_state(
                    key,
                    one.nbytes,
                    seconds=one.seconds or typical,
                    age=now - one.used,
                    grace=math.inf if key in unmoved else self.retention.grace,
                )
                for key, one in self._held.items()
                if key not in places
            ),
        ]

    def _needed(self) -> Iterable[Place]:
        """Yield where the states lie that must not go."""
        yield from self._view.needed_states()
        plan = self._view.plan
        for trial in winners(self._trials.values(), self._objective, self.retention.keep):
            if trial.steps and trial.number in plan.paths:
                yield plan.node_at(trial.number, trial.steps), trial.steps

    def _crowding(self, states: Iterable[State]) -> list[StoreCrowded]:
        """Return an event if states that wait for their turn begin or cease to fill the store."""
        waiting = sum(one.nbytes for one in states if one.chance >= ENOUGH)
        most, few = CROWDED
        is_crowded = waiting > (few if self._is_crowded else most) * self._room
        if is_crowded == self._is_crowded:
            return []
        self._is_crowded = is_crowded
        return [StoreCrowded(is_crowded=is_crowded)]

    def _gone(self, place: Place) -> Evicted:
        self.evicted += 1
        return Evicted(node=place[0], step=place[1])

    def _warn(self) -> None:
        """Say once that what must stay does not fit."""
        if self._told_of_full or self._stuck:
            return
        self._told_of_full = True
        busy, largest = self._busy, size_text(self._largest)
        # What must stay, and what is written while something goes.
        logger.warning(
            "budget %s is too small%s: needs about %s (keep=%r); "
            "the store grows beyond it by as little as can be",
            size_text(self.retention.budget),
            f" for {busy} workers with states of {largest}" if busy else "",
            size_text(self.nbytes + self._headroom),
            str(self.retention.keep),
        )

    # ----------------------------------------------------------------------- removing

    def _remove(self, key: str, place: Place | None) -> None:
        held = self._held.pop(key)
        self._held_nbytes -= held.nbytes
        self._leaving[key, held.attempt] = _Leaving(held, place, self._written_before)
        self._pool.submit(self._discard, key, held.attempt)

    def _discard(self, key: str, attempt: str | None) -> None:
        """Remove a checkpoint; runs in a thread."""
        is_gone = False
        try:
            self._store.discard(key, attempt=attempt)
            is_gone = True
        except StorageError as error:
            logger.warning("checkpoint %s could not be removed: %s", key, error)
        finally:
            self._done.put((key, attempt, is_gone))

    def _remove_orphan(self, key: str, attempt: str) -> None:
        """Remove what a dead upload left; runs in a thread."""
        try:
            commit = self._store.commit_of(key)
            if commit is None or commit.attempt != attempt:
                self._store.remove_attempt(key, attempt)
        except StorageError as error:
            logger.warning("what is left of attempt %s could not be removed: %s", attempt, error)

    def _hear_of_removals(self) -> list[Evicted]:
        """Take in what has gone; return what must be told to have gone a second time."""
        again = []
        while not self._done.empty():
            key, attempt, is_gone = self._done.get()
            leaving = self._leaving.pop((key, attempt))
            self._burst = max(FADE * self._burst, self._written - leaving.written_before)
            if is_gone:
                self._since.removed.add(key)
                if key not in self._held:
                    self._forget[key] = self._clock()
            else:
                # It stays counted, and is tried again after the next listing.
                self._hold(key, self._held.get(key, leaving.held))
                if leaving.place is not None:
                    self._places.setdefault(key, leaving.place)
                self._stuck |= {key}
            if leaving.is_saved_again:
                self._saved_again.add(key)
            if leaving.is_saved_again and leaving.place is not None:
                again.append(Evicted(node=leaving.place[0], step=leaving.place[1]))
        return again

    def _tell_database(self) -> None:
        """Let rows of states go that have been gone for a while."""
        due = self._clock() - FORGET_SECONDS
        old = [key for key, at in self._forget.items() if at < due]
        if old:
            for key in old:
                del self._forget[key]
            self._pool.submit(partial(self._safely_forget, old))

    def _safely_forget(self, keys: list[str]) -> None:
        try:
            self._database.forget_checkpoints(keys)
        except StorageError as error:
            logger.warning("rows of checkpoints that are gone could not be removed: %s", error)


def _enough(chosen: list[State], excess: int) -> list[State]:
    """Leave out from the end what is likely to be asked for and need not go now."""
    total = sum(one.nbytes for one in chosen)
    while chosen and chosen[-1].chance > OPEN and total - chosen[-1].nbytes >= excess:
        total -= chosen.pop().nbytes
    return chosen

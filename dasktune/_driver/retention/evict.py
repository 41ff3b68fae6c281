"""Eviction: keeps a store under its byte budget while a study runs.

`dasktune.storage.retention` chooses states by their values, which
`dasktune._driver.retention.value` computes; the evictor counts bytes, decides when to choose, and
removes. The driver's loop calls `Evictor.turn`; listings and removals run in threads behind it. The
engine learns first that a state is gone, then its commit is removed, then its data: so nobody finds
half a checkpoint, and a worker that is just reading one trains it again.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from dasktune._driver.attempts import StateDurable, StateRecorded
from dasktune._driver.parts import Following, News, Part
from dasktune._driver.retention.listing import (
    COMMIT_NBYTES,
    StoredState,
    StoreListing,
    list_store,
    remove_orphan,
    tensor_nbytes_of,
)
from dasktune._driver.retention.value import (
    ENOUGH,
    Keyless,
    StateValues,
    StoreValues,
    keyless_in,
    places_of,
    winners,
)
from dasktune._driver.reuse import CommitsRead
from dasktune._engine.timeouts import FORGET_SECONDS, STORE_LISTING_SECONDS
from dasktune._engine.trials import TrialRecord
from dasktune._words import counted
from dasktune.errors import StorageError
from dasktune.graph.events import Evicted, StoreCrowded
from dasktune.graph.plan import Node, NodeStep
from dasktune.graph.view import RunView
from dasktune.storage.checkpoints import CheckpointStore, Commit
from dasktune.storage.database.database import Database
from dasktune.storage.retention import Retention, State, evictions, size_text
from dasktune.types import Objective

logger = logging.getLogger(__name__)

MUCH = 0.25
"""Share of the budget that counts as much."""

SLACK = 0.05
"""Share of the room that is freed beyond the excess, so that rounds come less often.

Each round computes the values of all states. Without it there are twice as many rounds, and
simulated studies train the same steps. No state larger than it is evicted for it alone: with room
for 10 states, a grid whose useful states went for it trained the same steps again and again.
"""

CROWDED = (0.5, 0.2)
"""Share of the room that waiting states fill: the store is crowded from the first share on, and
no more below the second.

Without such an event a grid does not end in a fifth of the room: states of stages that wait are
evicted before it is their turn. With one share of 0.5 it trains 2% more steps in a twentieth of
the room, and SHA 7% more, in simulation.
"""

FADE = 0.998
"""Factor by which the largest burst falls with each removal.

A burst is what was written during one removal. If the store did not answer for a minute, that is
far more than usual, and without this factor the room would stay small until the run ends.
"""

THREADS = 8
"""Removals at a time."""


@dataclass(slots=True)
class _Removal:
    """A checkpoint that is being removed."""

    state: StoredState
    place: NodeStep | None
    written_before: int
    is_saved_again: bool = False


class NoEvictor(Part):
    """Evicts nothing: the store has no budget."""

    def open(self) -> None:
        """Do nothing."""

    def close(self) -> list[Evicted]:
        """Return no event."""
        return []


class Evictor(Part):
    """Makes room in a store, in which all states count, whoever made them.

    `kept_elsewhere` gives the keys of states that other studies keep. `write_down` makes durable
    what is known of states before they are evicted: the metrics that came with them must outlive
    them. `pool` lists and removes, by default in threads; `clock` gives epoch seconds.
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
        pool: Executor | None = None,
    ) -> None:
        self.retention = retention
        self.evicted = 0
        """How many states were evicted so far."""
        self._store = store
        self._database = database
        self._view = view
        self._trials = trials
        self._objective = objective
        self._kept_elsewhere = kept_elsewhere
        self._write_down = write_down
        self._clock = clock
        self._stored: dict[str, StoredState] = {}
        self._stored_nbytes = 0
        self._places: dict[str, NodeStep] = {}
        self._trials_known = 0
        self._placing: Future[dict[str, NodeStep]] | None = None
        self._unfinished: dict[str, int] = {}
        self._removals: dict[tuple[str, str | None], _Removal] = {}
        self._kept: frozenset[str] = frozenset()
        self._stuck: frozenset[str] = frozenset()
        self._unrecorded: set[str] = set()
        self._saved_again: set[str] = set()
        self._forget: dict[str, float] = {}
        self._done: queue.SimpleQueue[tuple[str, str | None, bool]] = queue.SimpleQueue()
        self._pool = pool or ThreadPoolExecutor(THREADS, thread_name_prefix="dasktune-evictor")
        self._listing: Future[tuple[StoreListing, frozenset[str]]] | None = None
        self._saved_since: set[str] = set()  # since a listing began, as the next
        self._removed_since: set[str] = set()
        self._listed_at = 0.0
        self._written = 0
        self._written_before = 0
        self._written_by_listing = -1
        self._burst = 0.0
        self._largest = 0
        self._overhead = COMMIT_NBYTES
        self._is_full = False
        self._is_crowded = False
        self._has_warned = False
        self._is_closing = False

    # ------------------------------------------------------------ from the driver's loop

    def open(self) -> None:
        """List the store for the first time; raise a `StorageError` if it cannot be read."""
        self._receive_listing(*self._list())
        self._take_places(places_of(self._keyless()))

    def met_states(self) -> None:
        """Look for the places of states again, before room is made: the plan has met more."""
        self._trials_known = -1

    def recorded(self, key: str) -> None:
        """Record that the metrics of a state are recorded: it may be evicted now."""
        self._unrecorded.discard(key)

    def saved(self, node: Node, commit: Commit, *, is_recorded: bool = True) -> None:
        """Count a state at or above a node that was committed.

        It stays as long as it has metrics that are not recorded: they would go with it.
        """
        key, tensor_nbytes = commit.key, tensor_nbytes_of(commit.nbytes)
        nbytes = tensor_nbytes + self._overhead
        if is_recorded:
            self._unrecorded.discard(key)
        else:
            self._unrecorded.add(key)
        self._unfinished.pop(key, None)
        self._forget.pop(key, None)
        removal = self._removals.get((key, commit.attempt)) or self._removals.get((key, None))
        if removal is not None:
            # A second attempt trained it while the first one's checkpoint still existed. The
            # store took that for the commit, and the removal under way deletes it.
            removal.is_saved_again = True
            return
        state = StoredState(
            step=commit.step,
            nbytes=nbytes,
            attempt=commit.attempt,
            used=self._clock(),
            seconds=commit.seconds,
            tensor_nbytes=tensor_nbytes,
        )
        self._count(key, state)
        self._places[key] = (node, commit.step)
        self._saved_since.add(key)
        self._written += nbytes
        self._largest = max(self._largest, nbytes)
        self._is_full = False

    def receive(self, news: News, now: float) -> Iterable[Following]:
        """Count states that are stored and recorded, and those that the plan has met."""
        match news:
            case StateDurable():
                self.saved(news.node, news.commit, is_recorded=news.is_recorded)
            case StateRecorded():
                self.recorded(news.key)
            case CommitsRead():
                self.met_states()
            case _:
                pass
        return ()

    def turn(self, now: float) -> list[Evicted | StoreCrowded]:
        """Make room if there is need; return the events for the engine."""
        events: list[Evicted | StoreCrowded] = [
            *self._receive_removals(),
            *self._receive_finished_listing(),
        ]
        has_places = self._receive_places()
        if self._listing is None and self._listing_is_due():
            self._saved_since, self._removed_since = set(), set()
            self._listing = self._pool.submit(self._list)
        if not self._is_full and self._excess() > 0 and self._may_choose(has_places=has_places):
            events += self._make_room()
        self._forget_old_rows()
        self._written_before = self._written
        return events

    def close(self) -> list[Evicted]:
        """Make room a last time, now that nothing runs, and remove all rows that are due.

        Returns the evictions that the engine has not received.
        """
        self._is_closing, self._placing = True, None
        events: list[Evicted | StoreCrowded] = []
        if self._excess() > 0:
            self._take_places(places_of(self._keyless()))
            events = self._make_room()
        evictions = [event for event in events if isinstance(event, Evicted)]
        self._pool.shutdown(wait=True)
        evictions += self._receive_removals()
        for key in self._saved_again - self._stored.keys():
            # It was saved after its removal and before the evictor received that: no listing
            # shows it any more, so it would stay for ever.
            self._discard(key, None)
        self._forget_rows(list(self._forget))
        self._forget.clear()
        return evictions

    # ----------------------------------------------------------------------- counting

    @property
    def nbytes(self) -> int:
        """Bytes in the store as far as is known, without those that are being removed."""
        return self._stored_nbytes + sum(self._unfinished.values())

    @property
    def is_busy(self) -> bool:
        """Whether a listing, places or a removal are under way, or were not received yet."""
        is_looking = self._listing is not None or self._placing is not None
        return is_looking or bool(self._removals)

    @property
    def _headroom(self) -> int:
        """Bytes that are left free for what is written while something is removed."""
        if self._is_closing:
            return 0
        writing = self._largest * self._view.busy_workers
        return writing + int(self._burst if self.evicted else max(self._burst, writing))

    @property
    def _room(self) -> int:
        return self.retention.budget - self._headroom

    def _count(self, key: str, state: StoredState) -> None:
        before = self._stored.get(key)
        self._stored_nbytes += state.nbytes - (0 if before is None else before.nbytes)
        self._stored[key] = state

    def _excess(self) -> int:
        return self.nbytes - self._room

    # ----------------------------------------------------------------------- listings

    def _listing_is_due(self) -> bool:
        shortest, longest = STORE_LISTING_SECONDS
        age = self._clock() - self._listed_at
        written = self._written - max(self._written_by_listing, 0)
        is_first = self._written_by_listing < 0 < self._written
        is_much = written > MUCH * self.retention.budget and age > shortest
        return is_first or is_much or age > longest

    def _list(self) -> tuple[StoreListing, frozenset[str]]:
        """Return the content of the store, and the keys that other studies keep.

        Another study may keep any state, also one that this driver has saved.
        """
        listing = list_store(
            self._store,
            self._database,
            own=frozenset(self._places),
            store_now=self._store.time(),
            now=self._clock(),
            grace=self.retention.grace,
        )
        return listing, self._kept_elsewhere()

    def _receive_finished_listing(self) -> list[Evicted]:
        if self._listing is None or not self._listing.done():
            return []
        listing, self._listing = self._listing, None
        try:
            return self._receive_listing(*listing.result())
        except StorageError as error:
            logger.warning("the store could not be listed, its budget is an estimate: %s", error)
            self._listed_at = self._clock()
            return []

    def _receive_listing(self, listing: StoreListing, kept: frozenset[str]) -> list[Evicted]:
        """Replace the counts by those of a listing; return the states that are gone.

        States that were saved or removed while the store was being listed may be missing in the
        listing, or still be in it.
        """
        before = self._stored
        removing = {key for key, _ in self._removals}
        removed = (self._removed_since | removing) - before.keys()
        self._stored, self._unfinished = {}, dict(listing.unfinished)
        for key, state in listing.checkpoints.items():
            if key in removed:
                continue
            known = before.get(key, state)
            if known.tensor_nbytes is not None and known.attempt == state.attempt:
                self._overhead = max(self._overhead, state.nbytes - known.tensor_nbytes)
            self._stored[key] = replace(known, nbytes=state.nbytes, attempt=state.attempt)
        for key in self._saved_since & before.keys():
            self._stored.setdefault(key, before[key])
            self._unfinished.pop(key, None)
        self._stored_nbytes = sum(state.nbytes for state in self._stored.values())
        own = [self._stored[key].nbytes for key in self._places if key in self._stored]
        self._largest = max(own, default=self._largest)
        self._kept, self._stuck = kept, frozenset()
        self._listed_at, self._is_full = self._clock(), False
        if self._written:
            self._written_by_listing = self._written
        for key, attempt in listing.orphans:
            what = f"what is left of attempt {attempt}"
            self._pool.submit(_attempted, what, remove_orphan, self._store, key, attempt)
        if listing.leftovers:
            what, remove = "what dead processes have left", self._store.files.remove_files
            self._pool.submit(_attempted, what, remove, listing.leftovers)
        lost = [key for key in before if key not in self._stored and key not in removed]
        self._find_places()
        return [self._evicted(place) for key in lost if (place := self._places.pop(key, None))]

    # ------------------------------------------------------------------------- places

    def _keyless(self) -> list[Keyless]:
        """Return the states of the plan whose keys are not known, if a listing showed any."""
        self._trials_known = len(self._trials)
        if not self._stored.keys() - self._places.keys():
            return []
        placed = {(node.holder(step), step) for node, step in self._places.values()}
        return keyless_in(self._view.plan, placed)

    def _find_places(self) -> None:
        """Find the places of states that only a listing showed, in a thread: it hashes."""
        if keyless := self._keyless():
            self._placing = self._pool.submit(places_of, keyless)

    def _receive_places(self) -> bool:
        """Take places that were found; return whether there were any to take."""
        if self._placing is None or not self._placing.done():
            return False
        placing, self._placing = self._placing, None
        self._take_places(placing.result())
        return True

    def _take_places(self, places: Mapping[str, NodeStep]) -> None:
        self._places.update({key: place for key, place in places.items() if key in self._stored})

    def _may_choose(self, *, has_places: bool) -> bool:
        """Return whether places are known well enough to choose what is evicted.

        Unknown states may lie on the way of trials that were registered since the last look. Trials
        that come while a thread looks wait for the next time: or room would never be made.
        """
        if self._placing is None and not has_places and len(self._trials) != self._trials_known:
            self._find_places()
        return self._placing is None

    # -------------------------------------------------------------------- making room

    def _make_room(self) -> list[Evicted | StoreCrowded]:
        """Evict the cheapest states; return the events that follow, for states of this plan."""
        self._write_down()
        states = self._states()
        events: list[Evicted | StoreCrowded] = [*self._crowding(states)]
        excess = self._excess()
        chosen = evictions(states, excess + int(SLACK * max(self._room, 0)))
        if sum(state.nbytes for state in chosen[:-1]) >= excess:
            del chosen[-1:]  # the most useful of them, larger than what is left of the slack
        for state in chosen:
            place = self._places.pop(state.key, None)
            self._remove(state.key, place)
            if place is not None:
                events.append(self._evicted(place))
        if self._excess() > 0:
            self._is_full = True
            self._warn()
        return events

    def _states(self) -> list[State]:
        """Return the stored states with their values."""
        places = {key: place for key, place in self._places.items() if key in self._stored}
        keys = {(node.holder(step), step): key for key, (node, step) in places.items()}
        values = StoreValues(self._stored, now=self._clock(), grace=self.retention.grace)
        values.add(StateValues(self._view, self._trials, self._objective), places)
        values.hold(keys[place] for place in self._needed() if place in keys)
        values.hold(self._kept | self._stuck | self._unrecorded)
        return values.states()

    def _needed(self) -> Iterable[NodeStep]:
        """Yield the places of states that must not be evicted."""
        yield from self._view.needed_states()
        plan = self._view.plan
        for trial in winners(self._trials.values(), self._objective, self.retention.keep):
            if trial.steps and trial.number in plan.paths:
                yield plan.node_at(trial.number, trial.steps), trial.steps

    def _crowding(self, states: Iterable[State]) -> list[StoreCrowded]:
        """Return an event if waiting states begin to fill the store, or cease to."""
        waiting = sum(state.nbytes for state in states if state.chance >= ENOUGH)
        most, few = CROWDED
        is_crowded = waiting > (few if self._is_crowded else most) * self._room
        if is_crowded == self._is_crowded:
            return []
        self._is_crowded = is_crowded
        return [StoreCrowded(is_crowded=is_crowded)]

    def _evicted(self, place: NodeStep) -> Evicted:
        self.evicted += 1
        return Evicted(node=place[0], step=place[1])

    def _warn(self) -> None:
        """Log once that the states that must stay do not fit."""
        if self._has_warned or self._stuck:
            return
        self._has_warned = True
        busy, largest = self._view.busy_workers, size_text(self._largest)
        logger.warning(
            "budget %s is too small%s: needs about %s (keep=%r); "
            "the store grows beyond it by as little as can be",
            size_text(self.retention.budget),
            f" for {counted(busy, 'worker')} with states of {largest}" if busy else "",
            size_text(self.nbytes + self._headroom),
            str(self.retention.keep),
        )

    # ----------------------------------------------------------------------- removing

    def _remove(self, key: str, place: NodeStep | None) -> None:
        state = self._stored.pop(key)
        self._stored_nbytes -= state.nbytes
        self._removals[key, state.attempt] = _Removal(state, place, self._written_before)
        self._pool.submit(self._discard, key, state.attempt)

    def _discard(self, key: str, attempt: str | None) -> None:
        """Remove a checkpoint; runs in a thread."""
        is_gone = False
        try:
            discard = partial(self._store.discard, key, attempt=attempt)
            is_gone = _attempted(f"checkpoint {key}", discard)
        finally:
            self._done.put((key, attempt, is_gone))

    def _receive_removals(self) -> list[Evicted]:
        """Receive finished removals; return the states that are gone a second time."""
        again = []
        while not self._done.empty():
            key, attempt, is_gone = self._done.get()
            removal = self._removals.pop((key, attempt))
            self._burst = max(FADE * self._burst, self._written - removal.written_before)
            if is_gone:
                self._removed_since.add(key)
                if key not in self._stored:
                    self._forget[key] = self._clock()
            else:
                # It stays counted, and is tried again after the next listing.
                self._count(key, self._stored.get(key, removal.state))
                if removal.place is not None:
                    self._places.setdefault(key, removal.place)
                self._stuck |= {key}
            if removal.is_saved_again:
                self._saved_again.add(key)
                if removal.place is not None:
                    again.append(Evicted(node=removal.place[0], step=removal.place[1]))
        return again

    def _forget_old_rows(self) -> None:
        """Remove the rows of states that were removed a while ago."""
        due = self._clock() - FORGET_SECONDS
        old = [key for key, at in self._forget.items() if at < due]
        if old:
            for key in old:
                del self._forget[key]
            self._pool.submit(self._forget_rows, old)

    def _forget_rows(self, keys: list[str]) -> None:
        what = "rows of checkpoints that are gone"
        _attempted(what, self._database.forget_checkpoints, keys)


def _attempted(what: str, remove: Callable[..., object], *arguments: object) -> bool:
    """Remove something, and return whether it is gone; a failure is logged, and the run goes on."""
    try:
        remove(*arguments)
    except (StorageError, OSError) as error:
        logger.warning("%s could not be removed: %s", what, error)
        return False
    return True

"""The memory of an open study: its trials and their dispatcher, which a run changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from dasktune._driver.history import History
from dasktune._driver.recorder import Recorder
from dasktune._driver.reuse import KnownStates
from dasktune._engine.timeouts import WAITS, Waits
from dasktune._engine.trials import TrialRecord
from dasktune._garbage import without_collections
from dasktune._results.rows import alone_key_of, registered, seeded_roots_of
from dasktune.errors import ConfigurationError, InternalError
from dasktune.graph.attempts import DispatchOptions
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.plan import Node, SearchPlan
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.database.database import Database
from dasktune.storage.database.rows import StudyRow


class StudyMemory:
    """The trials of a study and the dispatcher that knows them; each is read when first needed.

    While a run decides (`deciding`), its engine changes both, and they are ahead of the database.
    At any other time they are what the database and the store had when they were read.

    Attributes
    ----------
    options
        How the dispatcher plans stages and saves.
    """

    def __init__(
        self, row: StudyRow, database: Database, store: CheckpointStore, options: DispatchOptions
    ) -> None:
        self.row, self.database, self.store, self.options = row, database, store, options
        self.history = History(database, row.id)
        self._records: dict[int, TrialRecord] | None = None
        self._dispatcher: Dispatcher | None = None
        self._known_states: KnownStates | None = None
        self._counted: SearchPlan | None = None
        """The plan that counts the steps of a settled study, until a trial may change."""
        self._listed_at = 0.0
        self._is_deciding = False
        self._broke_off = False
        """Whether a run has left decisions here that may be missing in the database."""
        self._lock = threading.Lock()
        self.catch_up()

    @property
    def records(self) -> dict[int, TrialRecord]:
        """The present record of each trial by number; read when first asked for."""
        if self._records is None:
            with without_collections():
                self._records = self.history.trials()
        return self._records

    @property
    def records_in_memory(self) -> dict[int, TrialRecord] | None:
        """The records if they are in memory; None if they would have to be read."""
        return self._records

    @property
    def plan(self) -> SearchPlan:
        """The search plan of all trials, with all states that are known; read when first asked."""
        return self.dispatcher().plan

    @property
    def has_plan(self) -> bool:
        """Whether `plan` is in memory."""
        return self._dispatcher is not None

    @property
    def known_states(self) -> KnownStates:
        """The states that the plan was filled with, and that it is filled with from now on."""
        self.dispatcher()
        if self._known_states is None:
            raise InternalError("the plan of a study must be filled from known states")
        return self._known_states

    def dispatcher(self) -> Dispatcher:
        """Return the dispatcher with all trials registered; it is made when first needed."""
        if self._dispatcher is None:
            self._listed_at, self._counted = time.monotonic(), None
            known_states = KnownStates.open(self.database, self.store, self.row.root)
            dispatcher = self._empty_dispatcher(known_states)
            # The longest trials look up most states; the others find these already there.
            furthest_first = sorted(
                self.records.values(), key=lambda trial: -max(trial.steps, trial.until or 0)
            )
            with without_collections():
                for trial in furthest_first:
                    dispatcher.register(
                        *(trial.number, trial.keyed_sequences, trial.max_steps, trial.seed),
                        is_alone=trial.alone is not None,
                        numerics=trial.numeric_class,
                    )
            unread = tuple(known_states.unread)
            commits = known_states.read_commits(unread)
            dispatcher.learn(known_states.receive(unread, commits))
            self._dispatcher, self._known_states = dispatcher, known_states
        return self._dispatcher

    def _empty_dispatcher(self, known_states: KnownStates) -> Dispatcher:
        """Return a dispatcher without trials, whose new nodes are filled with known states."""

        def fill(node: Node) -> None:
            known_states.read(dispatcher.plan.root_key_of(node))
            known_states.fill(dispatcher.plan, node)

        dispatcher = Dispatcher(
            self.row.root,
            self.options.with_prefix(uuid4().hex[:16]),
            on_new=fill,
            may_place=lambda: not known_states.unread,
            seeded=seeded_roots_of(self.row),
            alone_key=alone_key_of(self.row),
        )
        return dispatcher

    def counted_plan(self) -> SearchPlan:
        """Return the plan to count steps in.

        If every trial has reported all that was requested, the records alone tell which steps are
        known: no metrics are read, and no state is looked up. Else it is the plan with all of them.
        """
        records = [record for record in self.records.values() if record.was_trained_here]
        counted = self._counted  # another thread may forget it
        if self._dispatcher is None and counted is not None:
            return counted
        if self._dispatcher is not None or any(
            record.asked > record.reached or record.alone is not None for record in records
        ):
            return self.plan
        plan = registered(self.row, records, in_full=True)
        for record in records:
            if last := min(record.steps, record.max_steps):
                plan.learn(plan.node_at(record.number, last), last, metrics={})
        if self._dispatcher is None:
            self._counted = plan
        return plan

    def recorder(self, run: str = "", waits: Waits = WAITS) -> Recorder:
        """Return a recorder that writes for the study, for a driver's run or for none."""
        return Recorder(
            self.history, self.plan, self.known_states, run, used_seconds=waits.used_seconds
        )

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Refuse to run two tuners at a time: they would share one dispatcher."""
        if not self._lock.acquire(blocking=False):
            raise ConfigurationError(
                f"study {self.row.name!r} must run one tuner at a time; another thread is running "
                "one"
            )
        try:
            with self.database.connections.in_use():
                yield
        finally:
            self._lock.release()

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """Keep the memory while a run changes it; if the run breaks off, forget it when next read.

        A run that ends without an exception has written all that it has decided.
        """
        self._is_deciding = self._broke_off = True
        try:
            yield
            self._broke_off = False
        finally:
            self._is_deciding = False

    def catch_up(self) -> None:
        """Forget the trials in memory if the database may have newer ones.

        Another process may have run the study, or a run of this process broke off. The memory of a
        run that decides is the newest: nobody else writes then.
        """
        if self._is_deciding:
            return
        if self.history.read_on() or self._broke_off:
            self.forget()

    def forget(self) -> None:
        """Forget the trials in memory: they are read anew when next needed."""
        self._records, self._dispatcher, self._counted = None, None, None
        self._broke_off = False

    def look_again(self, seconds: float) -> None:
        """Forget a store listing older than `seconds`: other studies may have saved since."""
        if time.monotonic() - self._listed_at > seconds:
            self._dispatcher, self._counted = None, None

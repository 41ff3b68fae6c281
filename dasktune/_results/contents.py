"""The contents of an open study as its readers see them: nothing here changes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from dasktune._driver.history import History
from dasktune._engine.trials import TrialRecord
from dasktune.graph.attempts import DispatchOptions
from dasktune.graph.plan import SearchPlan
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.database.database import Database
from dasktune.storage.database.rows import StudyRow


class StudyContents(Protocol):
    """Trials and plan of a study: those of the run while one decides, else those of the database.

    Attributes
    ----------
    options
        How its dispatcher plans stages and saves.
    """

    row: StudyRow
    database: Database
    store: CheckpointStore
    history: History
    options: DispatchOptions

    @property
    def records(self) -> Mapping[int, TrialRecord]:
        """The present record of each trial by number; read when first asked for."""

    @property
    def records_in_memory(self) -> Mapping[int, TrialRecord] | None:
        """The records if they are in memory; None if they would have to be read."""

    @property
    def plan(self) -> SearchPlan:
        """The search plan of all trials, with all states that are known; read when first asked."""

    @property
    def has_plan(self) -> bool:
        """Whether `plan` is in memory."""

    def counted_plan(self) -> SearchPlan:
        """Return a plan to count steps in; it may lack metrics."""

    def catch_up(self) -> None:
        """Read anew what another process may have written, unless a run decides here."""

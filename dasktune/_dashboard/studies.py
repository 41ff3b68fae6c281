"""The studies that the page shows, of one database or of several."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from dasktune._dashboard.changes import StudyChanges
from dasktune._dashboard.study_view import StudyView, load_importance
from dasktune.errors import ConfigurationError, CorruptRecordError, unknown
from dasktune.storage.database.database import Database
from dasktune.storage.database.rows import UnreadableStudy

NUMBERS = 1_000_000
"""The numbers of studies of a further database begin so much higher on the page."""


class Studies:
    """The studies of a database, each opened when first asked for.

    Parameters
    ----------
    database
        The database, open for reading.
    only
        The name of the only study to show; None for all.
    first
        The name of the study to show first; the only one, or a list of all, if None.
    changes
        Makes the changes that the page asks for; None makes the page read-only.
    offset
        Added to the number of a study in the database; the sum is its number on the page.

    Raises
    ------
    ConfigurationError
        If there is no study of that name.
    """

    def __init__(
        self,
        database: Database,
        only: str | None = None,
        *,
        first: str | None = None,
        changes: StudyChanges | None = None,
        offset: int = 0,
    ) -> None:
        self.database, self.only, self.changes = database, only, changes
        self.offset = offset
        self._views: dict[int, StudyView] = {}
        self._is_prepared = False
        self._lock = threading.Lock()
        rows, unreadable = database.readable_studies()
        known = {row.name: row.id for row in rows} | {each.study: each.id for each in unreadable}
        if only is not None and only not in known:
            raise ConfigurationError(unknown("study", only, known))
        shown = first if only is None else only
        number = None if shown is None else known.get(shown)
        self.first = None if number is None else number + offset

    def listing(self) -> dict[str, object]:
        """Return the studies in a line each: those that run first, then the newest.

        Those that cannot be read come last, with the problem.
        """
        rows, unreadable = self.database.readable_studies()
        place = self.database.connections.name
        names = ("study", "metric", "direction", "trials", "best", "is_alive", "last_activity")
        listed = []
        for row in rows:
            if self.only not in (None, row.name):
                continue
            try:
                overview = self.view(row.id + self.offset).overview()
            except CorruptRecordError as error:
                problem = UnreadableStudy(study=row.name, problem=str(error), id=row.id)
                unreadable.append(problem)
                continue
            shown = {name: overview[name] for name in names}
            listed.append({"id": row.id + self.offset, "database": place, **shown})
        listed += [
            {"id": each.id + self.offset, "database": place, **each.to_json()}
            for each in unreadable
            if self.only in (None, each.study)
        ]
        return {"studies": sorted(listed, key=_turn), "database": place}

    def prepare(self, pool: ThreadPoolExecutor, study_id: int) -> None:
        """Do once, in a thread, what takes seconds: a reader has come and may ask for it."""
        if not self._is_prepared:
            self._is_prepared = True
            pool.submit(self.view(study_id).tree)
            pool.submit(load_importance)

    def views(self) -> list[StudyView]:
        """Return the views of all shown studies that can be read."""
        rows, _ = self.database.readable_studies()
        views = []
        for row in rows:
            with suppress(CorruptRecordError):
                if self.only in (None, row.name):
                    views.append(self.view(row.id + self.offset))
        return views

    def view(self, study_id: int) -> StudyView:
        """Return the view of a study.

        Raises
        ------
        ConfigurationError
            If there is no such study.
        """
        with self._lock:
            if study_id not in self._views:
                readable, unreadable = self.database.readable_studies()
                rows = {
                    each.id + self.offset: each
                    for each in readable
                    if self.only in (None, each.name)
                }
                for each in unreadable:
                    if each.id + self.offset == study_id:
                        raise CorruptRecordError(str(each))
                if study_id not in rows:
                    raise ConfigurationError(unknown("study", str(study_id), map(str, rows)))
                view = StudyView(rows[study_id], self.database, offset=self.offset)
                self._views[study_id] = view
            return self._views[study_id]

    def changes_of(self, study_id: int) -> StudyChanges | None:
        """Return the maker of changes of a study; None if the study is only read."""
        return self.changes


class Stores:
    """The studies of several databases."""

    def __init__(self, parts: Sequence[Studies]) -> None:
        self._parts = parts
        self.first: int | None = None

    @property
    def changes(self) -> StudyChanges | None:
        """The maker of changes; None if the page is read-only."""
        return self._parts[0].changes

    def listing(self) -> dict[str, object]:
        """Return the studies of all databases, as `Studies.listing` does."""
        listings: list[Any] = [part.listing() for part in self._parts]
        studies = [study for listing in listings for study in listing["studies"]]
        places = ", ".join(listing["database"] for listing in listings)
        return {"studies": sorted(studies, key=_turn), "database": places}

    def prepare(self, pool: ThreadPoolExecutor, study_id: int) -> None:
        """Do once, in a thread, what takes seconds."""
        self._part_of(study_id).prepare(pool, study_id)

    def views(self) -> list[StudyView]:
        """Return the views of all shown studies."""
        return [view for part in self._parts for view in part.views()]

    def view(self, study_id: int) -> StudyView:
        """Return the view of a study, as `Studies.view` does."""
        return self._part_of(study_id).view(study_id)

    def changes_of(self, study_id: int) -> StudyChanges | None:
        """Return the maker of changes of a study; None if the study is only read."""
        return self._part_of(study_id).changes

    def _part_of(self, study_id: int) -> Studies:
        place = study_id // NUMBERS
        if place >= len(self._parts):
            raise ConfigurationError(f"study must be on this page, got number {study_id}")
        return self._parts[place]


def _turn(study: Mapping[str, Any]) -> tuple[bool, bool, float]:
    """Return the place of a study in a listing: those that cannot be read come last."""
    is_alive, last = study.get("is_alive", False), study.get("last_activity", 0.0)
    return "error" in study, not is_alive, -float(last)

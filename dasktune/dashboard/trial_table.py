"""All trials of a study as columns in memory, brought up to date by what has changed."""

from __future__ import annotations

import csv
import io
import json
import math
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from dasktune.dashboard.filters import order_of, parse_filter
from dasktune.storage.database.database import Database
from dasktune.storage.database.schema import TrialRow
from dasktune.storage.redaction import redacted
from dasktune.types import Objective

FIXED = ("number", "state", "steps")
"""The first columns."""

ENDED = "ended"
"""The column with the end of a trial's last stage (epoch seconds)."""

LATE = 60.0
"""Seconds by which the end of a stage may be written later than that of another one."""

_RISKY = ("=", "+", "-", "@", "\t", "\r")
"""First letters of a text that a spreadsheet would run as a formula."""


@dataclass(slots=True)
class TrialEntry:
    """A trial in the table; `version` is that of the table when it last changed."""

    number: int
    state: str
    steps: int
    values: list[float | None]
    params: dict[str, Any]
    version: int
    until: int | None = None


@dataclass(slots=True)
class TrialTable:
    """The trials of a study.

    Parameters
    ----------
    database
        Where the study is.
    study_id
        Its number there.
    objective
        Gives the columns of values.

    Attributes
    ----------
    version
        Grows whenever a trial changes.
    """

    database: Database
    study_id: int
    objective: Objective
    version: int = 0
    entries: dict[int, TrialEntry] = field(default_factory=dict)
    names: dict[str, None] = field(default_factory=dict)
    _marks: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    _ends: dict[int, float] = field(default_factory=dict)
    _seen_until: float = -math.inf
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def refresh(self) -> int:
        """Read what has changed in the database; return the version."""
        with self._lock:
            marks = {mark[0]: mark for mark in self.database.trial_marks(self.study_id)}
            changed = [number for number, mark in marks.items() if self._marks.get(number) != mark]
            ended = self._newly_ended()
            if not changed and not ended:
                return self.version
            version = self.version + 1
            is_first = len(changed) > len(marks) / 2
            rows = (
                self.database.trials(self.study_id)
                if is_first
                else self.database.some_trials(self.study_id, changed)
            )
            for row in rows:
                self._take(row, version)
            for number in ended.keys() & self.entries.keys():
                self.entries[number].version = version
            self._marks, self.version = marks, version
            return version

    @property
    def value_columns(self) -> list[str]:
        """The names of the columns with values: the metrics of the objectives."""
        taken = {*FIXED, ENDED}
        return [f"value {name}" if name in taken else name for name in self.objective.metrics]

    @property
    def columns(self) -> list[str]:
        """The names of all columns."""
        head = [*FIXED, *self.value_columns]
        taken = {*head, ENDED}
        return [*head, *(f"params_{name}" if name in taken else name for name in self.names), ENDED]

    def changed(self, since: int) -> list[int]:
        """Return the numbers of the trials that changed after a version."""
        with self._lock:
            return [entry.number for entry in self.entries.values() if entry.version > since]

    def changes(self, since: int) -> dict[str, object]:
        """Return the trials that changed after a version, as columns."""
        with self._lock:
            changed = [entry for entry in self.entries.values() if entry.version > since]
            return {
                "version": self.version,
                "number": [entry.number for entry in changed],
                "state": [entry.state for entry in changed],
                "steps": [entry.steps for entry in changed],
                "values": [
                    [entry.values[at] for entry in changed]
                    for at in range(len(self.objective.metrics))
                ],
                "ended": [self._ends.get(entry.number) for entry in changed],
            }

    def page(
        self,
        *,
        text: str = "",
        sort: str = "number",
        is_descending: bool = False,
        offset: int = 0,
        limit: int = 100,
    ) -> dict[str, object]:
        """Return some rows of the filtered and sorted table.

        Raises
        ------
        ConfigurationError
            If the filter or the column to sort by is wrong.
        """
        columns, rows = self._selected(text, sort, is_descending)
        return {
            "columns": columns,
            "values": self.value_columns,
            "total": len(self.entries),
            "count": len(rows),
            "offset": offset,
            "rows": rows[offset : offset + limit],
            "version": self.version,
        }

    def to_csv(self, *, text: str = "", sort: str = "number", is_descending: bool = False) -> str:
        """Return the filtered and sorted table as CSV, harmless for spreadsheets."""
        columns, rows = self._selected(text, sort, is_descending)
        out = io.StringIO()
        writer = csv.writer(out)
        writer.writerow(map(_harmless, columns))
        writer.writerows([_harmless(cell) for cell in row] for row in rows)
        return out.getvalue()

    def sampled(self, most: int) -> list[TrialEntry]:
        """Return at most `most` trials with a value: the best half, and others spread evenly."""
        with self._lock:
            valued = [entry for entry in self.entries.values() if entry.values[0] is not None]
        ranked = sorted(valued, key=self.rank)
        if len(ranked) <= most:
            return ranked
        best = ranked[: most // 2]
        others = sorted(ranked[most // 2 :], key=lambda entry: entry.number)
        wanted = most - len(best)
        return [*best, *(others[at * len(others) // wanted] for at in range(wanted))]

    def rank(self, entry: TrialEntry) -> tuple[bool, float, int]:
        """Return a key that sorts trials, the best first, failed ones last."""
        value = entry.values[0]
        if value is None:
            return True, 0.0, entry.number
        loss = self.objective.losses({**dict.fromkeys(self.objective.metrics, value)})[0]
        return entry.state == "FAIL", loss, entry.number

    def _selected(
        self, text: str, sort: str, is_descending: bool
    ) -> tuple[list[str], list[list[Any]]]:
        columns = self.columns
        terms, place = parse_filter(text, columns), order_of(sort, columns)
        places = {name: at for at, name in enumerate(columns)}
        with self._lock:
            rows = list(self._rows())
        if terms:
            rows = [row for row in rows if all(term.holds(row, places) for term in terms)]
        filled = [row for row in rows if row[place] is not None]
        empty = [row for row in rows if row[place] is None]
        filled.sort(key=lambda row: _turn(row[place]), reverse=is_descending)
        return columns, [*filled, *empty]

    def _rows(self) -> Iterator[list[Any]]:
        for entry in self.entries.values():
            cells = [entry.params.get(name) for name in self.names]
            ended = self._ends.get(entry.number)
            yield [entry.number, entry.state, entry.steps, *entry.values, *cells, ended]

    def _take(self, row: TrialRow, version: int) -> None:
        record = row.record if isinstance(row.record, dict) else {}
        values = record.get("values")
        count = len(self.objective.metrics)
        finite = [_finite(value) for value in values] if isinstance(values, list) else []
        params = {name: _cell(value) for name, value in record.get("params", {}).items()}
        self.entries[row.number] = TrialEntry(
            number=row.number,
            state=row.state,
            steps=row.steps,
            values=[*finite, *[None] * count][:count],
            params=params,
            version=version,
            until=row.until,
        )
        self.names |= dict.fromkeys(params)

    def _newly_ended(self) -> dict[int, float]:
        """Return the end of the last stage of each trial, of stages that ended since last time."""
        ends: dict[int, float] = {}
        for trials, ended in self.database.stage_ends(self.study_id, self._seen_until - LATE):
            for number in trials:
                ends[number] = max(ended, ends.get(number, ended))
            self._seen_until = max(self._seen_until, ended)
        later = {
            number: ended
            for number, ended in ends.items()
            if ended > self._ends.get(number, -math.inf)
        }
        self._ends |= later
        return later


def _finite(value: object) -> float | None:
    is_number = isinstance(value, int | float) and math.isfinite(value)
    return float(value) if is_number else None  # type: ignore[arg-type]


def _cell(value: object) -> object:
    """Return a value for a cell: a finite number, a text, a bool or None."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    return redacted(value if isinstance(value, str) else json.dumps(value, default=str))


def _turn(cell: Any) -> tuple[int, Any]:
    """Return a key that sorts cells of several types: numbers first, then texts."""
    if isinstance(cell, int | float):
        return 0, cell
    return 1, str(cell)


def _harmless(cell: object) -> object:
    """Return a cell of CSV that no spreadsheet takes for a formula."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_RISKY) else cell


def split_numbers(text: str) -> Sequence[int]:
    """Return the numbers in a text with commas between them.

    Examples
    --------
    >>> split_numbers("1,22"), split_numbers("")
    ((1, 22), ())
    """
    return tuple(int(part) for part in _parts(text))


def _parts(text: str) -> Iterable[str]:
    return (part for part in text.split(",") if part)

"""All trials of a study in memory, brought up to date by what has changed.

The page gets all rows, and later those that have changed. It filters and sorts them itself.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dasktune._garbage import without_collections
from dasktune.graph.devices import devices_text
from dasktune.storage.database.database import Database
from dasktune.storage.database.rows import TrialRow
from dasktune.storage.redaction import redacted
from dasktune.types import Direction, Objective

FIXED = ("number", "state", "steps")
"""The first columns."""

ENDED = "ended"
"""The column with the end of a trial's last stage (epoch seconds)."""

LATE = 60.0
"""Seconds by which the end of a stage may be written later than that of another one."""

DEVICES = "devices"
"""The column with the numbers of devices, in a study in which several train a trial."""


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
    devices: str = "1"


@dataclass(slots=True)
class TrialTable:
    """The trials of a study.

    Parameters
    ----------
    study_id
        Its number there.
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
    _has_devices: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @without_collections()
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
        last = [DEVICES, ENDED] if self._has_devices else [ENDED]
        taken = {*head, *last}
        return [*head, *(f"params_{name}" if name in taken else name for name in self.names), *last]

    def changed(self, since: int) -> list[int]:
        """Return the numbers of the trials that changed after a version."""
        with self._lock:
            return [entry.number for entry in self.entries.values() if entry.version > since]

    def changes(self, since: int = 0, numbers: Iterable[int] | None = None) -> dict[str, object]:
        """Return the rows that changed after a version, of some trials or of all.

        The values of the objectives follow on the columns of `FIXED`; the end is the last cell.
        """
        with self._lock:
            entries = [
                self.entries[number] for number in (self.entries if numbers is None else numbers)
            ]
            return {
                "version": self.version,
                "columns": self.columns,
                "values": len(self.objective.metrics),
                "rows": [self._row(entry) for entry in entries if entry.version > since],
            }

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
        loss = -value if self.objective.directions[0] is Direction.MAXIMIZE else value
        return entry.state == "FAIL", loss, entry.number

    def _row(self, entry: TrialEntry) -> list[Any]:
        cells = [entry.params.get(name) for name in self.names]
        ended = self._ends.get(entry.number)
        last = [entry.devices, ended] if self._has_devices else [ended]
        return [entry.number, entry.state, entry.steps, *entry.values, *cells, *last]

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
            devices=devices_text(record["devices"]) if "devices" in record else "1",
        )
        self._has_devices |= self.entries[row.number].devices != "1"
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

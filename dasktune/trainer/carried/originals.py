"""The values of variables when the loop began, by which later changes show."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dasktune.trainer.attributes import MOST_ITEMS
from dasktune.trainer.carried.kinds import ARRAYS, inner_parts, is_plain_key, kind_of, outline
from dasktune.trainer.carried.places import Place, SavedParts
from dasktune.trainer.contents import ContentStamp

Path = tuple[Any, ...]
"""Scope, name of the variable, and then indices, keys and names of attributes."""


@dataclass(slots=True, kw_only=True)
class _Record:
    """An object when the loop began.

    Parameters
    ----------
    reference
        Returns the object, or None where it is not held.
    is_closed
        Whether its parts do not count.
    is_empty
        Whether it was made without contents: what was in its memory is no contents.
    parts
        The paths of its parts by index, key or name.
    """

    kind: str
    outline: object = None
    reference: Callable[[], Any]
    stamp: ContentStamp | None = None
    place: Place | None = None
    is_closed: bool = False
    is_empty: bool = False
    has_arrays: bool = False
    parts: dict[Any, Path] = field(default_factory=dict)


class _TooManyError(Exception):
    """A variable has too many parts to look at each."""


class Originals:
    """The variables when the loop began, to compare them later.

    Parameters
    ----------
    is_left_out
        Returns whether a value does not count.
    """

    def __init__(self, places: SavedParts, is_left_out: Callable[[Any], bool]) -> None:
        self._places, self._is_left_out = places, is_left_out
        self._variables: dict[Path, Path] = {}
        self._records: dict[Path, _Record] = {}
        self._paths: dict[int, Path] = {}

    def add(self, path: Path, value: Any, *, is_rebound: bool) -> None:
        """Note a variable, and the parts of its value.

        What the loop sets again is not kept alive if it has arrays: its old ones would fill the
        memory.
        """
        before = {*self._records}
        try:
            first = self._add(path, value, ())
        except _TooManyError:
            for new in self._records.keys() - before:
                del self._records[new]
            first = path
            self._records[path] = _Record(kind=kind_of(value), reference=_None, is_closed=True)
        self._variables[path] = first
        record = self._records[first]
        if not is_rebound and record.kind not in ARRAYS and record.kind != "other":
            record.reference = lambda: value

    def __contains__(self, path: Path) -> bool:
        return path in self._variables

    def note_empty(self, path: Path) -> None:
        """Note that an array has no contents yet, so that all that it has later is a change."""
        self._records[self._variables[path]].is_empty = True

    def path_of(self, value: Any) -> Path | None:
        """Return the path of an object that has been there since the loop began."""
        path = self._paths.get(id(value))
        record = None if path is None else self._records.get(path)
        if path is None or record is None or record.reference() is not value:
            return None
        return path if all(map(is_plain_key, path)) else None

    def is_changed(self, path: Path, value: Any, places: SavedParts) -> bool:
        """Return whether a value is not what was at its path when the loop began."""
        first = self._variables.get(path, path)
        return self._is_changed(first, value, places, set())

    def _add(self, path: Path, value: Any, above: tuple[int, ...]) -> Path:
        """Note a value and its parts; return the path under which it is noted."""
        known = self._paths.get(id(value))
        if known in self._records:
            return known
        if len(self._records) > MOST_ITEMS:
            raise _TooManyError
        kind, place = kind_of(value), self._places.of(value)
        is_closed = place is not None or self._is_left_out(value) or len(above) > _MOST_LEVELS
        record = _Record(kind=kind, reference=_None, place=place, is_closed=is_closed)
        self._records[path] = record
        if kind != "scalar":
            self._paths[id(value)] = path
        if not is_closed:
            record.outline = outline(value, kind)
            record.stamp = ContentStamp.of(value) if kind in ARRAYS else None
            record.has_arrays = kind in ARRAYS
            for key, part in inner_parts(value, kind):
                record.parts[key] = self._add((*path, key), part, (*above, id(value)))
                record.has_arrays |= self._records[record.parts[key]].has_arrays
        record.reference = _reference(value, kind, record.has_arrays)
        return path

    def _is_changed(self, path: Path, value: Any, places: SavedParts, seen: set[int]) -> bool:
        record, kind = self._records.get(path), kind_of(value)
        if record is None or record.kind != kind:
            return True
        held = record.reference()
        if kind == "other" and not record.is_closed:
            return held is not value
        if kind != "scalar" and held is not None and held is not value:
            return True
        if id(value) in seen or self._is_left_out(value):
            return False
        seen.add(id(value))
        place = places.of(value)
        if place is not None or record.place is not None:
            return place != record.place or places.is_moved_by_loading(place)
        if record.is_closed:
            return False
        if record.stamp is not None:
            return record.is_empty or held is not value or not record.stamp.are_those_of(value)
        if record.outline != outline(value, kind):
            return True
        now = dict(inner_parts(value, kind))
        return any(
            key not in now or self._is_changed(part, now[key], places, seen)
            for key, part in record.parts.items()
        )


_MOST_LEVELS = 80


def _none() -> None:
    return None


_None: Callable[[], Any] = _none


def _reference(value: Any, kind: str, has_arrays: bool) -> Callable[[], Any]:
    """Return a function that returns the object while it is alive, or None."""
    if kind in ARRAYS or kind == "other":
        try:
            return weakref.ref(value)
        except TypeError:  # an object without weak references
            return lambda: value
    return _None if has_arrays or kind == "scalar" else lambda: value

"""Columns: how a row's values are spelled in the database, and read back exactly."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from operator import attrgetter
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import sqlalchemy as sa

from dasktune._engine.event_log import describe
from dasktune.errors import CorruptRecordError, shown
from dasktune.storage.metrics import metrics_from_json, metrics_to_text

to_text = json.JSONEncoder(separators=(",", ":"), default=describe).encode
"""Writes JSON as it is stored, NaN and infinities included, and decisions as their documents."""


class Encoded(str):
    """JSON that is text already, to be written as it is."""

    __slots__ = ()


class JsonText(sa.types.TypeDecorator[Any]):
    """JSON as text, NaN and infinities included, so that every float comes back exactly."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: object) -> str:
        """Return the text of a value."""
        return value if isinstance(value, Encoded) else to_text(value)

    def texts_of(self, values: Iterable[Any]) -> list[Any]:
        """Return the texts of many values, without a call for each."""
        return [value if isinstance(value, Encoded) else to_text(value) for value in values]

    def process_result_value(self, value: Any, dialect: object) -> Any:
        """Return the value of a text."""
        return _loaded(value)

    def values_of(self, texts: Iterable[str]) -> list[Any]:
        """Return the values of many texts: one document for all is much faster to read."""
        many = list(map(_text, texts))
        values: list[Any] = _loaded(f"[{','.join(many)}]")
        if len(values) != len(many):
            raise CorruptRecordError("the database holds invalid JSON: several values in one place")
        return values


def _loaded(text: Any) -> Any:
    """Return the value of JSON text; anyone with access to the database may have written it."""
    try:
        return json.loads(text)
    except (RecursionError, TypeError, ValueError) as error:
        raise CorruptRecordError(f"the database holds invalid JSON: {error}") from error


class MetricsText(JsonText):
    """Metrics as strict JSON text."""

    cache_ok = True

    def process_bind_param(self, value: Any, dialect: object) -> str:
        """Return the text of metrics."""
        return metrics_to_text(value)

    def texts_of(self, values: Iterable[Any]) -> list[Any]:
        """Return the texts of many metrics, without another call for each."""
        return list(map(metrics_to_text, values))

    def process_result_value(self, value: Any, dialect: object) -> dict[str, float]:
        """Return the metrics of a text."""
        return _metrics(_loaded(value))

    def values_of(self, texts: Iterable[str]) -> list[Any]:
        """Return the metrics of many texts."""
        return list(map(_metrics, super().values_of(texts)))


class ExactFloat(sa.types.TypeDecorator[float]):
    """A float as its shortest spelling: SQLite turns NaN into NULL and -0.0 into 0.0."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: float | None, dialect: object) -> str | None:
        """Return the spelling of a float."""
        return None if value is None else repr(float(value))

    def texts_of(self, values: Iterable[float | None]) -> list[Any]:
        """Return the spellings of many floats, without a call for each."""
        return [None if value is None else repr(float(value)) for value in values]

    def process_result_value(self, value: Any, dialect: object) -> float | None:
        """Return the float of a spelling."""
        try:
            return None if value is None else float(value)
        except (TypeError, ValueError):
            raise CorruptRecordError(
                f"the database must hold a number, got {shown(value)}"
            ) from None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise CorruptRecordError(f"the database must hold JSON, got {shown(value)}")
    return value


def _metrics(document: Any) -> dict[str, float]:
    try:
        return metrics_from_json(document)
    except (AttributeError, OverflowError, TypeError, ValueError):
        raise CorruptRecordError(f"the database must hold metrics, got {shown(document)}") from None


_WORDS = {int: "whole numbers >= 0", float: "finite numbers", str: "texts", bool: "true or false"}
"""The values of columns, in words of messages."""


_ODD: Mapping[type, Callable[[Any], bool]] = {int: lambda cell: cell < 0, float: math.isinf}
"""Whether a value of a type cannot be one of ours: amounts and times are >= 0 and finite."""


def check_cells(kind: type, column: sa.Column[Any], cells: Sequence[Any]) -> None:
    """Refuse the cells of a column whose values are of another type than the field of their row.

    SQLite keeps any value in any column. Whole numbers are counts, and numbers are times.

    Raises
    ------
    CorruptRecordError
        If there is such a value.
    """
    expected = _type_of(kind, column.name)
    if expected is None:
        return
    allowed = {expected, int} if expected is float else {expected}
    if column.nullable:
        allowed.add(type(None))
    is_typed = set(map(type, cells)) <= allowed
    odd = _ODD.get(expected) if expected is int or isinstance(column.type, sa.Double) else None
    if is_typed and (odd is None or not any(map(odd, filter(None, cells)))):
        return
    wrong = next(cell for cell in cells if type(cell) not in allowed or (odd and odd(cell or 0)))
    words = _WORDS.get(expected) or f"a JSON {'object' if expected is dict else 'list'} each"
    raise CorruptRecordError(
        f"column {column.table.name}.{column.name} of the database must hold {words}, "
        f"got {shown(wrong)}"
    )


@cache
def _type_of(kind: type, name: str) -> type | None:
    """Return the type that the field of a row has beside None; None if it may have any."""
    hint = get_type_hints(kind)[name]
    parts = [part for part in get_args(hint) if part is not type(None)]
    alone = parts[0] if isinstance(hint, UnionType) else hint
    plain = get_origin(alone) or alone
    return plain if plain in (*_WORDS, list, dict) else None


def columns_of(kind: type, table: sa.Table) -> list[sa.Column[Any]]:
    """Return the columns of a table that a kind of row has fields for, in their order."""
    return [table.c[part.name] for part in fields(kind)]


def row_values(
    kind: type, table: sa.Table, derived: Mapping[str, Callable[[Any], Any]]
) -> Callable[[Sequence[Any]], list[tuple[Any, ...]]]:
    """Return a function from rows to the plain values of their table's columns.

    Parameters
    ----------
    kind
        The data class of the rows; its fields are the table's first columns.
    derived
        By name, the functions that compute the remaining columns from a row.
    """
    names = [part.name for part in fields(kind)]
    if [*names, *derived] != table.columns.keys():
        raise TypeError(f"columns of {table.name} must be the fields of {kind.__name__}")
    read, extra = attrgetter(*names), tuple(derived.values())
    # Every report is a row: column by column, most of its values take no call of ours.
    spelled = [
        (index, column.type.texts_of)
        for index, column in enumerate(columns_of(kind, table))
        if isinstance(column.type, JsonText | ExactFloat)
    ]

    def values(rows: Sequence[Any]) -> list[tuple[Any, ...]]:
        if not rows:
            return []
        columns: list[Iterable[Any]] = list(zip(*map(read, rows), strict=True))
        for index, texts_of in spelled:
            columns[index] = texts_of(columns[index])
        columns += [map(compute, rows) for compute in extra]
        return list(zip(*columns, strict=True))

    return values

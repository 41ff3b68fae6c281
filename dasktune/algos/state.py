"""A tuner's options and state as JSON, written and read by the types of their fields.

- A float that is not finite is null, which a plain ``float`` reads as infinity.
- A set is an ascending list; a tuple is a list.
- A dict is an object if its keys are text, else a list of rows ``[key, value]``; tuples in a
  row stand flat, as in ``[population, step, [...]]``.
- A dict by trial, of values that have a field ``trial``, is a list of those values.
- A dataclass is an object of the fields that its constructor takes. A class with `to_json`
  and `from_json` describes itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from itertools import repeat
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from dasktune.errors import ConfigurationError

Writer = Callable[[Any], Any]

Readers = Mapping[type, Callable[[Any], object]]
"""How values are read that need more than their document, by their class."""


def to_json(kind: Any, value: Any) -> Any:
    """Return a value of an annotated type as JSON.

    Examples
    --------
    >>> to_json(dict[int, tuple[float, int]], {3: (0.5, 2), 4: (math.inf, 1)})
    [[3, 0.5, 2], [4, None, 1]]
    """
    return _writer(kind)(value)


def from_json(kind: Any, document: Any, readers: Readers) -> Any:
    """Return the value that `to_json` described.

    Raises
    ------
    TypeError, ValueError, KeyError
        If the document describes no value of this type.
    """
    shape, inner = _shape(kind)
    if document is None and NoneType in get_args(kind):
        return None
    if shape is float:
        return math.inf if document is None else float(document)
    if shape in readers:
        return readers[shape](document)
    if shape in (set, frozenset, list, tuple):
        pairs = zip(_each(inner), _list(document), strict=False)
        return shape(from_json(each, item, readers) for each, item in pairs)
    if shape in (dict, Mapping):
        return _mapping_from_json(inner, document, readers)
    if hasattr(shape, "from_json"):
        return shape.from_json(document)
    if is_dataclass(shape):
        return _fields_from_json(shape, document, readers)
    if isinstance(shape, type) and issubclass(shape, Enum):
        return shape(document)
    if shape is not Literal and not isinstance(document, shape):
        raise TypeError(f"{document!r} is no {shape.__name__}")
    return document


def state_to_json(owner: object, names: tuple[str, ...]) -> dict[str, object]:
    """Return attributes of an object, by their names without an underscore at the front."""
    kind = type(owner)
    return {name.lstrip("_"): to_json(_type_of(kind, name), getattr(owner, name)) for name in names}


def set_state(
    owner: object, names: tuple[str, ...], document: Mapping[str, object], readers: Readers
) -> None:
    """Set the attributes of an object to the values that `state_to_json` described.

    Raises
    ------
    ConfigurationError
        If the document describes other attributes; then none is set.
    """
    keys = {name.lstrip("_"): name for name in names}
    try:
        if document.keys() != keys.keys():
            raise TypeError(f"it must have {', '.join(keys)}")
        state = {
            name: from_json(_type_of(type(owner), name), document[key], readers)
            for key, name in keys.items()
        }
    except (TypeError, ValueError, KeyError) as error:
        raise ConfigurationError(f"not the state of this tuner ({error}): {document!r}") from error
    for name, value in state.items():
        setattr(owner, name, value)


def types_of(kind: Any) -> dict[str, Any]:
    """Return the types of a class's attributes by name."""
    return _types_of(kind)


@cache
def _types_of(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _type_of(kind: type, name: str) -> Any:
    # Not from the class itself: a user's subclass may have annotations that only tools can read.
    annotated = (base for base in kind.__mro__ if name in vars(base).get("__annotations__", ()))
    return types_of(next(annotated))[name]


def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind) if field.init)


def _shape(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the class of an annotation without None, and the types inside."""
    if isinstance(kind, UnionType) or get_origin(kind) is Union:
        known = [each for each in get_args(kind) if each is not NoneType]
        kind = known[0] if len(known) == 1 else object
    return get_origin(kind) or kind, get_args(kind)


def _each(inner: tuple[Any, ...]) -> Any:
    """Return the types of the items of a collection, one after the other."""
    return repeat(inner[0]) if len(inner) == 1 or inner[1] is ... else inner


def _list(document: object) -> list[Any]:
    if not isinstance(document, list):
        raise TypeError(f"{document!r} is no list")
    return document


def _width(kind: Any) -> int | None:
    """Return the number of cells that a flat type takes in a row; None for other types."""
    shape, inner = _shape(kind)
    return len(inner) if shape is tuple and inner[-1] is not ... else None


def _has_trial(kind: Any) -> bool:
    return is_dataclass(kind) and "trial" in _names(kind)


@cache
def _writer(kind: Any) -> Writer:
    """Return the function that writes values of a type, put together once: snapshots are often."""
    write = _writer_of(*_shape(kind))
    if write is _same or NoneType not in get_args(kind):
        return write
    return lambda value: None if value is None else write(value)


def _writer_of(shape: Any, inner: tuple[Any, ...]) -> Writer:
    if shape is float:
        return lambda value: value if math.isfinite(value) else None
    if shape in (set, frozenset):
        return sorted
    if shape in (list, tuple):
        return _items_writer(inner)
    if shape in (dict, Mapping):
        return _mapping_writer(*inner)
    if hasattr(shape, "to_json"):
        return lambda value: value.to_json()
    if is_dataclass(shape):
        writers = {name: _writer(types_of(shape)[name]) for name in _names(shape)}
        return lambda value: {name: each(getattr(value, name)) for name, each in writers.items()}
    if isinstance(shape, type) and issubclass(shape, Enum):
        return lambda value: value.value
    return _same


def _items_writer(inner: tuple[Any, ...]) -> Writer:
    if len(inner) > 1 and inner[1] is not ...:
        writers = [_writer(each) for each in inner]
        if all(each is _same for each in writers):
            return list
        return lambda value: [each(item) for each, item in zip(writers, value, strict=True)]
    write = _writer(inner[0])
    return list if write is _same else lambda value: [write(item) for item in value]


def _mapping_writer(key: Any, kind: Any) -> Writer:
    name_of, write = _writer(key), _writer(kind)
    if key is str:
        return lambda values: {name: write(value) for name, value in values.items()}
    if _has_trial(kind):
        return lambda values: [write(value) for value in values.values()]
    match (_width(key) is None, _width(kind) is None):
        case (True, True):
            return lambda values: [[name_of(n), write(v)] for n, v in values.items()]
        case (True, False):
            return lambda values: [[name_of(n), *write(v)] for n, v in values.items()]
        case (False, True):
            return lambda values: [[*name_of(n), write(v)] for n, v in values.items()]
        case _:
            return lambda values: [[*name_of(n), *write(v)] for n, v in values.items()]


def _same(value: Any) -> Any:
    return value


def _mapping_from_json(inner: tuple[Any, ...], document: Any, readers: Readers) -> dict[Any, Any]:
    key, kind = inner
    if key is str:
        return {name: from_json(kind, value, readers) for name, value in document.items()}
    if _has_trial(kind):
        values = [from_json(kind, value, readers) for value in _list(document)]
        return {value.trial: value for value in values}
    at = _width(key)
    rows = [
        (row[0] if at is None else row[:at], row[1 if at is None else at :])
        for row in map(_list, _list(document))
    ]
    return {
        from_json(key, name, readers): from_json(
            kind, cells[0] if _width(kind) is None else cells, readers
        )
        for name, cells in rows
    }


def _fields_from_json(kind: Any, document: Any, readers: Readers) -> object:
    if not isinstance(document, Mapping) or document.keys() != set(_names(kind)):
        raise TypeError(f"{kind.__name__} must have {', '.join(_names(kind))}")
    hints = types_of(kind)
    return kind(**{name: from_json(hints[name], document[name], readers) for name in document})

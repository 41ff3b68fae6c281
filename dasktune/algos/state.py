"""A tuner's options and state as JSON, written and read by the types of their fields.

- A float that is not finite is null, which a plain ``float`` reads as infinity.
- A set is an ascending list; a tuple is a list.
- A dict is an object if its keys are text, else a list of rows ``[key, value]``; tuples in a
  row stand flat, as in ``[population, step, [...]]``.
- A dict by trial, of values that have a field ``trial``, is a list of those values.
- A dataclass is an object of the fields that its constructor takes. A class with `to_json`
  and `from_json` describes itself.

Snapshots are frequent and hold many numbers, for which one call each is slow. So each type
becomes one Python expression, which is compiled once, as `dataclasses` does with ``__init__``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from dasktune.errors import ConfigurationError

Writer = Callable[[Any], Any]

Readers = Mapping[type, Callable[[Any], object]]
"""How values are read that need more than their document, by their class."""

Reader = Callable[[Any, Readers], Any]


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
    return _reader(kind, frozenset(readers))(document, readers)


def state_to_json(owner: object, names: tuple[str, ...]) -> dict[str, object]:
    """Return attributes of an object, by their names without an underscore at the front."""
    kind: Any = type(owner)
    state: dict[str, object] = _state_writer(kind, names)(owner)
    return state


def set_state(
    owner: object, names: tuple[str, ...], document: Mapping[str, object], readers: Readers
) -> None:
    """Set the attributes of an object to the values that `state_to_json` described.

    Raises
    ------
    ConfigurationError
        If the document describes other attributes; then none is set.
    """
    kind: Any = type(owner)
    try:
        state = _state_reader(kind, names, frozenset(readers))(document, readers)
    except (TypeError, ValueError, KeyError) as error:
        raise ConfigurationError(f"not the state of this tuner ({error}): {document!r}") from error
    for name, value in zip(names, state, strict=True):
        setattr(owner, name, value)


def types_of(kind: Any) -> dict[str, Any]:
    """Return the types of a class's attributes by name."""
    return _types_of(kind)


# ------------------------------------------------------------------------------- types


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
    if _is_union(kind):
        known = [each for each in get_args(kind) if each is not NoneType]
        kind = known[0] if len(known) == 1 else object
    return get_origin(kind) or kind, get_args(kind)


def _is_union(kind: Any) -> bool:
    return isinstance(kind, UnionType) or get_origin(kind) is Union


def _may_be_none(kind: Any) -> bool:
    return _is_union(kind) and NoneType in get_args(kind)


def _cells(kind: Any) -> tuple[Any, ...] | None:
    """Return the types that a tuple of fixed length holds; None for other types."""
    shape, inner = _shape(kind)
    is_fixed = shape is tuple and inner[-1] is not ... and not _may_be_none(kind)
    return inner if is_fixed else None


def _has_trial(kind: Any) -> bool:
    return is_dataclass(kind) and "trial" in _names(kind)


class _Code:
    """The names that one compiled expression uses.

    Its variables hold one value each; other values of an expression come from constants.
    """

    def __init__(self) -> None:
        self._constants: dict[str, Any] = {"lowest": -math.inf, "highest": math.inf}
        self._variables = 0

    def variable(self) -> str:
        """Return a name that nothing else has."""
        self._variables += 1
        return f"x{self._variables}"

    def variables(self, kinds: Iterable[Any]) -> list[str]:
        """Return a name for each of the types."""
        return [self.variable() for _ in kinds]

    def constant(self, value: object) -> str:
        """Return the name of a value that is known now."""
        name = f"c{len(self._constants)}"
        self._constants[name] = value
        return name

    def function(self, arguments: str, expression: str) -> Callable[..., Any]:
        """Return the function of an expression, which holds only names from here."""
        function: Callable[..., Any] = eval(f"lambda {arguments}: {expression}", self._constants)
        return function


# ----------------------------------------------------------------------------- writing


@cache
def _writer(kind: Any) -> Writer:
    """Return the function that writes values of a type."""
    code = _Code()
    value = code.variable()
    return code.function(value, _written(code, kind, value))


@cache
def _state_writer(kind: type, names: tuple[str, ...]) -> Writer:
    """Return the function that writes attributes of objects of a class."""
    code = _Code()
    owner = code.variable()
    items = [
        f"{name.lstrip('_')!r}: {_written(code, _type_of(kind, name), f'{owner}.{name}')}"
        for name in names
    ]
    return code.function(owner, f"{{{', '.join(items)}}}")


def _written(code: _Code, kind: Any, value: str) -> str:
    """Return the expression that writes a value, which is a name or another expression."""
    shape, inner = _shape(kind)
    if shape in (list, tuple) and _cells(shape[inner]) is None:
        text = _written_items(code, inner[0], value)
    elif shape in (set, frozenset):
        text = f"sorted({value})"
    elif shape in (dict, Mapping):
        text = _written_mapping(code, inner, value)
    elif hasattr(shape, "to_json"):
        text = f"{value}.to_json()"
    elif isinstance(shape, type) and issubclass(shape, Enum):
        text = f"{value}.value"
    elif shape not in (float, tuple) and not is_dataclass(shape):
        return value
    elif not value.isidentifier():
        return f"{code.constant(_writer(kind))}({value})"  # it is needed more than once
    else:
        text = _written_parts(code, shape, inner, value)
    if not _may_be_none(kind):
        return text
    if not value.isidentifier():
        return f"{code.constant(_writer(kind))}({value})"
    return f"(None if {value} is None else {text})"


def _written_parts(code: _Code, shape: Any, inner: tuple[Any, ...], value: str) -> str:
    if shape is float:
        return f"({value} if lowest < {value} < highest else None)"
    if shape is tuple:
        target, cells = _target(code, shape[inner])
        return f"[[{', '.join(cells)}] for {target} in ({value},)][0]"
    parts = [
        f"{name!r}: {_written(code, types_of(shape)[name], f'{value}.{name}')}"
        for name in _names(shape)
    ]
    return f"{{{', '.join(parts)}}}"


def _written_items(code: _Code, kind: Any, values: str) -> str:
    target, cells = _target(code, kind)
    item = cells[0] if _cells(kind) is None else f"[{', '.join(cells)}]"
    return f"list({values})" if item == target else f"[{item} for {target} in {values}]"


def _written_mapping(code: _Code, inner: tuple[Any, ...], values: str) -> str:
    key, kind = inner
    if key is str:
        name, value = code.variable(), code.variable()
        return f"{{{name}: {_written(code, kind, value)} for {name}, {value} in {values}.items()}}"
    if _has_trial(kind):
        return _written_items(code, kind, f"{values}.values()")
    (names, left), (items, right) = _target(code, key), _target(code, kind)
    return f"[[{', '.join([*left, *right])}] for {names}, {items} in {values}.items()]"


def _target(code: _Code, kind: Any) -> tuple[str, list[str]]:
    """Return the target of a loop over values of a type, and the expressions of its row."""
    inner = _cells(kind)
    if inner is None:
        value = code.variable()
        return value, [_written(code, kind, value)]
    values = code.variables(inner)
    cells = [_written(code, each, value) for each, value in zip(inner, values, strict=True)]
    return f"({', '.join(values)},)", cells


# ----------------------------------------------------------------------------- reading


@cache
def _reader(kind: Any, known: frozenset[type]) -> Reader:
    """Return the function that reads values of a type, some of them by the readers given to it.

    Parameters
    ----------
    known
        The classes that those readers read.
    """
    code = _Code()
    value = code.variable()
    return code.function(f"{value}, readers", _read(code, kind, value, known))


@cache
def _state_reader(kind: type, names: tuple[str, ...], known: frozenset[type]) -> Reader:
    """Return the function that reads the attributes `names` of a class, in this order."""
    code = _Code()
    keys = tuple(name.lstrip("_") for name in names)
    parts = [
        _call(code, _type_of(kind, name), f"document[{key!r}]", known)
        for name, key in zip(names, keys, strict=True)
    ]
    check = f"{code.constant(_check_keys)}(document, {code.constant(keys)}, 'it')"
    return code.function("document, readers", f"{check} or ({', '.join([*parts, ''])})")


def _call(code: _Code, kind: Any, document: str, known: frozenset[type]) -> str:
    return f"{code.constant(_reader(kind, known))}({document}, readers)"


def _read(code: _Code, kind: Any, value: str, known: frozenset[type]) -> str:
    """Return the expression that reads a value from the document in a variable."""
    text = _read_present(code, kind, value, known)
    is_same = text == value or not _may_be_none(kind)
    return text if is_same else f"(None if {value} is None else {text})"


def _read_present(code: _Code, kind: Any, value: str, known: frozenset[type]) -> str:
    shape, inner = _shape(kind)
    if shape is float:
        return f"({value} if {value}.__class__ is float else {code.constant(_float)}({value}))"
    name = code.constant(shape)
    if shape in known:
        return f"readers[{name}]({value})"
    if shape in (set, frozenset, list, tuple):
        return _read_items(code, shape, inner, value, known)
    if shape in (dict, Mapping):
        return _read_mapping(code, inner, value, known)
    if hasattr(shape, "from_json"):
        return f"{name}.from_json({value})"
    if is_dataclass(shape):
        return _read_fields(code, shape, value, known)
    if isinstance(shape, type) and issubclass(shape, Enum):
        return f"{name}({value})"
    if shape in (Literal, Any, object):
        return value
    # `type` would be called for each number, in twice the time.
    check = f"{code.constant(_checked)}({value}, {name})"
    return f"({value} if {value}.__class__ is {name} else {check})"


def _read_items(
    code: _Code, shape: Any, inner: tuple[Any, ...], value: str, known: frozenset[type]
) -> str:
    if _cells(shape[inner]) is not None:
        targets, cells = _read_row(code, inner, known)
        rows = f"{code.constant(_rows)}([{value}])"
        return f"[({', '.join([*cells, ''])}) for {targets} in {rows}][0]"
    items = _read_list(code, inner[0], value, known)
    return items if shape is list else f"{code.constant(shape)}({items})"


def _read_list(code: _Code, kind: Any, value: str, known: frozenset[type]) -> str:
    inner = _cells(kind)
    if inner is not None:
        targets, cells = _read_row(code, inner, known)
        return f"[({', '.join([*cells, ''])}) for {targets} in {code.constant(_rows)}({value})]"
    item = code.variable()
    text = _read(code, kind, item, known)
    return f"[{text} for {item} in {code.constant(_checked)}({value}, {code.constant(list)})]"


def _read_row(code: _Code, kinds: tuple[Any, ...], known: frozenset[type]) -> tuple[str, list[str]]:
    """Return the target of a loop over rows of cells, and the expressions that read them."""
    values = code.variables(kinds)
    cells = [_read(code, kind, value, known) for kind, value in zip(kinds, values, strict=True)]
    return f"({', '.join([*values, ''])})", cells


def _read_mapping(code: _Code, types: tuple[Any, ...], value: str, known: frozenset[type]) -> str:
    key, kind = types
    if key is str:
        name, item = code.variable(), code.variable()
        items = f"{code.constant(_checked)}({value}, {code.constant(Mapping)}).items()"
        return f"{{{name}: {_read(code, kind, item, known)} for {name}, {item} in {items}}}"
    if _has_trial(kind):
        item = code.variable()
        items = _read_list(code, kind, value, known)
        return f"{{{item}.trial: {item} for {item} in {items}}}"
    inner, inside = _cells(key), _cells(kind)
    width = 1 if inner is None else len(inner)
    targets, cells = _read_row(code, (*(inner or (key,)), *(inside or (kind,))), known)
    name = cells[0] if inner is None else f"({', '.join([*cells[:width], ''])})"
    item = cells[width] if inside is None else f"({', '.join([*cells[width:], ''])})"
    return f"{{{name}: {item} for {targets} in {code.constant(_rows)}({value})}}"


def _read_fields(code: _Code, kind: Any, value: str, known: frozenset[type]) -> str:
    names, hints = _names(kind), types_of(kind)
    parts = [f"{name}={_call(code, hints[name], f'{value}[{name!r}]', known)}" for name in names]
    keys, title = code.constant(names), repr(kind.__name__)
    check = f"{code.constant(_check_keys)}({value}, {keys}, {title})"
    return f"({check} or {code.constant(kind)}({', '.join(parts)}))"


# ------------------------------------------------- the checks that compiled expressions call


def _check_keys(document: object, names: tuple[str, ...], title: str) -> None:
    if not isinstance(document, Mapping) or document.keys() != {*names}:
        raise TypeError(f"{title} must have {', '.join(names)}")


def _checked(document: object, kind: type) -> Any:
    if not isinstance(document, kind):
        raise TypeError(f"{document!r} is no {kind.__name__.lower()}")
    return document


def _float(document: Any) -> float:
    return math.inf if document is None else float(document)


def _rows(documents: Any) -> list[list[Any]]:
    """Return a list of rows; the loop over them refuses rows of another length."""
    if type(documents) is not list or not {*map(type, documents)} <= {list}:
        raise TypeError(f"{documents!r} must be a list of rows")
    return documents

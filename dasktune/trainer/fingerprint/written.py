"""Globals that own code writes: their first values count, and travel to the workers.

A counter ``COUNT["n"] += 1`` or a cache ``DATA = {}`` is filled by a run in this process. Its
content then depends on what ran before, and the code has not changed. So the value counts that the
global had when its code was fingerprinted for the first time in this process, and workers get that
value. It is taken anew after its name was bound again: by a cell, or by a reload of its module.
"""

from __future__ import annotations

import ast
import copy
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

_CHANGES = frozenset(
    {
        *("append", "appendleft", "extend", "extendleft", "insert", "pop", "popleft", "popitem"),
        *("remove", "clear", "add", "discard", "update", "setdefault", "sort", "reverse", "fill"),
        *("difference_update", "intersection_update", "symmetric_difference_update", "subtract"),
    }
)
"""Methods that change a container in place."""

_DEEPEST = 3

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenGlobals:
    """The global names that a function, or the functions of a file, write.

    Parameters
    ----------
    assigned
        Those that a function binds: ``global STEP; STEP = 1``.
    changed
        Those whose objects a function changes: ``DATA["rows"] = rows``.
    """

    assigned: frozenset[str] = frozenset()
    changed: frozenset[str] = frozenset()


NOTHING_WRITTEN = WrittenGlobals()


def written_in(tree: ast.AST) -> WrittenGlobals:
    r"""Return the global names that a function, or the functions of a file, write.

    Examples
    --------
    >>> text = "def f(x):\n    global K\n    K = 1\n    x.append(1)\n    D['n'] += 1"
    >>> written = written_in(ast.parse(text))
    >>> sorted(written.assigned), sorted(written.changed)
    (['K'], ['D'])
    """
    assigned: set[str] = set()
    changed: set[str] = set()
    whole = ast.Module(body=[tree], type_ignores=[]) if isinstance(tree, ast.stmt) else tree
    _read(whole, frozenset(), assigned, changed)
    return WrittenGlobals(assigned=frozenset(assigned), changed=frozenset(changed))


def _read(node: ast.AST, outer: frozenset[str], assigned: set[str], changed: set[str]) -> None:
    """Add what the functions below a node write; `outer` are local names of functions around."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, _Function):
            _read(child, outer, assigned, changed)
            continue
        inside = list(_inside(child))
        declared = {name for item in inside if isinstance(item, ast.Global) for name in item.names}
        stored = {
            item.id
            for item in inside
            if isinstance(item, ast.Name) and not isinstance(item.ctx, ast.Load)
        }
        arguments = {item.arg for item in ast.walk(child.args) if isinstance(item, ast.arg)}
        own = outer | arguments | (stored - declared)
        assigned |= stored & declared
        changed |= {name for item in inside for name in _changed_by(item)} - own
        _read(child, own, assigned, changed)


def _inside(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function, without those of functions in it."""
    for child in ast.iter_child_nodes(function):
        yield child
        if not isinstance(child, _Function):
            yield from _inside(child)


def _changed_by(node: ast.AST) -> Iterator[str]:
    """Yield the name of the object that a node changes in place."""
    match node:
        case ast.Subscript(ctx=ast.Store() | ast.Del()) | ast.Attribute(ctx=ast.Store()):
            place: ast.AST = node.value
        case ast.Call(func=ast.Attribute(attr=name, value=place)) if name in _CHANGES:
            pass
        case _:
            return
    while isinstance(place, (ast.Attribute, ast.Subscript)):
        place = place.value
    if isinstance(place, ast.Name):
        yield place.id


@dataclass(slots=True, kw_only=True)
class _First:
    """The first value of a global.

    Parameters
    ----------
    namespace
        Kept alive, so that its identity stays unique.
    bound
        The object of the name at that time.
    value, label
        A copy of the object, and its label in fingerprints.
    is_assigned
        Whether a function binds the name.
    """

    namespace: Mapping[str, Any]
    bound: Any
    value: Any
    label: str
    is_assigned: bool = False
    readers: list[weakref.ref[Any]] = field(default_factory=list)


_FIRST: dict[tuple[int, str], _First] = {}
"""By the identity of the namespace, and the name."""


Key = tuple[int, str]
"""The identity of a namespace, and a name in it."""


class FirstValues:
    """Finds the first values of globals for one computation of a fingerprint.

    Parameters
    ----------
    known
        The globals that own code is known to write, from an earlier computation.

    Attributes
    ----------
    written
        The globals that own code writes, as far as it was followed.
    is_stale
        Whether a value was taken anew after it had been used.
    changed
        The first values of the globals that have other values now.
    """

    def __init__(self, known: frozenset[Key] = frozenset()) -> None:
        self.known, self.written = known, set(known)
        self.is_stale = False
        self.changed: dict[Key, Any] = {}
        self._assigned: set[Key] = set()
        self._used: set[Key] = set()

    def note(self, namespace: Mapping[str, Any], written: WrittenGlobals) -> None:
        """Note the globals that a definition writes."""
        keys = {(id(namespace), name) for name in written.assigned if name in namespace}
        self._assigned |= keys
        self.written |= keys
        self.written |= {(id(namespace), name) for name in written.changed if name in namespace}

    def label(
        self,
        namespace: Mapping[str, Any],
        name: str,
        reader: Any,
        *,
        describe: Callable[[Any], str],
    ) -> str:
        """Return the label of the first value of a global."""
        key, bound = (id(namespace), name), namespace[name]
        label, first = describe(bound), _FIRST.get(key)
        if _holds_definitions(bound):  # a registry: what is added to it is code
            return label
        is_known = first is not None and any(known() is reader for known in first.readers)
        if first is None or (first.bound is not bound and not (first.is_assigned and is_known)):
            first = self._take(key, namespace, label)
            if first is None:
                return label
        if not is_known:
            first.readers.append(weakref.ref(reader))
        first.is_assigned = first.is_assigned or key in self._assigned
        self._used.add(key)
        if first.label != label:
            self.changed[key] = first.value
        return first.label

    def _take(self, key: Key, namespace: Mapping[str, Any], label: str) -> _First | None:
        bound = namespace[key[1]]
        self.is_stale = self.is_stale or key in self._used
        try:
            value = copy.deepcopy(bound)
        except Exception:  # noqa: BLE001 - copying runs methods of the user's classes
            _FIRST.pop(key, None)
            return None
        _FIRST[key] = _First(namespace=namespace, bound=bound, value=value, label=label)
        return _FIRST[key]


def _holds_definitions(value: Any, depth: int = 0) -> bool:
    """Return whether a container holds functions or classes."""
    if isinstance(value, FunctionType | type):
        return True
    if depth > _DEEPEST:
        return False
    if isinstance(value, Mapping):
        return any(_holds_definitions(item, depth + 1) for item in value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return any(_holds_definitions(item, depth + 1) for item in value)
    return False

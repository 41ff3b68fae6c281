"""The user's own code that a trainer can run: its functions, classes and files."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property, lru_cache, partial, partialmethod
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from dasktune.trainer.fingerprint.installed import is_installed
from dasktune.trainer.fingerprint.source import Sources
from dasktune.trainer.liveness.flow import Function

_HOLDING = ("__wrapped__", "__func__", "fget", "fset", "fdel", "func")
_HOLDERS: tuple[type, ...] = (
    *(property, staticmethod, classmethod, MethodType, partial, partialmethod),
    *(cached_property, type(lru_cache(len))),
)
"""Objects of Python itself that hold functions, and the attributes in which they do."""

_FIELDS = ("__dataclass_fields__", "__attrs_attrs__", "_fields")


_DEFINITION = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _decorating(tree: ast.Module) -> Iterator[ast.Name]:
    """Yield the names that decorators, bases and statements at the top of a file use."""
    for statement in tree.body:
        if isinstance(statement, _DEFINITION):
            parts: list[ast.AST] = [*statement.decorator_list, *getattr(statement, "bases", [])]
        else:
            parts = [statement]
        for part in parts:
            yield from (item for item in ast.walk(part) if isinstance(item, ast.Name))


class OwnCode:
    """The functions outside installed packages that a trainer can reach, and their files.

    Attributes
    ----------
    trees
        The syntax trees of the files of these functions, whole: other code of a file counts.
    is_whole
        Whether the source of each function is known.
    """

    def __init__(self, trainer_class: type, *others: FunctionType) -> None:
        self._sources = Sources()
        self._definitions: dict[CodeType, Function | None] = {}
        self.functions = [*_functions([trainer_class, *others])]
        trees = [self._sources.tree(item.__code__, item.__globals__) for item in self.functions]
        self.trees = [*{id(tree): tree for tree in trees if tree is not None}.values()]
        self.is_whole = None not in trees

    def definition(self, function: FunctionType) -> Function | None:
        """Return the syntax tree of a function; None if its source is unknown."""
        code = function.__code__
        if code not in self._definitions:
            self._definitions[code] = self._sources.definition(code, function.__globals__)
        return self._definitions[code]

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All syntax nodes of the files, but for definitions that nothing here can reach."""
        return tuple(
            node
            for tree in self.trees
            for statement in tree.body
            if not isinstance(statement, _DEFINITION) or statement.name in self._reached
            for node in ast.walk(statement)
        )

    @cached_property
    def _reached(self) -> frozenset[str]:
        """The names of the functions and classes that the trainer can reach."""
        parts = (part for item in self.functions for part in item.__qualname__.split("."))
        named = (name for item in self.functions for name in _names(item.__code__))
        texts = (item.id for tree in self.trees for item in _decorating(tree))
        return frozenset((*parts, *named, *texts))


def is_own(thing: object) -> bool:
    """Return whether a function, class or module is outside installed packages."""
    if isinstance(thing, ModuleType):
        return not is_installed(thing)
    if isinstance(thing, FunctionType):
        name = thing.__globals__.get("__name__")  # a wrapper has the module of its function
    else:
        name = getattr(thing, "__module__", None)
    if not isinstance(name, str) or name.partition(".")[0] in ("builtins", "dasktune"):
        return False
    module = sys.modules.get(name)
    return module is None or not is_installed(module)


def is_generated(member: object, kind: type) -> bool:
    """Return whether `dataclasses`, `attrs` or `collections` wrote a method of a class."""
    if not isinstance(member, FunctionType) or not any(name in vars(kind) for name in _FIELDS):
        return False
    inner = vars(member).get("__wrapped__", member)  # `__repr__` is wrapped
    return member.__name__.startswith("_") and inner.__code__.co_filename.startswith(
        ("<string", "<attrs")
    )


def visible_values(function: FunctionType) -> Mapping[str, Any]:
    """Return the global and enclosing variables of a function."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    values = dict(function.__globals__)
    for name, cell in cells:
        with suppress(ValueError):  # an empty cell
            values[name] = cell.cell_contents
    return values


def _functions(waiting: list[Any]) -> Iterator[FunctionType]:
    seen: set[int] = set()
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, FunctionType):
            if is_own(thing):
                yield thing
            waiting += _named_by(thing) if is_own(thing) else []
            waiting += [vars(thing).get("__wrapped__")]
        elif isinstance(thing, type):
            if is_own(thing):
                members = vars(thing).values()
                waiting += thing.__bases__
                waiting += [item for item in members if not is_generated(item, thing)]
        elif isinstance(thing, (list, tuple)) and len(thing) < 100:
            waiting += thing
        elif isinstance(thing, dict) and len(thing) < 100:
            waiting += thing.values()
        elif thing is not None and not isinstance(thing, ModuleType):
            kind = type(thing)
            waiting += [kind] if is_own(kind) else []
            if isinstance(thing, _HOLDERS):
                waiting += [getattr(thing, name, None) for name in _HOLDING]


def _named_by(function: FunctionType) -> list[Any]:
    """Return the values that the code of a function may name."""
    names = _names(function.__code__)
    values = visible_values(function)
    things = [values[name] for name in names if name in values]
    for thing in things:  # it grows: a package holds modules
        if isinstance(thing, ModuleType) and is_own(thing):
            inner = (vars(thing)[name] for name in names & vars(thing).keys())
            things += [item for item in inner if not any(item is each for each in things)]
    return [*things, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]


def _names(code: CodeType) -> set[str]:
    inner = (_names(item) for item in code.co_consts if isinstance(item, CodeType))
    return {*code.co_names, *code.co_freevars}.union(*inner)

"""The references of a trainer's code, followed recursively, for the fingerprint."""

from __future__ import annotations

import builtins
import functools
import importlib
import inspect
import logging
import operator
import os
import re
import sys
import types
import typing
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, time, timedelta, tzinfo
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePath
from types import BuiltinFunctionType, EllipsisType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from dasktune.errors import ConfigurationError
from dasktune.trainer.fingerprint.data import data_digest, is_torch, json_digest
from dasktune.trainer.fingerprint.installed import is_installed, is_installed_name
from dasktune.trainer.fingerprint.source import Import, Piece, Sources

NOT_COVERED = "not covered: say what it is in depends_on or version"
"""Digest of an object of unknown content; part of the format."""

_SHOWN_BY_REPR = (
    *(float, complex, bytes, range, np.generic, np.dtype, Fraction, Decimal),
    *(date, time, timedelta, tzinfo, slice, EllipsisType),
)
_MODULE_NAMES = frozenset(vars(types.ModuleType("empty"))) | {"__file__", "__cached__", "__path__"}
"""Names that Python sets in every module; some values differ between machines."""

_IMPORTS_BY_NAME = "imports by name; name what it imports in depends_on"
_RUNS_TEXT = "runs text as code; change version when that changes"
_READS_ENVIRONMENT = "reads the environment; pass what decides results in config"
_DYNAMIC: tuple[tuple[Any, str], ...] = (
    (importlib.import_module, _IMPORTS_BY_NAME),
    (builtins.__import__, _IMPORTS_BY_NAME),
    (builtins.eval, _RUNS_TEXT),
    (builtins.exec, _RUNS_TEXT),
    (os.environ, _READS_ENVIRONMENT),
    (os.getenv, _READS_ENVIRONMENT),
)
"""Objects whose effects cannot be followed, and the remedy."""

_Chain = tuple[str, ...]


class Code:
    """Follows references from definitions to everything that their results depend on.

    Parameters
    ----------
    homes
        Packages whose code counts although they are installed: the trainer's own.

    Attributes
    ----------
    parts
        Labels and digests of the covered things.
    gaps
        By label, things that are not covered, and the remedy.
    packages
        Import names of the installed packages to which the code refers.
    """

    def __init__(self, homes: frozenset[str]) -> None:
        self.parts: list[tuple[str, str]] = []
        self.gaps: dict[str, str] = {}
        self.packages: set[str] = set()
        self._homes = homes
        files = (getattr(sys.modules.get(home), "__file__", None) for home in sorted(homes))
        self._folders = [os.path.dirname(os.path.abspath(file)) for file in files if file]
        self._sources = Sources()
        # By id; the objects are kept alive so that each id stays unique.
        self._seen: dict[int, tuple[object, str]] = {}
        self._labels: Counter[str] = Counter()
        self._open: set[int] = set()

    def add(self, thing: Any) -> str:
        """Cover a thing and return its label, by which other things refer to it.

        Raises
        ------
        ConfigurationError
            If its source cannot be read.
        """
        if isinstance(thing, functools.partial):
            arguments = [self.add(item) for item in (*thing.args, *thing.keywords.values())]
            return f"partial {self.add(thing.func)} {arguments} {list(thing.keywords)}"
        if isinstance(thing, MethodType):
            return f"method of {self.add(thing.__self__)}: {self.add(thing.__func__)}"
        if isinstance(thing, ModuleType):
            return self._module(thing)
        if isinstance(thing, type):
            return self._definition(thing)
        if callable(thing) and (inner := _wrapped(thing)) is not thing:
            return " of ".join([*self._wrappers(thing), self.add(inner)])
        if isinstance(thing, FunctionType):
            return self._definition(thing)
        value = self._constant(thing)
        return f"constant {value}" if value is not None else self._other(thing)

    # ------------------------------------------------------------ functions, classes, modules

    def _definition(self, thing: FunctionType | type) -> str:
        if not self._is_ours(thing.__module__):
            # The package only: modules inside a package move between versions.
            return f"{self._package(thing.__module__)} {thing.__qualname__}"
        if id(thing) not in self._seen:
            # The inner function of a decorator may have the name of the wrapped function.
            if isinstance(thing, type):
                label = self._new_label(thing, f"class {thing.__qualname__}")
            else:
                label = self._new_label(thing, f"function {thing.__code__.co_qualname}")
            bases = [self.add(base) for base in getattr(thing, "__bases__", ())]
            piece = self._sources.piece(thing)
            if piece is not None:
                content = [piece.canonical, bases, self._used(piece, label, _scope(thing), thing)]
            else:
                content = [self._made(thing), bases]
            self.parts.append((label, json_digest(content)))
        return self._seen[id(thing)][1]

    def _module(self, module: ModuleType) -> str:
        """Cover a whole module, because the used names are unknown."""
        label = f"module {module.__name__}"
        if not self._is_ours(module.__name__):
            self._package(module.__name__)
        elif id(module) not in self._seen:
            self._seen[id(module)] = (module, label)
            piece = self._sources.module(module)
            if piece is None:
                self._gap(label, "it has no source; name what it does in version")
            else:
                content = [piece.canonical, self._used(piece, label, vars(module), module)]
                self.parts.append((label, json_digest(content)))
        return label

    def _wrappers(self, thing: Any) -> Iterator[str]:
        """Cover the user's own decorator functions around a function."""
        while hasattr(thing, "__wrapped__"):
            module = getattr(thing, "__globals__", {}).get("__name__", "")
            if module == "functools" and hasattr(thing, "registry"):
                yield f"dispatch {[[self.add(kind), self.add(at)] for kind, at in _own(thing)]}"
            elif isinstance(thing, FunctionType) and self._is_ours(module):
                yield self._definition(thing)
            thing = thing.__wrapped__

    def _made(self, thing: FunctionType | type) -> object:
        """Return the content of a class that was made by a call, not by a class statement."""
        if isinstance(thing, type):
            if issubclass(thing, Enum):
                return [[member.name, self.add(member.value)] for member in thing]
            if issubclass(thing, tuple) and hasattr(thing, "_field_defaults"):
                defaults = thing._field_defaults.items()
                names = list(getattr(thing, "_fields", ()))
                return [names, [[name, self.add(value)] for name, value in defaults]]
            members = [(n, value) for n, value in vars(thing).items() if not n.startswith("__")]
            if all(self._sources.piece(function) is not None for function in _functions(thing)):
                return [[name, self.add(_function_of(value) or value)] for name, value in members]
        raise ConfigurationError(
            f"the source of {thing.__qualname__} cannot be read (it is said to be in "
            f"{thing.__module__!r}); define it in a file or a notebook cell, so that a change of "
            "it can be noticed"
        )

    def _used(
        self, piece: Piece, label: str, scope: Mapping[str, Any], thing: FunctionType | Any
    ) -> list[tuple[str, str]]:
        """Cover the references of a definition; return their names and labels."""
        references = []
        for chain in piece.names:
            self._note_dynamic(chain, scope, label)
            if chain[0] in scope and chain[0] not in _MODULE_NAMES:
                references.append((".".join(chain), self._reference(chain, scope[chain[0]])))
        if piece.imports:
            installed, own = self._imported(piece.imports, label, thing)
            for chain in piece.imported_names:
                self._note_dynamic(chain, installed, label)
                # For installed modules the import statement itself counts already.
                if chain[0] in own:
                    references.append((".".join(chain), self._reference(chain, own[chain[0]])))
        return references

    def _reference(self, chain: _Chain, thing: Any) -> str:
        """Return the label of the object of a dotted name."""
        for name in chain[1:]:
            if not isinstance(thing, ModuleType) or not self._is_ours(thing.__name__):
                break
            thing = _attribute(thing, name)
        return self.add(thing)

    def _imported(
        self, imports: tuple[Import, ...], label: str, thing: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the installed and the user's own objects that a definition imports, by name."""
        installed: dict[str, Any] = {}
        own: dict[str, Any] = {}
        for item in imports:
            name = _absolute(item.module, thing)
            top = name.partition(".")[0]
            if name and top not in self._homes and is_installed_name(top):
                self._package(name)
                # Installed modules are not imported for this.
                module = sys.modules.get(name)
                installed[item.name] = getattr(module, item.attribute or "", module)
                continue
            try:
                module = importlib.import_module(name or item.module)
            except (ImportError, TypeError) as error:
                self._gap(f"{label}: import of {item.module}", f"it cannot be imported: {error}")
            else:
                if item.attribute is not None:
                    own[item.name] = _attribute(module, item.attribute)
                else:
                    own[item.name] = sys.modules[top] if item.name == top else module
        return installed, own

    def _note_dynamic(self, chain: _Chain, scope: Mapping[str, Any], label: str) -> None:
        thing = scope.get(chain[0], getattr(builtins, chain[0], None))
        for end, name in enumerate((*chain[1:], ""), start=1):
            for dynamic, why in _DYNAMIC:
                if thing is dynamic:
                    self._gap(f"{label}: {'.'.join(chain[:end])}", why)
            if not any(thing is module for module in (importlib, os, builtins)):
                return
            thing = getattr(thing, name, None)

    # ------------------------------------------------------------------------------- values

    def _constant(self, thing: Any) -> str | None:
        """Return a value as text; None if its content is unknown."""
        kind = type(thing)
        if id(thing) in self._open:
            return f"{kind.__name__} itself"
        self._open.add(id(thing))
        try:
            text = self._text(thing)
        finally:
            self._open.discard(id(thing))
        if text is None or isinstance(thing, Enum) or not self._is_ours(kind.__module__):
            return text if text is not None else self._instance(thing)
        return f"{self.add(kind)} {text} {self._attributes(thing)}"

    def _text(self, thing: Any) -> str | None:
        kind = type(thing)
        if thing is os.environ:
            return "os.environ"
        if isinstance(thing, Enum):
            return f"{self.add(kind)} {thing.name}"
        if thing is None or isinstance(thing, (bool, int, str)):
            return f"{kind.__name__} {self._portable(thing)!a}"
        if isinstance(thing, _SHOWN_BY_REPR):
            return f"{kind.__name__} {thing!r}"
        if isinstance(thing, PurePath):
            return repr(kind(self._portable(str(thing))))
        if isinstance(thing, re.Pattern):
            # The repr of a long pattern shows only its beginning.
            return f"{thing!r}{thing.pattern[200:]!r}" if len(thing.pattern) > 150 else repr(thing)
        if is_torch(thing, "dtype", "device"):
            return repr(thing)
        if is_torch(thing, "Tensor") or (
            isinstance(thing, np.ndarray) and not thing.dtype.hasobject
        ):
            return f"array {data_digest(thing)}"
        return self._container_text(thing)

    def _container_text(self, thing: Any) -> str | None:
        kind = type(thing)
        if isinstance(thing, (tuple, list, deque)):
            return f"{kind.__name__} {[self.add(item) for item in thing]}"
        if isinstance(thing, (set, frozenset)):
            return f"{kind.__name__} {sorted(self.add(item) for item in sorted(thing, key=_rank))}"
        if isinstance(thing, Mapping):
            pairs = [f"{self.add(key)}: {self.add(value)}" for key, value in thing.items()]
            made = f" {self.add(thing.default_factory)}" if isinstance(thing, defaultdict) else ""
            return f"{kind.__name__} {pairs}{made}"
        return None

    def _portable(self, thing: Any) -> Any:
        """Return text with the folder of the code replaced: it differs between machines."""
        if not isinstance(thing, str):
            return thing
        for folder in self._folders:
            if thing == folder or thing.startswith(folder + os.sep):
                return f"<folder>{thing[len(folder) :].replace(os.sep, '/')}"
        return thing

    def _instance(self, thing: Any) -> str | None:
        """Return the label of an object by its attributes, for the user's and for data classes."""
        kind = type(thing)
        if self._is_ours(kind.__module__) or isinstance(thing, types.SimpleNamespace):
            names = _attribute_names(thing)
        elif is_dataclass(thing):
            names = [field.name for field in fields(thing)]
        else:
            return None
        if id(thing) not in self._seen:
            label = self.add(kind)
            self._seen[id(thing)] = (thing, label)  # in case the object refers to itself
            values = [(name, self.add(getattr(thing, name, None))) for name in names]
            self._seen[id(thing)] = (thing, f"{label} {values}")
        return self._seen[id(thing)][1]

    def _attributes(self, thing: Any) -> list[tuple[str, str]]:
        return [(name, self.add(getattr(thing, name, None))) for name in _attribute_names(thing)]

    # ----------------------------------------------------------------- what is from elsewhere

    def _other(self, thing: Any) -> str:
        """Return the name of a foreign object; add a gap if the name does not identify it."""
        kind = type(thing)
        name = getattr(thing, "__name__", "")
        label = f"{kind.__module__}.{kind.__qualname__} {name}".strip()
        if isinstance(thing, logging.Logger):
            # Its name depends on the module, and differs between a script and an import.
            return "logging.Logger"
        if kind.__module__ == "typing" or typing.get_origin(thing) is not None:
            return self._type_form(thing)
        if isinstance(thing, (operator.itemgetter, operator.attrgetter, operator.methodcaller)):
            return f"{label} {self.add(thing.__reduce__()[1:])}"
        if callable(thing) and (home := _home_of(thing)) is not None and not self._is_ours(home):
            return f"{self._package(home)} {getattr(thing, '__qualname__', name)}"
        if callable(thing):
            compiled = isinstance(name, str) and name and self._is_ours(_module_of(thing))
            why = "it is compiled" if compiled else "what it was made with is not known"
            self._gap(label, f"{why}; make it in build(), or say what it is in version")
        elif id(thing) not in self._seen:
            self._seen[id(thing)] = (thing, label)
            self.parts.append((label, NOT_COVERED))
            self._gap(label, "its content is not known; say what it is in depends_on or version")
        return label

    def _type_form(self, thing: Any) -> str:
        """Return the text of an annotation, equal in all versions of Python."""
        origin = typing.get_origin(thing)
        if origin is None:
            return f"typing {getattr(thing, '__name__', None) or repr(thing)}"
        # The two spellings of a union are the same type from Python 3.14 on.
        is_union = origin in (typing.Union, types.UnionType)
        arguments = [self.add(argument) for argument in typing.get_args(thing)]
        return f"typing {'Union' if is_union else self.add(origin)} {arguments}"

    def _is_ours(self, name: str | None) -> bool:
        """Return whether the code of a module counts; code without a module (None) does."""
        if name is None:
            return True
        top = name.partition(".")[0]
        if top in ("dasktune", "builtins", "") or top in sys.stdlib_module_names:
            return False
        module = sys.modules.get(name)
        return top in self._homes or module is None or not is_installed(module)

    def _package(self, module: str | None) -> str:
        """Add the package of a foreign module to `packages` and return its name."""
        top = (module or "").partition(".")[0]
        if top not in sys.stdlib_module_names and top != "builtins":
            self.packages.add(top)
        return top

    def _new_label(self, thing: object, label: str) -> str:
        """Return a unique label: several things may have one name."""
        self._labels[label] += 1
        number = self._labels[label]
        unique = label if number == 1 else f"{label} ({number})"
        self._seen[id(thing)] = (thing, unique)
        return unique

    def _gap(self, label: str, why: str) -> None:
        self.gaps.setdefault(label, why)


def _scope(thing: FunctionType | type) -> Mapping[str, Any]:
    """Return the objects of the names in a definition: closures before module globals."""
    if isinstance(thing, FunctionType):
        return {**thing.__globals__, **_closure(thing)}
    scope = dict(vars(sys.modules[thing.__module__])) if thing.__module__ in sys.modules else {}
    for function in _functions(thing):
        if function.__module__ == thing.__module__:
            scope = {**function.__globals__, **scope, **_closure(function)}
    return scope


def _function_of(member: Any) -> FunctionType | None:
    """Return the function of a method, a property or the like, or None."""
    for name in ("__func__", "fget", "func"):
        member = getattr(member, name, member)
    inner = inspect.unwrap(member) if callable(member) else member
    return inner if isinstance(inner, FunctionType) else None


def _functions(kind: type) -> list[FunctionType]:
    members = map(_function_of, vars(kind).values())
    return [function for function in members if function is not None]


def _closure(function: FunctionType) -> dict[str, Any]:
    names = function.__code__.co_freevars
    cells = function.__closure__ or ()
    return {
        name: cell.cell_contents
        for name, cell in zip(names, cells, strict=True)
        if name != "__class__" and _is_filled(cell)
    }


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _wrapped(thing: Callable[..., Any]) -> Any:
    return inspect.unwrap(getattr(thing, "__func__", thing))


def _own(dispatching: Any) -> list[tuple[type, Any]]:
    """Return the functions registered with a single-dispatch function, by type."""
    return [(kind, at) for kind, at in dispatching.registry.items() if kind is not object]


def _attribute(module: Any, name: str) -> Any:
    """Return an attribute of a module, or a submodule, imported if necessary."""
    if not hasattr(module, name) and hasattr(module, "__path__"):
        full = f"{module.__name__}.{name}"
        if importlib.util.find_spec(full) is not None:
            importlib.import_module(full)
    return getattr(module, name, None)


def _attribute_names(thing: Any) -> list[str]:
    names = [
        name
        for kind in type(thing).__mro__
        for slots in [vars(kind).get("__slots__", ())]
        for name in ([slots] if isinstance(slots, str) else slots)
        if name not in ("__dict__", "__weakref__")
    ]
    return [*names, *getattr(thing, "__dict__", ())]


def _absolute(module: str, thing: Any) -> str:
    """Return the absolute name of a module that a definition imports; empty if unknown."""
    if not module.startswith("."):
        return module
    name = thing.__name__ if isinstance(thing, ModuleType) else thing.__module__
    package = getattr(sys.modules.get(name), "__package__", None)
    try:
        return importlib.util.resolve_name(module, package or None)
    except ImportError:
        return ""


def _home_of(thing: Any) -> str | None:
    """Return the module that holds a callable under its name, or None."""
    owner = getattr(thing, "__objclass__", getattr(thing, "__self__", None))
    if isinstance(owner, ModuleType):
        return owner.__name__
    if isinstance(owner, type):
        return owner.__module__
    if isinstance(thing, BuiltinFunctionType) and owner is not None:
        return type(owner).__module__
    home = _module_of(thing)
    name = getattr(thing, "__name__", None)
    is_found = isinstance(name, str) and getattr(sys.modules.get(home), name, None) is thing
    return home if is_found or isinstance(thing, BuiltinFunctionType) else None


def _module_of(thing: Any) -> str:
    """Return the name of a callable's module by its own account."""
    module = getattr(thing, "__module__", None)
    return module if isinstance(module, str) else type(thing).__module__


def _rank(item: Any) -> tuple[str, str, int]:
    """Return a sort key for the definitions in a set, which has no stable order."""
    line = getattr(getattr(item, "__code__", None), "co_firstlineno", 0)
    return type(item).__name__, getattr(item, "__qualname__", ""), line

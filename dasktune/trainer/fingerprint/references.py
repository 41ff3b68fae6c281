"""The references of a trainer's code, followed recursively, for the fingerprint."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import logging
import operator
import os
import sys
import types
import typing
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import BuiltinFunctionType, FunctionType, MethodType, MethodWrapperType, ModuleType
from typing import Any

from dasktune.errors import ConfigurationError
from dasktune.trainer.fingerprint import members
from dasktune.trainer.fingerprint.data import json_digest
from dasktune.trainer.fingerprint.dynamic import REFLECTIONS, dynamic_uses, effect_of
from dasktune.trainer.fingerprint.guards import Guards
from dasktune.trainer.fingerprint.installed import (
    home_of,
    is_editable,
    is_installed,
    is_installed_name,
    is_named,
    module_of,
)
from dasktune.trainer.fingerprint.source import Import, Piece, Sources, code_content
from dasktune.trainer.fingerprint.values import Values, rank
from dasktune.trainer.fingerprint.written import FirstValues, Key

NOT_COVERED = "not covered: say what it is in depends_on or version"
"""Digest of an object of unknown content; part of the format."""

_MODULE_NAMES = frozenset(vars(types.ModuleType("empty"))) | {"__file__", "__cached__", "__path__"}
"""Names that Python sets in every module; some values differ between machines."""

_SET_HERE = "it is set in an installed package here, and perhaps not on workers; set it in build()"

_CACHE = "it holds results that its code may not give any more; call cache_clear() after the import"

_IMPORT_ERRORS = (Exception, SystemExit)
"""What the statements of a user's module may raise while it is imported: anything."""

_Chain = tuple[str, ...]

_NOTHING = object()


@dataclass(slots=True)
class DefinitionTrace:
    """The source and the constants of a definition, for messages about a change of it.

    Attributes
    ----------
    constants
        The labels of its constants, by name.
    """

    sources: list[Any] = field(default_factory=list)
    constants: dict[str, str] = field(default_factory=dict)


class Code:
    """Follows references from definitions to everything that their results depend on.

    Definitions count by their source and by what they are now: defaults and attributes of
    functions, members of classes.

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
    traces
        By label, what a definition refers to; for messages.
    imported
        Own modules that functions import when they run, by name.
    reads
        Expressions for the paths of files that functions read, with the objects of names.
    file_names
        Texts in functions that may be names of files.
    """

    def __init__(
        self,
        homes: frozenset[str],
        *,
        is_seeded: bool = False,
        written: frozenset[Key] = frozenset(),
    ) -> None:
        self.guards = Guards()
        self.firsts = FirstValues(written)
        self.traces: dict[str, DefinitionTrace] = {}
        self.imported: dict[str, ModuleType] = {}
        self.reads: list[tuple[ast.expr, Mapping[str, Any]]] = []
        self.file_names: set[str] = set()
        self._is_seeded = is_seeded
        self.parts: list[tuple[str, str]] = []
        self.gaps: dict[str, str] = {}
        self.packages: set[str] = set()
        self._homes = homes
        files = (getattr(sys.modules.get(home), "__file__", None) for home in sorted(homes))
        self.folders = tuple(os.path.dirname(os.path.abspath(file)) for file in files if file)
        self._sources = Sources()
        self._values = Values(self.add, self._is_ours, self.folders, self.guards.value)
        # By id; the objects are kept alive so that each id stays unique.
        self._seen: dict[int, tuple[object, str]] = {}
        self._labels: Counter[str] = Counter()
        self._settings: set[str] = set()

    def add(self, thing: Any) -> str:
        """Cover a thing and return its label, by which other things refer to it.

        Raises
        ------
        ConfigurationError
            If its source cannot be read.
        """
        if isinstance(thing, functools.partial):
            self.guards.members(thing.keywords)
            arguments = [self.add(item) for item in (*thing.args, *thing.keywords.values())]
            return f"partial {self.add(thing.func)} {arguments} {list(thing.keywords)}"
        if isinstance(thing, MethodType):
            return f"method of {self.add(thing.__self__)}: {self.add(thing.__func__)}"
        if isinstance(thing, ModuleType):
            return self._module(thing)
        if isinstance(thing, type):
            return self._definition(thing)
        if (descriptor := members.parts_of(thing)) is not None:
            kind, parts = descriptor
            return f"{kind} {[self.add(part) for part in parts]}"
        if callable(thing) and (inner := inspect.unwrap(thing)) is not thing:
            if not self._is_ours(thing.__module__) and is_named(thing):
                return f"{self._package(thing.__module__)} {thing.__qualname__}"
            return " of ".join([*self._wrappers(thing, inner), self.add(inner)])
        if isinstance(thing, FunctionType):
            return self._definition(thing)
        value = self._values.describe(thing)
        return f"constant {value}" if value is not None else self._other(thing)

    # ------------------------------------------------------------ functions, classes, modules

    def _definition(self, thing: FunctionType | type) -> str:
        if not self._is_ours(thing.__module__) and not _is_made_in_types(thing):
            return self._foreign(thing)
        if id(thing) not in self._seen:
            self._guard(thing)
            # The inner function of a decorator may have the name of the wrapped function.
            if isinstance(thing, type):
                label = self._new_label(thing, f"class {thing.__qualname__}")
                content = self._class(thing, label)
            else:
                label = self._new_label(thing, f"function {members.name_of(thing)}")
                content = self._function(thing, label)
            self.parts.append((label, json_digest(content)))
        return self._seen[id(thing)][1]

    def _guard(self, thing: FunctionType | type) -> None:
        if isinstance(thing, type):
            self.guards.class_(thing)
        else:
            self.guards.function(thing)

    def _function(self, thing: FunctionType, label: str) -> list[object]:
        self.guards.function(thing)
        piece = self._sources.piece(thing)
        if piece is None:
            raise _unreadable(thing)
        used = self._used(piece, label, _scope(thing), thing)
        content = [piece.canonical, used, self._state(thing)]
        if not piece.is_running:
            # States of this code must not be found by the code of the source.
            content.append(code_content(thing.__code__))
            name = members.name_of(thing)
            self._gap(
                f"{name}: its source", "it is not that of the running code; start Python anew"
            )
        return content

    def _state(self, thing: FunctionType) -> list[object]:
        """Cover the defaults and attributes that a function has now."""
        keywords = sorted((thing.__kwdefaults__ or {}).items())
        named = [*keywords, *members.attributes_of(thing)]
        return [self.add(thing.__defaults__), [(name, self.add(value)) for name, value in named]]

    def _class(self, kind: type, label: str) -> list[object]:
        piece = self._sources.piece(kind)
        if piece is None:
            self._refuse_unreadable(kind)
        bases = [self.add(base) for base in (*kind.__bases__, type(kind))]
        content = [
            (name, self._member(kind, name, member, label))
            for name, member in members.members_of(kind)
        ]
        if piece is None:
            return [bases, content]
        # A foreign decorator may have made an object of unknown content of a method.
        methods = [
            (name, method.canonical, self._used(method, label, _scope(kind), kind))
            for name, method in sorted(piece.methods.items())
            if name in vars(kind) and members.function_of(vars(kind)[name]) is None
        ]
        used = self._used(piece, label, _scope(kind), kind)
        whole = [piece.canonical, used, bases, content, methods]
        registered = [self.add(each) for each in members.registered_with(kind)]
        return [*whole, registered] if registered else whole

    def _member(self, kind: type, name: str, member: Any, label: str) -> object:
        """Return the content of a member of a class; own methods count with their class."""
        if (descriptor := members.parts_of(member)) is not None:
            parts = [self._member(kind, name, part, label) for part in descriptor[1]]
            return [descriptor[0], *parts]
        if name == "__dataclass_fields__":
            entries = {entry: members.field_of(field) for entry, field in member.items()}
            return [(entry, [self.add(part) for part in entries[entry]]) for entry in entries]
        function = members.function_of(member)
        if function is not None and self._is_unreadable(function):
            if members.is_generated(kind, name, function):
                return ["generated", self._state(function)]
            self._gap(f"{label}: {name}", "it has no source; say what it does in version")
            return NOT_COVERED
        if isinstance(member, FunctionType) and function is member and _is_own(member, kind):
            return self._function(member, label)
        return self.add(member)

    def _is_unreadable(self, function: FunctionType) -> bool:
        return self._is_ours(function.__module__) and self._sources.piece(function) is None

    def _refuse_unreadable(self, kind: type) -> None:
        """Refuse a class that was made by a call, or from text, if its functions have no source."""
        for name, function in members.functions_of(kind).items():
            if self._is_unreadable(function) and not members.is_generated(kind, name, function):
                raise _unreadable(kind)

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

    def _wrappers(self, thing: Any, inner: Any) -> Iterator[str]:
        """Cover the decorators around a function, unless they stand in its source."""
        layers = [thing]
        while (layer := layers[-1].__wrapped__) is not inner:
            layers.append(layer)
        for layer in layers:
            self.guards.value(layer)
            is_cache = isinstance(layer, functools._lru_cache_wrapper)
            if is_cache and layer.cache_info().currsize and _is_imported(layer.__module__):
                self._gap(f"function {layer.__qualname__}: its cache", _CACHE)
        is_ours = isinstance(inner, FunctionType) and self._is_ours(inner.__module__)
        piece = self._sources.piece(inner) if is_ours else None
        is_shown = piece is not None and len(layers) <= piece.decorators
        for layer in layers:
            module = getattr(layer, "__globals__", {}).get("__name__", "")
            if module == "functools" and hasattr(layer, "registry"):
                pairs = sorted(_dispatched(layer), key=lambda pair: rank(pair[0]))
                yield f"dispatch {[[self.add(kind), self.add(at)] for kind, at in pairs]}"
            elif isinstance(layer, FunctionType) and self._is_ours(module):
                yield self._definition(layer)
            else:
                if not is_shown:
                    yield self._made_by_a_call(layer)
                named = [(n, value) for n, value in members.attributes_of(layer)]
                if named:
                    yield f"{[(name, self.add(value)) for name, value in named]}"

    # ------------------------------------------------------------------------- references

    def _used(self, piece: Piece, label: str, scope: Mapping[str, Any], thing: Any) -> list[object]:
        """Cover the references of a definition; return their names and labels."""
        references = []
        trace = self.traces.setdefault(label, DefinitionTrace())
        trace.sources.append(piece.canonical)
        namespaces = _namespaces(thing)
        for namespace in namespaces:
            self.firsts.note(namespace, piece.written)
        if getattr(thing, "__name__", "") != "fingerprint_data":
            self.reads += [(path, scope) for path in piece.reads]
            self.file_names.update(piece.file_names)
        for chain in piece.names:
            self._note_dynamic(chain, scope, label)
            for namespace in namespaces:
                self.guards.name(namespace, chain[0])
            if chain[0] in scope and chain[0] not in _MODULE_NAMES:
                reference = self._value_of(chain, scope, thing)
                references.append((".".join(chain), reference))
                if reference.startswith("constant "):
                    is_module = isinstance(scope[chain[0]], ModuleType)
                    trace.constants[".".join(chain) if is_module else chain[0]] = reference
        if piece.imports:
            installed, own = self._imported(piece.imports, label, thing)
            for chain in piece.imported_names:
                self._note_dynamic(chain, installed, label)
                if chain[0] in own:
                    references.append((".".join(chain), self._reference(chain, own[chain[0]])))
                elif (changed := self._changed(chain, installed.get(chain[0]))) is not None:
                    references.append((".".join(chain), changed))
        for name in piece.global_names:
            for namespace in namespaces:
                self.guards.name(namespace, name)
            if name in scope:
                references.append((f"globals {name}", self.add(scope[name])))
        for name in piece.reflections:
            self._gap(f"{label}: {name}", REFLECTIONS[name])
        for chain in piece.settings:
            self._cover_setting(chain, scope)
        for chain in piece.calls:
            self._note_effect(chain, scope)
        return [list(reference) for reference in references]

    def _value_of(self, chain: _Chain, scope: Mapping[str, Any], thing: Any) -> str:
        """Return the label of the object of a name; of a global that own code writes, the first."""
        name, value = chain[0], scope[chain[0]]
        for namespace in _namespaces(thing):
            is_written = (id(namespace), name) in self.firsts.known
            if is_written and namespace.get(name, _NOTHING) is value and _is_data(value):
                reader = thing.__code__ if isinstance(thing, FunctionType) else thing
                return self.firsts.label(namespace, name, reader, describe=self.add)
        return self._reference(chain, value)

    def _note_effect(self, chain: _Chain, scope: Mapping[str, Any]) -> None:
        """Note a gap for a call that changes the process when the module is imported."""
        thing = scope.get(chain[0])
        for name in chain[1:]:
            thing = vars(thing).get(name) if isinstance(thing, ModuleType) else None
        effect = effect_of(thing, seeds_count=not self._is_seeded)
        if effect is not None:
            self._gap(*effect)

    def _reference(self, chain: _Chain, thing: Any) -> str:
        """Return the label of the object of a dotted name."""
        for place, name in enumerate(chain[1:], start=1):
            if not isinstance(thing, ModuleType):
                break
            self.guards.name(vars(thing), name)
            if not self._is_ours(thing.__name__):
                changed = self._changed(chain[place - 1 :], thing)
                return self._module(thing) if changed is None else changed
            thing = self._attribute(thing, name)
        return self.add(thing)

    def _changed(self, chain: _Chain, thing: Any) -> str | None:
        """Return the label of user's code that stands under a name in an installed package."""
        for name in chain[1:]:
            if not isinstance(thing, ModuleType):
                break
            self.guards.name(vars(thing), name)
            thing = vars(thing).get(name)
        if isinstance(thing, type) and not self._is_ours(thing.__module__):
            return self._foreign(thing) if self._changed_members(thing) else None
        if not self._is_users(thing):
            return None
        self._gap(".".join(chain), _SET_HERE)
        return self.add(thing)

    def _changed_members(self, kind: type) -> list[tuple[str, str]]:
        """Cover the user's functions that were set on an installed class or its bases."""
        changed = []
        for base in kind.__mro__:
            if not self._is_ours(base.__module__):
                self.guards.class_(base)
                for name, member in sorted(vars(base).items()):
                    if self._is_users(members.function_of(member)):
                        changed.append((name, self.add(member)))
                        self._gap(f"{base.__qualname__}.{name}", _SET_HERE)
        return changed

    def _is_users(self, thing: Any) -> bool:
        """Return whether a thing is a function or class of a loaded module that counts."""
        if not isinstance(thing, FunctionType | type):
            return False
        return thing.__module__ in sys.modules and self._is_ours(thing.__module__)

    def _cover_setting(self, chain: _Chain, scope: Mapping[str, Any]) -> None:
        """Cover an attribute of an installed module or class that a user's module sets."""
        thing = scope.get(chain[0])
        if not isinstance(thing, ModuleType | type) or thing is sys:
            return
        home = thing.__name__ if isinstance(thing, ModuleType) else thing.__module__
        name = ".".join((thing.__name__, *chain[1:]))
        if self._is_ours(home) or name in self._settings:
            return
        self._settings.add(name)
        self._gap(f"setting {name}", _SET_HERE)
        read = functools.partial(functools.reduce, _read, chain[1:], thing)
        self.guards.result(read)
        self.parts.append((f"setting {name}", json_digest(self.add(read()))))

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
                installed[item.name] = vars(module or object).get(item.attribute or "", module)
                continue
            try:
                module = importlib.import_module(name or item.module)
            except _IMPORT_ERRORS as error:
                self._gap(f"{label}: import of {item.module}", _cannot(error))
            else:
                self.imported[module.__name__] = module
                self.guards.name(sys.modules, name or item.module)
                if item.attribute is not None:
                    own[item.name] = self._attribute(module, item.attribute)
                else:
                    own[item.name] = sys.modules[top] if item.name == top else module
        return installed, own

    def _attribute(self, module: ModuleType, name: str) -> Any:
        """Return an attribute of a user's module, or a submodule, imported if necessary."""
        self.guards.name(vars(module), name)
        try:
            if not hasattr(module, name) and hasattr(module, "__path__"):
                full = f"{module.__name__}.{name}"
                if importlib.util.find_spec(full) is not None:
                    importlib.import_module(full)
            return getattr(module, name, None)
        except _IMPORT_ERRORS as error:
            self._gap(f"{module.__name__}.{name}", _cannot(error))
            return None

    def _note_dynamic(self, chain: _Chain, scope: Mapping[str, Any], label: str) -> None:
        for name, why in dynamic_uses(chain, scope):
            self._gap(f"{label}: {name}", why)

    # ----------------------------------------------------------------- what is from elsewhere

    def _foreign(self, thing: FunctionType | type) -> str:
        """Return the name of an installed definition, and what changes it."""
        # The package only: modules inside a package move between versions.
        label = f"{self._package(thing.__module__)} {thing.__qualname__}"
        if isinstance(thing, FunctionType):
            return label if is_named(thing) else self._made_by_a_call(thing)
        if id(thing) not in self._seen:
            self._seen[id(thing)] = (thing, label)  # in case the changed members refer to it
            if changed := self._changed_members(thing):
                self._seen[id(thing)] = (thing, f"{label} changed {changed}")
        return self._seen[id(thing)][1]

    def _made_by_a_call(self, thing: Any) -> str:
        """Return the name of a callable that an installed package made, and of what."""
        kind = type(thing)
        if not isinstance(thing, FunctionType):
            return f"{self._package(kind.__module__)} {kind.__qualname__}"
        label = f"{self._package(thing.__globals__.get('__name__'))} {members.name_of(thing)}"
        self.guards.function(thing)
        closure = [(name, self.add(value)) for name, value in sorted(_closure(thing).items())]
        return f"{label} {closure} {self.add(thing.__defaults__)}"

    def _other(self, thing: Any) -> str:
        """Return the name of a foreign object; add a gap if the name does not identify it."""
        kind = type(thing)
        name = getattr(thing, "__name__", "")
        label = f"{kind.__module__.partition('.')[0]}.{kind.__qualname__} {name}".strip()
        if isinstance(thing, logging.Logger):
            # Its name depends on the module, and differs between a script and an import.
            return "logging.Logger"
        if kind.__module__ == "typing" or typing.get_origin(thing) is not None:
            return self._type_form(thing)
        if isinstance(thing, (operator.itemgetter, operator.attrgetter, operator.methodcaller)):
            return f"{label} {self.add(thing.__reduce__()[1:])}"
        if isinstance(thing, BuiltinFunctionType | MethodWrapperType):
            owner = getattr(thing, "__self__", None)
            is_value = owner is not None and not isinstance(owner, ModuleType | type)
            if is_value and (value := self._values.describe(owner)) is not None:
                return f"method {name} of {value}"
        if callable(thing) and (home := home_of(thing)) is not None and not self._is_ours(home):
            return f"{self._package(home)} {getattr(thing, '__qualname__', name)}"
        if callable(thing):
            compiled = isinstance(name, str) and name and self._is_ours(module_of(thing))
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

    def portable(self, path: str) -> str:
        """Return a path without the folder of the code, which differs between machines."""
        return str(self._values.portable(path))

    def _is_ours(self, name: str | None) -> bool:
        """Return whether the code of a module counts; code without a module (None) does."""
        if name is None:
            return True
        top = name.partition(".")[0]
        if top in ("dasktune", "builtins", ""):
            return False
        module = sys.modules.get(name)
        if top in sys.stdlib_module_names:  # the user may have a file of that name
            return module is not None and not is_installed(module)
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
    """Return the objects of the names in a definition: closures before module globals.

    A function that travelled by value has only the globals that its code reads when it is called,
    and cloudpickle puts it in the class of this process, too, if the class comes back to it. The
    names in its defaults are still those of its module.
    """
    module = sys.modules.get(thing.__module__)
    scope = {} if module is None else dict(vars(module))
    if isinstance(thing, FunctionType):
        return {**scope, **thing.__globals__, **_closure(thing)}
    for function in members.functions_of(thing).values():
        if function.__module__ == thing.__module__:
            scope = {**function.__globals__, **scope, **_closure(function)}
    return scope


def _is_imported(name: str) -> bool:
    """Return whether workers import a module, whose statements they run then."""
    module = sys.modules.get(name)
    return module is not None and (is_installed(module) or is_editable(module))


def _is_made_in_types(thing: Any) -> bool:
    """Return whether a class was made by a call that does not know the module of its caller.

    Such as `dataclasses.make_dataclass` before Python 3.12.
    """
    is_class = isinstance(thing, type) and thing.__module__ == "types"
    return is_class and vars(types).get(thing.__name__) is not thing


def _namespaces(thing: Any) -> list[dict[str, Any]]:
    """Return the namespaces in which the global names of a definition are looked up."""
    if isinstance(thing, ModuleType):
        return [vars(thing)]
    module = sys.modules.get(thing.__module__)
    spaces = [] if module is None else [vars(module)]
    if isinstance(thing, FunctionType):
        functions = [thing]
    else:
        functions = [
            f for f in members.functions_of(thing).values() if f.__module__ == thing.__module__
        ]
    for function in functions:
        if not any(function.__globals__ is space for space in spaces):
            spaces.append(function.__globals__)
    return spaces


def _is_data(value: Any) -> bool:
    """Return whether a value is data, neither a definition nor a module."""
    return not isinstance(value, ModuleType | type) and not callable(value)


def _unreadable(thing: FunctionType | type) -> ConfigurationError:
    return ConfigurationError(
        f"the source of {thing.__qualname__} cannot be read (it is said to be in "
        f"{thing.__module__!r}); define it in a file or a notebook cell, so that a change of "
        "it can be noticed"
    )


def _is_own(function: FunctionType, kind: type) -> bool:
    """Return whether a function was defined in the statement of a class."""
    home = members.name_of(function).rpartition(".")[0]
    return home == kind.__qualname__ and function.__module__ == kind.__module__


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
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _dispatched(dispatching: Any) -> list[tuple[type, Any]]:
    """Return the functions registered with a single-dispatch function, by type."""
    return [(kind, at) for kind, at in dispatching.registry.items() if kind is not object]


def _read(thing: Any, name: str) -> Any:
    """Return an attribute, or None. Reading it may import other modules: some are lazy."""
    try:
        return getattr(thing, name, None)
    except _IMPORT_ERRORS:
        return None


def _cannot(error: BaseException) -> str:
    kind = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
    return f"it cannot be imported: {kind}{error}"


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

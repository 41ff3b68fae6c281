"""The own code that a trainer's class can reach, and the variables in which it keeps values."""

from __future__ import annotations

import dis
import functools
import importlib
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from dasktune.trainer.base import HARMLESS, OWN
from dasktune.trainer.fingerprint.installed import is_installed

OPAQUE = (BuiltinFunctionType, ModuleType, CodeType, type)
"""Types of values that have no parts."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Where an attribute or a global variable is held.

    Parameters
    ----------
    space
        The variables by name of an object or module, or a class.
    is_global
        Whether all trainers of the process share it.
    """

    space: Any
    name: str
    is_global: bool = False

    @property
    def value(self) -> Any:
        """The value now."""
        return getattr(self.space, self.name) if self._is_class else self.space[self.name]

    def set(self, value: Any) -> None:
        """Set another value."""
        if self._is_class:
            setattr(self.space, self.name, value)
        else:
            self.space[self.name] = value

    @property
    def is_set(self) -> bool:
        """Whether there is a value: an attribute that a class inherits is not its own."""
        return self.name in (vars(self.space) if self._is_class else self.space)

    def remove(self) -> None:
        """Remove the value."""
        if self._is_class:
            delattr(self.space, self.name)
        else:
            del self.space[self.name]

    @property
    def _is_class(self) -> bool:
        return isinstance(self.space, type)


@dataclass(frozen=True, slots=True)
class ReachedCode:
    """The functions and classes that a trainer's code can reach, outside installed packages."""

    functions: tuple[FunctionType, ...]
    classes: tuple[type, ...]
    names: tuple[tuple[FunctionType, tuple[str, ...], Mapping[str, ModuleType]], ...]
    """The names that each function uses outside itself, and the modules that it imports itself."""
    packages: Mapping[str, Holder]
    """By path, the variables that code may set in modules and classes of installed packages."""
    set_in_packages: frozenset[tuple[int, str]]
    """Those among them that it sets by their whole names: the id of the space, and the name."""
    cached: tuple[Any, ...]
    """Functions whose results are kept by `functools.lru_cache`."""
    texts: frozenset[str]
    """The texts in the code, among them the variables of the environment that it names."""
    stored: frozenset[str]
    """The names of the attributes that the code sets."""
    loaded: frozenset[str]
    """Those among them that `load_state_dict` sets, by itself or by methods that it calls."""
    state_only_reads: bool
    """Whether the code of `state_dict` is known to change nothing."""
    imports: frozenset[str]
    """The modules that functions import while they run."""
    imported: frozenset[str]
    """The modules of own code among them that are loaded."""
    all_names: frozenset[str]
    """The names in all code."""
    read_elsewhere: frozenset[str]
    """The names in all code but that of `state_dict`."""


_CODE: WeakKeyDictionary[type, ReachedCode] = WeakKeyDictionary()


def code_of(trainer_class: type) -> ReachedCode:
    """Return the code that a trainer's class can reach; found once for each class."""
    known = _CODE.get(trainer_class)
    if known is None or known.imported != _loaded_of(known.imports):
        known = _CODE[trainer_class] = _find_code(trainer_class)
    return known


def _loaded_of(names: Iterable[str]) -> frozenset[str]:
    """Return those of the modules of these names that are loaded, and are own code."""
    return frozenset(
        name
        for name in names
        if (module := sys.modules.get(name)) is not None and not is_installed(module)
    )


def import_modules(names: Iterable[str]) -> None:
    """Import modules that own code imports within functions, as another process has done."""
    for name in names:
        with suppress(ImportError):  # then its variables are missing, and are named
            importlib.import_module(name)


def _find_code(trainer_class: type) -> ReachedCode:
    functions: list[FunctionType] = []
    classes: list[type] = []
    cached: list[Any] = []
    seen: dict[int, object] = {}
    imports: frozenset[str] = frozenset()
    waiting: list[Any] = [trainer_class]
    while waiting:
        thing = waiting.pop()
        if isinstance(thing, functools.partial):
            waiting.append(thing.func)
            continue
        if _is_cached(thing):
            if is_ours(thing.__wrapped__) and id(thing) not in seen:
                seen[id(thing)] = thing
                cached.append(thing)
                waiting.append(thing.__wrapped__)
            continue
        if id(thing) in seen or not is_ours(thing):
            continue
        seen[id(thing)] = thing
        if isinstance(thing, type):
            classes.append(thing)
            waiting += [*thing.__bases__, *map(_reached_from, vars(thing).values())]
            continue
        functions.append(thing)
        named = _names(thing.__code__)
        inside = _imported(thing.__code__)
        imports |= inside
        values = [thing.__globals__.get(name) for name in named]
        values += [sys.modules.get(name) for name in inside]
        waiting += map(_reached_from, values)
        for module in values:
            if isinstance(module, ModuleType) and not is_installed(module):
                inner = vars(module)
                waiting += [_reached_from(inner[name]) for name in named if name in inner]
        waiting += map(_reached_from, _enclosed(thing).values())
        if isinstance(getattr(thing, "__wrapped__", None), FunctionType):
            waiting.append(thing.__wrapped__)
    loaded = _loaded_of(imports)
    names = tuple(
        (
            function,
            tuple(sorted(_names(function.__code__))),
            {name: sys.modules[name] for name in _imported(function.__code__) & loaded},
        )
        for function in functions
    )
    texts = frozenset().union(*(_texts(function.__code__) for function in functions))
    stored = frozenset().union(*(_stored(function.__code__) for function in functions))
    return ReachedCode(
        functions=tuple(functions),
        classes=tuple(classes),
        names=names,
        packages=_in_packages(functions, stored),
        set_in_packages=_set_by(functions),
        cached=tuple(cached),
        texts=texts,
        stored=stored,
        loaded=_loaded(trainer_class),
        state_only_reads=_state_only_reads(functions),
        imports=imports,
        imported=loaded,
        all_names=frozenset().union(*(_names(each.__code__) for each in functions)),
        read_elsewhere=frozenset().union(
            *(_read(each.__code__) for each in functions if each.__name__ != "state_dict")
        ),
    )


def _loaded(trainer_class: type) -> frozenset[str]:
    """Return the attributes that own code sets where it loads a state."""
    names: set[str] = set()
    seen: set[str] = set()
    waiting = ["load_state_dict"]
    while waiting:
        method = waiting.pop()
        if method in seen:
            continue
        seen.add(method)
        for base in trainer_class.__mro__:
            member = vars(base).get(method)
            if isinstance(member, FunctionType) and is_ours(member):
                names |= _stored(member.__code__)
                waiting += _names(member.__code__)
    return frozenset(names)


_READING = frozenset(
    {"state_dict", "copy", "deepcopy", "clone", "detach", "cpu", "numpy", "tolist", "item"}
    | {"items", "keys", "values", "get", "dict", "list", "tuple", "set", "int", "float", "str"}
    | {"len", "range", "enumerate", "zip", "sorted", "array", "asarray", "asdict", "vars", "tell"}
    | {"get_state", "getstate", "get_rng_state", "torch", "np", "random", "bool", "getvalue"}
    | {"named_parameters", "parameters", "named_buffers", "dumps", "pickle", "super", "self"}
)
"""Names of functions and modules that take a state without changing anything."""

_LOADS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_SUPER_ATTR"})

_CHANGING = frozenset(
    {"STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "STORE_DEREF", "DELETE_SUBSCR", "STORE_SLICE"}
)
"""Instructions that change something outside the function."""


def _state_only_reads(functions: list[FunctionType]) -> bool:
    """Return whether own code that takes a state is known to change nothing by this.

    It sets no attributes, and calls only functions that are known to read, or own ones of which the
    same holds.
    """
    own: dict[str, list[CodeType]] = {}
    for function in functions:
        own.setdefault(function.__name__, []).append(function.__code__)
    waiting = [*own.get("state_dict", ())]
    seen: set[CodeType] = set()
    while waiting:
        code = waiting.pop()
        if code in seen:
            continue
        seen.add(code)
        called = _called(code, own)
        if called is None or not called <= _READING | own.keys():
            return False
        waiting += [each for name in called for each in own.get(name, ())]
        waiting += [item for item in code.co_consts if isinstance(item, CodeType)]
    return True


def _called(code: CodeType, own: Collection[str]) -> set[str] | None:
    """Return the names that a function may call, own properties among them.

    None if it changes something by itself.
    """
    names: set[str] = set()
    steps = [*dis.get_instructions(code)]
    for index, step in enumerate(steps):
        if step.opname in _CHANGING:
            return None
        if step.opname == "STORE_SUBSCR":  # an item of a local variable: the state itself
            container = steps[index - 2]
            if not (container.opname == "LOAD_FAST" and steps[index - 1].opname == "LOAD_CONST"):
                return None
        if step.opname in ("LOAD_METHOD", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"):
            names.add(str(step.argval))
        elif step.opname == "LOAD_ATTR":
            # From Python 3.12 on, the last bit tells a method.
            is_method = sys.version_info >= (3, 12) and bool((step.arg or 0) & 1)
            if is_method or step.argval in own:
                names.add(str(step.argval))
    return names


def _is_cached(thing: Any) -> bool:
    return hasattr(thing, "cache_info") and isinstance(
        getattr(thing, "__wrapped__", None), FunctionType
    )


def _reached_from(member: Any) -> Any:
    """Return the function behind a method, property or cached function; else the thing itself."""
    if isinstance(member, (FunctionType, type, functools.partial)) or _is_cached(member):
        return member
    if isinstance(member, functools.cached_property):
        return member.func
    inner = getattr(member, "__func__", getattr(member, "fget", None))
    return inner if isinstance(inner, FunctionType) else None


def global_variables(code: ReachedCode) -> dict[str, Holder]:
    """Return the global variables that code reads or writes, by path.

    Of modules outside installed packages it returns the variables that the code names, such as
    ``shared.count``; of installed ones those that it sets.
    """
    variables = {
        path: holder
        for path, holder in code.packages.items()
        if holder.is_set and _is_of_own_code(holder)
    }
    for function, names, inside in code.names:
        space = function.__globals__
        for name in (*names, *inside):
            if name not in space and name not in inside:
                continue
            value = inside[name] if name in inside else space[name]
            if isinstance(value, ModuleType):
                inner = vars(value)
                variables |= {
                    f"global {name}.{part}": Holder(inner, part, is_global=True)
                    for part in (() if is_installed(value) else names)
                    if part in inner and not isinstance(inner[part], (*OPAQUE, FunctionType))
                }
            elif not isinstance(value, (*OPAQUE, FunctionType)) and not name.startswith("__"):
                variables[f"global {name}"] = Holder(space, name, is_global=True)
    return variables


def _in_packages(functions: Iterable[FunctionType], stored: Collection[str]) -> dict[str, Holder]:
    """Return the variables that code may set in modules and classes of packages, by path.

    Some of them may not be there.
    """
    variables: dict[str, Holder] = {}
    for function in functions:
        names = sorted(_names(function.__code__))
        own = {name for name in names if name in stored and not name.startswith("__")}
        space = function.__globals__
        waiting = [(f"global {name}", space[name]) for name in names if own and name in space]
        seen: set[int] = set()
        while waiting:
            path, value = waiting.pop()
            if id(value) in seen or not _is_of_package(value):
                continue
            seen.add(id(value))
            inner = vars(value)
            is_class = isinstance(value, type)
            waiting += [
                (f"{path}.{part}", inner[part])
                for part in names
                if part in inner and _is_of_package(inner[part])
            ]
            variables |= {
                f"{path}.{part}": Holder(value if is_class else inner, part, is_global=True)
                for part in own
            }
    return variables


def _set_by(functions: Iterable[FunctionType]) -> frozenset[tuple[int, str]]:
    """Return the attributes that code sets by whole names, such as ``np.random.seed``."""
    places: set[tuple[int, str]] = set()
    for function in functions:
        owner: Any = None
        for step in dis.get_instructions(function.__code__):
            if step.opname == "EXTENDED_ARG":
                continue
            name = str(step.argval)
            # A text after a name may be that of `setattr`.
            if step.opname in ("STORE_ATTR", "LOAD_CONST") and _is_of_package(owner):
                space = owner if isinstance(owner, type) else vars(owner)
                places.add((id(space), name))
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                owner = function.__globals__.get(name)
            elif step.opname == "LOAD_ATTR" and isinstance(owner, (ModuleType, type)):
                owner = vars(owner).get(name)
            else:
                owner = None
    return frozenset(places)


def _is_of_package(value: Any) -> bool:
    if isinstance(value, ModuleType):
        return is_installed(value)
    name = value.__module__ if isinstance(value, type) else None
    module = sys.modules.get(name) if isinstance(name, str) else None
    return module is not None and name != "builtins" and is_installed(module)


def _is_of_own_code(holder: Holder) -> bool:
    """Return whether own code may have put there what a package has: a value, or a function."""
    value = holder.value
    if isinstance(value, (FunctionType, type)):
        return is_ours(value)
    return not isinstance(value, OPAQUE) and not hasattr(type(value), "__get__")


def class_attributes(kind: type) -> Iterator[tuple[str, Holder]]:
    """Yield the attributes of a class that can change, by path."""
    for name, value in vars(kind).items():
        is_hidden = name.startswith(("__", OWN, "_abc_")) or name == HARMLESS
        holder = Holder(kind, name, is_global=True)
        if isinstance(value, FunctionType) and not is_hidden:
            yield f"{kind.__name__}.{name}", holder  # another one may take its place
            continue
        if is_hidden or _reached_from(value) is not None or isinstance(value, OPAQUE):
            continue
        if hasattr(type(value), "__get__") or hasattr(value, "cache_info"):
            continue
        yield f"{kind.__name__}.{name}", holder


def kept_by(function: FunctionType) -> dict[str, Any]:
    """Return the values that a function keeps between calls: defaults, closure, attributes."""
    name = function.__qualname__
    defaults = function.__defaults__ or ()
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    kept = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
    kept |= function.__kwdefaults__ or {}
    values = {f"default {each} of {name}": value for each, value in kept.items()}
    values |= {f"variable {each} of {name}": value for each, value in _enclosed(function).items()}
    values |= {
        f"{name}.{each}": value
        for each, value in vars(function).items()
        if each not in ("__wrapped__", HARMLESS)
    }
    return values


def _enclosed(function: FunctionType) -> dict[str, Any]:
    values = {}
    cells = function.__closure__ or ()
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        with suppress(ValueError):  # an empty cell
            values[name] = cell.cell_contents
    return values


def is_ours(thing: Any) -> bool:
    """Return whether a function or class is of neither an installed package nor dasktune."""
    if not isinstance(thing, (FunctionType, type)):
        return False
    name = thing.__module__ or ""
    if name.partition(".")[0] in ("builtins", "dasktune"):
        return False
    module = sys.modules.get(name)
    return module is None or not is_installed(module)


def _texts(code: CodeType) -> frozenset[str]:
    inner = (_texts(item) for item in code.co_consts if isinstance(item, CodeType))
    return frozenset(item for item in code.co_consts if isinstance(item, str)).union(*inner)


def _stored(code: CodeType) -> set[str]:
    inner = (_stored(item) for item in code.co_consts if isinstance(item, CodeType))
    own = {str(each.argval) for each in dis.get_instructions(code) if each.opname == "STORE_ATTR"}
    return own.union(*inner)


def _imported(code: CodeType) -> frozenset[str]:
    """Return the names of the modules that a function imports while it runs."""
    inner = (_imported(item) for item in code.co_consts if isinstance(item, CodeType))
    names: set[str] = set()
    module = ""
    for step in dis.get_instructions(code):
        if step.opname == "IMPORT_NAME":
            module = str(step.argval)
            names.add(module)
        elif step.opname == "IMPORT_FROM":
            names.add(f"{module}.{step.argval}")  # it may be a module, too
    return frozenset(names).union(*inner)


def _read(code: CodeType) -> set[str]:
    """Return the names of attributes and global variables that code reads."""
    inner = (_read(item) for item in code.co_consts if isinstance(item, CodeType))
    steps = dis.get_instructions(code)
    own = {str(each.argval) for each in steps if each.opname.startswith(("LOAD_ATTR", "LOAD_M"))}
    steps = dis.get_instructions(code)
    return own.union({str(each.argval) for each in steps if each.opname in _LOADS}, *inner)


def _names(code: CodeType) -> set[str]:
    inner = (_names(item) for item in code.co_consts if isinstance(item, CodeType))
    return set(code.co_names).union(*inner)

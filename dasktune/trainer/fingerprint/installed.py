"""Recognising modules that every worker has: the standard library and installed packages."""

from __future__ import annotations

import json
import os
import site
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from types import BuiltinFunctionType, ModuleType
from typing import Any


def is_installed(module: ModuleType) -> bool:
    """Return whether a module comes from an installed package (or from Python itself).

    An editable install counts, because its modules have the same names wherever it is
    installed. A study file, a file next to it, a notebook and a test module do not count.
    """
    name = module.__name__.partition(".")[0]
    if name == "__main__":
        return False
    if name == "dasktune" or name in sys.stdlib_module_names:
        return True
    file = getattr(module, "__file__", None)
    # A namespace package has folders instead of a file.
    places = [file] if file is not None else list(getattr(module, "__path__", ()))
    if not places:
        # Built in or frozen; a module without a spec was made at run time.
        return getattr(module, "__spec__", None) is not None
    return all(_in_site_packages(str(place)) for place in places) or name in _editable_packages()


def is_installed_name(name: str) -> bool:
    """Return whether a top-level name belongs to an installed package, without importing it."""
    if (loaded := sys.modules.get(name)) is not None:
        return is_installed(loaded)
    if name in sys.stdlib_module_names:
        return True
    spec = find_spec(name)
    if spec is None:
        return False
    stand_in = ModuleType(name)
    stand_in.__spec__ = spec
    stand_in.__file__ = spec.origin if spec.has_location else None
    stand_in.__path__ = list(spec.submodule_search_locations or ())
    return is_installed(stand_in)


def home_of(thing: Any) -> str | None:
    """Return the module that holds a callable under its name, or None."""
    owner = getattr(thing, "__objclass__", getattr(thing, "__self__", None))
    if isinstance(owner, ModuleType):
        return owner.__name__
    if isinstance(owner, type):
        return owner.__module__
    if isinstance(thing, BuiltinFunctionType) and owner is not None:
        return type(owner).__module__
    home = module_of(thing)
    name = getattr(thing, "__name__", None)
    is_found = isinstance(name, str) and getattr(sys.modules.get(home), name, None) is thing
    return home if is_found or isinstance(thing, BuiltinFunctionType) else None


def module_of(thing: Any) -> str:
    """Return the name of a callable's module by its own account."""
    module = getattr(thing, "__module__", None)
    return module if isinstance(module, str) else type(thing).__module__


def is_named(thing: Any) -> bool:
    """Return whether the module of a function holds it under a name: no call has made it."""
    module = sys.modules.get(module_of(thing))
    place: Any = module
    for name in getattr(thing, "__qualname__", "<none>").split("."):
        place = getattr(place, name, None)
    return place is thing or any(value is thing for value in vars(module or object).values())


@cache
def _in_site_packages(file: str) -> bool:
    # A process has thousands of modules in some hundred folders: each folder is resolved once.
    return _is_library(os.path.dirname(os.path.realpath(file) if os.path.islink(file) else file))


@cache
def _is_library(folder: str) -> bool:
    path = Path(folder).resolve()
    return any(path.is_relative_to(library) for library in _library_folders())


@cache
def _library_folders() -> tuple[Path, ...]:
    paths = sysconfig.get_paths()
    folders = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [*site.getsitepackages(), site.getusersitepackages()]
    return tuple(Path(folder).resolve() for folder in folders)


@cache
def _editable_packages() -> frozenset[str]:
    """Return the top-level names of the packages that are installed as editable."""
    return frozenset(
        name
        for distribution in metadata.distributions()
        if _is_editable(distribution)
        for name in _top_level_names(distribution)
    )


def _is_editable(distribution: metadata.Distribution) -> bool:
    text = distribution.read_text("direct_url.json")
    if text is None:
        return False
    return bool(json.loads(text).get("dir_info", {}).get("editable", False))


def _top_level_names(distribution: metadata.Distribution) -> Iterator[str]:
    listed = distribution.read_text("top_level.txt")
    yield from (listed or "").split()
    # Some build systems write no top_level.txt; the import name is nearly always this.
    yield str(distribution.metadata["Name"]).replace("-", "_")

"""Recognising modules whose code does not count: the standard library and installed packages.

The rule. The file of a module, with links followed, is *installed* if

- it is below the standard library, or below a folder of packages: those of this environment, and
  any folder called ``site-packages`` or ``dist-packages``, whether a ``.pth`` file, PYTHONPATH
  or the program itself has put it on the path; or
- a distribution lists it: a ``*.dist-info`` in the folder from which the module is imported has
  it in its RECORD (``pip install --target``, and environments of links to a cache).

All other code is the user's own: it counts in fingerprints, and travels with a study. That holds
for a study file and the files beside it, for folders on PYTHONPATH or in a ``.pth`` file, and for
editable installs: their code changes under an unchanged version.
"""

from __future__ import annotations

import csv
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

_PACKAGE_FOLDERS = frozenset({"site-packages", "dist-packages"})


def is_installed(module: ModuleType) -> bool:
    """Return whether a module comes from an installed package (or from Python itself).

    See the rule above. dasktune counts as installed wherever it is; ``__main__`` never does.
    """
    name = module.__name__
    top = name.partition(".")[0]
    if top in ("__main__", "dasktune"):
        return top == "dasktune"
    file = getattr(module, "__file__", None)
    if file is not None:
        return _is_installed_file(str(file), name)
    # A namespace package has folders instead of a file.
    if places := _folders_of(module):
        return all(_is_installed_folder(str(place), name) for place in places)
    # Built in or frozen; a module without a spec was made at run time.
    return top in sys.stdlib_module_names or getattr(module, "__spec__", None) is not None


def _folders_of(module: ModuleType) -> list[str]:
    """Return the folders of a package; those of a namespace are looked up in its parent."""
    try:
        return list(getattr(module, "__path__", ()))
    except KeyError:  # its parent is being imported anew
        return list(getattr(module.__path__, "_path", ()))


def is_installed_name(name: str) -> bool:
    """Return whether a top-level name belongs to an installed package, without importing it."""
    if (loaded := sys.modules.get(name)) is not None:
        return is_installed(loaded)
    spec = find_spec(name)
    if spec is None:
        return name in sys.stdlib_module_names
    stand_in = ModuleType(name)
    stand_in.__spec__ = spec
    stand_in.__file__ = spec.origin if spec.has_location else None
    stand_in.__path__ = list(spec.submodule_search_locations or ())
    return is_installed(stand_in)


def is_editable(module: ModuleType) -> bool:
    """Return whether a module belongs to an editable install: own code that workers can import."""
    return module.__name__.partition(".")[0] in _editable_packages() and not is_installed(module)


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
def _is_installed_file(file: str, name: str) -> bool:
    # A process has thousands of modules in some hundred folders: each folder is resolved once.
    if is_library_folder(os.path.dirname(os.path.realpath(file) if os.path.islink(file) else file)):
        return True
    path = Path(file).resolve()
    above = name.count(".") + (path.stem == "__init__")
    root = path.parents[min(above, len(path.parents) - 1)]
    return path.relative_to(root).as_posix() in recorded_files(root)


@cache
def _is_installed_folder(folder: str, name: str) -> bool:
    if is_library_folder(folder):
        return True
    path = Path(folder).resolve()
    root = path.parents[min(name.count("."), len(path.parents) - 1)]
    within = path.relative_to(root).as_posix() + "/"
    return any(file.startswith(within) for file in recorded_files(root))


@cache
def is_library_folder(folder: str) -> bool:
    """Return whether a folder is one of Python's library or of installed packages, or below one."""
    path = Path(folder).resolve()
    if not _PACKAGE_FOLDERS.isdisjoint(path.parts):
        return True
    return any(path.is_relative_to(library) for library in _library_folders())


@cache
def _library_folders() -> tuple[Path, ...]:
    paths = sysconfig.get_paths()
    folders = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [*site.getsitepackages(), site.getusersitepackages()]
    # Where the standard library really is, such as in a zip file.
    folders.append(os.path.dirname(csv.__file__))
    return tuple(Path(folder).resolve() for folder in folders)


@cache
def recorded_files(root: Path) -> frozenset[str]:
    """Return the files that the distributions in a folder list, relative to the folder."""
    files: set[str] = set()
    for record in root.glob("*.dist-info/RECORD"):
        with record.open(encoding="utf-8", newline="") as lines:
            files.update(row[0] for row in csv.reader(lines) if row)
    return frozenset(files)


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

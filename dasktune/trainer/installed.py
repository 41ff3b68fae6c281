"""Which modules every worker has: the standard library and what is installed."""

from __future__ import annotations

import json
import site
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType


def is_installed(module: ModuleType) -> bool:
    """Return whether a module comes from an installed package (or from Python itself).

    An editable install counts: whoever has installed the package has its modules under
    the same names. A study file, a notebook, a test module or a file next to a study
    file does not.
    """
    name = module.__name__.partition(".")[0]
    if name == "__main__":
        return False
    if name == "dasktune" or name in sys.stdlib_module_names:
        return True
    file = getattr(module, "__file__", None)
    if file is None:
        # Built in, frozen or a namespace; made up at run time if it has no spec either.
        return getattr(module, "__spec__", None) is not None
    return _in_site_packages(str(file)) or name in _editable_packages()


@cache
def _in_site_packages(file: str) -> bool:
    path = Path(file).resolve()
    return any(path.is_relative_to(folder) for folder in _library_folders())


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
    # Build systems that write no top_level.txt: the import name is nearly always this one.
    yield str(distribution.metadata["Name"]).replace("-", "_")

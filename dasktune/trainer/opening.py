"""Calls of `open` as an audit hook of Python sees them: who opens a file, and whether to write."""

from __future__ import annotations

import os
from functools import cache
from types import FrameType

from dasktune.trainer.fingerprint.installed import is_library_folder

_FILE_PACKAGES = frozenset({"joblib", "numpy", "pandas", "polars", "scipy", "yaml"})
"""Packages that open the files which own code names: other packages have files of their own."""

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def is_of_own_code(frame: FrameType | None, package: str, *, is_direct: bool = False) -> bool:
    """Return whether own code opens a file, and not dasktune or the import of a module.

    Parameters
    ----------
    package
        Top-level name of the trainer's module: its code is own code also where it is installed.
    is_direct
        Whether only Python's own library, and packages that read and write files for own code, may
        lie between own code and the call.
    """
    while frame is not None:
        file, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__", ""))
        home = module.partition(".")[0]
        if file.startswith("<frozen importlib") or home == "dasktune":
            return False
        if home == package or not is_library_file(file):
            return True
        is_package = f"{os.sep}site-packages{os.sep}" in file
        if is_direct and is_package and home not in _FILE_PACKAGES:
            return False
        frame = frame.f_back
    return not is_direct  # a thread of a library, such as that of an executor, works for own code


def writes(mode: object, flags: object) -> bool:
    """Return whether a file is opened to write, by the arguments of the event."""
    if isinstance(mode, str):
        return not set(mode) <= set("rbtU")
    return isinstance(flags, int) and bool(flags & _WRITES)


@cache
def is_library_file(name: str) -> bool:
    """Return whether a file of code is Python's or an installed package's."""
    if name.startswith("<"):
        return not name.startswith(("<ipython", "<stdin"))
    return is_library_folder(os.path.dirname(os.path.realpath(name)))

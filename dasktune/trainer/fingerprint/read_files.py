"""The files that a resume check saw own code read, by whatever name.

A source does not show a name that is computed: ``HERE / f"{net}.yaml"``. The check sees the file
when own code opens it. Its content is kept with the verdict, which belongs to a fingerprint; so
the contents that the verdict has are those of the fingerprint's states. Where a file is another
one now, its present content is a part of the fingerprint, and the trainer gets another one.

Paths are kept in a form that other machines understand:

- ``conf/net.yaml`` is below the folder of the trainer's code,
- ``./net.yaml`` was opened by a name that starts at the working directory,
- ``~/nets/net.yaml`` is below the user's own folder,
- any other path is absolute.
"""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress

from dasktune.errors import ConfigurationError
from dasktune.trainer.fingerprint.data import data_digest
from dasktune.trainer.fingerprint.installed import is_library_folder
from dasktune.trainer.fingerprint.named_files import MOST_BYTES, is_below, left_out

MOST_FILES = 1000
"""Number of files whose contents are kept: all are read whenever a study is opened."""

LABEL = "read file "
"""Beginning of the names of the parts of fingerprints that are files of this kind."""

OpenedFile = tuple[str, bool]
"""A path, and whether it was opened by a name that starts at the working directory."""

MISSING = "missing"
"""In place of the content of a file that is not there."""

_SIZE = " bytes"
_SYSTEM = ("/etc", "/usr/lib", "/usr/share")


def kept_files(
    opened: Iterable[OpenedFile], trainer_class: type, config: Mapping[str, object]
) -> dict[str, str]:
    """Return the contents of files that own code has opened, by path, in the form that is kept.

    Left out are files of installed packages and of the system, temporary files, hidden files of
    the user (caches, passwords), and what ``ignored_config`` names; large files, too, if the
    trainer identifies its data by itself.

    Parameters
    ----------
    opened
        At most `MOST_FILES` of them are kept.
    trainer_class, config
        The trainer, and its config.
    """
    folder, ignored = code_folder(trainer_class), [*left_out(trainer_class, config), *_SYSTEM]
    kept: dict[str, str] = {}
    for path, is_relative in opened:
        whole = os.path.abspath(path)
        is_ignored = any(is_below(whole, each) for each in ignored)
        if is_ignored or is_library_folder(os.path.dirname(whole)) or _is_private(whole, folder):
            continue
        content = content_of(whole)
        is_data = content.endswith(_SIZE) and hasattr(trainer_class, "fingerprint_data")
        if content != MISSING and not is_data:
            kept[f"./{path}" if is_relative else _portable(whole, folder)] = content
        if len(kept) == MOST_FILES:
            break
    return kept


def changed_files(files: Mapping[str, str], folder: str | None) -> list[tuple[str, str]]:
    """Return the paths and present contents of files that are not as they were kept.

    Parameters
    ----------
    files
        As `kept_files` returns them.
    folder
        That of the trainer's code; see `code_folder`.
    """
    now = ((path, content_of(_place(path, folder))) for path in sorted(files))
    return [(path, content) for path, content in now if content != files[path]]


def places(files: Mapping[str, str], folder: str | None) -> list[str]:
    """Return the absolute paths of files; the arguments are those of `changed_files`."""
    return [os.path.abspath(_place(path, folder)) for path in files]


def changed_since(files: Mapping[str, str], folder: str | None, since: int) -> set[str]:
    """Return the paths of files that were written at a time or later.

    Parameters
    ----------
    files, folder
        As for `changed_files`.
    since
        Nanoseconds since the epoch.
    """
    late = set()
    for path in files:
        with suppress(OSError):
            status = os.stat(_place(path, folder))
            # A file that is moved or copied here may keep its time.
            if max(status.st_mtime_ns, status.st_ctime_ns) >= since:
                late.add(path)
    return late


def uncovered_files(
    files: Mapping[str, str], trainer_class: type, gaps: Iterable[str]
) -> list[str]:
    """Return in words the files whose contents do not count, except those that gaps name.

    Parameters
    ----------
    files
        As `kept_files` returns them.
    gaps
        Names of the gaps of its fingerprint.
    """
    folder = code_folder(trainer_class)
    names = (name.removeprefix("file ").replace("<folder>", folder or "", 1) for name in gaps)
    named = {os.path.abspath(name) for name in names}
    large = [
        f"{path} ({content})"
        for path, content in files.items()
        if content.endswith(_SIZE) and os.path.abspath(_place(path, folder)) not in named
    ]
    is_full = len(files) >= MOST_FILES and not hasattr(trainer_class, "fingerprint_data")
    return [*large, f"files after the first {MOST_FILES:,}"] if is_full else large


def content_of(path: str) -> str:
    """Return the digest of a file; the size of a large one, or that there is none."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            return MISSING
        large = status.st_size > MOST_BYTES
        return f"{status.st_size}{_SIZE}" if large else data_digest(path)
    except (OSError, ValueError, ConfigurationError):
        return MISSING


def code_folder(trainer_class: type) -> str | None:
    """Return the folder of the package or file of a trainer; None for the code of a notebook."""
    name = trainer_class.__module__
    modules = map(sys.modules.get, (name.partition(".")[0], name))  # a namespace has no file
    files = (getattr(module, "__file__", None) for module in modules)
    return next((os.path.dirname(os.path.abspath(file)) for file in files if file), None)


def _portable(path: str, folder: str | None) -> str:
    home = os.path.expanduser("~")
    if folder is not None and is_below(path, folder):
        return os.path.relpath(path, folder).replace(os.sep, "/")
    return f"~/{os.path.relpath(path, home)}" if is_below(path, home) else path


def _place(path: str, folder: str | None) -> str:
    if path.startswith("~/"):
        return os.path.expanduser(path)
    return path if path.startswith("./") else os.path.join(folder or "", path)


def _is_private(path: str, folder: str | None) -> bool:
    """Return whether a file is temporary, or a hidden one of the user.

    A trainer may itself be in such a folder, or work in one: then its files there count.
    """
    home = os.path.expanduser("~")
    private = {tempfile.gettempdir(), os.path.realpath(tempfile.gettempdir())}
    if path.startswith(hidden := os.path.join(home, ".")):
        private.add(hidden + path.removeprefix(hidden).partition(os.sep)[0])
    own = [each for each in (folder, os.getcwd()) if each is not None and each not in private]
    return any(
        is_below(path, each)
        and not any(is_below(place, each) and is_below(path, place) for place in own)
        for each in private
    )

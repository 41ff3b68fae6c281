"""Files of any protocol that fsspec knows; object stores are durable by themselves."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import numpy as np

from dasktune.errors import StorageError, unknown
from dasktune.storage.files import Buffer, Entry, Files, Parts
from dasktune.storage.local_files import LocalFiles

_CONFLICTS = ("PreconditionFailed", "ConditionalRequestConflict")


def open_files(url: str) -> Files:
    """Return the files at a path or URL; nothing is read or written yet.

    Raises
    ------
    StorageError
        If fsspec does not know the protocol, or lacks a library for it.
    """
    protocol, separator, path = url.partition("://")
    if not separator:
        return LocalFiles(Path(url))
    if protocol in ("file", "local"):
        return LocalFiles(Path(path))
    known = fsspec.available_protocols()
    if protocol.partition("::")[0] not in known:
        raise StorageError(f"cannot open {url}: {unknown('protocol', protocol, known)}")
    try:
        system, root = fsspec.url_to_fs(url, use_listings_cache=False)
    except (ImportError, OSError, ValueError) as error:
        raise StorageError(f"cannot open {url}: {error}") from error
    return ObjectFiles(system, root)


class ObjectFiles:
    """Files of any protocol that fsspec knows; object stores are durable by themselves.

    Parameters
    ----------
    system
        A file system of fsspec that does not cache its listings.
    root
        The path that all others are relative to.
    """

    # fsspec's memory file system is one for the whole process, and looks before it writes.
    _memory_lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, system: Any, root: str) -> None:
        self._system, self._root = system, root.rstrip("/")
        self._alone = self._memory_lock if "memory" in system.protocol else nullcontext()

    def write(self, folder: str, files: Mapping[str, Parts]) -> None:
        """Write files into one folder; fsspec sends them concurrently where it can."""
        self._system.pipe(
            {
                f"{self._root}/{folder}/{name}": b"".join(part.tobytes() for part in parts)
                for name, parts in files.items()
            }
        )

    def create(self, path: str, content: bytes, *, durable: bool = True) -> bool:
        """Write a small file unless it exists; the store decides between two that try."""
        try:
            with self._alone:
                self._system.pipe_file(f"{self._root}/{path}", content, mode="create")
        except FileExistsError:
            return False
        except OSError as error:
            if not _is_conflict(error):
                raise
            return False
        return True

    def read(self, folder: str, names: Sequence[str]) -> list[Buffer | None]:
        """Return the content of files of one folder; fsspec reads them concurrently."""
        paths = [f"{self._root}/{folder}/{name}" for name in names]
        found = self._system.cat(paths, on_error="return") if paths else {}
        return [_content(found[path]) for path in paths]

    def remove(self, path: str) -> None:
        """Remove an object, or all objects below a folder."""
        with suppress(FileNotFoundError):
            self._system.rm(f"{self._root}/{path}", recursive=True)

    def remove_same(self, path: str, content: bytes) -> bool:
        """Look, then remove: object stores have no removal under a condition."""
        with self._alone, suppress(FileNotFoundError):
            if self._system.cat_file(f"{self._root}/{path}") == content:
                self._system.rm_file(f"{self._root}/{path}")
                return True
        return False

    def replace(self, path: str, content: bytes) -> None:
        """Write a small object, whatever was there."""
        self._system.pipe_file(f"{self._root}/{path}", content)

    def remove_files(self, paths: Iterable[str]) -> None:
        """Remove objects, as many at a time as the store takes."""
        for path in paths:
            with suppress(FileNotFoundError):
                self._system.rm_file(f"{self._root}/{path}")

    def entries(self, folder: str) -> Iterator[Entry]:
        """Return all objects below a folder."""
        prefix = len(self._root) + 1
        for path, found in self._system.find(f"{self._root}/{folder}", detail=True).items():
            yield Entry(path=path[prefix:], nbytes=found["size"], modified=_modified(found))


def _content(found: bytes | Exception) -> Buffer | None:
    """Return what fsspec read; a folder where a file should be is no file either."""
    if isinstance(found, FileNotFoundError | IsADirectoryError):
        return None
    if isinstance(found, Exception):
        raise found
    return np.frombuffer(found, np.uint8)


def _is_conflict(error: OSError) -> bool:
    """Say whether an S3 gateway refused because the object exists; not all say it alike."""
    response = getattr(error.__cause__, "response", None) or {}
    return response.get("Error", {}).get("Code") in _CONFLICTS


def _modified(found: Mapping[str, Any]) -> float:
    """Return when a file was written; each file system of fsspec has a name of its own for it."""
    for name in ("LastModified", "mtime", "updated", "last_modified", "created"):
        when = found.get(name)
        if isinstance(when, datetime):
            return when.timestamp()
        if isinstance(when, int | float):
            return float(when)
    return 0.0

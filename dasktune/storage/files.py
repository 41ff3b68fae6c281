"""What a checkpoint store needs of the place it lies in: six operations.

`LocalFiles` makes what it writes survive a power cut, which fsspec does not do;
`ObjectFiles` is any other protocol of fsspec. Both create a file only if it is absent, and
that is the only way in which two processes ever meet.
"""

from __future__ import annotations

import itertools
import os
import shutil
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, ClassVar, Protocol

import fsspec
import numpy as np
from numpy.typing import NDArray

from dasktune.errors import StorageError, unknown

Buffer = NDArray[np.uint8]
Parts = Sequence[Buffer]
"""The content of a file, in pieces that are not copied together without need."""

_THREADS = 4
_CONFLICTS = ("PreconditionFailed", "ConditionalRequestConflict")


class Files(Protocol):
    """A tree of files; paths are relative, with forward slashes."""

    def write(self, folder: str, files: Mapping[str, Parts]) -> None:
        """Write files into one folder; once this returns they are durable."""

    def create(self, path: str, content: bytes) -> bool:
        """Write a small file, durably and at once, unless it exists; say whether it did not."""

    def read(self, folder: str, names: Sequence[str]) -> list[Buffer | None]:
        """Return the content of files of one folder; None for what does not exist."""

    def remove(self, path: str) -> None:
        """Remove a file or a folder with all that is in it; it may be absent."""

    def remove_same(self, path: str, content: bytes) -> bool:
        """Remove a small file if it still holds this, and say whether it did."""

    def find(self, folder: str, name: str) -> Iterator[str]:
        """Return the paths of the files of that name two folders below `folder`."""


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


class LocalFiles:
    """Files of this machine, synced to the disk with the folders that name them."""

    def __init__(self, root: Path) -> None:
        self._root = root.expanduser().absolute()

    def write(self, folder: str, files: Mapping[str, Parts]) -> None:
        """Write files into one folder, several at a time, and sync every folder that is new."""
        where = self._root / folder
        fresh = [where, *itertools.takewhile(lambda above: not above.exists(), where.parents)]
        _make_folder(where)
        _each(lambda name: _write_file(where / name, files[name]), list(files))
        # What others have just made they sync themselves; the one above names the topmost.
        for made in [*fresh, fresh[-1].parent]:
            _sync_folder(made)

    def create(self, path: str, content: bytes) -> bool:
        """Write the file aside and link it to its name: it appears whole or not at all."""
        target = self._root / path
        aside = _aside(target)
        _make_folder(target.parent)
        _write_file(aside, [np.frombuffer(content, np.uint8)])
        try:
            os.link(aside, target)
        except FileExistsError:
            return False
        finally:
            aside.unlink()
        _sync_folder(target.parent)
        return True

    def read(self, folder: str, names: Sequence[str]) -> list[Buffer | None]:
        """Return the content of files of one folder, read several at a time."""
        return _each(lambda name: _read_file(self._root / folder / name), names)

    def remove(self, path: str) -> None:
        """Remove a file or folder, and the folder above it if that is empty now."""
        target = self._root / path
        try:
            target.unlink(missing_ok=True)
        except (IsADirectoryError, PermissionError):
            while target.exists():
                with suppress(FileNotFoundError):  # someone else removes it too
                    shutil.rmtree(target)
        _remove_empty(target.parent)

    def remove_same(self, path: str, content: bytes) -> bool:
        """Move the file aside, so that no one can replace it between look and removal."""
        target = self._root / path
        aside = _aside(target)
        try:
            target.rename(aside)
        except (FileNotFoundError, NotADirectoryError):
            return False
        is_same = aside.read_bytes() == content
        if not is_same:
            with suppress(FileExistsError):  # yet another one has come since
                os.link(aside, target)
        aside.unlink()
        _remove_empty(target.parent)
        return is_same

    def find(self, folder: str, name: str) -> Iterator[str]:
        """Return the paths of the files of that name two folders below `folder`."""
        for path in (self._root / folder).glob(f"*/*/{name}"):
            yield path.relative_to(self._root).as_posix()


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

    def create(self, path: str, content: bytes) -> bool:
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

    def find(self, folder: str, name: str) -> Iterator[str]:
        """Return the paths of the files of that name two folders below `folder`."""
        prefix = len(self._root) + 1
        for path in self._system.find(f"{self._root}/{folder}"):
            if path.endswith(f"/{name}"):
                yield path[prefix:]


def _each(work: Any, names: Sequence[str]) -> list[Any]:
    """Do the same for every name: in threads where it is many, for disks take their time."""
    if len(names) <= 2:
        return [work(name) for name in names]
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="dasktune-files") as pool:
        return list(pool.map(work, names))


def _aside(path: Path) -> Path:
    """Return a name next to a file that no one else uses."""
    return path.with_name(f"{path.name}.{uuid.uuid4().hex}")


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):  # not empty: others write there
        folder.rmdir()


def _make_folder(path: Path) -> None:
    """Make a folder though others may be removing the empty ones above it."""
    for _ in range(10):
        with suppress(FileNotFoundError, FileExistsError):  # gone between two looks
            path.mkdir(parents=True, exist_ok=True)
            return
    path.mkdir(parents=True, exist_ok=True)


def _write_file(path: Path, parts: Parts) -> None:
    with path.open("wb", buffering=0) as file:
        for part in parts:
            rest = part.data
            while rest:
                rest = rest[file.write(rest) :]
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    """Sync the names in a folder, which syncing the files alone does not do."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_file(path: Path) -> Buffer | None:
    try:
        return np.fromfile(path, np.uint8)
    except FileNotFoundError:
        return None


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

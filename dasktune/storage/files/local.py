"""Local files, synced to the disk, so that they survive a power cut."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import stat
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from functools import cache
from io import FileIO
from pathlib import Path

import numpy as np

from dasktune.storage import layout
from dasktune.storage.buffers import PAGE, Buffer, in_pages
from dasktune.storage.files.base import (
    HEAD_NBYTES,
    MOST_NBYTES,
    NO_BOUNDS,
    Entry,
    Parts,
    Unreadable,
)
from dasktune.storage.files.removal import removal_mark

_THREADS = 4

LARGE_BYTES = 2**20
"""Parts of at least this size are written with `O_DIRECT`."""

_DIRECT = getattr(os, "O_DIRECT", 0)
"""`O_DIRECT`, or 0 on systems that do not have it."""

_TRIES = 10
"""Attempts to make a folder that other processes remove because it is empty."""

_UNREADABLE = {
    errno.EISDIR: "is a folder",
    errno.ELOOP: "is a link to itself",
    errno.ENXIO: "is not a regular file",
}
"""What a file is, by the number of the error with which it is opened."""


class LocalFiles:
    """Local files, synced to the disk with the folders that name them."""

    def __init__(self, root: Path) -> None:
        self._root = root.expanduser().absolute()
        self._named: set[Path] = set()
        """Folders that nobody removes, whose names and those above this process has synced."""

    def write(self, folder: str, files: Mapping[str, Parts]) -> None:
        """Write files into one folder, several at a time, and sync all folders above it."""
        where = self._root / folder
        above = self._above(where)
        _make_folder(where)
        synced = _pool().submit(sync_folders, above)

        def write(name: str) -> None:
            _write_file(where / name, files[name])

        *names, last = files
        begun = [synced, *(_pool().submit(write, name) for name in names)]
        try:
            try:
                write(last)
            finally:
                wait(begun)  # after a failure, too, nothing may be written after the return
            for future in begun:
                future.result()
            sync_folders([where])
            self._note_synced(where)
        except OSError:
            _remove_files([where / name for name in files])  # makes room on a full disk
            raise

    def create(self, path: str, content: bytes, *, durable: bool = True) -> bool:
        """Write a temporary file and link it to the name, so that the file appears whole."""
        target = self._root / path
        above = self._above(target.parent) if durable else []
        aside = self._temporary(target, content, durable)
        try:
            os.link(aside, target)
        except FileExistsError:
            return False
        finally:
            aside.unlink()
        if durable:
            with suppress(FileNotFoundError):  # removed since, with its folder
                self._sync(target.parent, above)
        return True

    def replace(self, path: str, content: bytes, *, durable: bool = False) -> None:
        """Write a temporary file and move it over the name."""
        target = self._root / path
        above = self._above(target.parent) if durable else []
        self._temporary(target, content, durable).replace(target)
        if durable:
            with suppress(FileNotFoundError):  # removed since, with its folder
                self._sync(target.parent, above)

    def _above(self, folder: Path) -> list[Path]:
        """Return the folders to sync, by which the name of a folder becomes durable.

        Those that exist, too: the process that has just made one may not have synced its name yet.
        """
        unsynced = itertools.takewhile(lambda each: each not in self._named, self._inside(folder))
        return list(dict.fromkeys([*new_above(folder), *(each.parent for each in unsynced)]))

    def _inside(self, folder: Path) -> list[Path]:
        """Return a folder and those above it, up to that of the store, which is left out."""
        above = (folder, *folder.parents)
        return list(itertools.takewhile(lambda each: each != self._root, above))

    def _sync(self, folder: Path, above: Sequence[Path]) -> None:
        """Sync folders together: the file system then writes its journal once."""
        synced = [_pool().submit(sync_folders, [each]) for each in above]
        try:
            sync_folders([folder])
        finally:
            wait(synced)
        for future in synced:
            future.result()
        self._note_synced(folder)

    def _note_synced(self, folder: Path) -> None:
        """Remember the folder above, if any, that nobody removes, and so those above it."""
        above = itertools.dropwhile(
            lambda each: not layout.lasts(each.relative_to(self._root).as_posix()),
            self._inside(folder),
        )
        self._named.update(above)

    def _temporary(self, target: Path, content: bytes, durable: bool) -> Path:
        aside, parts = _aside(target), [np.frombuffer(content, np.uint8)]
        for left in reversed(range(_TRIES)):
            _make_folder(target.parent)
            try:
                _write_file(aside, parts, durable)
                break
            except OSError as error:
                _remove_files([aside])
                # Another process may remove the folder while it is still empty.
                if not isinstance(error, FileNotFoundError) or not left:
                    raise
        return aside

    def read(
        self, folder: str, names: Sequence[str], *, most: Mapping[str, int] = NO_BOUNDS
    ) -> list[Buffer | Unreadable | None]:
        """Return the content of files of one folder, read several at a time."""
        paths = [self._root / folder / name for name in names]
        bounds = [most.get(name, MOST_NBYTES) for name in names]
        few = len(paths) <= 2  # reading them is faster than starting a thread
        return list((map if few else _pool().map)(_read_file, paths, bounds))

    def remove(self, path: str) -> None:
        """Remove a file or folder, and its parent folder if that is empty then."""
        target = self._root / path
        try:
            target.unlink(missing_ok=True)
        except (IsADirectoryError, PermissionError):
            if target.exists() and not target.is_dir():
                raise
            while target.exists():
                with suppress(FileNotFoundError):  # another process removes it, too
                    shutil.rmtree(target)
        _remove_empty(target.parent)

    def remove_same(self, path: str, content: bytes | Unreadable) -> bool:
        """Look and remove while a mark keeps other processes from removing the file."""
        with removal_mark(self, path) as may_remove:
            current = self.read("", [path])[0] if may_remove else None
            seen = current.tobytes() if isinstance(current, np.ndarray) else current
            is_same = seen is not None and seen == content
            if is_same:
                self.remove(path)
        return is_same

    def removes_conditionally(self) -> bool:
        """Return False: file systems know no such condition."""
        return False

    def remove_files(self, paths: Iterable[str]) -> None:
        """Remove files, and their parent folders that are empty then."""
        for path in paths:
            self.remove(path)

    def entries(self, folder: str) -> Iterator[Entry]:
        """Return all files below a folder; files removed during the listing may be missing."""
        prefix = len(str(self._root)) + 1
        for above, _, names in os.walk(self._root / folder):
            for name in names:
                with suppress(FileNotFoundError):
                    path = os.path.join(above, name)
                    status = _status_of(path)
                    yield Entry(path=path[prefix:], nbytes=status.st_size, modified=status.st_mtime)


def _pool() -> ThreadPoolExecutor:
    """Return the threads of this process, for all its stores; they do not outlive a fork."""
    return _pool_of(os.getpid())


@cache
def _pool_of(process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="dasktune-files")


def new_above(folder: Path) -> list[Path]:
    """Return the folders above a folder that are missing, and the parent of the topmost of them.

    Whoever makes them must sync all of these: each of them holds the name of the next one.
    """
    missing = [*itertools.takewhile(lambda above: not above.exists(), (folder, *folder.parents))]
    return [above.parent for above in missing]


def _aside(path: Path) -> Path:
    """Return a unique name next to a file."""
    return path.with_name(f"{path.name}.{uuid.uuid4().hex}")


def _remove_files(paths: Sequence[Path]) -> None:
    """Remove files whose writing failed, as far as they exist."""
    for path in paths:
        with suppress(OSError):
            path.unlink()
    for folder in {path.parent for path in paths}:
        _remove_empty(folder)


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):  # not empty: others write there
        folder.rmdir()


def _make_folder(path: Path) -> None:
    """Make a folder while others may remove the empty folders above it."""
    for _ in range(_TRIES):
        with suppress(FileNotFoundError, FileExistsError):  # a parent was removed meanwhile
            path.mkdir(parents=True, exist_ok=True)
            return
    path.mkdir(parents=True, exist_ok=True)


def _write_file(path: Path, parts: Parts, durable: bool = True) -> None:
    with path.open("wb", buffering=0) as file:
        for part in parts:
            rest = part.data
            if durable and len(rest) >= LARGE_BYTES:
                rest = rest[_write_from_memory(file, rest) :]
            while rest:
                rest = rest[file.write(rest) :]
        if durable:
            os.fsync(file.fileno())


def _write_from_memory(file: FileIO, part: memoryview) -> int:
    """Write the whole pages of a part with `O_DIRECT`; return the bytes written, 0 if refused.

    A usual write copies the pages into the page cache. Where the cache must first get new memory,
    that takes several times as long as the disk. These pages, too, are durable only after a sync.
    """
    from fcntl import F_GETFL, F_SETFL, fcntl

    flags = fcntl(file, F_GETFL)
    try:
        fcntl(file, F_SETFL, flags | _DIRECT)
        return file.write(part[: len(part) // PAGE * PAGE])
    except OSError:  # the file system, or the address of the part, does not allow it
        return 0  # the usual write that follows raises any other error
    finally:
        fcntl(file, F_SETFL, flags)


def sync_folders(paths: Iterable[Path]) -> None:
    """Sync folders: syncing a file does not sync its name."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _status_of(path: str) -> os.stat_result:
    """Return the status of a file; for a link that leads nowhere, that of the link."""
    try:
        return os.stat(path)
    except OSError:
        return os.lstat(path)


def _read_file(path: Path, most: int) -> Buffer | Unreadable | None:
    try:
        # Without this, opening a pipe in place of the file would wait for a writer.
        with open(path, "rb", buffering=0, opener=_open_at_once) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return Unreadable("is not a regular file")
            if status.st_size > most:
                return Unreadable.large(most, file.read(HEAD_NBYTES))
            content = in_pages(status.st_size)
            rest = content.data
            while rest and (count := file.readinto(rest)):
                rest = rest[count:]
            return content[: content.size - len(rest)]
    except FileNotFoundError:
        return Unreadable("is a link to a missing file") if path.is_symlink() else None
    except OSError as error:
        if error.errno not in _UNREADABLE:
            raise
        return Unreadable(_UNREADABLE[error.errno])

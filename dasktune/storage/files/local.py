"""Files of this machine, synced to the disk: what is written survives a power cut."""

from __future__ import annotations

import itertools
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path

import numpy as np

from dasktune.storage.buffers import in_pages
from dasktune.storage.files.base import Buffer, Entry, Parts

_THREADS = 4

_TRIES = 10
"""How often a folder is made, at most, that others remove because it is empty."""


class LocalFiles:
    """Files of this machine, synced to the disk with the folders that name them."""

    def __init__(self, root: Path) -> None:
        self._root = root.expanduser().absolute()
        self._process, self._threads = os.getpid(), _threads()

    @property
    def _pool(self) -> ThreadPoolExecutor:
        """Return threads of this process: a fork leaves them behind."""
        if self._process != os.getpid():
            self._process, self._threads = os.getpid(), _threads()
        return self._threads

    def write(self, folder: str, files: Mapping[str, Parts]) -> None:
        """Write files into one folder, several at a time, and sync every folder that is new."""
        where = self._root / folder
        fresh = [*itertools.takewhile(lambda above: not above.exists(), where.parents)]
        _make_folder(where)
        # What others have just made they sync themselves; the one above names the topmost.
        above = [*fresh, (fresh[-1] if fresh else where).parent]
        synced = self._pool.submit(_sync_folders, above)

        def write(name: str) -> None:
            _write_file(where / name, files[name])

        *names, last = files
        begun = [synced, *(self._pool.submit(write, name) for name in names)]
        try:
            try:
                write(last)
            finally:
                wait(begun)  # whatever fails, nothing is written after the return
            for one in begun:
                one.result()
            _sync_folders([where])
        except OSError:
            _remove_files([where / name for name in files])  # a full disk gets its room back
            raise

    def create(self, path: str, content: bytes, *, durable: bool = True) -> bool:
        """Write the file aside and link it to its name: it appears whole or not at all."""
        target = self._root / path
        aside = self._aside_with(target, content, durable)
        try:
            os.link(aside, target)
        except FileExistsError:
            return False
        finally:
            aside.unlink()
        if durable:
            with suppress(FileNotFoundError):  # the file has been removed since, with its folder
                _sync_folders([target.parent])
        return True

    def replace(self, path: str, content: bytes) -> None:
        """Write the file aside and move it over its name."""
        target = self._root / path
        self._aside_with(target, content, durable=False).replace(target)

    def _aside_with(self, target: Path, content: bytes, durable: bool) -> Path:
        """Write a file next to where it shall be."""
        aside, parts = _aside(target), [np.frombuffer(content, np.uint8)]
        for left in reversed(range(_TRIES)):
            _make_folder(target.parent)
            try:
                _write_file(aside, parts, durable)
                break
            except OSError as error:
                _remove_files([aside])
                # Until then the folder may have been empty, and others have removed it.
                if not isinstance(error, FileNotFoundError) or not left:
                    raise
        return aside

    def read(self, folder: str, names: Sequence[str]) -> list[Buffer | None]:
        """Return the content of files of one folder, read several at a time."""
        paths = [self._root / folder / name for name in names]
        few = len(paths) <= 2  # which are read before a thread has begun
        return list(map(_read_file, paths)) if few else list(self._pool.map(_read_file, paths))

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
        found = _read_file(aside)
        is_same = found is not None and found.tobytes() == content
        if not is_same:
            with suppress(FileExistsError):  # yet another one has come since
                os.link(aside, target)
        aside.unlink()
        _remove_empty(target.parent)
        return is_same

    def remove_files(self, paths: Iterable[str]) -> None:
        """Remove files, and the folders above them that are empty now."""
        for path in paths:
            self.remove(path)

    def entries(self, folder: str) -> Iterator[Entry]:
        """Return all files below a folder; what is removed meanwhile may be missing."""
        prefix = len(str(self._root)) + 1
        for above, _, names in os.walk(self._root / folder):
            for name in names:
                with suppress(FileNotFoundError):
                    path = os.path.join(above, name)
                    found = os.stat(path)
                    yield Entry(path=path[prefix:], nbytes=found.st_size, modified=found.st_mtime)


def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="dasktune-files")


def _aside(path: Path) -> Path:
    """Return a name next to a file that no one else uses."""
    return path.with_name(f"{path.name}.{uuid.uuid4().hex}")


def _remove_files(paths: Sequence[Path]) -> None:
    """Remove what may be there of files whose writing has failed."""
    for path in paths:
        with suppress(OSError):
            path.unlink()
    for folder in {path.parent for path in paths}:
        _remove_empty(folder)


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):  # not empty: others write there
        folder.rmdir()


def _make_folder(path: Path) -> None:
    """Make a folder though others may be removing the empty ones above it."""
    for _ in range(_TRIES):
        with suppress(FileNotFoundError, FileExistsError):  # gone between two looks
            path.mkdir(parents=True, exist_ok=True)
            return
    path.mkdir(parents=True, exist_ok=True)


def _write_file(path: Path, parts: Parts, durable: bool = True) -> None:
    with path.open("wb", buffering=0) as file:
        for part in parts:
            rest = part.data
            while rest:
                rest = rest[file.write(rest) :]
        if durable:
            os.fsync(file.fileno())


def _sync_folders(paths: Iterable[Path]) -> None:
    """Sync the names in folders, which syncing the files alone does not do."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _read_file(path: Path) -> Buffer | None:
    try:
        # A pipe that somebody has put there would be waited for.
        with open(path, "rb", buffering=0, opener=_open_at_once) as file:
            content = in_pages(os.fstat(file.fileno()).st_size)
            rest = content.data
            while rest and (count := file.readinto(rest)):
                rest = rest[count:]
            return content[: content.size - len(rest)]
    except FileNotFoundError:
        return None

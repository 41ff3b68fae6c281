"""A disk that forgets: what a power cut leaves of a folder, after every operation on it.

What a file system promises is only this: the content of a file is on the disk once the file was
synced, and its name once the folder was. Everything else may be there or not. `Disk` watches
the calls of a test, and returns the images that a power cut may leave at any moment.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from dasktune.storage.files import local

CHANGES = ("link", "mkdir", "remove", "rename", "replace", "rmdir", "unlink")
"""Functions of `os` that change a folder; pathlib calls them, too."""

Image = Mapping[str, bytes | None]
"""Content of each file by path; None for a folder."""

Result = TypeVar("Result")


class AtOnce(Executor):
    """Does a job when it is submitted, so that operations come in one order."""

    def __init__(self, *_: object, **__: object) -> None:
        """Start no thread."""

    def submit(  # type: ignore[override]
        self, work: Callable[..., Result], /, *arguments: Any, **options: Any
    ) -> Future[Result]:
        """Return the finished job."""
        future: Future[Result] = Future()
        try:
            future.set_result(work(*arguments, **options))
        except OSError as error:
            future.set_exception(error)
        return future


class Disk:
    """The disk below a folder, which exists and is synced.

    Parameters
    ----------
    folder
        The folder.

    Attributes
    ----------
    fsyncs
        How many there were so far.
    """

    def __init__(self, folder: Path) -> None:
        self.fsyncs = 0
        self._folder = folder
        self._ignored: int | None = None
        self._names: dict[int, dict[str, int]] = {}
        self._contents: dict[int, bytes] = {}
        self._folders: set[int] = {folder.stat().st_ino}
        self._held: list[int] = []
        self._after: Callable[[], None] = lambda: None
        self._is_checked = False

    @contextmanager
    def watching(self, after: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Watch all operations, and call a function after each."""

        def check() -> None:
            self._is_checked = True  # the check's own operations are none of the test's
            try:
                after()
            finally:
                self._is_checked = False

        self._after = check
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(local, "ThreadPoolExecutor", AtOnce)
            patch.setattr(os, "fsync", self._fsync)
            for name in CHANGES:
                patch.setattr(os, name, self._changing(getattr(os, name)))
            try:
                yield
            finally:
                for descriptor in self._held:
                    os.close(descriptor)
                self._held.clear()

    def ignore(self, number: int | None) -> None:
        """Count from 0 again, and let the fsync of a number do nothing."""
        self.fsyncs, self._ignored = 0, number

    def synced(self) -> Image:
        """Return the image that is on the disk for certain."""
        return self._image(lambda: False)

    def possible(self, seed: int) -> Image:
        """Return an image with all that is certain; a seed decides on the rest."""
        rng = random.Random(seed)
        return self._image(lambda: rng.random() < 0.7)

    def _image(self, persists: Callable[[], bool]) -> Image:
        return dict(self._walk(self._folder.stat().st_ino, "", persists, self._now()))

    # ------------------------------------------------------------------------- the calls

    def _changing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            result = function(*arguments, **options)
            if not self._is_checked:
                self._after()
            return result

        return call

    def _fsync(self, descriptor: int) -> None:
        number, self.fsyncs = self.fsyncs, self.fsyncs + 1
        if number != self._ignored:
            inode = self._hold(f"/proc/self/fd/{descriptor}")
            path = Path(f"/proc/self/fd/{descriptor}")
            if path.is_dir():
                self._names[inode] = {
                    name: self._hold(path / name) for name in os.listdir(descriptor)
                }
            else:
                self._contents[inode] = path.read_bytes()
        self._after()

    def _hold(self, path: Path | str) -> int:
        """Return the inode of a path, and keep it from being given to another file."""
        descriptor = os.open(path, os.O_PATH)
        self._held.append(descriptor)
        inode = os.fstat(descriptor).st_ino
        if Path(f"/proc/self/fd/{descriptor}").is_dir():
            self._folders.add(inode)
        return inode

    # ------------------------------------------------------------------------- the images

    def _walk(
        self,
        inode: int,
        prefix: str,
        persists: Callable[[], bool],
        now: Mapping[int, Mapping[str, Path]],
    ) -> Iterator[tuple[str, bytes | None]]:
        there = self._there(inode, persists, now.get(inode, {}))
        for name, (child, path) in sorted(there.items()):
            if child in self._folders or (path is not None and path.is_dir()):
                yield prefix + name, None
                yield from self._walk(child, f"{prefix}{name}/", persists, now)
            else:
                yield prefix + name, self._content(child, path, persists)

    def _there(
        self, inode: int, persists: Callable[[], bool], now: Mapping[str, Path]
    ) -> dict[str, tuple[int, Path | None]]:
        """Return the names in a folder: those that were synced, or those that there are now."""
        synced = self._names.get(inode, {})
        there: dict[str, tuple[int, Path | None]] = {}
        for name in sorted({*synced, *now}):
            path = now.get(name)
            current = None if path is None else path.stat().st_ino
            if name in synced and (synced[name] == current or not persists()):
                there[name] = (synced[name], path if synced[name] == current else None)
            elif current is not None and (name in synced or persists()):
                there[name] = (current, path)
        return there

    def _now(self) -> dict[int, dict[str, Path]]:
        """Return the names that there are now, by the inode of their folder."""
        folders = [self._folder, *(path for path in self._folder.rglob("*") if path.is_dir())]
        return {
            folder.stat().st_ino: {path.name: path for path in folder.iterdir()}
            for folder in folders
        }

    def _content(self, inode: int, path: Path | None, persists: Callable[[], bool]) -> bytes:
        synced = self._contents.get(inode, b"")
        content = synced if path is None else path.read_bytes()
        if content == synced or not persists():
            return synced
        return content if persists() else content[: len(content) // 2]


def restore(image: Image, folder: Path) -> Path:
    """Write an image into a new folder, and return the folder."""
    folder.mkdir()
    for path, content in image.items():
        if content is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(content)
    return folder

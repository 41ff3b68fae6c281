"""The files of a simulated store: in memory, by the simulated clock, and away when a fault says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from dasktune.storage.buffers import Buffer
from dasktune.storage.files.base import NO_BOUNDS, Entry, Files, Parts, Unreadable


class MemoryFiles:
    """Files as an object store keeps them: whole or absent, removed on conditions.

    Parameters
    ----------
    clock
        Gives the time of each write.

    Attributes
    ----------
    removals
        How often each file was removed.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.removals: Counter[str] = Counter()
        self._clock = clock
        self._files: dict[str, tuple[bytes, float]] = {}

    def write(self, folder: str, files: Mapping[str, Parts]) -> None:
        """Write files into one folder."""
        for name, parts in files.items():
            self.replace(f"{folder}/{name}", b"".join(part.tobytes() for part in parts))

    def create(self, path: str, content: bytes, *, durable: bool = True) -> bool:
        """Write a file if it is absent; return whether it was."""
        if path in self._files:
            return False
        self.replace(path, content)
        return True

    def replace(self, path: str, content: bytes, *, durable: bool = False) -> None:
        """Write a file over an older one."""
        self._files[path] = (content, self._clock())

    def read(
        self, folder: str, names: Sequence[str], *, most: Mapping[str, int] = NO_BOUNDS
    ) -> list[Buffer | Unreadable | None]:
        """Return the content of files; None for a missing file."""
        prefix = f"{folder}/" if folder else ""
        found = (self._files.get(prefix + name) for name in names)
        return [None if file is None else np.frombuffer(file[0], np.uint8) for file in found]

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with its content."""
        names = [name for name in self._files if name.startswith(f"{path}/")]
        self.remove_files([path] if path in self._files else names)

    def remove_files(self, paths: Iterable[str]) -> None:
        """Remove files."""
        for path in paths:
            self.removals[path] += self._files.pop(path, None) is not None

    def remove_same(self, path: str, content: bytes | Unreadable) -> bool:
        """Remove a file if it has this content; return whether it had."""
        is_same = path in self._files and self._files[path][0] == content
        if is_same:
            self.remove_files([path])
        return is_same

    def removes_conditionally(self) -> bool:
        """Return True: nothing happens within a call."""
        return True

    def entries(self, folder: str) -> Iterator[Entry]:
        """Return all files below a folder."""
        for path, (content, at) in list(self._files.items()):
            if path.startswith(f"{folder}/"):
                yield Entry(path=path, nbytes=len(content), modified=at)


class FailingFiles:
    """Files that one process cannot use for a while.

    Parameters
    ----------
    files
        The files.
    before
        Called before each request.

    Attributes
    ----------
    failures
        How many of the next requests fail.
    """

    def __init__(self, files: Files, before: Callable[[], None] = lambda: None) -> None:
        self.failures = 0
        self._files = files
        self._before = before

    def __getattr__(self, name: str) -> Callable[..., object]:
        request = getattr(self._files, name)

        def try_request(*arguments: object, **options: object) -> object:
            self._before()
            if self.failures > 0:
                self.failures -= 1
                raise OSError("the simulated store does not answer")
            return request(*arguments, **options)

        return try_request

"""The interface of a store's files: a few operations on a tree of files.

Every implementation can create a file only if it is absent, the one operation by which
processes coordinate. Files of `dasktune.storage.files.local` survive a power cut, which fsspec
does not ensure; `dasktune.storage.files.objects` covers every other protocol of fsspec.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from dasktune.storage.buffers import Buffer

Parts = Iterable[Buffer]
"""The content of a file in pieces, which avoids a copy.

A piece may be made only after the one before was written.
"""


MOST_NBYTES = 2**26
"""The largest file that is read where its caller names no other bound. States are larger."""

HEAD_NBYTES = 64
"""First bytes of a file that is too large, which tell what it is."""

NO_BOUNDS: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file that is there, and whose content is not read: a folder, a link to itself, too large.

    Parameters
    ----------
    reason
        What it is, as the rest of a sentence that begins with the name of the file.
    head
        The first bytes of a file that is too large.
    """

    reason: str
    head: bytes = b""

    @classmethod
    def large(cls, most: int, head: bytes) -> Unreadable:
        """Return a file with more than the bytes that are read."""
        return cls(f"has more than {most:,} bytes", head[:HEAD_NBYTES])


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A file in a listing.

    Parameters
    ----------
    modified
        Time of the last write (epoch seconds, by the store's clock); 0 if unknown.
    """

    path: str
    nbytes: int
    modified: float


class Files(Protocol):
    """A tree of files; paths are relative, with forward slashes.

    Failures that may pass are retried. A failure that stays is raised as an `OSError` whose
    message holds no credentials.
    """

    def write(self, folder: str, files: Mapping[str, Parts]) -> None:
        """Write files into one folder; they are durable on return."""

    def create(self, path: str, content: bytes, *, durable: bool = True) -> bool:
        """Write a small file atomically if it is absent; return whether it was.

        Unless it is `durable`, a power cut may lose it.
        """

    def replace(self, path: str, content: bytes, *, durable: bool = False) -> None:
        """Write a small file atomically over an older one.

        Unless it is `durable`, a power cut may lose both.
        """

    def read(
        self, folder: str, names: Sequence[str], *, most: Mapping[str, int] = NO_BOUNDS
    ) -> list[Buffer | Unreadable | None]:
        """Return the content of files below one folder; None for a missing file.

        A file is `Unreadable` if it has more bytes than `most` says for its name; by default more
        than `MOST_NBYTES`. No memory is allocated for it.
        """

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with its content; it may be absent."""

    def remove_files(self, paths: Iterable[str]) -> None:
        """Remove files, many at a time; they may be absent."""

    def remove_same(self, path: str, content: bytes | Unreadable) -> bool:
        """Remove a small file if `read` gives this for it; return whether this call removed it.

        A file that others write in place of it meanwhile stays. While another process removes
        the file, this one does not.
        """

    def removes_conditionally(self) -> bool:
        """Return whether `remove_same` is one request that the store carries out as a whole.

        If not, a short-lived mark beside the file keeps other processes from removing it.
        """

    def entries(self, folder: str) -> Iterator[Entry]:
        """Return all files below a folder in any order; an absent folder is empty."""

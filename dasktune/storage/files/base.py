"""What a checkpoint store needs of the place it lies in: a few operations on a tree of files.

Both kinds create a file only if it is absent, and that is the only way in which two processes
ever meet. `dasktune.storage.files.local` makes what it writes survive a power cut, which
fsspec does not do; `dasktune.storage.files.objects` is any other protocol of fsspec.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Buffer = NDArray[np.uint8]
Parts = Sequence[Buffer]
"""The content of a file, in pieces that are not copied together without need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A file in a listing.

    Parameters
    ----------
    path
        Relative to the store.
    nbytes
        Its size.
    modified
        When it was written last (epoch seconds, by the store's clock); 0 if that is not known.
    """

    path: str
    nbytes: int
    modified: float


class Files(Protocol):
    """A tree of files; paths are relative, with forward slashes.

    Whatever a store answers that no second try mends comes as an `OSError` in words that
    name no credentials; what a second try may mend is tried again first.
    """

    def write(self, folder: str, files: Mapping[str, Parts]) -> None:
        """Write files into one folder; once this returns they are durable."""

    def create(self, path: str, content: bytes, *, durable: bool = True) -> bool:
        """Write a small file, whole and at once, unless it exists; say whether it did not.

        It need not survive a power cut if it is not `durable`.
        """

    def replace(self, path: str, content: bytes) -> None:
        """Write a small file, whole and at once, whatever was there; not durable."""

    def read(self, folder: str, names: Sequence[str]) -> list[Buffer | None]:
        """Return the content of files below one folder; None for what does not exist."""

    def remove(self, path: str) -> None:
        """Remove a file or a folder with all that is in it; it may be absent."""

    def remove_files(self, paths: Iterable[str]) -> None:
        """Remove files, many at a time; they may be absent."""

    def remove_same(self, path: str, content: bytes) -> bool:
        """Remove a small file if it still holds this, and say whether it did."""

    def entries(self, folder: str) -> Iterator[Entry]:
        """Return all files below a folder, in no order; none if it does not exist."""

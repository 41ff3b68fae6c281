"""Removing a file that somebody may replace meanwhile, where a store cannot do it in one request.

Looking at a file and removing it are two steps. Between them another process may remove the
file, and a third may write a newer one, which the first would then remove. A file beside it, the
mark, prevents that: only the process that has created the mark looks and removes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from dasktune._engine.timeouts import REMOVAL_MARK_SECONDS
from dasktune.storage.files.base import Files
from dasktune.storage.files.clock import store_time
from dasktune.storage.layout import MARK


@contextmanager
def removal_mark(files: Files, path: str) -> Iterator[bool]:
    """Hold the mark of a file; yield whether this process, and so no other, may remove the file.

    A process that dies here leaves the mark. The process that finds it so old, by the clock of the
    store, removes it, and the next call may remove the file.

    Raises
    ------
    OSError
        If the store cannot be used.
    """
    mark = path + MARK
    if files.create(mark, uuid4().hex.encode(), durable=False):
        try:
            yield True
        finally:
            files.remove_files([mark])
    else:
        beside = files.entries(path.rpartition("/")[0])
        made = next((entry.modified for entry in beside if entry.path == mark), 0.0)
        if made and store_time(files) - made > REMOVAL_MARK_SECONDS:
            files.remove_files([mark])
        yield False

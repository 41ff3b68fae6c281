"""Reading many rows at once."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Readers:
    """The reads of many rows that are under way in this process."""

    lock = threading.Lock()
    count = 0
    was_on = False
    """Whether the collector was on before the first of them."""


@contextmanager
def many_rows() -> Iterator[None]:
    """Read many rows with garbage collection off.

    Each collection would look through all rows read so far, a third of the time of reading, and
    find nothing: rows hold no cycles. It is off in the whole process until the last such read has
    ended.
    """
    with _Readers.lock:
        if not _Readers.count:
            _Readers.was_on = gc.isenabled()
            gc.disable()
        _Readers.count += 1
    try:
        yield
    finally:
        with _Readers.lock:
            _Readers.count -= 1
            if not _Readers.count and _Readers.was_on:
                gc.enable()

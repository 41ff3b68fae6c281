"""The garbage collector, off where it would look through all that there is and find nothing."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Blocks:
    """The blocks of this process that run now."""

    lock = threading.Lock()
    count = 0
    was_on = False
    """Whether the collector was on before the first of them."""


@contextmanager
def without_collections() -> Iterator[None]:
    """Read many rows, or import modules, with garbage collection off.

    Each collection would look through all rows and modules so far, a third of the time of reading
    or importing, and find nothing: they are in use. It is off in the whole process until the last
    such block has ended.
    """
    with _Blocks.lock:
        if not _Blocks.count:
            _Blocks.was_on = gc.isenabled()
            gc.disable()
        _Blocks.count += 1
    try:
        yield
    finally:
        with _Blocks.lock:
            _Blocks.count -= 1
            if not _Blocks.count and _Blocks.was_on:
                gc.enable()

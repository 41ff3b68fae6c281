"""The garbage collector, off where it would look through all that there is and find nothing."""

from __future__ import annotations

import atexit
import gc
import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache


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


@cache
def end_quickly() -> None:
    """Have this process end without collections, which last for a second if it has used torch."""
    atexit.register(_leave_all)


def _leave_all() -> None:
    flush_files()
    gc.freeze()


def flush_files() -> None:
    """Write what open files still hold: without a last collection some are never closed."""
    for value in gc.get_objects():
        if issubclass(type(value), io.TextIOWrapper | io.BufferedWriter):
            with suppress(Exception):
                value.flush()

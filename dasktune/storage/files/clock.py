"""The clock of a store: the ages of its files, and the ends of leases, are measured by it alone.

This machine's clock may be minutes away from that of an object store or a file server, or be set
while a driver runs. An upload under way would then look dead, a dead one alive, and each of two
drivers would take the leases of the other for ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from dasktune.storage.files.base import Files
from dasktune.storage.layout import CLOCK, PROBES


def store_time(files: Files) -> float:
    """Return the present time by the store's clock: that of a file which is written now.

    Returns
    -------
    float
        Epoch seconds; 0 if the store does not tell when its files were written.

    Raises
    ------
    OSError
        If the store cannot be written or read.
    """
    files.replace(CLOCK, b"")
    times = {entry.path: entry.modified for entry in files.entries(PROBES)}
    return times.get(CLOCK, 0.0)


def elapsed() -> float:
    """Return seconds that only grow, if possible also while the machine is suspended."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def store_clock(files: Files, elapsed: Callable[[], float] = elapsed) -> Callable[[], float]:
    """Return a clock that shows the store's time (epoch seconds), and that nobody sets.

    It shows this machine's time of now, and what has passed since, if the store does not answer or
    tells no time.
    """
    try:
        began = store_time(files) or time.time()
    except OSError:
        began = time.time()
    before = elapsed()
    return lambda: began + elapsed() - before

"""The clock of a store: the ages of its files are measured by it alone.

This machine's clock may be minutes away from that of an object store or a file server. An upload
under way would then look dead, and a dead one alive.
"""

from __future__ import annotations

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

"""What a worker of a job does when it is told to end: preloaded by Dask (``--preload``).

Without a nanny Dask's own answer to SIGTERM is to break off all that goes on in the event loop:
what a stage saved meanwhile, nobody would hear of. Here the worker is closed as at any other
end: the stage ends at its next step, is saved, and the driver is told.
"""

from __future__ import annotations

import asyncio
import signal

from distributed import Worker

_closing: set[asyncio.Task[object]] = set()
"""Kept while they run: the event loop does not."""


def dask_setup(worker: Worker) -> None:
    """Take the signals that end a worker for itself; called by Dask in the event loop."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, close, worker, f"dasktune-{number.name}")


def close(worker: Worker, reason: str) -> None:
    """Let a worker save what it has, and close; may be called again meanwhile."""
    task = asyncio.ensure_future(worker.close(reason=reason))
    _closing.add(task)
    task.add_done_callback(_closing.discard)

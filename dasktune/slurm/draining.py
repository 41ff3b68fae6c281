"""Workers that are not needed any more: told to leave once they have nothing to do."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from distributed import Scheduler, Worker
from distributed.protocol.pickle import dumps

from dasktune.worker.plugin import StagePlugin

_closing: set[asyncio.Task[object]] = set()
"""Kept while they run: the event loop does not."""


def leave(dask_worker: Worker) -> None:
    """Let a worker take no more stages, and close once it has none; runs on that worker."""
    stages = [one for one in dask_worker.plugins.values() if isinstance(one, StagePlugin)]
    for plugin in stages:
        if not plugin.is_leaving:
            plugin._begin_to_leave()
    if not stages:
        task = asyncio.ensure_future(dask_worker.close(reason="dasktune-leaves"))
        _closing.add(task)
        task.add_done_callback(_closing.discard)


async def drain(scheduler: Scheduler, workers: Collection[str]) -> bool:
    """Tell workers, by address, to leave; return whether all have heard it."""
    message = {"op": "run", "function": dumps(leave), "wait": True}
    answers = await scheduler.broadcast(msg=message, workers=list(workers), on_error="return")
    heard = (answers.get(one) for one in workers)
    return all(isinstance(one, dict) and one.get("status") == "OK" for one in heard)

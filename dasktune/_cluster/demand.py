"""The number of workers that a study can use, and the end of workers that it does not need.

Workers import this module to run `leave`, `rest` and `is_unused`, so it must not import
dask-jobqueue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any

from distributed import Worker
from distributed.protocol.pickle import dumps

from dasktune._worker.plugin import StagePlugin

_closing: set[asyncio.Task[object]] = set()
"""References to running tasks: the event loop keeps none."""


class Demand:
    """Follows the number of workers that can be used: up at once, down after a while.

    Parameters
    ----------
    least, most
        Bounds of the number of workers.
    idle_seconds
        How long an idle worker, or a job without use, is kept.
    """

    def __init__(self, *, least: int, most: int, idle_seconds: float) -> None:
        self._least, self._most = least, most
        self._idle_seconds = idle_seconds
        self._target = least
        self._lower_since: float | None = None
        self._idle_since: dict[str, float] = {}

    def note(self, wanted: int, idle: Collection[str], now: float) -> None:
        """Record the number of usable workers and the idle ones at time `now` (seconds)."""
        wanted = min(max(wanted, self._least), self._most)
        self._idle_since = {worker: self._idle_since.get(worker, now) for worker in idle}
        if wanted >= self._target:
            self._target, self._lower_since = wanted, None
        elif self._lower_since is None:
            self._lower_since = now
        elif now - self._lower_since >= self._idle_seconds:
            self._target, self._lower_since = wanted, None

    @property
    def target(self) -> int:
        """The number of workers that there should be."""
        return self._target

    def long_idle(self, now: float) -> list[str]:
        """Return the workers that were idle for `idle_seconds`, the longest first."""
        since = sorted((at, worker) for worker, at in self._idle_since.items())
        return [worker for at, worker in since if now - at >= self._idle_seconds]


def leave(dask_worker: Worker) -> None:
    """Accept no more stages on this worker, and close it after its last one."""
    plugins = [each for each in dask_worker.plugins.values() if isinstance(each, StagePlugin)]
    for plugin in plugins:
        if not plugin.is_leaving:
            plugin.begin_to_leave()
    if not plugins:
        task = asyncio.ensure_future(dask_worker.close(reason="dasktune-leaves"))
        _closing.add(task)
        task.add_done_callback(_closing.discard)


def rest(dask_worker: Worker) -> bool:
    """Accept no more stages on this worker; return whether its last one has ended."""
    plugins = [each for each in dask_worker.plugins.values() if isinstance(each, StagePlugin)]
    for plugin in plugins:
        if not plugin.is_leaving:
            plugin.begin_to_leave(closes=False)
    return not dask_worker.state.executing and all(plugin.is_at_rest for plugin in plugins)


def is_unused(dask_worker: Worker) -> bool:
    """Whether this worker is idle, and no study uses it."""
    has_study = any(isinstance(each, StagePlugin) for each in dask_worker.plugins.values())
    return not has_study and not dask_worker.state.executing


async def drain(scheduler: Any, workers: Collection[str]) -> bool:
    """Ask workers, by address, to leave; return whether all have confirmed it."""
    return None not in await _answers(scheduler, leave, workers)


async def are_at_rest(scheduler: Any, workers: Collection[str]) -> bool:
    """Ask workers, by address, to accept no more stages; return whether all are at rest."""
    return all(each and each["result"] for each in await _answers(scheduler, rest, workers))


async def unused(scheduler: Any, workers: Collection[str]) -> list[str]:
    """Return those of some workers, by address, that no study uses."""
    answers = await _answers(scheduler, is_unused, workers)
    return [
        worker for worker, each in zip(workers, answers, strict=True) if each and each["result"]
    ]


async def _answers(
    scheduler: Any, function: Callable[[Worker], object], workers: Collection[str]
) -> list[dict[str, Any] | None]:
    """Return the answers of workers that run a function; None for a worker that fails."""
    message = {"op": "run", "function": dumps(function), "wait": True}
    answers = await scheduler.broadcast(msg=message, workers=list(workers), on_error="return")
    given = (answers.get(worker) for worker in workers)
    return [a if isinstance(a, dict) and a.get("status") == "OK" else None for a in given]

"""Asking all workers the same at a time, each within a limit: one that hangs is named."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any

import cloudpickle
from distributed import Client

from dasktune.errors import ClusterError

GRACE_SECONDS = 5.0
"""How much longer than its limit a question may take until it is given up altogether."""

Probe = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Answers:
    """What workers answered, and why others did not, by address."""

    found: Mapping[str, Any] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)


class Asking:
    """Asks the workers of a cluster, and its scheduler.

    Parameters
    ----------
    client
        Connected to the cluster.
    seconds
        How long each may take for one answer.
    """

    def __init__(self, client: Client, seconds: float) -> None:
        self._client = client
        self._seconds = seconds

    def ask(self, probe: Probe, workers: Iterable[str], *arguments: object) -> Answers:
        """Ask workers the same, all at a time."""
        return self.ask_each(probe, dict.fromkeys(workers, arguments))

    def ask_each(self, probe: Probe, arguments: Mapping[str, tuple[object, ...]]) -> Answers:
        """Ask each worker with arguments of its own, all at a time."""

        async def ask(worker: str) -> object:
            asked = self._client.run(probe, *arguments[worker], workers=[worker], on_error="return")
            answer: Mapping[str, object] = await asyncio.wait_for(asked, self._seconds)
            return answer[worker]

        answers = self._gather(probe, {one: partial(ask, one) for one in arguments})
        return Answers(
            {one: found for one, found in answers.items() if not _is_error(found)},
            {one: self._reason(found) for one, found in answers.items() if _is_error(found)},
        )

    def ask_time(
        self, probe: Probe, workers: Iterable[str], clock: Callable[[], float]
    ) -> Mapping[str, tuple[float, float, float]]:
        """Return of each worker what `clock` said before, its answer, and `clock` after."""

        async def ask(worker: str) -> tuple[float, float, float]:
            before = clock()
            asked = self._client.run(probe, workers=[worker])
            answer: Mapping[str, float] = await asyncio.wait_for(asked, self._seconds)
            return before, answer[worker], clock()

        found = self._gather(probe, {one: partial(ask, one) for one in workers})
        return {one: trip for one, trip in found.items() if not _is_error(trip)}

    def ask_scheduler(self, probe: Probe, *arguments: object) -> tuple[Any, str]:
        """Return what the scheduler answers, or else why it does not."""

        async def ask() -> object:
            asked = self._client.run_on_scheduler(probe, *arguments)
            return await asyncio.wait_for(asked, self._seconds)

        try:
            return self._do(probe, ask), ""
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what was found
            return None, self._reason(error)

    def workers(self) -> Mapping[str, Mapping[str, Any]]:
        """Return what the scheduler knows of each worker, by address.

        Raises
        ------
        ClusterError
            If it does not answer.
        """
        scheduler = self._client.scheduler
        if scheduler is None:
            raise ClusterError("the client must be connected to a scheduler")

        async def ask() -> Any:
            return await asyncio.wait_for(scheduler.identity(n_workers=-1), self._seconds)

        try:
            known = self._client.sync(ask, asynchronous=False)
        except (OSError, TimeoutError) as error:
            words = f"the scheduler {scheduler.address} does not answer: {self._reason(error)}"
            raise ClusterError(words) from error
        found: Mapping[str, Mapping[str, Any]] = known["workers"]
        return found

    def _gather(
        self, probe: Probe, asked: Mapping[str, Callable[[], Awaitable[Any]]]
    ) -> dict[str, Any]:
        """Return what comes of each question, or its error."""
        if not asked:
            return {}

        async def ask_all() -> list[Any]:
            begun = (ask() for ask in asked.values())
            return await asyncio.gather(*begun, return_exceptions=True)

        return dict(zip(asked, self._do(probe, ask_all), strict=True))

    def _do(self, probe: Probe, work: Callable[[], Any]) -> Any:
        with _by_value(sys.modules[probe.__module__]):
            return self._client.sync(
                work, asynchronous=False, callback_timeout=self._seconds + GRACE_SECONDS
            )

    def _reason(self, error: object) -> str:
        if isinstance(error, TimeoutError):
            return f"no answer within {self._seconds:g} s"
        words = " ".join(str(error).split())
        return f"{type(error).__name__}: {words}"


def _is_error(found: object) -> bool:
    return isinstance(found, BaseException)


@contextmanager
def _by_value(module: ModuleType) -> Iterator[None]:
    """Let what is defined in a module travel with its code: it may be missing over there."""
    if module.__name__ in cloudpickle.list_registry_pickle_by_value():
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)
